"""Texts to vectors: a checkpoint and a recipe make an Embedder, which is called with texts. `embed` does both at once.

    texts -> ids (tokenizer) -> packed batches of similar length (engine) -> one vector a text, in the texts' order

N texts.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from tqdm import tqdm

from minibert.checkpoints import hub
from minibert.checkpoints.load import load
from minibert.checkpoints.tensor_files import weights_sha256
from minibert.device import choose_device
from minibert.kernels.calibration import VERSION
from minibert.kernels.memory import give_back
from minibert.kernels.prefetch import Portion, tokenized
from minibert.model import Encoder
from minibert.printing import brief
from minibert.text.texts import TextOrPair, as_texts_or_pairs, portions
from minibert.text.tokenized import Tokenized, TokenStats
from minibert.text.tokenizer import Tokenizer, load_tokenizer
from minibert.vectors.cache import Arrived, Matrix
from minibert.vectors.engine import Engine, NotFiniteError
from minibert.vectors.pooling import average_windows
from minibert.vectors.recipe import DEFAULT, Recipe, Settings, spelled

SAMPLES = 32  # texts by which int8 is calibrated
COMPARED = 64  # texts whose vectors are compared with those in float32
SHORTEST = 1e-30  # product of two vectors' lengths


@spelled
def embed(
    texts: object,
    model: str | os.PathLike[str] | Encoder = "distilbert-base-uncased",
    *,
    pairs: object = None,
    device: str | torch.device = "auto",
    tokenizer: Tokenizer | None = None,
    **settings: Unpack[Settings],
) -> Matrix:
    """Texts to vectors, (N, width) float32, in the order of the texts; one str gives one vector, (width,).

    texts: list, tuple, 1-D array, Series or generator. pairs: the second text of each, in the same form; both are one
    row, [CLS] text [SEP] second [SEP], of which the longer one is cut first. model: a Hub name, a folder, or an
    Encoder, which stays on its device and needs its tokenizer beside it. device: "auto" is CUDA where there is one,
    else the CPU.
    pooling and all after it: the settings of a Recipe; help(minibert.Recipe) says what each is.
    Raises TypeError for what is no text, naming its row; ValueError for a setting that is not possible, and, naming
    the row, for a vector with NaN or infinity; FileNotFoundError where the checkpoint is not found.
    """
    embedder = Embedder(model, Recipe(**settings), device, tokenizer)
    if isinstance(texts, str) and (pairs is None or isinstance(pairs, str)):
        vector: Matrix = embedder([texts], None if pairs is None else [pairs])[0]
        return vector
    return embedder(texts, pairs)


class Embedder:
    """One checkpoint and one recipe, called with texts or pairs: `Embedder(name, Recipe(pooling="mean"))(texts)`.

    model, device, tokenizer: as for `embed`. A checkpoint is loaded when it is first needed, once for all embedders of
    the process; an Encoder is taken as it is then: after further training, make a new Embedder.
    account: what became of the texts of the last call, in numbers: how many were cut, or read in how many windows.
    A pickle holds the model's name and hashes, no weights; where it then finds other weights or another tokenizer,
    it refuses them.
    """

    account = TokenStats()

    def __init__(
        self,
        model: str | os.PathLike[str] | Encoder = "distilbert-base-uncased",
        recipe: Recipe = DEFAULT,
        device: str | torch.device = "auto",
        tokenizer: Tokenizer | None = None,
    ) -> None:
        if not isinstance(model, Encoder):
            choose_device(device)
        elif tokenizer is None:
            raise TypeError("model is an Encoder, which has no tokenizer; pass tokenizer=load_tokenizer(name)")
        elif device != "auto":
            raise ValueError(
                f"device is {brief(device)}, and an Encoder stays where it is; use model.to({brief(device)})"
            )
        self.model, self.recipe, self.device = model, recipe, device
        self.given_tokenizer = tokenizer
        self.wanted: Hashes | None = None  # of whatever is loaded; None: any

    # -- what it needs

    @cached_property
    def checkpoint(self) -> Loaded:
        """The files of the model, loaded; for a name or a folder."""
        if isinstance(self.model, Encoder):
            raise TypeError("model is an Encoder, whose weights no file names or hashes; give a Hub name or a folder")
        loaded = load_shared(self.model, choose_device(self.device), self.recipe.precision)
        if self.wanted is not None:
            tokenizer = self.given_tokenizer or loaded.tokenizer
            self.wanted.check(Hashes(loaded.weights, tokenizer.fingerprint), self.model)
        return loaded

    @cached_property
    def engine(self) -> Engine:
        """What computes. Raises ValueError where the model cannot give this recipe."""
        if isinstance(self.model, Encoder):
            engine = Engine(self.model, self.recipe.precision, samples=samples(self.tokenizer, self.recipe.precision))
        else:
            engine = self.checkpoint.engine
        engine.check(self.recipe)
        return engine

    @property
    def tokenizer(self) -> Tokenizer:
        """The one that was given, else that of the checkpoint."""
        return self.given_tokenizer or self.checkpoint.tokenizer

    # -- what it knows

    @property
    def width(self) -> int:
        """How many numbers a vector has."""
        return self.engine.check(self.recipe)[1]

    @property
    def hashes(self) -> Hashes:
        """By what the checkpoint is recognised; its weights are read for that when this is first asked for."""
        return Hashes(self.checkpoint.weights, self.tokenizer.fingerprint)

    @property
    def identity(self) -> dict[str, Any]:
        """All that determines a vector except its text, as JSON has it; equal identities give equal vectors.

        Up to the last digits: another batch, device or kernel sums in another order, a difference of about 1e-6.
        """
        settings = asdict(self.recipe)
        precision = f"int8, {VERSION}" if self.engine.precision == "int8" else str(self.engine.dtype)
        settings |= {"layers": list(self.engine.check(self.recipe)[0]), "precision": precision}
        for name in ("missing", "batch_tokens", "truncation"):  # the last is said by `long`
            del settings[name]
        return asdict(self.hashes) | {"max_length": self.tokenizer.max_length} | settings

    # -- what it does

    def __call__(self, texts: object, pairs: object = None) -> Matrix:
        """One vector for each text or pair, (N, width) float32, in order. Raises TypeError for what is no text."""
        rows = as_texts_or_pairs(texts, pairs, missing=self.recipe.missing)
        if self.engine.device.type == "cpu":  # which would tokenize and compute with the same cores
            return self.vectors(self.tokenize(rows), progress=True)
        return self.prefetched(rows)

    def tokenize(self, rows: Sequence[TextOrPair]) -> Tokenized:
        """Texts or pairs as ids, with a warning where any was cut."""
        made = self.tokenizer.encode_texts(rows, long=self.recipe.long, stride=self.recipe.stride)
        self.warn(made.stats)
        return made

    def warn(self, account: TokenStats) -> None:
        """Keep the account of all texts of a call, and say what was lost."""
        self.account = account
        self.tokenizer.warn(account, self.tokenizer.max_length)

    def vectors(
        self,
        tokens: Tokenized,
        numbers: Sequence[int] | None = None,
        *,
        progress: bool = False,
        begun: Matrix | None = None,
        arrived: Arrived | None = None,
    ) -> Matrix:
        """The vectors of texts that are ids, (N, width). numbers: which rows of the caller's they are; None: 0, 1, ...

        What follows: see Engine.vectors, whose rows are those of ids, one for each window. Raises ValueError, naming
        the row, for a vector with NaN or infinity in it.
        """
        try:
            vectors = self.engine.vectors(
                tokens.ids, self.recipe, second=tokens.second, progress=progress, begun=begun, arrived=arrived
            )
        except NotFiniteError as error:
            text = tokens.text_of(error.row)
            raise NotFiniteError(text if numbers is None else numbers[text], error.dtype) from None
        return vectors if tokens.windows is None else average_windows(vectors, tokens.ids, tokens.windows)

    def float32_cosine(self, tokens: Tokenized, most: int = COMPARED) -> float:
        """The smallest cosine of the vectors to those in float32, over up to `most` texts, spread over all of these."""
        texts = len(tokens.ids) if tokens.windows is None else len(tokens.windows)
        some = tokens.take(range(0, texts, -(-texts // most)))
        model = self.model if isinstance(self.model, Encoder) else load(self.checkpoint.folder)
        exact = copy.copy(self)
        exact.recipe = replace(self.recipe, precision="float32")
        exact.engine = Engine(model, "float32", self.engine.device, keep_encoder=model is self.model)
        a, b = self.vectors(some).astype(np.float64), exact.vectors(some).astype(np.float64)
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        return float(((a * b).sum(axis=1) / np.maximum(lengths, SHORTEST)).min())

    def prefetched(self, rows: Sequence[TextOrPair]) -> Matrix:
        """The same on a device that computes by itself: meanwhile the next portion of texts is tokenized."""
        account, vectors = TokenStats(), np.empty((len(rows), self.width), np.float32)
        bar = tqdm(total=len(rows), unit="text", unit_scale=True, delay=2, disable=None)
        with bar, closing(self.tokenized(portions(rows))) as made:
            for portion in made:
                vectors[portion.rows.start : portion.rows.stop] = self.vectors(portion.tokens, portion.rows)
                account += portion.tokens.stats
                bar.update(len(portion.rows))
        self.warn(account)
        return vectors

    def tokenized(self, texts: Iterable[list[TextOrPair]], first: int = 0) -> Generator[Portion, None, None]:
        """Portions of texts with their ids, one portion ahead of whoever takes them; `first`: the first text's row."""
        recipe = self.recipe
        return tokenized(texts, self.tokenizer, self.engine.device, long=recipe.long, stride=recipe.stride, first=first)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "recipe": self.recipe,
            "device": self.device,
            "given_tokenizer": self.given_tokenizer,
            "wanted": self.wanted or self.hashes,
        }


# ---------------------------------------------------------------------------------------------------------------
# The checkpoint, loaded once


@dataclass(frozen=True)
class Hashes:
    """By what a checkpoint is recognised."""

    weights: str  # sha256 of its files
    tokenizer: str  # its fingerprint

    def check(self, found: Hashes, model: object) -> None:
        """Raise ValueError where what was found as `model` is not this checkpoint."""
        for what, wanted, there in (
            ("weights with sha256", self.weights, found.weights),
            ("a tokenizer with fingerprint", self.tokenizer, found.tokenizer),
        ):
            if wanted != there:
                raise ValueError(
                    f"checkpoint {model} has {what} {there}, and its vectors were to be those of {wanted}; "
                    "put that checkpoint back, or fit again"
                )


Files = tuple[tuple[str, int, int], ...]  # name, size and time of change of each


@dataclass(frozen=True)
class Loaded:
    """A checkpoint ready for use. The encoder itself is not kept: the engine has its weights in a form of its own."""

    engine: Engine
    tokenizer: Tokenizer
    folder: Path
    files: Files  # as they were when they were read

    @cached_property
    def weights(self) -> str:
        """sha256 of the weights, which takes a while and so waits until somebody asks."""
        if weight_files(files_in(self.folder)) != weight_files(self.files):
            raise ValueError(f"the files in {self.folder} were changed while they were in use; begin again")
        return weights_sha256(self.folder)


def files_in(folder: Path) -> Files:
    """What tells one state of a folder from the next."""
    return tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(folder.iterdir()))


def weight_files(files: Files) -> Files:
    """Those with tensors in them."""
    return tuple(file for file in files if file[0].endswith(".safetensors"))


def load_shared(model: str | os.PathLike[str], device: str, precision: str) -> Loaded:
    """The checkpoint, loaded once for all of the process; again where the files in its folder have changed."""
    folder = hub.locate(os.fspath(model)).folder
    return load_folder(folder, files_in(folder), device, precision)


@functools.lru_cache(maxsize=2)  # two, so that a comparison of two models loads each once
def load_folder(folder: Path, files: Files, device: str, precision: str) -> Loaded:
    """What load_shared keeps."""
    tokenizer = load_tokenizer(folder)
    encoder = load(folder, device=device)
    engine = Engine(encoder, precision, keep_encoder=False, samples=samples(tokenizer, precision))
    del encoder
    give_back()  # what held the weights before they took the engine's form
    return Loaded(engine, tokenizer, folder, files)


def samples(tokenizer: Tokenizer, precision: str) -> list[list[int]] | None:
    """The ids of the texts by which int8 is calibrated: reviews that come with minibert."""
    if precision != "int8":
        return None
    shipped = resources.files("minibert") / "data" / "reviews.tsv"
    lines = shipped.read_text("utf-8").splitlines()[:SAMPLES]
    made = tokenizer.encode_texts([line.partition("\t")[0] for line in lines])  # their ends may be cut without a word
    return made.ids
