"""Requests in, checked by msgspec, and errors out, with the status and the body of OpenAI's API."""

from __future__ import annotations

import asyncio
import re
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from minibert.serving.settings import ServerSettings

Body = TypeVar("Body", bound=msgspec.Struct)
Texts = list[str]
Pairs = list[tuple[str, str]]
Ids = list[list[int]]


class RequestError(Exception):
    """A request that is refused: the status, one sentence that says why without any text of a user, and the field."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    @property
    def body(self) -> dict[str, Any]:
        """The error as OpenAI's clients read it."""
        kind = {429: "rate_limit_error", 500: "server_error"}.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def row_error(row: int, message: str, code: str | None = None) -> RequestError:
    """422 for one of the texts of a request."""
    return RequestError(422, f"row {row} {message}", "input", code)


async def read_body(request: Request, kind: type[Body], settings: ServerSettings) -> Body:
    """The JSON body of a request.

    Raises RequestError: 400 for malformed JSON and wrong fields, 408 for a client that is too slow, 413 for a body that
    is too large, 415 for another content type, 422 for a row of the wrong type.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" or request.headers.get("content-encoding", "identity").lower() != "identity":
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
        return msgspec.json.decode(content, type=kind)
    except TimeoutError:
        raise RequestError(408, f"the body was not complete after {settings.timeout:g} seconds") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = str(error)[:200]
        field, row = re.search(r"`\$\.(\w+)", message), re.search(r"`\$\.input\[(\d+)\]", message)
        if row:
            raise row_error(int(row[1]), f"is wrong: {message}") from None
        raise RequestError(400, f"the body is wrong: {message}", field and field[1]) from None


def rows_of(given: str | list[Any], settings: ServerSettings) -> list[Any]:
    """The rows of `input`: texts, pairs as tuples, or lists of token ids.

    Raises RequestError: 400 for no row, 422, with the row, for one too many and for one of another type than the first.
    """
    if given == []:
        raise RequestError(400, "input is an empty list; it must have at least one row", "input")
    rows: list[Any] = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
    if len(rows) > settings.max_texts:
        raise row_error(settings.max_texts, f"is one too many: a request may have {settings.max_texts:,} texts")
    kind = type(rows[0])
    for number, row in enumerate(rows):
        if type(row) is not kind or row == []:
            raise row_error(number, "is empty or of another type than the first row")
        if kind is list and any(type(item) is not type(row[0]) for item in row):
            raise row_error(number, "mixes texts, token ids and lists")
        if kind is list and isinstance(row[0], str):
            if len(row) != 2:
                raise row_error(number, 'is not a pair of texts, ["first", "second"]')
            rows[number] = tuple(row)
    return rows
