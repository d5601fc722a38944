"""The application: paths, what guards them, and how each is answered. See the package's docstring for the API.

    key -> fields -> texts -> items -> the queue -> answers -> JSON

A request that is wrong, too large or not permitted is refused as early as possible; nothing of it reaches the queue.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import hmac
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
import uvicorn
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from minibert.serving.batcher import Batcher
from minibert.serving.models import FrozenLabels, Masks, TunedLabels, Vectors
from minibert.serving.requests import RequestError, read_body, row_error, rows_of
from minibert.serving.settings import ServerSettings

INLINE = 4_000  # characters that are tokenized at once, in a millisecond; more of them in a thread of their own
KEEP_ALIVE = 75  # seconds that a connection may be idle between two requests
DRAIN = 300  # seconds that requests in progress have after SIGTERM
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
TOKENS = (16, 64, 128, 256, 512, 768, 1024, 4096, 16384)


@dataclass
class Service:
    """What one server has to offer, and how."""

    vectors: Vectors
    labels: FrozenLabels | TunedLabels | None = None
    masks: Masks | None = None
    settings: ServerSettings = ServerSettings()  # noqa: RUF009  # it is frozen
    api_key: str | None = None

    @property
    def names(self) -> list[str]:
        """The names of the models, as requests give them."""
        return list(dict.fromkeys(one.name for one in (self.vectors, self.labels) if one is not None))


class Metrics:
    """The numbers of GET /metrics, for Prometheus: counts of requests, texts and tokens, never a text."""

    def __init__(self, queue_tokens: Callable[[], float]) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)  # memory, processor seconds, open files
        self.requests = Counter("minibert_requests", "Requests", ["path", "status"], registry=registry)
        self.seconds = Histogram("minibert_request_seconds", "Seconds", ["path"], buckets=SECONDS, registry=registry)
        self.texts = Counter("minibert_texts", "Texts computed", registry=registry)
        self.tokens = Counter("minibert_tokens", "Tokens computed", registry=registry)
        self.busy = Counter("minibert_computing_seconds", "Seconds in which batches were computed", registry=registry)
        self.batches = Histogram("minibert_batch_tokens", "Tokens of a batch", buckets=TOKENS, registry=registry)
        self.dropped = Counter("minibert_dropped", "Requests whose client disconnected", registry=registry)
        waiting = Gauge("minibert_queue_tokens", "Tokens of requests not yet answered", registry=registry)
        waiting.set_function(queue_tokens)

    def computed(self, texts: int, tokens: int, seconds: float) -> None:
        """Count a batch."""
        self.texts.inc(texts)
        self.tokens.inc(tokens)
        self.busy.inc(seconds)
        self.batches.observe(tokens)

    def total(self, name: str) -> int:
        """The value of a counter, such as "texts"."""
        return int(self.registry.get_sample_value(f"minibert_{name}_total") or 0)


class Server:
    """The state of an application: its queues, one for each model, in front of one thread that computes."""

    def __init__(self, service: Service) -> None:
        self.service, self.settings = service, service.settings
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self.metrics = Metrics(lambda: sum(batcher.tokens for batcher in self.batchers.values()))
        vectors, labels, masks = service.vectors, service.labels, service.masks
        self.batchers: dict[Any, Batcher[Any, Any]] = {
            model: Batcher(
                model.compute,
                self.executor,
                batch_tokens=self.settings.batch_tokens or 1024,
                queue_tokens=self.settings.max_queue,
                wait=self.settings.wait_ms / 1000,
                computed=self.metrics.computed,
            )
            for model in (vectors, labels, masks)
            if model is not None
        }
        hint = "start the server with --classifier FOLDER"
        paths: list[tuple[str, str, str, Any]] = [
            ("POST", "/v1/embeddings", "embeddings", partial(self.answer, vectors, "")),
            ("POST", "/classify", "classify", partial(self.answer, labels, hint)),
            ("POST", "/fill-mask", "fill_mask", partial(self.answer, masks, "its model has no head 'masked-lm'")),
            ("GET", "/v1/models", "models", self.models),
            ("GET", "/v1/models/{name:path}", "model", self.models),
            ("GET", "/metrics", "metrics", self.page),
            ("GET", "/health", "health", self.health),
        ]
        self.app = Starlette(
            routes=[Route(path, partial(self.handle, name, work), methods=[how]) for how, path, name, work in paths],
            exception_handlers={HTTPException: no_such_path},
            lifespan=self.lifespan,
        )

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """The queues run while the server does; no request is left when it ends."""
        tasks = [asyncio.create_task(batcher.run()) for batcher in self.batchers.values()]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.executor.shutdown()

    # -- the paths

    async def answer(self, model: Any, hint: str, request: Request) -> Response:
        """The answers of a model, and the usage as OpenAI has it, with `truncated_texts` if any were cut.

        Raises RequestError: 404 for a model that is not served, 422 for too many tokens, 429 for a full queue, and what
        read_body, rows_of and `prepare` raise; ClientDisconnect when the client disconnects.
        """
        if model is None:
            raise RequestError(404, f"{request.url.path} is not served here; {hint}", code="not_served")
        body = await read_body(request, model.body, self.settings)
        self.check_model(body.model, model.name)
        rows = rows_of(body.input, self.settings)
        inline = sum(map(len, rows)) <= INLINE
        items, tokens, cut = model.prepare(rows, body) if inline else await asyncio.to_thread(model.prepare, rows, body)
        totals = np.cumsum(tokens)
        if totals[-1] > (most := self.settings.max_tokens):
            raise row_error(int(np.argmax(totals > most)), f"has one token too many: a request may have {most:,}")
        answers = model.finish(await self.computed(model, items, tokens, request), body)
        data = [{"object": model.kind, "index": number, **row} for number, row in enumerate(answers)]
        usage = {"prompt_tokens": sum(tokens), "total_tokens": sum(tokens)} | ({"truncated_texts": cut} if cut else {})
        return reply({"object": "list", "model": model.name, "data": data, "usage": usage})

    async def computed(self, model: Any, items: list[Any], tokens: list[int], request: Request) -> list[Any]:
        """The answers to items; see answer."""
        try:
            answer = self.batchers[model].submit(items, tokens)
        except asyncio.QueueFull:
            raise RequestError(429, "too many texts are waiting; try again later", code="queue_full") from None
        gone = asyncio.create_task(disconnected(request))
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ClientDisconnect
            return answer.result()
        finally:
            answer.cancel()
            gone.cancel()

    async def models(self, request: Request) -> Response:
        """GET /v1/models, all or by name."""
        name, names = request.path_params.get("name"), self.service.names
        self.check_model(name, *names)
        data = [
            {"id": one, "object": "model", "created": 0, "owned_by": "minibert"} for one in names if name in (None, one)
        ]
        return reply({"object": "list", "data": data} if name is None else data[0])

    async def health(self, request: Request) -> Response:
        """GET /health, which needs no key."""
        return reply({"status": "ok"})

    async def page(self, request: Request) -> Response:
        """GET /metrics."""
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    # -- around them

    async def handle(self, name: str, work: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
        """The response of a path, or its error as a body; counted under the name."""
        began = time.perf_counter()
        try:
            if name != "health":
                self.check_key(request.headers.get("authorization", ""))
            response = await work(request)
        except RequestError as error:
            response = refusal(error)
        except ClientDisconnect:
            self.metrics.dropped.inc()
            return Response(status_code=499)
        except Exception as error:  # the log names its type, never a text
            print(f"minibert: {name}: {type(error).__name__}", file=sys.stderr)
            response = refusal(RequestError(500, "the server failed; see its log"))
        self.metrics.requests.labels(name, str(response.status_code)).inc()
        self.metrics.seconds.labels(name).observe(time.perf_counter() - began)
        return response

    def check_key(self, given: str) -> None:
        """Raise RequestError, 401, for a header without the key; hashes are compared, in constant time."""
        digests = [hashlib.sha256(key.encode()).digest() for key in (given, f"Bearer {self.service.api_key}")]
        if self.service.api_key is not None and not hmac.compare_digest(*digests):
            message = "the API key is missing or wrong; send Authorization: Bearer KEY"
            raise RequestError(401, message, code="invalid_api_key")

    def check_model(self, name: str | None, *served: str) -> None:
        """Raise RequestError, 404, for another model."""
        if name is not None and name not in served:
            message = f"the model {name[:80]!r} is not served here; {', '.join(self.service.names)} is"
            raise RequestError(404, message, "model", "model_not_found")


async def disconnected(request: Request) -> None:
    """Return when the client has disconnected; the body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def reply(body: object) -> Response:
    """200 with JSON."""
    return Response(msgspec.json.encode(body), media_type="application/json")


def refusal(error: RequestError) -> Response:
    """The status and the error body."""
    headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}.get(error.status)
    return Response(msgspec.json.encode(error.body), error.status, headers, "application/json")


async def no_such_path(request: Request, error: Exception) -> Response:
    """404 and 405 as OpenAI has them."""
    assert isinstance(error, HTTPException)
    response = refusal(RequestError(error.status_code, f"{error.detail}: see POST /v1/embeddings, GET /v1/models"))
    response.headers.update(error.headers or {})
    return response


# ---------------------------------------------------------------------------------------------------------------
# Served


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, opened before anything is loaded. Raises ValueError if that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        raise ValueError(f"port {port} of {host} {why}; choose others with --port and --host") from None


def serve(service: Service, listener: socket.socket) -> Server:
    """Serve until SIGTERM or SIGINT, then answer what has arrived. Raises RuntimeError if it cannot start."""
    server = Server(service)
    config = uvicorn.Config(
        server.app,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="error",  # its warnings are of clients that speak no HTTP
        access_log=False,
        server_header=False,
        limit_concurrency=service.settings.max_requests,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=DRAIN,
    )
    # uvicorn raises the signal again when it has ended; for this process that is no failure.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    runner = uvicorn.Server(config)
    runner.run(sockets=[listener])
    for number, handler in before.items():
        signal.signal(number, handler)
    if not runner.started:
        raise RuntimeError("the server did not start")
    return server
