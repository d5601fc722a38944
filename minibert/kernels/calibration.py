"""Which linear layers tolerate int8, and how their inputs are best quantized: measured once for each checkpoint.

A few texts run through the encoder in float32. For each product several quantizations of its input are tried. The one
whose result is nearest to the exact one is taken; if even that is too far off, the product stays in floating point. At
the end the mean states of the shortest texts are compared: over a few tokens rounding errors hardly average out, and
where they change the direction of a mean, such texts are computed in bfloat16. The result is cached in the user's cache
folder under the SHA-256 of weights and texts. T tokens.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from minibert.checkpoints.tensor_files import write_tensors
from minibert.kernels.attention import grouped_attention
from minibert.kernels.int8 import HIGHEST, LOWEST, Int8Linear, Quantization
from minibert.kernels.matmul import joined, linear_of
from minibert.kernels.memory import Workspace
from minibert.kernels.packing import Packed
from minibert.model import Encoder

VERSION = 2  # of the measurement: files of another version are not found
MAX_ERROR = 0.02  # of a product's result, relative to its norm; bench/README.md has the measurements
SHORT = 16  # tokens: texts up to here are computed in bfloat16 if int8 changes the means of short texts
MIN_COSINE = 0.999  # between the means of short texts in int8 and in float32
FIRST_TOKENS = 3  # of a sample, [CLS] included, that with its last token make a short text
SMOOTHING = 0.6  # the exponent of max|x|; 1 minus that is the weight's
STRIDE = 4  # every fourth output channel of a product is enough to measure its error
MIN_RANGE = 1e-5  # smallest max|x| and max|w| that smoothing divides by


@dataclass(frozen=True)
class Trial:
    """A quantization of a product's input, and its error."""

    quantization: Quantization
    error: float  # |y' - y| / |y| of its results y' in int8, over all tokens


Products = Mapping[tuple[int, str], Trial]  # by layer number and name of the product


@dataclass(frozen=True)
class Calibration:
    """The result for a checkpoint."""

    products: Products
    short_texts_tolerate_int8: bool

    def of_layer(self, number: int) -> dict[str, Quantization]:
        """The quantizations of the products of this layer that are computed in int8, by name."""
        return {
            name: one.quantization for (n, name), one in self.products.items() if n == number and one.error <= MAX_ERROR
        }

    def __str__(self) -> str:
        others = [f"{name} of layer {n}" for (n, name), one in self.products.items() if one.error > MAX_ERROR]
        count, total = len(self.products) - len(others), len(self.products)
        left_out = f" (not {', '.join(others)})" if others else ""
        if not self.short_texts_tolerate_int8:
            left_out += f", and none for means of texts of up to {SHORT} tokens"
        return f"int8 in {count} of {total} products{left_out}"


def products_of(layer: Any) -> dict[str, list[nn.Linear]]:
    """The four products of a model.Layer: query, key and value have the same input and are one."""
    own, ffn = layer.attention, layer.feed_forward
    attention = [own.query, own.key, own.value]
    return {"attention": attention, "output": [own.output], "expand": [ffn.expand], "contract": [ffn.contract]}


def short_texts(samples: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """The first tokens of each sample with its last one, as texts."""
    return [[*ids[:FIRST_TOKENS], ids[-1]] for ids in samples if len(ids) > FIRST_TOKENS]


def calibrate(encoder: Encoder, x: Tensor, packed: Packed) -> tuple[Products, Tensor]:
    """Try every product of the encoder on the embedded tokens x, (T,D), of a packed batch.

    A shared layer keeps the quantization chosen at its first use, and the largest of its errors. Also returns the last
    states in float32, (T,D).
    """
    products: dict[tuple[int, str], Trial] = {}
    workspace = Workspace()

    def attend(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, None]:
        context = grouped_attention(*(part[0].transpose(0, 1) for part in (query, key, value)), packed)
        return context.transpose(0, 1)[None], None  # (1,H,T,W) -> (T,H,W) -> (1,H,T,W)

    def try_product(key: tuple[int, str], layers: Sequence[nn.Linear], x: Tensor) -> None:
        before = products.get(key)
        weight, bias = joined(layers)
        exact = F.linear(x, weight, bias)
        tried = quantizations(weight, x, key[1] == "output") if before is None else [before.quantization]
        some = linear_of(weight[::STRIDE], bias[::STRIDE])
        trials = [Trial(one, error_of(some, one, x, exact, workspace)) for one in tried]
        best = min(trials, key=lambda trial: trial.error)
        products[key] = best if before is None else replace(best, error=max(best.error, before.error))

    for number in encoder.config.shared_layers:
        layer = copy.deepcopy(encoder.layers[number]).to(x.device, x.dtype).eval()
        for name, layers in products_of(layer).items():
            layers[0].register_forward_pre_hook(
                lambda module, inputs, key=(number, name), layers=layers: try_product(key, layers, inputs[0][0])
            )
        x = layer(x[None], None, attend)[0][0]
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
    yield Quantization(zero_point=min(max(LOWEST + round(below * (HIGHEST - LOWEST)), LOWEST + 1), HIGHEST - 1))


def smoothing(x: Tensor, weight: Tensor) -> Tensor:
    """c (in) from max|x| and max|w| of each channel: max|x|^a / max|w|^(1 - a), scaled to a mean of 1."""
    c = x.clamp(min=MIN_RANGE) ** SMOOTHING / weight.clamp(min=MIN_RANGE) ** (1 - SMOOTHING)
    return c / c.mean()


def error_of(some: nn.Linear, quantization: Quantization, x: Tensor, exact: Tensor, workspace: Workspace) -> float:
    """|y' - y| / |y| of the product in int8, over all tokens; `some` has every STRIDE-th of its output channels."""
    quantized = Int8Linear([some], replace(quantization, folded=False), workspace=workspace)
    return float((quantized(quantized.prepare(x)) - exact[:, ::STRIDE]).norm() * STRIDE**0.5 / exact.norm())


# ---------------------------------------------------------------------------------------------------------------
# The cache


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
    products: dict[tuple[int, str], Trial] = {}
    with suppress(OSError, SafetensorError, KeyError, ValueError):
        tensors = load_file(path)
        for number, layer in enumerate(encoder.layers):
            for name, layers in products_of(layer).items():
                c, (z, error) = tensors.get(f"{number}.{name}.smoothing"), tensors[f"{number}.{name}"].tolist()
                fits = c is None or (c.shape == (layers[0].in_features,) and bool(((c > 0) & c.isfinite()).all()))
                if not (fits and LOWEST < z < HIGHEST and error >= 0):
                    return None
                quantization = Quantization(c, int(z), folded=c is not None and name == "output")
                products[number, name] = Trial(quantization, error)
        return Calibration(products, bool(tensors["short_texts_tolerate_int8"]))
    return None


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration; if that fails, it is measured again the next time."""
    tensors = {"short_texts_tolerate_int8": torch.tensor(float(calibration.short_texts_tolerate_int8))}
    for (number, name), one in calibration.products.items():
        tensors[f"{number}.{name}"] = torch.tensor([one.quantization.zero_point, one.error])
        if one.quantization.smoothing is not None:
            tensors[f"{number}.{name}.smoothing"] = one.quantization.smoothing.contiguous()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, tensors)
