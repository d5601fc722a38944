"""The training step without padding: the same loss and gradients, about twice as fast.

In a random batch half of all positions are padding. Here the tokens of a batch stand one after the other, (T, D), so
that linear layers, norms and dropout see no padding. Only attention gets rows again, (B, S, D), with a mask, in groups
of similar length. In the last layer everything except keys and values is computed only for the tokens that the task
head reads: the first of each text, or those that have a label. All of it is exact: what is left out never reaches the
loss.

Everything is computed with the model's own modules, in the order of model.py. More letters:

    T  tokens of all texts in the batch        N  tokens that the task head reads

Why not the groups of equal length of kernels/packing.py: a training batch of 32 texts has about as many lengths as
texts, dropout must be applied, and the gradient needs the modules themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from minibert.heads import Head
from minibert.losses import IGNORED
from minibert.model import Embeddings, Encoder, EncoderOutput, Layer, SelfAttention
from minibert.train.batches import Batch
from minibert.utils.device import move, without_cudnn

GROUP_ROWS = 16  # rows of similar length in a group of attention on a CPU; on a GPU one group has them all
# On a CPU oneDNN, which multiplies bfloat16, caches megabytes of kernels for each number of rows, and no two batches
# have the same T. Rows of zeros round it up to a number with few significant binary digits, unless T is small.
PADDED_FROM, SIGNIFICANT_DIGITS = 256, 5
CAST_ONE_BY_ONE = ("cpu", "mps")  # devices with_cast_weights leaves to autocast
PACKED_STEP = "packed_step"  # the name of layer_step as a method of a layer whose weights are sharded

# A function that computes the output of a model for a batch, including its loss.
OutputFunction = Callable[[Head, Batch], Any]


@dataclass(frozen=True)
class Group:
    """Rows of similar length, padded to the longest of them."""

    rows: int
    width: int
    cells: Tensor | None = None  # (n): row · width + column of each token; None: the tokens fill the rows
    mask: Tensor | None = None  # (rows,1,1,width), True for a token; None: no padding

    @classmethod
    def of_lengths(cls, lengths: Tensor) -> Group:
        """Rows of these numbers of tokens, (rows)."""
        width = max(1, int(lengths.max()))
        real = torch.arange(width) < lengths[:, None]
        if bool(real.all()):
            return cls(len(lengths), width)
        return cls(len(lengths), width, real.flatten().nonzero().squeeze(1), real[:, None, None])

    @property
    def tokens(self) -> int:
        """How many tokens the rows have."""
        return self.rows * self.width if self.cells is None else len(self.cells)

    def pad(self, x: Tensor) -> Tensor:
        """(n, ...) -> (rows, width, ...), zeros for padding."""
        shape = self.rows * self.width, *x.shape[1:]
        x = x if self.cells is None else x.new_zeros(shape).index_copy(0, self.cells, x)
        return x.view(self.rows, self.width, *x.shape[1:])

    def unpad(self, x: Tensor) -> Tensor:
        """(rows, width, ...) -> (n, ...)."""
        return x.flatten(0, 1) if self.cells is None else x.flatten(0, 1).index_select(0, self.cells)


Queries = tuple[Tensor, list[Group]] | None  # (N): which of the T tokens are read, and their groups; None: all


@dataclass(frozen=True)
class PackedBatch:
    """The tokens of a batch without padding, group by group, rows of similar length in the same group.

    It is built on the CPU, where its parts are known without waiting for a GPU, and then moved at once.
    """

    ids: Tensor  # (T), and so are positions and segments
    positions: Tensor
    segments: Tensor
    groups: list[Group]
    queries: Queries
    order: Tensor  # (N): which of the tokens that are read is the first of the batch, the second, ...

    @classmethod
    def of(
        cls, embeddings: Embeddings, batch: Batch, wanted: Tensor | None = None, keep_padding: bool = False
    ) -> PackedBatch:
        """Pack a batch of the CPU for a model with these embeddings, on the CPU.

        wanted: True for the tokens that are read, (B,S); None: all. keep_padding: treat padding as tokens that no other
        token attends to.
        """
        real, ids = batch.attention_mask.bool(), batch.input_ids
        B, S = real.shape
        index = torch.arange(B * S)  # (T): row · S + column of each token
        if keep_padding:
            groups = [Group(B, S, mask=None if bool(real.all()) else real[:, None, None])]
        else:
            lengths = real.sum(dim=1)
            longest_first = lengths.argsort(descending=True, stable=True)
            index = index.view(B, S)[longest_first][real[longest_first]]
            size = GROUP_ROWS if embeddings.token.weight.is_cpu else B
            groups = [Group.of_lengths(part) for part in torch.split(lengths[longest_first], size)]
        positions = embeddings.positions(ids).expand_as(ids)
        rows = {"ids": ids, "positions": positions, "segments": batch.token_type_ids}
        tokens = {name: x.flatten().index_select(0, index) for name, x in rows.items()}
        if wanted is None:
            return cls(**tokens, groups=groups, queries=None, order=index.argsort())
        chosen = wanted.flatten().index_select(0, index)  # (T)
        query_groups = [Group.of_lengths(group.sum(dim=1)) for group in pad_groups(chosen, groups)]
        queries = chosen.nonzero().squeeze(1)
        order = index.index_select(0, queries).argsort()
        return cls(**tokens, groups=groups, queries=(queries, query_groups), order=order)


def pad_groups(x: Tensor, groups: Sequence[Group]) -> list[Tensor]:
    """(T, ...) -> (rows, width, ...) for each group; rows of x after the T tokens are left out."""
    sizes = [group.tokens for group in groups]
    # One group, as on a GPU, is not split: the gradient of a split is a copy.
    parts = [x] if sizes == [len(x)] else torch.split(x[: sum(sizes)], sizes)
    return [group.pad(part) for group, part in zip(groups, parts, strict=True)]


def packed_output(model: Head, batch: Batch) -> Any:
    """The output of the model's task head with its loss.

    Its logits are those of the tokens that were needed: (B, K) of texts, (1, N, K) of labelled tokens.
    """
    encoded, labels = packed_states(model, batch)
    return model.read(encoded, **labels)


def packed_states(model: Head, batch: Batch) -> tuple[EncoderOutput, dict[str, Any]]:
    """What the task head reads of a batch of the CPU, and the labels that belong to it; in the order of the batch."""
    labels, first, encoder = dict[str, Any](batch.labels), first_tokens(batch), model.encoder
    read, wanted, places = batch.attention_mask.bool(), None, []  # wanted: None for all tokens
    if "labelled" in model.reads:
        read = labels["labels"] != IGNORED
        wanted = read | first if "first" in model.reads else read
        places = [x[wanted].nonzero().squeeze(1) for x in (read, first)]  # among the tokens that are wanted
    elif "first" in model.reads:
        wanted = first
    if "labelled" in model.reads or "real" in model.reads:
        labels["labels"] = labels["labels"][read][None]  # (1,N)
    packed = PackedBatch.of(encoder.embeddings, batch, wanted, keep_padding="all" in model.reads)
    packed, labels, places = move((packed, labels, places), model.device)
    labels |= {"choices": batch.choices} if batch.choices else {}
    states = encode(encoder, packed)
    if "all" in model.reads:
        return EncoderOutput(states.view(*first.shape, -1)), labels  # (B,S,D)
    if "first" not in model.reads:
        return EncoderOutput(states[None]), labels  # (1,N,D)
    if not places:
        return EncoderOutput(states[:, None], pooled(model, states[:, None])), labels  # (B,1,D)
    states, firsts = (states.index_select(0, place) for place in places)
    return EncoderOutput(states[None], pooled(model, firsts[:, None])), labels


def first_tokens(batch: Batch) -> Tensor:
    """(B,S), True for the first token of each text."""
    return torch.arange(batch.input_ids.shape[1]).expand_as(batch.input_ids) == 0


def pooled(model: Head, first: Tensor) -> Tensor | None:
    """The pooler's output for first tokens (B,1,D), if the model has a pooler."""
    pooler = model.encoder.pooler
    return None if pooler is None else pooler(first)


# ---------------------------------------------------------------------------------------------------------------
# The forward pass, as in model.py


def encode(encoder: Encoder, packed: PackedBatch) -> Tensor:
    """The last states of the tokens that are read, (N,D), in the order of the batch."""
    x = pad_to_bucket(embed(encoder.embeddings, packed))  # (T) -> (T,D)
    steps = [step_of(layer) for layer in encoder.layers]
    *lower, last = encoder.config.shared_layers
    for number in lower:
        x = steps[number](x, packed.groups, None)  # (T,D) -> (T,D)
    x = steps[last](x, packed.groups, packed.queries)  # (T,D) -> (N,D)
    return x.index_select(0, packed.order)


def pad_to_bucket(x: Tensor) -> Tensor:
    """On a CPU rows of zeros after x, (T,D) -> (T + few,D): from T to 2 T there are only 16 numbers of rows."""
    if len(x) < PADDED_FROM or not x.is_cpu:
        return x
    bucket = 2 ** max(0, len(x).bit_length() - SIGNIFICANT_DIGITS)
    return F.pad(x, (0, 0, 0, -len(x) % bucket))


def embed(embeddings: Embeddings, packed: PackedBatch) -> Tensor:
    """x = LayerNorm(token + segment + position + task 0). See model.Embeddings."""
    x: Tensor = embeddings.token(packed.ids)  # (T) -> (T,D)
    if embeddings.segment is not None:
        x = x + embeddings.segment(packed.segments)
    x = x + embeddings.position(packed.positions)
    if embeddings.task is not None:
        x = x + embeddings.task.weight[0]
    x = embeddings.dropout(embeddings.norm(x))
    return x if embeddings.embedding_projection is None else embeddings.embedding_projection(x)


def step_of(layer: nn.Module) -> Callable[..., Tensor]:
    """layer_step of this layer; if it is sharded, its own method, which first fetches the weights (distributed.py)."""
    return getattr(layer, PACKED_STEP, None) or with_cast_weights(layer)


def with_cast_weights(layer: nn.Module) -> Callable[..., Tensor]:
    """layer_step of this layer; on a GPU under autocast with the present weights of its linear layers, cast together.

    Autocast casts each weight, and each gradient, by a kernel of its own; on a GPU the launches take longer than the
    work.
    """
    device = next(layer.parameters()).device
    if device.type in CAST_ONE_BY_ONE or not torch.is_autocast_enabled(device.type):
        return partial(layer_step, cast(Layer, layer))
    linear = [name for name, module in layer.named_modules() if isinstance(module, nn.Linear)]
    weights = {name: weight for name, weight in layer.named_parameters() if name.rpartition(".")[0] in linear}
    # torch leaves Function.apply untyped.
    found = CastTogether.apply(torch.get_autocast_dtype(device.type), *weights.values())  # type: ignore[no-untyped-call]
    named = {f"model.{name}": weight for name, weight in zip(weights, found, strict=True)}
    return lambda *given: cast(Tensor, functional_call(FunctionModule(layer), named, (layer_step, *given)))


class CastTogether(torch.autograd.Function):
    """Tensors in another dtype by one kernel, and their gradients back by another."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        """To this dtype."""
        ctx.dtype = tensors[0].dtype
        return cast_together(tensors, dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """To that of the tensors."""
        return None, *cast_together(gradients, ctx.dtype)


def cast_together(tensors: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Copies in this dtype, by one kernel."""
    copies = tuple(torch.empty_like(x, dtype=dtype) for x in tensors)
    torch._foreach_copy_(copies, tensors)
    return copies


class FunctionModule(nn.Module):
    """Functions of a model as a module: what functional_call, DistributedDataParallel and fully_shard work on."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., Any], *args: Any) -> Any:
        """function(model, ...)"""
        return function(self.model, *args)


def layer_step(layer: Layer, x: Tensor, groups: Sequence[Group], queries: Queries) -> Tensor:
    """x = LayerNorm(x + Attention(x)); x = LayerNorm(x + FFN(x)). See model.Layer."""
    wanted, query_groups = x, groups
    if queries is not None:
        wanted, query_groups = pad_to_bucket(x.index_select(0, queries[0])), queries[1]  # (T,D) -> (N,D)
    attended = attend(layer.attention, x, groups, wanted, query_groups)
    x = layer.attention_norm(layer.attention_dropout(attended) + wanted)
    x = layer.feed_forward_norm(layer.feed_forward_dropout(layer.feed_forward(x)) + x)
    return x


def attend(
    attention: SelfAttention, x: Tensor, groups: Sequence[Group], wanted: Tensor, query_groups: Sequence[Group]
) -> Tensor:
    """Multi-head attention: keys and values of all tokens, queries of those wanted. See model.SelfAttention."""
    if wanted is x:  # padded as one, which is fewer kernels
        qkv = joined(x, attention.query, attention.key, attention.value)  # (T,3D)
        padded = [part.chunk(3, dim=-1) for part in pad_groups(qkv, groups)]
    else:
        both = pad_groups(joined(x, attention.key, attention.value), groups)
        queries = pad_groups(attention.query(wanted), query_groups)
        padded = [(q, *kv.chunk(2, dim=-1)) for q, kv in zip(queries, both, strict=True)]
    contexts = []
    for parts, key_group, query_group in zip(padded, groups, query_groups, strict=True):
        q, k, v = map(attention.split_heads, parts)  # (B,S,D) -> (B,H,S,W), B rows of the group
        p = attention.dropout.p if attention.dropout.training else 0.0
        with without_cudnn():
            context = F.scaled_dot_product_attention(q, k, v, attn_mask=key_group.mask, dropout_p=p)
        contexts.append(query_group.unpad(context.transpose(1, 2).flatten(2)))  # (B,H,S,W) -> (B,S,D) -> (n,D)
    output: Tensor = attention.output(pad_to_bucket(torch.cat(contexts) if len(contexts) > 1 else contexts[0]))
    return output


def joined(x: Tensor, *layers: nn.Linear) -> Tensor:
    """Several linear layers with the same input as one product, their outputs side by side."""
    weight = torch.cat([layer.weight for layer in layers])
    return F.linear(x, weight, torch.cat([layer.bias for layer in layers]))
