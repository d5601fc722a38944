"""What is served: texts to items of a batch, and items to vectors, labels or masked words.

An item is one text or pair as the model reads it. Tokenizing is done for each request by itself, because what a request
costs, and whether a text is too long, must be known before it waits; everything behind it is done in batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from minibert.checkpoints.load import has_head, load
from minibert.device import choose_device
from minibert.heads import MaskedLM
from minibert.serving.bodies import Ids, Pairs, Texts
from minibert.serving.limits import Refused, wrong_row
from minibert.tasks.base import Encoded, Example
from minibert.tasks.classification import Classification
from minibert.tasks.frozen import Classifier
from minibert.tasks.labels import LabelPrediction, LabelSetPrediction, check_finite
from minibert.text.texts import as_texts_or_pairs
from minibert.text.tokenized import Tokenized, TokenStats
from minibert.text.tokenizer import Tokenizer, load_tokenizer
from minibert.train.finetuning import Reader
from minibert.train.folder import REPORT
from minibert.train.outputs import outputs
from minibert.vectors.cache import Matrix
from minibert.vectors.embedder import Embedder

Item = TypeVar("Item")
FILLER = 16  # tokens of a row that fills a batch up


@dataclass(frozen=True)
class Prepared(Generic[Item]):
    """A request as the batcher takes it."""

    items: list[Item]
    tokens: list[int]  # of each item
    truncated: int = 0  # texts that lost their ends


@dataclass(frozen=True)
class Row:
    """A text or a pair as ids, [CLS] to [SEP], in several rows where it is read in windows."""

    ids: list[list[int]]
    second: int | None = None  # where segment 1 begins

    @property
    def tokens(self) -> int:
        """Of all windows."""
        return sum(map(len, self.ids))


def rows_of(made: Tokenized) -> Prepared[Row]:
    """An item for each text."""
    if made.windows is None:
        second: Sequence[int | None] = made.second or [None] * len(made.ids)
        rows = [Row([ids], start) for ids, start in zip(made.ids, second, strict=True)]
    else:
        left = iter(made.ids)
        rows = [Row([next(left) for _ in range(count)]) for count in made.windows]
    return Prepared(rows, [row.tokens for row in rows], made.stats.truncated)


def vectors_of(embedder: Embedder, rows: Sequence[Row]) -> Matrix:
    """The vectors of items, (N, width)."""
    filled = [*rows, *filling(sum(row.tokens for row in rows))] if embedder.engine.device.type == "cpu" else rows
    ids = [one for row in filled for one in row.ids]
    second = None if rows[0].second is None else [row.second or 0 for row in filled]
    windows = [len(row.ids) for row in filled] if len(ids) > len(filled) else None
    return embedder.vectors(Tokenized(ids, TokenStats(), second, windows))[: len(rows)]


def filling(tokens: int) -> list[Row]:
    """Rows that nobody reads, which make the tokens of a batch one of eight numbers between a power of 2 and the next.

    oneDNN makes kernels for each number of tokens that it meets, and keeps them, see kernels/packing.py. The batches of
    a server have every number there is: its memory would grow for hours. Computed are an eighth more at most, or 7.
    """
    missing = -tokens % max(8, 1 << max(0, tokens.bit_length() - 4))
    return [Row([[0] * min(FILLER, missing - start)]) for start in range(0, missing, FILLER)]


def check_whole(made: Tokenized, texts: Texts | Pairs, tokenizer: Tokenizer, truncate: bool) -> None:
    """Raise Refused, 422 with the row and its number of tokens, for a text that would be cut, unless it may be."""
    if truncate or not made.stats.truncated:
        return
    for number in range(len(texts)):
        account = tokenizer.encode_texts(texts[number : number + 1]).stats
        if account.truncated:
            count = f"{'at least ' if account.uncounted else ''}{account.longest:,}"
            raise too_long(number, count, tokenizer.max_length)


def too_long(number: int, count: str, most: int) -> Refused:
    """A text that the model does not take whole."""
    return wrong_row(
        number,
        f"has {count} tokens, and the model takes {most:,}; shorten it, or start the server with --truncate",
        code="context_length_exceeded",
    )


# ---------------------------------------------------------------------------------------------------------------
# Vectors


class Vectors:
    """POST /v1/embeddings: texts or token ids to the vectors of a recipe.

    truncate: cut what is too long in place of refusing it. normalize: vectors of length 1, which alone may be shortened
    to their first `dimensions` numbers, and are then of length 1 again.
    """

    def __init__(self, name: str, embedder: Embedder, *, truncate: bool = False, normalize: bool = False) -> None:
        self.name, self.embedder, self.truncate, self.normalize = name, embedder, truncate, normalize
        self.tokenizer, self.width = embedder.tokenizer, embedder.width  # loads the checkpoint

    def prepare(self, texts: Texts | Ids) -> Prepared[Row]:
        """Raises Refused, 422 with the row, for a text that is too long and for an id that is none."""
        if isinstance(texts[0], list):
            return self.prepare_ids(texts)
        made = self.tokenizer.encode_texts(texts, long="cut")
        check_whole(made, texts, self.tokenizer, self.truncate)
        return rows_of(made)

    def prepare_ids(self, rows: Ids) -> Prepared[Row]:
        """Ids of texts: [CLS] and [SEP] are put around them, unless they are there."""
        framing, vocab_size = self.tokenizer.template, self.embedder.engine.config.vocab_size
        room, before, after = self.tokenizer.max_length - framing.specials(False), framing.before, framing.after
        items, truncated = [], 0
        for number, ids in enumerate(rows):
            if wrong := [id for id in ids if not 0 <= id < vocab_size]:
                raise wrong_row(number, f"has the token id {wrong[0]}; the vocabulary has 0 to {vocab_size - 1:,}")
            framed = len(ids) > len(before) and tuple(ids[: len(before)]) == before
            if framed and tuple(ids[-len(after) :]) == after:
                ids = ids[len(before) : -len(after)]
            if len(ids) > room and not self.truncate:
                raise too_long(number, f"{len(ids) + framing.specials(False):,}", self.tokenizer.max_length)
            truncated += len(ids) > room
            items.append(Row([framing.row(ids[:room])]))
        return Prepared(items, [item.tokens for item in items], truncated)

    def compute(self, rows: list[Row]) -> Matrix:
        """(N, width)."""
        return vectors_of(self.embedder, rows)

    def finished(self, vectors: Matrix, dimensions: int | None) -> Matrix:
        """As they are sent, (N, dimensions). Raises Refused for a number of dimensions that they cannot have."""
        self.check_dimensions(dimensions)
        vectors = vectors[:, :dimensions]
        if not self.normalize:
            return vectors
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True).astype(np.float32)
        unit: Matrix = vectors / np.maximum(lengths, np.float32(1e-12))
        return unit

    def check_dimensions(self, dimensions: int | None) -> None:
        """Raise Refused for a number of dimensions that vectors cannot have."""
        if dimensions in (None, self.width):
            return
        if not self.normalize:
            raise Refused(
                400,
                f"dimensions is given, and these vectors, of {self.width} numbers, are sent as the model makes them; "
                "leave it out, or start the server with --normalize",
                "dimensions",
            )
        if not 1 <= dimensions <= self.width:
            raise Refused(400, f"dimensions is not from 1 to {self.width}, the numbers of a vector", "dimensions")


# ---------------------------------------------------------------------------------------------------------------
# Labels


class Labels(ABC, Generic[Item]):
    """POST /classify: texts or pairs to labels with their probabilities."""

    name: str
    pairs: bool | None  # whether it takes pairs; None: it takes either

    @abstractmethod
    def prepare(self, texts: Texts | Pairs) -> Prepared[Item]:
        """Raises Refused, 422 with the row, for a text that is too long."""

    @abstractmethod
    def compute(self, items: list[Item]) -> Sequence[Mapping[str, Any]]:
        """What is said of each item."""


class FrozenLabels(Labels[Row]):
    """A folder of `minibert classify train`: what is too long is read as it was in training."""

    def __init__(self, folder: Path, device: str) -> None:
        self.name, self.classifier = folder.name, Classifier.load(folder, device=device)
        features = self.classifier.features
        self.pairs, self.embedder = self.classifier.pairs, Embedder(features.model, features.recipe, device)

    def prepare(self, texts: Texts | Pairs) -> Prepared[Row]:
        """Ids by the recipe of the classifier."""
        recipe, tokenizer = self.embedder.recipe, self.embedder.tokenizer
        long = "cut" if recipe.long == "error" else recipe.long
        made = tokenizer.encode_texts(texts, long=long, stride=recipe.stride)
        check_whole(made, texts, tokenizer, truncate=recipe.long != "error")
        return rows_of(made)

    def compute(self, items: list[Row]) -> list[dict[str, Any]]:
        """The label of the largest probability, and the probability of each."""
        vectors = vectors_of(self.embedder, items)
        with np.errstate(all="ignore"):
            probabilities = self.classifier.head.predict_proba(vectors)  # (N, K)
        check_finite(probabilities, "a probability")
        return [one_label(self.classifier.labels, row) for row in probabilities.tolist()]


class TunedLabels(Labels[Example]):
    """A folder of `minibert finetune classify`: what is too long is cut as it was in training."""

    pairs = None

    def __init__(self, folder: Path, device: str) -> None:
        self.name, self.reader = folder.name, Reader.load(folder, device)
        if not isinstance(self.reader.task, Classification):
            raise ValueError(f"{folder} was trained for the task {self.reader.task.name!r}; /classify needs 'classify'")

    def prepare(self, texts: Texts | Pairs) -> Prepared[Example]:
        """The examples of a task without labels."""
        reader, account = self.reader, TokenStats()
        made = reader.tokenizer.encode_texts(as_texts_or_pairs(*columns(texts)), max_length=reader.max_length)
        starts, account = made.second or map(len, made.ids), made.stats
        examples = [
            Example(ids, [0] * start + [1] * (len(ids) - start)) for ids, start in zip(made.ids, starts, strict=True)
        ]
        return Prepared(examples, [len(example.ids) for example in examples], account.truncated)

    def compute(self, items: list[Example]) -> list[dict[str, Any]]:
        """What the answers of the task say."""
        reader, encoded = self.reader, Encoded(items)
        data = reader.task.from_texts([""] * len(items))
        logits = outputs(reader.model, encoded, keep=reader.task.reduce)
        return [answer_of(answer, reader.labels) for answer in reader.task.decode(logits, encoded, data, reader.labels)]


def columns(texts: Texts | Pairs) -> tuple[list[str], list[str] | None]:
    """Texts, and their partners where they are pairs."""
    if isinstance(texts[0], str):
        return texts, None
    return [first for first, _ in texts], [second for _, second in texts]


def one_label(labels: Sequence[str], probabilities: Sequence[float]) -> dict[str, Any]:
    """One of several labels."""
    best = max(range(len(labels)), key=probabilities.__getitem__)
    said = dict(zip(labels, probabilities, strict=True))
    return {"label": labels[best], "probability": probabilities[best], "probabilities": said}


def answer_of(answer: Any, labels: Sequence[str]) -> dict[str, Any]:
    """An answer of the task: one label, several, or a number."""
    if isinstance(answer, LabelPrediction):
        return one_label(labels, answer.probabilities)
    if isinstance(answer, LabelSetPrediction):
        said = dict(zip(labels, answer.probabilities, strict=True))
        return {"labels": list(answer.labels), "probabilities": said}
    return {"value": float(answer)}


def load_labels(folder: str | Path, device: str) -> Labels[Any]:
    """A trained folder of either kind. Raises FileNotFoundError or ValueError where it is none."""
    place = Path(folder)
    return TunedLabels(place, device) if (place / REPORT).exists() else FrozenLabels(place, device)


# ---------------------------------------------------------------------------------------------------------------
# Masked words


@dataclass(frozen=True)
class Blanks:
    """A text with masks."""

    ids: list[int]
    places: list[int] = field(default_factory=list)  # of its masks
    top_k: int = 5


class Masks:
    """POST /fill-mask: the likeliest tokens at every [MASK]; a text at a time, because each position has V numbers."""

    def __init__(self, name: str, folder: str | Path, device: str) -> None:
        model = load(folder, head=MaskedLM.name, device=choose_device(device))
        assert isinstance(model, MaskedLM)
        self.name, self.model, self.tokenizer = name, model, load_tokenizer(folder)

    def prepare(self, texts: Texts, top_k: int) -> Prepared[Blanks]:
        """Raises Refused for a text without a mask or one that is too long, and for a top_k that is none."""
        if not 1 <= top_k <= self.model.config.vocab_size:
            raise Refused(400, f"top_k is not from 1 to {self.model.config.vocab_size:,}, the vocabulary", "top_k")
        made = self.tokenizer.encode_texts(texts, long="cut")
        check_whole(made, texts, self.tokenizer, truncate=False)
        mask, items = self.tokenizer.mask_id, []
        for number, ids in enumerate(made.ids):
            places = [place for place, id in enumerate(ids) if id == mask]
            if not places:
                raise wrong_row(number, f"has no {self.tokenizer.id_to_token(mask)}, where a word is to be guessed")
            items.append(Blanks(ids, places, top_k))
        return Prepared(items, [len(item.ids) for item in items])

    @torch.inference_mode()
    def compute(self, items: list[Blanks]) -> list[dict[str, Any]]:
        """For every mask of a text the top_k tokens, the likeliest first."""
        return [{"masks": self.guesses(item)} for item in items]

    def guesses(self, item: Blanks) -> list[list[dict[str, Any]]]:
        """Of one text."""
        logits = self.model(torch.tensor([item.ids], device=self.model.device)).logits  # (1, S, V)
        best = logits[0, item.places].float().softmax(dim=-1).topk(item.top_k)  # (masks, V) -> (masks, top_k)
        return [
            [{"token": self.tokenizer.token_text(id), "probability": p} for id, p in zip(ids, row, strict=True)]
            for ids, row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]


def load_masks(name: str, folder: str | Path, device: str) -> Masks | None:
    """The masked LM of a checkpoint; None where that was saved without the head."""
    return Masks(name, folder, device) if has_head(folder, MaskedLM.name) else None
