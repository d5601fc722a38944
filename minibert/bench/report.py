"""What `minibert bench` prints and draws: one table for people, one JSON object for programs, one picture."""

import importlib.metadata
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from minibert import __version__
from minibert.bench.harness import PROC, BenchResult, Row, read_field, spread, total_memory
from minibert.bench.settings import Settings
from minibert.utils.device import cpu_features
from minibert.utils.plotting import pyplot, save_figure
from minibert.utils.printing import block, table

PACKAGES = (
    *("torch", "transformers", "accelerate", "sentence-transformers", "onnxruntime", "openvino", "ctranslate2"),
    *("tokenizers", "starlette", "uvicorn", "httptools", "msgspec", "uvloop"),
)
FEATURES = ("avx2", "avx512_f", "avx512_bf16", "amx_bf16")  # instruction sets that are printed
LEGEND = (
    "seconds: median of all rounds, of the whole job, of an epoch or of a request; embedding and serving include "
    "tokenizing. tokens/s: without padding. ours is: how many times as fast, in the same precision, round by round. "
    "roofline: the seconds that matrix products alone need, as a share of those that were taken. launches: kernels on "
    "the GPU. peak MB: of the whole process, or of a GPU. difference, 1-cosine: the largest, to transformers (eager, "
    "float32) or minibert.embed; beside the CPU: both of our vectors, to those of the CPU in float32"
)
OURS, OTHERS = "#0072B2", "#B0B0B0"  # blue and grey stay apart for every kind of colour blindness, and in print


def machine(threads: int, device: str = "cpu") -> dict[str, Any]:
    """The hardware and the threads that a figure was measured with."""
    return {
        "cpu": read_field(PROC / "cpuinfo", "model name") or platform.processor() or "unknown",
        "machine": platform.machine(),
        "system": platform.system(),
        "threads": threads,
        "memory GB": round(total_memory() / 1e9, 1),
        "instructions": sorted(cpu_features()),
    } | ({"gpu": torch.cuda.get_device_name()} if device == "cuda" else {})


def versions() -> dict[str, str]:
    """The versions of Python, minibert and those of PACKAGES that are installed."""
    found = {one.name: one.version for one in importlib.metadata.distributions() if one.name in PACKAGES}
    return {"python": platform.python_version(), "minibert": __version__} | found


def heading(settings: Settings) -> str:
    """The first lines: where, with what, how much."""
    where = machine(settings.threads, settings.device)
    features = ", ".join(name for name in FEATURES if name in where["instructions"]) or where["machine"]
    installed = ", ".join(map(" ".join, versions().items()))
    amount = f"{settings.sentences:,} sentences, {settings.rounds} rounds in which every contestant takes a turn"
    hardware = f"{where.get('gpu', where['cpu'])}, {settings.threads} threads ({features})"
    lines = {"machine": hardware, "versions": installed, settings.size: f"{settings.kind}: {amount}"}
    return "\n".join(block(name, text) for name, text in lines.items())


def row_figures(row: Row, result: BenchResult) -> dict[str, Any]:
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


# Columns of the table, each from the figures of a row; empty where a figure is missing.
COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "seconds": lambda row: digits(row["seconds"]["median"]),
    "spread": lambda row: f"{digits(row['seconds']['least'])}-{digits(row['seconds']['most'])}",
    "tokens/s": lambda row: f"{row['speed']['tokens']:,.0f}",
    "requests/s": lambda row: f"{row['speed']['requests']:,.0f}",
    "ours is": lambda row: f"{row['ratio']['median']:.2f}",
    "spread ": lambda row: f"{row['ratio']['least']:.2f}-{row['ratio']['most']:.2f}",
    "roofline": lambda row: f"{row['roofline']['median']:.0%}",
    "launches": lambda row: f"{row['launches']:,}" if row["launches"] else "",
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


def result_text(result: BenchResult) -> str:
    """Everything about one checkpoint: its table and its notes."""
    config, rows = result.config, [row_figures(row, result) for row in result.rows]
    shown = [row for row in rows if row["samples"] or row["equality"]]
    columns = [column for column in COLUMNS if any(cell(column, row) for row in rows)]
    lines: list[Sequence[str]] = [("", *columns)]
    for group in dict.fromkeys((row["job"], row["at"], row["precision"]) for row in shown):
        lines.append((", ".join(str(part) for part in group if part), *[""] * len(columns)))
        members = [row for row in shown if (row["job"], row["at"], row["precision"]) == group]
        lines += [(f"  {row['title']}", *(cell(column, row) for column in columns)) for row in members]
    counts = f"{len(result.lengths):,} rows ({result.origin}), {sum(result.lengths):,} tokens"
    rates = [f"{kernel} {statistics.median(found) / 1e9:,.0f}" for kernel, found in result.rates.items()]
    notes = {"work": f"{counts}; {result.flops / 1e12:.3g} TFLOP", "GFLOP/s": "; ".join(rates)} | result.notes
    notes["not ranked"] = "; ".join(
        f"{row['title']} {row['precision']}: {row['reason']}" for row in rows if row["reason"]
    )
    main = [row for row in rows if row["job"] == result.job and row["route"]]
    notes["routes"] = "; ".join(dict.fromkeys(f"{row['title']} {row['precision']}: {row['route']}" for row in main))
    notes |= {"WRONG": "; ".join(result.wrong), "TOO BUSY": "; ".join(result.doubts)}
    size = f"{config.num_hidden_layers} layers x {config.hidden_size}, {config.num_attention_heads} heads"
    texts = [block(name, text) for name, text in notes.items() if text]
    return "\n".join([f"{result.name}: {size}", table(lines), *texts])


def goals_text(results: Sequence[BenchResult]) -> str:
    """The goals, reached or not."""
    words = {True: "reached", False: "NOT REACHED", None: "not measured"}
    lines: list[Sequence[str]] = [("goal", "", "at least", "measured", "")]
    for goal in [goal for result in results for goal in result.goals]:
        value = "" if goal["value"] is None else f"{goal['value']:.2f}"
        lines.append((goal["model"], goal["goal"], f"{goal['bound']:.2f}", value, words[goal["reached"]]))
    return table(lines, left=2)


def figures(settings: Settings, results: Sequence[BenchResult], seconds: float) -> dict[str, Any]:
    """Everything in plain types; "ok": our own results are those of the reference."""
    return {
        "ok": not any(result.wrong for result in results),
        "machine": machine(settings.threads, settings.device),
        "versions": versions(),
        "settings": asdict(settings),
        "seconds": round(seconds, 1),
        "models": [
            vars(result)
            | {"rows": [row_figures(row, result) for row in result.rows], "config": asdict(result.config)}
            | {"wrong": result.wrong, "too_busy": result.doubts}
            for result in results
        ],
        "goals": [goal for result in results for goal in result.goals],
    }


def draw(results: Sequence[BenchResult], path: Path) -> None:
    """Bars for each checkpoint: the units a second of every contestant in the main job."""
    figure, grid = pyplot().subplots(1, len(results), figsize=(14, 5), layout="constrained", squeeze=False)
    for axes, result in zip(grid[0], results, strict=True):
        rows = [row for row in result.rows if row.job == result.job and row.ranked]
        unit = next(iter(rows[0].size))
        names = [f"{row.contestant.title}, {row.contestant.precision}" + f", {row.at}" * bool(row.at) for row in rows]
        colours = [OURS if row.contestant.ours else OTHERS for row in rows]
        axes.barh(names, [row.size[unit] / row.seconds for row in rows], color=colours)
        axes.invert_yaxis()
        axes.set(title=result.name, xlabel=f"{unit} a second, more is better")
    save_figure(figure, path)
