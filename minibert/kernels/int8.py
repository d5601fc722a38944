"""int8 linear layers: x Wᵀ at twice the rate of bfloat16, and what keeps the vectors' meaning.

A number x is stored as an int8 q, from -128 to 127, and a scale s that many numbers share: x ≈ s (q - z), with a zero
point z. The product of two int8 rows is an exact integer; only the quantization of x and W loses precision. How much
depends on what shares a scale, since the largest number that shares it determines the step size of all others:

    a scale per row   Each token (row of x) has its own, computed on the fly, and each output channel (row of W) too:
                      neither takes part in the sum over input channels, so the product stays an integer product.
    smoothing         BERTs have a few outlier dimensions, channels of x that are ten times as large as the others in
                      every token and therefore determine every token's scale. x Wᵀ = (x / c) (c W)ᵀ for any c (in):
                      c = max|x|^a / max|w|^(1-a) of each channel moves part of the range from x to W (Xiao et al. 2022,
                      SmoothQuant). a = 0.6, since x loses more than W.
    a zero point      GELU returns hardly anything below 0: with z = 0 half of the 256 values would stay unused.

Calibration (calibration.py) measures which of these suits a layer, and whether any does. Everything between the linear
layers, residual stream, LayerNorm, softmax and attention, stays float32; the token embeddings are bfloat16. T tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minibert.device import has_int8
from minibert.kernels.matmul import Linear, joined, linear_of
from minibert.kernels.memory import Workspace
from minibert.model import ACTIVATION

LOWEST, HIGHEST = -128, 127  # int8
MIN_SCALE = 1e-30  # so that a row of zeros has a scale


@dataclass(frozen=True)
class Quantization:
    """How the input of a linear layer becomes int8."""

    smoothing: Tensor | None = None  # (in): c; None: all 1
    zero_point: int = 0  # z, the int8 value that means 0
    folded: bool = False  # the input is x / c already: the layer before this one was divided by c


@dataclass(frozen=True)
class Quantized:
    """Rows in int8: x / c ≈ scale (values - zero point)."""

    values: Tensor  # (T,in) int8, or in the form that the kernel takes
    scale: Tensor  # (T,1) float32


class Int8Linear(Linear):
    """activation(x Wᵀ + b), or x Wᵀ + b + residual, by an int8 product; several layers with one input become one.

    `prepare` quantizes x (T,in), of any floating dtype; the call takes that and returns float32, (T,out). The result is
    valid until the next call of a layer with this name.
    """

    description = "int8 by torch._int_mm"

    def __init__(
        self,
        layers: Sequence[nn.Linear],
        quantization: Quantization,
        activation: str | None = None,
        workspace: Workspace | None = None,
        name: str = "",
    ) -> None:
        weight, self.bias = (x.to("cpu", torch.float32) for x in joined(layers))  # (out,in), (out)
        self.inverse = None  # (in): 1 / c
        if quantization.smoothing is not None:
            weight = weight * quantization.smoothing
            self.inverse = None if quantization.folded else 1 / quantization.smoothing
        scale = (weight.abs().amax(dim=1, keepdim=True) / HIGHEST).clamp_(min=MIN_SCALE)  # (out,1)
        self.weight = (weight / scale).round_().to(torch.int8)
        self.scale = scale[:, 0]
        z = quantization.zero_point
        self.zero_point = None  # (in): z for each channel, for addcmul
        self.correction = None  # (out): what z adds to each integer product, times the weight's scale
        if z:
            self.zero_point = torch.full((weight.shape[1],), float(z))
            self.correction = -z * self.weight.sum(dim=1, dtype=torch.int32) * self.scale
        self.highest, self.lowest = HIGHEST - z, LOWEST - z
        self.activation, self.name, self.workspace = activation, name, workspace or Workspace()

    def prepare(self, x: Tensor) -> Quantized:
        """(T,in) in int8, each row with the smallest scale at which its largest and its smallest number fit."""
        rounded = self.workspace.buffer("rounded", len(x), x.shape[1])
        if self.inverse is not None:
            x = torch.mul(x, self.inverse, out=rounded)
        high, low = x.amax(dim=1, keepdim=True).float(), x.amin(dim=1, keepdim=True).float()
        scale = torch.maximum(high / self.highest, low / self.lowest).clamp_(min=MIN_SCALE)  # (T,1)
        if self.zero_point is None:
            torch.mul(x, 1 / scale, out=rounded)
        else:
            torch.addcmul(self.zero_point, x.float(), 1 / scale, out=rounded)
        values = self.workspace.buffer("int8", len(x), x.shape[1], torch.int8)
        return Quantized(self.as_operand(values.copy_(rounded.round_())), scale)

    def as_operand(self, values: Tensor) -> Tensor:
        """int8 values (T,in) in the form that the kernel takes."""
        return values

    def product(self, values: Tensor) -> Tensor:
        """(values - z) Wᵀ times the scales of W, in float32: (T,in) -> (T,out)."""
        size = len(values), len(self.bias)
        integers = torch._int_mm(values, self.weight.T, out=self.workspace.buffer("integers", *size, torch.int32))
        y = self.workspace.buffer(self.name, *size).copy_(integers)
        return y.mul_(self.scale) if self.correction is None else torch.addcmul(self.correction, y, self.scale, out=y)

    def __call__(self, x: Quantized, residual: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """(T,in) -> (T,out)."""
        y = self.product(x.values)
        if residual is not None:
            return torch.addcmul(residual, y, x.scale, out=y).add_(self.bias)
        torch.addcmul(self.bias, y, x.scale, out=y)
        if self.activation == "gelu":
            torch.ops.aten.gelu_(y)  # in place; the public function allocates memory
            return y
        return y if self.activation is None else ACTIVATION[self.activation](y)


class PackedInt8Linear(Int8Linear):
    """The same by oneDNN with packed weights; its kernel applies the scales of W and the zero point.

    It takes unsigned bytes, 128 more each; signed ones would go to a slow reference kernel.
    """

    description = "int8 by packed oneDNN"

    def __init__(self, layers: Sequence[nn.Linear], quantization: Quantization, *others: Any) -> None:
        super().__init__(layers, quantization, *others)
        self.weight = torch.ops.onednn.qlinear_prepack(self.weight, None)
        self.unsigned_zero = quantization.zero_point - LOWEST
        self.weight_zeros = torch.zeros(len(self.bias), dtype=torch.int32)

    def as_operand(self, values: Tensor) -> Tensor:
        """int8 values (T,in) plus 128, by flipping the highest bit in place."""
        return values.view(torch.uint8).bitwise_xor_(-LOWEST)

    def product(self, values: Tensor) -> Tensor:
        """(values - z) Wᵀ times the scales of W, in float32: (T,in) -> (T,out)."""
        scales = 1.0, self.unsigned_zero, self.weight, self.scale, self.weight_zeros  # of the values, and of W
        y: Tensor = torch.ops.onednn.qlinear_pointwise(values, *scales, None, 1.0, 0, torch.float32, "none", [], "")
        return y


def choose_int8(device: torch.device) -> type[Int8Linear] | None:
    """The fastest kernel with exact int8 products on this device; None after a warning that says what is missing."""
    exact = (kernel for kernel in (PackedInt8Linear, Int8Linear) if is_exact(kernel))
    if not has_int8(device):
        missing = f"{device} does not multiply int8 in hardware (AVX512_VNNI, AVX_VNNI or AMX, on a CPU)"
    elif (chosen := next(exact, None)) is None:
        missing = "this build of torch has no int8 product that is exact on this machine"
    else:
        return chosen
    warnings.warn(f"{missing}; computing in bfloat16, or in float32 if that is faster", stacklevel=3)
    return None


def is_exact(kernel: type[Int8Linear] = Int8Linear) -> bool:
    """True if this build of torch multiplies int8 on this machine and every product is the exact integer.

    The inputs include the extreme values of int8, which overflow the 16-bit sums of older CPUs.
    """
    random = torch.Generator().manual_seed(0)  # leaves the caller's random state alone
    for tokens, channels, outputs, zero_point in ((1, 256, 96, 0), (67, 320, 256, -107), (33, 1536, 64, 0)):
        x = torch.randint(LOWEST, HIGHEST + 1, (tokens, channels), generator=random).to(torch.int8)
        weight = torch.randint(-HIGHEST, HIGHEST + 1, (outputs, channels), generator=random).float()
        x[0], x[-1], weight[0], weight[:, 0] = LOWEST, HIGHEST, HIGHEST, HIGHEST  # the last: every scale is 1
        with torch.inference_mode():
            exact = (x.double() - zero_point) @ weight.double().T
            try:
                layer = kernel([linear_of(weight, torch.zeros(outputs))], Quantization(zero_point=zero_point))
                y = layer(Quantized(layer.as_operand(x), torch.ones(tokens, 1)))
            except (AttributeError, RuntimeError, TypeError):  # no such operator, or with other arguments
                return False
        if not torch.equal(y, exact.float()):
            return False
    return True
