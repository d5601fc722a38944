"""What `minibert bench` prints and draws: one table for people, one JSON object for programs, one picture."""

import importlib.metadata
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from minibert import __version__
from minibert.bench.harness import PROC, read_field, total_memory
from minibert.bench.plan import BenchSettings
from minibert.bench.results import BenchResult, BenchRow, spread
from minibert.utils.device import cpu_features
from minibert.utils.plotting import pyplot, save_figure
from minibert.utils.printing import Figures, block, table

PACKAGES = (
    *("torch", "transformers", "accelerate", "sentence-transformers", "onnxruntime", "openvino", "ctranslate2"),
    *("tokenizers", "starlette", "uvicorn", "httptools", "msgspec", "uvloop"),
)
FEATURES = ("avx2", "avx512_f", "avx512_bf16", "amx_bf16")  # instruction sets that are printed
LEGEND = (
    "seconds: the median round, for the whole job, an epoch or a request; embedding and serving include tokenizing. "
    "tokens/s: without padding. speed-up: of minibert over this row in the same precision, round by round. roofline: "
    "the seconds that the matrix products alone need, as a share of the measured ones. peak MB: of the whole process, "
    "or of the GPU. difference, 1-cosine: the largest ones, to transformers (eager, float32) or minibert.embed; beside "
    "the CPU: both for our vectors, to those of the CPU in float32"
)
OURS = "#0072B2"  # blue and grey can be told apart with every kind of colour blindness, and in print
OTHERS = "#B0B0B0"


def machine(threads: int, device: str = "cpu") -> Figures:
    """Return the hardware and the threads that a figure was measured with."""
    return {
        "cpu": read_field(PROC / "cpuinfo", "model name") or platform.processor() or "unknown",
        "machine": platform.machine(),
        "system": platform.system(),
        "threads": threads,
        "memory GB": round(total_memory() / 1e9, 1),
        "instructions": sorted(cpu_features()),
    } | ({"gpu": torch.cuda.get_device_name()} if device == "cuda" else {})


def versions() -> dict[str, str]:
    """Return the versions of Python, minibert and the installed ones of PACKAGES."""
    installed = {
        package.name: package.version for package in importlib.metadata.distributions() if package.name in PACKAGES
    }
    return {"python": platform.python_version(), "minibert": __version__} | installed


def heading(settings: BenchSettings) -> str:
    """Return the first lines: where, with what, how much."""
    where = machine(settings.threads, settings.device)
    features = ", ".join(name for name in FEATURES if name in where["instructions"]) or where["machine"]
    installed = ", ".join(map(" ".join, versions().items()))
    amount = f"{settings.sentences:,} sentences, {settings.rounds} rounds in which each contestant takes one turn"
    hardware = f"{where.get('gpu', where['cpu'])}, {settings.threads} threads ({features})"
    lines = {"machine": hardware, "versions": installed, settings.kind: amount}
    return "\n".join(block(name, text) for name, text in lines.items())


def row_figures(row: BenchRow, result: BenchResult) -> Figures:
    """Return one row in plain types; a figure that was not measured is None or empty."""
    contestant = row.contestant
    figures: Figures = {name: getattr(contestant, name) for name in ("name", "title", "precision")}
    figures |= {name: value for name, value in vars(row).items() if name not in ("contestant", "samples", "equality")}
    figures |= {"ranked": row.ranked, "peak": row.peak, "samples": [asdict(sample) for sample in row.samples]}
    figures["speed"] = {unit: number / row.seconds for unit, number in row.size.items()} if row.ranked else {}
    measured = {
        "equality": row.equality,
        "seconds": spread(sample.seconds for sample in row.samples),
        "roofline": result.roofline(row),
        "ratio": None if contestant.ours else result.ratio(row),
    }
    figures |= {name: asdict(figure) if figure else None for name, figure in measured.items()}
    for name in row.samples[0].details if row.samples else ():  # p50, p99
        figures[name] = statistics.median(sample.details[name] for sample in row.samples)
    return figures


def digits(value: float) -> str:
    """Return a number with three significant digits."""
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def cells(row: Figures) -> dict[str, str]:
    """Return the cells of a row of the table by column; a row that is not ranked has only those of its equality."""
    shown = {}
    if row["ranked"]:
        for column, values in (("seconds", row["seconds"]), ("speed-up", row["ratio"])):
            shown[column] = digits(values["median"]) if values else ""
            shown[f"{column} range"] = f"{digits(values['least'])}-{digits(values['most'])}" if values else ""
        shown |= {f"{unit}/s": f"{row['speed'][unit]:,.0f}" for unit in ("tokens", "requests") if unit in row["speed"]}
        shown |= {"roofline": f"{row['roofline']['median']:.0%}"} if row["roofline"] else {}
        shown |= {"peak MB": f"{row['peak'] / 1e6:,.0f}"} if row["peak"] else {}
        shown |= {f"{name} ms": digits(1000 * row[name]) for name in ("p50", "p99") if name in row}
    if equality := row["equality"]:
        shown["difference"] = f"{equality['difference']:.1e}"
        shown["1-cosine"] = f"{max(0.0, 1 - equality['cosine']):.0e}"
    return shown


def result_table(rows: Sequence[Figures]) -> str:
    """Return the rows that ran or were compared, grouped by job and precision."""
    shown = [(row, cells(row)) for row in rows if row["samples"] or row["equality"]]
    columns = list(dict.fromkeys(column for _, of_row in shown for column in of_row))
    groups: dict[str, list[Sequence[str]]] = {}
    for row, of_row in shown:
        group = ", ".join(str(part) for part in (row["job"], row["at"], row["precision"]) if part)
        groups.setdefault(group, [[group, *[""] * len(columns)]])
        groups[group].append([f"  {row['title']}", *(of_row.get(column, "") for column in columns)])
    return table([["", *columns], *(line for lines in groups.values() for line in lines)])


def result_text(result: BenchResult) -> str:
    """Return everything about one checkpoint: its table and its notes."""
    config = result.config
    rows = [row_figures(row, result) for row in result.rows]
    names = {id(row): f"{row['title']} {row['precision']}" for row in rows}
    main = [row for row in rows if row["job"] == result.job and row["route"]]
    rates = [f"{kernel} {statistics.median(measured) / 1e9:,.0f}" for kernel, measured in result.rates.items()]
    notes = {
        "work": f"{len(result.lengths):,} rows ({result.origin}), {sum(result.lengths):,} tokens; "
        f"{result.flops / 1e12:.3g} TFLOP",
        "GFLOP/s": "; ".join(rates),
        **result.notes,
        "not ranked": "; ".join(f"{names[id(row)]}: {row['reason']}" for row in rows if row["reason"]),
        "routes": "; ".join(dict.fromkeys(f"{names[id(row)]}: {row['route']}" for row in main)),
        "WRONG": "; ".join(result.wrong),
        "TOO BUSY": "; ".join(result.doubts),
    }
    size = f"{config.num_hidden_layers} layers x {config.hidden_size}, {config.num_attention_heads} heads"
    texts = [block(name, text) for name, text in notes.items() if text]
    return "\n".join([f"{result.name}: {size}", result_table(rows), *texts])


def figures(settings: BenchSettings, results: Sequence[BenchResult], seconds: float) -> Figures:
    """Return everything in plain types. "ok": our own results equal those of the reference."""
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
    }


def draw(results: Sequence[BenchResult], path: Path) -> None:
    """Draw a bar for every contestant of the main job: its speed, beside the others with the same checkpoint."""
    figure, grid = pyplot().subplots(1, len(results), figsize=(14, 5), layout="constrained", squeeze=False)
    for axes, result in zip(grid[0], results, strict=True):
        rows = [row for row in result.rows if row.job == result.job and row.ranked]
        unit = next(iter(rows[0].size))
        names = [f"{row.contestant.title}, {row.contestant.precision}" + f", {row.at}" * bool(row.at) for row in rows]
        colours = [OURS if row.contestant.ours else OTHERS for row in rows]
        axes.barh(names, [row.size[unit] / row.seconds for row in rows], color=colours)
        axes.invert_yaxis()
        axes.set(title=result.name, xlabel=f"{unit} per second, more is better")
    save_figure(figure, path)
