"""What is served: request bodies, validated; texts to items of a batch; items to vectors, labels or masked tokens.

An item is one text or pair as ids. Texts are tokenized request by request, before they wait, because the queue must
know what a request costs, and a text that is too long is refused. Everything after that is done in batches.
"""

import asyncio
import base64
import codecs
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import Request

from minibert.checkpoints.checkpoint import Checkpoint
from minibert.checkpoints.load import load
from minibert.heads import MaskedLM
from minibert.kernels.packing import missing_tokens
from minibert.prediction.frozen import Classifier
from minibert.prediction.logits import predict_logits
from minibert.prediction.reader import Reader, open_reader
from minibert.serving import ServerSettings
from minibert.tasks.base import Encoded, Prediction
from minibert.tasks.labels import best_label
from minibert.tasks.masked_text import fill_mask
from minibert.text.tokenized import Tokenized, TokenStats
from minibert.text.tokenizer import Tokenizer, load_tokenizer
from minibert.utils.device import choose_device
from minibert.utils.files import AnyPath, user_path
from minibert.vectors.embedder import Embedder
from minibert.vectors.readable import Matrix

Prepared = tuple[list[Any], list[int], int]  # items, the tokens of each, and how many texts lost their ends
BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
FILLER = 16  # tokens of a row that fills up a batch


# ---------------------------------------------------------------------------------------------------------------
# Requests


class RequestError(HTTPException):
    """A refused request: the status, one sentence with the reason and without any text of a user, and the field."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(status, message)
        self.param = param
        self.code = code


async def read_body(request: Request, kind: Any, settings: ServerSettings) -> Any:
    """Return the JSON body of a request.

    Raises RequestError: 400 for malformed JSON and wrong fields, 408 for a client that is too slow, 413 for a body that
    is too large, 415 for another content type, 422 for a row of the wrong type.
    """
    media, encoding = (request.headers.get(f"content-{name}", "").lower() for name in ("type", "encoding"))
    if media.partition(";")[0].strip() != "application/json" or encoding not in ("", "identity"):
        raise RequestError(415, "the body must be application/json, without Content-Encoding")
    content = bytearray()
    try:
        async with asyncio.timeout(settings.timeout):
            async for part in request.stream():
                content += part
                if len(content) > settings.max_body:
                    raise RequestError(
                        413, f"the body has more than {settings.max_body:,} bytes; send several requests"
                    )
        if content.startswith(BYTE_ORDER_MARKS):
            raise RequestError(400, "the body begins with a byte order mark; send UTF-8 without one")
        # Spaces, because msgspec reads 6 bytes after half a surrogate pair, and at the end it would miss those instead.
        return msgspec.json.decode(content + b" " * 6, type=kind)
    except TimeoutError:
        raise RequestError(408, f"the body was not complete after {settings.timeout:g} seconds") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = str(error)[:200]  # "Expected `str`, got `int` - at `$.input[1]`"
        field = re.search(r"`\$\.(\w+)", message)
        raise RequestError(
            422 if "`$.input[" in message else 400, f"the body is wrong: {message}", field and field[1]
        ) from None


def rows_of_input(given: str | list[Any], settings: ServerSettings) -> list[Any]:
    """Return the rows of `input`: texts, pairs, or lists of token ids.

    Raises RequestError, 422 with the row, for a row of another type than the first and for one row too many.
    """
    if isinstance(given, str):
        return [given]
    for number, row in enumerate(given):
        if type(row) is not type(given[0]):
            raise RequestError(422, f"row {number} is of another type than the first", "input")
        if number == settings.max_texts and not isinstance(row, int):
            raise RequestError(422, f"row {number} is one too many: a request may have {number:,} texts", "input")
    return [given] if isinstance(given[0], int) else given


# ---------------------------------------------------------------------------------------------------------------
# Texts to items, and items to vectors


def encode(tokenizer: Tokenizer, rows: list[Any], long: str = "error", stride: int | None = None) -> Tokenized:
    """Return texts or pairs as ids. Raises RequestError, 422 with the row, if `long` is "error" and one is too long."""
    try:
        return tokenizer.encode_texts(rows, long=long, stride=stride)
    except ValueError as error:
        raise RequestError(422, str(error).partition(";")[0], "input", "context_length_exceeded") from None


def prepared(tokens: Tokenized) -> Prepared:
    """Return an item for each text, with all its windows."""
    items = [tokens.take([text]) for text in range(len(tokens.windows or tokens.ids))]
    return items, [sum(map(len, item.ids)) for item in items], tokens.stats.truncated


def vectors_of(embedder: Embedder, items: Sequence[Tokenized]) -> Matrix:
    """Return the vectors of items, (N, width)."""
    ids = [row for item in items for row in item.ids]
    extra = filler(sum(map(len, ids))) if embedder.engine.device.type == "cpu" else []
    starts = [start for item in items for start in item.second or []] + [0] * len(extra)
    second = None if items[0].second is None else starts
    windows = None if items[0].windows is None else [len(item.ids) for item in items] + [1] * len(extra)
    return embedder.vectors(Tokenized(ids + extra, TokenStats(), second, windows))[: len(items)]


def filler(tokens: int) -> list[list[int]]:
    """Return padding rows that round up the token count, so that only eight batch sizes occur per power of two.

    oneDNN caches kernels for each number of tokens, see kernels/packing.py, and the batches of a server have all of
    them: its memory would grow for hours. At most an eighth more is computed, or 7 tokens.
    """
    missing = missing_tokens(tokens, digits=4, least=8)
    return [[0] * min(FILLER, missing - start) for start in range(0, missing, FILLER)]


class Model:
    """What one path serves: `prepare` turns the rows of a request into items, `compute` items into results.

    name: in requests. body: the type of a request's body. kind: the "object" of each result.
    """

    def finish(self, results: list[Any], body: Any) -> list[dict[str, Any]]:
        """Return the results of a request as JSON."""
        return results


# ---------------------------------------------------------------------------------------------------------------
# Vectors


TokenId = Annotated[int, Meta(ge=0)]


class EmbeddingsBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /v1/embeddings: a text, a list of texts, a list of token ids or a list of such lists."""

    model: str
    input: str | Annotated[list[str | TokenId | Annotated[list[TokenId], Meta(min_length=1)]], Meta(min_length=1)]
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None


class Vectors(Model):
    """POST /v1/embeddings: texts or token ids to the vectors of a recipe.

    truncate: cut texts that are too long instead of refusing them. Only vectors of length 1, by the recipe, may be
    shortened to their first `dimensions` numbers, and are then of length 1 again.
    """

    body = EmbeddingsBody
    kind = "embedding"

    def __init__(self, name: str, embedder: Embedder, *, truncate: bool = False) -> None:
        self.name = name
        self.embedder = embedder
        self.truncate = truncate
        self.tokenizer = embedder.tokenizer  # loads the checkpoint
        self.width = embedder.width

    def prepare(self, rows: list[Any], body: EmbeddingsBody) -> Prepared:
        """Return an item for each row.

        Raises RequestError: 400 for `dimensions` that the vectors cannot have, 422, with the row, for a text that is
        too long and for an id outside the vocabulary.
        """
        normalized = self.embedder.recipe.normalize
        wanted = self.width if body.dimensions is None else body.dimensions
        if wanted not in range(1 if normalized else self.width, self.width + 1):
            own = f"1 to {self.width}" if normalized else f"{self.width}, those of this model"
            more = "" if normalized or wanted > self.width else "; fewer need `serve --normalize`"
            raise RequestError(400, f"dimensions must be {own}{more}", "dimensions")
        if isinstance(rows[0], list):
            return self.prepare_ids(rows)
        return prepared(encode(self.tokenizer, rows, "cut" if self.truncate else "error"))

    def prepare_ids(self, rows: list[list[int]]) -> Prepared:
        """Return items of token ids with [CLS] and [SEP]: ids without them may be another tokenizer's, for other words.

        Clients of OpenAI send the ids of tiktoken. Raises RequestError, 422 with the row, for those.
        """
        template = self.tokenizer.template
        vocab_size = self.embedder.engine.config.vocab_size
        most = self.tokenizer.max_length - template.specials(pairs=False)
        texts = []
        for number, ids in enumerate(rows):
            texts.append(ids[len(template.before) : -len(template.after)])
            if template.row(texts[-1]) != ids:
                around = " and ".join(map(str, (*template.before, *template.after)))
                raise RequestError(
                    422,
                    f"row {number} has token ids that may be another tokenizer's, such as tiktoken's; send texts (for "
                    "langchain's OpenAIEmbeddings: check_embedding_ctx_length=False), or ids of this model's tokenizer "
                    f"with its special tokens, {around}, around each row",
                    "input",
                )
            if max(ids) >= vocab_size:
                raise RequestError(422, f"row {number} has a token id above {vocab_size - 1:,}, the last one", "input")
            if len(texts[-1]) > most and not self.truncate:
                raise RequestError(
                    422,
                    f"row {number} has {len(texts[-1])} tokens of text, more than {most}",
                    "input",
                    "context_length_exceeded",
                )
        stats = TokenStats(truncated=sum(len(text) > most for text in texts))
        return prepared(Tokenized([template.row(self.tokenizer.truncate(text, most)) for text in texts], stats))

    def compute(self, items: list[Tokenized]) -> Matrix:
        """Return vectors, (N, width)."""
        return vectors_of(self.embedder, items)

    def finish(self, results: list[Any], body: EmbeddingsBody) -> list[dict[str, Any]]:
        """Return the vectors as JSON."""
        vectors = np.stack(results)[:, : body.dimensions]  # (N, dimensions)
        if vectors.shape[1] < self.width:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True).astype(np.float32)
            vectors = vectors / np.maximum(lengths, np.float32(1e-12))
        if body.encoding_format != "base64":
            return [{"embedding": vector} for vector in vectors.tolist()]
        return [{"embedding": base64.b64encode(vector).decode()} for vector in np.ascontiguousarray(vectors, "<f4")]


# ---------------------------------------------------------------------------------------------------------------
# Labels


class ClassifyBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /classify: a text, a list of texts, or a list of pairs."""

    input: str | Annotated[list[str | tuple[str, str]], Meta(min_length=1)]
    model: str | None = None


class FrozenLabels(Model):
    """POST /classify by a folder of `minibert classify train`: long texts are read as they were in training."""

    body = ClassifyBody
    kind = "label"

    def __init__(self, folder: Path, classifier: Classifier, device: str) -> None:
        self.name = folder.name
        self.classifier = classifier
        features = classifier.features
        self.embedder = Embedder(features.model, features.recipe, device)

    def prepare(self, rows: list[Any], body: ClassifyBody) -> Prepared:
        """Return an item for each row.

        Raises RequestError, 422 with the row, for pairs instead of texts or the reverse, and for a text that is too
        long if the recipe refuses those.
        """
        check_pairs(rows, self.classifier.pairs)
        recipe = self.embedder.recipe
        return prepared(encode(self.embedder.tokenizer, rows, recipe.long, recipe.stride))

    def compute(self, items: list[Tokenized]) -> list[Prediction]:
        """Return the label with the largest probability, and the probability of each."""
        classifier = self.classifier
        probabilities = classifier.head.predict_proba(vectors_of(self.embedder, items))
        return [best_label(row, classifier.labels) for row in probabilities.tolist()]


class TaskLabels(Model):
    """POST /classify by a checkpoint with a task head: labels, entities, or answers from passages.

    Texts to classify are cut as they were in training; passages and texts to tag are read in windows.
    """

    body = ClassifyBody
    kind = "label"

    def __init__(self, folder: Path, reader: Reader) -> None:
        self.name = folder.name
        self.reader = reader

    def prepare(self, rows: list[Any], body: ClassifyBody) -> Prepared:
        """Return items: the data of a row, and its examples.

        Raises RequestError, 422, for pairs instead of texts or the reverse, unless it reads both.
        """
        reader = self.reader
        items = []
        check_pairs(rows, reader.pairs)
        for row in rows:
            texts = row if isinstance(row, tuple) else (row,)
            data = reader.task.from_texts(*([text] for text in texts))
            items.append((data, reader.task.encode(data, reader.tokenizer, reader.labels, reader.max_length)))
        tokens = [sum(len(example.ids) for example in encoded.examples) for _, encoded in items]
        return items, tokens, sum(encoded.truncation.truncated for _, encoded in items if encoded.truncation)

    def compute(self, items: list[tuple[Any, Encoded]]) -> list[Prediction]:
        """Return what `minibert.predict` says of each."""
        reader = self.reader
        predictions = []
        logits = iter(
            predict_logits(reader.model, Encoded([example for _, encoded in items for example in encoded.examples]))
        )
        for data, encoded in items:
            answers = reader.task.decode(list(islice(logits, len(encoded.examples))), encoded, data, reader.labels)
            predictions += reader.task.as_dicts(answers, data)
        return predictions


def check_pairs(rows: list[Any], pairs: bool | None) -> None:
    """Raise RequestError, 422, for pairs instead of texts or the reverse; pairs: None allows both."""
    if pairs is not None and isinstance(rows[0], tuple) != pairs:
        raise RequestError(422, f"row 0 is not a {'pair' if pairs else 'single text'}", "input")


def load_labels(name: AnyPath, device: str) -> FrozenLabels | TaskLabels:
    """Return a folder whose predictions /classify serves. Raises FileNotFoundError or ValueError for another."""
    reader = open_reader(name, device=device)
    folder = user_path(name)
    if isinstance(reader, Classifier):
        return FrozenLabels(folder, reader, device)
    if (place := reader.task.served_at) != "/classify":
        way = f"serve it at {place}: --model {name}" if place else f"use `minibert predict {name}`"
        raise ValueError(
            f"/classify serves labels, tags and answers, and {name} is for the task {reader.task.name!r}; {way}"
        )
    return TaskLabels(folder, reader)


# ---------------------------------------------------------------------------------------------------------------
# Masked tokens


class FillMaskBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /fill-mask: a text or a list of texts, each with masks."""

    input: str | Annotated[list[str], Meta(min_length=1)]
    model: str | None = None
    top_k: int = 5


class Masks(Model):
    """POST /fill-mask: the likeliest tokens at every [MASK]; a text at a time, since each position has V numbers."""

    body = FillMaskBody
    kind = "masks"

    def __init__(self, name: str, checkpoint: Checkpoint, device: str) -> None:
        self.name = name
        self.tokenizer = load_tokenizer(checkpoint)
        self.model: Any = load(checkpoint, head=MaskedLM.name, device=choose_device(device))

    def prepare(self, rows: list[str], body: FillMaskBody) -> Prepared:
        """Return items: a text, and top_k.

        Raises RequestError: 400 for a top_k out of range, 422, with the row, for a text without a mask or one that is
        too long.
        """
        vocab_size = self.model.config.vocab_size
        mask = self.tokenizer.mask_id
        if not 1 <= body.top_k <= vocab_size:
            raise RequestError(400, f"top_k must be from 1 to {vocab_size:,}, the size of the vocabulary", "top_k")
        texts_ids = encode(self.tokenizer, rows).ids
        for number, ids in enumerate(texts_ids):
            if mask not in ids:
                raise RequestError(422, f"row {number} has no {self.tokenizer.id_to_token(mask)}", "input")
        return [(text, body.top_k) for text in rows], list(map(len, texts_ids)), 0

    def compute(self, items: list[tuple[str, int]]) -> list[Prediction]:
        """Return the top_k tokens for every mask of a text, the likeliest first."""
        filled = (fill_mask(text, self.model, top_k, tokenizer=self.tokenizer) for text, top_k in items)
        return [{"masks": [[guess._asdict() for guess in mask] for mask in masks]} for masks in filled]
