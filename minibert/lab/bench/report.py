"""What `minibert bench` prints: tables for people, and one dictionary for programs."""

from __future__ import annotations

import importlib.metadata
import math
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from minibert.lab.bench.contestants import NAMED
from minibert.lab.bench.process import available_bytes
from minibert.lab.bench.results import Goal, Growth, Middle, Result, Row, goals_of, ratio
from minibert.lab.bench.run import Plan
from minibert.lab.bench.work import FORMULA
from minibert.printing import beside, block, table

PACKAGES = (
    "minibert",
    "torch",
    "transformers",
    "tokenizers",
    "sentence-transformers",
    "onnxruntime",
    "openvino",
    "ctranslate2",
    "numpy",
)
TOLD = ("avx2", "avx512_f", "avx512_bf16", "amx_bf16")  # of the instruction sets
HEADER = ("", "seconds", "spread", "CPU s", "ours is", "spread", "wall", "peak MB", "+MB", "difference", "1-cosine")
LEGEND = (
    "seconds: median of all rounds, tokenizing included; CPU s: of all threads; ours is: how many times as fast, at "
    "equal precision (int8: against our fastest), the median of the ratios of each round; wall: the seconds that "
    "matrix products alone would take, as a share of those it took; peak MB: of the whole process, loading included "
    "(each has torch and its tokenizer), +MB: what the work took above the loaded process; difference (largest) and "
    "1-cosine (largest): from transformers, eager, float32",
    "wall: " + FORMULA,
)


def machine(plan: Plan) -> dict[str, Any]:
    """What it is measured on."""
    figures: dict[str, Any] = {
        "cpu": cpu_name(),
        "machine": platform.machine(),
        "system": platform.system(),
        "threads": plan.threads,
        "available GB": round(available_bytes() / 1e9, 1),
        "instructions": sorted(name for name, has in torch.cpu.get_capabilities().items() if has is True),
    }
    if plan.device == "cuda":
        figures["gpu"] = torch.cuda.get_device_name()
    return figures


def cpu_name() -> str:
    """As the system calls it."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8").splitlines() if listing.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def versions() -> dict[str, str]:
    """Package -> version, or "not installed"."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def heading(plan: Plan) -> str:
    """The first lines: where, with what, how much."""
    where = machine(plan)
    features = ", ".join(name for name in TOLD if name in where["instructions"]) or where["machine"]
    device = where.get("gpu", where["cpu"])
    has = ", ".join(f"{name} {version}" for name, version in versions().items())
    size = f"{plan.name}: {plan.sentences:,} sentences, {plan.rounds} rounds in which everybody takes a turn"
    return "\n".join(
        [
            block("machine", f"{device}, {plan.threads} threads ({features})"),
            block("versions", has),
            block("plan", size),
        ]
    )


# ---------------------------------------------------------------------------------------------------------------
# Numbers in words


def seconds(value: float) -> str:
    """Three digits that count."""
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def spread(middle: Middle, digits: Any = seconds) -> str:
    """ "8.0-8.3"."""
    return f"{digits(middle.least)}-{digits(middle.most)}"


def times(value: float) -> str:
    """ "2.71"."""
    return f"{value:.2f}"


def megabytes(value: float) -> str:
    """Of 10^6 bytes."""
    return f"{value / 1e6:,.0f}"


# ---------------------------------------------------------------------------------------------------------------
# Tables


def result_text(result: Result) -> str:
    """Everything about one checkpoint."""
    config = result.config
    title = (
        f"{result.name}: {config.num_hidden_layers} layers x {config.hidden_size}, {config.num_attention_heads} heads"
    )
    mean = result.tokens / result.texts
    work = (
        f"{result.texts:,} sentences ({result.origin}), {result.tokens:,} tokens, mean {mean:.1f}, longest "
        f"{result.longest}; {result.flops / 1e12:.3g} TFLOP"
    )
    parts = [title, block("work", work), *map(rates_text, [result]), rows_text(result), *absent(result)]
    routes = [f"{row.contestant.precision}: {row.route}" for row in result.rows if row.contestant.ours and row.route]
    parts.append(block("our route", *routes))
    parts += [block(*line) for line in small_print(result)]
    parts += [beside(name, lines) for name, lines in growth_tables(result)]
    return "\n".join(parts)


def rates_text(result: Result) -> str:
    """The measured rates of products."""
    ways = [
        f"{precision}: " + ", ".join(f"{way} {Middle.of(values).median / 1e9:,.0f}" for way, values in ways.items())
        for precision, ways in result.rates.items()
        if ways
    ]
    return block("products", "; ".join(ways) + " GFLOP/s") if ways else block("products", "not measured")


def rows_text(result: Result) -> str:
    """The table, one block for each precision, ours first."""
    lines: list[Sequence[str]] = [HEADER]
    precisions = dict.fromkeys(row.contestant.precision for row in result.rows)
    for precision in precisions:
        rows = [row for row in result.rows if row.contestant.precision == precision]
        lines += [(precision, *[""] * (len(HEADER) - 1)), *(cells(row, result) for row in rows if row.equality)]
    return table(lines)


def cells(row: Row, result: Result) -> tuple[str, ...]:
    """The columns of HEADER."""
    name, equality = f"  {row.contestant.title}", row.equality
    assert equality is not None
    near = (f"{equality.difference:.1e}", f"{max(0.0, 1 - equality.cosine):.0e}")
    if not row.ranked:
        return (name, "differs" if row.reason == "differs" else "failed", *[""] * 7, *near)
    ours, share = result.rival(row), result.share(row)
    measured = ratio(row, ours) if ours and ours is not row else None
    faster = (times(measured.median), spread(measured, times)) if measured else ("", "")
    return (
        name,
        seconds(row.wall.median),
        spread(row.wall),
        seconds(row.cpu.median),
        *faster,
        f"{100 * share.median:.0f} %" if share else "",
        megabytes(row.peak),
        megabytes(row.above_idle),
        *near,
    )


def absent(result: Result) -> list[str]:
    """Who was not measured, or is not ranked, and why."""
    lines = [f"{row.contestant.title} {row.contestant.precision}: {row.reason}" for row in result.rows if row.reason]
    return [block("not ranked", *lines)] if lines else []


def small_print(result: Result) -> Iterator[tuple[str, str]]:
    """Latency, cold start, and what waiting processes took."""
    for name, values, measured, unit in (
        ("one sentence", result.latency, result.latency_ratio, 1e3),
        ("cold start", result.cold, result.cold_ratio, 1),
    ):
        if values:
            each = ", ".join(
                f"{who} {seconds(middle.median * unit)} ({seconds(middle.least * unit)}-{seconds(middle.most * unit)})"
                for who, middle in values.items()
            )
            faster = f"; ours is {times(measured.median)} x as fast ({spread(measured, times)})" if measured else ""
            yield name, f"{each} {'ms' if unit == 1e3 else 's'}{faster}"
    yield "waiting", f"processes that waited took at most {100 * result.idle_share:.2f} % of a processor"


def growth_tables(result: Result) -> Iterator[tuple[str, str]]:
    """A table for each kind of growth: a column for each contestant."""
    kinds = dict.fromkeys(growth.what for growth in result.growth)
    for what in kinds:
        growths = [growth for growth in result.growth if growth.what == what]
        titles = [NAMED[growth.contestant].title for growth in growths]
        lines = [[what, *(f"{title}: tokens/s" for title in titles), *(f"{title}: MB" for title in titles)]]
        for points in zip(*(growth.points for growth in growths), strict=True):
            speeds = [f"{point['tokens'] / point['seconds']:,.0f}" for point in points]
            lines.append([f"{points[0]['at']:,.0f}", *speeds, *(megabytes(point["peak"]) for point in points)])
        yield "growth", table(lines, left=0)
        if what.endswith("lengths") and (told := ", ".join(shares(result, growths))):
            yield "", told


def shares(result: Result, growths: Sequence[Growth]) -> Iterator[str]:
    """Of the measured rate of products, for points of one precision."""
    for growth in growths:
        row, point = result.row(growth.contestant), growth.points[0]
        rates = result.best_rates(row.contestant.precision) if row else []
        if rates:
            share = point["flops"] / point["seconds"] / Middle.of(rates).median
            yield f"{growth.contestant} {100 * share:.0f} % of the wall"


def goals_text(goals: Sequence[Goal]) -> str:
    """The goals, reached or not."""
    words = {True: "reached", False: "NOT REACHED", None: "not measured"}
    lines: list[Sequence[str]] = [("goal", "", "at least", "measured", "")]
    for goal in goals:
        bound = f"{goal.bound:g}{goal.unit}" if goal.least else f"(at most) {goal.bound:g}{goal.unit}"
        found = "" if goal.value is None else f"{number(goal.value)}{goal.unit}"
        lines.append((goal.model, goal.what, bound, found, words[goal.reached]))
    return table(lines, left=2)


def number(value: float) -> str:
    """As many digits as are of use: 5.12, 86, 0.99994, 0.0077."""
    if 0.9 < value < 1:
        return f"{value:.5f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


# ---------------------------------------------------------------------------------------------------------------
# For programs


def figures(plan: Plan, results: Sequence[Result], spent: float) -> dict[str, Any]:
    """Everything, in plain types; "ok" is whether our own vectors are equal."""
    goals = [asdict(goal) | {"reached": goal.reached} for result in results for goal in goals_of(result)]
    return {
        "ok": all(result.equal for result in results),
        "machine": machine(plan),
        "versions": versions(),
        "plan": asdict(plan),
        "seconds": round(spent, 1),
        "models": [model_figures(result) for result in results],
        "goals": goals,
    }


def model_figures(result: Result) -> dict[str, Any]:
    """One checkpoint."""
    plain = ("name", "device", "texts", "tokens", "longest", "flops", "origin", "rates", "idle_share")
    asked = ("latency_ratio", "cold_ratio")
    return {
        **{name: getattr(result, name) for name in plain},
        "config": {name: value for name, value in asdict(result.config).items() if isinstance(value, int | str)},
        "rows": [row_figures(row, result) for row in result.rows],
        "latency": {name: asdict(middle) for name, middle in result.latency.items()},
        "cold": {name: asdict(middle) for name, middle in result.cold.items()},
        **{name: asdict(middle) if (middle := getattr(result, name)) else None for name in asked},
        "growth": [asdict(growth) for growth in result.growth],
    }


def row_figures(row: Row, result: Result) -> dict[str, Any]:
    """One contestant."""
    ours = result.rival(row)
    middles = {
        "ratio": ratio(row, ours) if ours else None,
        "share_of_wall": result.share(row),
        "wall": row.wall if row.samples else None,
        "cpu": row.cpu if row.samples else None,
    }
    speed = result.texts / row.wall.median if row.samples else None
    equality = asdict(row.equality) if row.equality else None
    assert equality is None or all(map(math.isfinite, equality.values()))
    return {
        "name": row.contestant.name,
        "title": row.contestant.title,
        "precision": row.contestant.precision,
        "ranked": row.ranked,
        "reason": row.reason,
        "route": row.route,
        "equality": equality,
        "samples": [asdict(sample) for sample in row.samples],
        "sentences_per_second": speed,
        "ratio_to": ours.contestant.name if ours else None,
        "load_seconds": row.load_seconds,
        "peak_bytes": row.peak,
        "above_idle_bytes": row.above_idle,
        **{name: asdict(middle) if middle else None for name, middle in middles.items()},
    }
