"""What is served: texts to items of a batch, and items to vectors, labels or masked tokens.

An item is one text or pair as ids. Texts are tokenized request by request, before they wait, because what a request
costs, and whether a text is too long, must be known then; everything after it is done in batches.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import torch

from minibert.checkpoints.load import has_head, load
from minibert.device import choose_device
from minibert.heads import MaskedLM
from minibert.serving.requests import Ids, Pairs, RequestError, Texts, row_error
from minibert.tasks.base import Encoded, Example
from minibert.tasks.classification import Classification
from minibert.tasks.frozen import Classifier
from minibert.tasks.labels import LabelPrediction, LabelSetPrediction, check_finite
from minibert.text.tokenized import Tokenized, TokenStats
from minibert.text.tokenizer import Tokenizer, load_tokenizer
from minibert.train.finetuning import Reader
from minibert.train.outputs import outputs
from minibert.train.run import REPORT
from minibert.vectors.cache import Matrix
from minibert.vectors.embedder import Embedder

Item = TypeVar("Item")
FILLER = 16  # tokens of a row that fills up a batch


Prepared = tuple[list[Item], list[int], int]  # items, the tokens of each, and how many texts lost their ends


def prepared(tokens: Tokenized) -> Prepared[Tokenized]:
    """An item for each text, with all its windows."""
    items = [tokens.take([text]) for text in range(len(tokens.windows or tokens.ids))]
    return items, [sum(map(len, item.ids)) for item in items], tokens.stats.truncated


def vectors_of(embedder: Embedder, items: Sequence[Tokenized]) -> Matrix:
    """The vectors of items, (N, width)."""
    ids = [row for item in items for row in item.ids]
    second = None if items[0].second is None else [start for item in items for start in item.second or []]
    windows = [len(item.ids) for item in items] if any(item.windows for item in items) else None
    if embedder.engine.device.type == "cpu":
        extra = filler(sum(map(len, ids)))
        ids += extra
        second = second and second + [0] * len(extra)
        windows = windows and windows + [1] * len(extra)
    return embedder.vectors(Tokenized(ids, TokenStats(), second, windows))[: len(items)]


def filler(tokens: int) -> list[list[int]]:
    """Rows, not answers, that make the tokens of a batch one of eight numbers between a power of 2 and the next.

    oneDNN caches kernels for each number of tokens, see kernels/packing.py, and the batches of a server have all of
    them: its memory would grow for hours. At most an eighth more is computed, or 7 tokens.
    """
    missing = -tokens % max(8, 1 << max(0, tokens.bit_length() - 4))
    return [[0] * min(FILLER, missing - start) for start in range(0, missing, FILLER)]


def check_length(tokens: Tokenized, texts: Texts | Pairs, tokenizer: Tokenizer) -> None:
    """Raise RequestError, 422 with the row and its number of tokens, for a text that was cut."""
    for number in range(len(texts)) if tokens.stats.truncated else ():
        stats = tokenizer.encode_texts(texts[number : number + 1]).stats
        if stats.truncated:
            raise too_long(number, f"{'at least ' if stats.uncounted else ''}{stats.longest:,}", tokenizer)


def too_long(number: int, tokens: str, tokenizer: Tokenizer) -> RequestError:
    """A text that the model cannot read whole."""
    message = f"has {tokens} tokens, and the model takes {tokenizer.max_length:,}; shorten it, or start with --truncate"
    return row_error(number, message, "context_length_exceeded")


class EmbeddingsBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /v1/embeddings: a text, a list of texts, a list of token ids or a list of such lists."""

    model: str
    input: str | list[str | int | list[int]]
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None


class Vectors:
    """POST /v1/embeddings: texts or token ids to the vectors of a recipe.

    truncate: cut texts that are too long instead of refusing them. normalize: vectors of length 1; only these may be
    shortened to their first `dimensions` numbers, and are then of length 1 again.
    """

    body, kind = EmbeddingsBody, "embedding"

    def __init__(self, name: str, embedder: Embedder, *, truncate: bool = False, normalize: bool = False) -> None:
        self.name, self.embedder, self.truncate, self.normalize = name, embedder, truncate, normalize
        self.tokenizer, self.width = embedder.tokenizer, embedder.width  # loads the checkpoint

    def prepare(self, rows: Texts | Ids, body: EmbeddingsBody) -> Prepared[Tokenized]:
        """Raises RequestError: 400 for `dimensions` that the vectors cannot have, 422, with the row, for a text that is
        too long and for an id outside the vocabulary."""
        longest = self.width if self.normalize else 0
        if body.dimensions not in (None, self.width) and not 1 <= (body.dimensions or 0) <= longest:
            possible = f"1 to {self.width}" if self.normalize else f"{self.width}, or the server run with --normalize"
            raise RequestError(400, f"dimensions must be {possible}", "dimensions")
        if isinstance(rows[0], list):
            return self.prepare_ids(rows)
        tokens = self.tokenizer.encode_texts(rows, long="cut")
        if not self.truncate:
            check_length(tokens, rows, self.tokenizer)
        return prepared(tokens)

    def prepare_ids(self, rows: Ids) -> Prepared[Tokenized]:
        """Rows of token ids; [CLS] and [SEP] are put around those that have none."""
        template, vocab_size = self.tokenizer.template, self.embedder.engine.config.vocab_size
        before, after, special = template.before, template.after, template.specials(False)
        whole, truncated = [], 0
        for number, ids in enumerate(rows):
            if wrong := [id for id in ids if not 0 <= id < vocab_size]:
                raise row_error(number, f"has the token id {wrong[0]}; the vocabulary has 0 to {vocab_size - 1:,}")
            if len(ids) > len(before) and (tuple(ids[: len(before)]), tuple(ids[-len(after) :])) == (before, after):
                ids = ids[len(before) : -len(after)]
            room = self.tokenizer.max_length - special
            if len(ids) > room and not self.truncate:
                raise too_long(number, f"{len(ids) + special:,}", self.tokenizer)
            truncated += len(ids) > room
            whole.append(template.row(ids[:room]))
        return prepared(Tokenized(whole, TokenStats(truncated=truncated)))

    def compute(self, items: list[Tokenized]) -> Matrix:
        """(N, width)."""
        return vectors_of(self.embedder, items)

    def finish(self, answers: list[Any], body: EmbeddingsBody) -> list[dict[str, Any]]:
        """The vectors as they are sent."""
        vectors = np.stack(answers)[:, : body.dimensions]  # (N, dimensions)
        if self.normalize:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True).astype(np.float32)
            vectors = vectors / np.maximum(lengths, np.float32(1e-12))
        if body.encoding_format != "base64":
            return [{"embedding": vector} for vector in vectors.tolist()]
        return [{"embedding": base64.b64encode(vector).decode()} for vector in np.ascontiguousarray(vectors, "<f4")]


class ClassifyBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /classify: a text, a list of texts, or a list of pairs."""

    input: str | list[str | list[str]]
    model: str | None = None


class FrozenLabels:
    """POST /classify by a folder of `minibert classify train`: long texts are read as they were in training."""

    body, kind = ClassifyBody, "label"

    def __init__(self, folder: Path, device: str) -> None:
        self.name, self.classifier = folder.name, Classifier.load(folder, device=device)
        features = self.classifier.features
        self.embedder = Embedder(features.model, features.recipe, device)

    def prepare(self, rows: Texts | Pairs, body: ClassifyBody) -> Prepared[Tokenized]:
        """Raises RequestError, 422 with the row, for pairs instead of texts or the reverse, and for a text that is too
        long if the recipe refuses those."""
        if isinstance(rows[0], tuple) != self.classifier.features.pairs_:
            raise row_error(
                0, f"is not a {'pair' if self.classifier.features.pairs_ else 'text'}, as the classifier reads"
            )
        recipe, tokenizer = self.embedder.recipe, self.embedder.tokenizer
        strict = recipe.long == "error"
        tokens = tokenizer.encode_texts(rows, long="cut" if strict else recipe.long, stride=recipe.stride)
        if strict:
            check_length(tokens, rows, tokenizer)
        return prepared(tokens)

    def compute(self, items: list[Tokenized]) -> list[dict[str, Any]]:
        """The label with the largest probability, and the probability of each."""
        with np.errstate(all="ignore"):
            probabilities = self.classifier.head.predict_proba(vectors_of(self.embedder, items))  # (N, K)
        check_finite(probabilities, "a probability")
        return [answer_of(LabelPrediction("", 0.0, row), self.classifier.labels) for row in probabilities.tolist()]

    def finish(self, answers: list[Any], body: ClassifyBody) -> list[Any]:
        """The answers as they are sent."""
        return answers


class TunedLabels:
    """POST /classify by a folder of `minibert finetune classify`: long texts are cut as they were in training."""

    body, kind = ClassifyBody, "label"

    def __init__(self, folder: Path, device: str) -> None:
        self.name, self.reader = folder.name, Reader.load(folder, device)
        if not isinstance(self.reader.task, Classification):
            raise ValueError(f"{folder} was trained for the task {self.reader.task.name!r}; /classify needs 'classify'")

    finish = FrozenLabels.finish

    def prepare(self, rows: Texts | Pairs, body: ClassifyBody) -> Prepared[Example]:
        """Examples without labels."""
        tokens = self.reader.tokenizer.encode_texts(rows, max_length=self.reader.max_length)
        starts = tokens.second or map(len, tokens.ids)
        examples = [
            Example(ids, [0] * start + [1] * (len(ids) - start)) for ids, start in zip(tokens.ids, starts, strict=True)
        ]
        return examples, [len(example.ids) for example in examples], tokens.stats.truncated

    def compute(self, items: list[Example]) -> list[dict[str, Any]]:
        """The decoded answers of the task."""
        reader, encoded = self.reader, Encoded(items)
        data = reader.task.from_texts([""] * len(items))
        logits = outputs(reader.model, encoded, keep=reader.task.reduce)
        return [answer_of(answer, reader.labels) for answer in reader.task.decode(logits, encoded, data, reader.labels)]


def answer_of(answer: Any, labels: Sequence[str]) -> dict[str, Any]:
    """An answer of the task as JSON: one label, several, or a number."""
    if not isinstance(answer, LabelPrediction | LabelSetPrediction):
        return {"value": float(answer)}
    each = dict(zip(labels, answer.probabilities, strict=True))
    if isinstance(answer, LabelSetPrediction):
        return {"labels": list(answer.labels), "probabilities": each}
    best = max(each, key=each.__getitem__)
    return {"label": best, "probability": each[best], "probabilities": each}


def load_labels(folder: str | Path, device: str) -> FrozenLabels | TunedLabels:
    """A trained folder of either kind. Raises FileNotFoundError or ValueError if it is neither."""
    return (TunedLabels if (Path(folder) / REPORT).exists() else FrozenLabels)(Path(folder), device)


class FillMaskBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /fill-mask: a text or a list of texts, each with masks."""

    input: str | list[str]
    model: str | None = None
    top_k: int | None = None


class Masks:
    """POST /fill-mask: the likeliest tokens at every [MASK]; a text at a time, since each position has V numbers."""

    body, kind = FillMaskBody, "masks"
    finish = FrozenLabels.finish

    def __init__(self, name: str, folder: str | Path, device: str) -> None:
        model = load(folder, head=MaskedLM.name, device=choose_device(device))
        assert isinstance(model, MaskedLM)
        self.name, self.model, self.tokenizer = name, model, load_tokenizer(folder)

    def prepare(self, rows: Texts, body: FillMaskBody) -> Prepared[tuple[list[int], int]]:
        """Items: the ids of a text, and top_k. Raises RequestError: 400 for a top_k out of range, 422, with the row,
        for a text without a mask or one that is too long."""
        vocab_size, mask = self.model.config.vocab_size, self.tokenizer.mask_id
        top_k = 5 if body.top_k is None else body.top_k
        if not 1 <= top_k <= vocab_size:
            raise RequestError(400, f"top_k must be from 1 to {vocab_size:,}, the size of the vocabulary", "top_k")
        tokens = self.tokenizer.encode_texts(rows, long="cut")
        check_length(tokens, rows, self.tokenizer)
        for number in (number for number, ids in enumerate(tokens.ids) if mask not in ids):
            raise row_error(number, f"has no {self.tokenizer.id_to_token(mask)}")
        return [(ids, top_k) for ids in tokens.ids], list(map(len, tokens.ids)), 0

    @torch.inference_mode()
    def compute(self, items: list[tuple[list[int], int]]) -> list[dict[str, Any]]:
        """For every mask of a text the top_k tokens, the likeliest first."""
        return [{"masks": self.predictions(*item)} for item in items]

    def predictions(self, ids: list[int], top_k: int) -> list[list[dict[str, Any]]]:
        """The tokens at the masks of one text."""
        logits = self.model(torch.tensor([ids], device=self.model.device)).logits  # (1, S, V)
        masks = [place for place, id in enumerate(ids) if id == self.tokenizer.mask_id]
        best = logits[0, masks].float().softmax(dim=-1).topk(top_k)  # (masks, V) -> (masks, top_k)
        return [
            [{"token": self.tokenizer.token_text(id), "probability": p} for id, p in zip(found, row, strict=True)]
            for found, row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]


def load_masks(name: str, folder: str | Path, device: str) -> Masks | None:
    """The masked LM of a checkpoint; None if that was saved without the head."""
    return Masks(name, folder, device) if has_head(folder, MaskedLM.name) else None
