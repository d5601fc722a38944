"""The shapes that flow through model.py, computed: the example sentence passes, and every line is watched."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minibert import model
from minibert.diagrams.example import CONFIG, IDS

Tracer = Callable[[FrameType, str, Any], Any]


class Step(NamedTuple):
    """A tensor that a line makes."""

    line: int
    name: str  # of the variable; "returned" where it has none
    shape: tuple[int, ...]


class Watch:
    """One call of a function: the tensors among its variables, line after line."""

    def __init__(self, frame: FrameType) -> None:
        self.steps: list[Step] = []
        self.known: dict[str, Tensor] = {}
        self.line = frame.f_lineno
        self.look(frame)  # the arguments

    def look(self, frame: FrameType) -> None:
        """What is new since the last line was that line's work."""
        for name, value in frame.f_locals.items():
            if isinstance(value, Tensor) and self.known.get(name) is not value:
                self.known[name] = value
                self.add(name, value)
        self.line = frame.f_lineno

    def add(self, name: str, value: Tensor) -> None:
        """A line in a loop counts once."""
        step = Step(self.line, name, tuple(value.shape))
        if step not in self.steps:
            self.steps.append(step)

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Tracer:
        """What Python calls at every line, and at the return."""
        self.look(frame)
        if event == "return":
            for value in argument if isinstance(argument, tuple) else (argument,):
                if isinstance(value, Tensor) and all(value is not known for known in self.known.values()):
                    self.add("returned", value)
        return self


def watched(run: Callable[[], object], file: str) -> dict[str, list[Step]]:
    """What each function of a file made when it was first called, by its name: Encoder.forward, ..."""
    watches: dict[CodeType, Watch] = {}

    def enter(frame: FrameType, event: str, argument: Any) -> Tracer | None:
        code = frame.f_code
        if code.co_filename != file or code in watches or "<" in code.co_qualname:
            return None
        watches[code] = Watch(frame)
        return watches[code]

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        run()
    finally:
        sys.settrace(before)
    return {code.co_qualname: watch.steps for code, watch in watches.items()}


@cache
def flow() -> dict[str, list[Step]]:
    """The steps of each function of model.py that the example sentence passes; one layer is like another."""
    config = replace(CONFIG, num_hidden_layers=1, shared_layers=())
    found: dict[str, list[Step]] = {}
    for attention in reversed(model.ATTENTION):  # "eager" last: its Encoder.forward is the one to show
        encoder = model.Encoder(config, attention).eval()
        with torch.inference_mode():
            found |= watched(partial(encoder, torch.tensor([IDS])), model.__file__)
    return {name: steps for name, steps in found.items() if steps}


class Weights(NamedTuple):
    """The weights of a class of model.py, or of one of its parts."""

    name: str
    shape: tuple[int, ...]  # () for a part that has several
    size: int  # how many numbers


@cache
def weights() -> dict[str, list[Weights]]:
    """For each class of model.py the weights of its first module; where it is made of such modules, part by part."""
    with torch.device("meta"):
        encoder = model.Encoder(CONFIG)
    found: dict[str, list[Weights]] = {}
    for module in encoder.modules():
        name = type(module).__name__
        if type(module).__module__ != model.__name__ or name in found:
            continue
        if name in ("Encoder", "Layer"):
            parts = [(part, size_of(child)) for part, child in module.named_children()]
            found[name] = [Weights(part, (), size) for part, size in parts if size]
        else:
            found[name] = [
                Weights(part, tuple(values.shape), values.numel()) for part, values in module.named_parameters()
            ]
    return found


def size_of(module: torch.nn.Module) -> int:
    """How many numbers the weights of a module are."""
    return sum(values.numel() for values in module.parameters())
