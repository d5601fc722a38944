"""The inputs of a model, and the outputs in what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minibert.checking.numbers import Outputs

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = ("hidden_states", "attentions", "last_hidden_state", "pooler_output", "logits")


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
