"""Texts to vectors: a checkpoint and a recipe make an Embedder, which is called with texts. `embed` does both at once.

    texts -> ids (tokenizer) -> packed batches of similar length (engine) -> one vector per text, in the texts' order

N texts.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from minibert.checkpoints.checkpoint import Checkpoint
from minibert.checkpoints.load import load
from minibert.checkpoints.sentence_files import Stated, read_stated
from minibert.heads import SentenceVectors
from minibert.kernels.packing import map_ahead
from minibert.model import Encoder
from minibert.tables.texts import TEXTS, RowError, TextOrPair, as_texts_or_pairs, chunked
from minibert.text.tokenized import Tokenized, TokenStats
from minibert.text.tokenizer import Tokenizer
from minibert.utils.device import choose_device
from minibert.utils.files import AnyPath
from minibert.utils.habits import Habits
from minibert.utils.printing import brief, progress_bar
from minibert.utils.settings import with_settings
from minibert.utils.wording import advice, named
from minibert.vectors.calibration import VERSION
from minibert.vectors.engine import Engine
from minibert.vectors.loading import LoadedCheckpoint, engine_of, files_in, load_checkpoint, shared_tokenizer
from minibert.vectors.readable import Matrix
from minibert.vectors.recipe import DEFAULT, Recipe

GPU_TEXTS = 32768  # in a chunk on a GPU: its batches are large, and their pipeline ends with each chunk
COMPARED = 64  # texts whose int8 vectors are compared with those in float32


@with_settings(Recipe)
def embed(
    texts: object,
    model: AnyPath | Encoder | SentenceVectors = "distilbert-base-uncased",
    *,
    pairs: object = None,
    recipe: Recipe = DEFAULT,
    device: str | torch.device = "auto",
    tokenizer: Tokenizer | None = None,
    **settings: Any,
) -> Matrix:
    """Return the vectors of texts, (N, width) float32, in the order of the texts; for one str, one vector, (width,).

    texts: list, tuple, 1-D array, Series or generator. pairs: the second text of each, in the same form; both are one
    row, [CLS] text [SEP] second [SEP], and the longer one is cut first. model: a Hub name, a folder, what
    `finetune("embed", ...)` returns, or an Encoder, which stays on its device and needs its tokenizer too.
    device: "auto" is CUDA if there is one, else the CPU.
    recipe and settings: which vectors; help(minibert.Recipe) describes each setting.
    Raises TypeError for a row that is not a text, naming the row; ValueError for a setting that is not possible, and,
    naming the row, for a vector with NaN or infinity; FileNotFoundError if the checkpoint is not found.
    """
    embedder = Embedder(model, recipe, device, tokenizer, **settings)
    if isinstance(texts, str) and (pairs is None or isinstance(pairs, str)):
        return np.asarray(embedder([texts], None if pairs is None else [pairs])[0])
    return embedder(texts, pairs)


@dataclass(frozen=True)
class Chunk:
    """Texts or pairs with their row numbers, their ids and their vectors, (n, width)."""

    rows: range
    texts: list[TextOrPair]
    tokens: Tokenized
    vectors: Matrix


class Embedder(Habits):
    """One checkpoint and one recipe, called with texts or pairs: `Embedder(name, pooling="mean")(texts)`.

    model, recipe, settings, device, tokenizer: as for `embed`. A checkpoint is loaded when it is first needed, once for
    all embedders of the process. An Encoder is used with the weights that it has then: after further training, make a
    new Embedder.
    stats: counts of the last call: how many texts were cut, or read in how many windows.
    A pickle holds the model's name and hashes, no weights; if the name has other weights or another tokenizer, the
    unpickled Embedder refuses them.
    """

    stats = TokenStats()

    @with_settings(Recipe)
    def __init__(
        self,
        model: AnyPath | Encoder | SentenceVectors = "distilbert-base-uncased",
        recipe: Recipe = DEFAULT,
        device: str | torch.device = "auto",
        tokenizer: Tokenizer | None = None,
        **settings: Any,
    ) -> None:
        recipe = replace(recipe, **settings)
        if not isinstance(model, str | os.PathLike | Encoder | SentenceVectors):
            raise TypeError(
                f"model is {brief(model)}; it must be a name, a folder or a model, and texts come before it"
            )
        if isinstance(model, SentenceVectors):
            tokenizer = tokenizer or model.tokenizer
            if recipe.pooling == "auto":
                recipe = as_stated(recipe, Stated(model.pooling, model.normalize, None, model.dimensions))
            model = model.encoder
        if not isinstance(model, Encoder):
            choose_device(device)
        elif tokenizer is None:
            raise TypeError(
                "model is an Encoder, which has no tokenizer; pass tokenizer=load_tokenizer(name) with it, "
                "or give a Hub name or a folder"
            )
        elif device != "auto":
            raise ValueError(f"device is {brief(device)}, and an Encoder stays where it is; use model.to(device)")
        if tokenizer is not None and recipe.max_length not in (None, tokenizer.max_length):
            raise ValueError(
                named("max_length")
                + f" is {recipe.max_length}, but the tokenizer's is {tokenizer.max_length}; leave one out"
            )
        self.model: AnyPath | Encoder = model
        self.given_recipe = recipe
        self.device = device
        self.given_tokenizer = tokenizer
        self.expected: dict[str, str] | None = None  # the hashes that the checkpoint must have; None: any

    # -- the checkpoint

    @cached_property
    def checkpoint(self) -> Checkpoint | None:
        """What was named, or what an Encoder was loaded from; None for an Encoder with weights of its own."""
        return self.model.checkpoint if isinstance(self.model, Encoder) else Checkpoint.open(self.model)

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe with what the checkpoint's files state in place of pooling "auto", or [CLS] without such files.

        Raises ValueError for files that state what minibert does not have, FileNotFoundError for no checkpoint.
        """
        given = self.given_recipe
        if given.pooling != "auto":
            return replace(given, normalize=bool(given.normalize))
        stated = (self.checkpoint and read_stated(self.checkpoint)) or Stated("cls", False, None)
        return as_stated(given, replace(stated, max_length=None) if self.given_tokenizer else stated)

    @cached_property
    def loaded(self) -> LoadedCheckpoint:
        """The loaded files of a name or a folder. Raises TypeError for an Encoder, which is in memory already."""
        if self.checkpoint is None or isinstance(self.model, Encoder):
            raise TypeError("model is an Encoder, and this needs a Hub name or a folder")
        files = files_in(self.checkpoint.folder)
        return load_checkpoint(self.checkpoint, files, choose_device(self.device), self.recipe.precision)

    @cached_property
    def engine(self) -> Engine:
        """The engine that computes. Raises ValueError for other weights or another tokenizer than a pickle's."""
        if isinstance(self.model, Encoder):
            return engine_of(self.model, self.recipe.precision, self.tokenizer)
        if self.expected is not None and self.hashes != self.expected:
            raise ValueError(
                f"checkpoint {self.model} has the hashes {self.hashes}, expected {self.expected}; "
                "put that checkpoint back, or fit again"
            )
        return self.loaded.engine

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that was passed in, else the checkpoint's, with the recipe's max_length."""
        return self.given_tokenizer or shared_tokenizer(
            self.loaded.checkpoint, self.loaded.files, self.recipe.max_length
        )

    @cached_property
    def layers_and_width(self) -> tuple[tuple[int, ...], int]:
        """The layers, counted from 0, and the width. Raises ValueError if the model cannot follow this recipe."""
        return self.recipe.fit_to(self.engine.config, self.engine.encoder.pooler is not None)

    @property
    def width(self) -> int:
        """The length of a vector. Raises ValueError if the model cannot follow this recipe."""
        width = self.layers_and_width[1]
        return min(width, self.recipe.dimensions or width)

    @property
    def hashes(self) -> dict[str, str]:
        """What identifies the checkpoint: the sha256 of its weights, read when first used, and of its tokenizer."""
        return {"weights": self.loaded.weights, "tokenizer": self.tokenizer.fingerprint}

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that determines a vector except its text, as JSON has it; equal identities give equal vectors.

        Equal up to rounding: another batch, device or kernel sums in another order, a difference of about 1e-6.
        """
        recipe = self.recipe
        precision = self.engine.precision
        return self.hashes | {
            "max_length": self.tokenizer.max_length,
            "pooling": recipe.how,
            "layers": list(self.layers_and_width[0]),
            "combine": recipe.combine,
            "precision": f"int8, {VERSION}" if precision == "int8" else f"torch.{precision}",
            "long": recipe.long,
            "stride": recipe.stride,
        }

    @property
    def method(self) -> str:
        """How vectors are made, for a report."""
        return f"pooling {self.recipe.how}, at most {self.tokenizer.max_length} tokens"

    @property
    def description(self) -> str:
        """The method with the precision that was really chosen."""
        return f"{self.method}, computed in {self.engine.precision} on {self.engine.device}"

    # -- texts to vectors

    @with_settings()
    def __call__(self, texts: object, pairs: object = None) -> Matrix:
        """Return one vector per text or pair, (N, width) float32, in order. Raises TypeError for a row without text."""
        rows = as_texts_or_pairs(texts, pairs, missing=self.recipe.missing)
        stats = TokenStats()
        vectors = np.empty((len(rows), self.width), np.float32)
        size = TEXTS if self.engine.device.type == "cpu" else GPU_TEXTS
        several = len(rows) > size
        bar = progress_bar(name="embed", total=len(rows), unit="text", unit_scale=True, show=several)
        with bar, closing(self.chunks(chunked(rows, size), progress=not several)) as chunks:
            for chunk in chunks:
                vectors[chunk.rows.start : chunk.rows.stop] = chunk.vectors
                stats += chunk.tokens.stats
                bar.update(len(chunk.rows))
        self.warn(stats)
        return vectors

    def chunks(
        self, texts: Iterable[list[TextOrPair]], first: int = 0, *, progress: bool = False
    ) -> Generator[Chunk, None, None]:
        """Yield chunks of texts with their ids and vectors: what every way from texts to vectors goes through.

        first: the row of the first text. On a GPU a thread tokenizes the next chunk while this one is computed. On a
        CPU both would compete for the same cores, and tokenizing takes only 1 % of the processor time (SST-2,
        all-MiniLM-L6-v2, float32). Raises what `vectors` raises.
        """

        def tokenize(texts: list[TextOrPair]) -> tuple[range, list[TextOrPair], Tokenized]:
            nonlocal first
            rows = range(first, first + len(texts))
            first = rows.stop  # called in order, by one thread at a time
            return rows, texts, self.ids(texts, rows.start)

        on_cpu = self.engine.device.type == "cpu"
        with closing((tokenize(some) for some in texts) if on_cpu else map_ahead(tokenize, texts)) as tokenized:
            for rows, some, tokens in tokenized:
                yield Chunk(rows, some, tokens, self.vectors(tokens, rows, progress=progress))

    @with_settings()
    def encode(
        self,
        texts: object,
        *,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> Any:
        """Return vectors as sentence-transformers' call of this name does, of a str one vector.

        batch_size and show_progress_bar change no vector, and nothing here.
        """
        vectors = torch.from_numpy(self(texts))[:, :truncate_dim]
        vectors = F.normalize(vectors) if normalize_embeddings else vectors
        vectors = vectors[0] if isinstance(texts, str) else vectors
        return vectors if convert_to_tensor or not convert_to_numpy else vectors.numpy()

    def ids(self, texts: Sequence[TextOrPair], first: int = 0) -> Tokenized:
        """Return the ids of texts or pairs; `first`: the row of the first one."""
        return self.tokenizer.encode_texts(texts, long=self.recipe.long, stride=self.recipe.stride, first_row=first)

    def warn(self, stats: TokenStats) -> None:
        """Keep the counts of all texts of a call, and warn of texts that were cut."""
        self.stats = stats
        self.tokenizer.warn(stats, self.tokenizer.max_length)

    def vectors(self, tokens: Tokenized, rows: Sequence[int] | None = None, *, progress: bool = False) -> Matrix:
        """Return the vectors of tokenized texts, (N, width). rows: their rows in the caller's data; None: 0, 1, ...

        Raises ValueError, naming the row, for a vector with NaN or infinity.
        """
        vectors = self.engine.vectors(tokens.ids, self.recipe, second=tokens.second, progress=progress)
        if tokens.windows is not None:
            vectors = average_windows(vectors, tokens.ids, tokens.windows)
        for text in np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist():
            raise RowError(
                text if rows is None else rows[text],
                f"has a vector with NaN or infinity in it, computed in {self.engine.precision}: the weights are "
                f"damaged (fetch the checkpoint again), or numbers overflow" + advice(" (use {})", precision="float32"),
            )
        vectors = F.normalize(torch.from_numpy(vectors)).numpy() if self.recipe.normalize else vectors
        return vectors[:, : self.recipe.dimensions]

    def float32_cosine(self, tokens: Tokenized) -> float:
        """Return the smallest cosine of the vectors to float32, over up to COMPARED texts spread over all of these."""
        some = tokens.take(range(0, tokens.stats.texts, -(-tokens.stats.texts // COMPARED)))
        model = self.model if isinstance(self.model, Encoder) else load(self.loaded.checkpoint)
        exact = copy.copy(self)
        exact.engine = Engine(model, "float32", self.engine.device, keep_encoder=model is self.model)
        a, b = (torch.from_numpy(embedder.vectors(some)).double() for embedder in (self, exact))
        return float(torch.cosine_similarity(a, b).min())

    def __getstate__(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "given_recipe": self.recipe,
            "device": self.device,
            "given_tokenizer": self.given_tokenizer,
            "expected": self.expected or self.hashes,
        }


def as_stated(recipe: Recipe, stated: Stated) -> Recipe:
    """Return the recipe with what is stated in place of pooling "auto" and of settings that were not given."""
    return replace(
        recipe,
        pooling=stated.pooling,
        normalize=stated.normalize if recipe.normalize is None else recipe.normalize,
        max_length=recipe.max_length or stated.max_length,
        dimensions=recipe.dimensions or stated.dimensions,
    )


def average_windows(vectors: Matrix, ids: Sequence[Sequence[int]], windows: Sequence[int]) -> Matrix:
    """Return one vector per text, (N, width): the mean of its windows' vectors, (K, width), weighted by tokens.

    windows: their number per text, (N). ids: the tokens of each window, (K). A single window is returned unchanged.
    """
    ends = np.cumsum(windows)
    result: Matrix = vectors[ends - windows]
    for text in np.flatnonzero(np.asarray(windows) > 1).tolist():
        part = slice(int(ends[text]) - windows[text], int(ends[text]))
        tokens = [len(row) - 2 for row in ids[part]]  # without [CLS] and [SEP]
        result[text] = np.average(vectors[part], axis=0, weights=tokens)
    return result
