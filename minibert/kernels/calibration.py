"""Which products bear int8, and how their inputs are best rounded: measured on a few texts, once for a checkpoint.

The texts run through the encoder in float32. At each product several ways of rounding its input are tried; the one
whose result is nearest to the exact one is taken, and where even that one is too far off, the product is not rounded.
At the end the means of the shortest texts are compared: over a few tokens rounding errors hardly average out, and where
they turn a mean, such texts are left to bfloat16. What is found is kept in the user's cache under the SHA-256 of
weights and texts. T tokens.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from minibert import model
from minibert.checkpoints.tensor_files import write_tensors
from minibert.kernels.attention import Attend
from minibert.kernels.int8 import LEAST, MOST, Rounding, WholeLinear
from minibert.kernels.matmul import joined
from minibert.kernels.memory import Scratch
from minibert.kernels.packing import Packed

VERSION = 2  # of what is measured here: a later one finds no earlier one's file
PRODUCTS = ("attention", "output", "expand", "contract")  # of each layer; the first is query, key and value
LARGEST_ERROR = 0.02  # of a product's result, relative to its length; see bench/README.md for what was measured
SHORT = 16  # tokens of a text, whose mean is computed in bfloat16 where int8 turns it
LEAST_COSINE = 0.999  # of the means of texts of a few tokens, in int8 and as they are
WORDS = 3  # of a text, [CLS] among them, that make a short one of it
SHARE = 0.6  # of max|x|, in smoothing; the rest is the weight's
SOME = 4  # a fourth of a product's output channels tells its error
CHANNEL = 1e-5  # smallest max|x| and max|w| that smoothing divides by


@dataclass(frozen=True)
class Found:
    """What calibration found about one product."""

    rounding: Rounding
    error: float  # |y' - y| / |y| of its results y' in int8, over all tokens

    @property
    def bears_int8(self) -> bool:
        """Whether the product is to be computed so."""
        return self.error <= LARGEST_ERROR


Products = dict[tuple[int, str], Found]  # by the number of the layer and the name


@dataclass(frozen=True)
class Calibration:
    """What calibration found about a checkpoint."""

    products: Products
    short_bear_int8: bool  # whether the means of texts of a few tokens do


def beginnings(samples: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """The first words of each sample with its end, as texts of their own."""
    return [[*ids[:WORDS], ids[-1]] for ids in samples if len(ids) > WORDS]


def calibrate(encoder: model.Encoder, x: Tensor, packed: Packed, attend: Attend) -> tuple[Products, Tensor]:
    """Try every product of the encoder on the embedded tokens x, (T,D), of a packed batch; see model.Layer.

    attend: what computes attention in a packed batch. Where layers are shared, the first to be met decides how its
    inputs are rounded, and the worst of its errors whether they are. With the last states as they are, (T,D).
    """
    found: Products = {}
    scratch = Scratch()

    def tried(number: int, name: str, layers: Sequence[nn.Linear], x: Tensor) -> Tensor:
        """The exact product; what it bears is noted."""
        y = product(layers, x)
        before = found.get((number, name))
        tries = roundings(layers, x, name == "output") if before is None else [before.rounding]
        best = min((Found(one, error(layers, one, x, y, scratch)) for one in tries), key=lambda one: one.error)
        found[number, name] = best if before is None else replace(best, error=max(best.error, before.error))
        return y

    for number in encoder.config.shared_layers:
        layer = cast(model.Layer, encoder.layers[number])
        own, ffn = layer.attention, layer.feed_forward
        entering = tried(number, "attention", [own.query, own.key, own.value], x).chunk(3, dim=-1)
        query, key, value = (part.reshape(len(x), -1, own.head_size) for part in entering)  # (T,D) -> (T,H,W)
        context = attend(query, key, value, packed).flatten(1)  # (T,H,W) -> (T,D)
        x = normed(layer.attention_norm, tried(number, "output", [own.output], context) + x)
        hidden = ffn.activation(tried(number, "expand", [ffn.expand], x))  # (T,D) -> (T,F)
        x = normed(layer.feed_forward_norm, tried(number, "contract", [ffn.contract], hidden) + x)
    return found, x


def means_agree(exact: Tensor, whole: Tensor, packed: Packed) -> bool:
    """Whether the states of the shortest texts, exact and in int8, (T,D) each, have nearly the same mean."""
    short = [number for number, (_, S) in enumerate(packed.groups) if S <= WORDS + 1]
    a, b = (torch.cat([packed.by_group(x)[number].mean(dim=1) for number in short]) for x in (exact, whole))
    return float(torch.cosine_similarity(a, b, dim=1).min()) >= LEAST_COSINE


def product(layers: Sequence[nn.Linear], x: Tensor) -> Tensor:
    """x Wᵀ + b in float32, whatever and wherever the weights are."""
    weight, bias = joined([layer.weight for layer in layers]), joined([layer.bias for layer in layers])
    return F.linear(x, weight.to(x.device, x.dtype), bias.to(x.device, x.dtype))


def normed(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """LayerNorm in float32."""
    return F.layer_norm(x, x.shape[-1:], norm.weight.to(x.device, x.dtype), norm.bias.to(x.device, x.dtype), norm.eps)


def roundings(layers: Sequence[nn.Linear], x: Tensor, folded: bool) -> Iterator[Rounding]:
    """What is tried: plain, smoothed, and with an offset. folded: see Rounding."""
    weight = joined([layer.weight for layer in layers]).to(x.device, x.dtype)
    yield Rounding()
    yield Rounding(smoothing(x.abs().amax(dim=0), weight.abs().amax(dim=0)), folded=folded)
    low, high = x.amin(dim=1), x.amax(dim=1)
    share = float((-low / (high - low).clamp_(min=CHANNEL)).median())  # of the range of most tokens, that is below 0
    yield Rounding(offset=min(max(LEAST + round(share * (MOST - LEAST)), LEAST + 1), MOST - 1))


def smoothing(largest: Tensor, weight: Tensor) -> Tensor:
    """c (in) from max|x| and max|w| of each channel: max|x|^SHARE / max|w|^(1 - SHARE), made 1 on average."""
    c = largest.clamp(min=CHANNEL) ** SHARE / weight.clamp(min=CHANNEL) ** (1 - SHARE)
    return c / c.mean()


def error(layers: Sequence[nn.Linear], rounding: Rounding, x: Tensor, exact: Tensor, scratch: Scratch) -> float:
    """|y' - y| / |y| of the product in int8, over all tokens; every SOME-th output channel tells the difference."""
    some = nn.Linear(x.shape[1], exact.shape[1] // SOME, device="meta")  # no memory; both tensors follow
    some.weight = nn.Parameter(joined([layer.weight.detach() for layer in layers])[::SOME], requires_grad=False)
    some.bias = nn.Parameter(joined([layer.bias.detach() for layer in layers])[::SOME], requires_grad=False)
    whole = WholeLinear([some], replace(rounding, folded=False), scratch=scratch)
    return float((whole(whole.enter(x)) - exact[:, ::SOME]).norm() * SOME**0.5 / exact.norm())


def roundings_of(products: Products, number: int) -> dict[str, Rounding]:
    """By the names that a layer's products have in engine.py, those of layer `number` that are computed in int8."""
    names = {
        "attention": ("query", "key value"),
        "output": ("output",),
        "expand": ("expand",),
        "contract": ("contract",),
    }
    bearing = {product: found for (of, product), found in products.items() if of == number and found.bears_int8}
    return {name: found.rounding for product, found in bearing.items() for name in names[product]}


def in_words(calibration: Calibration) -> str:
    """How many products are computed in int8, and which are not."""
    products = calibration.products
    others = [f"{product} of layer {number}" for (number, product), found in products.items() if not found.bears_int8]
    without = f" (not {', '.join(others)})" if others else ""
    short = "" if calibration.short_bear_int8 else f", but none for the mean or largest of up to {SHORT} tokens"
    return f"int8 in {len(products) - len(others)} of {len(products)} products{without}{short}"


# ---------------------------------------------------------------------------------------------------------------
# Kept for the next time


def calibration_of(
    encoder: model.Encoder,
    samples: Sequence[Sequence[int]],
    packed: Packed,
    attend: Attend,
    embedded: Callable[[], Tensor],
    in_int8: Callable[[Products, Tensor], Tensor],
) -> Calibration:
    """The calibration that is kept for this encoder and these samples; where none is, it is made and kept.

    packed: the samples, and what `embedded` gives of them, (T,D). in_int8: the last states with these roundings.
    """
    sizes: dict[tuple[int, str], int] = {}
    for number, layer in enumerate(encoder.layers):
        hidden, expanded = cast(model.Layer, layer).feed_forward.contract.weight.shape
        sizes |= {(number, name): expanded if name == "contract" else hidden for name in PRODUCTS}
    path = cache_folder() / f"{fingerprint(encoder, samples)}.safetensors"
    found = kept(path, sizes)
    if found is None:
        with torch.inference_mode():
            x = embedded()
            products, exact = calibrate(encoder, x, packed, attend)
            found = Calibration(products, means_agree(exact, in_int8(products, x), packed))
        keep(path, found)
    return found


def fingerprint(encoder: model.Encoder, samples: Sequence[Sequence[int]]) -> str:
    """SHA-256 of all that a calibration depends on: weights, texts, how the layers are used, and what is measured."""
    digest = hashlib.sha256(repr((VERSION, torch.__version__, encoder.config, [list(row) for row in samples])).encode())
    for name, weight in encoder.state_dict().items():
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def cache_folder() -> Path:
    """Where calibrations are kept: in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "minibert" / "int8"


def kept(path: Path, sizes: dict[tuple[int, str], int]) -> Calibration | None:
    """The calibration in a file, or None where none is, or one that does not fit. sizes: channels of each product."""
    found: Products = {}
    with suppress(OSError, SafetensorError, KeyError, ValueError):
        tensors = load_file(path)
        for (number, name), channels in sizes.items():
            c, of = tensors.get(f"{number}.{name}.smoothing"), tensors[f"{number}.{name}"]
            offset, error = of.tolist()
            fits = c is None or (c.shape == (channels,) and bool(((c > 0) & c.isfinite()).all()))
            if not (fits and LEAST < offset < MOST and error >= 0):
                return None
            found[number, name] = Found(Rounding(c, int(offset), folded=c is not None and name == "output"), error)
        return Calibration(found, bool(tensors["short_bear_int8"]))
    return None


def keep(path: Path, found: Calibration) -> None:
    """Write a calibration; where that is not possible, it is measured again the next time."""
    tensors = {"short_bear_int8": torch.tensor(float(found.short_bear_int8))}
    for (number, name), one in found.products.items():
        tensors[f"{number}.{name}"] = torch.tensor([one.rounding.offset, one.error])
        if one.rounding.smoothing is not None:
            tensors[f"{number}.{name}.smoothing"] = one.rounding.smoothing.contiguous()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, tensors)
