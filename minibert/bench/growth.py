"""What one number does not say: one short sentence, cold starts, and how the cost grows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress

from minibert.bench.backends import Backend
from minibert.bench.processes import LostError, Process, seconds_to_end
from minibert.bench.results import Growth, Sample
from minibert.bench.session import Session, steps
from minibert.bench.texts import SENTENCE, SST2_LENGTHS, drawn_texts

CALLS = 10  # with one short sentence, before the other takes its turn
TOKENS = {"cpu": 4096, "cuda": 1 << 18}  # in the texts of one point, where their length grows
REPEATS = 3  # samples of a point
LONG = 20  # seconds
TEXTS = 500  # where batch_tokens or threads change

OURS = """
import sys, time, minibert
vector = minibert.embed(sys.argv[1], sys.argv[2], device=sys.argv[3])
print(time.time())
"""
THEIRS = """
import sys, time, torch
from transformers import AutoModel, AutoTokenizer
tokenizer, model = (kind.from_pretrained(sys.argv[2]) for kind in (AutoTokenizer, AutoModel))
model.eval().to(sys.argv[3])
with torch.inference_mode():
    batch = tokenizer(sys.argv[1], return_tensors="pt").to(sys.argv[3])
    vector = model(**batch).last_hidden_state[0, 0].cpu().numpy()
print(time.time())
"""


def one_sentence(session: Session) -> None:
    """Seconds for one short sentence with the model warm: the median of CALLS, by turns."""
    pair = [session.processes[row.backend.name] for row in session.pair()]
    for _ in steps(range(session.plan.short if len(pair) == 2 else 0), "one sentence"):
        ours, theirs = (statistics.median(process.ask("repeat", [SENTENCE], CALLS)) for process in pair)
        session.result.one_sentence.append((ours, theirs))


def cold_starts(session: Session) -> None:
    """Seconds from the start of Python to the first vector, in turn; the files have been read before."""
    session.stop()
    arguments, threads = [SENTENCE, str(session.folder), session.plan.device], session.plan.threads
    with suppress(LostError):  # the rows say already that it does not run
        for _ in steps(range(session.plan.starts), "cold starts"):
            ours, theirs = (seconds_to_end(program, arguments, threads) for program in (OURS, THEIRS))
            session.result.cold_start.append((ours, theirs))


def grow(session: Session) -> None:
    """Every kind of growth that the plan asks for; transformers beside ours where it has the same setting."""
    plan, tokenizer, pair = session.plan, session.tokenizer, [row.backend for row in session.pair()]
    session.stop(but=[backend.name for backend in pair])
    longest, some = session.config.max_tokens, session.texts[:TEXTS]
    short = {S: count for S, count in SST2_LENGTHS.items() if longest >= S}
    for what, values in plan.growth.items():
        if what == "tokens in a text":
            lengths = [S for S in values if longest >= S]
            points(session, what, pair, {S: drawn_texts(TOKENS[plan.device] // S, tokenizer, {S: 1}) for S in lengths})
        elif what == "sentences":
            points(session, what, pair[:1], {N: drawn_texts(N, tokenizer, short) for N in values})
        else:
            points(session, what, pair if what == "threads" else pair[:1], dict.fromkeys(values, some))


def points(session: Session, what: str, backends: Sequence[Backend], series: dict[int, list[str]]) -> None:
    """A Growth for each backend: median seconds and peak of memory for the texts at each value, in turn."""
    growths = [Growth(what, backend) for backend in backends]
    for at, texts in steps(series.items(), what):
        with ExitStack() as stack:
            processes = [session.processes[backend.name] for backend in backends]
            if what == "threads":  # each number of them has processes of its own
                processes = [stack.enter_context(closing(Process(at))) for _ in backends]
                for backend, process in zip(backends, processes, strict=True):
                    process.ask("load", backend, session.setting(at))
            samples: list[list[Sample]] = [[] for _ in processes]
            options = {"batch_tokens": at} if what == "tokens in a batch" else {}
            for process, taken in [*zip(processes, samples, strict=True)] * (REPEATS + 1):
                if not taken or taken[0].seconds <= LONG:  # the first warms up; if it takes long, it is enough
                    taken.append(process.ask("encode", texts, **options)[0])
        tokens = sum(map(len, session.tokenizer.ids(texts)))
        for growth, taken in zip(growths, samples, strict=True):
            seconds = statistics.median(sample.seconds for sample in taken[1:] or taken)
            size = {"at": at, "sentences": len(texts), "tokens": tokens, "seconds": seconds}
            growth.points.append(size | {"speed": tokens / seconds, "peak": taken[-1].peak})
    session.result.growth += [growth for growth in growths if growth.points]
