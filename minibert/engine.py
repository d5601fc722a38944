"""The same forward pass with the padding taken out and the matrix products at hardware speed; inference only.

Beside model.py, step for step: the same order, the same words. One letter more:

    T  tokens of all texts in a packed batch

A padded batch is (B, S, D), and most of its rows may be padding. Here the tokens of all texts stand one after
the other, (T, D): to a linear layer or a LayerNorm every token is a row by itself, so nothing else changes. Only
attention must know where a text begins and ends. Texts are sorted by length, so that those of equal length are
neighbours and form an exact group (B, H, S, W) that needs no mask.

Where only [CLS] of the last layer is wanted, that layer computes keys and values of every token, and everything
else for the first token of each text alone.

In bfloat16 and float16 only what enters a matrix product is rounded: the residual stream, LayerNorm and softmax
stay in float32.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from tqdm import tqdm

from minibert import model
from minibert.checkpoint import check_device
from minibert.config import Config
from minibert.matmul import Linear, choose_linear, has_bfloat16

POOLINGS = ("cls", "mean", "max", "pooler")
COMBINATIONS = ("concat", "sum", "mean")
PRECISIONS = ("float32", "bfloat16", "float16", "auto")
# More tokens at once gain nothing on a CPU, and their feed-forward values no longer fit its caches.
CPU_TOKENS = 1024


@dataclass
class Packed:
    """A batch without padding: texts of non-increasing or non-decreasing length, one after the other."""

    ids: Tensor  # (T)
    positions: Tensor  # (T), 0 at each [CLS]
    bounds: Tensor  # (B + 1) int32: text b is the rows bounds[b] to bounds[b + 1]
    longest: int
    groups: list[tuple[int, int]]  # (texts, tokens of each): neighbours of equal length

    @property
    def starts(self) -> Tensor:
        """(B): the row of each [CLS]."""
        return self.bounds[:-1]

    def by_group(self, x: Tensor) -> list[Tensor]:
        """(T, ...) as one (B, S, ...) for each group; of (B, ...), one row for each text, as (B, 1, ...)."""
        sizes = [texts * S if len(x) == len(self.ids) else texts for texts, S in self.groups]
        return [part.unflatten(0, (texts, -1)) for part, (texts, _) in zip(x.split(sizes), self.groups, strict=True)]


def pack(rows: Sequence[Sequence[int]], device: torch.device) -> Packed:
    """Put texts, sorted by their number of tokens, one after the other."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))  # (B)
    bounds = np.concatenate(([0], lengths.cumsum()))  # (B + 1)
    ids = np.fromiter(chain.from_iterable(rows), np.int64, bounds[-1])  # (T)
    positions = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)  # (T)
    changes = np.flatnonzero(np.diff(lengths, prepend=0, append=0))  # the texts where another length begins
    groups = [(int(end - start), int(lengths[start])) for start, end in zip(changes, changes[1:], strict=False)]

    def move(values: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(values)
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)

    return Packed(move(ids), move(positions), move(bounds.astype(np.int32)), int(lengths.max()), groups)


class Norm:
    """LayerNorm in float32, with the weights of the encoder's own."""

    def __init__(self, source: torch.nn.LayerNorm, device: torch.device) -> None:
        self.weight, self.bias, self.eps = float32(source.weight, device), float32(source.bias, device), source.eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


def float32(weight: Tensor, device: torch.device) -> Tensor:
    """The weight in float32 on the device; the same memory where it is there already."""
    return weight.detach().to(device, torch.float32)


class Embeddings:
    """x = LayerNorm(token + segment + position), every text in segment 0. See model.Embeddings."""

    def __init__(self, source: model.Embeddings, device: torch.device) -> None:
        self.token = float32(source.token.weight, device)
        self.position = float32(source.position.weight, device)
        if source.segment is not None:
            self.position = self.position + float32(source.segment.weight[0], device)
        self.norm = Norm(source.norm, device)

    def __call__(self, packed: Packed) -> Tensor:
        x = F.embedding(packed.ids, self.token)  # (T) -> (T,D)
        return self.norm(x.add_(F.embedding(packed.positions, self.position)))


Attend = Callable[[Tensor, Tensor, Tensor, Packed], Tensor]


def grouped_attention(query: Tensor, key: Tensor, value: Tensor, packed: Packed) -> Tensor:
    """Attention within each text, one group of equal length after the other: (T,H,W) -> (T,H,W).

    query may hold the first token of each text only, (B,H,W). On a CPU the products stay in float32, which is
    quicker there than bfloat16 for texts of ordinary length.
    """
    dtype = query.dtype
    if query.device.type == "cpu":
        query, key, value = query.float(), key.float(), value.float()
    contexts = []
    for group in zip(*(packed.by_group(x) for x in (query, key, value)), strict=True):
        q, k, v = (x.transpose(1, 2) for x in group)  # (B,S,H,W) -> (B,H,S,W)
        context = F.scaled_dot_product_attention(q, k, v)  # no mask: nothing here is padding
        contexts.append(context.transpose(1, 2).flatten(0, 1))  # (B,H,S,W) -> (B,S,H,W) -> (B*S,H,W)
    return torch.cat(contexts).to(dtype)


def varlen_attention(query: Tensor, key: Tensor, value: Tensor, packed: Packed) -> Tensor:
    """The same in one kernel that is told where texts begin and end; CUDA in bfloat16 or float16."""
    if len(query) == len(key):
        asked, most = packed.bounds, packed.longest
    else:
        asked, most = torch.arange(len(query) + 1, dtype=torch.int32, device=query.device), 1
    context: Tensor = varlen_attn(query, key, value, asked, packed.bounds, most, packed.longest)
    return context


class SelfAttention:
    """Multi-head attention with its residual: Concat(heads) Wᴼ + x. See model.SelfAttention."""

    def __init__(self, source: model.SelfAttention, route: Route) -> None:
        self.head_size, self.attend, self.dtype = source.head_size, route.attend, route.dtype
        self.query = route.linear([source.query])
        self.key_value = route.linear([source.key, source.value])
        self.output = route.linear([source.output])

    def __call__(self, x: Tensor, asking: Tensor, packed: Packed) -> Tensor:
        """asking: the rows of x whose result is wanted, all (T,D) or the first token of each text (B,D)."""
        key, value = self.split_heads(self.key_value(x.to(self.dtype))).chunk(2, dim=1)
        query = self.split_heads(self.query(asking.to(self.dtype)))
        context = self.attend(query, key, value, packed)  # (T,H,W)
        return self.output(context.flatten(1), residual=asking)  # (T,H,W) -> (T,D)

    def split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_size))  # (T,D) -> (T,H,W)


class FeedForward:
    """FFN(x) + x = activation(x W₁ + b₁) W₂ + b₂ + x. See model.FeedForward."""

    def __init__(self, source: model.FeedForward, route: Route) -> None:
        self.dtype = route.dtype
        self.expand = route.linear([source.expand], route.activation)
        self.contract = route.linear([source.contract])

    def __call__(self, x: Tensor) -> Tensor:
        return self.contract(self.expand(x.to(self.dtype)), residual=x)  # (T,D) -> (T,F) -> (T,D)


class Layer:
    """x = LayerNorm(x + Attention(x)); x = LayerNorm(x + FFN(x)). See model.Layer."""

    def __init__(self, source: model.Layer, route: Route) -> None:
        self.attention = SelfAttention(source.attention, route)
        self.attention_norm = Norm(source.attention_norm, route.device)
        self.feed_forward = FeedForward(source.feed_forward, route)
        self.feed_forward_norm = Norm(source.feed_forward_norm, route.device)

    def __call__(self, x: Tensor, packed: Packed, first_only: bool = False) -> Tensor:
        asking = x[packed.starts] if first_only else x
        x = self.attention_norm(self.attention(x, asking, packed))
        return self.feed_forward_norm(self.feed_forward(x))


@dataclass
class Route:
    """How this machine computes: decided once, said in words by `Engine.route`."""

    device: torch.device
    dtype: torch.dtype  # of what enters a matrix product
    way: type[Linear]
    attend: Attend
    activation: str

    def linear(self, layers: Sequence[torch.nn.Linear], activation: str | None = None) -> Linear:
        return self.way(layers, self.dtype, self.device, activation)

    def __str__(self) -> str:
        attention = "one kernel for all lengths" if self.attend is varlen_attention else "groups of equal length"
        precision = str(self.dtype).removeprefix("torch.")
        return f"{precision} on {self.device}; products: {self.way.words}; attention: {attention}"


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """What enters the matrix products. Raises ValueError; warns where bfloat16 would be slow and takes float32.

    "auto" takes bfloat16 where the hardware multiplies it: the vectors keep a cosine above 0.9999 to float32.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} is not known; choose from {', '.join(PRECISIONS)}")
    if precision == "float16" and device.type != "cuda":
        raise ValueError(f"precision 'float16' needs a CUDA device, not {device}; use 'float32', 'bfloat16' or 'auto'")
    if precision == "auto" and not has_bfloat16(device):
        precision = "float16" if device.type == "cuda" else "float32"
    if precision == "bfloat16" and not has_bfloat16(device):
        warnings.warn(f"{device} does not multiply bfloat16 in hardware (AVX512_BF16, AMX, CUDA capability 8); "
                      "computing in float32", stacklevel=3)  # fmt: skip
        precision = "float32"
    return {"float32": torch.float32, "float16": torch.float16}.get(precision, torch.bfloat16)


def choose_attention(dtype: torch.dtype, device: torch.device) -> Attend:
    """varlen_attention where it runs here and agrees with grouped_attention; else that."""
    if device.type != "cuda" or dtype == torch.float32:
        return grouped_attention
    packed = pack([[0] * 19, [0] * 7, [0] * 7], device)
    random = torch.Generator(device).manual_seed(0)
    q, k, v = torch.randn(3, 33, 2, 64, generator=random, device=device).to(dtype)
    try:
        both = [attend(q, k, v, packed) for attend in (varlen_attention, grouped_attention)]
    except (RuntimeError, TypeError):  # no such kernel for this GPU, or its arguments changed
        return grouped_attention
    return varlen_attention if torch.allclose(*both, atol=2e-2, rtol=2e-2) else grouped_attention


def check_request(
    config: Config, pooling: str, layers: Sequence[int], combine: str, *, has_pooler: bool
) -> tuple[int, ...]:
    """The depths that `layers` names, 0 for the embeddings to L for the last layer, or ValueError.

    Negative numbers count from the end, so that -1 is the last layer and -L - 1 the embeddings.
    """
    if pooling not in POOLINGS:
        raise ValueError(f"pooling {pooling!r} is not known; choose from {', '.join(POOLINGS)}")
    if combine not in COMBINATIONS:
        raise ValueError(f"combine {combine!r} is not known; choose from {', '.join(COMBINATIONS)}")
    L = config.num_hidden_layers
    if not layers:
        raise ValueError(f"layers is empty; name at least one from {-L - 1} to {L}")
    for layer in layers:
        if not -L - 1 <= layer <= L:
            raise ValueError(f"layer {layer} does not exist; the encoder has {L} layers: choose from {-L - 1} to {L}")
    depths = tuple(layer % (L + 1) for layer in layers)
    if pooling == "pooler" and not has_pooler:
        raise ValueError("pooling 'pooler' needs a pooler, and this checkpoint has none; use 'cls', 'mean' or 'max'")
    if pooling == "pooler" and depths != (L,):
        raise ValueError(f"pooling 'pooler' reads the last layer; layers must be (-1,), not {tuple(layers)}")
    return depths


def combine_layers(pooled: Sequence[Tensor], combine: str) -> Tensor:
    """One vector of each text from those of several layers, each (B, D): (B, D * layers) or (B, D)."""
    if combine == "concat":
        return torch.cat(tuple(pooled), dim=1)
    stacked = torch.stack(tuple(pooled))
    return stacked.sum(0) if combine == "sum" else stacked.mean(0)


def check_rows(config: Config, ids: Sequence[Sequence[int]]) -> np.ndarray:
    """The number of tokens of each text, (N), or ValueError with the first text that the encoder cannot take."""
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    wrong = np.flatnonzero((lengths < 1) | (lengths > config.max_position_embeddings))
    if len(wrong):
        raise ValueError(f"text {wrong[0]} has {lengths[wrong[0]]} tokens; the checkpoint takes 1 to "
                         f"{config.max_position_embeddings}")  # fmt: skip
    flat = np.fromiter(chain.from_iterable(ids), np.int64, lengths.sum())
    outside = np.flatnonzero((flat < 0) | (flat >= config.vocab_size))
    if len(outside):
        text = np.searchsorted(lengths.cumsum(), outside[0], side="right")
        raise ValueError(f"text {text} has the id {flat[outside[0]]}; the checkpoint has vocab_size "
                         f"{config.vocab_size}: 0 to {config.vocab_size - 1}")  # fmt: skip
    return lengths


def texts_that_fit(lengths: np.ndarray, tokens: int) -> int:
    """How many of the first texts hold at most `tokens` tokens together; at least one."""
    return max(1, int(np.searchsorted(lengths[: tokens + 1].cumsum(), tokens, side="right")))


class Engine:
    """An encoder made ready for many texts; `vectors` computes, `route` says in words how.

    precision: "float32", "bfloat16", "float16" (CUDA only) or "auto". device: where to compute; the encoder's own
    by default. The encoder must be in eval mode and is not changed. Its linear weights are copied: after further
    training, build a new Engine.
    """

    def __init__(
        self, encoder: model.Encoder, precision: str = "float32", device: str | torch.device | None = None
    ) -> None:
        if encoder.training:
            raise ValueError("the encoder is in training mode, with dropout; call encoder.eval() first")
        device = torch.device(device) if device is not None else encoder.embeddings.token.weight.device
        check_device(device)
        dtype = choose_dtype(precision, device)
        way, attend = choose_linear(dtype, device), choose_attention(dtype, device)
        route = Route(device, dtype, way, attend, encoder.config.hidden_act)
        self.config, self.device, self.dtype, self.route = encoder.config, device, dtype, str(route)
        self.embeddings = Embeddings(encoder.embeddings, device)
        self.layers = [Layer(source, route) for source in encoder.layers]
        self.pooler = None if encoder.pooler is None else route.linear([encoder.pooler.dense])

    @torch.inference_mode()
    def vectors(
        self,
        ids: Sequence[Sequence[int]],
        *,
        pooling: str = "cls",
        layers: Sequence[int] = (-1,),
        combine: str = "concat",
        batch_tokens: int = 4096,
        progress: bool = False,
    ) -> np.ndarray:
        """One float32 vector for each text, (N, D) or (N, D * layers), in the order of ids.

        ids: the token ids of each text with [CLS] and [SEP], without padding. pooling: the vector of [CLS], the mean
        or the maximum over all tokens, or the encoder's pooler. layers: 0 the embeddings, 1 to L or -1 backwards;
        each is pooled, then they are combined by concat, sum or mean. batch_tokens: at most so many tokens at a time;
        on a GPU that runs out of memory, half as many. Raises ValueError for a request or ids that do not fit.
        """
        depths = check_request(self.config, pooling, layers, combine, has_pooler=self.pooler is not None)
        if batch_tokens < 1:
            raise ValueError(f"batch_tokens is {batch_tokens}; it must be at least 1")
        lengths = check_rows(self.config, ids)
        order = np.argsort(-lengths, kind="stable")  # longest first: memory runs out in the first batch or never
        width = self.config.hidden_size * (len(depths) if combine == "concat" else 1)
        result = np.empty((len(ids), width), np.float32)
        arriving: Arrival | None = None
        with tqdm(total=int(lengths.sum()), unit=" tokens", disable=None if progress else True) as bar:
            for texts, pooled in self.batches(ids, order, lengths, batch_tokens, pooling, depths):
                previous, arriving = arriving, Arrival(texts, combine_layers(pooled, combine))
                if previous is not None:  # the device computes this batch while the one before is put in its place
                    previous.write(result)
                bar.update(int(lengths[texts].sum()))
        if arriving is not None:
            arriving.write(result)
        return result

    def batches(
        self, ids: Sequence[Sequence[int]], order: np.ndarray, lengths: np.ndarray,
        batch_tokens: int, pooling: str, depths: Sequence[int],
    ) -> Iterator[tuple[np.ndarray, list[Tensor]]]:  # fmt: skip
        """The numbers of the texts of each batch and their pooled vectors; after lack of memory, smaller batches."""
        budget = min(batch_tokens, CPU_TOKENS) if self.device.type == "cpu" else batch_tokens
        while len(order):
            texts = order[: texts_that_fit(lengths[order[:budget]], budget)]
            try:
                pooled = self.forward(pack([ids[text] for text in texts], self.device), pooling, depths)
            except torch.OutOfMemoryError:
                if len(texts) == 1:
                    raise
                budget = int(lengths[texts].sum()) // 2
                continue
            yield texts, pooled
            order = order[len(texts) :]

    def forward(self, packed: Packed, pooling: str, depths: Sequence[int]) -> list[Tensor]:
        """The pooled vectors, (B, D) each, after the layers that depths names."""
        x = self.embeddings(packed)  # (T) -> (T,D)
        pooled = {0: self.pool(x, packed, pooling)} if 0 in depths else {}
        deepest = max(depths)
        for depth, layer in enumerate(self.layers[:deepest], start=1):
            x = layer(x, packed, first_only=depth == deepest and pooling in ("cls", "pooler"))  # (T,D) or (B,D)
            if depth in depths:
                pooled[depth] = self.pool(x, packed, pooling)
        return [pooled[depth] for depth in depths]

    def pool(self, x: Tensor, packed: Packed, pooling: str) -> Tensor:
        """(T, D) -> (B, D); where the layer computed first tokens only, x is (B, D) already."""
        if pooling in ("mean", "max"):
            groups = packed.by_group(x)  # (T,D) -> (B,S,D) each
            return torch.cat([group.mean(1) if pooling == "mean" else group.amax(1) for group in groups])
        first = x if len(x) == len(packed.starts) else x[packed.starts]
        if pooling == "pooler" and self.pooler is not None:
            return torch.tanh(self.pooler(first.to(self.dtype)).float())
        return first


class Arrival:
    """Vectors on their way from the device to their rows of the result, without waiting for the device."""

    def __init__(self, texts: np.ndarray, vectors: Tensor) -> None:
        self.texts = texts
        self.vectors = vectors.to("cpu", non_blocking=True)
        self.copied = torch.cuda.current_stream(vectors.device).record_event() if vectors.is_cuda else None

    def write(self, result: np.ndarray) -> None:
        if self.copied is not None:
            self.copied.synchronize()
        result[self.texts] = self.vectors.numpy()
