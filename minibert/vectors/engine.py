"""The same forward pass without padding and with the matrix products at hardware speed; inference only.

Beside model.py, step for step: the same order, the same names. One more letter:

    T  tokens of all texts in a packed batch

In place of padded batches (B, S, D) the tokens of all texts stand one after the other, (T, D): to a linear layer or a
LayerNorm every token is a row by itself. Only attention must know where a text begins and ends, kernels/packing.py.
If only [CLS] of the last layer is needed, that layer computes keys and values of every token, and everything else only
for the first token of each text.

In bfloat16 and float16 only the inputs and results of matrix products are rounded: the residual stream, LayerNorm and
softmax stay float32. So they do in int8, see kernels/int8.py.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from minibert import model
from minibert.config import Config
from minibert.kernels import int8 as int8_kernels
from minibert.kernels.attention import (
    BatchedAttention,
    PackedAttend,
    choose_attention,
    padded_attention,
    varlen_attention,
)
from minibert.kernels.int8 import Calibration, Int8Linear, Quantization, can_multiply
from minibert.kernels.matmul import Linear, Workspace, choose_linear, linear_of, reduced_float32
from minibert.kernels.packing import TOKEN_BUCKET, Packed, check_rows, last_bucket, pack, padding_texts
from minibert.utils.device import PendingCopy, batch_tokens_on, check_device, choose_dtype
from minibert.utils.printing import progress_bar
from minibert.vectors.pooling import COMBINATIONS, POOLINGS, Pooling
from minibert.vectors.recipe import DEFAULT, Recipe

CPU_TOKENS = 1024  # in a batch on a CPU: the feed-forward values of more do not fit its caches
INT8_TOKENS = 512  # that pass through an int8 feed-forward at once: what is between its products stays in the caches


# ---------------------------------------------------------------------------------------------------------------
# The forward pass, as in model.py


def float32(weight: Tensor, device: torch.device) -> Tensor:
    """The weight in float32 on the device; not copied if it is already."""
    return weight.detach().to(device, torch.float32)


def norm_of(source: nn.LayerNorm, device: torch.device) -> Callable[[Tensor], Tensor]:
    """LayerNorm in float32, (T,D) -> (T,D)."""
    weight, bias = float32(source.weight, device), float32(source.bias, device)
    return partial(F.layer_norm, normalized_shape=weight.shape, weight=weight, bias=bias, eps=source.eps)


class Embeddings:
    """x = LayerNorm(token + (segment + position + task 0)), the latter from one table. See model.Embeddings."""

    def __init__(self, source: model.Embeddings, config: Config, kernels: Kernels) -> None:
        device = kernels.device
        # The quantization of int8 is far coarser than the rounding of bfloat16.
        self.token = source.token.weight.detach().to(device, torch.bfloat16 if kernels.int8 else torch.float32)
        first = config.first_position if config.padding_has_position else config.first_position - 1  # row of position 0
        self.other = float32(source.position.weight[first:], device)
        if source.task is not None:
            self.other = self.other + float32(source.task.weight[0], device)
        self.segment_step = 0  # rows of the table from a position in one segment to the same position in the next
        if source.segment is not None:
            self.segment_step = len(self.other)
            self.other = torch.cat([self.other + segment for segment in float32(source.segment.weight, device)])
        self.norm, self.dtype = norm_of(source.norm, device), kernels.dtype
        own = source.embedding_projection
        self.embedding_projection = None if own is None else kernels.linear([own])

    def __call__(self, packed: Packed) -> Tensor:
        """(T) -> (T,D)."""
        rows = packed.positions
        if packed.segments is not None:
            rows = rows + packed.segments * self.segment_step
        x = self.norm(F.embedding(packed.ids, self.token) + F.embedding(rows, self.other))
        return x if self.embedding_projection is None else self.embedding_projection(x.to(self.dtype)).float()


class SelfAttention:
    """Multi-head attention with its residual: Concat(heads) Wᴼ + x. See model.SelfAttention."""

    def __init__(self, source: model.SelfAttention, kernels: Kernels) -> None:
        self.head_size, self.attend = source.head_size, kernels.attend
        value, output = source.value, kernels.quantizations.get("output", Quantization())
        if output.folded and output.smoothing is not None:  # the value layer is divided by it instead of its result
            c, weight, bias = (x.detach().to(kernels.device) for x in (output.smoothing, value.weight, value.bias))
            value = linear_of(weight / c[:, None], bias / c)
        self.joined: Linear | None = None
        if kernels.device.type == "cpu":
            self.query = kernels.linear([source.query], "attention")
            self.key_value = kernels.linear([source.key, value], "attention")
        else:  # one launch for all three
            self.joined, D = kernels.linear([source.query, source.key, value]), source.query.out_features
            self.query, self.key_value = self.joined.part(0, D), self.joined.part(D, 3 * D)
        self.output = kernels.linear([source.output], "output")

    def __call__(self, x: Tensor, query_tokens: Tensor, packed: Packed) -> Tensor:
        """Attention of the query tokens, all of x (T,D) or the first of each text (B,D), to the tokens of x."""
        prepared = self.key_value.prepare(x)
        if self.joined is not None and query_tokens is x:
            query, key, value = self.joined(prepared).chunk(3, dim=-1)  # (T,D) -> (T,3D) -> (T,D) each
        else:
            key, value = self.key_value(prepared).chunk(2, dim=-1)  # (T,D) -> (T,2D) -> (T,D) each
            query = self.query(prepared if query_tokens is x else self.query.prepare(query_tokens))
        q, k, v = (part.view(len(part), -1, self.head_size) for part in (query, key, value))  # (T,D) -> (T,H,W)
        context = self.attend(q, k, v, packed).flatten(1)  # (T,H,W) -> (T,D)
        return self.output(self.output.prepare(context), residual=query_tokens)


class FeedForward:
    """FFN(x) + x = activation(x W₁ + b₁) W₂ + b₂ + x. See model.FeedForward."""

    def __init__(self, source: model.FeedForward, kernels: Kernels) -> None:
        self.expand = kernels.linear([source.expand], "expand", activation=kernels.activation)
        self.contract = kernels.linear([source.contract], "contract")

    def __call__(self, x: Tensor) -> Tensor:
        """(T,D) -> (T,D)."""
        expanded = self.expand(self.expand.prepare(x))  # (T,D) -> (T,F)
        return self.contract(self.contract.prepare(expanded), residual=x)  # (T,F) -> (T,D)


class Layer:
    """x = LayerNorm(x + Attention(x)); x = LayerNorm(x + FFN(x)). See model.Layer."""

    def __init__(self, source: Any, kernels: Kernels) -> None:
        self.attention = SelfAttention(source.attention, kernels)
        self.attention_norm = norm_of(source.attention_norm, kernels.device)
        self.feed_forward = FeedForward(source.feed_forward, kernels)
        self.feed_forward_norm = norm_of(source.feed_forward_norm, kernels.device)
        self.in_parts = bool(kernels.quantizations)

    def __call__(self, x: Tensor, packed: Packed, first_only: bool = False) -> Tensor:
        """(T,D) -> (T,D), or for the first token of each text only (B,D)."""
        query_tokens = packed.first_tokens(x) if first_only else x
        x = self.attention_norm(self.attention(x, query_tokens, packed))
        parts = torch.split(x, INT8_TOKENS) if self.in_parts else (x,)
        done = [self.feed_forward_norm(self.feed_forward(part)) for part in parts]
        return torch.cat(done) if len(done) > 1 else done[0]


@dataclass
class Kernels:
    """How this machine computes: chosen once; `Engine.kernels` describes it."""

    device: torch.device
    dtype: torch.dtype  # of the inputs of matrix products
    product: type[Linear]
    attend: PackedAttend
    activation: str
    workspace: Workspace
    int8: bool = False
    quantizations: Mapping[str, Quantization] = field(default_factory=dict)  # of the products in int8, by name

    def linear(self, layers: Sequence[nn.Linear], product: str = "", activation: str | None = None) -> Linear:
        """Layers with the same input as one product."""
        if product in self.quantizations:
            return Int8Linear(layers, self.quantizations[product], activation, self.workspace)
        return self.product(layers, self.dtype, self.device, activation)

    def __str__(self) -> str:
        names: dict[Any, str] = {varlen_attention: "one kernel for all lengths", padded_attention: "one padded kernel"}
        attention = names.get(self.attend, "groups of equal length")
        attention += ", two products each" if isinstance(self.attend, BatchedAttention) else ""
        return f"on {self.device}; products: {self.product.description}; attention: {attention}"


class Engine:
    """An encoder prepared for many texts: `vectors` computes their vectors, `kernels` describes how.

    precision: "float32", "bfloat16", "float16" (CUDA only), "auto", the fastest that keeps a cosine above 0.9999, or
    "int8", which needs samples: the ids of a few dozen texts to calibrate it, see kernels/int8.py.
    device: where to compute, the encoder's own by default. Dropout is never applied. Weights are shared with the
    encoder where their form allows it, else copied: after further training, build a new Engine. keep_encoder: False
    frees each layer of the encoder as soon as it is copied; the encoder is unusable afterwards.
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
        self.device = torch.device(device) if device is not None else encoder.device
        check_device(self.device)
        int8 = precision == "int8" and can_multiply(self.device)
        self.dtype = choose_dtype("auto" if precision == "int8" else precision, self.device)
        precision = str(self.dtype).removeprefix("torch.")
        if self.dtype == torch.float32 and (reason := reduced_float32(self.device)):
            precision = "reduced float32"
            warnings.warn(reason, stacklevel=2)
        self.precision = "int8" if int8 else precision
        workspace = Workspace()
        head_size = self.config.hidden_size // self.config.num_attention_heads
        attend = choose_attention(self.dtype, self.device, head_size, workspace)
        product = choose_linear(self.dtype, self.device)
        kernels = Kernels(self.device, self.dtype, product, attend, self.config.hidden_act, workspace, int8)
        self.kernels = f"{precision} {kernels}"
        self.embeddings = Embeddings(encoder.embeddings, self.config, kernels)
        self.padding_id = None if self.config.padding_has_position else self.config.pad_token_id
        found = Calibration({}, short_texts_tolerate_int8=True)
        if int8:
            found = self.calibrate(encoder, kernels, samples)
            self.kernels = f"{found}, {Int8Linear.description}; the others: {self.kernels}"
        distinct, fallback = [], []
        for number, layer in enumerate(encoder.layers):
            distinct.append(Layer(layer, replace(kernels, quantizations=found.of_layer(number))))
            if not found.short_texts_tolerate_int8:
                fallback.append(Layer(layer, kernels))
            if not keep_encoder:
                layer.to("meta")  # a device without memory
        self.layers = [distinct[number] for number in self.config.shared_layers]  # L, some of them the same
        # For means of short texts that do not tolerate int8: L or none.
        self.fallback_layers = [fallback[number] for number in self.config.shared_layers if fallback]
        self.pooler = None if encoder.pooler is None else kernels.linear([encoder.pooler.dense])

    @torch.inference_mode()
    def calibrate(
        self, encoder: model.Encoder, kernels: Kernels, samples: Sequence[Sequence[int]] | None
    ) -> Calibration:
        """Which products tolerate int8, measured on the samples or read from the cache. Raises ValueError for none."""
        if not samples:
            raise ValueError("precision 'int8' is calibrated on texts: pass samples=, the ids of a few dozen of them")
        check_rows(self.config, samples)
        first = int8_kernels.FIRST_TOKENS
        short = [[*ids[:first], ids[-1]] for ids in samples if len(ids) > first]
        rows = sorted([*samples, *short], key=len, reverse=True)
        path = int8_kernels.cache_file(encoder, rows)
        found = int8_kernels.read_calibration(path, encoder)
        if found is None:
            packed = pack(rows, self.device, None, self.padding_id)
            x = self.embeddings(packed)
            products, exact = int8_kernels.calibrate(encoder, x, packed)
            found = Calibration(products, short_texts_tolerate_int8=True)
            for number in self.config.shared_layers:
                x = Layer(encoder.layers[number], replace(kernels, quantizations=found.of_layer(number)))(x, packed)
            found = Calibration(products, int8_kernels.means_agree(exact, x, packed))
            int8_kernels.write_calibration(path, found)
        return found

    @torch.inference_mode()
    def vectors(
        self,
        ids: Sequence[Sequence[int]],
        recipe: Recipe = DEFAULT,
        *,
        second: Sequence[int] | None = None,
        places: Sequence[int] | None = None,
        progress: bool = False,
    ) -> NDArray[np.float32]:
        """One vector for each row of token ids, (N, width), in the order of the rows.

        ids: [CLS] to [SEP] of one text or pair each, without padding. second: where in each row the second text of a
        pair begins, which has segment 1 to the end of the row; None: no row is a pair. places: the token of each row
        that pooling "cls" reads in place of the first. Of the recipe only pooling, layers, combine and batch_tokens are
        used; a batch has fewer tokens on a CPU, and half as many after a GPU ran out of memory.
        Raises ValueError for a recipe or ids that do not fit the checkpoint, RuntimeError in a process forked from one
        that has computed.
        """
        check_process()
        layers, width = recipe.fit_to(self.config, self.pooler is not None)
        lengths = check_rows(self.config, ids, second)
        second = second if self.config.family.pairs_in_segments else None
        result = np.empty((len(ids), width), np.float32)
        bar = progress_bar(name="embed", total=int(lengths.sum()), show=progress, unit="token", unit_scale=True)
        with bar:
            batches = self.batches(ids, second, places, lengths, recipe, layers)
            copies: Iterator[Any] = ((rows, PendingCopy(vectors)) for rows, vectors in batches)
            for (rows, copy), _ in pairwise(chain(copies, [()])):  # one behind: the device computes the next meanwhile
                result[rows] = copy.wait().numpy()
                bar.update(int(lengths[rows].sum()))
        return result

    def batches(
        self,
        ids: Sequence[Sequence[int]],
        second: Sequence[int] | None,
        places: Sequence[int] | None,
        lengths: NDArray[np.int64],
        recipe: Recipe,
        layers: Sequence[int],
    ) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
        """Row numbers and their vectors on the device, the longest first, so that memory peaks in the first batch."""
        pooling, on_cpu = POOLINGS[recipe.pooling], self.device.type == "cpu"
        tokens = recipe.batch_tokens or batch_tokens_on(self.device)
        tokens = min(tokens, CPU_TOKENS) if on_cpu else tokens
        bucket_at_the_end = last_bucket(int(lengths.sum()), tokens)
        order = np.argsort(-lengths, kind="stable")
        while len(order):
            fitting = np.searchsorted(lengths[order[:tokens]].cumsum(), tokens, side="right")
            rows = order[: max(1, int(fitting))]
            if self.falls_back(pooling, int(lengths[rows[-1]])):  # a batch has texts of one kind only
                longer = int((lengths[rows] > int8_kernels.SHORT).sum())
                rows = rows[: longer or len(rows)]
            texts, size = [ids[row] for row in rows], int(lengths[rows].sum())
            if on_cpu:
                texts += padding_texts(size, TOKEN_BUCKET if len(rows) < len(order) else bucket_at_the_end)
            starts = None if second is None else [second[row] for row in rows]
            read = [places[row] for row in rows] if places else []
            try:
                pooled = self.forward(pack(texts, self.device, starts, self.padding_id, read), pooling, layers)
            except torch.OutOfMemoryError:
                if len(rows) == 1:
                    raise
                tokens = size // 2
                continue
            several = [vectors[: len(rows)] for vectors in pooled]
            yield rows, COMBINATIONS[recipe.combine](torch.stack(several)) if len(several) > 1 else several[0]
            order = order[len(rows) :]

    def forward(self, packed: Packed, pooling: Pooling, layers: Sequence[int]) -> list[Tensor]:
        """The pooled vectors after each of the layers, (B,D) each; nothing above the last of them runs."""
        x = self.embeddings(packed)  # (T) -> (T,D)
        stack = self.fallback_layers if self.falls_back(pooling, packed.longest) else self.layers
        pooled = {0: self.pool(x, packed, pooling)} if 0 in layers else {}
        last = max(layers)
        for number, layer in enumerate(stack[:last], start=1):
            x = layer(x, packed, first_only=number == last and pooling.first_only)  # (T,D) -> (T,D) or (B,D)
            if number in layers:
                pooled[number] = self.pool(x, packed, pooling)
        return [pooled[number] for number in layers]

    def falls_back(self, pooling: Pooling, tokens: int) -> bool:
        """Whether a text of so many tokens is not computed in int8, which would change the direction of its vector."""
        return bool(self.fallback_layers) and not pooling.first_only and tokens <= int8_kernels.SHORT

    def pool(self, x: Tensor, packed: Packed, pooling: Pooling) -> Tensor:
        """(T,D) -> (B,D); if the layer computed only first tokens, x is (B,D) already."""
        if pooling.reduction and self.device.type != "cpu":  # one launch; unsafe: the lengths are not checked
            return torch.segment_reduce(x, pooling.reduction, lengths=packed.bounds.diff(), unsafe=True)
        if not pooling.first_only:
            return torch.cat([pooling.pool(group, None) for group in packed.by_group(x)])  # (T,D) -> (B,S,D) each
        first = packed.first_tokens(x) if len(x) == len(packed.ids) else x
        if pooling.through_pooler and self.pooler is not None:
            return torch.tanh(self.pooler(first.to(self.dtype)).float())
        return first


computed_in: int | None = None  # the process that has computed and whose threads its forks do not have


def check_process() -> None:
    """Raise RuntimeError in a process forked from one that has computed: it would wait forever for OpenMP's threads.

    torch itself has this fault. One thread needs no others, and spawned processes, as those of joblib and scikit-learn,
    start their own.
    """
    global computed_in
    if computed_in not in (None, os.getpid()) and torch.get_num_threads() > 1:
        raise RuntimeError(
            "this process was forked from one that had computed vectors, and would wait forever for threads that a "
            "fork does not copy; start it with multiprocessing's 'spawn', or call torch.set_num_threads(1) in it first"
        )
    computed_in = os.getpid()
