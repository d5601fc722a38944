"""Dropout that draws 16 random bits for a number where torch draws a whole random number: a fifth of its time.

A number is kept where its 16 bits, as a whole number from -32,768 to 32,767, reach a threshold: with p = 0.1 it is
dropped with 6,554 / 65,536 = 0.100006. All bits come from torch's generator, so a seed still decides them, and a
run that is resumed goes on with the same.

Attention is written out here, with that dropout on its weights: torch has no fused kernel for it on a CPU either, and
takes time to care for rows without any key, which a text always has.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NUMBERS = 1 << 16  # that 16 bits can be
IN_A_DRAW = 4  # times 16 bits
LOWEST = torch.iinfo(torch.int64).min
SMALL = 4096  # numbers: for fewer torch's own way is as quick


def drops(x: Tensor, p: float) -> bool:
    """Whether dropout of x is worth doing in this way."""
    return x.is_cpu and x.is_floating_point() and 0 < threshold(p) < NUMBERS and x.numel() >= SMALL


def threshold(p: float) -> int:
    """How many of the numbers that 16 bits can be mean: dropped."""
    return round(p * NUMBERS)


def dropout(x: Tensor, p: float) -> Tensor:
    """x with each number dropped with probability p, the others divided by 1 - p."""
    y: Tensor = Dropout.apply(x, p)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return y


class Dropout(torch.autograd.Function):
    """y = x · keep / (1 - p), and dx = dy · keep / (1 - p)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        """Draw what is kept."""
        factor = draw(x.shape, p).to(x.dtype).mul_(NUMBERS / (NUMBERS - threshold(p)))
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The same numbers are kept."""
        (factor,) = ctx.saved_tensors
        return gradients[0] * factor, None


def draw(shape: torch.Size, p: float) -> Tensor:
    """True where a number is kept, bool of this shape."""
    numbers = shape.numel()
    draws = torch.empty(-(-numbers // IN_A_DRAW), dtype=torch.int64).random_(LOWEST, None)  # all 64 bits
    return (draws.view(torch.int16)[:numbers] >= threshold(p) - NUMBERS // 2).view(shape)


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float) -> Tensor:
    """dropout(softmax(Q Kᵀ / √W)) V, (B,H,S,W); mask: True for a key that is a token, (B,1,1,S) or the like."""
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)  # (B,H,S,W) -> (B,H,S,S)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return dropout(torch.softmax(scores, dim=-1), p) @ value  # (B,H,S,S) -> (B,H,S,W)
