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

Calibration measures once for each checkpoint which of these suits a layer, and whether any does. A few texts run
through the encoder in float32. For each product several quantizations of its input are tried. The one whose result is
nearest to the exact one is taken; if even that is too far off, the product stays in floating point. At the end the mean
states of the shortest texts are compared: over a few tokens rounding errors hardly average out, and where they change
the direction of a mean, such texts are computed in bfloat16. The result is cached in the user's cache folder under the
SHA-256 of weights and texts. T tokens.
"""

import copy
import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from minibert.checkpoints.tensor_files import write_tensors
from minibert.kernels.attention import by_heads, grouped_attention
from minibert.kernels.matmul import Linear, Workspace, joined, linear_of
from minibert.kernels.packing import Packed
from minibert.model import ACTIVATION, Encoder
from minibert.utils.device import has_int8

HIGHEST, HIGHEST_WEIGHT = 255, 127  # the largest byte of x, and of W
MIDDLE = 128  # the zero point of numbers on both sides of 0
MIN_SCALE = 1e-30  # so that a row of zeros has a scale

# Calibration
VERSION = 3  # of the measurement: files of another version are not found
MAX_ERROR = 0.02  # of a product's result, relative to its norm; bench/README.md has the measurements
SHORT = 16  # tokens: texts up to here are computed in bfloat16 if int8 changes the means of short texts
MIN_COSINE = 0.999  # between the means of short texts in int8 and in float32
FIRST_TOKENS = 3  # of a sample, [CLS] included, that with its last token make a short text
SMOOTHING = 0.6  # the exponent of max|x|; 1 minus that is the weight's
STRIDE = 4  # every fourth output channel of a product is enough to measure its error
MIN_RANGE = 1e-5  # smallest max|x| and max|w| that smoothing divides by
PRODUCTS = ("attention", "output", "expand", "contract")  # of a layer


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
        self.activation, self.workspace = activation, workspace or Workspace()

    def prepare(self, x: Tensor) -> Quantized:
        """(T,in) in bytes, each row with the smallest scale at which its largest and its smallest number fit."""
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
        scales = 1.0, self.zero_point, self.weight, self.scale, self.weight_zeros  # of the values, and of W
        y: Tensor = torch.ops.onednn.qlinear_pointwise(values, *scales, None, 1.0, 0, torch.float32, "none", [], "")
        torch.addcmul(self.bias, y, scale, out=y)
        if self.activation == "gelu":
            torch.ops.aten.gelu_(y)  # in place; the public function allocates memory
            return y
        return y if self.activation is None else ACTIVATION[self.activation](y)


def can_multiply(device: torch.device) -> bool:
    """Whether the device has fast and exact int8 products; a warning says what is missing."""
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
        x[0], x[-1], weight[0], weight[:, 0] = 0, HIGHEST, HIGHEST_WEIGHT, HIGHEST_WEIGHT  # the last: every scale is 1
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
# Calibration


@dataclass(frozen=True)
class Calibration:
    """The result for a checkpoint."""

    products: Mapping[tuple[int, str], Quantization]  # by layer number and name of the product
    short_texts_tolerate_int8: bool

    def of_layer(self, number: int) -> dict[str, Quantization]:
        """The quantizations of the products of this layer that are computed in int8, by name."""
        return {name: one for (n, name), one in self.products.items() if n == number and one.error <= MAX_ERROR}

    def __str__(self) -> str:
        count = sum(one.error <= MAX_ERROR for one in self.products.values())
        short = "" if self.short_texts_tolerate_int8 else f", none for means of texts of up to {SHORT} tokens"
        return f"int8 in {count} of {len(self.products)} products{short}"


def calibrate(encoder: Encoder, x: Tensor, packed: Packed) -> tuple[dict[tuple[int, str], Quantization], Tensor]:
    """Try every product of the encoder on the embedded tokens x, (T,D), of a packed batch.

    A shared layer keeps the quantization chosen at its first use, and the largest of its errors. Also returns the last
    states in float32, (T,D).
    """
    products: dict[tuple[int, str], Quantization] = {}
    workspace = Workspace()

    def try_product(key: tuple[int, str], layers: Sequence[nn.Linear], x: Tensor) -> None:
        weight, bias = joined(layers)
        exact = F.linear(x, weight, bias)
        tried = [products[key]] if key in products else quantizations(weight, x, folded=key[1] == "output")
        some = linear_of(weight[::STRIDE], None if bias is None else bias[::STRIDE])
        measured = [replace(one, error=max(one.error, error_of(some, one, x, exact, workspace))) for one in tried]
        products[key] = min(measured, key=lambda one: one.error)

    exact = copy.deepcopy(encoder, {id(w): w for w in encoder.parameters() if w.dtype == x.dtype}).to(x).eval()
    for number, layer in enumerate(exact.layers):
        own: Any = layer.attention
        ffn: Any = layer.feed_forward
        one_input = [own.query, own.key, own.value], [own.output], [ffn.expand], [ffn.contract]
        for name, layers in zip(PRODUCTS, one_input, strict=True):
            layers[0].register_forward_pre_hook(
                lambda module, inputs, key=(number, name), layers=layers: try_product(key, layers, inputs[0])
            )
    *_, (x, _) = exact.through_layers(x, packed, by_heads(grouped_attention))
    return products, x


def means_agree(exact: Tensor, in_int8: Tensor, packed: Packed) -> bool:
    """Whether the means of the shortest texts have nearly the same direction; both states are (T,D)."""
    short = [number for number, (_, S) in enumerate(packed.groups) if S <= FIRST_TOKENS + 1]
    a, b = (torch.cat([packed.by_group(x)[number].mean(dim=1) for number in short]) for x in (exact, in_int8))
    return float(torch.cosine_similarity(a, b, dim=1).min()) >= MIN_COSINE


def quantizations(weight: Tensor, x: Tensor, folded: bool) -> Iterator[Quantization]:
    """Those that are tried: plain, with smoothing, with a zero point. folded: see Quantization."""
    yield Quantization()
    yield Quantization(smoothing(x.abs().amax(dim=0), weight.abs().amax(dim=0)), folded=folded)
    low, high = x.amin(dim=1), x.amax(dim=1)
    below = float((-low / (high - low).clamp_(min=MIN_RANGE)).median())  # the part of a token's range that is below 0
    yield Quantization(zero_point=min(max(round(below * HIGHEST), 1), HIGHEST - 1))


def smoothing(x: Tensor, weight: Tensor) -> Tensor:
    """c (in) from max|x| and max|w| of each channel: max|x|^a / max|w|^(1 - a), scaled to a mean of 1."""
    c = x.clamp(min=MIN_RANGE) ** SMOOTHING / weight.clamp(min=MIN_RANGE) ** (1 - SMOOTHING)
    return c / c.mean()


def error_of(some: nn.Linear, quantization: Quantization, x: Tensor, exact: Tensor, workspace: Workspace) -> float:
    """|y' - y| / |y| of the product in int8, over all tokens; `some` has every STRIDE-th of its output channels."""
    quantized = Int8Linear([some], replace(quantization, folded=False), workspace=workspace)
    return float((quantized(x) - exact[:, ::STRIDE]).norm() * STRIDE**0.5 / exact.norm())


def cache_file(encoder: Encoder, samples: Sequence[Sequence[int]]) -> Path:
    """The file for this encoder and these samples, named by the SHA-256 of everything that determines the result."""
    digest = hashlib.sha256(repr((VERSION, torch.__version__, encoder.config, [list(row) for row in samples])).encode())
    for name, weight in encoder.state_dict().items():
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "minibert" / "int8" / f"{digest.hexdigest()}.safetensors"


def read_calibration(path: Path, encoder: Encoder) -> Calibration | None:
    """The calibration in a file; None without the file, or if it is damaged."""
    products: dict[tuple[int, str], Quantization] = {}
    with suppress(OSError, SafetensorError, KeyError):
        tensors = load_file(path)
        for number, name in product(range(len(encoder.layers)), PRODUCTS):
            (z, error), c = tensors[f"{number}.{name}"].tolist(), tensors.get(f"{number}.{name}.smoothing")
            products[number, name] = Quantization(c, int(z), folded=c is not None and name == "output", error=error)
        return Calibration(products, bool(tensors["short_texts_tolerate_int8"]))
    return None


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration; if that fails, it is measured again the next time."""
    tensors = {"short_texts_tolerate_int8": torch.tensor(float(calibration.short_texts_tolerate_int8))}
    for (number, name), one in calibration.products.items():
        tensors[f"{number}.{name}"] = torch.tensor([one.zero_point, one.error])
        if one.smoothing is not None:
            tensors[f"{number}.{name}.smoothing"] = one.smoothing.contiguous()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, tensors)
