"""What minibert is to reach, against what the machine allows: its roofline, and the best other runtime on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minibert.bench.results import Middle, Result, quotient, ratio


def share(result: Result, precision: str) -> Middle | None:
    """Of the roofline, that ours reaches."""
    return next((result.share(ours) for ours in result.ranked(precision)), None)


def against_best(result: Result, precision: str) -> Middle | None:
    """How many times as fast as the fastest other runtime ours is, at the same precision."""
    best, ours = (next(iter(result.ranked(precision, ours)), None) for ours in (False, True))
    return ratio(best, ours)


def memory(result: Result) -> Middle | None:
    """The peak of transformers, sorted, by that of ours."""
    peaks = {row.backend.name: row.peak for row in result.rows if row.ranked}
    ours, theirs = peaks.get("minibert-float32"), peaks.get("transformers-sorted")
    return quotient([(ours, theirs)]) if ours and theirs else None


def nearness(result: Result) -> Middle | None:
    """The smallest cosine of our int8 to transformers in float32."""
    found = next((row.equality for row in result.ranked("int8") if row.equality), None)
    return Middle.of([found.cosine]) if found else None


def memory_of_int8(result: Result) -> Middle | None:
    """The peak of our bfloat16 by that of our int8."""
    peaks = [row.peak for precision in ("int8", "bfloat16") for row in result.ranked(precision)[:1]]
    return quotient([(peaks[0], peaks[1])]) if len(peaks) == 2 and all(peaks) else None


WIDE = 768  # hidden units; with fewer, the products are smaller beside the rest of the work
# What, how it is measured, and at least how much of it: in a wide model, in a narrower one.
GOALS: tuple[tuple[str, Callable[[Result], Middle | None], float, float], ...] = (
    ("float32, share of the roofline", lambda result: share(result, "float32"), 0.75, 0.60),
    ("bfloat16, share of the roofline", lambda result: share(result, "bfloat16"), 0.50, 0.35),
    ("float32, against the best other runtime", lambda result: against_best(result, "float32"), 1.1, 1.1),
    ("bfloat16, against the best other runtime", lambda result: against_best(result, "bfloat16"), 1.1, 1.1),
    ("int8, against the best other runtime", lambda result: against_best(result, "int8"), 1.1, 1.0),
    ("int8, smallest cosine", nearness, 0.999, 0.998),
    ("int8, peak memory of bfloat16 by it", memory_of_int8, 1.0, 1.0),
    ("peak memory of transformers, sorted, by ours", memory, 1.0, 1.0),
    ("one short sentence, against transformers", lambda result: quotient(result.one_sentence), 1.0, 1.0),
    ("first vector from a cold start, against transformers", lambda result: quotient(result.cold_start), 1.0, 1.0),
)


@dataclass(frozen=True)
class Goal:
    """A bound from below, what was measured, and whether that is enough; None: it was not measured."""

    model: str
    what: str
    bound: float
    value: float | None
    reached: bool | None


def goals_of(result: Result) -> list[Goal]:
    """Every goal, for this checkpoint."""
    goals = []
    for what, measured, wide, narrow in GOALS:
        bound, found = wide if result.config.hidden_size >= WIDE else narrow, measured(result)
        value = found.median if found else None
        goals.append(Goal(result.name, what, bound, value, None if value is None else value >= bound))
    return goals
