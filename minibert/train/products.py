"""Float32 products of a training step by oneDNN, where that is right: forward, and both of the way back.

    y = x Wᵀ        dx = dy W        dW = dyᵀ x

A step without padding is nearly all products, and torch's own choice for them is slow on CPUs that are not Intel's; see
vectors/matmul.py, where the permission that leads to oneDNN is explained. The last bits differ, so the readable step,
which is bit for bit that of transformers, does without.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
import torch.nn.functional as F

from minibert.vectors.matmul import LARGEST_ERROR, permission, relative_error


@contextmanager
def quick_products(device: torch.device) -> Iterator[None]:
    """Let float32 products go to oneDNN inside, on a CPU where they are right."""
    if device.type == "cpu" and permitted():
        with permission():
            yield
    else:
        yield


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
        with permission(), torch.enable_grad():
            y = F.linear(x, weight)
            found = (y.detach(), *torch.autograd.grad(y, (x, weight), dy))
    except (AttributeError, RuntimeError):  # a torch without the setting, or without oneDNN
        return False
    return max(map(relative_error, found, exact)) <= LARGEST_ERROR[torch.float32]
