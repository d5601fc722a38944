"""Clients in a process of their own: each sends a request, reads the answer, and sends the next one.

    python -m minibert.bench.serve.clients < plan.json > found.json

Requests are written as bytes beforehand and answers are not decoded, so that what is measured is the server.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice


@dataclass(frozen=True)
class Load:
    """What is asked of a server."""

    host: str
    port: int
    model: str
    texts: Sequence[str]  # one a request, in turn
    clients: int
    seconds: float
    encoding: str = "base64"  # what OpenAI's client asks for


@dataclass(frozen=True)
class Found:
    """How it answered."""

    seconds: float
    latencies: Sequence[float]  # seconds of each request
    errors: int  # answers of another status than 200
    bytes_read: int


def request_of(load: Load, text: str) -> bytes:
    """A whole request."""
    body = json.dumps({"model": load.model, "input": text, "encoding_format": load.encoding}).encode()
    head = (
        f"POST /v1/embeddings HTTP/1.1\r\nhost: {load.host}:{load.port}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status and the body of an answer, whose length stands in its head."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = int(head.partition("content-length:")[2].partition("\r\n")[0])
    return int(head.split(" ", 2)[1]), await reader.readexactly(length)


async def client(load: Load, requests: Iterator[bytes], end: float, found: list[tuple[float, int, int]]) -> None:
    """One client, until the end; found: seconds, status and bytes of each request."""
    reader, writer = await asyncio.open_connection(load.host, load.port)
    while (began := time.perf_counter()) < end:
        writer.write(next(requests))
        status, body = await answer_of(reader)
        found.append((time.perf_counter() - began, status, len(body)))
    writer.close()


async def run(load: Load) -> Found:
    """All clients at once, each beginning with a text of its own."""
    requests, found = [request_of(load, text) for text in load.texts], list[tuple[float, int, int]]()
    began = time.perf_counter()
    starts = [islice(cycle(requests), number * 31 % len(requests), None) for number in range(load.clients)]
    await asyncio.gather(*(client(load, start, began + load.seconds, found) for start in starts))
    errors = sum(status != 200 for _, status, _ in found)
    return Found(time.perf_counter() - began, [one[0] for one in found], errors, sum(one[2] for one in found))


def main() -> None:
    """Read what to do, do it, say what was found."""
    load = Load(**json.load(sys.stdin))
    try:
        import uvloop  # where it is there: clients are to cost as little as they can

        found = uvloop.run(run(load))
    except ImportError:
        found = asyncio.run(run(load))
    json.dump(asdict(found), sys.stdout)


if __name__ == "__main__":
    main()
