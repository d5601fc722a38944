"""What `minibert bench --serve` prints: a table for people, and one dictionary for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minibert.bench.goals import Goal
from minibert.bench.machine import machine, versions
from minibert.bench.report import seconds, spread
from minibert.bench.results import Middle
from minibert.bench.serve.run import GOALS, MEMORY, Plan, Result, Row
from minibert.printing import block, table

PACKAGES = ("torch", "tokenizers", "starlette", "uvicorn", "httptools", "msgspec", "uvloop")
HEADER = ("", "requests/s", "spread", "p50 ms", "p99 ms", "CPU ms", "MB", "ours is", "spread")
LEGEND = (
    "one sentence a request, tokenizing included, vectors as base64; each client sends its next request when it has "
    "its answer. requests/s, p50, p99 and CPU are medians of all turns. ours is: how many times as many requests a "
    "second, turn by turn. CPU ms: of all threads of the server, a request. MB: of its process. Servers and clients "
    "share the processors, so only the ratios count"
)


def heading(plan: Plan) -> str:
    """The first lines: where, with what, how much."""
    where = machine(plan.threads)
    has = ", ".join(map(" ".join, versions(PACKAGES).items()))
    size = f"{plan.rounds} rounds of {plan.seconds:g} s in which every server takes a turn"
    return "\n".join(
        [block("machine", f"{where['cpu']}, {plan.threads} threads"), block("versions", has), block("plan", size)]
    )


def result_text(plan: Plan, result: Result) -> str:
    """Everything that was measured."""
    lines: list[Sequence[str]] = [HEADER]
    for clients in plan.clients:
        lines.append((f"{clients} clients" if clients > 1 else "1 client", *[""] * (len(HEADER) - 1)))
        lines += [cells(row, clients, result) for row in result.rows if row.ranked]
    reasons = [f"{row.contestant.title}: {row.reason}" for row in result.rows if row.reason]
    alike = [f"{row.contestant.title} {1 - row.cosine:.1e}" for row in result.rows if row.ranked]
    parts = [block("work", f"{plan.model}, mean pooling, {plan.sentences:,} sentences ({result.origin})")]
    parts += [block("1-cosine", f"{', '.join(alike)}: the largest, to minibert.embed"), table(lines)]
    parts += [block("not ranked", *reasons)] if reasons else []
    if plan.infinity is None:
        parts.append(block("infinity-emb", "not measured: --infinity names its program, `infinity_emb`"))
    if (soak := result.soak) is not None:
        told = f"{soak.seconds:.0f} s, {soak.requests:,} requests, {soak.errors} errors, memory {soak.growth:+.1%} "
        parts.append(
            block("soak", told + f"(at most {MEMORY:.0%}; {min(soak.held) / 1e6:,.0f}-{max(soak.held) / 1e6:,.0f} MB)")
        )
    return "\n".join(parts)


def cells(row: Row, clients: int, result: Result) -> tuple[str, ...]:
    """The columns of HEADER."""
    turns = row.turns[clients]
    rate = Middle.of([turn.rate for turn in turns])
    times = [Middle.of([1000 * getattr(turn, name) for turn in turns]).median for name in ("p50", "p99", "cpu")]
    ours = next((one for one in result.rows if one.contestant.ours and one.ranked), None)
    compared = ("", "")
    if ours is not None and ours is not row:
        pairs = zip(ours.turns[clients], turns, strict=False)  # a server that failed has fewer turns, and is not ranked
        ratios = Middle.of([own.rate / theirs.rate for own, theirs in pairs])
        compared = (f"{ratios.median:.2f}", f"{ratios.least:.2f}-{ratios.most:.2f}")
    told = (f"{rate.median:,.0f}", spread(rate), *map(seconds, times), f"{turns[-1].held / 1e6:,.0f}")
    return (f"  {row.contestant.title}", *told, *compared)


def goals_of(plan: Plan, result: Result) -> list[Goal]:
    """Requests a second against the best other server."""
    goals = []
    for clients, bound in GOALS.items():
        found = result.faster(clients) if clients in plan.clients else None
        value = found[1].median if found else None
        what = f"requests a second, {clients} clients, against the best of infinity-emb"
        goals.append(Goal(Path(plan.model).name, what, bound, value, None if value is None else value >= bound))
    return goals


def figures(plan: Plan, result: Result, spent: float) -> dict[str, Any]:
    """Everything, in plain types; "ok" is whether the vectors are right, without an error, and memory flat."""
    return {
        "ok": result.equal,
        "machine": machine(plan.threads),
        "versions": versions(PACKAGES),
        "plan": asdict(plan),
        "seconds": round(spent, 1),
        "origin": result.origin,
        "rows": [asdict(row) for row in result.rows],
        "soak": None if result.soak is None else asdict(result.soak) | {"growth": result.soak.growth},
        "goals": [asdict(goal) for goal in goals_of(plan, result)],
    }
