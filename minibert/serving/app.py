"""The application: paths, what guards them, and how each is answered. See the package's docstring for the API.

    key -> fields -> texts -> items -> the queue -> answers -> JSON

A request that is wrong, too large or not permitted is refused as early as possible; nothing of it reaches the queue.
"""

import asyncio
import hmac
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from threading import Thread
from typing import Any

import msgspec
import numpy as np
import uvicorn
from httptools import HttpParserError, HttpParserUpgrade
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
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from minibert.serving import ServerSettings
from minibert.serving.batcher import Batcher
from minibert.serving.models import FrozenLabels, Masks, RequestError, TaskLabels, Vectors, read_body, rows_of_input
from minibert.utils.printing import note

INLINE = 4_000  # characters that are tokenized at once, in a millisecond; more of them in a thread of their own
DISCARDED = 256 << 20  # bytes of a refused request that are read, because most clients send all before they read


class Metrics:
    """The numbers of GET /metrics, for Prometheus: counts of requests, texts and tokens, never a text."""

    def __init__(self, queue_tokens: Callable[[], float]) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)  # memory, processor seconds, open files
        self.requests = Histogram("minibert_request_seconds", "Requests", ["path", "status"], registry=registry)
        self.texts = Counter("minibert_texts", "Texts computed", registry=registry)
        self.batches = Histogram(
            "minibert_batch_tokens",
            "Tokens of a batch",
            buckets=(16, 64, 128, 256, 512, 768, 1024, 4096, 16384),
            registry=registry,
        )
        self.dropped = Counter("minibert_dropped", "Requests whose client disconnected", registry=registry)
        self.queue = Gauge("minibert_queue_tokens", "Tokens of requests not yet answered", registry=registry)
        self.queue.set_function(queue_tokens)

    def computed(self, texts: int, tokens: int) -> None:
        """Count a batch."""
        self.texts.inc(texts)
        self.batches.observe(tokens)


class Server:
    """What one server offers: models, limits, the key that requests must have, and `app`, the ASGI application.

    Each model has a queue; one thread computes for all of them.
    """

    def __init__(
        self,
        vectors: Vectors,
        labels: FrozenLabels | TaskLabels | None = None,
        masks: Masks | None = None,
        settings: ServerSettings = ServerSettings(),  # noqa: B008  # it is frozen
        api_key: str | None = None,
    ) -> None:
        self.settings = settings
        self.api_key = api_key
        self.vectors = vectors
        self.models: dict[str, Any] = {"/v1/embeddings": vectors, "/classify": labels, "/fill-mask": masks}
        self.offers = [path for path, model in self.models.items() if model]
        self.names = list(dict.fromkeys(model.name for model in (vectors, labels) if model))
        self.batchers: dict[str, Batcher] = {}
        self.metrics = Metrics(lambda: sum(batcher.tokens for batcher in self.batchers.values()))
        paths: list[tuple[str, str, Any]] = [
            *(("POST", path, self.answer) for path in self.models),
            ("GET", "/v1/models", self.list_models),
            ("GET", "/v1/models/{name:path}", self.list_models),
            ("GET", "/metrics", self.page),
            ("GET", "/health", self.health),
        ]
        self.app = Starlette(
            routes=[Route(path, partial(self.handle, path, work), methods=[how]) for how, path, work in paths],
            exception_handlers={HTTPException: self.refusal},
            lifespan=self.lifespan,
        )
        self.app.router.redirect_slashes = False  # /classify/ is 404 with a body, as every path that is not there

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Run the queues while the server runs; no request is left when it ends."""
        settings = self.settings
        executor = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self.batchers = {
            path: Batcher(
                self.models[path].compute,
                executor,
                batch_tokens=settings.batch_tokens or 1024,
                queue_tokens=max(settings.max_queue, settings.max_tokens),
                wait=settings.wait_ms / 1000,
                computed=self.metrics.computed,
            )
            for path in self.offers
        }
        tasks = [asyncio.create_task(batcher.run()) for batcher in self.batchers.values()]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        executor.shutdown()

    # -- the paths

    async def answer(self, request: Request) -> Response:
        """Return the results of a model, and the usage as OpenAI has it, with `truncated_texts` if any were cut.

        Raises RequestError: 404 for a model that is not served, 422 for too many tokens, 429 for a full queue, and what
        read_body, texts_of and `prepare` raise; ClientDisconnect when the client disconnects.
        """
        path = request.url.path
        model = self.models[path]
        if model is None:
            raise RequestError(404, f"{path} is not served here; {', '.join(self.offers)} are", code="not_served")
        body = await read_body(request, model.body, self.settings)
        self.check_model(body.model, model.name)
        rows = rows_of_input(body.input, self.settings)
        inline = sum(map(len, rows)) <= INLINE
        items, tokens, cut = model.prepare(rows, body) if inline else await asyncio.to_thread(model.prepare, rows, body)
        totals = np.cumsum(tokens)
        if totals[-1] > (most := self.settings.max_tokens):
            row = np.argmax(totals > most)
            raise RequestError(422, f"row {row} has one token too many: a request may have {most:,}", "input")
        try:
            future = self.batchers[path].submit(items, tokens)
        except asyncio.QueueFull:
            raise RequestError(429, "too many texts are waiting; try again later", code="queue_full") from None
        results = model.finish(await while_connected(request, future), body)
        data = [{"object": model.kind, "index": number, **row} for number, row in enumerate(results)]
        usage = {"prompt_tokens": sum(tokens), "total_tokens": sum(tokens)} | ({"truncated_texts": cut} if cut else {})
        return reply({"object": "list", "model": model.name, "data": data, "usage": usage})

    async def list_models(self, request: Request) -> Response:
        """Answer GET /v1/models, all or by name."""
        name = request.path_params.get("name")
        self.check_model(name, *self.names)
        data = [{"id": served, "object": "model", "created": 0, "owned_by": "minibert"} for served in self.names]
        return reply({"object": "list", "data": data} if name is None else data[self.names.index(name)])

    async def health(self, request: Request) -> Response:
        """Answer GET /health, which needs no key."""
        return reply({"status": "ok"})

    async def page(self, request: Request) -> Response:
        """Answer GET /metrics."""
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    # -- around them

    async def handle(self, path: str, work: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
        """Return the response of a path, or its error as a body; counted under the path."""
        began = time.perf_counter()
        try:
            given = request.headers.get("authorization", "").encode()
            key_needed = self.api_key is not None and path != "/health"
            if key_needed and not hmac.compare_digest(given, f"Bearer {self.api_key}".encode()):  # in constant time
                raise RequestError(
                    401, "the API key is missing or wrong; send Authorization: Bearer KEY", code="invalid_api_key"
                )
            response = await work(request)
        except RequestError as error:
            response = await self.refusal(request, error)
        except ClientDisconnect:
            self.metrics.dropped.inc()
            return Response(status_code=499)
        except Exception as error:  # the log names its type, never a text
            note(f"{path}: {type(error).__name__}")
            response = await self.refusal(request, RequestError(500, "the server failed; see its log"))
        self.metrics.requests.labels(path, str(response.status_code)).observe(time.perf_counter() - began)
        return response

    def check_model(self, name: str | None, *served: str) -> None:
        """Raise RequestError, 404, for another model."""
        if name is not None and name not in served:
            raise RequestError(
                404,
                f"the model {name[:80]!r} is not served here; choose from {', '.join(self.names)}",
                "model",
                "model_not_found",
            )

    async def refusal(self, request: Request, error: Any) -> Response:
        """Return the status, and the error as OpenAI's clients read it; also for Starlette's own 404 and 405.

        What the client still sends is read first: a connection that closes over unread bytes takes the answer with it.
        """
        status = error.status_code
        if status != 408 and "expect" not in request.headers:  # that client waits for the answer
            with suppress(TimeoutError, ClientDisconnect, RuntimeError):  # RuntimeError: the body was read to its end
                async with asyncio.timeout(self.settings.timeout):
                    left = DISCARDED
                    async for part in request.stream():
                        if (left := left - len(part)) < 0:
                            break
        param = getattr(error, "param", None)
        code = getattr(error, "code", None)
        kind = {429: "rate_limit_error", 500: "server_error"}.get(status, "invalid_request_error")
        message = error.detail
        if status == 404 and not isinstance(error, RequestError):
            message = f"no such path; POST {', '.join(self.offers)} and GET /v1/models, /health, /metrics exist"
        content = {"error": {"message": message, "type": kind, "param": param, "code": code}}
        headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}.get(status, error.headers)
        return Response(msgspec.json.encode(content), status, headers, "application/json")


async def while_connected(request: Request, future: asyncio.Future[list[Any]]) -> list[Any]:
    """Return the results of a future. Raises ClientDisconnect, and cancels the future, when the client disconnects."""

    async def disconnected() -> None:  # the body was read before
        while (await request.receive())["type"] != "http.disconnect":
            pass

    gone = asyncio.create_task(disconnected())
    gone.add_done_callback(lambda _: future.cancel())
    try:
        return await future
    except asyncio.CancelledError:
        raise ClientDisconnect from None
    finally:
        gone.cancel()


def reply(body: object) -> Response:
    """Return 200 with JSON."""
    return Response(msgspec.json.encode(body), media_type="application/json")


# ---------------------------------------------------------------------------------------------------------------
# Served


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens, opened before anything is loaded. Raises ValueError if that is not possible."""
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
    except OSError as error:
        raise ValueError(f"--port {port} of --host {host} cannot be used: {error.strerror}") from None


def call_in_thread(function: Callable[[], Any]) -> Any:
    """Return what a function returns, called in a thread that ends then: so models are loaded.

    OpenMP gives each thread that computes a team of its own, for as long as the thread lives. If the main thread had
    one beside the thread that computes the batches, there would be more OpenMP threads than cores, and GNU's library
    then lets them sleep between two products: a short text takes 1.5 times as long.
    """
    future: Future[Any] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    thread = Thread(target=call, daemon=True)  # Ctrl-C does not wait for a download
    thread.start()
    result = future.result()
    thread.join()
    return result


class HTTP(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, in which a request that offers to change to another protocol, such as h2c, has its body.

    httptools reads no body after an Upgrade header, so the head of such a request is parsed again without that header.
    """

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived."""
        self._unset_keepalive_if_required()
        try:
            while True:
                try:
                    return self.parser.feed_data(data)
                except HttpParserUpgrade as upgrade:
                    if not self._should_upgrade():
                        return
                    parser = self.parser
                    head = [b"%b %b HTTP/%b" % (parser.get_method(), self.url, parser.get_http_version().encode())]
                    head += [b"%b: %b" % (name, value) for name, value in self.headers if name != b"upgrade"]
                    data = b"\r\n".join([*head, b"", data[upgrade.args[0] :]])
        except HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _should_upgrade(self) -> bool:
        return b"upgrade" in dict(self.headers)  # if so, uvicorn waits with a request whose parser says the same


def serve(server: Server, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT, then answer what has arrived."""
    config = uvicorn.Config(
        server.app,
        http=HTTP,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="error",  # its warnings are of clients that do not speak HTTP
        access_log=False,
        server_header=False,
        limit_concurrency=server.settings.max_requests,
        timeout_keep_alive=75,  # seconds between two requests of a connection
        timeout_graceful_shutdown=300,  # seconds for requests in progress after SIGTERM
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # uvicorn raises the signal again at its end, which is no failure here
    uvicorn.Server(config).run(sockets=[listener])
