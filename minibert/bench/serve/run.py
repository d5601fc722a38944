"""The stages of a measurement: equality first, then rounds in which each server takes a turn, by the number of clients.

The soak is the same load on minibert alone, for minutes, with an eye on its memory.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

import minibert
from minibert.bench.processes import LostError, environment
from minibert.bench.results import Middle, compare, quotient
from minibert.bench.serve.clients import Found, Load
from minibert.bench.serve.servers import MINIBERT, MODEL, Contestant, Running, infinity
from minibert.bench.session import MINILM, steps
from minibert.bench.texts import find_texts
from minibert.checkpoints import hub
from minibert.checkpoints.export import export
from minibert.text.tokenizer import load_tokenizer

CLIENTS = (1, 8, 64)
CHECKED = 64  # texts whose vectors are compared before anything is timed
SMALLEST_COSINE = 0.9999  # infinity may normalise its vectors: directions are compared
GOALS = {1: 1.0, 64: 1.3}  # clients -> requests a second by those of the best other server
MEMORY = 0.05  # by which a server may grow during a soak, after its warm-up


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    model: str = MINILM
    infinity: Path | None = None  # the program; None: minibert alone
    sentences: int = 2000
    rounds: int = 3
    seconds: float = 8.0  # of a turn
    clients: Sequence[int] = CLIENTS
    threads: int = 1
    soak: float = 0.0  # seconds; 0: none


@dataclass(frozen=True)
class Turn:
    """One turn of one server."""

    rate: float  # requests a second
    p50: float  # seconds
    p99: float
    cpu: float  # seconds of the server's threads for a request: what a busy machine changes least
    errors: int
    held: int  # bytes of the server's process afterwards


@dataclass
class Row:
    """A server and what was measured of it; reason: why nothing was, or why it does not count."""

    contestant: Contestant
    reason: str = ""
    cosine: float = 1.0  # the smallest, to minibert.embed
    difference: float = 0.0  # the largest, of ours
    turns: dict[int, list[Turn]] = field(default_factory=dict)  # by the number of clients

    @property
    def ranked(self) -> bool:
        """Whether its turns count."""
        return not self.reason and bool(self.turns)


@dataclass(frozen=True)
class Soak:
    """Minutes of full load: memory of the server by the second, warm-up left out, and what went wrong."""

    seconds: float
    requests: int
    errors: int
    held: list[int]  # bytes

    @property
    def growth(self) -> float:
        """The last tenth by the first tenth, less 1."""
        tenth = max(1, len(self.held) // 10)
        return float(np.mean(self.held[-tenth:]) / np.mean(self.held[:tenth]) - 1)

    @property
    def ok(self) -> bool:
        """Flat, and without an error."""
        return not self.errors and abs(self.growth) <= MEMORY


@dataclass
class Result:
    """All that was measured."""

    origin: str  # of the texts
    rows: list[Row] = field(default_factory=list)
    soak: Soak | None = None

    def faster(self, clients: int) -> tuple[str, Middle] | None:
        """The best other server with so many clients, and how many times its rate ours is, round by round."""
        ours = next((row for row in self.rows if row.contestant.ours and row.ranked), None)
        others = [row for row in self.rows if not row.contestant.ours and row.ranked]
        if ours is None or not others:
            return None
        best = max(others, key=lambda row: Middle.of([turn.rate for turn in row.turns[clients]]).median)
        pairs = zip(best.turns[clients], ours.turns[clients], strict=True)  # whoever is ranked had every turn
        found = quotient([(theirs.rate, own.rate) for theirs, own in pairs])
        return None if found is None else (best.contestant.title, found)

    @property
    def equal(self) -> bool:
        """Whether ours gave the vectors of minibert.embed, without an error."""
        ours = [row for row in self.rows if row.contestant.ours]
        wrong = sum(turn.errors for row in ours for turns in row.turns.values() for turn in turns)
        return not wrong and not any(row.reason for row in ours) and (self.soak is None or self.soak.ok)


def measure(plan: Plan) -> Result:
    """Everything; the servers end, and what was written for them goes, whatever happens."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="minibert-bench-serve-")))
        folder = prepare(plan, scratch / "checkpoint")
        texts, origin = find_texts(plan.sentences, load_tokenizer(folder))
        contestants = (MINIBERT, *(infinity(plan.infinity) if plan.infinity else ()))
        result = Result(origin, [Row(contestant) for contestant in contestants])
        running: dict[str, Running] = {}
        stack.callback(stop, running)
        for row in steps(result.rows, "starting"):
            start(row, folder, scratch, plan, running, texts)
        for clients in plan.clients:
            turns = [row for _ in range(plan.rounds) for row in result.rows if not row.reason]
            for row in steps(turns, f"{clients} clients"):
                turn(row, running[row.contestant.name], Load("", 0, MODEL, texts, clients, plan.seconds), plan.threads)
        if plan.soak and not result.rows[0].reason:
            result.soak = soak(running[MINIBERT.name], texts, plan)
        return result


def stop(running: dict[str, Running]) -> None:
    """End all servers."""
    for server in running.values():
        server.stop()


def prepare(plan: Plan, folder: Path) -> Path:
    """A copy of the checkpoint with all of its files, and model.onnx, where somebody needs that."""
    shutil.copytree(hub.locate(plan.model).folder, folder)
    if plan.infinity:
        export(folder, folder / "model.onnx")
    return folder


def start(row: Row, folder: Path, scratch: Path, plan: Plan, running: dict[str, Running], texts: Sequence[str]) -> None:
    """Start a server, and compare its vectors with those of minibert.embed."""
    name, checked = row.contestant.name, texts[:CHECKED]
    try:
        with (scratch / f"{name}.log").open("wb") as log:
            running[name] = Running(row.contestant, folder, plan.threads, log)
        found = running[name].vectors(checked)
    except (LostError, OSError) as error:
        row.reason = f"failed: {error}"
        return
    expected = minibert.embed(checked, folder, pooling="mean")
    equality = compare(found, expected)
    row.cosine, row.difference = equality.cosine, equality.difference
    if row.cosine < SMALLEST_COSINE or (row.contestant.ours and row.difference > 1e-5):
        row.reason = f"differs: cosine {row.cosine:.6f}, difference {row.difference:.1e}"


def turn(row: Row, server: Running, load: Load, threads: int) -> None:
    """One turn, after a second of the same to warm up."""
    here = {"host": "127.0.0.1", "port": server.port}
    ask(Load(**asdict(load) | here | {"seconds": 1.0}), threads)
    before = server.cpu
    found = ask(Load(**asdict(load) | here), threads)
    cpu = (server.cpu - before) / len(found.latencies)
    p50, p99 = np.percentile(found.latencies, [50, 99]).tolist()
    rate = (len(found.latencies) - found.errors) / found.seconds
    row.turns.setdefault(load.clients, []).append(Turn(rate, p50, p99, cpu, found.errors, server.held))


def ask(load: Load, threads: int) -> Found:
    """The clients, in a process of their own. Raises LostError where that fails, as it does if a server hangs up."""
    done = subprocess.run(
        [sys.executable, "-m", "minibert.bench.serve.clients"],
        input=json.dumps(asdict(load)),
        capture_output=True,
        text=True,
        env=os.environ | environment(threads),
    )
    if done.returncode:
        raise LostError(f"the clients failed: {(done.stderr.strip().splitlines() or ['without a word'])[-1][:160]}")
    return Found(**json.loads(done.stdout))


def soak(server: Running, texts: Sequence[str], plan: Plan) -> Soak:
    """Full load for plan.seconds to warm up and then for plan.soak; memory is looked at twice a second."""
    load = Load("127.0.0.1", server.port, MODEL, texts, max(plan.clients), max(plan.seconds, plan.soak / 5))
    ask(load, plan.threads)
    held, over = list[int](), threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            held.append(server.held)

    watching = threading.Thread(target=watch, daemon=True)
    began = time.perf_counter()
    watching.start()
    found = ask(Load(**asdict(load) | {"seconds": plan.soak}), plan.threads)
    over.set()
    watching.join()
    return Soak(time.perf_counter() - began, len(found.latencies), found.errors, held or [server.held])
