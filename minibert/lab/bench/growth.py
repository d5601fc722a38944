"""What one number does not say: one short sentence, cold starts, and how the cost grows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch

from minibert.lab.bench.contestants import NAMED
from minibert.lab.bench.process import LostError, Process, running, seconds_to_first_line
from minibert.lab.bench.results import Growth, Middle
from minibert.lab.bench.run import Session, alternating, cores, steps
from minibert.lab.bench.work import SENTENCE, SST2_LENGTHS, drawn_texts, job_flops, texts_of

CALLS = 10  # with one short sentence, before the other takes its turn
TOKENS = {"cpu": 4096, "cuda": 1 << 18}  # in the texts of one point, where their length grows
FIXED = 128  # tokens in a text, where fixed and varying lengths are compared
REPEATS = 3  # samples of a point
LONG = 20  # seconds, of which one sample says enough
TEXTS_FOR_SETTINGS = 500  # where batch_tokens or threads change

OURS_COLD = """
import sys, minibert
vector = minibert.embed(sys.argv[1], sys.argv[2], device=sys.argv[3])
print(vector.shape, flush=True)
"""
THEIRS_COLD = """
import sys, torch
from transformers import AutoModel, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
model = AutoModel.from_pretrained(sys.argv[2]).eval().to(sys.argv[3])
with torch.inference_mode():
    batch = tokenizer(sys.argv[1], return_tensors="pt").to(sys.argv[3])
    vector = model(**batch).last_hidden_state[0, 0].cpu().numpy()
print(vector.shape, flush=True)
"""


def opponent(session: Session) -> str:
    """transformers at its usual best in float32."""
    return "transformers-sorted" if session.plan.device == "cpu" else "transformers-sdpa-float32"


def measured_pair(session: Session) -> list[str]:
    """Ours and the opponent, those of the two that run."""
    able = [row.contestant.name for row in session.result.rows if not row.reason]
    return [name for name in ("minibert-float32", opponent(session)) if name in session.processes and name in able]


def one_sentence(session: Session) -> None:
    """Seconds for one short sentence with the model warm: medians, and the ratio by turns."""
    names = measured_pair(session)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    turns: dict[str, list[float]] = {name: [] for name in names}
    for name in steps(list(alternating(names, max(1, session.plan.short // CALLS))), "one sentence"):
        walls = session.processes[name].ask("repeat", texts=[SENTENCE], times=CALLS)["walls"]
        seconds[name] += walls
        turns[name].append(statistics.median(walls))
    session.result.latency = {name: Middle.of(walls) for name, walls in seconds.items()}
    if len(names) == 2:
        ours, theirs = turns.values()
        session.result.latency_ratio = Middle.of([b / a for a, b in zip(ours, theirs, strict=True)])


def cold_starts(session: Session) -> None:
    """Seconds from the start of Python to the first vector, in turn; the files have been read before."""
    programs = {"minibert": OURS_COLD, "transformers": THEIRS_COLD}
    arguments = [SENTENCE, str(session.subject.folder), session.plan.device]
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for name in steps(list(alternating(list(programs), session.plan.starts)), "cold starts"):
        try:
            seconds[name].append(seconds_to_first_line(programs[name], arguments, session.plan.threads))
        except LostError:
            return  # the rows say already that it does not run
    if session.plan.starts:
        session.result.cold = {name: Middle.of(values) for name, values in seconds.items()}
        pairs = zip(*seconds.values(), strict=True)
        session.result.cold_ratio = Middle.of([theirs / ours for ours, theirs in pairs])


# ---------------------------------------------------------------------------------------------------------------
# Growth


def grow(session: Session) -> None:
    """Every kind of growth that the plan asks for."""
    plan, tokenizer, names = session.plan, session.subject.tokenizer, measured_pair(session)
    ours = names[:1]
    tokens = TOKENS[torch.device(plan.device).type]
    longest = session.subject.config.max_position_embeddings
    lengths = {S: texts_of(S, max(1, tokens // S), tokenizer) for S in plan.lengths if longest >= S}
    points(session, "tokens in a text", names, lengths)
    counts = {N: drawn_texts(N, tokenizer, short(longest)) for N in plan.counts}
    points(session, "sentences", ours, counts)
    some = session.texts[:TEXTS_FOR_SETTINGS]
    points(session, "tokens in a batch", ours, dict.fromkeys(plan.batch_tokens, some), option="batch_tokens")
    if plan.by_threads:
        by_threads(session, names, some)
    if torch.device(plan.device).type == "cuda":
        fixed_and_varying(session)


def short(longest: int) -> dict[int, int]:
    """The lengths of SST-2 that this checkpoint has positions for."""
    return {tokens: count for tokens, count in SST2_LENGTHS.items() if tokens <= longest}


def points(
    session: Session, what: str, names: Sequence[str], series: dict[int, list[str]], option: str | None = None
) -> None:
    """A Growth for each contestant: its median seconds for the texts at each value, in turn."""
    if not series:
        return
    growths = {name: Growth(what, name) for name in names}
    processes = {name: session.processes[name] for name in names}
    for at, texts in steps(list(series.items()), what):
        size = size_of(session.subject.tokenizer.ids(texts), session)
        for name, point in point_of(processes, texts, {option: at} if option else {}).items():
            growths[name].points.append({"at": at} | size | point)
    session.result.growth += growths.values()


def size_of(ids: Sequence[Sequence[int]], session: Session) -> dict[str, float]:
    """Sentences, tokens, and the floating-point operations that they cost."""
    lengths = [len(row) for row in ids]
    return {"sentences": len(ids), "tokens": sum(lengths), "flops": job_flops(lengths, session.subject.config)}


def point_of(
    processes: dict[str, Process], texts: Sequence[Any], options: dict[str, Any]
) -> dict[str, dict[str, float]]:
    """Name -> median seconds and peak of memory; the first call warms up, unless it takes long."""
    walls: dict[str, list[float]] = {name: [] for name in processes}
    peaks = dict.fromkeys(processes, 0.0)
    for name in alternating(list(processes), REPEATS + 1):
        if walls[name] and walls[name][0] > LONG:
            continue
        answer = processes[name].ask("encode", texts=list(texts), **options)
        walls[name].append(answer["wall"])
        peaks[name] = answer["call_peak"]
    return {
        name: {"seconds": statistics.median(values[1:] or values), "peak": peaks[name]}
        for name, values in walls.items()
    }


def by_threads(session: Session, names: Sequence[str], texts: Sequence[str]) -> None:
    """The same texts with 1, 2, 4 ... threads, up to all cores; processes of their own."""
    numbers = sorted({2**power for power in range(10) if 2**power <= cores()} | {cores()})
    growths = {name: Growth("threads", name) for name in names}
    size = size_of(session.subject.tokenizer.ids(texts), session)
    for threads in steps(numbers, "threads"):
        with ExitStack() as stack:
            processes = {name: stack.enter_context(running(threads)) for name in names}
            for name, process in processes.items():
                process.ask(
                    "load",
                    contestant=NAMED[name].name,
                    folder=str(session.subject.folder),
                    converted=str(session.scratch),
                    threads=threads,
                    device=session.plan.device,
                )
            for name, point in point_of(processes, texts, {}).items():
                growths[name].points.append({"at": threads} | size | point)
    session.result.growth += growths.values()


def fixed_and_varying(session: Session) -> None:
    """Texts of one length, and as many tokens in texts of all lengths to twice that: ids to vectors, all precisions."""
    count = max(8, TOKENS[torch.device(session.plan.device).type] * 4 // FIXED)
    tokenizer = session.subject.tokenizer
    longest = min(2 * FIXED - 4, session.subject.config.max_position_embeddings)
    fixed = min(FIXED, longest)
    evenly = dict.fromkeys(range(4, longest + 1), 1)
    jobs = {
        "fixed": tokenizer.ids(texts_of(fixed, count, tokenizer)),
        "varying": tokenizer.ids(drawn_texts(count, tokenizer, evenly)),
    }
    ours = {
        row.contestant.name: session.processes[row.contestant.name]
        for row in session.result.rows
        if row.contestant.ours and row.contestant.name in session.processes and not row.reason
    }
    for what, ids in steps(list(jobs.items()), "fixed and varying"):
        size = size_of(ids, session)
        for name, point in point_of(ours, ids, {"tokenized": True, "batch_tokens": 1 << 17}).items():
            at = size["tokens"] / len(ids)
            session.result.growth.append(Growth(f"{what} lengths", name, [{"at": at} | size | point]))
