"""The parity report as one HTML page: no script, no network, light and dark, readable from disk."""

from __future__ import annotations

import math
from html import escape

from minibert.lab.parity.compare import DROPOUT, TENSORS, Row
from minibert.lab.parity.ladder import Result
from minibert.lab.parity.report import HEADER, Report, divergence, how_compared, in_words, said, steps

STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5b6877; --page: #fbfcfd; --line: #dde3ea; --card: #fff;
  --q0: #cfe8dc; --q1: #f6e7b4; --q2: #f3cd85; --q3: #eba565; --q4: #dd7250; --q5: #c0392b;
  --good: #1d7a50; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ef; --soft: #9aa7b5; --page: #12171d; --line: #2b343f;
  --card: #1a2129; --q0: #1f4d3a; --q1: #59501f; --q2: #7a5f1d; --q3: #96591f; --q4: #ad4b2a; --q5: #d23f31;
  --good: #6fce9f; --bad: #ff8a80; } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 68rem; padding: 2rem 1.25rem 4rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif }
h1 { font-size: 1.35rem; margin: 0 } h2 { font-size: 1.05rem; margin: 0 }
.verdict { font-size: 1.7rem; font-weight: 600; margin: .3rem 0; color: var(--good) } .bad { color: var(--bad) }
.soft { color: var(--soft) }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 1rem 1.25rem; margin: 1rem 0 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100% }
th { text-align: left; font-weight: 600; color: var(--soft) } th, td { padding: .15rem .6rem .15rem 0 }
.steps td:nth-child(n+3):nth-child(-n+6), .steps th:nth-child(n+3):nth-child(-n+6) { text-align: right }
.steps tr + tr { border-top: 1px solid var(--line) }
.small { display: grid; grid-template-columns: repeat(auto-fill, minmax(22rem, 1fr)); gap: 1rem }
.small section { margin: 0 } .small section:has(details[open]) { grid-column: 1 / -1 }
.wide { overflow-x: auto }
.strips { display: flex; flex-wrap: wrap; gap: 1rem 2.5rem; margin: .7rem 0 }
.strip { display: inline-grid; gap: 2px; align-items: center; font-size: .78rem }
.strip i { width: 1.25rem; height: .95rem; border-radius: 2px }
.strip b { font-weight: 400; color: var(--soft); text-align: center }
.strip span { padding-right: .6rem; white-space: nowrap }
.key i { display: inline-block; width: 1rem; height: .8rem; border-radius: 2px; margin: 0 .3rem 0 .9rem;
  vertical-align: -1px }
.q0 { background: var(--q0) } .q1 { background: var(--q1) } .q2 { background: var(--q2) } .q3 { background: var(--q3) }
.q4 { background: var(--q4) } .q5 { background: var(--q5) }
summary { cursor: pointer; color: var(--soft) } summary:hover { color: var(--ink) }
"""
KEY = ("equal", "1 to 9 ulp", "10 to 99", "100 to 9,999", "10,000 to 999,999", "1,000,000 and more")


def page(report: Report) -> str:
    """The whole page."""
    good = "" if report.ok else " bad"
    key = "".join(f'<i class="q{level}"></i>{escape(words)}' for level, words in enumerate(KEY))
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>minibert parity</title><style>{STYLE}</style><body>",
        f'<h1>minibert parity</h1><p class="verdict{good}">{escape(report.verdict)}</p>',
        f'<p class="soft">{escape(report.against)}; {escape(in_words(report))}.</p>',
        f'<p class="soft key">Largest difference in units in the last place of float32:<br>{key}</p>',
        *(section(result) for result in report.results if not result.tiny),
        f'<div class="small">{"".join(section(result) for result in report.results if result.tiny)}</div>',
        references(report),
        "</body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def section(result: Result) -> str:
    """One checkpoint: heat strips, the first difference if there is one, the ladder."""
    strips = strip(result, TENSORS, "dropout off") + strip(result, DROPOUT, "dropout on, same seed")
    difference = "".join(f'<p class="bad">{escape(line)}</p>' for line in divergence(result))
    lines = steps(result)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line.cells()) + "</tr>" for line in lines)
    header = "".join(f"<th>{escape(name)}</th>" for name in HEADER)
    opened = " open" if result.first else ""
    return (
        f'<section><h2>{escape(result.checkpoint)}</h2><div class="soft">{escape(result.origin)}; '
        f"{sum(row.equal for row in result.rows):,} of {len(result.rows):,} tensors bit-identical; "
        f"{result.seconds:.0f} s</div>{difference}"
        f"<details{' open' if not result.tiny or result.first else ''}><summary>stages by layer</summary>"
        f'<div class="strips wide">{strips}</div></details>'
        f'<details{opened}><summary>all {len(lines)} steps</summary><div class="wide"><table class="steps">'
        f"<tr>{header}</tr>{rows}</table></div></details></section>"
    )


def level(ulp: int) -> int:
    """The colour of a difference: 0 for none, then by powers of ten as in KEY."""
    return 0 if ulp == 0 else min(5, 1 + sum(ulp >= limit for limit in (10, 100, 10_000, 1_000_000)))


def strip(result: Result, rung: str, title: str) -> str:
    """A grid with a row for each stage; a column for what stands outside the layers, then one for each layer."""
    worst: dict[tuple[str, int | None], Row] = {}
    for row in result.rows:
        known = worst.get((row.stage, row.layer))
        if row.rung == rung and (known is None or (row.ulp, row.largest) > (known.ulp, known.largest)):
            worst[row.stage, row.layer] = row
    if not worst:
        return ""
    layers = 1 + max((layer for _, layer in worst if layer is not None), default=0)
    cells = [f"<b></b><b></b>{''.join(f'<b>{i}</b>' for i in range(layers))}"]
    for stage in dict.fromkeys(stage for stage, _ in worst):
        filled = "".join(cell(worst.get((stage, layer))) for layer in (None, *range(layers)))
        cells.append(f"<span>{escape(stage)}</span>{filled}")
    columns = f"grid-template-columns: auto repeat({layers + 1}, 1.25rem)"
    grid = f'<div class="strip" style="{columns}">{"".join(cells)}</div>'
    return f'<div><div class="soft">{escape(title)}</div>{grid}</div>'


def cell(row: Row | None) -> str:
    """One square, with the figures for a pointer that rests on it."""
    if row is None:
        return "<b></b>"
    apart = f"{row.largest:.1e}" if math.isfinite(row.largest) else "not comparable"
    words = "equal" if row.equal else f"{row.ulp:,} ulp, {apart}"
    return f'<i class="q{0 if row.equal else max(1, level(row.ulp))}" title="{escape(row.place)}: {escape(words)}"></i>'


def references(report: Report) -> str:
    """Stored references and published values."""
    if not report.findings:
        return ""
    cells = [(f.checkpoint, f.what, f.how, said(f)) for f in report.findings]
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells)
    how = "".join(f'<p class="soft">{escape(line)}</p>' for line in how_compared(report.findings))
    head = "<tr><th>checkpoint</th><th>what</th><th>compared by</th><th></th></tr>"
    return f'<section><h2>Stored references</h2>{how}<div class="wide"><table>{head}{rows}</table></div></section>'
