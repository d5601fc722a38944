"""The application: paths, what guards them, and what each answers. See the package's first page for the API.

    key -> fields -> texts -> items -> the queue -> answers -> JSON

A request that is wrong, too large or unwanted is refused where that is first known; nothing of it reaches the queue.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from minibert.serving.batcher import Batcher, QueueFullError
from minibert.serving.bodies import Known, Usage, embedding, holds_lists, listing, read_input, read_object, to_json
from minibert.serving.counters import Counters
from minibert.serving.limits import Limits, Refused, too_busy, too_many_tokens
from minibert.serving.models import Labels, Masks, Prepared, Vectors

INLINE = 4_000  # characters that are tokenized at once, in a millisecond; more of them in a thread of their own
Handler = Callable[[Request], Awaitable[Response]]


@dataclass
class Service:
    """What one server has to offer, and how."""

    vectors: Vectors
    labels: Labels[Any] | None = None
    masks: Masks | None = None
    limits: Limits = field(default_factory=Limits)
    api_key: str | None = None
    batch_tokens: int = 1024
    wait: float = 0.005  # seconds

    @property
    def names(self) -> list[str]:
        """The models, by the names that requests give them."""
        return list(dict.fromkeys(one.name for one in (self.vectors, self.labels) if one is not None))


def application(service: Service) -> Starlette:
    """The ASGI application."""
    return Server(service).app


class Server:
    """The state of an application: its queues, one for each kind of work, in front of one thread that computes."""

    def __init__(self, service: Service) -> None:
        self.service, self.limits, self.counters = service, service.limits, Counters()
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self.open = 0  # POST requests that are being read, wait, or are answered
        self.vectors = self.batcher(service.vectors.compute)
        self.labels = None if service.labels is None else self.batcher(service.labels.compute)
        self.masks = None if service.masks is None else self.batcher(service.masks.compute)
        self.batchers = [one for one in (self.vectors, self.labels, self.masks) if one is not None]
        self.counters.watch_queue(lambda: sum(one.tokens for one in self.batchers))
        self.app = Starlette(
            routes=[
                Route("/v1/embeddings", Endpoint(self, self.embeddings), methods=["POST"]),
                Route("/v1/models", Endpoint(self, self.models), methods=["GET"]),
                Route("/v1/models/{name:path}", Endpoint(self, self.model), methods=["GET"]),
                Route("/classify", Endpoint(self, self.classify), methods=["POST"]),
                Route("/fill-mask", Endpoint(self, self.fill_mask), methods=["POST"]),
                Route("/metrics", Endpoint(self, self.metrics), methods=["GET"]),
                Route("/health", Endpoint(self, self.health, open_to_all=True), methods=["GET"]),
            ],
            exception_handlers={HTTPException: no_such_path},
            lifespan=self.lifespan,
        )

    def batcher(self, compute: Callable[[list[Any]], Iterable[Any]]) -> Batcher[Any, Any]:
        """A queue in front of one kind of work."""
        service = self.service
        return Batcher(
            compute,
            self.executor,
            batch_tokens=service.batch_tokens,
            queue_tokens=service.limits.queue_tokens,
            wait=service.wait,
            computed=self.counters.computed,
        )

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """The queues run while the server does; it has no request left when it ends."""
        running = [asyncio.create_task(one.run()) for one in self.batchers]
        yield
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self.executor.shutdown()

    # -- what is asked for

    async def embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings."""
        known: Known = {"input": (str, list), "model": str, "dimensions": int, "encoding_format": str, "user": str}
        vectors, fields = self.service.vectors, await read_object(request, self.limits, known)
        if "model" not in fields:
            raise Refused(400, f"model is missing; it is {vectors.name!r}", "model")
        self.check_model(fields, vectors.name)
        dimensions, encoding = fields.get("dimensions"), fields.get("encoding_format", "float")
        if encoding not in ("float", "base64"):
            raise Refused(400, "encoding_format is neither 'float' nor 'base64'", "encoding_format")
        vectors.check_dimensions(dimensions)
        texts = read_input(fields.get("input"), self.limits, ids=True)
        prepared = await self.prepared(vectors.prepare, texts)
        found = vectors.finished(np.stack(await self.answers(self.vectors, prepared, request)), dimensions)
        rows = [{"embedding": embedding(vector, encoding == "base64")} for vector in found]
        return reply(listing(vectors.name, "embedding", rows, usage_of(prepared)))

    async def classify(self, request: Request) -> Response:
        """POST /classify."""
        labels, batcher = self.service.labels, self.labels
        if labels is None or batcher is None:
            raise Refused(404, "this server has no classifier; start it with --classifier FOLDER", code="not_served")
        fields = await read_object(request, self.limits, {"input": (str, list), "model": str})
        self.check_model(fields, labels.name)
        given = fields.get("input")
        pairs = holds_lists(given) if labels.pairs is None else labels.pairs
        prepared = await self.prepared(labels.prepare, read_input(given, self.limits, pairs=pairs))
        found = await self.answers(batcher, prepared, request)
        return reply(listing(labels.name, "label", found, usage_of(prepared)))

    async def fill_mask(self, request: Request) -> Response:
        """POST /fill-mask."""
        masks, batcher = self.service.masks, self.masks
        if masks is None or batcher is None:
            raise Refused(
                404, "the model of this server was saved without the head 'masked-lm', which guesses", code="not_served"
            )
        fields = await read_object(request, self.limits, {"input": (str, list), "model": str, "top_k": int})
        self.check_model(fields, masks.name)
        prepare = partial(masks.prepare, top_k=fields.get("top_k", 5))
        prepared = await self.prepared(prepare, read_input(fields.get("input"), self.limits))
        found = await self.answers(batcher, prepared, request)
        return reply(listing(masks.name, "masks", found, usage_of(prepared)))

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        return reply({"object": "list", "data": [described(name) for name in self.service.names]})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""
        name = request.path_params["name"]
        if name not in self.service.names:
            raise self.no_such_model(name)
        return reply(described(name))

    async def health(self, request: Request) -> Response:
        """GET /health, which asks for no key."""
        return reply({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """GET /metrics."""
        return Response(self.counters.page(), media_type=CONTENT_TYPE_LATEST)

    # -- how it is answered

    def check_model(self, fields: dict[str, Any], name: str) -> None:
        """Raise Refused, 404, where a request asks for another model than that of its path."""
        if fields.get("model", name) != name:
            raise self.no_such_model(fields["model"])

    def no_such_model(self, name: str) -> Refused:
        """As OpenAI says it."""
        known = ", ".join(self.service.names)
        return Refused(404, f"the model {name[:80]!r} is not served here; {known} is", "model", "model_not_found")

    async def prepared(self, prepare: Callable[[Any], Prepared[Any]], texts: Sequence[Any]) -> Prepared[Any]:
        """Texts as items, long ones made in a thread. Raises Refused, 422, for the row with a token too many."""
        if sum(map(len, texts)) <= INLINE:
            prepared = prepare(texts)
        else:
            prepared = await asyncio.to_thread(prepare, texts)
        tokens = np.cumsum(prepared.tokens)
        if tokens[-1] > self.limits.tokens:
            raise too_many_tokens(int(np.argmax(tokens > self.limits.tokens)), self.limits.tokens)
        return prepared

    async def answers(self, batcher: Batcher[Any, Any], prepared: Prepared[Any], request: Request) -> list[Any]:
        """What is computed. Raises ClientDisconnect where nobody waits any more, Refused, 429, for a full queue."""
        try:
            answer = batcher.submit(prepared.items, prepared.tokens)
        except QueueFullError as error:
            raise too_busy(error.seconds) from None
        gone = asyncio.create_task(hung_up(request))
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                self.counters.dropped.inc()
                raise ClientDisconnect
            return answer.result()
        finally:
            answer.cancel()
            gone.cancel()


class Endpoint:
    """A path with all that stands around its handler: the key, errors as bodies, and the counting."""

    def __init__(self, server: Server, handler: Handler, *, open_to_all: bool = False) -> None:
        self.server, self.handler, self.counters = server, handler, server.counters
        key = None if open_to_all else server.service.api_key
        self.key = None if key is None else digest(key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        began, request, path = time.perf_counter(), Request(scope, receive), self.handler.__name__
        counted = scope["method"] == "POST"
        self.server.open += counted
        try:
            response = await self.answer(request)
            await response(scope, receive, send)
            self.counters.answered(path, response.status_code, time.perf_counter() - began)
        except ClientDisconnect:
            return
        finally:
            self.server.open -= counted

    async def answer(self, request: Request) -> Response:
        """What the handler says, or why it says nothing."""
        try:
            self.check_key(request)
            if self.server.open > self.server.limits.requests:
                raise too_busy(1)
            return await self.handler(request)
        except Refused as refused:
            return refusal(refused)
        except ClientDisconnect:
            raise
        except Exception as error:  # of ours, or of the machine: the client is told so, and others are not disturbed
            print(f"minibert: error: {request.url.path}: {type(error).__name__}", file=sys.stderr, flush=True)
            return refusal(Refused(500, f"the server failed ({type(error).__name__}); this is not your fault"))

    def check_key(self, request: Request) -> None:
        """Raise Refused, 401, without the key; compared in the same time whatever was given."""
        if self.key is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(digest(given.strip().encode("latin-1")), self.key)
        if not right or scheme.lower() != "bearer":
            refused = Refused(401, "the API key is missing or wrong; send Authorization: Bearer KEY")
            refused.code = "invalid_api_key"
            refused.headers["WWW-Authenticate"] = "Bearer"
            raise refused


async def hung_up(request: Request) -> None:
    """Until the client has gone away; the body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def digest(key: bytes) -> bytes:
    """Of equal length, so that the comparison does not tell that of the key."""
    return hashlib.sha256(key).digest()


def reply(body: object) -> Response:
    """200 with JSON."""
    return Response(to_json(body), media_type="application/json")


def refusal(refused: Refused) -> Response:
    """The status and the error body."""
    return Response(to_json(refused.body), refused.status, refused.headers, "application/json")


async def no_such_path(request: Request, error: Exception) -> Response:
    """404 and 405 as OpenAI has them."""
    assert isinstance(error, HTTPException)
    refused = Refused(error.status_code, f"{error.detail}: see GET /v1/models, POST /v1/embeddings, POST /classify")
    refused.headers.update(error.headers or {})
    return refusal(refused)


def described(name: str) -> dict[str, object]:
    """A model as OpenAI lists it."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "minibert"}


def usage_of(prepared: Prepared[Any]) -> Usage:
    """What was read."""
    return Usage(sum(prepared.tokens), prepared.truncated)
