"""What a request may cost, and how one is refused: with a status and an error body as OpenAI's API has them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Limits:
    """What one request, and all of them together, may ask for. Raises ValueError for a limit that nothing would pass.

    The numbers of texts and tokens are those of OpenAI's API.
    """

    body_bytes: int = 4 << 20  # of a request
    texts: int = 2048  # of a request
    tokens: int = 300_000  # of a request, special tokens included
    queue_tokens: int = 600_000  # of all requests that are not yet answered
    requests: int = 1024  # that are read, wait or are answered at one time
    timeout: float = 30.0  # seconds for the head of a request, again for its body, and for a client that stops reading
    head_bytes: int = 64 << 10

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{limit.name} is {value}; it must be larger than 0")
        if self.queue_tokens < self.tokens:
            raise ValueError(
                f"queue_tokens is {self.queue_tokens:,}, and one request may have {self.tokens:,} (tokens): "
                "the queue must have room for it"
            )


class Refused(Exception):  # noqa: N818  (what became of the request)
    """A request that is not answered: the status, one sentence that says why, and the field that is at fault.

    The sentence never holds the text of a user.
    """

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers: dict[str, str] = {}

    @property
    def body(self) -> dict[str, Any]:
        """As OpenAI's clients read it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def wrong_row(row: int, message: str, param: str = "input", code: str | None = None) -> Refused:
    """422 for one of the texts of a request."""
    return Refused(422, f"row {row} {message}", param, code)


def too_many_tokens(row: int, most: int) -> Refused:
    """422 for the row in which a request has more tokens than it may have."""
    return wrong_row(row, f"has the token that is one too many: a request may have {most:,} tokens")


def too_busy(seconds: float) -> Refused:
    """429 where the queue is full; the client may come back in so many seconds."""
    refused = Refused(429, "too many texts are waiting; try again later", code="queue_full")
    refused.headers["Retry-After"] = str(max(1, math.ceil(seconds)))
    return refused
