"""Serving: `minibert serve` and infinity-emb answer 1, 8 and 64 clients that request vectors over HTTP.

Each contestant's process starts its server as a process of its own, with the same checkpoint, pooling and threads, and
then plays the clients: each sends a request, reads the answer and sends the next one. Requests are encoded beforehand
and answers are not decoded, so that the server is measured. The soak puts minibert alone under full load for minutes
and records its memory. infinity-emb needs an environment of its own; --infinity names the program infinity_emb in it.
"""

import asyncio
import atexit
import importlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from minibert.bench import embedding, peers
from minibert.bench.harness import BenchResult, Contestant, Context, Row, Session
from minibert.bench.settings import Settings
from minibert.utils.printing import progress_bar

MODEL = "checkpoint"  # its name in requests
READY = 180  # seconds within which a server must answer
CLIENTS = (1, 8, 64)
SECONDS = {"quick": 2.0, "default": 8.0}  # of a turn
CHECKED = 64  # texts whose vectors are compared before anything is timed
SMALLEST_COSINE = 0.9999  # infinity may normalise its vectors: directions are compared
LARGEST_DIFFERENCE = 1e-5  # of our own, in float32
PARTS, MEMORY = 10, 0.05  # of a soak, and by how much the peak memory of the last may differ from that of the first
MINIBERT = [
    *(sys.executable, "-m", "minibert", "serve", "--model", "{folder}", "--port", "{port}"),
    *("--pooling", "mean", "--name", MODEL),
]
INFINITY = [
    *("v2", "--model-id", ".", "--served-model-name", MODEL, "--url-prefix", "/v1"),
    *("--host", "127.0.0.1", "--port", "{port}"),
]


def request_of(port: int, text: str, model: str = MODEL, encoding: str = "base64") -> bytes:
    """A whole HTTP request for the vector of a text."""
    body = json.dumps({"model": model, "input": text, "encoding_format": encoding}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status and the body of an HTTP answer with a content-length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = int(head.partition("content-length:")[2].partition("\r\n")[0])
    return int(head.split(" ", 2)[1]), await reader.readexactly(length)


async def client(
    port: int, requests: Iterable[bytes], end: float = float("inf"), read: Callable[[bytes], Any] = len
) -> list[tuple[float, int, Any]]:
    """Send requests one after the other until a time. Returns seconds, status and read(body) of each answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = []
    for request in requests:
        if (began := time.perf_counter()) >= end:
            break
        writer.write(request)
        status, body = await answer_of(reader)
        found.append((time.perf_counter() - began, status, read(body)))
    writer.close()
    return found


async def all_clients(port: int, texts: Sequence[str], clients: int, seconds: float) -> tuple[list[float], int]:
    """Clients at once, each starting with a text of its own. Returns the seconds of each request, and the errors."""
    requests, end = [request_of(port, text) for text in texts], time.perf_counter() + seconds
    starts = [islice(cycle(requests), number * 31 % len(requests), None) for number in range(clients)]
    found = await asyncio.gather(*(client(port, start, end) for start in starts))
    answers = [answer for each in found for answer in each]
    return [took for took, _, _ in answers], sum(status != 200 for _, status, _ in answers)


class ServerProcess:
    """A running server. Raises RuntimeError, with the last line that it printed, if it does not become ready."""

    def __init__(self, context: Context, command: Sequence[str], name: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        values = {"folder": context.folder, "port": self.port}
        log, end = context.scratch / f"{name}.log", time.monotonic() + READY
        with log.open("wb") as out:
            parts = [part.format(**values) for part in command]
            self.process = subprocess.Popen(parts, cwd=context.folder, stdout=out, stderr=out)
        atexit.register(self.process.kill)
        self.pid = self.process.pid
        while self.process.poll() is None and time.monotonic() < end:
            try:
                self(["a"])
                return
            except OSError:
                time.sleep(0.2)
        last = log.read_text("utf-8", "replace").strip().rpartition("\n")[2]
        raise RuntimeError(f"ended with status {self.process.poll()}: {last}")

    def __call__(self, texts: Sequence[str], clients: int = 0, seconds: float = 0.0) -> Any:
        """The traffic of some clients; of none, the vectors, (N,D)."""
        if clients:
            return asyncio.run(all_clients(self.port, texts, clients, seconds))
        requests = [request_of(self.port, text, encoding="float") for text in texts]
        answers = asyncio.run(client(self.port, requests, read=json.loads))
        return np.array([answer["data"][0]["embedding"] for _, _, answer in answers], np.float32)


def load_server(context: Context, precision: str, command: Sequence[str], name: str) -> peers.Loaded:
    """A server that is ready; it ends with this process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that atexit ends the server
    return ServerProcess(context, command, name), name


def contestants_for(infinity: str, device: str) -> list[Contestant]:
    """minibert, and infinity-emb with each of its engines, if its program is given.

    On a GPU in bfloat16, but for ONNX Runtime, whose file is in float32.
    """
    start, precision = (
        [infinity, *INFINITY, "--device", device, "--engine"],
        "float32" if device == "cpu" else "bfloat16",
    )
    commands = [
        ("minibert", "minibert serve", precision, [*MINIBERT, "--device", device, "--precision", precision]),
        ("infinity-torch", "infinity-emb, torch", precision, [*start, "torch", "--dtype", precision]),
        ("infinity-onnx", "infinity-emb, ONNX Runtime", "float32", [*start, "optimum", "--pooling-method", "mean"]),
    ]
    return [
        Contestant(name, title, dtype, partial(load_server, command=command, name=name), name.partition("-")[0])
        for name, title, dtype, command in commands[: 3 if infinity else 1]
    ]


# ---------------------------------------------------------------------------------------------------------------
# The stages of the measurement


def prepare(model: str, scratch: Path, settings: Settings) -> Path:
    """A copy of the checkpoint, with model.onnx for infinity. Raises FileNotFoundError if its program is missing."""
    folder = Path(shutil.copytree(peers.checkpoint_folder(model, scratch), scratch / "checkpoint"))
    if settings.infinity:
        Path(settings.infinity).stat()
        importlib.import_module("minibert.checkpoints.export").export(folder, folder / "model.onnx")
    return folder


def load(session: Session) -> None:
    """Every server, its vectors compared with those of minibert.embed."""
    embedding.find_texts(session)
    some, context, result = session.work[:CHECKED], session.context, session.result
    result.rows = [
        Row(one, "serving", {"requests": 1}) for one in contestants_for(session.settings.infinity, context.device)
    ]
    session.context = replace(context, device="cpu")  # the clients'; the servers have their own
    embed = importlib.import_module("minibert.vectors.embedder").embed
    session.reference = session.call(partial(embed, some, context.folder, pooling="mean", device="cpu"))
    session.load(result.rows)
    session.turn(result.rows, some, partial(check_vectors, session))


def check_vectors(session: Session, row: Row, vectors: peers.Vectors) -> None:
    """Compare with minibert.embed; a server whose vectors differ is not ranked."""
    row.equality = embedding.compare(vectors, session.reference)
    bound = LARGEST_DIFFERENCE if row.contestant.ours and row.contestant.precision == "float32" else np.inf
    off = row.equality["difference"] > bound
    row.reason = "differs from minibert.embed" if off or row.equality["cosine"] < SMALLEST_COSINE else ""


def rounds(session: Session) -> None:
    """For each number of clients: a turn of every server, after a second of the same to warm up; last, the soak."""
    servers, settings, session.result.rows = session.result.rows, session.settings, []
    plan = [("serving", servers, clients, settings.rounds, SECONDS[settings.size]) for clients in CLIENTS]
    if settings.soak:
        plan.append(("soak", servers[:1], CLIENTS[-1], PARTS, settings.soak / PARTS))
    for job, contestants, clients, turns, seconds in plan:
        rows = [replace(row, job=job, at=clients, samples=[]) for row in contestants]
        for row in progress_bar(rows * turns, f"{job}, {clients} clients"):
            session.turn([row], session.work, counts=False, clients=clients, seconds=1.0)
            session.turn([row], session.work, summarize, clients=clients, seconds=seconds)
        session.result.rows += rows
        for row in rows:
            if row.contestant.ours:
                judge(row, session.result)


def summarize(row: Row, traffic: tuple[list[float], int]) -> None:
    """Turn the sample of a turn into that of one request."""
    latencies, errors = traffic
    p50, p99 = np.percentile(latencies, [50, 99]).tolist()
    sample, details = row.samples[-1], {"p50": p50, "p99": p99, "errors": errors}
    row.samples[-1] = replace(sample, seconds=sample.seconds / max(1, len(latencies) - errors), details=details)


def judge(row: Row, result: BenchResult) -> None:
    """An error of our server fails the run, and so does memory that grows during a soak."""
    errors = sum(sample.details["errors"] for sample in row.samples)
    growth = row.samples[-1].peak / row.samples[0].peak - 1 if row.samples else 0.0
    text = f"{errors:.0f} errors, memory {growth:+.1%} (at most {MEMORY:.0%} in a soak)"
    result.notes |= {"soak": text} if row.job == "soak" else {}
    if errors or (row.job == "soak" and abs(growth) > MEMORY):
        result.failures.append(f"{row.job}, {row.at} clients: {text}")


STAGES = (load, rounds)


def goals(settings: Settings) -> list[Any]:
    """Goal, its lower bounds in a wide and in a narrower model, and how it is measured."""
    text = "requests a second, {}, against the best of infinity-emb"
    return [
        (text.format("1 client"), 1.0, 1.0, lambda r: r.speedup("minibert", at=1)),
        (text.format("64 clients"), 1.3, 1.3, lambda r: r.speedup("minibert", at=64)),
    ]
