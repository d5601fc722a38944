"""Products of whole numbers: x Wᵀ in int8, twice bfloat16's rate, and what keeps the vectors' meaning.

A number x is kept as one byte q, from -128 to 127, times a scale s that many numbers share: x ≈ s (q - o). The product
of two rows of bytes is an exact whole number; only the rounding of x and W is lost. How much that is depends on what
shares a scale, since the largest number of all that share it decides how coarse the steps of the others are:

    a scale a row   Each token (row of x) has its own, found as it comes, and each output channel (row of W) too: both
                    leave the sum over the input channels, so the product of bytes stays whole.
    smoothing       BERTs have a few outlier dimensions, channels of x that are ten times as large as the others in
                    every token, and so decide every token's scale. x Wᵀ = (x / c) (c W)ᵀ for any c (in): with
                    c = max|x|^a / max|w|^(1-a) of each channel, x and W share the burden (Xiao et al. 2022,
                    SmoothQuant). a = 0.6, since x loses more than W.
    an offset       What GELU lets through is hardly below 0: with o = 0 half of the 256 numbers would stay unused.

Which of these suits a product, and whether any does, is measured: calibration.py. Everything between the products,
residual stream, LayerNorm, softmax and attention, is float32 as before; the table of tokens, which is only read, is
bfloat16. T tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minibert.device import has_int8
from minibert.kernels.matmul import Linear, joined
from minibert.kernels.memory import Scratch
from minibert.model import ACTIVATION

LEAST, MOST = -128, 127  # of a byte
SMALLEST = 1e-30  # scale, so that a row of zeros has one


@dataclass(frozen=True)
class Rounding:
    """How the input of a product becomes whole numbers."""

    smoothing: Tensor | None = None  # (in): c; None: all 1
    offset: int = 0  # o, the byte that means 0
    folded: bool = False  # x / c is what arrives: the product before this one has been divided by c


@dataclass(frozen=True)
class Whole:
    """Rows as bytes: x / c ≈ scale (values - offset)."""

    values: Tensor  # (T,in) int8, or as the product takes them
    scale: Tensor  # (T,1) float32


class WholeLinear(Linear):
    """activation(x Wᵀ + b), or x Wᵀ + b + residual, by a product of bytes; several layers with one input are one.

    `enter` rounds x (T,in), of any floating dtype; called with that, it gives float32, (T,out). The result stays
    valid until the next call of a product with this name.
    """

    words = "int8 by torch._int_mm"

    def __init__(
        self,
        layers: Sequence[nn.Linear],
        rounding: Rounding,
        activation: str | None = None,
        scratch: Scratch | None = None,
        name: str = "",
    ) -> None:
        weight = joined([layer.weight.detach() for layer in layers]).to("cpu", torch.float32)  # (out,in)
        self.bias = joined([layer.bias.detach() for layer in layers]).to("cpu", torch.float32)  # (out)
        self.inverse = None  # (in): 1 / c
        if rounding.smoothing is not None:
            weight = weight * rounding.smoothing
            self.inverse = None if rounding.folded else 1 / rounding.smoothing
        scale = (weight.abs().amax(dim=1, keepdim=True) / MOST).clamp_(min=SMALLEST)  # (out,1)
        self.weight = (weight / scale).round_().to(torch.int8)
        self.scale = scale[:, 0]
        self.offset = None  # (in): of each channel the same, for addcmul
        self.correction = None  # (out): what the offset adds to each product of bytes, times the weight's scale
        if rounding.offset:
            self.offset = torch.full((weight.shape[1],), float(rounding.offset))
            self.correction = -rounding.offset * self.weight.sum(dim=1, dtype=torch.int32) * self.scale
        self.largest, self.smallest = MOST - rounding.offset, LEAST - rounding.offset
        self.activation, self.name, self.scratch = activation, name, scratch or Scratch()

    def enter(self, x: Tensor) -> Whole:
        """(T,in) as bytes, each row with the smallest scale at which its largest and its smallest number fit."""
        rounded = self.scratch.take("rounded", len(x), x.shape[1])
        if self.inverse is not None:
            x = torch.mul(x, self.inverse, out=rounded)
        high, low = x.amax(dim=1, keepdim=True).float(), x.amin(dim=1, keepdim=True).float()
        scale = torch.maximum(high / self.largest, low / self.smallest).clamp_(min=SMALLEST)  # (T,1)
        if self.offset is None:
            torch.mul(x, 1 / scale, out=rounded)
        else:
            torch.addcmul(self.offset, x.float(), 1 / scale, out=rounded)
        values = self.scratch.take("bytes", len(x), x.shape[1], torch.int8)
        return Whole(self.form(values.copy_(rounded.round_())), scale)

    def form(self, values: Tensor) -> Tensor:
        """Bytes (T,in), int8, as the product takes them."""
        return values

    def product(self, values: Tensor) -> Tensor:
        """(values - offset) Wᵀ, times the scales of W, in float32: (T,in) -> (T,out)."""
        size = len(values), len(self.bias)
        whole = torch._int_mm(values, self.weight.T, out=self.scratch.take("whole", *size, torch.int32))
        y = self.scratch.take(self.name, *size).copy_(whole)
        return y.mul_(self.scale) if self.correction is None else torch.addcmul(self.correction, y, self.scale, out=y)

    def __call__(self, x: Whole, residual: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """(T,in) -> (T,out)."""
        y = self.product(x.values)
        if residual is not None:
            return torch.addcmul(residual, y, x.scale, out=y).add_(self.bias)
        torch.addcmul(self.bias, y, x.scale, out=y)
        if self.activation == "gelu":
            torch.ops.aten.gelu_(y)  # in place; the public function takes new memory
            return y
        return y if self.activation is None else ACTIVATION[self.activation](y)


class PackedWholeLinear(WholeLinear):
    """The same by oneDNN with packed weights; floats, scales of W and offset are made in its kernel.

    It takes bytes without a sign, 128 more each; those with one it would leave to a kernel for reference.
    """

    words = "int8 by packed oneDNN"

    def __init__(self, layers: Sequence[nn.Linear], rounding: Rounding, *others: Any) -> None:
        super().__init__(layers, rounding, *others)
        self.weight = torch.ops.onednn.qlinear_prepack(self.weight, None)
        self.zero, self.zeros = rounding.offset - LEAST, torch.zeros(len(self.bias), dtype=torch.int32)

    def form(self, values: Tensor) -> Tensor:
        """Bytes (T,in), int8, with 128 added: the highest bit turned over."""
        return values.view(torch.uint8).bitwise_xor_(-LEAST)

    def product(self, values: Tensor) -> Tensor:
        """(values - offset) Wᵀ, times the scales of W, in float32: (T,in) -> (T,out)."""
        scales = 1.0, self.zero, self.weight, self.scale, self.zeros  # of values, and of W
        y: Tensor = torch.ops.onednn.qlinear_pointwise(values, *scales, None, 1.0, 0, torch.float32, "none", [], "")
        return y


def divided(layer: nn.Linear, c: Tensor) -> nn.Linear:
    """The layer whose results are divided by c (out)."""
    result = nn.Linear(layer.in_features, layer.out_features, device="meta")  # no memory; both tensors follow
    result.weight = nn.Parameter(layer.weight.detach().to(c.device) / c[:, None], requires_grad=False)
    result.bias = nn.Parameter(layer.bias.detach().to(c.device) / c, requires_grad=False)
    return result


def choose_int8(device: torch.device) -> type[WholeLinear] | None:
    """What multiplies bytes quickly and exactly on this device; where nothing does, a warning says what is missing."""
    exact = (kernel for kernel in (PackedWholeLinear, WholeLinear) if is_exact(kernel))
    if not has_int8(device):
        missing = f"{device} does not multiply bytes in hardware (AVX512_VNNI, AVX_VNNI or AMX, on a CPU)"
    elif (chosen := next(exact, None)) is None:
        missing = "this build of torch has no product of bytes that is exact here"
    else:
        return chosen
    warnings.warn(f"{missing}; computing in bfloat16, or float32 where that is quicker", stacklevel=3)
    return None


def is_exact(kernel: type[WholeLinear] = WholeLinear) -> bool:
    """True where this build of torch multiplies bytes on this machine and every product is the exact whole number.

    The largest bytes of all are among those that are tried: older CPUs have 16 bits for their sums, which overflow.
    """
    random = torch.Generator().manual_seed(0)  # a generator of its own: the caller's random numbers stay as they are
    for tokens, channels, outputs, offset in ((1, 256, 96, 0), (67, 320, 256, -107), (33, 1536, 64, 0)):
        x = torch.randint(LEAST, MOST + 1, (tokens, channels), generator=random).to(torch.int8)
        layer = nn.Linear(channels, outputs, device="meta")  # no memory, no random numbers; both tensors follow
        layer.weight = nn.Parameter(torch.randint(-MOST, MOST + 1, (outputs, channels), generator=random).float())
        layer.bias = nn.Parameter(torch.zeros(outputs))
        with torch.inference_mode():
            x[0], x[-1], layer.weight[0], layer.weight[:, 0] = LEAST, MOST, MOST, MOST  # the latter: every scale is 1
            exact = (x.double() - offset) @ layer.weight.double().T
            try:
                product = kernel([layer], Rounding(offset=offset))  # that there is such an operator
                y = product(Whole(product.form(x), torch.ones(tokens, 1)))
            except (AttributeError, RuntimeError, TypeError):  # no such operator, or other arguments
                return False
        if not torch.equal(y, exact.float()):
            return False
    return True
