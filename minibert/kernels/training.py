"""Faster operations for a training step, which differ from torch's only in rounding.

product          x Wᵀ + b by oneDNN, forward and backward, where that computes in float32
dropout          from 16 random bits per number; also within attention
fused_attention  in float32 without dropout, where autocast would compute in bfloat16
packed_attention  of a packed batch, group by group
"""

from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minibert.kernels.attention import grouped_attention
from minibert.kernels.matmul import MAX_ERROR, is_x86, onednn_allowed, relative_error
from minibert.kernels.packing import Packed
from minibert.layout import Padded
from minibert.utils.device import without_cudnn

INT16_VALUES = 1 << 16
DROPOUT_FROM = 4096  # numbers: for fewer, torch's own dropout is as fast


# ---------------------------------------------------------------------------------------------------------------
# Linear layers: y = x Wᵀ + b, dx = dy W, dW = dyᵀ x, db = Σ dy


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b, by oneDNN on a CPU where that computes in float32, else by torch."""
    if x.is_cpu and not torch.is_autocast_enabled("cpu") and onednn_is_float32():
        return linear(x, weight, bias)
    return F.linear(x, weight, bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b by oneDNN, (..., in) -> (..., out); see kernels/matmul.py.

    Not used for attention: no two batches have its shapes, and oneDNN caches a kernel for each.
    """
    rows = x.reshape(-1, x.shape[-1])
    y: Tensor = OneDNNProduct.apply(rows, weight, bias)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return y.view(*x.shape[:-1], len(weight))  # x may have no rows


class OneDNNProduct(torch.autograd.Function):
    """x Wᵀ + b of rows, (T, in) -> (T, out); oneDNN is allowed only for these products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """(T,in) -> (T,out)."""
        ctx.save_for_backward(x, weight)
        with onednn_allowed():
            return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """dy (T,out) -> those of dx, dW and db that are needed; None for the others."""
        (dy,) = gradients
        x, weight = ctx.saved_tensors
        to_x, to_weight, to_bias = ctx.needs_input_grad
        with onednn_allowed():
            dx = dy @ weight if to_x else None
            dw = dy.T @ x if to_weight else None
        return dx, dw, dy.sum(dim=0) if to_bias else None


@cache
def onednn_is_float32() -> bool:
    """Return whether this machine computes all three products in float32 although the setting allows less.

    Each is compared with float64, with numbers of rows that are not multiples of a block.
    """
    if not is_x86():
        return False
    random = torch.Generator().manual_seed(0)  # leaves the caller's random state alone
    x, weight, dy = (torch.randn(size, generator=random) for size in ((67, 256), (320, 256), (67, 320)))
    exact = (x.double() @ weight.double().T, dy.double() @ weight.double(), dy.double().T @ x.double())
    x.requires_grad_()
    weight.requires_grad_()
    try:
        with torch.enable_grad():
            y = linear(x, weight)
            computed = (y.detach(), *torch.autograd.grad(y, (x, weight), dy))
    except (AttributeError, RuntimeError):  # a torch without the setting, or without oneDNN
        return False
    return max(map(relative_error, computed, exact)) <= MAX_ERROR[torch.float32]


# ---------------------------------------------------------------------------------------------------------------
# Dropout: torch draws one random number for each number, which takes five times as long. Here a number is kept if
# its 16 random bits, as an integer from -32,768 to 32,767, reach a threshold: p = 0.1 drops 6,554 / 65,536 = 0.100006.
# All bits come from torch's generator, so that the seed determines them and a resumed run continues with the same.


def drops(x: Tensor, p: float) -> bool:
    """Return whether dropout of x is possible and worthwhile in this way."""
    return x.is_cpu and x.is_floating_point() and 0 < threshold(p) < INT16_VALUES and x.numel() >= DROPOUT_FROM


def threshold(p: float) -> int:
    """Return how many of the 65,536 values of 16 bits mean: dropped."""
    return round(p * INT16_VALUES)


def draw(shape: torch.Size, p: float) -> Tensor:
    """Return True for each number that is kept, bool of this shape; each int64 that is drawn serves four numbers."""
    numbers = shape.numel()
    draws = torch.empty(-(-numbers // 4), dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)  # all 64 bits
    return (draws.view(torch.int16)[:numbers] >= threshold(p) - INT16_VALUES // 2).view(shape)


def dropout(x: Tensor, p: float) -> Tensor:
    """Return x with each number dropped with probability p, the others divided by 1 - p."""
    return x * draw(x.shape, p).to(x.dtype).mul_(INT16_VALUES / (INT16_VALUES - threshold(p)))


def fused_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float) -> Tensor:
    """Return dropout(softmax(Q Kᵀ / √W)) V, (B,H,S,W), by the fastest kernel; mask: see `attention`."""
    if drops(query, p) or (mask is not None and mask.is_floating_point()):
        return attention(query, key, value, mask, p)
    if query.is_cpu and torch.is_autocast_enabled("cpu"):  # the gradient in bfloat16 takes two to four times as long
        with torch.autocast("cpu", enabled=False):
            return fused_attention(query.float(), key.float(), value.float(), mask, p)
    with without_cudnn():
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=p)


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, packed: Packed, dropout: nn.Dropout
) -> tuple[Tensor, None]:
    """Attend within each text, (H,T,W) -> (H,T,W), or from the tokens that are read, (H,N,W) -> (H,N,W)."""
    p = dropout.p if dropout.training else 0.0
    q, k, v = (x.transpose(0, 1) for x in (query, key, value))  # (H,T,W) -> (T,H,W)
    return grouped_attention(q, k, v, packed, partial(fused_attention, p=p)).transpose(0, 1), None


def sdpa_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: Padded, dropout: nn.Dropout
) -> tuple[Tensor, None]:
    """Compute attention in padded rows by torch's fused kernel, which does not store the probabilities.

    Where a row of a window may have no key, its gradient is wrong, and so it is written out.
    """
    keep = layout.keep
    mask = torch.zeros_like(keep, dtype=query.dtype).masked_fill(~keep, torch.finfo(query.dtype).min)
    p = dropout.p if dropout.training else 0.0
    if keep.shape[-2] > 1 and torch.is_grad_enabled():
        return attention(query, key, value, mask, p), None
    with without_cudnn():
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=p), None


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float) -> Tensor:
    """Return dropout(softmax(Q Kᵀ / √W)) V, (B,H,S,W).

    mask: True for a key that is seen, or what is added to the scores, (B,1,1,S) or the like.
    Written out: torch has no fused kernel with dropout for the CPU, and spends time on rows without any key.
    """
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)  # (B,H,S,W) -> (B,H,S,S)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    probs = torch.softmax(scores, dim=-1)
    return (dropout(probs, p) if drops(probs, p) else F.dropout(probs, p)) @ value  # (B,H,S,S) -> (B,H,S,W)
