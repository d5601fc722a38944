"""What `minibert bench` prints: tables for people, and one dictionary for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from minibert.bench.goals import Goal, goals_of
from minibert.bench.machine import machine, versions
from minibert.bench.results import Middle, Result, Row, quotient, ratio
from minibert.bench.session import Plan
from minibert.printing import beside, block, table

PEERS = ("sentence-transformers", "onnxruntime", "openvino", "ctranslate2")
PACKAGES = ("torch", "transformers", "accelerate", *PEERS, "tokenizers")
TOLD = ("avx2", "avx512_f", "avx512_bf16", "amx_bf16")  # of the instruction sets
HEADER = ("", "seconds", "spread", "CPU s", "ours is", "spread", "roofline", "peak MB", "+MB", "difference", "1-cosine")
LEGEND = (
    "seconds: median of all rounds, tokenizing included. ours is: how many times as fast, at equal precision, "
    "round by round. roofline: the seconds that matrix products alone would take, as a share of "
    "those it took. peak MB: of the whole process, +MB: of the work alone. difference and 1-cosine: the largest, "
    "to transformers, eager, float32"
)


def heading(plan: Plan) -> str:
    """The first lines: where, with what, how much."""
    where = machine(plan.threads, plan.device)
    features = ", ".join(name for name in TOLD if name in where["instructions"]) or where["machine"]
    has = ", ".join(map(" ".join, versions(PACKAGES).items()))
    size = f"{plan.name}: {plan.sentences:,} sentences, {plan.rounds} rounds in which everybody takes a turn"
    device = f"{where.get('gpu', where['cpu'])}, {plan.threads} threads ({features})"
    return "\n".join([block("machine", device), block("versions", has), block("plan", size)])


def seconds(value: float) -> str:
    """Three digits that count."""
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def spread(middle: Middle) -> str:
    """Least and most: "8.0-8.3"."""
    return f"{seconds(middle.least)}-{seconds(middle.most)}"


def result_text(result: Result) -> str:
    """Everything about one checkpoint."""
    config, texts, tokens = result.config, len(result.lengths), sum(result.lengths)
    size = f"{config.num_hidden_layers} layers x {config.hidden_size}, {config.num_attention_heads} heads"
    work = (
        f"{texts:,} sentences ({result.origin}), {tokens:,} tokens, mean {tokens / texts:.1f}, longest "
        f"{max(result.lengths)}; {result.flops / 1e12:.3g} TFLOP"
    )
    products = [
        f"{precision}: "
        + ", ".join(f"{kernel} {Middle.of(rates).median / 1e9:,.0f}" for kernel, rates in found.items())
        for precision, found in result.rates.items()
    ]
    kernels = [f"{row.backend.precision}: {row.kernels}" for row in result.rows if row.backend.ours and row.kernels]
    reasons = [f"{row.backend.title} {row.backend.precision}: {row.reason}" for row in result.rows if row.reason]
    parts = [f"{result.name}: {size}", block("work", work), block("products", "; ".join(products) + " GFLOP/s")]
    parts += [rows_text(result), *([block("not ranked", *reasons)] if reasons else []), block("our kernels", *kernels)]
    parts += [block(*line) for line in small_print(result)]
    return "\n".join(parts + [beside("growth", lines) for lines in growth_tables(result)])


def rows_text(result: Result) -> str:
    """The table, one block for each precision, ours first."""
    lines: list[Sequence[str]] = [HEADER]
    for precision in dict.fromkeys(row.backend.precision for row in result.rows):
        rows = [row for row in result.rows if row.backend.precision == precision and row.equality]
        lines += [(precision, *[""] * (len(HEADER) - 1)), *(cells(row, result) for row in rows)]
    return table(lines)


def cells(row: Row, result: Result) -> tuple[str, ...]:
    """The columns of HEADER, for a row that was compared."""
    name, equality = f"  {row.backend.title}", row.equality
    assert equality is not None
    near = (f"{equality.difference:.1e}", f"{max(0.0, 1 - equality.cosine):.0e}")
    if not row.ranked:
        return (name, "differs" if row.reason == "differs" else "failed", *[""] * 7, *near)
    ours, share = result.rival(row), result.share(row)
    faster = ratio(row, ours) if ours is not row else None
    took = (seconds(row.seconds.median), spread(row.seconds), seconds(row.cpu.median))
    compared = (f"{faster.median:.2f}", f"{faster.least:.2f}-{faster.most:.2f}") if faster else ("", "")
    above = max(sample.peak for sample in row.samples) - row.loaded_bytes
    memory = (f"{max(0, size) / 1e6:,.0f}" for size in (row.peak, above))
    return (name, *took, *compared, f"{100 * share.median:.0f} %" if share else "", *memory, *near)


def small_print(result: Result) -> Iterator[tuple[str, str]]:
    """Latency, cold start, and what else was at work."""
    for name, pairs in (("one sentence", result.one_sentence), ("cold start", result.cold_start)):
        if faster := quotient(pairs):
            ours, theirs = (Middle.of(values) for values in zip(*pairs, strict=True))
            each = [f"{seconds(it.median)} s ({spread(it)})" for it in (ours, theirs)]
            words = f"ours is {faster.median:.2f} x as fast ({faster.least:.2f}-{faster.most:.2f})"
            yield name, f"minibert {each[0]}, transformers {each[1]}; {words}"
    yield "waiting", f"while a backend worked, everything else took {100 * result.foreign:.1f} % of the processors"
    if result.doubts:
        yield "TOO BUSY", f"{'; '.join(result.doubts)}: these figures are not reliable, measure on a quiet machine"


def growth_tables(result: Result) -> Iterator[str]:
    """A table for each kind of growth: a column for each backend."""
    for what in dict.fromkeys(growth.what for growth in result.growth):
        growths = [growth for growth in result.growth if growth.what == what]
        lines = [[what, *(f"{growth.backend.title}: {unit}" for unit in ("tokens/s", "MB") for growth in growths)]]
        for points in zip(*(growth.points for growth in growths), strict=True):
            memory = (f"{point['peak'] / 1e6:,.0f}" for point in points)
            lines.append([f"{points[0]['at']:,}", *(f"{point['speed']:,.0f}" for point in points), *memory])
        yield table(lines, left=0)


def goals_text(goals: Sequence[Goal]) -> str:
    """The goals, reached or not."""
    words = {True: "reached", False: "NOT REACHED", None: "not measured"}
    lines: list[Sequence[str]] = [("goal", "", "at least", "measured", "")]
    for goal in goals:
        found, bound = "" if goal.value is None else f"{goal.value:.2f}", f"{goal.bound:.2f}"
        lines.append((goal.model, goal.what, bound, found, words[goal.reached]))
    return table(lines, left=2)


def time_text(plan: Plan, results: Sequence[Result], spent: float) -> str:
    """How long it took; where a quick run takes more than its minute, why."""
    if plan.name != "quick" or spent <= 60:
        return f"{spent:.0f} s"
    stages = [f"{name} {took:.0f} s" for result in results for name, took in result.stages.items() if took >= 1]
    why = f"{', '.join(stages)}; to load is slow where libraries are read for the first time since the machine started"
    return block(f"{spent:.0f} s", f"more than the minute of --quick: {why}")


def figures(plan: Plan, results: Sequence[Result], spent: float) -> dict[str, Any]:
    """Everything, in plain types; "ok" is whether our own vectors are equal."""
    return {
        "ok": all(result.equal for result in results),
        "machine": machine(plan.threads, plan.device),
        "versions": versions(PACKAGES),
        "plan": asdict(plan),
        "seconds": round(spent, 1),
        "models": [model_figures(result) for result in results],
        "goals": [asdict(goal) for result in results for goal in goals_of(result)],
    }


def model_figures(result: Result) -> dict[str, Any]:
    """One checkpoint: what was measured, and beside it the medians that are printed."""
    found = asdict(result, dict_factory=lambda pairs: {name: value for name, value in pairs if not callable(value)})
    del found["lengths"]
    for figures, row in zip(found["rows"], result.rows, strict=True):
        took = {"seconds": row.seconds, "cpu": row.cpu} if row.samples else {}
        compared = {"ratio": ratio(row, result.rival(row)), "share_of_roofline": result.share(row)}
        figures |= {name: middle and asdict(middle) for name, middle in (took | compared).items()}
        figures |= {"ranked": row.ranked, "peak_bytes": row.peak}
    medians = {"flops": result.flops, "foreign": result.foreign, "too_busy": result.doubts}
    return found | medians | {"texts": len(result.lengths), "tokens": sum(result.lengths)}
