"""The wall: how fast this machine multiplies matrices of the model's shapes, in every way that it has."""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn

from minibert.device import choose_dtype
from minibert.vectors.matmul import Linear, PackedLinear, PermittedLinear, is_right

TOKENS = {"cpu": 1024, "cuda": 16384}  # rows of the products
REPEATS = 7


def rates(D: int, F: int, precision: str, device: torch.device) -> dict[str, float]:
    """Way -> floating-point operations a second, of the products of one layer; empty where the precision is missing.

    Each way is measured by the median of REPEATS passes over query, key with value, output and both of the
    feed-forward, and only where it is right (see matmul.is_right).
    """
    if precision == "float16" and device.type != "cuda":
        return {}
    dtype = choose_dtype(precision, device)
    if str(dtype) != f"torch.{precision}":
        return {}
    ways: list[type[Linear]] = [Linear]
    if device.type == "cpu":
        faster = (PackedLinear, PermittedLinear) if dtype == torch.float32 else (PackedLinear,)
        ways += [way for way in faster if is_right(way, dtype)]
    return {way.words: rate(way, D, F, dtype, device) for way in ways}


def rate(way: type[Linear], D: int, F: int, dtype: torch.dtype, device: torch.device) -> float:
    """Floating-point operations a second of one way."""
    T = TOKENS.get(device.type, TOKENS["cpu"])
    shapes = [(D, D), (D, 2 * D), (D, D), (D, F), (F, D)]  # (in, out)
    with torch.inference_mode():
        products = [way([plain_linear(*shape)], dtype, device) for shape in shapes]
        inputs = {size: torch.ones(T, size, dtype=dtype, device=device) for size in {D, F}}
        seconds = []
        for _ in range(REPEATS + 2):
            synchronize(device)
            begin = time.perf_counter()
            for (size, _), product in zip(shapes, products, strict=True):
                product(inputs[size])
            synchronize(device)
            seconds.append(time.perf_counter() - begin)
    return sum(2 * T * rows * columns for rows, columns in shapes) / statistics.median(seconds[2:])


def plain_linear(rows: int, columns: int) -> nn.Linear:
    """A layer whose weights are small and equal: no random number is drawn."""
    layer = nn.Linear(rows, columns, device="meta")
    layer.weight = nn.Parameter(torch.full((columns, rows), 1 / rows))
    layer.bias = nn.Parameter(torch.full((columns,), 0.5))
    return layer


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
