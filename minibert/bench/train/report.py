"""What `minibert bench --train` prints: a table for people, and one dictionary for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from minibert.bench.machine import machine, versions
from minibert.bench.report import PACKAGES, goals_text, heading, seconds, spread
from minibert.bench.results import Middle, Row, ratio
from minibert.bench.session import Plan
from minibert.bench.train.equality import CLOSE, STEPS
from minibert.bench.train.results import Training, goals_of
from minibert.bench.train.ways import BATCH
from minibert.printing import block, table

__all__ = ["LEGEND", "figures", "goals_of", "goals_text", "heading", "result_text", "time_text"]
WORK = {"classify": "sentences with a label", "mlm": "hidden words in sentences packed together"}
HEADER = ("", "s a step", "spread", "tokens/s", "ours is", "spread", "peak MB", "+MB")
LEGEND = (
    f"s a step: median of all rounds, {BATCH} rows a step, tokenizing excluded. tokens/s: padding not counted. ours "
    "is: how many times as fast, at equal precision, round by round. peak MB: of the whole process, +MB: of training "
    "alone. All are given the same rows in the same order; the Trainer has its own attention, optimizer, loop "
    "and, for hidden words, collator"
)


def result_text(training: Training) -> str:
    """Everything about one checkpoint."""
    result, config = training.result, training.result.config
    size = f"{config.num_hidden_layers} layers x {config.hidden_size}, {config.num_attention_heads} heads"
    work = (
        f"{WORK[training.objective]}: {len(result.lengths):,} rows ({result.origin}), {training.steps} steps a round, "
        f"{training.tokens:,} tokens in {training.places:,} places, {training.places / training.tokens:.2f} x"
    )
    ways = [f"{row.backend.title} {row.backend.precision}: {row.kernels}" for row in result.rows if row.kernels]
    reasons = [f"{row.backend.title} {row.backend.precision}: {row.reason}" for row in result.rows if row.reason]
    parts = [f"{result.name}: {size}", block("work", work), block("equality", equality_text(training))]
    parts += [rows_text(training), *([block("not ranked", *reasons)] if reasons else []), block("how", *ways)]
    if faster := training.faster("minibert-bfloat16", "trainer-float32"):
        words = f"{faster.median:.2f} x as fast ({faster.least:.2f}-{faster.most:.2f})"
        parts.append(block("bfloat16", f"ours is {words} against the Trainer's default, float32"))
    waited = f"while one trained, everything else took {100 * result.foreign:.1f} % of the processors"
    parts.append(block("waiting", waited))
    if result.doubts:
        parts.append(block("TOO BUSY", f"{'; '.join(result.doubts)}: measure on a quiet machine"))
    return "\n".join(parts)


def equality_text(training: Training) -> str:
    """What was compared, and how it came out."""
    check = training.check
    equal = check.parameters - check.differing
    unclipped = ", without clipping" if training.objective == "mlm" else ""
    return (
        f"{'' if check.holds else 'DIFFERS: '}after {STEPS} steps of the readable way, {equal} of {check.parameters} "
        f"parameters equal the Trainer's bit for bit (float32, AdamW unfused{unclipped}); the packed step is within "
        f"{check.packed:.1e} of the readable one, at most {CLOSE:.0e} is allowed"
    )


def rows_text(training: Training) -> str:
    """The table, one block for each precision, ours first."""
    lines: list[Sequence[str]] = [HEADER]
    for precision in dict.fromkeys(row.backend.precision for row in training.result.rows):
        rows = [row for row in training.result.rows if row.backend.precision == precision]
        lines += [(precision, *[""] * (len(HEADER) - 1)), *(cells(row, training) for row in rows)]
    return table(lines)


def cells(row: Row, training: Training) -> tuple[str, ...]:
    """The columns of HEADER."""
    name = f"  {row.backend.title}"
    if not row.ranked:
        return (name, "failed", *[""] * (len(HEADER) - 2))
    step = Middle.of([sample.seconds / training.steps for sample in row.samples])
    ours = training.result.rival(row)
    faster = ratio(row, ours) if ours is not row else None
    compared = (f"{faster.median:.2f}", f"{faster.least:.2f}-{faster.most:.2f}") if faster else ("", "")
    above = max(sample.peak for sample in row.samples) - row.loaded_bytes
    memory = (f"{max(0, size) / 1e6:,.0f}" for size in (row.peak, above))
    return (name, seconds(step.median), spread(step), f"{speed(row, training):,.0f}", *compared, *memory)


def speed(row: Row, training: Training) -> float:
    """Tokens a second."""
    return training.tokens / row.seconds.median


def time_text(plan: Plan, trainings: Sequence[Training], spent: float) -> str:
    """How long it took, and in which stages."""
    stages = [f"{name} {took:.0f} s" for one in trainings for name, took in one.result.stages.items()]
    return block(f"{spent:.0f} s", ", ".join(stages))


def figures(plan: Plan, trainings: Sequence[Training], spent: float) -> dict[str, Any]:
    """Everything, in plain types; "ok" is whether minibert trains as the Trainer does."""
    return {
        "ok": all(training.equal for training in trainings),
        "machine": machine(plan.threads, plan.device),
        "versions": versions(PACKAGES),
        "plan": asdict(plan),
        "seconds": round(spent, 1),
        "models": [model_figures(training) for training in trainings],
        "goals": [asdict(goal) for training in trainings for goal in goals_of(training)],
    }


def model_figures(training: Training) -> dict[str, Any]:
    """One checkpoint: what was measured, and beside it the medians that are printed."""
    result = training.result
    return {
        "name": result.name,
        "origin": result.origin,
        "objective": training.objective,
        "texts": len(result.lengths),
        "batch_size": BATCH,
        "steps": training.steps,
        "tokens": training.tokens,
        "places": training.places,
        "equality": asdict(training.check),
        "rows": [row_figures(row, training) for row in result.rows],
        "stages": result.stages,
        "foreign": result.foreign,
        "too_busy": result.doubts,
    }


def row_figures(row: Row, training: Training) -> dict[str, Any]:
    """One way of training."""
    faster = ratio(row, training.result.rival(row))
    return {
        "name": row.backend.name,
        "precision": row.backend.precision,
        "how": row.kernels,
        "reason": row.reason,
        "ranked": row.ranked,
        "seconds": asdict(row.seconds) if row.samples else None,
        "tokens_per_second": speed(row, training) if row.ranked else None,
        "ratio": asdict(faster) if faster else None,
        "peak_bytes": row.peak,
        "samples": [asdict(sample) for sample in row.samples],
    }
