"""The roofline: the operations that the work cannot do without, at the rate at which this machine multiplies matrices.

S tokens, D hidden, F feed-forward, L layers. In each layer a text costs 4 S D² operations for keys and values, 4 Q D²
for query and output, 4 Q D F for the feed-forward and 4 Q S D for attention, where Q are the query tokens: all, Q = S,
but in the last layer, of which [CLS] alone is wanted, Q = 1. A product and its addition are two operations.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from minibert.config import Config
from minibert.kernels.matmul import Linear, choose_linear

TOKENS = {"cpu": 1024, "cuda": 16384}  # rows of the measured products
REPEATS = 7


def layer_flops(S: int, Q: int, D: int, F: int) -> int:
    """Operations of one layer for one text."""
    return 4 * S * D * D + 4 * Q * D * D + 4 * Q * D * F + 4 * Q * S * D


def text_flops(S: int, config: Config, first_only: bool = True) -> int:
    """All layers for one text; with first_only the last layer is computed for [CLS] alone, which is exact."""
    D, F, L = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    return (L - 1) * layer_flops(S, S, D, F) + layer_flops(S, 1 if first_only else S, D, F)


def job_flops(lengths: Iterable[int], config: Config) -> int:
    """The [CLS] vectors of texts with these numbers of tokens, without padding."""
    return sum(text_flops(S, config) for S in lengths)


def padded_bytes(lengths: Sequence[int], config: Config) -> int:
    """About the memory that one padded batch of all texts wants, every hidden state kept, in float32."""
    D, F, L = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    return 4 * len(lengths) * max(lengths) * ((L + 1) * D + 4 * D + 2 * F)


def rates(D: int, F: int, precisions: Iterable[str], device: torch.device) -> dict[str, dict[str, float]]:
    """precision -> kernel -> operations a second, of torch's own kernel and of the one that the engine chooses."""
    found = {}
    for precision in precisions:
        dtype = getattr(torch, precision)
        kernels: list[type[Linear]] = [Linear, choose_linear(dtype, device)]
        found[precision] = {kernel.description: rate(kernel, D, F, dtype, device) for kernel in dict.fromkeys(kernels)}
    return found


def rate(kernel: type[Linear], D: int, F: int, dtype: torch.dtype, device: torch.device) -> float:
    """Operations a second: the median of REPEATS passes over the products of one layer."""
    T = TOKENS.get(device.type, TOKENS["cpu"])
    shapes = [(D, D), (D, 2 * D), (D, D), (D, F), (F, D)]  # (in, out): query, key with value, output, feed-forward
    with torch.inference_mode():
        products = [kernel([nn.Linear(*shape)], dtype, device) for shape in shapes]
        inputs = [torch.ones(T, size, dtype=dtype, device=device) for size, _ in shapes]
        seconds = []
        for _ in range(REPEATS + 2):
            synchronize(device)
            began = time.perf_counter()
            for x, product in zip(inputs, products, strict=True):
                product(x)
            synchronize(device)
            seconds.append(time.perf_counter() - began)
    return sum(2 * T * rows * columns for rows, columns in shapes) / statistics.median(seconds[2:])


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
