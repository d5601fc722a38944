"""One checkpoint under measurement: its texts, its result so far, and its backends, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from minibert.bench.backends import Setting, Vectors
from minibert.bench.machine import cores
from minibert.bench.processes import LostError, Process
from minibert.bench.results import Equality, Result, Row, compare
from minibert.bench.texts import find_texts
from minibert.config import Config
from minibert.text.tokenizer import load_tokenizer

CHECKED = 250  # texts whose vectors are compared before anything is timed, and in every round


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    name: str
    models: tuple[str, ...]
    sentences: int
    rounds: int
    short: int  # turns with one short sentence
    starts: int  # cold starts
    growth: dict[str, tuple[int, ...]] = field(default_factory=dict)  # what grows, and its values
    device: str = "cpu"
    threads: int = 1
    objective: str = "classify"  # what is learned, with --train


MINILM, DISTILBERT = "all-MiniLM-L6-v2", "distilbert-shape"  # the latter is written with random weights
SOME = {"tokens in a text": (8, 32, 128, 512), "sentences": (100, 1000), "tokens in a batch": (256, 512, 1024)}
MUCH = {"tokens in a text": (8, 16, 32, 64, 128, 256, 512), "sentences": (100, 1000, 10_000, 100_000)}
THREADS = {"threads": tuple(sorted({2**power for power in range(10) if 2**power <= cores()} | {cores()}))}
QUICK = Plan("quick", (MINILM,), sentences=256, rounds=3, short=6, starts=1)
DEFAULT = Plan("default", (DISTILBERT, MINILM), sentences=2000, rounds=3, short=20, starts=3, growth=SOME | THREADS)
FULL = Plan("full", (DISTILBERT, MINILM), sentences=2000, rounds=7, short=50, starts=5, growth=SOME | MUCH | THREADS)


def steps(items: Iterable[Any], what: str) -> Any:
    """The items, with progress on a terminal."""
    return tqdm(list(items), desc=what, leave=False, disable=None)


class Session:
    """The measurement of one checkpoint; helper: a process for the reference, conversions, the rate of products."""

    def __init__(self, name: str, folder: Path, plan: Plan, scratch: Path, helper: Process) -> None:
        self.plan, self.folder, self.scratch, self.helper = plan, folder, scratch, helper
        self.config, self.tokenizer = Config.from_file(folder / "config.json"), load_tokenizer(folder)
        self.texts, origin = find_texts(plan.sentences, self.tokenizer)
        lengths = [len(row) for row in self.tokenizer.ids(self.texts)]
        self.result = Result(name, self.config, lengths, origin, cores())
        self.checked = list(range(0, len(lengths), max(1, len(lengths) // CHECKED)))
        self.reference: Vectors  # of the texts that are checked
        self.processes: dict[str, Process] = {}

    def setting(self, threads: int) -> Setting:
        """What backends are loaded with."""
        return Setting(self.folder, self.scratch, threads, self.plan.device, self.config.max_tokens)

    def stop(self, but: Sequence[str] = ()) -> None:
        """End all processes but these."""
        for name in [name for name in self.processes if name not in but]:
            self.processes.pop(name).close()

    def guarded(self, row: Row, action: Callable[[Row, Process], object]) -> None:
        """Do something with a backend that can; where it fails, its row says why, and its process ends."""
        if row.reason:
            return
        try:
            action(row, self.processes[row.backend.name])
        except LostError as error:
            row.reason = f"failed: {error}"
            self.processes.pop(row.backend.name).close()

    def warm_up(self, row: Row, process: Process) -> None:
        """Load, encode the texts that are checked, compare with the reference."""
        loaded = process.ask("load", row.backend, self.setting(self.plan.threads))
        row.kernels, row.load_seconds, row.loaded_bytes, row.load_peak = loaded
        vectors = process.ask("encode", [self.texts[number] for number in self.checked], keep=True)[1]
        self.judge(row, compare(vectors, self.reference))

    def sample(self, row: Row, process: Process) -> None:
        """Encode all texts once; the vectors are compared again."""
        sample, vectors = process.ask("encode", self.texts, keep=True)
        row.samples.append(sample)
        right = len(vectors) == len(self.texts)
        self.judge(row, compare(vectors[self.checked] if right else vectors, self.reference))

    def judge(self, row: Row, equality: Equality) -> None:
        """Keep the worse of what was found; a row whose vectors differ is not ranked."""
        row.equality = max(row.equality or equality, equality, key=lambda found: found.difference)
        if not row.equality.holds(row.backend.precision):
            row.reason = "differs"

    def pair(self) -> list[Row]:
        """Ours and transformers at its usual best, both in float32: those of the two that run."""
        theirs = "transformers-sorted" if self.plan.device == "cpu" else "transformers-sdpa-float32"
        rows = {row.backend.name: row for row in self.result.rows if not row.reason}
        return [rows[name] for name in ("minibert-float32", theirs) if name in rows]
