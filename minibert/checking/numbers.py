"""What a function returned, beside what it should have: the difference, its bound, and where and of which kind it is.

A right solution computes in another order, and differs by rounding. The bound of an output is measured: 16 times what
the reference's float32 differs from its float64, and at least 8 units of float32's precision at the largest number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FACTOR = 16
UNITS = 8
Outputs = dict[str, Any]  # by name: tensors, or texts


def flatten(result: Any, name: str = "") -> Outputs:
    """Return the tensors and lists of texts in a result, by names such as "0" or "layer.weight"."""
    if isinstance(result, float | int) and not isinstance(result, bool):
        return {name: torch.tensor(result, dtype=torch.float64)}
    texts = isinstance(result, tuple | list) and all(isinstance(one, str) for one in result)
    if texts or not isinstance(result, Mapping | tuple | list):
        return {name: list(result) if texts else result}
    items = result.items() if isinstance(result, Mapping) else enumerate(result)
    return {k: v for key, value in items for k, v in flatten(value, f"{name}.{key}".lstrip(".")).items()}


def to_double(value: Any) -> Any:
    """Return a copy whose floats are float64."""
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {key: to_double(one) for key, one in value.items()}
    return type(value)(map(to_double, value)) if isinstance(value, list | tuple) else value


def bounds(expected: Outputs, exact: Outputs, dtype: torch.dtype = torch.float32) -> dict[str, float]:
    """Return how much each output may differ.

    exact: the same in float64; or the same as a port computes it in a dtype of less precision.
    """
    found = {}
    for name, x in expected.items():
        if isinstance(x, Tensor) and x.is_floating_point():
            rounding = difference(x, exact[name])
            found[name] = max(FACTOR * rounding, UNITS * torch.finfo(dtype).eps * float(x.abs().max()))
        else:
            found[name] = 0.0
    return found


def problem(found: Outputs, expected: Outputs) -> str:
    """Return why the two cannot be compared: names, types, shapes, dtypes; "" if they can."""
    if found.keys() != expected.keys():
        return f"it returned {described(found)}; expected {described(expected)}"
    for name, right in expected.items():
        value = found[name]
        where = f"output {name} " if name else ""
        if not isinstance(value, type(right)):
            kind = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
            wanted = "a torch tensor" if isinstance(right, Tensor) else "a list of texts"
            return f"{where}is of type {kind}; expected {wanted}"
        if not isinstance(right, Tensor):
            continue
        if value.shape != right.shape:
            return f"{where}has shape {tuple(value.shape)}; expected {tuple(right.shape)}"
        if value.dtype != right.dtype:
            return f"{where}has dtype {value.dtype}; expected {right.dtype}"
    return ""


def described(outputs: Outputs) -> str:
    """Return what there is, for a message."""
    if list(outputs) == [""]:
        return "one value"
    return f"{len(outputs)} values ({', '.join(list(outputs)[:8])}{', ...' * (len(outputs) > 8)})"


def differences(found: Tensor, expected: Tensor) -> Tensor:
    """Return the difference of each number; NaN equals NaN, and infinity itself, and else they differ by infinity."""
    a, b = found.detach().double(), expected.detach().double()
    apart = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())
    return apart.nan_to_num(nan=math.inf, posinf=math.inf)


def difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference of two numbers, 0 if there are none."""
    return float(differences(found, expected).max()) if found.numel() else 0.0


def distance(found: Outputs, expected: Outputs, bound: Mapping[str, float]) -> float:
    """Return the largest difference of all outputs in units of their bounds; infinity if they cannot be compared."""
    if problem(found, expected):
        return math.inf
    largest = 0.0
    for name, right in expected.items():
        apart = difference(found[name], right) if isinstance(right, Tensor) else float(found[name] != right)
        largest = max(largest, apart / bound[name] if bound[name] else math.inf if apart else 0.0)
    return largest


@dataclass(frozen=True)
class Mismatch:
    """The first number of an output that is wrong, the kind of difference, and how large it is."""

    output: str
    index: tuple[int, ...]
    found: Any
    expected: Any
    kind: str
    largest: float

    def __str__(self) -> str:
        where = f"{f'output {self.output}' * bool(self.output)}{list(self.index) if self.index else ''}"
        found, expected = (f"{x:.6g}" if isinstance(x, float) else repr(x) for x in (self.found, self.expected))
        said = f"{where + ': ' if where else ''}found {found}, expected {expected}"
        return f"{said}; {self.kind}" if self.kind else said


def first_wrong(found: Outputs, expected: Outputs, bound: Mapping[str, float], mask: Tensor | None = None) -> Mismatch:
    """Return the first wrong number; mask: (B,S), 1 for a real token, if the outputs are of such a batch."""
    for name, right in expected.items():
        value = found[name]
        if not isinstance(right, Tensor):
            if value != right:
                return Mismatch(name, (), value, right, "", math.inf)
            continue
        a = value.detach().double()
        b = right.double()
        wrong = differences(a, b) > bound[name]
        if bool(wrong.any()):
            index = tuple(wrong.nonzero()[0].tolist())
            return Mismatch(name, index, float(a[index]), float(b[index]), kind_of(a, b, wrong, mask), difference(a, b))
    raise ValueError("nothing is wrong")


def kind_of(a: Tensor, b: Tensor, wrong: Tensor, mask: Tensor | None) -> str:
    """Return how a differs from b: not numbers, a factor, permuted axes, or only some positions; "" for none of it."""
    share = f"{int(wrong.sum()):,} of {wrong.numel():,} numbers are wrong"
    if not bool(a.isfinite().all()):
        return f"{int((~a.isfinite()).sum()):,} numbers are NaN or infinite"
    ratio = a[wrong] / b[wrong]
    if len(ratio) > 1 and bool(ratio.isfinite().all()) and float(ratio.std()) < 1e-3 * abs(float(ratio.mean())):
        return f"all wrong numbers are {float(ratio.mean()):.6g} times as large as they should be"
    for first in range(a.dim()):
        for second in range(first + 1, a.dim()):
            if a.transpose(first, second).shape == b.shape and torch.allclose(
                a.transpose(first, second), b, 1e-4, 1e-6
            ):
                return f"axes {first} and {second} are exchanged"
    for axis in range(a.dim()):
        if a.shape[axis] > 1 and torch.allclose(a.flip(axis), b, 1e-4, 1e-6):
            return f"axis {axis} is in reverse order"
    if mask is not None and a.dim() >= 3 and a.shape[:2] == mask.shape and not bool(wrong[mask == 1].any()):
        return f"only at padding: {share}"
    if mask is not None and a.dim() >= 3 and a.shape[0] == mask.shape[0]:
        rows = wrong.flatten(1).any(dim=1)
        if not bool(rows[mask.bool().all(dim=1)].any()) and bool(mask.bool().all(dim=1).any()):
            return f"only in texts with padding: {share}"
    return share
