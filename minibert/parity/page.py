"""The parity report as one HTML page (page.html): no script, no network, light and dark, readable from disk."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from minibert.parity.compare import DROPOUT, TENSORS, Row
from minibert.parity.ladder import Result
from minibert.parity.report import HEADER, Report, divergence, how_compared, in_words, said, steps
from minibert.templates import templates

KEY = ("equal", "1 to 9 ulp", "10 to 99", "100 to 9,999", "10,000 to 999,999", "1,000,000 and more")


def page(report: Report) -> str:
    """The whole page."""
    return (
        templates(Path(__file__).parent)
        .get_template("page.html")
        .render(
            report=report,
            how=in_words(report),
            key=KEY,
            header=HEADER,
            sections=[section(result) for result in report.results],
            compared=how_compared(report.findings),
            references=[(f.checkpoint, f.what, f.how, said(f)) for f in report.findings],
        )
    )


def section(result: Result) -> dict[str, Any]:
    """One checkpoint: heat strips, the first difference if there is one, the ladder."""
    strips = (strip(result, TENSORS, "dropout off"), strip(result, DROPOUT, "dropout on, same seed"))
    return {
        "result": result,
        "equal": sum(row.equal for row in result.rows),
        "difference": divergence(result),
        "strips": [one for one in strips if one],
        "steps": [line.cells() for line in steps(result)],
    }


def strip(result: Result, rung: str, title: str) -> dict[str, Any] | None:
    """A grid with a row for each stage; a column for what stands outside the layers, then one for each layer."""
    worst: dict[tuple[str, int | None], Row] = {}
    for row in result.rows:
        known = worst.get((row.stage, row.layer))
        if row.rung == rung and (known is None or (row.ulp, row.largest) > (known.ulp, known.largest)):
            worst[row.stage, row.layer] = row
    if not worst:
        return None
    layers = 1 + max((layer for _, layer in worst if layer is not None), default=0)
    stages = dict.fromkeys(stage for stage, _ in worst)
    rows = [(stage, [square(worst.get((stage, layer))) for layer in (None, *range(layers))]) for stage in stages]
    return {"title": title, "layers": layers, "rows": rows}


def square(row: Row | None) -> dict[str, Any] | None:
    """One square, with the figures for a pointer that rests on it."""
    if row is None:
        return None
    apart = f"{row.largest:.1e}" if math.isfinite(row.largest) else "not comparable"
    words = "equal" if row.equal else f"{row.ulp:,} ulp, {apart}"
    return {"level": 0 if row.equal else max(1, level(row.ulp)), "words": f"{row.place}: {words}"}


def level(ulp: int) -> int:
    """The colour of a difference: 0 for none, then by powers of ten as in KEY."""
    return 0 if ulp == 0 else min(5, 1 + sum(ulp >= limit for limit in (10, 100, 10_000, 1_000_000)))
