"""A solution, a file of functions: each is tried on the inputs of its stage, and beside the reference.

    file -> its functions -> for each stage: right, wrong (with its cause), not written, or waiting for another one

A function runs in a thread with a time limit. It gets copies of the inputs, which it must not change.
"""

from __future__ import annotations

import ast
import ctypes
import importlib.util
import math
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from minibert import reference
from minibert.checking.diagnosis import Numbers, called, calls_in, diagnose, reached
from minibert.checking.mistakes import Functions, Mistake
from minibert.checking.numbers import (
    Mismatch,
    Outputs,
    bounds,
    difference,
    distance,
    first_wrong,
    flatten,
    problem,
    to_double,
)
from minibert.checking.stages import STAGES, Case, Stage
from minibert.checking.world import World
from minibert.utils.printing import FILES

LIMIT = 10.0  # seconds for the cases of a stage
SHARES = 0.006  # of masking: six standard errors of the rarest share
RIGHT, WRONG, UNWRITTEN, WAITS = "right", "wrong", "not written", "waits"
# What a function is to do itself; a stage that calls one of these is right by a library.
LIBRARY = {
    *("layer_norm", "LayerNorm", "gelu", "GELU", "cross_entropy", "CrossEntropyLoss", "nll_loss", "linear", "Linear"),
    *("scaled_dot_product_attention", "MultiheadAttention", "TransformerEncoderLayer", "TransformerEncoder"),
    *("embedding", "Embedding", "AdamW", "Adam", "load_file", "safe_open"),
}
MODULES = ("minibert", "transformers", "safetensors", "tokenizers", "sentence_transformers")


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


class SolutionError(ValueError):
    """The file cannot be read as Python."""


def load_module(path: Path) -> ModuleType:
    """Import a file of Python. Raises SolutionError, with the line, if that fails, and FileNotFoundError."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file; {FILES / 'tutorials/build/my_bert.py'} is where to begin")
    spec = importlib.util.spec_from_file_location(f"checked_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise SolutionError(f"{path} is not a file of Python; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    sys.path.insert(0, str(path.parent.resolve()))  # for what it imports from its own folder
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise SolutionError(f"{path}, line {error.lineno}: {error.msg}") from None
    except (Exception, SystemExit) as error:
        raise SolutionError(f"{path}, {line_of(error, path)}{type(error).__name__}: {error}") from None
    finally:
        sys.path.remove(str(path.parent.resolve()))
    return module


def line_of(error: BaseException, path: Path) -> str:
    """Return the last line of the file that an error went through, for a message."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    return f"line {lines[-1]}: " if lines else ""


class Stopped(BaseException):
    """Raised in a thread whose time is over."""


def limited(function: Callable[[], Any], seconds: float) -> Any:
    """Return function(), computed in a thread. Raises what it raises, and TimeoutError after these seconds."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append((function(), None))
        except BaseException as error:  # also SystemExit
            found.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Stopped))
        raise TimeoutError(f"stopped after {seconds:g} s")
    result, error = found[0]
    if error is not None:
        raise error
    return result


def inputs_of(case: Case) -> tuple[Any, ...]:
    """Return copies of the arguments of a case."""
    return tuple(map(copied, case.arguments))


def copied(value: Any) -> Any:
    """Return a copy of tensors and of dicts; a generator begins anew."""
    if isinstance(value, torch.Generator):
        return torch.Generator().manual_seed(value.initial_seed())
    if isinstance(value, dict):
        return {key: one.clone() if isinstance(one, Tensor) else one for key, one in value.items()}
    return value.clone() if isinstance(value, Tensor) else value


def changed(before: Any, after: Any) -> bool:
    """Return whether an argument was changed in place."""
    if isinstance(before, dict):
        return before.keys() != after.keys() or any(changed(before[key], after[key]) for key in before)
    if isinstance(before, Tensor):
        return before.shape != after.shape or not torch.equal(before, after)
    return isinstance(before, int | float | str) and before != after


def expected(stage: Stage, cases: Sequence[Case]) -> tuple[list[Outputs], list[dict[str, float]]]:
    """Return what the reference returns in each case, and by how much each output may differ."""
    function = getattr(reference, stage.function)
    right, allowed = [], []
    for case in cases:
        result = flatten(stage.observe(case, function(*inputs_of(case))))
        if stage.function == "mask_tokens":
            limits = dict.fromkeys(result, SHARES)
        elif stage.function == "read_safetensors":
            limits = dict.fromkeys(result, 0.0)
        else:
            limits = bounds(result, flatten(function(*map(to_double, inputs_of(case)))))
        right.append(result)
        allowed.append(limits)
    return right, allowed


def check_stage(stage: Stage, world: World, module: ModuleType, source: str, before: dict[str, Verdict]) -> Verdict:
    """Try the function of a stage; before: the verdicts of earlier stages, by function."""
    function = getattr(module, stage.function, None)
    if not callable(function):
        return Verdict(stage, UNWRITTEN, what=f"there is no function {stage.function}")
    cases = stage.cases(world)
    right, allowed = expected(stage, cases)
    unready = unready_for(stage, source, before)
    found: list[Outputs] = []
    try:
        for case in cases:
            given = inputs_of(case)
            result = limited(lambda given=given: function(*given), LIMIT)  # type: ignore[misc]  # bound to its case
            for number, (one, other) in enumerate(zip(case.arguments, given, strict=True), start=1):
                if changed(one, other):
                    return Verdict(stage, WRONG, what=f"it changes its argument {number} in place; copy it first")
            found.append(flatten(stage.observe(case, result)))
    except NotImplementedError:
        return waits(stage, unready) if unready else Verdict(stage, UNWRITTEN, what="it raises NotImplementedError")
    except TimeoutError as error:
        return Verdict(stage, WRONG, what=f"{case.what}: {error}, perhaps by an endless loop")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        if unready:
            return waits(stage, unready)
        where = line_of(error, Path(str(module.__file__)))
        return Verdict(stage, WRONG, what=f"{case.what}: {where}{type(error).__name__}: {error}")

    def run(functions: Functions) -> list[Outputs]:
        return [flatten(stage.observe(case, functions[stage.function](*inputs_of(case)))) for case in cases]

    numbers = Numbers(found, right, allowed, run)
    return judged(stage, cases, numbers, by_library(stage, source), unready)


def unready_for(stage: Stage, source: str, before: dict[str, Verdict]) -> list[Verdict]:
    """Return the verdicts on the earlier stages that this function uses, and that are not right."""
    uses = called(calls_in(source), stage.function) - {stage.function}
    return [one for name, one in before.items() if name in uses and one.state != RIGHT]


def waits(stage: Stage, unready: Sequence[Verdict]) -> Verdict:
    """Return the verdict on a stage that uses these."""
    return Verdict(stage, WAITS, what=unready[0].stage.title)


def judged(
    stage: Stage, cases: Sequence[Case], numbers: Numbers, library: tuple[str, ...], unready: Sequence[Verdict]
) -> Verdict:
    """Return the verdict on numbers that can be compared; unready: see unready_for."""
    pairs = list(zip(numbers.found, numbers.right, numbers.bounds, strict=True))
    far = [distance(*one) for one in pairs]
    if max(far) <= 1.0:
        largest, allowed = max((largest_of(*one) for one in pairs), default=(0.0, 0.0))
        return Verdict(stage, RIGHT, largest, allowed, library=library)
    known = tuple(dict.fromkeys(mistake for one in unready for mistake in one.mistakes))
    if unready and (outputs := numbers.outputs(known)) is not None and numbers.far(outputs) <= 1.0:
        return waits(stage, unready)
    at = next(number for number, one in enumerate(far) if one > 1.0)
    what = cases[at].what
    place = None
    largest = math.inf
    allowed = 0.0
    if why := problem(numbers.found[at], numbers.right[at]):
        what = f"{what}: {why}"
    else:
        place = first_wrong(*pairs[at])
        largest, allowed = largest_of(*pairs[at])
    causes = diagnose(numbers, reached(stage.function), known)
    if not causes and unready:
        return waits(stage, unready)
    texts = tuple(" and ".join(mistake.cause for mistake in one) for one in causes)
    own = causes[0] if causes else ()
    return Verdict(stage, WRONG, largest, allowed, what, texts, library, place, known + own)


def largest_of(found: Outputs, right: Outputs, bound: dict[str, float]) -> tuple[float, float]:
    """Return the largest difference of a case in units of its bound, as a difference, and that bound."""
    each = [
        (distance({name: found[name]}, {name: x}, bound), name) for name, x in right.items() if isinstance(x, Tensor)
    ]
    if not each:
        return 0.0, 0.0
    _, name = max(each)
    return difference(found[name], right[name]), bound[name]


def by_library(stage: Stage, source: str) -> tuple[str, ...]:
    """Return what the function of a stage, and the functions that only it uses, call of libraries that do its work."""
    tree = ast.parse(source)
    imported = {
        alias.asname or alias.name: (getattr(node, "module", None) or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    stages = {one.function for one in STAGES} - {stage.function}
    calls = {name: uses - stages for name, uses in calls_in(source).items()}
    used = called(calls, stage.function)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in used:
            for one in ast.walk(node):
                theirs = False
                if isinstance(one, ast.Attribute):
                    theirs = one.attr in LIBRARY and isinstance(one.value, ast.Name | ast.Attribute)
                    theirs = theirs or (one.attr in ("backward", "grad") and stage.function.endswith("_backward"))
                elif isinstance(one, ast.Name):
                    module = imported.get(one.id)
                    theirs = module in MODULES or (one.id in LIBRARY and module == "torch")
                if theirs:
                    found.append(ast.unparse(one))
    return tuple(dict.fromkeys(found))


def check_file(path: Path, only: str | None = None) -> list[Verdict]:
    """Return the verdict on each stage of a file, or on one stage and those before it that it uses.

    Raises SolutionError for a file that cannot be imported, ValueError for an unknown stage, FileNotFoundError.
    """
    names = [stage.function for stage in STAGES]
    if only is not None and only not in names:
        raise ValueError(f"stage {only!r} is not known; choose from {', '.join(names)}")
    module = load_module(path)
    source = path.read_text("utf-8")
    world = World()
    needed = called(calls_in(source), only) | {only} if only else set(names)
    found: dict[str, Verdict] = {}
    with torch.random.fork_rng(devices=()):
        for stage in STAGES:
            if stage.function in needed:
                found[stage.function] = check_stage(stage, world, module, source, found)
    return list(found.values())


def next_stage(verdicts: Sequence[Verdict]) -> Verdict | None:
    """Return what to write or to repair next; None if all is right."""
    return next((one for one in verdicts if one.state != RIGHT), None)
