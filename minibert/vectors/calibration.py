"""Which products of an encoder tolerate int8, and how their inputs are quantized: measured once for a checkpoint.

A few texts run through the encoder in float32. For each product several quantizations of its input are tried. The one
whose result is nearest to the exact one is used; if even that is too far off, the product stays in floating point. At
the end the mean states of the shortest texts are compared: the mean of a few tokens loses more than that of many. If
rounding errors change its direction, such texts are computed in bfloat16. The result is cached in the user's cache
folder under the SHA-256 of weights and texts.

T tokens of all texts in a packed batch.
"""

import copy
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from minibert.kernels.attention import by_heads, grouped_attention
from minibert.kernels.int8 import STRIDE, Quantization, error_of, quantizations
from minibert.kernels.matmul import Workspace, joined, linear_of
from minibert.kernels.packing import PackedTexts
from minibert.kernels.parts import OneProduct, Products, with_parts
from minibert.model import Encoder
from minibert.storage.tensor_files import write_tensors

VERSION = 3  # of the measurement: files of another version are not found
MAX_ERROR = 0.02  # of a product's result, relative to its norm; bench/README.md has the measurements
SHORT = 16  # tokens: texts up to here are computed in bfloat16 if int8 changes the means of short texts
MIN_COSINE = 0.999  # between the means of short texts in int8 and in float32
FIRST_TOKENS = 3  # of a sample, [CLS] included; with its last token they make a short text


@dataclass(frozen=True)
class Calibration:
    """The result for a checkpoint."""

    products: Mapping[tuple[int, str], Quantization]  # by layer number and name of the product
    short_texts_tolerate_int8: bool

    def of_layer(self, number: int) -> dict[str, Quantization]:
        """Return the quantizations of the products of this layer that are computed in int8, by name."""
        return {
            name: quantization
            for (n, name), quantization in self.products.items()
            if n == number and quantization.error <= MAX_ERROR
        }

    def __str__(self) -> str:
        count = sum(product.error <= MAX_ERROR for product in self.products.values())
        short = "" if self.short_texts_tolerate_int8 else f", none for means of texts of up to {SHORT} tokens"
        return f"int8 in {count} of {len(self.products)} products{short}"


def products_of(layer: nn.Module) -> dict[str, list[nn.Linear]]:
    """Return the products of a layer by name: the linear layers that one product computes, in their order."""
    leaves = [(module, leaf) for module in layer.modules() for leaf in getattr(module, "leaves", {}).items()]
    return {product: [getattr(module, name) for name in linears] for module, (product, linears) in leaves}


def calibrate(encoder: Encoder, x: Tensor, packed: PackedTexts) -> tuple[dict[tuple[int, str], Quantization], Tensor]:
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
        measured = [
            replace(quantization, error=max(quantization.error, error_of(some, quantization, x, exact, workspace)))
            for quantization in tried
        ]
        products[key] = min(measured, key=lambda quantization: quantization.error)

    exact = copy.deepcopy(encoder, {id(w): w for w in encoder.parameters() if w.dtype == x.dtype}).to(x).eval()
    exact = with_parts(exact, {OneProduct: Products})  # so that each linear layer is called
    for number, layer in enumerate(exact.layers):
        for name, layers in products_of(layer).items():
            layers[0].register_forward_pre_hook(
                lambda module, inputs, key=(number, name), layers=layers: try_product(key, layers, inputs[0])
            )
    *_, (x, _) = exact.through_layers(x, packed, by_heads(grouped_attention))
    return products, x


def means_agree(exact: Tensor, in_int8: Tensor, packed: PackedTexts) -> bool:
    """Return whether the means of the shortest texts have nearly the same direction; both states are (T,D)."""
    short = [number for number, group in enumerate(packed.groups) if group.width <= FIRST_TOKENS + 1]
    a, b = (torch.cat([packed.by_group(x)[number].mean(dim=1) for number in short]) for x in (exact, in_int8))
    return float(torch.cosine_similarity(a, b, dim=1).min()) >= MIN_COSINE


def cache_file(encoder: Encoder, samples: Sequence[Sequence[int]]) -> Path:
    """Return the file for this encoder and these samples, named by the SHA-256 of all that determines the result."""
    digest = hashlib.sha256(repr((VERSION, torch.__version__, encoder.config, [list(row) for row in samples])).encode())
    for name, weight in encoder.state_dict().items():
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "minibert" / "int8" / f"{digest.hexdigest()}.safetensors"


def read_calibration(path: Path, encoder: Encoder) -> Calibration | None:
    """Return the calibration in a file; None without the file, or if it is damaged."""
    products: dict[tuple[int, str], Quantization] = {}
    with suppress(OSError, SafetensorError, KeyError):
        tensors = load_file(path)
        for number, layer in enumerate(encoder.layers):
            for name in products_of(layer):
                z, error = tensors[f"{number}.{name}"].tolist()
                c = tensors.get(f"{number}.{name}.smoothing")
                products[number, name] = Quantization(c, int(z), folded=c is not None and name == "output", error=error)
        return Calibration(products, bool(tensors["short_texts_tolerate_int8"]))
    return None


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration; if that fails, it is measured again the next time."""
    tensors = {"short_texts_tolerate_int8": torch.tensor(float(calibration.short_texts_tolerate_int8))}
    for (number, name), product in calibration.products.items():
        tensors[f"{number}.{name}"] = torch.tensor([product.zero_point, product.error])
        if product.smoothing is not None:
            tensors[f"{number}.{name}.smoothing"] = product.smoothing.contiguous()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, tensors)
