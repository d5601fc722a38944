"""What the benchmark finds about one checkpoint: samples, rows, equality, ratios, growth."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from minibert.bench.backends import Backend, Vectors
from minibert.bench.roofline import job_flops
from minibert.config import Config

# Equality with transformers, eager, float32. Measured on real weights: 1e-6 to 4e-6 for every float32 kernel; cosines
# of 0.9999 in bfloat16. int8 changes the vectors by design: its cosine is printed, and only a gross error is refused.
LARGEST_DIFFERENCE = {"float32": 1e-4}
SMALLEST_COSINE = {"float32": 0.999999, "bfloat16": 0.999, "float16": 0.999, "int8": 0.9}
OWN_SHARE = 0.98  # of the vectors are nearer to their own reference than to that of the next text
# A machine is too busy where others have more of its processors, or where rounds of ours differ by more, than this:
# ratios then move by more than they are to show.
BUSY, UNSTEADY = 0.15, 1.4


@dataclass(frozen=True)
class Equality:
    """How near vectors are to those of the reference."""

    difference: float  # the largest
    cosine: float  # the smallest
    own: float  # share that is nearer to its own reference than to the next text's

    def holds(self, precision: str) -> bool:
        """Whether these are the same vectors, in this precision."""
        near = self.difference <= LARGEST_DIFFERENCE.get(precision, float("inf"))
        return near and self.cosine >= SMALLEST_COSINE[precision] and self.own >= OWN_SHARE


NOTHING_ALIKE = Equality(1e30, -1.0, 0.0)  # another shape, or values that are not finite


def compare(vectors: Vectors, reference: Vectors) -> Equality:
    """Compare row by row."""
    if vectors.shape != reference.shape or not np.isfinite(vectors).all():
        return NOTHING_ALIKE
    a, b = vectors.astype(np.float64), reference.astype(np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines = (a * b).sum(axis=1) / np.maximum(lengths, 1e-30)
    away = np.linalg.norm(a - b, axis=1)
    to_next = np.linalg.norm(a - np.roll(b, 1, axis=0), axis=1)
    return Equality(float(np.abs(a - b).max()), float(cosines.min()), float((away <= to_next).mean()))


@dataclass(frozen=True)
class Sample:
    """One encoding of all texts: what it took."""

    seconds: float  # by the clock
    cpu: float  # seconds of all its threads
    foreign: float  # processor seconds that everything else took meanwhile; 0 where the system does not tell
    peak: int  # bytes that its process held at most


@dataclass(frozen=True)
class Middle:
    """A median and what it is the median of."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Middle:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass
class Row:
    """A backend and what was measured of it; `reason` says why nothing was, or why it is not ranked."""

    backend: Backend
    reason: str = ""
    kernels: str = ""  # how it computes, in words
    load_seconds: float = 0.0
    loaded_bytes: int = 0  # of its process, before it encodes
    load_peak: int = 0  # and the most while it was loaded
    equality: Equality | None = None
    samples: list[Sample] = field(default_factory=list)

    @property
    def ranked(self) -> bool:
        """Whether its seconds count."""
        return bool(self.samples) and not self.reason

    @property
    def seconds(self) -> Middle:
        """By the clock."""
        return Middle.of([sample.seconds for sample in self.samples])

    @property
    def cpu(self) -> Middle:
        """Of all its threads."""
        return Middle.of([sample.cpu for sample in self.samples])

    @property
    def peak(self) -> int:
        """Bytes of the whole process, loading included."""
        return max([self.load_peak, *(sample.peak for sample in self.samples)])


def quotient(pairs: Sequence[tuple[float, float]]) -> Middle | None:
    """How many times the first the second is: pair by pair, then the median."""
    return Middle.of([b / a for a, b in pairs]) if pairs else None


def ratio(row: Row | None, ours: Row | None) -> Middle | None:
    """How many times the seconds of ours it takes: by round, then the median. None where one was not measured."""
    if row is None or ours is None or not row.ranked or not ours.ranked:
        return None
    pairs = zip(ours.samples, row.samples, strict=False)  # whoever has fewer rounds is compared in those
    return quotient([(own.seconds, theirs.seconds) for own, theirs in pairs])


@dataclass
class Growth:
    """How the cost of one backend grows with one thing."""

    what: str  # "tokens in a text", ...
    backend: Backend
    points: list[dict[str, float]] = field(default_factory=list)  # at, sentences, tokens, seconds, speed, peak


@dataclass
class Result:
    """All that was measured with one checkpoint."""

    name: str
    config: Config
    lengths: list[int]  # tokens of each text
    origin: str  # of the texts
    cores: int = 1  # processors that could work
    rows: list[Row] = field(default_factory=list)
    rates: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # precision -> kernel -> one for each round
    one_sentence: list[tuple[float, float]] = field(default_factory=list)  # seconds: ours and transformers', by turns
    cold_start: list[tuple[float, float]] = field(default_factory=list)  # seconds to the first vector, the same
    growth: list[Growth] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict)  # seconds that each stage of the measurement took

    @property
    def flops(self) -> int:
        """Operations that the work cannot do without."""
        return job_flops(self.lengths, self.config)

    def ranked(self, precision: str | None = None, ours: bool | None = True) -> list[Row]:
        """Rows that count, the fastest first: ours, others' or (None) both; of one precision or (None) of all."""
        rows = [row for row in self.rows if row.ranked and ours in (None, row.backend.ours)]
        rows = [row for row in rows if precision in (None, row.backend.precision)]
        return sorted(rows, key=lambda row: row.seconds.median)

    def rival(self, row: Row) -> Row | None:
        """Ours to compare a row with: of equal precision; where ours does not run in it, our fastest."""
        return next(iter(self.ranked(row.backend.precision) or self.ranked()), None)

    def share(self, row: Row) -> Middle | None:
        """Of the roofline: the seconds that the products alone would take, by those that it took, round by round."""
        rates = max(self.rates.get(row.backend.precision, {}).values(), key=statistics.median, default=[])
        pairs = zip(rates, row.samples, strict=False)  # a large one has one sample, and there is a rate each round
        shares = [self.flops / rate / sample.seconds for rate, sample in pairs]
        return Middle.of(shares) if shares and row.ranked else None

    @property
    def equal(self) -> bool:
        """Whether our own vectors are those of the reference, wherever they were computed."""
        compared = [(row.equality, row.backend) for row in self.rows if row.equality is not None]
        return all(equality.holds(backend.precision) for equality, backend in compared if backend.ours)

    @property
    def foreign(self) -> float:
        """The share of the processors that others had while a backend worked: programs, and backends that wait."""
        samples = [sample for row in self.rows for sample in row.samples]
        available = self.cores * sum(sample.seconds for sample in samples)
        return sum(sample.foreign for sample in samples) / available if samples else 0.0

    @property
    def doubts(self) -> list[str]:
        """Why the machine is too busy for these figures; empty where it is quiet."""
        spread = max((row.seconds.most / row.seconds.least for row in self.ranked()), default=1.0)
        busy = f"other programs took {100 * self.foreign:.0f} % of the processors while a backend worked"
        unsteady = f"the slowest round of minibert took {spread:.2f} times as long as the fastest"
        return [busy] * (self.foreign > BUSY) + [unsteady] * (spread > UNSTEADY)
