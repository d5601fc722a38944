"""The forward pass of model.py without padding and with the matrix products at hardware speed; inference only.

The encoder itself computes it (Encoder.through_layers), with other parts. One more letter:

    T  tokens of all texts in a packed batch

In place of padded batches (B, S, D) the tokens of all texts follow one another, (T, D): to a linear layer or a
LayerNorm every token is a row by itself. Only attention must know where a text begins and ends, kernels/packing.py.
If only [CLS] of the last layer is needed, that layer computes keys and values of every token, and everything else only
for the first token of each text. What is rounded in bfloat16, float16 and int8: see vectors/fast_encoder.py.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minibert.kernels.attention import by_heads, choose_attention
from minibert.kernels.int8 import Int8Linear, can_multiply
from minibert.kernels.matmul import Workspace, choose_linear, reduced_float32, release_memory
from minibert.kernels.packing import TOKEN_BUCKET, PackedTexts, check_rows, last_bucket, pack, padding_texts
from minibert.kernels.parts import with_parts
from minibert.model import Encoder
from minibert.utils.device import PendingCopy, batch_tokens_on, check_device, choose_dtype
from minibert.utils.printing import progress_bar
from minibert.vectors import calibration
from minibert.vectors.calibration import Calibration
from minibert.vectors.fast_encoder import Kernels, fast_embeddings, fast_layer, norm_of
from minibert.vectors.pooling import COMBINATIONS, POOLINGS, Pooling
from minibert.vectors.recipe import CLS, Recipe

CPU_TOKENS = 1024  # in a batch on a CPU: the feed-forward values of more do not fit its caches


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
        encoder: Encoder,
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
        self.padding_id = None if self.config.architecture.padding_has_position else self.config.pad_token_id
        self.encoder = with_parts(encoder, {})
        self.put_ends(encoder, kernels)
        measured = Calibration({}, short_texts_tolerate_int8=True)
        if int8:
            measured = self.calibrate(encoder, kernels, samples)
            self.kernels = f"{measured}, {Int8Linear.description}; the others: {self.kernels}"
        # For means of short texts that do not tolerate int8.
        self.fallback = None if measured.short_texts_tolerate_int8 else with_parts(self.encoder, {})
        for number, layer in enumerate(encoder.layers):
            self.encoder.layers[number] = fast_layer(layer, replace(kernels, quantizations=measured.of_layer(number)))
            if self.fallback is not None:
                self.fallback.layers[number] = fast_layer(layer, kernels)
            if not keep_encoder:
                layer.to("meta")  # a device without memory
                release_memory()  # else each layer needs more of it: what was freed does not fit its new form

    def put_ends(self, encoder: Encoder, kernels: Kernels) -> None:
        """Put in the fast versions of what comes before and after the layers."""
        self.encoder.embeddings = fast_embeddings(encoder.embeddings, kernels)
        if encoder.pooler is not None:
            self.encoder.pooler = with_parts(encoder.pooler, {})
            self.encoder.pooler.set_submodule("dense", kernels.in_float32(encoder.pooler.dense))
        for name, module in encoder.named_children():
            if name not in ("embeddings", "layers", "pooler"):
                self.encoder.set_submodule(name, norm_of(module, self.device))

    @torch.inference_mode()
    def calibrate(self, encoder: Encoder, kernels: Kernels, samples: Sequence[Sequence[int]] | None) -> Calibration:
        """Return which products tolerate int8, by the samples or from the cache. Raises ValueError for no samples."""
        if not samples:
            raise ValueError("precision 'int8' is calibrated on texts: pass samples=, the ids of a few dozen of them")
        check_rows(self.config, samples)
        first = calibration.FIRST_TOKENS
        short = [[*ids[:first], ids[-1]] for ids in samples if len(ids) > first]
        rows = sorted([*samples, *short], key=len, reverse=True)
        path = calibration.cache_file(encoder, rows)
        measured = calibration.read_calibration(path, encoder)
        if measured is None:
            packed = self.pack(rows)
            x = self.embed(packed)
            products, exact = calibration.calibrate(encoder, x, packed)
            measured = Calibration(products, short_texts_tolerate_int8=True)
            in_int8 = with_parts(self.encoder, {})
            for number, layer in enumerate(encoder.layers):
                in_int8.layers[number] = fast_layer(layer, replace(kernels, quantizations=measured.of_layer(number)))
            *_, (x, _) = in_int8.through_layers(x, packed, self.attend)
            measured = Calibration(products, calibration.means_agree(exact, x, packed))
            calibration.write_calibration(path, measured)
        return measured

    @torch.inference_mode()
    def vectors(
        self,
        ids: Sequence[Sequence[int]],
        recipe: Recipe = CLS,
        *,
        second: Sequence[int] | None = None,
        places: Sequence[int] | None = None,
        progress: bool = False,
    ) -> NDArray[np.float32]:
        """Return one vector for each row of token ids, (N, width), in the order of the rows.

        ids: [CLS] to [SEP] of one text or pair each, without padding. second: where in each row the second text of a
        pair begins, which has segment 1 to the end of the row; None: no row is a pair. places: the token of each row
        that pooling "cls" reads in place of the first. Only the recipe's pooling, layers, combine and batch_tokens are
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
        """Yield row numbers and their vectors on the device, the longest first, so that memory peaks at once."""
        pooling = POOLINGS[recipe.pooling]
        on_cpu = self.device.type == "cpu"
        tokens = recipe.batch_tokens or batch_tokens_on(self.device)
        tokens = min(tokens, CPU_TOKENS) if on_cpu else tokens
        bucket_at_the_end = last_bucket(int(lengths.sum()), tokens)
        order = np.argsort(-lengths, kind="stable")
        while len(order):
            fitting = np.searchsorted(lengths[order[:tokens]].cumsum(), tokens, side="right")
            rows = order[: max(1, int(fitting))]
            if self.falls_back(pooling, int(lengths[rows[-1]])):  # a batch has texts of one kind only
                longer = int((lengths[rows] > calibration.SHORT).sum())
                rows = rows[: longer or len(rows)]
            texts = [ids[row] for row in rows]
            size = int(lengths[rows].sum())
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
    ) -> PackedTexts:
        """Return texts packed for this encoder; see packing.pack."""
        return pack(
            rows, self.device, second, self.padding_id, places, self.config.architecture.first_position, first_only
        )

    def embed(self, packed: PackedTexts) -> Tensor:
        """(T) -> (T,D)."""
        return cast(Tensor, self.encoder.embeddings(packed.ids, packed.segments, positions=packed.positions))

    def forward(self, packed: PackedTexts, pooling: Pooling, layers: Sequence[int]) -> list[Tensor]:
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
        return self.fallback is not None and not pooling.first_only and tokens <= calibration.SHORT

    def pool(self, x: Tensor, packed: PackedTexts, pooling: Pooling) -> Tensor:
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

    torch itself has this fault. One thread needs no others, and spawned processes, such as joblib's and scikit-learn's,
    start their own.
    """
    global computed_in
    if computed_in not in (None, os.getpid()) and torch.get_num_threads() > 1:
        raise RuntimeError(
            "this process was forked from one that had computed vectors, and would wait forever for threads that a "
            "fork does not copy; start it with multiprocessing's 'spawn', or call torch.set_num_threads(1) in it first"
        )
    computed_in = os.getpid()
