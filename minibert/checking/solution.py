"""A solution, a file of functions: each is tried on the inputs of its stage, and beside the reference.

    file -> its functions -> for each stage: right, wrong (with its cause), not written, or waiting for another one

The file runs in a process of its own, which gets copies of the inputs and sends back numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minibert import reference
from minibert.checking import TEXT
from minibert.checking.child import given_after
from minibert.checking.diagnosis import Numbers, Run, diagnose, reached
from minibert.checking.mistakes import Mistake, functions_with, text_of
from minibert.checking.numbers import (
    Bound,
    Bounds,
    Mismatch,
    Outputs,
    apart,
    bounds,
    converted,
    difference,
    distance,
    first_wrong,
    problem,
)
from minibert.checking.process import LOADING, START, Answer, Process, working_folder
from minibert.checking.shows import SHOWS, WIDTH
from minibert.checking.source import SolutionError, SourceText, parsed
from minibert.checking.stages import STAGES, Case, Stage, inputs_of, outcome, right_shares, shares
from minibert.checking.world import World

LIMIT = 10.0  # seconds for the cases of a stage
RIGHT, WRONG, UNWRITTEN, WAITS = "right", "wrong", "not written", "waits"
FUNCTIONS = frozenset(stage.function for stage in STAGES)


@dataclass(frozen=True)
class Verdict:
    """What is known about a stage."""

    stage: Stage
    state: str
    largest: float = 0.0  # the largest difference
    allowed: float = 0.0  # of that output
    what: str = ""  # the case in which it is wrong, and how
    causes: tuple[str, ...] = ()  # the likeliest first
    library: tuple[str, ...] = ()  # what it calls of other libraries
    place: Mismatch | None = None
    mistakes: tuple[Mistake, ...] = ()  # of the likeliest cause
    shows: str = ""  # what a right function does, in a line of the learner's own numbers


@dataclass(frozen=True)
class Unknown:
    """A value that is neither a tensor nor a list of texts."""

    kind: str


def started(folder: Path, path: Path, **task: Any) -> Process:
    """Return a process that has imported the file. Raises SolutionError, with the line, if that fails."""
    process = Process(folder, {"path": str(path)} | task)
    if process.answer("started", START).state == "ended":
        process.stop()
        raise SolutionError(f"{path} cannot be checked: no second process of Python could be started")
    answer = process.answer("import", LOADING)
    if answer.state != "done":
        process.stop()
        raise SolutionError(f"{path}, {answer.message}")
    return process


class Trial:
    """The functions of a file, tried one after the other; a new process takes over where one has ended."""

    def __init__(self, folder: Path, path: Path, stages: Sequence[Stage], text: str) -> None:
        self.folder, self.path, self.text = folder, path, text
        self.left = [stage.function for stage in stages]
        self.process: Process | None = None
        self.begin()

    def begin(self) -> Process:
        """Return the process that tries what is left."""
        if self.process is None:
            self.process = started(self.folder, self.path, stages=self.left, text=self.text)
        return self.process

    def answers(self, stage: Stage, count: int) -> list[Answer]:
        """Return what the function returned in each case; the first that is not "done" is the last."""
        process = self.begin()
        self.left = self.left[1:]
        found: list[Answer] = []
        until = time.monotonic() + LIMIT
        while len(found) < count and all(one.state == "done" for one in found):
            found.append(process.answer(f"{stage.function}.{len(found)}", until - time.monotonic()))
        if found[-1].state == "ended":
            self.stop()
        return found

    def shown(self, verdicts: Sequence[Verdict]) -> Iterator[Verdict]:
        """Yield the verdicts, those on right functions with a line that can be printed; fewer if the process ends."""
        until = time.monotonic() + LIMIT
        for verdict in verdicts:
            line = ""
            if verdict.state == RIGHT and verdict.stage.function in SHOWS:
                answer = self.begin().answer(f"{verdict.stage.function}.show", until - time.monotonic())
                line = answer.message if answer.state == "done" else ""
            yield replace(verdict, shows=line[:WIDTH])

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.stop()
        self.process = None


def outputs_in(answer: Answer) -> Outputs:
    """Return the outputs in an answer: tensors, lists of texts, and of others their type."""
    found: Outputs = {}
    for name, value in answer.outputs.items():
        if value == "tensor":
            found[name] = answer.tensors.get(f"found {name}")
        else:
            found[name] = Unknown(str(value["type"])) if isinstance(value, dict) and "type" in value else value
    return found


def changed(case: Case, answer: Answer) -> int | None:
    """Return the number of the first argument that was changed in place; None if none was."""
    before = given_after(case.arguments)
    after = {name.removeprefix("given "): x for name, x in answer.tensors.items() if name.startswith("given ")}
    for name in (*before, *after):
        if not (name in before and name in after and same(before[name], after[name])):
            return int(name.split(".")[0])
    return None


def same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal."""
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def expected(stage: Stage, case: Case) -> tuple[Outputs, Bounds]:
    """Return what is right in a case, and by how much each output may differ."""
    if stage.function == "mask_tokens":
        return right_shares(case)
    function = getattr(reference, stage.function)
    right = outcome(stage, function, inputs_of(case))
    if stage.function == "read_safetensors":
        return right, dict.fromkeys(right, Bound(0.0, 0.0))
    exact = outcome(stage, function, tuple(converted(x, torch.float64) for x in inputs_of(case)))
    return right, bounds(right, [exact])


def observed(stage: Stage, case: Case, result: Outputs) -> Outputs:
    """Return what is compared: of masking its shares, of others all outputs."""
    return shares(case, result) if stage.function == "mask_tokens" else result


def malformed(stage: Stage, case: Case, result: Outputs) -> str:
    """Return why there are no shares of what masking returned: other names, shapes or dtypes; "" if there are."""
    names = (f"{run}{name}" for run in ("", "again.", "other.") for name in ("inputs", "labels"))
    return problem(result, dict.fromkeys(names, case.arguments[0])) if stage.function == "mask_tokens" else ""


def check_stage(stage: Stage, world: World, trial: Trial, source: SourceText, before: dict[str, Verdict]) -> Verdict:
    """Try the function of a stage; before: the verdicts of earlier stages, by function."""
    cases = stage.cases(world)
    answers = trial.answers(stage, len(cases))
    uses = source.reached(stage.function)
    unready = [one for name, one in before.items() if name in uses and one.state != RIGHT]
    found: list[Outputs] = []
    for case, answer in zip(cases, answers, strict=False):  # the last answer may be of an earlier case
        match answer.state:
            case "missing":
                return Verdict(stage, UNWRITTEN, what=f"there is no function {stage.function}")
            case "unwritten" if not unready:
                return Verdict(stage, UNWRITTEN, what="it raises NotImplementedError")
            case "done":
                result = outputs_in(answer)
                if (number := changed(case, answer)) is not None:
                    return Verdict(stage, WRONG, what=f"it changes its argument {number} in place; copy it first")
                if why := malformed(stage, case, result):
                    return Verdict(stage, WRONG, what=why)
                found.append(observed(stage, case, result))
            case state:
                if unready and state != "ended":
                    return waits(stage, unready)
                return Verdict(stage, WRONG, what=f"{case.what}: {answer.message}")
    right, allowed = zip(*(expected(stage, case) for case in cases), strict=True)

    def run(mistakes: tuple[Mistake, ...], dtype: torch.dtype) -> Outputs:
        function = functions_with(mistakes)[stage.function]
        given = (converted(inputs_of(case), dtype) if dtype != torch.float32 else inputs_of(case) for case in cases)
        results = (outcome(stage, function, one) for one in given)
        return joined(observed(stage, case, result) for case, result in zip(cases, results, strict=True))

    library = source.by_library(stage.function, FUNCTIONS)
    return judged(stage, cases, list(zip(found, right, allowed, strict=True)), run, library, unready)


def joined(of_cases: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the outputs of all cases, or their bounds, as those of one."""
    return {f"{number}.{name}": x for number, one in enumerate(of_cases) for name, x in one.items()}


def waits(stage: Stage, unready: Sequence[Verdict]) -> Verdict:
    """Return the verdict on a stage that uses these."""
    return Verdict(stage, WAITS, what=unready[0].stage.title)


def judged(
    stage: Stage,
    cases: Sequence[Case],
    compared: Sequence[tuple[Outputs, Outputs, Bounds]],
    run: Run,
    library: tuple[str, ...],
    unready: Sequence[Verdict],
) -> Verdict:
    """Return the verdict on numbers that can be compared.

    compared: for each case what was found, what is right, and the bounds. unready: the earlier stages that this one
    uses, and that are not right.
    """
    far = [distance(*one) for one in compared]
    if max(far) <= 1.0:
        largest, allowed = max(largest_of(*one) for one in compared)
        return Verdict(stage, RIGHT, largest, allowed, library=library)
    of_all = [joined(part) for part in zip(*compared, strict=True)]
    numbers = Numbers(of_all[0], of_all[1], of_all[2], run)
    known = tuple(dict.fromkeys(mistake for one in unready for mistake in one.mistakes))
    if unready and (outputs := numbers.outputs(known)) is not None and numbers.far(outputs) <= 1.0:
        return waits(stage, unready)
    causes = diagnose(numbers, reached(stage.function), known)
    if not causes and unready:
        return waits(stage, unready)
    wrong = [number for number, one in enumerate(far) if one > 1.0]
    found, right, bound = compared[wrong[0]]
    what = cases[wrong[0]].what
    if len(wrong) == len(cases) > 1:
        what = f"all cases, as {what}"
    place, largest, allowed = None, math.inf, 0.0
    if why := problem(found, right):
        what = f"{what}: {why}"
    else:
        place = first_wrong(found, right, bound)
        largest, allowed = largest_of(found, right, bound)
    texts = tuple(" and ".join(map(text_of, one)) for one in causes)
    own = causes[0] if causes else ()
    return Verdict(stage, WRONG, largest, allowed, what, texts, library, place, known + own)


def largest_of(found: Outputs, right: Outputs, bound: Bounds) -> tuple[float, float]:
    """Return the largest difference of a case in units of its bound, as a difference, and that bound."""
    each = [(apart(found[name], x, bound[name]), name) for name, x in right.items() if isinstance(x, Tensor)]
    if not each:
        return 0.0, 0.0
    _, name = max(each)
    return difference(found[name], right[name]), bound[name].largest


def check_file(path: Path, only: str | None = None, text: str = TEXT) -> list[Verdict]:
    """Return the verdict on each stage of a file, or on one stage and those before it that it uses.

    text: on which right functions are shown at work.
    Raises SolutionError for a file that cannot be imported, ValueError for an unknown stage, FileNotFoundError.
    """
    names = [stage.function for stage in STAGES]
    if only is not None and only not in names:
        raise ValueError(f"stage {only!r} is not known; choose from {', '.join(names)}")
    source = SourceText(parsed(path))
    stages = [one for one in STAGES if only in (None, one.function) or one.function in source.reached(only or "")]
    found: dict[str, Verdict] = {}
    with working_folder() as folder, working_folder() as own, torch.random.fork_rng(devices=()):
        trial = Trial(folder, path, stages, text)
        try:
            world = World(own)
            for stage in stages:
                found[stage.function] = check_stage(stage, world, trial, source, found)
            return list(trial.shown(list(found.values())))
        finally:
            trial.stop()


def next_stage(verdicts: Sequence[Verdict]) -> Verdict | None:
    """Return what to write or to repair next; None if all is right."""
    return next((one for one in verdicts if one.state != RIGHT), None)
