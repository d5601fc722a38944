"""Float32 products of a training step by oneDNN, where that is right: forward, and both of the way back.

    y = x Wᵀ + b        dx = dy W        dW = dyᵀ x        db = Σ dy

A step without padding is nearly all products, and torch's own choice for them is slow on CPUs that are not Intel's; see
kernels/matmul.py, where the permission that leads to oneDNN is explained. The last bits differ, so the readable step,
which is bit for bit that of transformers, does without. Attention does without too: no two batches have its shapes, and
oneDNN keeps a kernel for each.
"""

from __future__ import annotations

import platform
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minibert.kernels.matmul import LARGEST_ERROR, permission, relative_error


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b, (..., in) -> (..., out)."""
    y: Tensor = Product.apply(x.reshape(-1, x.shape[-1]), weight, bias)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], len(weight))  # a part without a label has no rows


class Product(torch.autograd.Function):
    """The same of rows, (T, in) -> (T, out), with the permission around each product alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """y = x Wᵀ + b"""
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        with permission():
            return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """dx = dy W, dW = dyᵀ x, db = Σ dy, as far as they are wanted."""
        (dy,), (x, weight) = gradients, ctx.saved_tensors
        to_x, to_weight, to_bias = ctx.needs_input_grad
        with permission():
            dx = dy @ weight if to_x else None
            dw = dy.T @ x if to_weight else None
        return dx, dw, dy.sum(dim=0) if to_bias and ctx.biased else None


@cache
def permitted() -> bool:
    """Whether this machine computes all three products in float32 under the permission, which allows less.

    Each is compared with float64, at numbers that fill no block of oneDNN.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    random = torch.Generator().manual_seed(0)  # a generator of its own: the caller's random numbers stay as they are
    x, weight, dy = (torch.randn(size, generator=random) for size in ((67, 256), (320, 256), (67, 320)))
    exact = (x.double() @ weight.double().T, dy.double() @ weight.double(), dy.double().T @ x.double())
    x.requires_grad_(), weight.requires_grad_()
    try:
        with torch.enable_grad():
            y = linear(x, weight)
            found = (y.detach(), *torch.autograd.grad(y, (x, weight), dy))
    except (AttributeError, RuntimeError):  # a torch without the setting, or without oneDNN
        return False
    return max(map(relative_error, found, exact)) <= LARGEST_ERROR[torch.float32]
