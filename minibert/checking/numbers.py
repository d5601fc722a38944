"""What a function returned, beside what it should have: the difference, its bound, and where and of which kind it is.

What a model returns may be an object, a mapping, a tuple or a tensor: `outputs_of` names the outputs in it.

A right solution computes in another order, and differs by rounding. Bounds are measured for each output and precision:
in float32, 16 times the difference of the reference's float32 from its float64, and at least 8 units of float32's
precision at the largest number; in float16 and bfloat16, 3 times the largest difference between computing in that type
and in float32, and 2 times its root mean square, which tells a mistake from rounding where the largest does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

FACTOR, UNITS = 16, 8  # in float32
LARGEST, MEAN = 3, 2  # times the measured error of a type of less precision
Outputs = dict[str, Any]  # by name: tensors, or texts
INPUTS = ("input_ids", "attention_mask", "token_type_ids")  # of a model
OUTPUTS = ("hidden_states", "attentions", "last_hidden_state", "pooler_output", "logits")  # of a model


class Bound(NamedTuple):
    """How much an output may differ: the largest difference, and its root mean square."""

    largest: float
    mean: float


Bounds = dict[str, Bound]


def outputs_of(result: Any) -> Outputs:
    """Return the outputs in what a model returned, by their names in OUTPUTS. Raises ValueError if there are none."""
    order = ("last_hidden_state", "hidden_states", "attentions", "logits")
    if isinstance(result, Tensor | np.ndarray):
        named = {"last_hidden_state": result}
    elif isinstance(result, Mapping):
        named = {name: result[name] for name in OUTPUTS if result.get(name) is not None}
    elif isinstance(result, tuple | list) and not hasattr(result, "_fields"):
        named = dict(zip(order, result, strict=False))  # a model may return only the first of them
    else:
        named = {name: getattr(result, name) for name in OUTPUTS if getattr(result, name, None) is not None}
    if not named:
        raise ValueError(f"the model returned {type(result).__name__} without any of {', '.join(OUTPUTS)}")
    return {name: as_tensor(value, name) for name, value in named.items()}


def as_tensor(value: Any, name: str) -> Tensor:
    """Return an output as one tensor; several layers are stacked. Raises ValueError for anything but numbers."""
    if isinstance(value, tuple | list):
        return torch.stack([as_tensor(one, name) for one in value])
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.ascontiguousarray(value))
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} is of type {kind}; it must be numbers (float32, float16 or bfloat16)")
    return value.detach().cpu()


def flatten(result: Any, name: str = "", names: tuple[str, ...] = ()) -> Outputs:
    """Return the tensors and lists of texts in a result, by names such as "0" or "layer.weight".

    names: of the items of a tuple or list of as many; else they are numbered.
    """
    if isinstance(result, float | int) and not isinstance(result, bool):
        return {name: torch.tensor(result, dtype=torch.float64)}
    texts = isinstance(result, tuple | list) and all(isinstance(one, str) for one in result)
    if texts or not isinstance(result, Mapping | tuple | list):
        return {name: list(result) if texts else result}
    if isinstance(result, Mapping):
        items: Any = result.items()
    else:
        items = zip(names, result, strict=True) if len(names) == len(result) else enumerate(result)
    return {k: v for key, value in items for k, v in flatten(value, f"{name}.{key}".lstrip(".")).items()}


def converted(value: Any, dtype: torch.dtype) -> Any:
    """Return a copy whose floats are of this dtype."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: converted(item, dtype) for key, item in value.items()}
    return type(value)(converted(item, dtype) for item in value) if isinstance(value, list | tuple) else value


def bounds(expected: Outputs, others: list[Outputs], dtype: torch.dtype = torch.float32) -> Bounds:
    """Return how much each output may differ if it is computed in dtype.

    others: the same outputs in a dtype whose difference from float32 is this rounding: float64 for float32.
    """
    found = {}
    for name, x in expected.items():
        if not isinstance(x, Tensor) or not x.is_floating_point():
            found[name] = Bound(0.0, 0.0)
            continue
        unit = torch.finfo(dtype).eps * (float(x.abs().max()) if x.numel() else 0.0)
        rounding = max(difference(x, other[name]) for other in others)
        if dtype == torch.float32:
            largest = max(FACTOR * rounding, UNITS * unit)
            found[name] = Bound(largest, largest)
        else:
            mean = max(root_mean_square(x, other[name]) for other in others)
            found[name] = Bound(max(LARGEST * rounding, unit), max(MEAN * mean, unit / 16))
    return found


def problem(found: Outputs, expected: Outputs) -> str:
    """Return why the two cannot be compared: names, types, shapes, dtypes; "" if they can."""
    if found.keys() != expected.keys():
        return f"it returned {described(found)}; expected {described(expected)}"
    for name, right in expected.items():
        value = found[name]
        where = f"{name} " if name else "it "
        if not isinstance(value, type(right)):
            kind = getattr(value, "kind", "") or f"{type(value).__module__}.{type(value).__name__}"
            wanted = "a torch tensor" if isinstance(right, Tensor) else "a list of texts"
            return f"{where}is of type {kind.removeprefix('builtins.')}; expected {wanted}"
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


def root_mean_square(found: Tensor, expected: Tensor) -> float:
    """Return the root mean square of the differences."""
    return float(differences(found, expected).square().mean().sqrt()) if found.numel() else 0.0


def distance(found: Outputs, expected: Outputs, bound: Mapping[str, Bound]) -> float:
    """Return the largest distance of all outputs, in units of their bounds; infinity if they cannot be compared."""
    if problem(found, expected):
        return math.inf
    return max((apart(found[name], right, bound[name]) for name, right in expected.items()), default=0.0)


def apart(found: Any, expected: Any, bound: Bound) -> float:
    """Return how far two outputs are apart, in units of their bound: by the largest difference or by the mean."""
    if not isinstance(expected, Tensor):
        return math.inf if found != expected else 0.0
    pairs = (difference(found, expected), bound.largest), (root_mean_square(found, expected), bound.mean)
    return max(far / allowed if allowed else math.inf if far else 0.0 for far, allowed in pairs)


def mean_distance(found: Outputs, expected: Outputs, bound: Mapping[str, Bound]) -> float:
    """Return the sum over the outputs of their mean differences in units of their bounds: the nearest is the least."""
    if problem(found, expected):
        return math.inf
    return sum(
        root_mean_square(found[name], right) / (bound[name].mean or 1.0)
        if isinstance(right, Tensor)
        else float(found[name] != right)
        for name, right in expected.items()
    )


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
        where = f"{self.output}{list(self.index) if self.index else ''}"
        found, expected = (f"{x:.6g}" if isinstance(x, float) else repr(x) for x in (self.found, self.expected))
        said = f"{where + ': ' if where else ''}found {found}, expected {expected}"
        return f"{said}; {self.kind}" if self.kind else said


def first_wrong(found: Outputs, expected: Outputs, bound: Mapping[str, Bound], mask: Tensor | None = None) -> Mismatch:
    """Return the first wrong number; mask: (B,S), 1 for a real token, if the outputs are of such a batch."""
    for name, right in expected.items():
        value = found[name]
        if not isinstance(right, Tensor):
            if value != right:
                return Mismatch(name, (), value, right, "", math.inf)
            continue
        a = value.detach().double()
        b = right.double()
        wrong = differences(a, b) > bound[name].largest
        if not bool(wrong.any()) and apart(value, right, bound[name]) > 1.0:
            wrong = differences(a, b) > bound[name].mean  # many numbers differ, none by much
        if bool(wrong.any()):
            index = tuple(wrong.nonzero()[0].tolist())
            return Mismatch(name, index, float(a[index]), float(b[index]), kind_of(a, b, wrong, mask), difference(a, b))
    raise ValueError("nothing is wrong")


def is_factor(ratio: Tensor) -> bool:
    """Return whether these quotients are one number, other than 1."""
    mean, spread = float(ratio.mean()), float(ratio.std())
    return spread < 1e-3 * abs(mean) and abs(mean - 1) > 20 * spread + 1e-3


def kind_of(a: Tensor, b: Tensor, wrong: Tensor, mask: Tensor | None) -> str:
    """Return how a differs from b: not numbers, a factor, permuted axes, or only some positions; "" for none of it."""
    share = f"{int(wrong.sum()):,} of {wrong.numel():,} numbers are wrong"
    if not bool(a.isfinite().all()):
        return f"{int((~a.isfinite()).sum()):,} numbers are NaN or infinite"
    ratio = a[wrong] / b[wrong]
    if len(ratio) > 1 and bool(ratio.isfinite().all()) and is_factor(ratio):
        return f"all wrong numbers are {float(ratio.mean()):.6g} times as large as they should be"
    for axes in combinations(range(a.dim()), 2):
        exchanged = a.transpose(*axes)
        if exchanged.shape == b.shape and torch.allclose(exchanged, b, 1e-4, 1e-6):
            return f"axes {axes[0]} and {axes[1]} are exchanged"
    for axis in range(a.dim()):
        if a.shape[axis] > 1 and torch.allclose(a.flip(axis), b, 1e-4, 1e-6):
            return f"axis {axis} is in reverse order"
    if mask is not None and a.dim() >= 3 and len(a) == len(mask):
        whole = mask.bool().all(dim=1)  # texts without padding
        if a.shape[1] == mask.shape[1] and not bool(wrong[mask == 1].any()):
            return f"only at padding: {share}"
        if bool(whole.any()) and not bool(wrong[whole].any()):
            return f"only in texts with padding: {share}"
    return share
