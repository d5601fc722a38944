"""The benchmark as a picture: sentences a second of everybody, and how the speed changes with one thing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minibert.files import written_whole
from minibert.lab.bench.contestants import NAMED
from minibert.lab.bench.report import times
from minibert.lab.bench.results import Growth, Result, Row, ratio
from minibert.lab.pictures import pyplot

# Blue, orange and grey stay apart for every kind of colour blindness, and in print.
OURS, THEIRS, PEER = "#0072B2", "#D55E00", "#B0B0B0"
ORDER = ("float32", "bfloat16", "float16", "int8")
SHOWN = ("tokens in a text", "sentences", "tokens in a batch", "threads")  # of what grows
MODELS = (("-", "o"), ("--", "s"), (":", "^"))  # line and marker of each checkpoint
ALIKE = 0.9995  # a cosine below this is said
ACROSS = 2  # checkpoints beside each other


def draw(results: Sequence[Result], path: Path) -> None:
    """Bars for each checkpoint, and below them lines for each thing that grows, written to `path`."""
    plt = pyplot()
    growing = [what for what in SHOWN if any(growth.what == what for result in results for growth in result.growth)]
    longest = max(sum(row.ranked for row in result.rows) for result in results)
    across = max(1, min(ACROSS, len(results)))
    down = math.ceil(len(results) / across)
    heights = [down * (1.1 + 0.3 * longest), *([3.1] if growing else [])]
    style = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with plt.rc_context(style), written_whole(path) as temporary:
        figure = plt.figure(figsize=(6.6 * max(across, len(growing) / 2), sum(heights)), layout="constrained")
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        parts[0].suptitle("[CLS] vectors, tokenizing included: sentences a second, more is better", fontweight="bold")
        grid = parts[0].subplots(down, across, squeeze=False).flat
        for axes, result in itertools.zip_longest(grid, results):
            if result:
                draw_bars(axes, result)
            else:
                axes.axis("off")
        if growing:
            lines = parts[1].subplots(1, len(growing), squeeze=False)[0]
            for axes, what in zip(lines, growing, strict=True):
                draw_lines(axes, results, what)
            handles, labels = lines[0].get_legend_handles_labels()
            parts[1].legend(handles, labels, loc="outside lower center", ncols=min(2, len(labels)), frameon=False)
        figure.savefig(temporary, dpi=140, format=path.suffix[1:], facecolor="white")
        plt.close(figure)


def draw_bars(axes: Any, result: Result) -> None:
    """Sentences a second, the fastest of each precision on top; behind each bar, how ours compares."""
    rows = sorted(
        (row for row in result.rows if row.ranked),
        key=lambda row: (ORDER.index(row.contestant.precision), row.wall.median),
    )
    speeds = [result.texts / row.wall.median for row in rows]
    places = places_of(rows)
    colours = [OURS if row.contestant.ours else PEER for row in rows]
    least = [speed - result.texts / row.wall.most for speed, row in zip(speeds, rows, strict=True)]
    most = [result.texts / row.wall.least - speed for speed, row in zip(speeds, rows, strict=True)]
    axes.barh(places, speeds, color=colours, height=0.8, xerr=(least, most), error_kw={"lw": 1, "ecolor": "#333333"})
    for row, place, speed, reach in zip(rows, places, speeds, most, strict=True):
        label = axes.annotate(
            words(row, result, speed),
            (speed + reach, place),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
        label.set_fontweight("bold" if row.contestant.ours else "normal")
    axes.set_yticks(places, list(map(title_of, rows)))
    for tick, row in zip(axes.get_yticklabels(), rows, strict=True):
        tick.set_fontweight("bold" if row.contestant.ours else "normal")
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.4 * max(speed + reach for speed, reach in zip(speeds, most, strict=True)))
    axes.set_xlabel(f"sentences a second ({result.texts:,} sentences, {result.tokens:,} tokens)")
    axes.set_title(result.name)


def places_of(rows: Sequence[Row]) -> list[float]:
    """Where each bar stands: one below the other, with a gap between precisions."""
    places: list[float] = []
    for number, row in enumerate(rows):
        new = number > 0 and row.contestant.precision != rows[number - 1].contestant.precision
        places.append(places[-1] + (1.6 if new else 1.0) if places else 0.0)
    return places


def title_of(row: Row) -> str:
    """Name and precision, and the smallest cosine to the reference where it tells."""
    near = f", cosine {row.equality.cosine:.3f}" if row.equality and row.equality.cosine < ALIKE else ""
    return f"{row.contestant.title}  ({row.contestant.precision}{near})"


def words(row: Row, result: Result, speed: float) -> str:
    """The speed, and for a peer how many times as fast ours is."""
    ours = result.rival(row)
    measured = ratio(row, ours) if ours and not row.contestant.ours else None
    return f"{speed:,.0f}" + (f"   ours {times(measured.median)} x" if measured else "")


def draw_lines(axes: Any, results: Sequence[Result], what: str) -> None:
    """Tokens a second of each contestant and checkpoint, by what grows."""
    drawn = [
        (result, growth, look)
        for result, look in zip(results, itertools.cycle(MODELS))
        for growth in result.growth
        if growth.what == what
    ]
    for result, growth, (line, marker) in drawn:
        ours = growth.contestant.startswith("minibert")
        axes.plot(
            [point["at"] for point in growth.points],
            speeds_of(growth),
            color=OURS if ours else THEIRS,
            marker=marker,
            linestyle=line,
            label=f"{name_of(growth)}; {result.name}",
        )
    axes.set_xscale("log", base=10 if what == "sentences" else 2)
    ticks = sorted({point["at"] for _, growth, _ in drawn for point in growth.points})
    axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(0, 1.1 * max(max(speeds_of(growth)) for _, growth, _ in drawn))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_title("tokens a second", fontsize=9, loc="left")
    axes.set_xlabel(what)


def name_of(growth: Growth) -> str:
    """ "minibert, float32"."""
    contestant = NAMED[growth.contestant]
    return f"{contestant.title}, {contestant.precision}"


def speeds_of(growth: Growth) -> list[float]:
    """Tokens a second."""
    return [point["tokens"] / point["seconds"] for point in growth.points]
