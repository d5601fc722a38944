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

from minibert.device import without_cudnn
from minibert.heads import Head
from minibert.losses import IGNORED
from minibert.model import Embeddings, Encoder, EncoderOutput, Layer, SelfAttention
from minibert.train.batches import Batch

GROUP_ROWS = 16  # rows of similar length in a group of attention on a CPU; on a GPU one group has them all
# On a CPU oneDNN, which multiplies bfloat16, caches megabytes of kernels for each number of rows, and no two batches
# have the same T. Rows of zeros round it up to a number with few significant binary digits, unless T is small.
PADDED_FROM, SIGNIFICANT_DIGITS = 256, 5
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
        real = torch.arange(width, device=lengths.device) < lengths[:, None]
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


@dataclass(frozen=True)
class PackedBatch:
    """The tokens of a batch without padding, group by group, rows of similar length in the same group."""

    batch: Batch
    index: Tensor  # (T): row · S + column of each token in the batch
    groups: list[Group]

    @classmethod
    def of(cls, batch: Batch, keep_padding: bool = False) -> PackedBatch:
        """Pack a batch; keep_padding: treat padding as tokens that no other token attends to."""
        real = batch.attention_mask.bool()
        B, S = real.shape
        index = torch.arange(B * S, device=real.device)
        if keep_padding:
            return cls(batch, index, [Group(B, S, mask=None if bool(real.all()) else real[:, None, None])])
        lengths = real.sum(dim=1)
        longest_first = lengths.argsort(descending=True, stable=True)
        size = GROUP_ROWS if real.device.type == "cpu" else B
        groups = [Group.of_lengths(part) for part in torch.split(lengths[longest_first], size)]
        return cls(batch, index.view(B, S)[longest_first][real[longest_first]], groups)

    def gather(self, x: Tensor) -> Tensor:
        """(B,S) -> (T)."""
        return x.flatten().index_select(0, self.index)

    def select(self, wanted: Tensor) -> PackedBatch:
        """The N tokens for which `wanted`, (B,S), is True, in the same groups of rows; `index` is then that in T."""
        chosen = self.gather(wanted)  # (T)
        groups = [Group.of_lengths(group.sum(dim=1)) for group in pad_groups(chosen, self.groups)]
        return PackedBatch(self.batch, chosen.nonzero().squeeze(1), groups)


def pad_groups(x: Tensor, groups: Sequence[Group]) -> list[Tensor]:
    """(T, ...) -> (rows, width, ...) for each group; rows of x after the T tokens are left out."""
    sizes = [group.tokens for group in groups]
    parts = torch.split(x[: sum(sizes)], sizes)
    return [group.pad(part) for group, part in zip(groups, parts, strict=True)]


def packed_output(model: Head, batch: Batch) -> Any:
    """The output of the model's task head with its loss.

    Its logits are those of the tokens that were needed: (B, K) of texts, (1, N, K) of labelled tokens.
    """
    encoded, labels = packed_states(model, batch)
    return model.read(encoded, **labels)


def packed_states(model: Head, batch: Batch) -> tuple[EncoderOutput, dict[str, Any]]:
    """What the task head reads of a batch, and the labels that belong to it; tokens in the order of the batch."""
    labels = dict[str, Any](batch.labels) | ({"choices": batch.choices} if batch.choices else {})
    packed, first = PackedBatch.of(batch, "all" in model.reads), first_tokens(batch)
    if "all" in model.reads:
        return EncoderOutput(encode(model.encoder, packed).view(*first.shape, -1)), labels  # (B,S,D)
    if "labelled" not in model.reads and "real" not in model.reads:
        return first_states(model, packed), labels
    read = batch.attention_mask.bool() if "real" in model.reads else labels["labels"] != IGNORED  # (B,S)
    labels["labels"] = labels["labels"][read][None]  # (1,N)
    if "first" not in model.reads:
        states = encode(model.encoder, packed, None if "real" in model.reads else read)  # (N,D)
        return EncoderOutput(states[None]), labels
    wanted = read | first
    states = encode(model.encoder, packed, wanted)  # (N + some,D)
    return EncoderOutput(states[read[wanted]][None], pooled(model, states[first[wanted]][:, None])), labels


def first_tokens(batch: Batch) -> Tensor:
    """(B,S), True for the first token of each text."""
    return torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device).expand_as(batch.input_ids) == 0


def first_states(model: Head, packed: PackedBatch) -> EncoderOutput:
    """The last states of the first token of each text, (B,1,D), and the output of the pooler."""
    states = encode(model.encoder, packed, first_tokens(packed.batch))[:, None]
    return EncoderOutput(states, pooled(model, states))


def pooled(model: Head, first: Tensor) -> Tensor | None:
    """The pooler's output for first tokens (B,1,D), if the model has a pooler."""
    pooler = model.encoder.pooler
    return None if pooler is None else pooler(first)


# ---------------------------------------------------------------------------------------------------------------
# The forward pass, as in model.py


def encode(encoder: Encoder, packed: PackedBatch, wanted: Tensor | None = None) -> Tensor:
    """The last states of all tokens (T,D), or of those wanted, (B,S), (N,D); in the order of the batch."""
    queries = None if wanted is None else packed.select(wanted)  # first: it waits for a GPU
    x = pad_to_bucket(embed(encoder.embeddings, packed))  # (T) -> (T,D)
    *lower, last = encoder.config.shared_layers
    for number in lower:
        x = step_of(encoder.layers[number])(x, packed.groups, None)  # (T,D) -> (T,D)
    x = step_of(encoder.layers[last])(x, packed.groups, queries)  # (T,D) -> (N,D)
    index = packed.index if queries is None else packed.index.index_select(0, queries.index)
    return x.index_select(0, index.argsort())


def pad_to_bucket(x: Tensor) -> Tensor:
    """Rows of zeros after x, (T,D) -> (T + few,D): from T to 2 T there are only 16 numbers of rows."""
    if len(x) < PADDED_FROM:
        return x
    bucket = 2 ** max(0, len(x).bit_length() - SIGNIFICANT_DIGITS)
    return F.pad(x, (0, 0, 0, -len(x) % bucket))


def embed(embeddings: Embeddings, packed: PackedBatch) -> Tensor:
    """x = LayerNorm(token + segment + position + task 0). See model.Embeddings."""
    batch, ids = packed.batch, packed.batch.input_ids
    x: Tensor = embeddings.token(packed.gather(ids))  # (T) -> (T,D)
    if embeddings.segment is not None:
        x = x + embeddings.segment(packed.gather(batch.token_type_ids))
    x = x + embeddings.position(packed.gather(embeddings.positions(ids).expand_as(ids)))  # (S) or (B,S) -> (T)
    if embeddings.task is not None:
        x = x + embeddings.task.weight[0]
    x = embeddings.dropout(embeddings.norm(x))
    return x if embeddings.embedding_projection is None else embeddings.embedding_projection(x)


def step_of(layer: nn.Module) -> Callable[..., Tensor]:
    """layer_step of this layer, or its own method, which first fetches sharded weights (distributed.py)."""
    return getattr(layer, PACKED_STEP, partial(layer_step, cast(Layer, layer)))


def layer_step(layer: Layer, x: Tensor, groups: Sequence[Group], queries: PackedBatch | None) -> Tensor:
    """x = LayerNorm(x + Attention(x)); x = LayerNorm(x + FFN(x)). See model.Layer."""
    attended = attend(layer.attention, x, groups, queries)
    x = x if queries is None else pad_to_bucket(x.index_select(0, queries.index))  # (T,D) -> (N,D)
    x = layer.attention_norm(layer.attention_dropout(attended) + x)
    x = layer.feed_forward_norm(layer.feed_forward_dropout(layer.feed_forward(x)) + x)
    return x


def attend(attention: SelfAttention, x: Tensor, groups: Sequence[Group], queries: PackedBatch | None) -> Tensor:
    """Multi-head attention: keys and values of all tokens, queries of all or some. See model.SelfAttention."""
    if queries is None:
        query, key, value = joined(x, attention.query, attention.key, attention.value)
    else:
        query = attention.query(pad_to_bucket(x.index_select(0, queries.index)))
        key, value = joined(x, attention.key, attention.value)
    query_groups, contexts = groups if queries is None else queries.groups, []
    padded = zip(pad_groups(query, query_groups), pad_groups(key, groups), pad_groups(value, groups), strict=True)
    for qkv, keys, asking in zip(padded, groups, query_groups, strict=True):
        q, k, v = map(attention.split_heads, qkv)  # (B,S,D) -> (B,H,S,W), B rows of the group
        p = attention.dropout.p if attention.dropout.training else 0.0
        with without_cudnn():
            context = F.scaled_dot_product_attention(q, k, v, attn_mask=keys.mask, dropout_p=p)
        contexts.append(asking.unpad(context.transpose(1, 2).flatten(2)))  # (B,H,S,W) -> (B,S,D) -> (n,D)
    output: Tensor = attention.output(pad_to_bucket(torch.cat(contexts)))
    return output


def joined(x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """Several linear layers with the same input as one product."""
    weight = torch.cat([layer.weight for layer in layers])
    return F.linear(x, weight, torch.cat([layer.bias for layer in layers])).chunk(len(layers), dim=-1)
