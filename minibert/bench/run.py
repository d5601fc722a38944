"""The stages of a measurement: equality first, then rounds in which everybody takes a turn, then what grows.

Each round measures the machine's rate of matrix products too, so that the share of the roofline is of the same minute.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

import torch

from minibert.bench.backends import CONVERSIONS, REFERENCE, SHAPES, backends_for, write_shape
from minibert.bench.growth import cold_starts, grow, one_sentence
from minibert.bench.machine import available_bytes
from minibert.bench.processes import LostError, Process
from minibert.bench.results import Result, Row
from minibert.bench.roofline import padded_bytes, rates
from minibert.bench.session import MINILM, Plan, Session, steps
from minibert.checkpoints.hub import locate


def measure(model: str, plan: Plan) -> Result:
    """Everything about one checkpoint; its processes end, and what is written for it goes, whatever happens."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="minibert-bench-")))
        helper = stack.enter_context(closing(Process(plan.threads)))
        folder = scratch / model if model in SHAPES else locate(model).folder
        if model in SHAPES:
            helper.ask("run", write_shape, model, folder, locate(MINILM).folder)
        session = Session(Path(model).name, folder, plan, scratch, helper)
        stack.callback(session.stop)
        for stage in STAGES:
            began = time.perf_counter()
            stage(session)
            session.result.stages[stage.__name__.replace("_", " ")] = time.perf_counter() - began
    return session.result


def load(session: Session) -> None:
    """A row for everyone: converted for its runtime, loaded, warmed up and compared with the reference."""
    plan, helper = session.plan, session.helper
    backends = backends_for(plan.device, plan.name == "quick")
    session.result.rows = rows = [Row(backend, backend.obstacle(plan.device)) for backend in backends]
    for row in rows:
        if not row.reason:  # they import their libraries at the same time
            session.processes[row.backend.name] = Process(plan.threads)
    wanted = {row.backend.conversion for row in rows if not row.reason}
    for what in steps((what for what in CONVERSIONS if what in wanted), "converting"):
        try:
            helper.ask("run", CONVERSIONS[what], session.folder, session.scratch)
        except LostError as error:
            for row in rows:
                if row.backend.conversion == what and not row.reason:
                    row.reason = f"not converted: {error}"
    helper.ask("load", REFERENCE, session.setting(plan.threads))
    session.reference = helper.ask("encode", [session.texts[number] for number in session.checked], keep=True)[1]
    for row in rows:
        session.guarded(row, lambda _, process: process.ask("run", int))  # an answer says that it has begun
    for row in steps(rows, "equality"):
        session.guarded(row, session.warm_up)


def take_turns(session: Session) -> None:
    """Everybody in turn, the rate of products first: A B C A B C. Large backends take one turn, where memory allows."""
    result, config, device = session.result, session.config, torch.device(session.plan.device)
    precisions = sorted({row.backend.precision for row in result.rows if not row.reason} - {"int8"})
    needed = 1.1 * padded_bytes(result.lengths, config)  # a tenth to spare
    for row in steps([None, *result.rows] * session.plan.rounds, "rounds"):
        if row is None:
            found = session.helper.ask("run", rates, config.hidden_size, config.intermediate_size, precisions, device)
            for precision, kernels in found.items():
                for kernel, rate in kernels.items():
                    result.rates.setdefault(precision, {}).setdefault(kernel, []).append(rate)
        elif not (row.backend.large and row.samples):
            if row.backend.large and not row.reason and needed > (free := available_bytes()):
                row.reason = f"not run: it needs {needed / 1e9:.0f} GB, and {free / 1e9:.0f} GB are available"
            session.guarded(row, session.sample)


STAGES = (load, take_turns, one_sentence, grow, cold_starts)
