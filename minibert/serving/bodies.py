"""What is said over the wire: JSON in, read without trust, and JSON out, as OpenAI's API has it.

orjson reads it: it refuses what JSON does not have (NaN, half a surrogate pair, bytes that are no UTF-8), and whatever
is nested too deep, where Python's own reader takes it or falls over.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from starlette.requests import Request

from minibert.serving.limits import Limits, Refused, too_many_tokens, wrong_row

Texts = list[str]
Pairs = list[tuple[str, str]]
Ids = list[list[int]]
Known = Mapping[str, type | tuple[type, ...]]  # the fields that a request may have, with their types


# ---------------------------------------------------------------------------------------------------------------
# In


async def read_object(request: Request, limits: Limits, known: Known) -> dict[str, Any]:
    """The fields of a request's JSON object; a field that is null is left out. known: what there may be, by type.

    Raises Refused: 400 for what is no such object, 413 for a body that is too large, 415 for another content type.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, f"the content type is {kind[:80]!r}; it must be application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "the body is compressed; send it as it is, without Content-Encoding")
    try:
        found = orjson.loads(await read_body(request, limits.body_bytes))
    except orjson.JSONDecodeError as error:  # it says where, and nothing of what is there
        raise Refused(400, f"the body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise Refused(400, f"the body is {named(found)}; it must be an object, such as {{'input': 'a text'}}")
    fields = {name: value for name, value in found.items() if value is not None}
    for name, value in fields.items():
        if name not in known:
            raise Refused(400, f"{name[:40]!r} is no field of this request; it has {', '.join(known)}", name[:40])
        if not isinstance(value, known[name]) or isinstance(value, bool):
            raise Refused(400, f"{name} is {named(value)}; see the documentation of this request", name)
    return fields


async def read_body(request: Request, limit: int) -> bytes:
    """The bytes of a body, none of them kept where there are more than `limit`. Raises Refused, 413."""
    refused = Refused(413, f"the body has more than {limit:,} bytes; send the texts in several requests")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > limit:
        raise refused
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise refused
        parts.append(part)
    return b"".join(parts)


def named(value: object) -> str:
    """What JSON calls the type of a value."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def read_input(value: object, limits: Limits, *, pairs: bool = False, ids: bool = False) -> Texts | Pairs | Ids:
    """The field `input`: a text or a list of texts; lists of token ids, or one of them; or pairs of texts.

    Raises Refused: 400 for another shape, 422, with the row, for a row that is not as the first one, or one too many.
    """
    if isinstance(value, str) and not pairs:
        return [value]
    if not isinstance(value, list) or not value:
        wanted = "a list of pairs of texts" if pairs else "a text, or a list of texts"
        found = "missing" if value is None else "an empty list" if value == [] else named(value)
        raise Refused(400, f"input is {found}; it must be {wanted}{', or of token ids' * ids}", "input")
    if ids and isinstance(value[0], int):
        return read_ids([value], limits)
    if len(value) > limits.texts:
        raise wrong_row(limits.texts, f"is one too many: a request may have {limits.texts:,} texts")
    if ids and isinstance(value[0], list):
        return read_ids(value, limits)
    if pairs:
        return [as_pair(row, number) for number, row in enumerate(value)]
    for number, row in enumerate(value):
        if not isinstance(row, str):
            raise wrong_row(number, f"is {named(row)}; it must be a text")
    return value


def holds_lists(value: object) -> bool:
    """Whether an input is of pairs, by its first row."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], list)


def read_ids(rows: list[object], limits: Limits) -> Ids:
    """Rows of token ids, none of them looked at that is beyond the tokens of a request."""
    found, tokens = [], 0
    for number, row in enumerate(rows):
        tokens += len(row) if isinstance(row, list) else 0
        if tokens > limits.tokens:
            raise too_many_tokens(number, limits.tokens)
        found.append(as_ids(row, number))
    return found


def as_ids(row: object, number: int) -> list[int]:
    """One row of token ids."""
    if not isinstance(row, list):
        raise wrong_row(number, f"is {named(row)}; it must be a list of token ids, as the first row is")
    if not row:
        raise wrong_row(number, "is empty; a row of token ids needs at least one")
    for id in row:
        if not isinstance(id, int) or isinstance(id, bool):
            raise wrong_row(number, f"has {named(id)} among its token ids; they are whole numbers")
    return row


def as_pair(row: object, number: int) -> tuple[str, str]:
    """One pair of texts."""
    if not isinstance(row, list) or len(row) != 2 or not all(isinstance(text, str) for text in row):
        raise wrong_row(number, 'is no pair of texts, ["first", "second"], which this classifier was trained on')
    return row[0], row[1]


# ---------------------------------------------------------------------------------------------------------------
# Out


@dataclass(frozen=True)
class Usage:
    """What was read of a request."""

    tokens: int  # special tokens included
    truncated: int = 0  # texts that lost their ends

    @property
    def body(self) -> dict[str, int]:
        """As OpenAI has it; with `truncated_texts` where any were cut."""
        cut = {"truncated_texts": self.truncated} if self.truncated else {}
        return {"prompt_tokens": self.tokens, "total_tokens": self.tokens} | cut


def to_json(body: object) -> bytes:
    """JSON; a numpy row of float32 is written with as many digits as it needs to be read back."""
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def listing(model: str, kind: str, rows: Sequence[Mapping[str, object]], usage: Usage) -> dict[str, object]:
    """One object a row, under its number."""
    data = [{"object": kind, "index": number, **row} for number, row in enumerate(rows)]
    return {"object": "list", "model": model, "data": data, "usage": usage.body}


def embedding(vector: NDArray[np.float32], as_base64: bool) -> object:
    """A vector as numbers, or as the base64 of its float32 numbers, the lowest byte first."""
    vector = np.ascontiguousarray(vector, dtype="<f4")
    return base64.b64encode(vector.tobytes()).decode("ascii") if as_base64 else vector
