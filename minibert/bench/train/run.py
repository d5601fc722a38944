"""The stages of a measurement: equality first, then rounds in which everybody trains for an epoch."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from minibert.bench.processes import Process
from minibert.bench.results import Row
from minibert.bench.session import DISTILBERT, MINILM, Plan, Session, steps
from minibert.bench.train.equality import check
from minibert.bench.train.results import Training
from minibert.bench.train.ways import BATCH, batches_of, examples_of, ways_of, write_checkpoint
from minibert.tasks.base import Example

QUICK = Plan("quick", (MINILM,), sentences=192, rounds=3, short=0, starts=0)
DEFAULT = Plan("default", (DISTILBERT, MINILM), sentences=512, rounds=3, short=0, starts=0)
FULL = Plan("full", (DISTILBERT, MINILM), sentences=1024, rounds=7, short=0, starts=0)
WARM_UP = 2  # steps


def measure(model: str, plan: Plan) -> Training:
    """Everything about one checkpoint; its processes end, and what is written for it goes, whatever happens.

    Raises ValueError where the sentences are too few for two steps.
    """
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="minibert-bench-")))
        began, folder = time.perf_counter(), scratch / "checkpoint"
        with closing(Process(plan.threads)) as helper:
            helper.ask("run", write_checkpoint, model, folder, plan.objective)
            session = Session(Path(model).name, folder, plan, scratch, helper)
            examples = examples_of(plan.objective, session.texts, session.tokenizer)
            if len(examples) <= BATCH:
                raise ValueError(
                    f"{plan.sentences} sentences make {len(examples)} rows; more than {BATCH} are needed: the first "
                    "step of an epoch has the learning rate 0 and would compare nothing; give more --sentences"
                )
            checked = helper.ask("run", check, session.setting(plan.threads), examples, plan.objective)
        stack.callback(session.stop)
        result, batches = session.result, batches_of(plan.objective, examples, session.tokenizer)
        result.lengths = [len(example.ids) for example in examples]
        result.stages["equality"] = time.perf_counter() - began
        result.rows = [Row(way, way.obstacle(plan.device)) for way in ways_of(plan.objective)]
        load(session, examples)
        take_turns(session, examples)
        places = sum(batch.input_ids.numel() for batch in batches.of_epoch(0))
        return Training(result, places, batches.an_epoch, checked, plan.objective)


def load(session: Session, examples: list[Example]) -> None:
    """Everybody in a process of its own, with a few steps behind it."""
    began, plan = time.perf_counter(), session.plan
    for row in session.result.rows:
        if not row.reason:  # they import their libraries at the same time
            session.processes[row.backend.name] = Process(plan.threads)

    def warm_up(row: Row, process: Process) -> None:
        loaded = process.ask("load", row.backend, session.setting(plan.threads))
        row.kernels, row.load_seconds, row.loaded_bytes, row.load_peak = loaded
        process.ask("encode", examples[: WARM_UP * BATCH])

    for row in steps(session.result.rows, "warming up"):
        session.guarded(row, warm_up)
    session.result.stages["load"] = time.perf_counter() - began


def take_turns(session: Session, examples: list[Example]) -> None:
    """Everybody in turn: A B C D A B C D. A loss that is no number is a reason not to be ranked."""
    began = time.perf_counter()

    def epoch(row: Row, process: Process) -> None:
        sample, losses = process.ask("encode", examples, keep=True)
        row.samples.append(sample)
        if not np.isfinite(losses).all():
            row.reason = "its loss is not finite"

    for row in steps(session.result.rows * session.plan.rounds, "rounds"):
        session.guarded(row, epoch)
    session.result.stages["rounds"] = time.perf_counter() - began
