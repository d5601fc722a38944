"""How parity is reported: lines for a terminal, figures for --json, and a page as Markdown or as HTML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from minibert.parity.compare import DROPOUT, RUNGS, TENSORS, Row
from minibert.parity.golden import KEPT, TOLERANCE, Finding
from minibert.parity.ladder import Result
from minibert.printing import table

HEADER = ("step", "shape", "tensors", "values", "largest difference", "ulp", "")


@dataclass
class Report:
    """One run of `minibert parity`."""

    against: str  # what was compared with what
    versions: dict[str, str]
    results: list[Result] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    bounded: bool = False
    seconds: float = 0.0

    @property
    def rows(self) -> list[Row]:
        """Every tensor that was compared."""
        return [row for result in self.results for row in result.rows]

    @property
    def ok(self) -> bool:
        """Whether everything that was compared passed."""
        return all(row.ok for row in self.rows) and all(finding.ok for finding in self.findings)

    @property
    def verdict(self) -> str:
        """The last line."""
        rows, equal = self.rows, sum(row.equal for row in self.rows)
        if self.bounded:
            passed = sum(row.ok for row in rows)
            return f"{passed:,} of {len(rows):,} tensors within the measured bounds, {equal:,} of them bit-identical"
        if rows:
            return f"{equal:,} of {len(rows):,} tensors bit-identical"
        checked = [finding for finding in self.findings if finding.how != "not checked"]
        by_sum = sum(finding.how == "checksum" for finding in checked)
        passed = sum(finding.ok for finding in checked)
        return (
            f"{passed} of {len(checked)} stored references met: {by_sum} bit for bit (checksum), "
            f"{passed - by_sum} by stored values"
        )


@dataclass(frozen=True)
class Step:
    """One line of the ladder: tensors of one stage in all layers, or of one rung with one head."""

    rung: str
    name: str
    shape: str
    tensors: int
    values: int
    largest: float
    ulp: int
    equal: bool
    ok: bool

    @property
    def outcome(self) -> str:
        """One word."""
        return "equal" if self.equal else "in bounds" if self.ok else "DIFFERS"

    def cells(self) -> tuple[str, ...]:
        """The columns of HEADER."""
        apart = "0" if not self.largest else f"{self.largest:.1e}"
        return (self.name, self.shape, f"{self.tensors:,}", f"{self.values:,}", apart, f"{self.ulp:,}", self.outcome)


def steps(result: Result) -> list[Step]:
    """The ladder of one checkpoint, from the lowest rung; a tiny checkpoint has one line a rung."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for rung in RUNGS:
        for row in (row for row in result.rows if row.rung == rung):
            by_stage = rung in (TENSORS, DROPOUT) and row.head == "encoder"
            name = "all heads" if result.tiny else row.stage if by_stage else row.head
            groups.setdefault((rung, name), []).append(row)
    return [step(rung, name, rows) for (rung, name), rows in groups.items()]


def step(rung: str, name: str, rows: list[Row]) -> Step:
    """Join the rows of one line."""
    shapes = {row.shape for row in rows}
    shape = " x ".join(map(str, shapes.pop())) or "one number" if len(shapes) == 1 else "various"
    label = name if (rung, name) == (TENSORS, rows[0].stage) else rung if name == "all heads" else f"{rung}, {name}"
    return Step(
        rung,
        label,
        shape,
        len(rows),
        sum(row.values for row in rows),
        max(row.largest for row in rows),
        max(row.ulp for row in rows),
        all(row.equal for row in rows),
        all(row.ok for row in rows),
    )


def divergence(result: Result) -> list[str]:
    """The first tensor that differs, both values, and why; nothing where none does."""
    first = result.first
    if first is None:
        return []
    where = f"first difference: {first.place} ({first.head})"
    if first.index is not None:
        index = ", ".join(map(str, first.index))
        where += f" at [{index}]: minibert {first.ours:.9g}, reference {first.theirs:.9g}"
    return [where, f"likely cause: {result.cause}"]


def result_lines(result: Result) -> str:
    """One checkpoint for a terminal."""
    lines = [f"{result.checkpoint} ({result.origin}), {result.seconds:.0f} s"]
    lines += table([HEADER, *(step.cells() for step in steps(result))], left=2).splitlines()
    return "\n  ".join([*lines, *divergence(result)]) + "\n"


def finding_lines(findings: Iterable[Finding]) -> str:
    """Stored references for a terminal."""
    rows = [(f.checkpoint, f.what, f.how, said(f)) for f in findings]
    return "\n".join([table([("checkpoint", "what", "compared by", ""), *rows], left=4), *how_compared(findings)])


def said(finding: Finding) -> str:
    """How it came out, in words."""
    if finding.note:
        return finding.note
    if finding.how == "checksum":
        return "equal, every bit"
    return f"{'met' if finding.ok else 'MISSED'}, {finding.largest:.1e} apart"


def how_compared(findings: Iterable[Finding]) -> list[str]:
    """What a stored reference proves on this machine."""
    if any(finding.how == "values" and not finding.what.startswith("published") for finding in findings):
        return [
            "This CPU sums float32 in another order than the one that made the references: where the checksum "
            f"differs, {KEPT} values of the stage decide, within {TOLERANCE:g} of its largest value."
        ]
    return []


def finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def figures(report: Report) -> dict[str, Any]:
    """The run as one JSON object."""
    rows = report.rows
    return {
        "against": report.against,
        "versions": report.versions,
        "ok": report.ok,
        "verdict": report.verdict,
        "tensors": len(rows),
        "equal": sum(row.equal for row in rows),
        "seconds": round(report.seconds, 1),
        "checkpoints": [
            {
                "name": result.checkpoint,
                "origin": result.origin,
                "seconds": round(result.seconds, 1),
                "steps": [asdict(step) | {"largest": finite(step.largest)} for step in steps(result)],
                "first_divergent": divergence(result),
            }
            for result in report.results
        ],
        "references": [asdict(finding) | {"largest": finite(finding.largest)} for finding in report.findings],
    }


def markdown(report: Report) -> str:
    """The report as Markdown."""
    lines = ["# Parity", "", f"**{report.verdict}**", "", f"{report.against}; {in_words(report)}.", ""]
    for result in report.results:
        lines += [f"## {escaped(result.checkpoint)}", "", f"{escaped(result.origin)}; {result.seconds:.0f} s", ""]
        lines += [f"{escaped(line)}\n" for line in divergence(result)]
        lines += markdown_table(HEADER, [step.cells() for step in steps(result)])
    if report.findings:
        lines += ["## Stored references", "", *how_compared(report.findings), ""]
        rows = [(f.checkpoint, f.what, f.how, said(f)) for f in report.findings]
        lines += markdown_table(("checkpoint", "what", "compared by", ""), rows)
    return "\n".join(lines)


def markdown_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A table, and an empty line after it."""
    lines = [header, ("---",) * len(header), *rows]
    return ["| " + " | ".join(escaped(cell) for cell in line) + " |" for line in lines] + [""]


def escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    for character in "\\`*_[]<>|#":
        text = text.replace(character, "\\" + character)
    return text.replace("\\|", "&#124;").replace("\\<", "&lt;").replace("\\>", "&gt;").replace("\n", " ")


def in_words(report: Report) -> str:
    """Versions and time."""
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return f"{versions}; {report.seconds:.0f} s"
