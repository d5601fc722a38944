"""What is measured: contestants, their samples, and the ratios of one checkpoint."""

import importlib.util
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from minibert.config import Config
from minibert.utils.device import has_bfloat16, has_int8

# The machine is too busy if minibert's slowest round takes this many times as long as its fastest: the ratios then vary
# by more than the differences that they are meant to show.
UNSTEADY = 1.4


@dataclass(frozen=True)
class Context:
    """What a contestant is loaded with."""

    folder: Path  # the checkpoint
    scratch: Path  # for conversions and logs
    threads: int
    device: str
    max_tokens: int


@dataclass(frozen=True)
class Contestant:
    """One program in one precision. load: (context, precision) -> the function that does the job, and its route."""

    name: str
    title: str
    precision: str
    load: Callable[[Context, str], tuple[Callable[..., Any], str]]
    package: str = "transformers"
    convert: Callable[[Path, Path], None] | None = None  # writes the files that it reads: (checkpoint, scratch folder)
    large: bool = False  # takes one turn only, and only if there is enough memory

    @property
    def ours(self) -> bool:
        """True for minibert."""
        return self.package == "minibert"

    def obstacle(self, device: str) -> str:
        """Return why it cannot run here, or "". Its package is not imported."""
        if importlib.util.find_spec(self.package) is None:
            return "not installed"
        where = torch.device(device)
        lacks_bfloat16 = self.precision == "bfloat16" and not has_bfloat16(where)
        lacks_int8 = self.precision == "int8" and self.ours and not has_int8(where)
        return f"not run: this hardware does not multiply {self.precision}" * (lacks_bfloat16 or lacks_int8)


@dataclass(frozen=True)
class Sample:
    """One turn of a contestant."""

    seconds: float  # wall time of the job or (serving) of one request
    peak: int = 0  # peak memory of its process in bytes; on a GPU, of the GPU
    details: dict[str, float] = field(default_factory=dict)  # serving: p50, p99, errors


@dataclass(frozen=True)
class Equality:
    """How far vectors are from the reference, over all texts."""

    difference: float  # largest difference of one number
    cosine: float  # smallest cosine
    equal: bool  # within the limits of the precision


@dataclass(frozen=True)
class Spread:
    """The median of several rounds, and the range of its values."""

    median: float
    least: float
    most: float


def spread(values: Iterable[float]) -> Spread | None:
    """Return the median, the least and the greatest value, or None if there are no values."""
    numbers = list(values)
    return Spread(statistics.median(numbers), min(numbers), max(numbers)) if numbers else None


@dataclass
class BenchRow:
    """One contestant in one job. A row with a reason (why it failed or does not count) is not ranked."""

    contestant: Contestant
    job: str  # the main job, "one sentence" or "cold start"
    size: Mapping[str, float] = field(default_factory=dict)  # of one sample: {"sentences": 2000, "tokens": 47646}
    at: int = 0  # serving: the number of clients
    reason: str = ""
    route: str = ""
    load_peak: int = 0  # peak memory of its process while loading, in bytes
    equality: Equality | None = None
    flops: int = 0  # operations that the job cannot avoid; 0: not counted
    samples: list[Sample] = field(default_factory=list)

    @property
    def ranked(self) -> bool:
        """True if its samples count."""
        return bool(self.samples) and not self.reason

    @property
    def seconds(self) -> float:
        """The median of its samples."""
        return statistics.median(sample.seconds for sample in self.samples)

    @property
    def peak(self) -> int:
        """Peak memory of its process in bytes, loading included."""
        return max([self.load_peak, *(sample.peak for sample in self.samples)])


@dataclass
class BenchResult:
    """All that was measured with one checkpoint."""

    name: str
    config: Config
    job: str = "embedding"  # the main one
    origin: str = ""  # of the texts
    lengths: list[int] = field(default_factory=list)  # tokens of each text
    rows: list[BenchRow] = field(default_factory=list)
    flops: int = 0  # operations that the job cannot avoid
    rates: dict[str, list[float]] = field(default_factory=dict)  # "precision kernel" -> FLOP/s by round
    notes: dict[str, str] = field(default_factory=dict)  # printed below the table
    failures: list[str] = field(default_factory=list)  # what is wrong with our own results

    def ratio(self, theirs: BenchRow) -> Spread | None:
        """Return our speed-up over a row, round by round; None if one of the two does not count.

        Our row is the one with the same precision or, if we do not run in it, our fastest.
        """
        ours = [row for row in self.rows if row.ranked and row.contestant.ours]
        ours = [row for row in ours if (row.job, row.at) == (theirs.job, theirs.at)]
        if not ours or not theirs.ranked:
            return None
        nearest = min(ours, key=lambda row: (row.contestant.precision != theirs.contestant.precision, row.seconds))
        pairs = zip(theirs.samples, nearest.samples, strict=False)  # a large one takes one turn only
        return spread(their.seconds / our.seconds for their, our in pairs)

    def roofline(self, row: BenchRow) -> Spread | None:
        """Return the seconds that the matrix products alone need as a share of the measured ones, round by round."""
        if not row.flops:
            return None
        kernels = (rates for name, rates in self.rates.items() if name.startswith(f"{row.contestant.precision} "))
        rates = max(kernels, key=statistics.median, default=[])
        pairs = zip(rates, row.samples, strict=False)  # a large contestant takes one turn only
        return spread(row.flops / rate / sample.seconds for rate, sample in pairs)

    @property
    def wrong(self) -> list[str]:
        """Why our own results differ from the reference; empty if they do not."""
        ours = [row for row in self.rows if row.contestant.ours and row.reason.startswith(("differs", "failed"))]
        return [f"{row.contestant.name}: {row.reason}" for row in ours] + self.failures

    @property
    def doubts(self) -> list[str]:
        """Why the machine is too busy for these figures; empty if it is quiet."""
        rows = [row for row in self.rows if row.job == self.job and row.samples and row.contestant.ours]
        times = [[sample.seconds for sample in row.samples] for row in rows]
        factor = max((max(seconds) / min(seconds) for seconds in times), default=1.0)
        slow = f"the slowest round of minibert took {factor:.2f} times as long as the fastest"
        return [slow] * (factor > UNSTEADY)
