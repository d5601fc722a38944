"""The process in which a checked file runs: it tries the functions or the model, and writes what they return.

    python -m minibert.checking.child FOLDER

FOLDER has task.json, see process.py. Each answer is a file of JSON beside a file of tensors. Nothing here decides
whether something is right: the parent compares.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from minibert.checking.numbers import Outputs, outputs_of
from minibert.checking.shows import SHOWS, show
from minibert.checking.stages import STAGES, Case, Stage, inputs_of, outcome
from minibert.checking.world import World

MESSAGE = 300  # characters of an exception
STORED = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
}


class Answers:
    """Where the answers go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write, self.replace, self.save, self.dumps = Path.write_bytes, os.replace, save, json.dumps

    def give(self, name: str, tensors: dict[str, Tensor] | None = None, **answer: Any) -> None:
        """Write an answer; the file of JSON is the last, and is there as a whole."""
        self.write(self.folder / f"{name}.safetensors", self.save(tensors or {}))
        self.write(self.folder / f"{name}.part", self.dumps(answer).encode())
        self.replace(self.folder / f"{name}.part", self.folder / f"{name}.json")


def load_module(path: Path) -> ModuleType:
    """Import a file of Python; its folder stays where it looks for others."""
    module = ModuleType(f"checked_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses look for it
    sys.path.insert(0, str(path.parent.resolve()))
    sys.dont_write_bytecode = True
    exec(compile(path.read_bytes(), str(path), "exec"), vars(module))  # a cached file may be of an older text
    return module


def message_of(error: BaseException, path: Path) -> str:
    """Return what was raised, and the last line of the file that it went through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    try:
        text = str(error)
    except BaseException:  # a class of the file, whose text may be anything
        text = "without a text"
    if len(text) > MESSAGE:
        text = text[:MESSAGE] + " ..."
    return f"{f'line {lines[-1]}: ' if lines else ''}{type(error).__name__}: {text}"


def described(value: Any) -> tuple[Any, Tensor | None]:
    """Return a value for JSON, and its numbers; of what is neither tensor nor texts only its type."""
    if isinstance(value, Tensor):
        plain = value.layout == torch.strided and value.device.type == "cpu" and not value.is_nested
        if plain and value.dtype in STORED:
            return "tensor", value.detach().as_subclass(Tensor).contiguous().clone()
        kind = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        return {"type": f"torch.Tensor ({kind}, {value.dtype}, on {value.device})"}, None
    if isinstance(value, list) and all(type(item) is str for item in value):
        return value, None
    return {"type": f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")}, None


def packed_outputs(outputs: Outputs, prefix: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return outputs as JSON, and the tensors among them by "prefix name"."""
    answer = {}
    tensors = {}
    for name, value in outputs.items():
        answer[name], tensor = described(value)
        if tensor is not None:
            tensors[prefix + name] = tensor
    return answer, tensors


def given_after(given: tuple[Any, ...]) -> Outputs:
    """Return the tensors among the arguments, by number, and in a dict by number and name."""
    found: Outputs = {}
    for number, value in enumerate(given, start=1):
        parts = value.items() if isinstance(value, dict) else [("", value)]
        found |= {f"{number}.{name}": x for name, x in parts if isinstance(x, Tensor)}
    return found


def try_stage(stage: Stage, cases: list[Case], module: ModuleType, path: Path, answers: Answers) -> None:
    """Try a function on each case, and answer once per case; the first that fails is the last."""
    function = getattr(module, stage.function, None)
    for number, case in enumerate(cases):
        name = f"{stage.function}.{number}"
        if not callable(function):
            return answers.give(name, state="missing")
        given = inputs_of(case)
        try:
            outputs, tensors = packed_outputs(outcome(stage, function, given), "found ")
            _, after = packed_outputs(given_after(given), "given ")
        except NotImplementedError:
            return answers.give(name, state="unwritten")
        except BaseException as error:  # also SystemExit
            return answers.give(name, state="raised", message=message_of(error, path))
        answers.give(name, tensors | after, state="done", outputs=outputs)


def is_model(given: Any) -> bool:
    """Return whether it is called with input_ids, and not with the folder of a checkpoint."""
    if isinstance(given, torch.nn.Module):
        return True
    parameters = inspect.signature(given).parameters.values()
    named = any(one.name == "input_ids" or one.kind is one.VAR_KEYWORD for one in parameters)
    return named and not isinstance(given, type)


def call_twice(given: Any, folder: str, inputs: dict[str, Tensor]) -> tuple[Any, Any, dict[str, Tensor]]:
    """Return what a model, or what makes one of a folder, returns in two calls, and its inputs after the first.

    Raises ValueError for what cannot be called, and what the model raises.
    """
    model = given if is_model(given) else given(folder)
    if not callable(model):
        raise ValueError(f"{given!r} returned {type(model).__name__}, which cannot be called with input_ids")
    copies = {name: x.clone() for name, x in inputs.items()}
    with torch.no_grad():
        return model(**copies), model(**{name: x.clone() for name, x in inputs.items()}), copies


def try_model(task: dict[str, Any], module: ModuleType, path: Path, answers: Answers) -> None:
    """Call the model of a file."""
    made = getattr(module, task["name"], None)
    if not callable(made):
        names = [name for name, x in vars(module).items() if not name.startswith("_") and callable(x)]
        text = f"no class or function {task['name']}; it has {', '.join(names) or 'none'}"
        return answers.give("model", state="refused", message=text)
    try:
        first, second, after = call_twice(made, task["checkpoint"], load_file(answers.folder / "inputs.safetensors"))
    except BaseException as error:
        return answers.give("model", state="raised", message=message_of(error, path))
    try:
        named = {"first ": outputs_of(first), "second ": outputs_of(second), "given ": after}
    except ValueError as error:
        return answers.give("model", state="refused", message=str(error))
    packed = [packed_outputs(outputs, prefix)[1] for prefix, outputs in named.items()]
    return answers.give("model", packed[0] | packed[1] | packed[2], state="done")


def limit(task: dict[str, Any]) -> None:
    """Limit the memory of this process, and the size of a file that it writes, where the system can."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (task["memory"],) * 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (task["output"],) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):  # not on every system
        pass


def main(folder: Path) -> None:
    """Do the task in the folder."""
    task = json.loads((folder / "task.json").read_text("utf-8"))
    limit(task)
    torch.set_num_threads(task["threads"])
    path = Path(task["path"])
    stages = [stage for stage in STAGES if stage.function in task.get("stages", ())]
    world = World(folder)
    cases = {stage.function: stage.cases(world) for stage in stages}
    answers = Answers(folder)
    answers.give("started")
    try:
        module = load_module(path)
    except BaseException as error:
        text = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else message_of(error, path)
        return answers.give("import", state="raised", message=text)
    answers.give("import", state="done")
    torch.set_default_dtype(torch.float32)
    if "name" in task:
        return try_model(task, module, path, answers)
    for stage in stages:
        try_stage(stage, cases[stage.function], module, path, answers)
    for function in SHOWS:  # after all stages: whatever happens here changes no verdict
        try:
            line = show(function, module, world, task["text"])
        except BaseException:  # as of a function that is wrong, whose line nobody reads
            line = ""
        answers.give(f"{function}.show", state="done", message=line)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
