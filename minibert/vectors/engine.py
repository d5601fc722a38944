"""The forward pass of model.py without padding and with the matrix products at hardware speed; inference only.

The encoder itself computes it (Encoder.through_layers), with other parts. One more letter:

    T  tokens of all texts in a packed batch

In place of padded batches (B, S, D) the tokens of all texts follow one another, (T, D): to a linear layer or a
LayerNorm every token is a row by itself. Only attention must know where a text begins and ends, kernels/packing.py.
If only [CLS] of the last layer is needed, that layer computes keys and values of every token, and everything else only
for the first token of each text.

In bfloat16 and float16 only the inputs and results of matrix products are rounded: the residual stream, LayerNorm and
softmax stay float32. So they do in int8, see kernels/int8.py.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from minibert import model
from minibert.kernels import int8 as int8_kernels
from minibert.kernels.attention import (
    BatchedAttention,
    PackedAttend,
    by_heads,
    choose_attention,
    padded_attention,
    varlen_attention,
)
from minibert.kernels.int8 import Calibration, Int8Linear, Quantization, can_multiply
from minibert.kernels.matmul import Linear, Workspace, choose_linear, linear_of, reduced_float32
from minibert.kernels.packing import TOKEN_BUCKET, Packed, check_rows, last_bucket, pack, padding_texts
from minibert.kernels.parts import with_parts
from minibert.utils.device import PendingCopy, batch_tokens_on, check_device, choose_dtype
from minibert.utils.printing import progress_bar
from minibert.vectors.pooling import COMBINATIONS, POOLINGS, Pooling
from minibert.vectors.recipe import DEFAULT, Recipe

CPU_TOKENS = 1024  # in a batch on a CPU: the feed-forward values of more do not fit its caches
INT8_TOKENS = 512  # that pass through an int8 feed-forward at once: what is between its products stays in the caches


# ---------------------------------------------------------------------------------------------------------------
# The parts that take the place of those of model.py


def float32(weight: Tensor, device: torch.device) -> nn.Parameter:
    """Return the weight in float32 on the device; not copied if it is already."""
    return nn.Parameter(weight.detach().to(device, torch.float32), requires_grad=False)


def norm_of(source: nn.LayerNorm, device: torch.device) -> nn.LayerNorm:
    """Return LayerNorm in float32."""
    norm = nn.LayerNorm(source.normalized_shape, source.eps, bias=source.bias is not None, device="meta")
    norm.weight = float32(source.weight, device)
    norm.bias = None if source.bias is None else float32(source.bias, device)
    return norm


class JoinedAttention(model.SelfAttention):
    """Multi-head attention whose queries, keys and values are fewer, larger products."""

    joined: Linear | None  # all three in one launch; None on a CPU
    queries: Linear
    key_value: Linear

    def join(self, source: model.SelfAttention, kernels: Kernels) -> None:
        """Make the products from the linear layers of the model."""
        value, output = source.value, kernels.quantizations.get("output", Quantization())
        if output.folded and output.smoothing is not None:  # the value layer is divided by it instead of its result
            c = output.smoothing.to(kernels.device)
            weight, bias = value.weight.detach().to(kernels.device), value.bias
            value = linear_of(weight / c[:, None], None if bias is None else bias.detach().to(kernels.device) / c)
        self.joined = None
        if kernels.device.type == "cpu":
            self.queries = kernels.linear([source.query], "attention")
            self.key_value = kernels.linear([source.key, value], "attention")
        else:
            D = source.query.out_features
            self.joined = kernels.linear([source.query, source.key, value])
            self.queries = self.joined.part(0, D)
            self.key_value = self.joined.part(D, 3 * D)
        del self.query, self.key, self.value

    def project(self, x: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries of the wanted tokens, (T,D) or (B,D), and the keys and values of all, (T,D) each."""
        prepared = self.key_value.prepare(x)
        if self.joined is not None and wanted is x:
            query, key, value = self.joined.multiply(prepared).chunk(3, dim=-1)  # (T,D) -> (T,3D) -> (T,D) each
        else:
            key, value = self.key_value.multiply(prepared).chunk(2, dim=-1)  # (T,D) -> (T,2D) -> (T,D) each
            query = self.queries.multiply(prepared if wanted is x else self.queries.prepare(wanted))
        return query, key, value


class ResidualInPlace(model.Residual):
    """x + change, without dropout, in the memory of the change."""

    def forward(self, change: Tensor, x: Tensor) -> Tensor:
        """(T,D), (T,D) -> (T,D), in the dtype of x."""
        return change.add_(x) if change.dtype == x.dtype else change + x


class FeedForwardInParts(model.FeedForward):
    """The same for some tokens at a time, so that what is between its products stays in the caches."""

    def forward(self, x: Tensor) -> Tensor:
        """(T,D) -> (T,D)."""
        done = [model.FeedForward.forward(self, part) for part in torch.split(x, INT8_TOKENS)]
        return torch.cat(done) if len(done) > 1 else done[0]


def fast_layer(source: Any, kernels: Kernels) -> Any:
    """Return the layer with the products of `kernels`, and its norms in float32."""
    parts: dict[type[nn.Module], type[nn.Module]] = {
        model.SelfAttention: JoinedAttention,
        model.Residual: ResidualInPlace,
    }
    layer: Any = with_parts(source, parts | ({model.FeedForward: FeedForwardInParts} if kernels.quantizations else {}))
    layer.attention.join(source.attention, kernels)
    for path, module in source.named_modules():
        name = path.rpartition(".")[2]
        if isinstance(module, nn.LayerNorm):
            layer.set_submodule(path, norm_of(module, kernels.device))
        elif isinstance(module, nn.Linear) and name not in ("query", "key", "value"):
            activation = kernels.activation if name == "expand" else None
            layer.set_submodule(path, kernels.linear([module], name, activation))
        elif isinstance(module, nn.Dropout):
            layer.set_submodule(path, nn.Identity())  # torch copies its input, even in eval mode
    layer.feed_forward.activation = nn.Identity()  # the product of `expand` applies it
    return layer


def fast_embeddings(source: model.Embeddings, kernels: Kernels) -> Any:
    """Return the embeddings in float32; with int8 the token table is bfloat16, which is far finer than int8."""
    embeddings: Any = with_parts(source, {})
    for name, module in source.named_children():
        if isinstance(module, nn.Embedding):
            rows, width = module.weight.shape
            table = nn.Embedding(rows, width, padding_idx=module.padding_idx, device="meta")
            table.weight = float32(module.weight, kernels.device)
            embeddings.set_submodule(name, table)
        elif isinstance(module, nn.LayerNorm):
            embeddings.set_submodule(name, norm_of(module, kernels.device))
        elif isinstance(module, nn.Linear):
            embeddings.set_submodule(name, kernels.in_float32(module))
        elif isinstance(module, nn.Dropout):
            embeddings.set_submodule(name, nn.Identity())
    if kernels.int8:
        embeddings.token.weight = nn.Parameter(embeddings.token.weight.bfloat16(), requires_grad=False)
    return embeddings


@dataclass
class Kernels:
    """How this machine computes: chosen once; `Engine.kernels` describes it."""

    device: torch.device
    dtype: torch.dtype  # of the inputs of matrix products
    product: type[Linear]
    packed_attend: PackedAttend
    activation: str
    workspace: Workspace
    int8: bool = False
    quantizations: Mapping[str, Quantization] = field(default_factory=dict)  # of the products in int8, by name

    def linear(self, layers: Sequence[nn.Linear], product: str = "", activation: str | None = None) -> Linear:
        """Return layers with the same input as one product."""
        if product in self.quantizations:
            return Int8Linear(layers, self.quantizations[product], activation, self.workspace)
        return self.product(layers, self.dtype, self.device, activation)

    def in_float32(self, layer: nn.Linear) -> Linear:
        """Return a layer that is computed in float32 always: it has few tokens or a narrow input."""
        return choose_linear(torch.float32, self.device)([layer], torch.float32, self.device)

    def __str__(self) -> str:
        names: dict[Any, str] = {varlen_attention: "one kernel for all lengths", padded_attention: "one padded kernel"}
        attention = names.get(self.packed_attend, "groups of equal length")
        attention += ", two products each" if isinstance(self.packed_attend, BatchedAttention) else ""
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
        self.attend = by_heads(attend)
        self.padding_id = None if self.config.padding_has_position else self.config.pad_token_id
        self.encoder = with_parts(encoder, {})
        self.encoder.embeddings = fast_embeddings(encoder.embeddings, kernels)
        if encoder.pooler is not None:
            self.encoder.pooler = with_parts(encoder.pooler, {})
            self.encoder.pooler.set_submodule("dense", kernels.in_float32(encoder.pooler.dense))
        found = Calibration({}, short_texts_tolerate_int8=True)
        if int8:
            found = self.calibrate(encoder, kernels, samples)
            self.kernels = f"{found}, {Int8Linear.description}; the others: {self.kernels}"
        # For means of short texts that do not tolerate int8.
        self.fallback = None if found.short_texts_tolerate_int8 else with_parts(self.encoder, {})
        for number, layer in enumerate(encoder.layers):
            self.encoder.layers[number] = fast_layer(layer, replace(kernels, quantizations=found.of_layer(number)))
            if self.fallback is not None:
                self.fallback.layers[number] = fast_layer(layer, kernels)
            if not keep_encoder:
                layer.to("meta")  # a device without memory

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
            packed = self.pack(rows)
            x = self.embed(packed)
            products, exact = int8_kernels.calibrate(encoder, x, packed)
            found = Calibration(products, short_texts_tolerate_int8=True)
            in_int8 = with_parts(self.encoder, {})
            for number, layer in enumerate(encoder.layers):
                in_int8.layers[number] = fast_layer(layer, replace(kernels, quantizations=found.of_layer(number)))
            *_, (x, _) = in_int8.through_layers(x, packed, self.attend)
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
        layers, width = recipe.fit_to(self.config, self.encoder.pooler is not None)
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
                pooled = self.forward(self.pack(texts, starts, read, pooling.first_only), pooling, layers)
            except torch.OutOfMemoryError:
                if len(rows) == 1:
                    raise
                tokens = size // 2
                continue
            several = [vectors[: len(rows)] for vectors in pooled]
            yield rows, COMBINATIONS[recipe.combine](torch.stack(several)) if len(several) > 1 else several[0]
            order = order[len(rows) :]

    def pack(
        self,
        rows: Sequence[Sequence[int]],
        second: Sequence[int] | None = None,
        places: Sequence[int] = (),
        first_only: bool = False,
    ) -> Packed:
        """Return texts packed for this encoder; see packing.pack."""
        return pack(rows, self.device, second, self.padding_id, places, self.config.first_position, first_only)

    def embed(self, packed: Packed) -> Tensor:
        """(T) -> (T,D)."""
        return cast(Tensor, self.encoder.embeddings(packed.ids, packed.segments, positions=packed.positions))

    def forward(self, packed: Packed, pooling: Pooling, layers: Sequence[int]) -> list[Tensor]:
        """Return the pooled vectors after each of the layers, (B,D) each; nothing above the last of them runs."""
        encoder = self.fallback if self.fallback and self.falls_back(pooling, packed.longest) else self.encoder
        x = self.embed(packed)  # (T) -> (T,D)
        pooled = {0: self.pool(x, packed, pooling)} if 0 in layers else {}
        states = encoder.through_layers(x, packed, self.attend, depth=max(layers))
        for number, (x, _) in enumerate(states, start=1):  # (T,D), or in the last layer (B,D)
            if number in layers:
                pooled[number] = self.pool(x, packed, pooling)
        return [pooled[number] for number in layers]

    def falls_back(self, pooling: Pooling, tokens: int) -> bool:
        """Return True for a text so short that int8 would change the direction of its vector."""
        return self.fallback is not None and not pooling.first_only and tokens <= int8_kernels.SHORT

    def pool(self, x: Tensor, packed: Packed, pooling: Pooling) -> Tensor:
        """(T,D) -> (B,D); if the layer computed only first tokens, x is (B,D) already."""
        if pooling.reduction and self.device.type != "cpu":  # one launch; unsafe: the lengths are not checked
            return torch.segment_reduce(x, pooling.reduction, lengths=packed.bounds.diff(), unsafe=True)
        if not pooling.first_only:
            return torch.cat([pooling.pool(group, None) for group in packed.by_group(x)])  # (T,D) -> (B,S,D) each
        first = packed.first_tokens(x) if len(x) == len(packed.ids) else x
        return self.encoder.pooler(first[:, None]) if pooling.through_pooler and self.encoder.pooler else first


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
