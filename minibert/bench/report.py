"""What `minibert bench` prints and draws: one table for people, one JSON object for programs, one picture."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minibert.bench import machine
from minibert.bench.harness import Result, Row, spread
from minibert.bench.settings import Settings
from minibert.files import atomic_write
from minibert.plotting import pyplot
from minibert.printing import block, table

PACKAGES = (
    *("torch", "transformers", "accelerate", "sentence-transformers", "onnxruntime", "openvino", "ctranslate2"),
    *("tokenizers", "starlette", "uvicorn", "httptools", "msgspec", "uvloop"),
)
FEATURES = ("avx2", "avx512_f", "avx512_bf16", "amx_bf16")  # instruction sets that are printed
LEGEND = (
    "seconds: median of all rounds, of the whole job, of an epoch or of a request; embedding and serving include "
    "tokenizing. tokens/s: without padding. ours is: how many times as fast, in the same precision, round by round. "
    "roofline: the seconds that matrix products alone need, as a share of those that were taken. peak MB: of the whole "
    "process. difference, 1-cosine: the largest, to transformers (eager, float32) or minibert.embed"
)
OURS, OTHERS = "#0072B2", "#B0B0B0"  # blue and grey stay apart for every kind of colour blindness, and in print
STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}


def heading(settings: Settings) -> str:
    """The first lines: where, with what, how much."""
    where = machine.machine(settings.threads, settings.device)
    features = ", ".join(name for name in FEATURES if name in where["instructions"]) or where["machine"]
    installed = ", ".join(map(" ".join, machine.versions(PACKAGES).items()))
    amount = f"{settings.sentences:,} sentences, {settings.rounds} rounds in which every contestant takes a turn"
    hardware = f"{where.get('gpu', where['cpu'])}, {settings.threads} threads ({features})"
    lines = {"machine": hardware, "versions": installed, settings.size: f"{settings.kind}: {amount}"}
    return "\n".join(block(name, text) for name, text in lines.items())


def row_figures(row: Row, result: Result) -> dict[str, Any]:
    """One row in plain types."""
    contestant, seconds = row.contestant, spread(sample.seconds for sample in row.samples)
    figures = {name: value for name, value in vars(row).items() if name != "contestant"}
    figures |= {name: getattr(contestant, name) for name in ("name", "title", "precision")}
    figures |= {"ranked": row.ranked, "peak": row.peak, "seconds": seconds, "roofline": result.roofline(row)}
    figures["speed"] = {unit: number / row.seconds for unit, number in row.size.items()} if row.ranked else {}
    figures["ratio"] = {} if contestant.ours else result.ratio(row)
    for name in row.samples[0].details if row.samples else ():  # p50, p99, errors
        figures[name] = statistics.median(sample.details[name] for sample in row.samples)
    return figures | {"samples": [asdict(sample) for sample in row.samples]}


def digits(value: float) -> str:
    """Three significant digits."""
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def span(values: dict[str, float]) -> str:
    """The least and the most: "8.00-8.31"."""
    return f"{digits(values['least'])}-{digits(values['most'])}"


# Columns of the table, each from the figures of a row; empty where a figure is missing.
COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "seconds": lambda row: digits(row["seconds"]["median"]),
    "spread": lambda row: span(row["seconds"]),
    "CPU s": lambda row: digits(statistics.median(sample["cpu"] for sample in row["samples"] if sample["cpu"])),
    "tokens/s": lambda row: f"{row['speed']['tokens']:,.0f}",
    "requests/s": lambda row: f"{row['speed']['requests']:,.0f}",
    "ours is": lambda row: f"{row['ratio']['median']:.2f}",
    "spread ": lambda row: f"{row['ratio']['least']:.2f}-{row['ratio']['most']:.2f}",
    "roofline": lambda row: f"{row['roofline']['median']:.0%}",
    "peak MB": lambda row: f"{row['peak'] / 1e6:,.0f}" if row["peak"] else "",
    "p50 ms": lambda row: digits(1000 * row["p50"]),
    "p99 ms": lambda row: digits(1000 * row["p99"]),
    "difference": lambda row: f"{row['equality']['difference']:.1e}",
    "1-cosine": lambda row: f"{max(0.0, 1 - row['equality']['cosine']):.0e}",
}


def cell(column: str, row: dict[str, Any]) -> str:
    """One cell; what differs or failed has no figures but those of its equality."""
    try:
        return COLUMNS[column](row) if row["ranked"] or column in ("difference", "1-cosine") else ""
    except (KeyError, statistics.StatisticsError):
        return ""


def result_text(result: Result) -> str:
    """Everything about one checkpoint: its table and its notes."""
    config, rows = result.config, [row_figures(row, result) for row in result.rows]
    shown = [row for row in rows if row["samples"] or row["equality"]]
    columns = [column for column in COLUMNS if any(cell(column, row) for row in rows)]
    lines: list[Sequence[str]] = [("", *columns)]
    for group in dict.fromkeys((row["job"], row["at"], row["precision"]) for row in shown):
        lines.append((", ".join(str(part) for part in group if part), *[""] * len(columns)))
        members = [row for row in shown if (row["job"], row["at"], row["precision"]) == group]
        lines += [(f"  {row['title']}", *(cell(column, row) for column in columns)) for row in members]
    tokens, rates = sum(result.lengths), []
    for precision, kernels in result.rates.items():
        rates += [f"{precision} {kernel} {statistics.median(r) / 1e9:,.0f}" for kernel, r in kernels.items()]
    work = f"{len(result.lengths):,} rows ({result.origin}), {tokens:,} tokens; {result.flops / 1e12:.3g} TFLOP"
    notes = {"work": work, "GFLOP/s": "; ".join(rates)} | result.notes
    notes["not ranked"] = "; ".join(
        f"{row['title']} {row['precision']}: {row['reason']}" for row in rows if row["reason"]
    )
    main = [row for row in rows if row["job"] == result.job and row["route"]]
    notes["routes"] = "; ".join(dict.fromkeys(f"{row['title']} {row['precision']}: {row['route']}" for row in main))
    notes |= {"WRONG": "; ".join(result.wrong), "TOO BUSY": "; ".join(result.doubts)}
    size = f"{config.num_hidden_layers} layers x {config.hidden_size}, {config.num_attention_heads} heads"
    texts = [block(name, text) for name, text in notes.items() if text]
    return "\n".join([f"{result.name}: {size}", table(lines), *texts])


def goals_text(results: Sequence[Result]) -> str:
    """The goals, reached or not."""
    words = {True: "reached", False: "NOT REACHED", None: "not measured"}
    lines: list[Sequence[str]] = [("goal", "", "at least", "measured", "")]
    for goal in [goal for result in results for goal in result.goals]:
        value = "" if goal["value"] is None else f"{goal['value']:.2f}"
        lines.append((goal["model"], goal["goal"], f"{goal['bound']:.2f}", value, words[goal["reached"]]))
    return table(lines, left=2)


def figures(settings: Settings, results: Sequence[Result], seconds: float) -> dict[str, Any]:
    """Everything in plain types; "ok": our own results are those of the reference."""
    models = []
    for result in results:
        plain = {"rows": [row_figures(row, result) for row in result.rows], "config": asdict(result.config)}
        models.append(vars(result) | plain | {"wrong": result.wrong, "too_busy": result.doubts})
    return {
        "ok": not any(result.wrong for result in results),
        "machine": machine.machine(settings.threads, settings.device),
        "versions": machine.versions(PACKAGES),
        "settings": asdict(settings),
        "seconds": round(seconds, 1),
        "models": models,
        "goals": [goal for result in results for goal in result.goals],
    }


def draw(results: Sequence[Result], path: Path) -> None:
    """Bars with the speed of every contestant, and below them lines for each thing that grows."""
    plt = pyplot()
    growing = list(
        dict.fromkeys(row.job for result in results for row in result.rows if "tokens" in row.size and row.at)
    )
    with plt.rc_context(STYLE), atomic_write(path) as temporary:
        figure = plt.figure(figsize=(14, 5 + 4 * bool(growing)), layout="constrained")
        top, *below = figure.subfigures(1 + bool(growing), 1, squeeze=False)[:, 0]
        for axes, result in zip(top.subplots(1, len(results), squeeze=False)[0], results, strict=True):
            draw_bars(axes, result)
        for number, what in enumerate(growing):
            draw_lines(below[0].add_subplot(1, len(growing), number + 1), results, what)
        figure.savefig(temporary, dpi=140, format=path.suffix[1:], facecolor="white")
        plt.close(figure)


def draw_bars(axes: Any, result: Result) -> None:
    """Units a second of each contestant in the main job, ours beside it."""
    rows = [row for row in result.rows if row.job == result.job and row.ranked]
    unit = next(iter(rows[0].size))
    labels = [f"{row.contestant.title}, {row.contestant.precision}" + f", {row.at}" * bool(row.at) for row in rows]
    colours = [OURS if row.contestant.ours else OTHERS for row in rows]
    bars = axes.barh(range(len(rows)), [row.size[unit] / row.seconds for row in rows], color=colours)
    ratios = [result.ratio(row) for row in rows]
    words = ["" if row.contestant.ours else f" ours {r['median']:.2f} x" for row, r in zip(rows, ratios, strict=True)]
    axes.bar_label(bars, words)
    axes.set_yticks(range(len(rows)), labels)
    axes.invert_yaxis()
    axes.set(title=result.name, xlabel=f"{unit} a second, more is better")


def draw_lines(axes: Any, results: Sequence[Result], what: str) -> None:
    """Tokens a second of each contestant and checkpoint, by what grows."""
    for result in results:
        rows = [row for row in result.rows if row.job == what and row.ranked]
        for contestant in dict.fromkeys(row.contestant for row in rows):
            points = [(row.at, row.size["tokens"] / row.seconds) for row in rows if row.contestant == contestant]
            axes.plot(*zip(*points, strict=True), marker="o", label=f"{contestant.title}, {result.name}")
    axes.set(title=f"tokens a second, by {what}", xscale="log", ylim=(0, None))
    axes.legend(frameon=False)
