"""The server: uvicorn, with an end to its patience, and an end that finishes what was begun.

uvicorn itself waits without end for the head of a request, for its body, and for a client that does not read.
"""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from minibert.serving.app import Server, Service
from minibert.serving.bodies import to_json
from minibert.serving.limits import Limits, Refused

KEEP_ALIVE = 75  # seconds that a connection may rest between two requests
BACKLOG = 2048  # connections that wait to be taken
PHRASES = {408: "Request Timeout", 431: "Request Header Fields Too Large"}


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, before anything is loaded. Raises ValueError where it cannot be had."""
    if not 0 <= port <= 65535:
        raise ValueError(f"--port is {port}; it must be from 0 (any that is free) to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ValueError(f"--host is {host!r}, which is no address of this machine: {error.strerror}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not the port of a server that has just ended
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ValueError(f"port {port} of {host} is in use; choose another one with --port") from None
        raise ValueError(f"{host}:{port} cannot be listened to: {error.strerror}; see --host and --port") from None
    return listener


def serve(service: Service, listener: socket.socket) -> Server:
    """Serve until SIGTERM or SIGINT, then answer what has arrived. Raises RuntimeError where it cannot begin."""
    application = Server(service)
    config = uvicorn.Config(
        application.app,
        http=partial(TimedProtocol, limits=service.limits),  # type: ignore[arg-type]  # it asks for a class, and calls it
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="error",  # its warnings are of clients that speak no HTTP
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        backlog=BACKLOG,
    )
    server = PatientServer(config)
    server.run(sockets=[listener])
    if not server.started:
        raise RuntimeError("the server did not start")
    return application


class PatientServer(uvicorn.Server):
    """Finishes what is in flight when it is asked to end, and then returns; asked twice by Ctrl-C, it ends at once."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn does, but for the signal at the end: to have been asked to end is no failure."""
        before = {number: signal.signal(number, self.end) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def end(self, number: int, frame: FrameType | None) -> None:
        """Take no new connections; the main loop, which looks every tenth of a second, does the rest."""
        self.force_exit = self.should_exit and number == signal.SIGINT
        self.should_exit = True


class TimedProtocol(HttpToolsProtocol):
    """One connection, on which nothing may take longer than the limits say, nor have a longer head."""

    def __init__(self, *given: Any, limits: Limits, **more: Any) -> None:
        super().__init__(*given, **more)
        self.limits = limits
        self.reading: asyncio.TimerHandle | None = None  # ends the wait for what the client has still to send
        self.writing: asyncio.TimerHandle | None = None  # ends the wait for a client to read
        self.in_head, self.begun, self.head_bytes = True, False, 0

    # -- what a client sends

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn narrows it too
        """The first request is awaited."""
        super().connection_made(transport)
        self._expect_more()

    def data_received(self, data: bytes) -> None:
        """Some bytes of it."""
        self.begun = False
        super().data_received(data)
        if self.in_head and not self.begun:  # else some of these bytes may be of the request before
            self.head_bytes += len(data)
        if self.head_bytes > self.limits.head_bytes:
            self._refuse(431, f"the head of a request may have {self.limits.head_bytes:,} bytes")

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.in_head, self.begun, self.head_bytes = True, True, 0
        self._expect_more()

    def on_headers_complete(self) -> None:
        """Its head is here, and its body is awaited."""
        self.in_head = False
        super().on_headers_complete()
        self._expect_more()

    def on_message_complete(self) -> None:
        """All of it is here."""
        super().on_message_complete()
        self._expect_nothing()

    def _expect_more(self) -> None:
        self._expect_nothing()
        self.reading = self.loop.call_later(self.limits.timeout, self._give_up)

    def _expect_nothing(self) -> None:
        if self.reading is not None:
            self.reading.cancel()

    def _give_up(self) -> None:
        """The client was too slow, unless it was this server that stopped reading."""
        if self.flow is not None and self.flow.read_paused:
            self._expect_more()
        else:
            self._refuse(408, f"the request was not here after {self.limits.timeout:g} seconds")

    def _refuse(self, status: int, message: str) -> None:
        """Say why, where an answer to something else has not begun, and hang up."""
        cycle = self.cycle
        begun = cycle is not None and (not cycle.response_complete if self.in_head else cycle.response_started)
        if not begun and not self.transport.is_closing():
            body = to_json(Refused(status, message).body)
            head = f"HTTP/1.1 {status} {PHRASES[status]}\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()

    # -- what it is sent

    def pause_writing(self) -> None:
        """The client does not read, and what is to be sent to it piles up."""
        super().pause_writing()
        self.writing = self.loop.call_later(self.limits.timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        if self.writing is not None:
            self.writing.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._expect_nothing()
        if self.writing is not None:
            self.writing.cancel()
        super().connection_lost(exc)
