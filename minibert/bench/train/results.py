"""What is found about training one checkpoint, and what is to be reached."""

from __future__ import annotations

from dataclasses import dataclass

from minibert.bench.goals import Goal
from minibert.bench.results import Middle, Result, Row, quotient, ratio
from minibert.bench.train.equality import Check

AT_EQUAL_PRECISION = {"classify": 2.1, "mlm": 2.0}  # times as fast, by what is learned
AGAINST_THE_DEFAULT = {"classify": 3.4}


@dataclass
class Training:
    """All that was measured with one checkpoint."""

    result: Result
    places: int  # tokens of an epoch and the padding beside them
    steps: int  # in an epoch
    check: Check
    objective: str = "classify"

    @property
    def tokens(self) -> int:
        """Of an epoch, padding left out."""
        return sum(self.result.lengths)

    @property
    def equal(self) -> bool:
        """Whether minibert trains as the Trainer does."""
        return self.check.holds

    def row(self, name: str) -> Row | None:
        """A row that counts."""
        return next((row for row in self.result.rows if row.backend.name == name and row.ranked), None)

    def faster(self, ours: str, theirs: str) -> Middle | None:
        """How many times as fast ours is."""
        return ratio(self.row(theirs), self.row(ours))

    def smaller(self, precision: str) -> Middle | None:
        """The peak of the Trainer's process by that of ours."""
        ours, theirs = self.row(f"minibert-{precision}"), self.row(f"trainer-{precision}")
        return quotient([(ours.peak, theirs.peak)]) if ours and theirs else None


def goals_of(training: Training) -> list[Goal]:
    """Every goal, for this checkpoint."""
    equal, above = AT_EQUAL_PRECISION[training.objective], AGAINST_THE_DEFAULT.get(training.objective)
    found: list[tuple[str, Middle | None, float]] = []
    for precision in ("float32", "bfloat16"):
        faster = training.faster(f"minibert-{precision}", f"trainer-{precision}")
        found.append((f"{precision}, against the Trainer in {precision}", faster, equal))
    if above is not None:
        default = training.faster("minibert-bfloat16", "trainer-float32")
        found.append(("bfloat16, against the Trainer's default, float32", default, above))
    for precision in ("float32", "bfloat16"):
        found.append((f"{precision}, peak memory of the Trainer by ours", training.smaller(precision), 1.0))
    return [goal(training.result.name, *one) for one in found]


def goal(model: str, what: str, measured: Middle | None, bound: float) -> Goal:
    """One of them; what was not measured is neither reached nor not."""
    value = measured.median if measured else None
    return Goal(model, what, bound, value, None if value is None else value >= bound)
