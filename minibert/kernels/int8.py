"""int8 linear layers: x Wᵀ in integers, faster than bfloat16, and what keeps the vectors' meaning.

A number x is stored as a byte q, from 0 to 255, and a scale s that many numbers share: x ≈ s (q - z), with a zero
point z; a weight as a signed byte, from -127 to 127, without a zero point. The product of two such rows is an exact
integer; only the quantization of x and W loses precision. How much depends on what shares a scale, since the largest
number that shares it determines the step size of all others:

    a scale per row   Each token (row of x) has its own, computed on the fly, and each output channel (row of W) too:
                      neither takes part in the sum over input channels, so the product stays an integer product.
    smoothing         BERTs have a few outlier dimensions, channels of x that are far larger than the others in most
                      tokens, or in [CLS], and so determine the scale there. x Wᵀ = (x / c) (c W)ᵀ for any c (in):
                      c = max|x|^a / max|w|^(1-a) of each channel moves part of the range from x to W (Xiao et al. 2022,
                      SmoothQuant). a = 0.6, since x loses more than W.
    a zero point      GELU returns hardly anything below 0: with z = 128 half of the 256 values would stay unused.

Everything between the linear layers, residual stream, LayerNorm, softmax and attention, stays float32; the token
embeddings are bfloat16.

Which of these suits a layer, and whether any does, is measured: vectors/calibration.py. T tokens.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from minibert.activations import ACTIVATION
from minibert.kernels.matmul import Linear, Workspace, joined, linear_of
from minibert.utils.device import has_int8

HIGHEST, HIGHEST_WEIGHT = 255, 127  # the largest byte of x, and of W
MIDDLE = 128  # the zero point of numbers on both sides of 0
MIN_SCALE = 1e-30  # so that a row of zeros has a scale
SMOOTHING = 0.6  # the exponent of max|x|; 1 minus that is the weight's
MIN_RANGE = 1e-5  # smallest max|x| and max|w| that smoothing divides by
STRIDE = 4  # every fourth output channel of a product is enough to measure its error


@dataclass(frozen=True)
class Quantization:
    """How the input of a linear layer becomes int8."""

    smoothing: Tensor | None = None  # (in): c; None: all 1
    zero_point: int = MIDDLE  # z, the byte that means 0; at least 1
    folded: bool = False  # the input is x / c already: the layer before this one was divided by c
    error: float = 0.0  # |y' - y| / |y| of the results y' in int8 when calibrated, over all tokens


# Rows in bytes: x / c ≈ scale (values - zero point); values (T,in) uint8, scale (T,1) float32.
Quantized = tuple[Tensor, Tensor]


class Int8Linear(Linear):
    """activation(x Wᵀ + b) by an int8 product; several layers with one input become one.

    `prepare` quantizes x (T,in), of any floating dtype; `multiply` takes that and returns float32, (T,out). oneDNN
    multiplies, with packed weights; its kernel applies the scales of W and the zero point.
    """

    description = "int8 by packed oneDNN"
    bias: Tensor

    def __init__(
        self,
        layers: Sequence[nn.Linear],
        quantization: Quantization,
        activation: str | None = None,
        workspace: Workspace | None = None,
    ) -> None:
        nn.Module.__init__(self)
        weight, bias = joined(layers)
        weight = weight.detach().to("cpu", torch.float32)  # (out,in)
        self.bias = torch.zeros(len(weight)) if bias is None else bias.detach().to("cpu", torch.float32)  # (out)
        self.inverse = None  # (in): 1 / c
        if quantization.smoothing is not None:
            weight = weight * quantization.smoothing
            self.inverse = None if quantization.folded else 1 / quantization.smoothing
        self.scale = (weight.abs().amax(dim=1) / HIGHEST_WEIGHT).clamp_(min=MIN_SCALE)  # (out)
        self.weight = torch.ops.onednn.qlinear_prepack((weight / self.scale[:, None]).round_().to(torch.int8), None)
        self.weight_zeros = torch.zeros(len(weight), dtype=torch.int32)
        self.zero_point = quantization.zero_point
        self.zeros = torch.full((weight.shape[1],), float(self.zero_point - MIDDLE))  # (in), for addcmul
        self.activation = activation
        self.workspace = workspace or Workspace()

    def prepare(self, x: Tensor) -> Quantized:
        """Return x (T,in) in bytes, each row with the smallest scale that its largest and smallest number fit."""
        rounded = self.workspace.buffer("rounded", len(x), x.shape[1])
        if self.inverse is not None:
            x = torch.mul(x, self.inverse, out=rounded)
        high, low = x.amax(dim=1, keepdim=True).float(), x.amin(dim=1, keepdim=True).float()
        scale = torch.maximum(high / (HIGHEST - self.zero_point), low / -self.zero_point).clamp_(min=MIN_SCALE)  # (T,1)
        torch.addcmul(self.zeros, x.float(), 1 / scale, out=rounded)
        signed = self.workspace.buffer("int8", len(x), x.shape[1], torch.int8)  # copied faster than to uint8
        return signed.copy_(rounded.round_()).view(torch.uint8).bitwise_xor_(MIDDLE), scale  # 128 more each

    def multiply(self, x: Quantized) -> Tensor:
        """(T,in) -> (T,out)."""
        values, scale = x
        # Scale and zero point of the values, then of the weight.
        scales = 1.0, self.zero_point, self.weight, self.scale, self.weight_zeros
        y: Tensor = torch.ops.onednn.qlinear_pointwise(values, *scales, None, 1.0, 0, torch.float32, "none", [], "")
        torch.addcmul(self.bias, y, scale, out=y)
        if self.activation == "gelu":
            torch.ops.aten.gelu_(y)  # in place; the public function allocates memory
            return y
        return y if self.activation is None else ACTIVATION[self.activation](y)


def can_multiply(device: torch.device) -> bool:
    """Return whether the device has fast and exact int8 products; a warning says what is missing."""
    if has_int8(device) and is_exact():
        return True
    missing = f"{device} does not multiply int8 in hardware (AVX512_VNNI, AVX_VNNI or AMX, on a CPU)"
    if has_int8(device):
        missing = "this build of torch has no int8 product that is exact on this machine"
    warnings.warn(f"{missing}; computing in bfloat16, or in float32 if that is faster", stacklevel=3)
    return False


def is_exact() -> bool:
    """Return True if this build of torch multiplies int8 on this machine and every product is the exact integer.

    The inputs include the extreme values, which overflow the 16-bit sums of older CPUs. AMX rounds the integer to
    float32 before it subtracts the zero point, so a sum above 2^24 may be off by its last digit.
    """
    random = torch.Generator().manual_seed(0)  # leaves the caller's random state alone
    for tokens, channels, outputs, zero_point in ((1, 256, 96, 128), (67, 320, 256, 21), (33, 1536, 64, 128)):
        x = torch.randint(0, HIGHEST + 1, (tokens, channels), generator=random).to(torch.uint8)
        weight = torch.randint(-HIGHEST_WEIGHT, HIGHEST_WEIGHT + 1, (outputs, channels), generator=random).float()
        x[0] = 0
        x[-1] = HIGHEST
        weight[0] = HIGHEST_WEIGHT
        weight[:, 0] = HIGHEST_WEIGHT  # so every scale is 1
        with torch.inference_mode():
            exact = (x.double() - zero_point) @ weight.double().T
            try:
                layer = Int8Linear([linear_of(weight, torch.zeros(outputs))], Quantization(zero_point=zero_point))
                y = layer.multiply((x, torch.ones(tokens, 1)))
            except (AttributeError, RuntimeError, TypeError):  # no such operator, or with other arguments
                return False
        largest = x.double() @ weight.double().abs().T
        last_digit = largest * torch.finfo(torch.float32).eps
        if bool(((y - exact).abs() > torch.where(largest < 2**24, 0.0, last_digit)).any()):
            return False
    return True


# ---------------------------------------------------------------------------------------------------------------
# Which quantization suits a product


def quantizations(weight: Tensor, x: Tensor, folded: bool) -> Iterator[Quantization]:
    """Yield those to try: plain, with smoothing, with a zero point. folded: see Quantization."""
    yield Quantization()
    yield Quantization(smoothing(x.abs().amax(dim=0), weight.abs().amax(dim=0)), folded=folded)
    low, high = x.amin(dim=1), x.amax(dim=1)
    below = float((-low / (high - low).clamp_(min=MIN_RANGE)).median())  # the part of a token's range that is below 0
    yield Quantization(zero_point=min(max(round(below * HIGHEST), 1), HIGHEST - 1))


def smoothing(x: Tensor, weight: Tensor) -> Tensor:
    """Return c (in) from max|x| and max|w| of each channel: max|x|^a / max|w|^(1 - a), scaled to a mean of 1."""
    c = x.clamp(min=MIN_RANGE) ** SMOOTHING / weight.clamp(min=MIN_RANGE) ** (1 - SMOOTHING)
    return c / c.mean()


def error_of(some: nn.Linear, quantization: Quantization, x: Tensor, exact: Tensor, workspace: Workspace) -> float:
    """Return |y' - y| / |y| of the product in int8, over all tokens; `some` has every STRIDE-th output channel."""
    quantized = Int8Linear([some], replace(quantization, folded=False), workspace=workspace)
    return float((quantized(x) - exact[:, ::STRIDE]).norm() * STRIDE**0.5 / exact.norm())
