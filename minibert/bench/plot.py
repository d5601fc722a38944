"""The benchmark as a picture: sentences a second of everybody, and how the speed changes with one thing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minibert.bench.results import Result, ratio
from minibert.files import atomic_write
from minibert.plotting import pyplot

# Blue, orange and grey stay apart for every kind of colour blindness, and in print.
OURS, THEIRS, PEER = "#0072B2", "#D55E00", "#B0B0B0"
ORDER = ("float32", "bfloat16", "float16", "int8")
LOOKS = (("-", "o"), ("--", "s"), (":", "^"))  # line and marker of each checkpoint
ALIKE = 0.9995  # a cosine below this is said
STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}


def draw(results: Sequence[Result], path: Path) -> None:
    """Bars for each checkpoint, and below them lines for each thing that grows, written to `path`."""
    plt = pyplot()
    growing = list(dict.fromkeys(growth.what for result in results for growth in result.growth))
    most = max(len(result.ranked(ours=None)) for result in results)
    heights = [1.1 + 0.3 * most, *([3.1] if growing else [])]
    width = 6.6 * max(len(results), len(growing) / 2)
    with plt.rc_context(STYLE), atomic_write(path) as temporary:
        figure = plt.figure(figsize=(width, sum(heights)), layout="constrained")
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        parts[0].suptitle("[CLS] vectors, tokenizing included: sentences a second, more is better", fontweight="bold")
        for axes, result in zip(parts[0].subplots(1, len(results), squeeze=False)[0], results, strict=True):
            draw_bars(axes, result)
        if growing:
            lines = parts[1].subplots(1, len(growing), squeeze=False)[0]
            for axes, what in zip(lines, growing, strict=True):
                draw_lines(axes, results, what)
            handles, labels = lines[0].get_legend_handles_labels()
            parts[1].legend(handles, labels, loc="outside lower center", ncols=min(2, len(labels)), frameon=False)
        figure.savefig(temporary, dpi=140, format=path.suffix[1:], facecolor="white")
        plt.close(figure)


def draw_bars(axes: Any, result: Result) -> None:
    """Sentences a second; behind each bar, how ours compares."""
    place, names, precision, end, texts = 0.0, {}, "", 0.0, len(result.lengths)
    for row in (row for precision in ORDER for row in result.ranked(precision, ours=None)):
        place += 1.0 if row.backend.precision in ("", precision) else 1.6  # a gap between precisions
        precision = row.backend.precision
        speed, least, most = (texts / taken for taken in (row.seconds.median, row.seconds.most, row.seconds.least))
        weight, colour = ("bold", OURS) if row.backend.ours else ("normal", PEER)
        axes.barh(place, speed, color=colour, height=0.8, xerr=[[speed - least], [most - speed]], ecolor="#333333")
        measured = None if row.backend.ours else ratio(row, result.rival(row))
        words = f" {speed:,.0f}" + (f"   ours {measured.median:.2f} x" if measured else "")
        axes.text(most, place, words, va="center", fontsize=8, fontweight=weight)
        near = row.equality.cosine if row.equality else 1.0
        names[place] = f"{row.backend.title}  ({precision}{f', cosine {near:.3f}' if near < ALIKE else ''})"
        end = max(end, most)
    axes.set_yticks(list(names), list(names.values()))
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.4 * end)
    axes.set_xlabel(f"sentences a second ({texts:,} sentences, {sum(result.lengths):,} tokens)")
    axes.set_title(result.name)


def draw_lines(axes: Any, results: Sequence[Result], what: str) -> None:
    """Tokens a second of each backend and checkpoint, by what grows."""
    ticks: set[float] = set()
    most = 0.0
    for result, (line, marker) in zip(results, itertools.cycle(LOOKS), strict=False):  # cycle has no end
        for growth in (growth for growth in result.growth if growth.what == what):
            places, speeds = [point["at"] for point in growth.points], [point["speed"] for point in growth.points]
            label = f"{growth.backend.title}, {growth.backend.precision}; {result.name}"
            colour = OURS if growth.backend.ours else THEIRS
            axes.plot(places, speeds, color=colour, marker=marker, linestyle=line, label=label)
            ticks, most = ticks | set(places), max(most, *speeds)
    axes.set_xscale("log", base=10 if what == "sentences" else 2)
    axes.set_xticks(sorted(ticks), [f"{tick:,.0f}" for tick in sorted(ticks)])
    axes.minorticks_off()
    axes.set_ylim(0, 1.1 * most)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    axes.set_title(f"tokens a second, by {what}", fontsize=9, loc="left")
