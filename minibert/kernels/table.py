"""Looking tokens up, with a gradient that takes its memory once and not anew in every step.

The gradient of the token table is as large as the table, 47 MB for 30,522 tokens of width 384, and all zeros but for
the rows of the tokens in the batch. Autograd asks the system for that much memory in each step, page by page, and gives
it back: a quarter of the time of a step in bfloat16. Here it is kept from step to step, and set to zero.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

KEPT: Any = WeakTensorKeyDictionary()  # table -> its last gradient
LARGE = 2**20  # numbers: smaller ones cost little
UNHELD = 3  # references to a gradient that nobody else holds: KEPT's, a name's, and that of getrefcount itself


def worth_it(weight: Tensor) -> bool:
    """Whether the gradient of a table is large, on the CPU, and wanted by this process alone."""
    alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
    return alone and weight.is_leaf and weight.requires_grad and weight.is_cpu and weight.numel() >= LARGE


def look_up(ids: Tensor, weight: Tensor, padding_id: int | None = None) -> Tensor:
    """Rows of a table, (...) -> (...,D); their gradient is added to weight.grad itself, and autograd sees none."""
    x: Tensor = Lookup.apply(ids.flatten(), weight, padding_id)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return x.view(*ids.shape, -1)


class Lookup(torch.autograd.Function):
    """x = E[ids]; dE[ids] += dx."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, padding_id: int | None) -> Tensor:
        """(T) -> (T,D)."""
        ctx.ids, ctx.weight, ctx.padding_id = ids, weight, padding_id
        return weight.index_select(0, ids)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        """(T,D) -> nothing that autograd has to add: it is added here."""
        ids, (gradient,) = ctx.ids, gradients
        if ctx.weight.grad is None:
            ctx.weight.grad = zeros_of(ctx.weight)
        if ctx.padding_id is not None:  # [PAD] learns nothing
            gradient = gradient * (ids != ctx.padding_id)[:, None]
        ctx.weight.grad.index_add_(0, ids, gradient)
        return None, None, None


def zeros_of(weight: Tensor) -> Tensor:
    """Zeros of the shape of a table, in the memory of its last gradient where nobody holds that any longer."""
    kept: Tensor | None = KEPT.get(weight)
    if kept is not None and (kept.shape, kept.dtype) == (weight.shape, weight.dtype):
        held = sys.getrefcount(kept) > UNHELD
        if not held:
            return kept.zero_()
    zeros = KEPT[weight] = torch.zeros_like(weight)
    return zeros
