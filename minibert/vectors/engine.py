"""The same forward pass with the padding taken out and the matrix products at hardware speed; inference only.

Beside model.py, step for step: the same order, the same words. One letter more:

    T  tokens of all texts in a packed batch

A padded batch is (B, S, D), and many of its rows are padding. Here the tokens of all texts stand one after the
other, (T, D): to a linear layer or a LayerNorm every token is a row by itself, so nothing else changes. Only
attention must know where a text begins and ends, see packed.py.

Where only [CLS] of the last layer is wanted, that layer computes keys and values of every token, and everything
else for the first token of each text alone.

In bfloat16 and float16 only what enters a matrix product is rounded (and what leaves it, there being no product that
returns float32): the residual stream, LayerNorm and softmax stay in float32. So they do in int8, where what enters a
product becomes bytes, see int8.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from minibert import model
from minibert.config import Config
from minibert.device import check_device, choose_dtype
from minibert.kernels.attention import (
    Attend,
    BatchedAttention,
    choose_attention,
    grouped_attention,
    varlen_attention,
)
from minibert.kernels.calibration import (
    SHORT,
    Calibration,
    Products,
    beginnings,
    calibration_of,
    in_words,
    roundings_of,
)
from minibert.kernels.int8 import Rounding, WholeLinear, choose_int8, divided
from minibert.kernels.matmul import Linear, choose_linear
from minibert.kernels.memory import Scratch
from minibert.kernels.packing import TOKEN_STEP, Packed, check_rows, filler, last_step, pack
from minibert.vectors.forks import check_process
from minibert.vectors.pooling import combine_layers
from minibert.vectors.recipe import DEFAULT, Recipe

# More tokens at once gain nothing on a CPU: their feed-forward values no longer fit its caches.
CPU_TOKENS = 1024
# Tokens that pass through an int8 feed-forward at once: between its products all stays in the caches.
INT8_TOKENS, ALL_TOKENS = 512, 1 << 31


# ---------------------------------------------------------------------------------------------------------------
# The forward pass, as in model.py


def float32(weight: Tensor, device: torch.device) -> Tensor:
    """The weight in float32 on the device; the same memory where it is there already."""
    return weight.detach().to(device, torch.float32)


class Norm:
    """LayerNorm, in float32."""

    def __init__(self, source: nn.LayerNorm, device: torch.device) -> None:
        self.weight, self.bias, self.eps = float32(source.weight, device), float32(source.bias, device), source.eps

    def __call__(self, x: Tensor) -> Tensor:
        """(T,D) -> (T,D)."""
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


class Embeddings:
    """x = LayerNorm(token + (segment + position + task 0)), the latter from one table. See model.Embeddings."""

    def __init__(self, source: model.Embeddings, config: Config, kernels: Kernels) -> None:
        self.token = source.token.weight.detach().to(kernels.device, kernels.table)
        self.place = float32(source.position.weight[first_row(config) :], kernels.device)
        if source.task is not None:
            self.place = self.place + float32(source.task.weight[0], kernels.device)
        self.segment_step = 0  # rows of the table from a place in one segment to that in the next
        if source.segment is not None:
            self.segment_step = len(self.place)
            self.place = torch.cat([self.place + segment for segment in float32(source.segment.weight, kernels.device)])
        self.norm, self.dtype = Norm(source.norm, kernels.device), kernels.dtype
        self.embedding_projection = (
            None if source.embedding_projection is None else kernels.linear([source.embedding_projection])
        )

    def __call__(self, packed: Packed) -> Tensor:
        """(T) -> (T,D)."""
        places = packed.positions
        if packed.segments is not None:
            places = places + packed.segments * self.segment_step
        x = F.embedding(packed.ids, self.token)
        x = x + F.embedding(places, self.place)
        x = self.norm(x)
        return x if self.embedding_projection is None else self.embedding_projection(x.to(self.dtype)).float()


def first_row(config: Config) -> int:
    """The row of the table of positions for position 0 of a packed batch."""
    return config.first_position if config.padding_has_position else config.first_position - 1


class SelfAttention:
    """Multi-head attention with its residual: Concat(heads) Wᴼ + x. See model.SelfAttention."""

    def __init__(self, source: model.SelfAttention, kernels: Kernels) -> None:
        self.head_size, self.attend = source.head_size, kernels.attend
        self.query = kernels.linear([source.query], name="query")
        self.key_value = kernels.linear([source.key, kernels.value(source.value)], name="key value")
        self.output = kernels.linear([source.output], name="output")

    def split_heads(self, x: Tensor) -> Tensor:
        """(T,D) -> (T,H,W)."""
        return x.view(len(x), -1, self.head_size)

    def __call__(self, x: Tensor, query_tokens: Tensor, packed: Packed) -> Tensor:
        """What the query tokens, all of x (T,D) or the first of each text (B,D), gather from the tokens of x."""
        entering = self.key_value.enter(x)
        key, value = self.key_value(entering).chunk(2, dim=-1)  # (T,D) -> (T,2D) -> (T,D) each
        query = self.query(entering if query_tokens is x else self.query.enter(query_tokens))
        query, key, value = self.split_heads(query), self.split_heads(key), self.split_heads(value)
        context = self.attend(query, key, value, packed).flatten(1)  # (T,H,W) -> (T,D)
        return self.output(self.output.enter(context), residual=query_tokens)


class FeedForward:
    """FFN(x) + x = activation(x W₁ + b₁) W₂ + b₂ + x. See model.FeedForward."""

    def __init__(self, source: model.FeedForward, kernels: Kernels) -> None:
        self.expand = kernels.linear([source.expand], kernels.activation, name="expand")
        self.contract = kernels.linear([source.contract], name="contract")

    def __call__(self, x: Tensor) -> Tensor:
        """(T,D) -> (T,D)."""
        expanded = self.expand(self.expand.enter(x))  # (T,D) -> (T,F)
        return self.contract(self.contract.enter(expanded), residual=x)  # (T,F) -> (T,D)


class Layer:
    """x = LayerNorm(x + Attention(x)); x = LayerNorm(x + FFN(x)). See model.Layer."""

    def __init__(self, source: model.Layer, kernels: Kernels) -> None:
        self.attention = SelfAttention(source.attention, kernels)
        self.attention_norm = Norm(source.attention_norm, kernels.device)
        self.feed_forward = FeedForward(source.feed_forward, kernels)
        self.feed_forward_norm = Norm(source.feed_forward_norm, kernels.device)
        self.tokens_at_once = INT8_TOKENS if kernels.roundings else ALL_TOKENS

    def __call__(self, x: Tensor, packed: Packed, first_only: bool) -> Tensor:
        """(T,D) -> (T,D), or for the first token of each text only (B,D)."""
        query_tokens = packed.first_tokens(x) if first_only else x
        x = self.attention_norm(self.attention(x, query_tokens, packed))
        parts = torch.split(x, self.tokens_at_once)
        done = [self.feed_forward_norm(self.feed_forward(part)) for part in parts]
        return torch.cat(done) if len(done) > 1 else done[0]


# ---------------------------------------------------------------------------------------------------------------
# What this machine can do


@dataclass
class Kernels:
    """What this machine computes with: chosen once, said in words by `Engine.kernels`."""

    device: torch.device
    dtype: torch.dtype  # of what enters a matrix product
    product: type[Linear]
    attend: Attend
    activation: str
    table: torch.dtype = torch.float32  # of the token embeddings
    whole: type[WholeLinear] | None = None  # products in int8
    roundings: Mapping[str, Rounding] = field(default_factory=dict)  # of the products in int8, by their names
    scratch: Scratch = field(default_factory=Scratch)  # of these and of attention

    def linear(self, layers: Sequence[nn.Linear], activation: str | None = None, name: str = "") -> Linear:
        """The layers, which have one input, as one product."""
        if self.whole is not None and name in self.roundings:
            return self.whole(layers, self.roundings[name], activation, self.scratch, name)
        return self.product(layers, self.dtype, self.device, activation)

    def of_layer(self, products: Products, number: int) -> Kernels:
        """The same with the roundings of this layer."""
        return replace(self, roundings=roundings_of(products, number))

    def value(self, source: nn.Linear) -> nn.Linear:
        """The value layer, whose results are divided by what the output product's input is smoothed with."""
        output = self.roundings.get("output", Rounding())
        return divided(source, output.smoothing) if output.folded and output.smoothing is not None else source

    def __str__(self) -> str:
        attention = "one kernel for all lengths" if self.attend is varlen_attention else "groups of equal length"
        attention += ", two products each" if isinstance(self.attend, BatchedAttention) else ""
        precision = str(self.dtype).removeprefix("torch.")
        return f"{precision} on {self.device}; products: {self.product.words}; attention: {attention}"


# ---------------------------------------------------------------------------------------------------------------
# Many texts


class Engine:
    """An encoder made ready for many texts: `vectors` computes them, `kernels` says in words how.

    precision: "float32", "bfloat16", "float16" (CUDA only), "auto", the fastest that keeps a cosine above 0.9999, or
    "int8", which needs samples: the ids of a few dozen texts, by which it is calibrated, see calibration.py.
    device: where to compute, the encoder's own by default. Dropout is never applied. Weights are shared where their
    form allows it, else copied: after further training, build a new Engine. keep_encoder: False frees each layer of
    the encoder as soon as it is copied, so that no two layers are in memory twice; the encoder is of no use afterwards.
    """

    def __init__(
        self,
        encoder: model.Encoder,
        precision: str = "float32",
        device: str | torch.device | None = None,
        *,
        keep_encoder: bool = True,
        samples: Sequence[Sequence[int]] | None = None,
    ) -> None:
        check_process()
        self.config = encoder.config
        self.device = torch.device(device) if device is not None else encoder.embeddings.token.weight.device
        check_device(self.device)
        whole = choose_int8(self.device) if precision == "int8" else None
        self.dtype = choose_dtype("auto" if precision == "int8" else precision, self.device)
        self.precision = "int8" if whole else str(self.dtype).removeprefix("torch.")
        scratch = Scratch()
        product, attend = choose_linear(self.dtype, self.device), choose_attention(self.dtype, self.device, scratch)
        table = torch.bfloat16 if whole else torch.float32  # its rounding is far smaller than that of bytes
        kernels = Kernels(
            self.device, self.dtype, product, attend, self.config.hidden_act, table, whole, scratch=scratch
        )
        self.kernels = str(kernels)
        self.embeddings = Embeddings(encoder.embeddings, self.config, kernels)
        self.unplaced = None if self.config.padding_has_position else self.config.pad_token_id
        calibration = Calibration({}, short_bear_int8=True)
        if whole:
            calibration = self.calibrate(encoder, kernels, samples)
            self.kernels = f"{in_words(calibration)}, {whole.words}; the others: {self.kernels}"
        distinct, careful = [], []
        for number, layer in enumerate(encoder.layers):
            distinct.append(Layer(cast(model.Layer, layer), kernels.of_layer(calibration.products, number)))
            if not calibration.short_bear_int8:
                careful.append(Layer(cast(model.Layer, layer), kernels))
            if not keep_encoder:
                layer.to("meta")  # a device without memory
        self.layers = [distinct[number] for number in self.config.shared_layers]  # L, some of them the same
        self.careful_layers = [careful[number] for number in self.config.shared_layers if careful]  # L or none
        self.pooler = None if encoder.pooler is None else kernels.linear([encoder.pooler.dense])

    def calibrate(
        self, encoder: model.Encoder, kernels: Kernels, samples: Sequence[Sequence[int]] | None
    ) -> Calibration:
        """Which products bear int8, found on the samples or known from an earlier time. Raises ValueError for none."""
        if not samples:
            raise ValueError("precision 'int8' is calibrated on texts: pass samples=, the ids of a few dozen of them")
        check_rows(self.config, samples)
        rows = sorted([*samples, *beginnings(samples)], key=len, reverse=True)
        packed = pack(rows, self.device, None, self.unplaced)

        def in_int8(products: Products, x: Tensor) -> Tensor:
            for number in self.config.shared_layers:
                layer = Layer(cast(model.Layer, encoder.layers[number]), kernels.of_layer(products, number))
                x = layer(x, packed, first_only=False)
            return x

        return calibration_of(encoder, rows, packed, grouped_attention, lambda: self.embeddings(packed), in_int8)

    def check(self, recipe: Recipe) -> tuple[tuple[int, ...], int]:
        """The recipe's layers counted from 0 and the width of its vectors, or ValueError, see Recipe.fit_to."""
        return recipe.fit_to(self.config, has_pooler=self.pooler is not None)

    @torch.inference_mode()
    def vectors(
        self,
        ids: Sequence[Sequence[int]],
        recipe: Recipe = DEFAULT,
        *,
        second: Sequence[int] | None = None,
        progress: bool = False,
    ) -> NDArray[np.float32]:
        """One vector for each row of token ids, (N, width), in the order of the rows.

        ids: [CLS] to [SEP] of one text or pair each, without padding. second: where in each row the second text of a
        pair begins, which is in segment 1 to the end of the row; None: there are no pairs. Of the recipe, pooling,
        layers, combine and batch_tokens count here; a batch has fewer tokens on a CPU, and half as many when a GPU
        runs out of memory.
        Raises ValueError for a recipe or ids that do not fit the checkpoint, NotFiniteError for NaN or infinity in a
        vector, RuntimeError in a process forked from one that has computed.
        """
        check_process()
        layers, width = self.check(recipe)
        lengths = check_rows(self.config, ids, second)
        second = second if self.config.family.pairs_in_segments else None
        order = np.argsort(-lengths, kind="stable")
        result = np.empty((len(ids), width), np.float32)
        tokens = int(lengths.sum())
        bar = tqdm(total=tokens, unit="token", unit_scale=True, delay=2, disable=None if progress else True)
        with bar:
            batches = self.batches(ids, second, lengths, order, recipe, layers)
            for rows, vectors in self.arrivals(batches, recipe.combine):
                if not np.isfinite(vectors).all():
                    raise NotFiniteError(int(rows[~np.isfinite(vectors).all(axis=1)].min()), self.dtype)
                result[rows] = vectors
                bar.update(int(lengths[rows].sum()))
        return result

    def batches(
        self,
        ids: Sequence[Sequence[int]],
        second: Sequence[int] | None,
        lengths: NDArray[np.int64],
        order: NDArray[np.int64],
        recipe: Recipe,
        layers: Sequence[int],
    ) -> Iterator[tuple[NDArray[np.int64], list[Tensor]]]:
        """Row numbers and their pooled vectors, the longest first: memory is at its peak in the first batch."""
        on_cpu, tokens = self.device.type == "cpu", recipe.batch_tokens
        tokens = min(tokens, CPU_TOKENS) if on_cpu else tokens
        at_the_end = last_step(int(lengths.sum()), tokens)
        while len(order):
            fitting = np.searchsorted(lengths[order[:tokens]].cumsum(), tokens, side="right")
            rows = order[: max(1, int(fitting))]
            if self.careful(recipe.pooling, int(lengths[rows[-1]])):
                longer = int((lengths[rows] > SHORT).sum())
                rows = rows[: longer or len(rows)]
            texts, size = [ids[row] for row in rows], int(lengths[rows].sum())
            if on_cpu:
                texts += filler(size, TOKEN_STEP if len(rows) < len(order) else at_the_end)
            starts = None if second is None else [second[row] for row in rows]
            try:
                pooled = self.forward(pack(texts, self.device, starts, self.unplaced), recipe.pooling, layers)
            except torch.OutOfMemoryError:
                if len(rows) == 1:
                    raise
                tokens = size // 2
                continue
            yield rows, [vectors[: len(rows)] for vectors in pooled]
            order = order[len(rows) :]

    def arrivals(
        self, batches: Iterator[tuple[NDArray[np.int64], list[Tensor]]], combine: str
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Row numbers and vectors, copied from the device while it computes the next batch."""
        arriving: Arrival | None = None
        for rows, pooled in batches:
            previous, arriving = arriving, Arrival(rows, combine_layers(pooled, combine))
            if previous is not None:
                yield previous.rows, previous.wait()
        if arriving is not None:
            yield arriving.rows, arriving.wait()

    def forward(self, packed: Packed, pooling: str, layers: Sequence[int]) -> list[Tensor]:
        """The pooled vectors after each of the layers, (B,D) each; nothing above the last of them runs."""
        x = self.embeddings(packed)  # (T) -> (T,D)
        own = self.careful_layers if self.careful(pooling, packed.longest) else self.layers
        pooled = {0: self.pool(x, packed, pooling)} if 0 in layers else {}
        last = max(layers)
        for number, layer in enumerate(own[:last], start=1):
            x = layer(x, packed, first_only=number == last and pooling in ("cls", "pooler"))  # (T,D) -> (T,D), (B,D)
            if number in layers:
                pooled[number] = self.pool(x, packed, pooling)
        return [pooled[number] for number in layers]

    def careful(self, pooling: str, tokens: int) -> bool:
        """Whether a text of so many tokens is not computed in int8, since its vector would turn."""
        return bool(self.careful_layers) and pooling in ("mean", "max") and tokens <= SHORT

    def pool(self, x: Tensor, packed: Packed, pooling: str) -> Tensor:
        """(T,D) -> (B,D); where the layer computed first tokens only, x is (B,D) already."""
        if pooling in ("mean", "max"):
            groups = packed.by_group(x)  # (T,D) -> (B,S,D) each
            return torch.cat([group.mean(dim=1) if pooling == "mean" else group.amax(dim=1) for group in groups])
        first = packed.first_tokens(x) if len(x) == len(packed.ids) else x
        if pooling == "pooler" and self.pooler is not None:
            return torch.tanh(self.pooler(first.to(self.dtype)).float())
        return first


class NotFiniteError(ValueError):
    """The vector of a row holds NaN or infinity."""

    def __init__(self, row: int, dtype: torch.dtype) -> None:
        super().__init__(row, dtype)  # as a pickle needs them
        self.row, self.dtype = row, dtype

    def __str__(self) -> str:
        if self.dtype == torch.float16:
            cause = "its numbers end at 65,504; use precision='bfloat16' or 'float32'"
        else:
            cause = "the weights are damaged, or so large that numbers overflow; fetch the checkpoint again"
        precision = str(self.dtype).removeprefix("torch.")
        return f"row {self.row} has a vector with NaN or infinity in it, computed in {precision}: {cause}"


class Arrival:
    """Vectors on their way from the device; nobody waits for it until they are needed."""

    def __init__(self, rows: NDArray[np.int64], vectors: Tensor) -> None:
        self.rows = rows
        self.vectors = vectors.to("cpu", non_blocking=True)  # from CUDA: into pinned memory
        self.copied = torch.cuda.current_stream(vectors.device).record_event() if vectors.is_cuda else None

    def wait(self) -> NDArray[np.float32]:
        """The vectors, once they are here."""
        if self.copied is not None:
            self.copied.synchronize()
        vectors: NDArray[np.float32] = self.vectors.numpy()
        return vectors
