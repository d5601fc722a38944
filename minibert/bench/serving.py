"""Serving: `minibert serve` and infinity-emb answer 1, 8 and 64 clients that request vectors over HTTP.

Each contestant's process starts its server as a process of its own, with the same checkpoint, pooling and threads, and
then plays the clients: each sends a request, reads the answer and sends the next one. Requests are encoded beforehand
and answers are not decoded, so only the server is measured. infinity-emb needs an environment of its own; --infinity
names the program infinity_emb there.
"""

import atexit
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

import minibert
from minibert.bench import embed, peers
from minibert.bench.harness import Benchmark, Session
from minibert.bench.plan import BenchSettings
from minibert.bench.results import BenchRow, Contestant, Context
from minibert.checkpoints.export import export
from minibert.utils.printing import progress_bar

MODEL = "checkpoint"  # its name in requests
READY = 180  # seconds within which a server must answer
CLIENTS = (1, 8, 64)
CHECKED = 64  # texts whose vectors are compared before anything is timed
SMALLEST_COSINE = 0.9999  # infinity may normalise its vectors, so directions are compared
LARGEST_DIFFERENCE = 1e-5  # of our own vectors, in float32
MINIBERT = "-m minibert serve --model {folder} --port {port} --pooling mean"
INFINITY = "v2 --model-id . --url-prefix /v1 --host 127.0.0.1 --port {port}"


def body_of(text: str, encoding: str = "base64") -> bytes:
    """Return the body of a request for the vector of a text."""
    return json.dumps({"model": MODEL, "input": text, "encoding_format": encoding}).encode()


def post(connection: HTTPConnection, body: bytes) -> tuple[int, bytes]:
    """Send a request; return the status and the body of the answer."""
    connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read()


def client(port: int, bodies: Iterable[bytes], end: float) -> list[tuple[float, int]]:
    """Send requests one after the other until a time. Returns the seconds and the status of each."""
    connection = HTTPConnection("127.0.0.1", port)
    answers = []
    for body in bodies:
        began = time.perf_counter()
        if began >= end:
            break
        status, _ = post(connection, body)
        answers.append((time.perf_counter() - began, status))
    connection.close()
    return answers


def all_clients(port: int, texts: Sequence[str], clients: int, seconds: float) -> list[tuple[float, int]]:
    """Let clients send requests at the same time, each starting with another text. Returns the answers of all."""
    bodies = [body_of(text) for text in texts]
    starts = [islice(cycle(bodies), number * 31 % len(bodies), None) for number in range(clients)]
    end = time.perf_counter() + seconds
    with ThreadPoolExecutor(clients) as threads:
        answers = threads.map(lambda start: client(port, start, end), starts)
        return [answer for each in answers for answer in each]


class ServerProcess:
    """A running server. Raises RuntimeError, with the last line that it printed, if it does not become ready."""

    def __init__(self, context: Context, command: Sequence[str], name: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        parts = [part.format(folder=context.folder, port=self.port) for part in command]
        log = context.scratch / f"{name}.log"
        with log.open("wb") as out:
            self.process = subprocess.Popen(parts, cwd=context.folder, stdout=out, stderr=out)
        atexit.register(self.process.kill)
        self.pid = self.process.pid
        end = time.monotonic() + READY
        while self.process.poll() is None and time.monotonic() < end:
            try:
                self(["a"])
                return
            except OSError:
                time.sleep(0.2)
        last = log.read_text("utf-8", "replace").strip().rpartition("\n")[2]
        raise RuntimeError(f"ended with status {self.process.poll()}: {last}")

    def __call__(self, texts: Sequence[str], clients: int = 0, seconds: float = 0.0) -> Any:
        """Return the answers to some clients; for no clients the vectors, (N,D)."""
        if clients:
            return all_clients(self.port, texts, clients, seconds)
        connection = HTTPConnection("127.0.0.1", self.port)
        answers = [json.loads(post(connection, body_of(text, "float"))[1]) for text in texts]
        connection.close()
        return np.array([answer["data"][0]["embedding"] for answer in answers], np.float32)


def load_server(context: Context, precision: str, command: Sequence[str], name: str) -> peers.Loaded:
    """Return a server that is ready; it ends with this process."""
    return ServerProcess(context, command, name), name


def contestants_for(infinity: str, device: str) -> list[Contestant]:
    """Return minibert and, if its program is given, infinity-emb with each of its engines.

    On a GPU they compute in bfloat16, except ONNX Runtime, whose file is in float32.
    """
    precision = "float32" if device == "cpu" else "bfloat16"
    ours = [sys.executable, *MINIBERT.split(), "--name", MODEL, "--precision", precision]
    theirs = [infinity, *INFINITY.split(), "--served-model-name", MODEL, "--engine"]
    commands = [
        ("minibert", "minibert serve", precision, ours),
        ("infinity-torch", "infinity-emb, torch", precision, [*theirs, "torch", "--dtype", precision]),
        ("infinity-onnx", "infinity-emb, ONNX Runtime", "float32", [*theirs, "optimum", "--pooling-method", "mean"]),
    ]
    return [
        Contestant(
            name,
            title,
            dtype,
            partial(load_server, command=[*command, "--device", device], name=name),
            package=name,
        )
        for name, title, dtype, command in commands[: 3 if infinity else 1]
    ]


# ---------------------------------------------------------------------------------------------------------------
# The stages of the measurement


def prepare(model: str, scratch: Path, settings: BenchSettings) -> Path:
    """Copy the checkpoint, with model.onnx for infinity. Raises FileNotFoundError if its program is missing."""
    folder = Path(shutil.copytree(peers.checkpoint_folder(model, scratch, settings), scratch / "checkpoint"))
    if settings.infinity:
        Path(settings.infinity).stat()
        export(folder, scratch / "model.onnx")
        (scratch / "model.onnx").rename(folder / "model.onnx")  # export writes nothing into the folder that it reads
    return folder


def load(session: Session) -> None:
    """Start every server, and compare its vectors with those of minibert.embed."""
    embed.find_texts(session)
    some = session.work[:CHECKED]
    context = session.context
    session.context = replace(context, device="cpu")  # the clients'; the servers have their own
    rows = [
        BenchRow(contestant, "serving", {"requests": 1})
        for contestant in contestants_for(session.settings.infinity, context.device)
    ]
    session.result.rows = rows
    session.reference = session.call(partial(minibert.embed, some, context.folder, pooling="mean", device="cpu"))
    session.load(rows)
    session.turn(rows, some, partial(check_vectors, session))


def check_vectors(session: Session, row: BenchRow, vectors: peers.Vectors) -> None:
    """Compare with minibert.embed; a server whose vectors differ is not ranked."""
    row.equality = embed.equality(vectors, session.reference)
    bound = LARGEST_DIFFERENCE if row.contestant.ours and row.contestant.precision == "float32" else np.inf
    if row.equality.difference > bound or row.equality.cosine < SMALLEST_COSINE:
        row.reason = "differs from minibert.embed"


def rounds(session: Session) -> None:
    """For each number of clients, give every server its turns, after a second of the same traffic to warm up."""
    servers = session.result.rows
    session.result.rows = []
    seconds = 2.0 if session.settings.quick else 8.0  # of a turn
    for clients in CLIENTS:
        rows = [replace(row, at=clients, samples=[]) for row in servers]
        for row in progress_bar(rows * session.settings.rounds, f"{clients} clients"):
            session.turn([row], session.work, counts=False, clients=clients, seconds=1.0)
            session.turn([row], session.work, summarize, clients=clients, seconds=seconds)
        session.result.rows += rows


def summarize(row: BenchRow, answers: Sequence[tuple[float, int]]) -> None:
    """Make the sample of a turn the sample of one request. A server that answers with an error is not ranked."""
    seconds = [took for took, status in answers if status == 200]
    p50, p99 = np.percentile(seconds or [0.0], [50, 99]).tolist()
    sample = row.samples[-1]
    row.samples[-1] = replace(sample, seconds=sample.seconds / max(1, len(seconds)), details={"p50": p50, "p99": p99})
    if errors := len(answers) - len(seconds):
        row.reason = f"failed: {errors} of {len(answers)} answers are errors"


BENCHMARK = Benchmark(prepare, (load, rounds))
