"""What the benchmark finds: samples, rows, ratios, equality, and the goals that they meet or miss."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from minibert.config import Config
from minibert.lab.bench.contestants import Contestant, Vectors

# Equality with transformers, eager, float32. Measured on real weights: 1e-6 to 4e-6 for every float32 way; cosines of
# 0.9999 in bfloat16. int8 changes the vectors by design: its cosine is printed, and only a gross error is refused.
LARGEST_DIFFERENCE = {"float32": 1e-4}
SMALLEST_COSINE = {"float32": 0.999999, "bfloat16": 0.999, "float16": 0.999, "int8": 0.9}
OWN_SHARE = 0.98  # of the vectors are nearer to their own reference than to that of the next text


# ---------------------------------------------------------------------------------------------------------------
# Equality


@dataclass(frozen=True)
class Equality:
    """How near vectors are to those of the reference."""

    difference: float  # the largest
    cosine: float  # the smallest
    own: float  # share that is nearer to its own reference than to the next text's

    def holds(self, precision: str) -> bool:
        """Whether these are the same vectors, in this precision."""
        return (
            self.difference <= LARGEST_DIFFERENCE.get(precision, float("inf"))
            and self.cosine >= SMALLEST_COSINE[precision]
            and self.own >= OWN_SHARE
        )


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


# ---------------------------------------------------------------------------------------------------------------
# Rows


@dataclass(frozen=True)
class Sample:
    """One encoding of all texts: seconds."""

    wall: float
    cpu: float


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
    """A contestant and what was measured of it; `reason` says why nothing was, or why it is not ranked."""

    contestant: Contestant
    reason: str = ""
    samples: list[Sample] = field(default_factory=list)
    beside: list[Sample] = field(default_factory=list)  # ours in the same rounds, where it did not run in all of them
    equality: Equality | None = None
    load_seconds: float = 0.0
    peak: int = 0  # bytes of the whole process
    above_idle: int = 0  # of that, above the loaded process
    route: str = ""

    @property
    def ranked(self) -> bool:
        """Whether its seconds count."""
        return bool(self.samples) and not self.reason

    @property
    def wall(self) -> Middle:
        """Wall seconds."""
        return Middle.of([sample.wall for sample in self.samples])

    @property
    def cpu(self) -> Middle:
        """CPU seconds of all threads."""
        return Middle.of([sample.cpu for sample in self.samples])


def ratio(row: Row, ours: Row) -> Middle | None:
    """How many times the seconds of ours it takes: by round, then the median. None where one was not measured."""
    if not row.ranked or not ours.ranked:
        return None
    pairs = zip(row.samples, row.beside or ours.samples, strict=False)  # whoever has fewer rounds is compared in those
    return Middle.of([theirs.wall / own.wall for theirs, own in pairs])


@dataclass
class Growth:
    """How the cost of one contestant grows with one thing."""

    what: str  # "tokens in a text", ...
    contestant: str
    points: list[dict[str, float]] = field(default_factory=list)  # at, seconds, sentences, tokens, peak


@dataclass
class Result:
    """All that was measured with one checkpoint."""

    name: str
    key: str  # of GOALS
    config: Config
    texts: int
    tokens: int
    longest: int
    flops: int
    origin: str
    device: str = "cpu"
    rows: list[Row] = field(default_factory=list)
    rates: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # precision -> way -> one for each round
    latency: dict[str, Middle] = field(default_factory=dict)  # contestant -> seconds of one short sentence
    latency_ratio: Middle | None = None
    cold: dict[str, Middle] = field(default_factory=dict)  # seconds to the first vector
    cold_ratio: Middle | None = None
    growth: list[Growth] = field(default_factory=list)
    idle_share: float = 0.0  # CPU seconds of waiting processes, of the busiest of them, by second of waiting

    def row(self, name: str) -> Row | None:
        """The row of a contestant."""
        return next((row for row in self.rows if row.contestant.name == name), None)

    def ours(self, precision: str) -> Row | None:
        """Our row of this precision, where it was measured."""
        row = self.row(f"minibert-{precision}")
        return row if row is not None and row.ranked else None

    def rival(self, row: Row) -> Row | None:
        """Ours to compare a row with: of equal precision; for int8, which we have not, our fastest."""
        equal = self.ours(row.contestant.precision)
        measured = [own for own in self.rows if own.contestant.ours and own.ranked]
        return equal or min(measured, key=lambda own: own.wall.median, default=None)

    def best_rates(self, precision: str) -> list[float]:
        """Floating-point operations a second of the fastest way, one for each round."""
        ways = self.rates.get(precision, {}).values()
        return max(ways, key=statistics.median, default=[])

    def share(self, row: Row) -> Middle | None:
        """Of the measured wall: the seconds that the products alone would take, by those that it took."""
        rates = self.best_rates(row.contestant.precision)
        if not row.ranked or not rates:
            return None
        pairs = zip(rates, row.samples, strict=False)  # who ran alone has one sample, and there is a rate each round
        return Middle.of([self.flops / rate / sample.wall for rate, sample in pairs])

    @property
    def equal(self) -> bool:
        """Whether our own vectors are those of the reference, wherever they were computed."""
        return all(
            row.equality is None or row.equality.holds(row.contestant.precision)
            for row in self.rows
            if row.contestant.ours
        )


# ---------------------------------------------------------------------------------------------------------------
# Goals

FLOAT32_PEERS = ("onnxruntime", "openvino", "ctranslate2")
# key of a result -> what ours is compared with -> at least so many times as fast.
FASTER = {
    "distilbert": {"transformers": 5.0, "transformers-sorted": 2.7, "best peer": 1.25},
    "minilm": {"transformers": 4.5, "transformers-sorted": 2.5, "best peer": 1.2},
}
WALL_SHARE = {"distilbert": 0.85}
H200_MILLIONS = 6.4  # tokens a second
EQUAL_SPEED = 0.95  # two speeds of this ratio are equal, within what a measurement varies


@dataclass(frozen=True)
class Goal:
    """Something promised, and what was measured; `least` is a bound from below, else from above."""

    model: str
    what: str
    bound: float
    value: float | None
    unit: str = " x"
    least: bool = True

    @property
    def reached(self) -> bool | None:
        """Whether it is met; None where it was not measured."""
        if self.value is None:
            return None
        return self.value >= self.bound if self.least else self.value <= self.bound


def goals_of(result: Result) -> list[Goal]:
    """Every goal that concerns this checkpoint and device."""
    if result.device != "cpu":
        return gpu_goals(result)
    goals = []
    for against, bound in FASTER.get(result.key, {}).items():
        what, value = against_whom(result, against)
        goals.append(Goal(result.name, f"float32 against {what}", bound, value))
    ours = result.ours("float32")
    if result.key in WALL_SHARE:
        share = result.share(ours) if ours else None
        goals.append(
            Goal(
                result.name,
                "float32, share of the wall",
                100 * WALL_SHARE[result.key],
                100 * share.median if share else None,
                " %",
            )
        )
    return goals + bfloat16_goals(result) + process_goals(result)


def gpu_goals(result: Result) -> list[Goal]:
    """What is promised for CUDA; the tokens a second are those of an H200."""
    ours, theirs = result.ours("bfloat16"), result.row("transformers-sdpa-bfloat16")
    measured = ratio(theirs, ours) if ours and theirs else None
    points = {growth.what: growth.points[0] for growth in result.growth if growth.contestant == "minibert-bfloat16"}
    speeds = {what: point["tokens"] / point["seconds"] for what, point in points.items()}
    fixed, varying = speeds.get("fixed lengths"), speeds.get("varying lengths")
    goals = [
        Goal(result.name, "bfloat16 against transformers, sdpa, sorted", 1.0, measured.median if measured else None),
        Goal(
            result.name,
            "bfloat16, tokens a second: varying lengths by fixed",
            EQUAL_SPEED,
            varying / fixed if fixed and varying else None,
        ),
    ]
    if result.key == "distilbert":
        millions = fixed / 1e6 if fixed else None
        goals.append(Goal(result.name, "bfloat16, 128 tokens, on an H200", H200_MILLIONS, millions, " M tokens/s"))
    return goals


def against_whom(result: Result, against: str) -> tuple[str, float | None]:
    """The name of an opponent and the ratio to it; the best peer is the one with the fewest seconds."""
    ours = result.ours("float32")
    if against == "best peer":
        peers = [row for name in FLOAT32_PEERS if (row := result.row(name)) is not None and row.ranked]
        best = min(peers, key=lambda row: row.wall.median, default=None)
        what = f"the best float32 peer ({best.contestant.title})" if best else "the best float32 peer"
    else:
        best = result.row(against)
        what = best.contestant.title if best else against
    measured = ratio(best, ours) if best and ours else None
    return what, measured.median if measured else None


def bfloat16_goals(result: Result) -> list[Goal]:
    """Speed against OpenVINO, and how near the vectors stay to float32."""
    ours, theirs = result.ours("bfloat16"), result.row("openvino-bfloat16")
    measured = ratio(theirs, ours) if ours and theirs else None
    equality = ours.equality if ours else None
    return [
        Goal(result.name, "bfloat16 against OpenVINO bfloat16", 1.2, measured.median if measured else None),
        Goal(result.name, "bfloat16, smallest cosine", 0.9999, equality.cosine if equality else None, ""),
        Goal(result.name, "bfloat16, largest difference", 2e-2, equality.difference if equality else None, "", False),
    ]


def process_goals(result: Result) -> list[Goal]:
    """Latency, memory and cold start against transformers."""
    ours, theirs = result.ours("float32"), result.row("transformers-sorted")
    memory = theirs.peak / ours.peak if ours and theirs and theirs.ranked and ours.peak else None
    latency, cold = result.latency_ratio, result.cold_ratio
    return [
        Goal(result.name, "one short sentence, against transformers", 2.0, latency.median if latency else None),
        Goal(result.name, "peak memory of transformers, sorted, by ours", 1.0, memory),
        Goal(result.name, "first vector from a cold start, against transformers", 2.0, cold.median if cold else None),
    ]
