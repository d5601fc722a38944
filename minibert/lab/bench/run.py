"""Measuring one checkpoint: equality first, then rounds in which everybody takes a turn.

Each contestant lives in a process of its own and sleeps while the others work; how much processor time it takes while
it waits is measured too. In each round the machine's rate of matrix products is measured as well, so that the share
of the wall is of the same minute.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from minibert.config import Config
from minibert.lab.bench.contestants import OURS, REFERENCE, Contestant, Vectors, contestants_for, obstacle
from minibert.lab.bench.process import Answer, LostError, Process, available_bytes, running
from minibert.lab.bench.results import Equality, Result, Row, Sample, compare
from minibert.lab.bench.work import Work, job_flops, padded_bytes
from minibert.text.tokenizer import Tokenizer

CHECKED = 250  # texts whose vectors are compared before anything is timed, and in every round
SPARE = 1.1  # memory that is wanted for the tutorial's way, by what it needs


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    name: str
    models: tuple[str, ...]
    sentences: int
    rounds: int
    short: int  # calls with one short sentence
    starts: int  # cold starts
    lengths: tuple[int, ...] = ()  # tokens in a text
    batch_tokens: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()  # sentences
    by_threads: bool = False
    device: str = "cpu"
    threads: int = 1

    @property
    def quick(self) -> bool:
        """Whether only minibert and transformers take part."""
        return self.name == "quick"


@dataclass(frozen=True)
class Subject:
    """A checkpoint to be measured."""

    name: str
    key: str
    folder: Path
    config: Config
    tokenizer: Tokenizer
    work: Work


def steps(items: Sequence[Any], what: str) -> Iterable[Any]:
    """The items, with progress on a terminal."""
    bar: Iterable[Any] = tqdm(items, desc=what, leave=False, disable=None)
    return bar


class Session:
    """The measurement of one checkpoint; its processes end with the block that it is used in."""

    def __init__(self, subject: Subject, plan: Plan, scratch: Path) -> None:
        self.subject, self.plan, self.scratch = subject, plan, scratch
        self.texts = subject.work.texts
        self.checked = list(range(0, len(self.texts), max(1, len(self.texts) // CHECKED)))
        self.stack = ExitStack()
        self.processes: dict[str, Process] = {}
        self.unconverted: dict[str, str] = {}  # conversion -> why it failed
        lengths = [len(row) for row in subject.tokenizer.ids(self.texts)]
        self.lengths = lengths
        self.result = Result(
            subject.name,
            subject.key,
            subject.config,
            len(lengths),
            sum(lengths),
            max(lengths),
            job_flops(lengths, subject.config),
            subject.work.origin,
            plan.device,
        )

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    # -- processes

    def start(self, name: str) -> Process:
        """A process that lasts as long as the session, or until `stop`."""
        self.processes[name] = self.stack.enter_context(running(self.plan.threads))
        return self.processes[name]

    def stop(self, but: Iterable[str] = ()) -> None:
        """End all processes but these, after asking how much they did while they waited."""
        for name in [name for name in self.processes if name not in but]:
            process = self.processes.pop(name)
            if process.idle_wall > 1.0:
                self.result.idle_share = max(self.result.idle_share, process.idle_cpu / process.idle_wall)
            process.close()

    def load(self, contestant: Contestant, process: Process) -> Answer:
        """Load a contestant in its process."""
        return process.ask(
            "load",
            contestant=contestant.name,
            folder=str(self.subject.folder),
            converted=str(self.scratch),
            threads=self.plan.threads,
            device=self.plan.device,
        )

    # -- equality first

    def convert(self, contestants: Iterable[Contestant]) -> None:
        """Write what other runtimes read, each in a process of its own that ends with it."""
        wanted = [one.conversion for one in contestants if one.conversion and not obstacle(one, self.plan.device)]
        for what in steps(sorted(set(wanted)), "converting"):  # "onnx" comes before "onnx-int8"
            with running(self.plan.threads) as process:
                try:
                    process.ask("convert", what=what, folder=str(self.subject.folder), out=str(self.scratch))
                except LostError as error:
                    self.unconverted[what] = str(error)

    def encode(self, process: Process, texts: Sequence[str], **options: Any) -> tuple[Answer, Vectors]:
        """What the process measured, and the vectors."""
        file = self.scratch / "vectors.npy"
        answer = process.ask("encode", texts=list(texts), save=str(file), **options)
        vectors: Vectors = np.load(file)
        return answer, vectors

    def refer(self) -> None:
        """The vectors that everybody's are compared with."""
        with running(self.plan.threads) as process:
            self.load(REFERENCE, process)
            self.reference = self.encode(process, [self.texts[number] for number in self.checked])[1]

    def admit(self, contestants: Sequence[Contestant]) -> None:
        """A row for everyone; whoever can run here is loaded, warmed up and compared with the reference."""
        rows = [Row(one, self.why_not(one)) for one in contestants]
        self.result.rows = rows
        able = [row for row in rows if not row.reason and not row.contestant.alone]
        for row in able:  # they import their libraries at the same time
            self.start(row.contestant.name).send("hello")
        for row in able:
            self.guarded(row, lambda _, process: process.receive(), self.processes[row.contestant.name])
        for row in steps([row for row in able if not row.reason], "equality"):
            self.guarded(row, self.warm_up, self.processes[row.contestant.name])

    def why_not(self, contestant: Contestant) -> str:
        """Why a contestant cannot run, or nothing."""
        if reason := obstacle(contestant, self.plan.device):
            return reason
        if contestant.conversion in self.unconverted:
            return f"not converted: {self.unconverted[contestant.conversion]}"
        needed, available = padded_bytes(self.lengths, self.subject.config), available_bytes()
        if contestant.alone and needed * SPARE > available:
            return f"not run: it needs {needed * SPARE / 1e9:.0f} GB, and {available / 1e9:.0f} GB are available"
        return ""

    def guarded(self, row: Row, action: Callable[[Row, Process], object], process: Process) -> None:
        """Do something with a contestant; where its process ends over it, its row says so."""
        try:
            action(row, process)
        except LostError as error:
            row.reason = f"failed: {error}"

    def warm_up(self, row: Row, process: Process) -> None:
        """Load, encode the texts that are checked, compare."""
        answer = self.load(row.contestant, process)
        row.load_seconds, row.route = answer["seconds"], answer["route"]
        vectors = self.encode(process, [self.texts[number] for number in self.checked])[1]
        self.judge(row, compare(vectors, self.reference))

    def judge(self, row: Row, equality: Equality) -> None:
        """Keep the worse of what was found; a row whose vectors differ is not ranked."""
        if row.equality is not None and row.equality.difference >= equality.difference:
            equality = row.equality
        row.equality = equality
        if not equality.holds(row.contestant.precision):
            row.reason = "differs"

    # -- rounds

    def rounds(self) -> None:
        """Everybody in turn, the rate of products first: A B C A B C."""
        precisions = sorted({row.contestant.precision for row in self.result.rows if not row.reason} - {"int8"})
        meter = self.start("rates")
        turns = [(number, row) for number in range(self.plan.rounds) for row in (None, *self.result.rows)]
        for _, row in steps(turns, "rounds"):
            if row is None:
                self.meter(meter, precisions)
            elif row.contestant.name in self.processes and not row.reason:
                self.guarded(row, self.sample, self.processes[row.contestant.name])

    def meter(self, process: Process, precisions: list[str]) -> None:
        """The rates of this round."""
        config = self.subject.config
        answer = process.ask(
            "rates",
            D=config.hidden_size,
            F=config.intermediate_size,
            precisions=precisions,
            device=self.plan.device,
            threads=self.plan.threads,
        )
        for precision, ways in answer["rates"].items():
            for way, rate in ways.items():
                self.result.rates.setdefault(precision, {}).setdefault(way, []).append(rate)

    def sample(self, row: Row, process: Process) -> None:
        """Encode all texts once; the vectors are compared again."""
        answer, vectors = self.encode(process, self.texts)
        row.samples.append(Sample(answer["wall"], answer["cpu"]))
        row.peak, row.above_idle = answer["peak"], answer["above_idle"]
        right = vectors.shape[0] == len(self.texts)
        self.judge(row, compare(vectors[self.checked] if right else vectors, self.reference))

    def lonely(self) -> None:
        """Contestants too large to live beside others: one sample each, next to one of ours."""
        ours = self.result.ours("float32")
        rows = [row for row in self.result.rows if row.contestant.alone and not row.reason]
        for row in steps(rows, "alone"):
            if ours is not None:
                own = self.encode(self.processes[ours.contestant.name], self.texts)[0]
                row.beside.append(Sample(own["wall"], own["cpu"]))
            with running(self.plan.threads) as process:
                self.guarded(row, self.warm_up, process)
                if not row.reason:
                    self.guarded(row, self.sample, process)

    def run(self) -> Result:
        """All of it: equality, rounds, one sentence, growth, cold starts."""
        from minibert.lab.bench import growth  # which imports this room

        contestants = contestants_for(self.plan.device, self.plan.quick)
        self.convert(contestants)
        self.refer()
        self.admit(contestants)
        self.rounds()
        growth.one_sentence(self)
        self.stop(but=(*(own.name for own in OURS), growth.opponent(self)))
        growth.grow(self)
        self.stop(but=("minibert-float32",))
        self.lonely()
        self.stop()
        growth.cold_starts(self)
        return self.result


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_device(device: str) -> None:
    """Raise ValueError for a device that the benchmark cannot measure on this machine."""
    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device is {device!r}; the benchmark runs on cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device is 'cuda', and torch sees no CUDA device here; without --device it measures the CPU")


def alternating(names: Sequence[str], times: int) -> Iterator[str]:
    """A B A B."""
    for _ in range(times):
        yield from names
