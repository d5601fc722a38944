"""The training step with the padding taken out: the same loss and gradients, about twice as quick.

In a random batch half of all places are padding. Here the tokens of a batch stand one after the other, (T, D), so that
linear layers, norms and dropout see no padding; only attention is given rows again, (B, S, D), with a mask, and those
of similar length together. In the last layer everything but keys and values is computed for the tokens alone that the
task head reads: the first of each text, or those that have a label. All of it is exact: what is left out never reaches
the loss.

Everything is computed with the model's own modules, in the order of model.py. Beside its letters:

    T  tokens of all texts in the batch        N  tokens that the task head reads

oneDNN, which multiplies in bfloat16, keeps megabytes of kernels for each number of rows that it meets, and no two
batches have the same T: with rows of zeros, which nobody reads, there are few numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minibert.heads import Head
from minibert.losses import IGNORED
from minibert.model import Embeddings, Encoder, EncoderOutput, Layer, SelfAttention
from minibert.train.batches import Batch

TOGETHER = 16  # rows of similar length that attention is given on a CPU; elsewhere all at once
FILLED_FROM = 256  # tokens: where there are fewer, filling would cost more than it saves
FINE = 5  # binary digits of the number of rows that count; those behind them become zeros
STEP = "packed_step"  # a layer whose weights are dealt out to several processes has a step of its own


@dataclass(frozen=True)
class Places:
    """Where tokens stand in a grid of B rows: tokens there, in the order of the grid."""

    index: Tensor  # (T): row · width + column
    rows: int
    width: int

    @property
    def column(self) -> Tensor:
        """(T)"""
        return self.index % self.width

    def spread(self, x: Tensor) -> Tensor:
        """(T, ...) -> (B, width, ...), zeros where no token is."""
        cells = self.rows * self.width
        grid = x if len(x) == cells else x.new_zeros(cells, *x.shape[1:]).index_copy(0, self.index, x)
        return grid.view(self.rows, self.width, *x.shape[1:])

    def gather(self, grid: Tensor) -> Tensor:
        """(B, width, ...) -> (T, ...)."""
        flat = grid.flatten(0, 1)
        return flat if len(self.index) == len(flat) else flat.index_select(0, self.index)


@dataclass(frozen=True)
class Part:
    """Some of n tokens, and where they stand among rows of similar length."""

    index: Tensor  # (m): which of the tokens, in their order
    places: Places

    def spread(self, x: Tensor) -> Tensor:
        """(n, ...) -> (rows, width, ...)."""
        return self.places.spread(x if len(self.index) == len(x) else x.index_select(0, self.index))


@dataclass(frozen=True)
class Groups:
    """Rows of similar length together, so that a long one makes no short one wide."""

    of: Tensor  # (B): the group of each row
    slot: Tensor  # (B): which of its group's rows it is
    lengths: list[list[int]]  # of the rows of each group

    @classmethod
    def by_length(cls, lengths: Tensor, size: int) -> Groups:
        """Groups of `size` rows, for lengths (B)."""
        of, slot = torch.empty_like(lengths), torch.empty_like(lengths)
        longest_first = lengths.argsort(descending=True, stable=True)
        chosen = [rows.sort().values for rows in torch.split(longest_first, size)]
        for number, rows in enumerate(chosen):
            of[rows], slot[rows] = number, torch.arange(len(rows), device=lengths.device)
        return cls(of, slot, [lengths[rows].tolist() for rows in chosen])

    def parts(self, row: Tensor, column: Tensor, width: int | None = None) -> list[Part]:
        """Tokens by their row and column, (n) each, as a part for each group; width: of the grid, else as needed."""
        found, group = [], self.of[row]
        for number, lengths in enumerate(self.lengths):
            index = (group == number).nonzero().squeeze(1)
            wide = width or max(lengths)
            found.append(Part(index, Places(self.slot[row[index]] * wide + column[index], len(lengths), wide)))
        return found

    def masks(self, device: torch.device) -> list[Tensor | None]:
        """For each group True where a key is a token, (rows,1,1,width); None where no row has padding."""
        widths = (torch.arange(max(lengths), device=device) for lengths in self.lengths)
        return [
            None
            if min(lengths) == max(lengths)
            else (width < torch.tensor(lengths, device=device)[:, None])[:, None, None]
            for lengths, width in zip(self.lengths, widths, strict=True)
        ]


@dataclass(frozen=True)
class Tokens:
    """A batch without padding."""

    ids: Tensor  # (T)
    segments: Tensor  # (T)
    places: Places  # in (B, S)
    groups: Groups
    parts: list[Part]  # the tokens of each group
    masks: list[Tensor | None]  # for each group, True for a token, (rows,1,1,width); None: no row has padding
    rows: Tensor  # (B,S): ids, and what stands between them, by which positions are counted

    @classmethod
    def of(cls, batch: Batch, every_place: bool) -> Tokens:
        """The tokens of a batch; with every_place the padding too, for a task head that scores it as upstream does."""
        real = batch.attention_mask.bool()
        B, S = real.shape
        index = torch.arange(B * S, device=real.device) if every_place else real.flatten().nonzero().squeeze(1)
        ids, segments = (x.flatten().index_select(0, index) for x in (batch.input_ids, batch.token_type_ids))
        groups = Groups.by_length(real.sum(dim=1), TOGETHER if real.device.type == "cpu" and not every_place else B)
        parts = groups.parts(index // S, index % S, S if every_place else None)
        masks = groups.masks(real.device)
        if every_place:
            masks = [None if bool(real.all()) else real[:, None, None]]
        return cls(ids, segments, Places(index, B, S), groups, parts, masks, batch.input_ids)


# A way to compute the output of a model for a batch, its loss included.
Output = Callable[[Head, Batch], Any]


def packed_output(model: Head, batch: Batch) -> Any:
    """The output of the model's task head with its loss, from a batch that it would compute the readable way.

    Its logits are of the tokens that were needed alone: (B, K) of texts, (1, N, K) of labelled tokens.
    """
    encoded, labels = packed_states(model, batch)
    return model.read(encoded, **labels)


def packed_states(model: Head, batch: Batch) -> tuple[EncoderOutput, dict[str, Any]]:
    """What the task head reads of a batch, and the labels that belong to it."""
    first, labelled, detects = ("first" in model.reads, "labelled" in model.reads, "real" in model.reads)
    tokens, labels = Tokens.of(batch, every_place=not (first or labelled or detects)), dict[str, Any](batch.labels)
    if detects:  # every token has a label
        labels["labels"] = tokens.places.gather(labels["labels"])[None]
        return EncoderOutput(encode(model.encoder, tokens, None)[None]), labels  # (1,T,D)
    if batch.choices:
        return first_states(model, tokens), labels | {"choices": batch.choices}
    if not labelled:
        return first_states(model, tokens) if first else all_states(model, tokens), labels
    wanted = wanted_tokens(tokens, labels["labels"], first)
    states = encode(model.encoder, tokens, wanted)  # (N,D)
    chosen = wanted.has_label
    encoded = EncoderOutput(states[chosen][None])  # (1,N,D)
    labels["labels"] = tokens.places.gather(labels["labels"])[wanted.index][chosen][None]  # (1,N)
    if first:
        encoded.pooler_output = pooled(model, states[wanted.is_first][:, None])
    return encoded, labels


def all_states(model: Head, tokens: Tokens) -> EncoderOutput:
    """The last states of every place, (B,S,D)."""
    return EncoderOutput(tokens.places.spread(encode(model.encoder, tokens, None)))


def first_states(model: Head, tokens: Tokens) -> EncoderOutput:
    """The last states of the first token of each text, (B,1,D), and what the pooler makes of them."""
    states = encode(model.encoder, tokens, wanted_tokens(tokens, None, first=True))[:, None]
    return EncoderOutput(states, pooled(model, states))


def pooled(model: Head, beginnings: Tensor) -> Tensor | None:
    """The pooler's output for first tokens (B,1,D), where the model has a pooler."""
    pooler = model.encoder.pooler
    return None if pooler is None else pooler(beginnings)


@dataclass(frozen=True)
class Wanted:
    """The tokens that a task head reads."""

    index: Tensor  # (N): among the T tokens
    parts: list[Part]  # of the N tokens, those of each group
    is_first: Tensor  # (N) True for the first token of a text
    has_label: Tensor  # (N)


def wanted_tokens(tokens: Tokens, labels: Tensor | None, first: bool) -> Wanted:
    """The first token of each row, if `first`, and those with a label, if there are labels (B, S)."""
    places = tokens.places
    begins = places.column == 0  # (T)
    labelled = torch.zeros_like(begins) if labels is None else places.gather(labels) != IGNORED
    chosen = (begins & first) | labelled
    index = chosen.nonzero().squeeze(1)  # (N)
    row = places.index[index] // places.width
    counts = torch.bincount(row, minlength=places.rows)  # (B)
    before = counts.cumsum(0) - counts
    slot = torch.arange(len(index), device=index.device) - before[row]  # which of its row's wanted tokens each is
    parts = tokens.groups.parts(row, slot, width=max(1, int(counts.max())))
    return Wanted(index, parts, begins[index], labelled[index])


# ---------------------------------------------------------------------------------------------------------------
# The forward pass, as in model.py


def encode(encoder: Encoder, tokens: Tokens, wanted: Wanted | None) -> Tensor:
    """The last states of all tokens (T,D), or of those that are wanted (N,D)."""
    x = filled(embed(encoder.embeddings, tokens))  # (T) -> (T,D)
    *lower, last = encoder.config.shared_layers
    for number in lower:
        x = step_of(encoder.layers[number])(x, tokens, None)  # (T,D) -> (T,D)
    x = step_of(encoder.layers[last])(x, tokens, wanted)  # (T,D) -> (N,D)
    return x[: len(tokens.ids if wanted is None else wanted.index)]


def filled(x: Tensor) -> Tensor:
    """Rows of zeros behind x, (T,D) -> (T + few,D), so that from T to 2 T there are no more than 16 numbers of rows."""
    if len(x) < FILLED_FROM:
        return x
    step = 2 ** max(0, len(x).bit_length() - FINE)
    return F.pad(x, (0, 0, 0, -len(x) % step))


def embed(embeddings: Embeddings, tokens: Tokens) -> Tensor:
    """x = LayerNorm(token + segment + position + task 0). See model.Embeddings."""
    x: Tensor = embeddings.token(tokens.ids)  # (T) -> (T,D)
    if embeddings.segment is not None:
        x = x + embeddings.segment(tokens.segments)
    positions = embeddings.positions(tokens.rows).expand_as(tokens.rows)  # (S) or (B,S) -> (B,S)
    x = x + embeddings.position(tokens.places.gather(positions))
    if embeddings.task is not None:
        x = x + embeddings.task.weight[0]
    x = embeddings.dropout(embeddings.norm(x))
    return x if embeddings.embedding_projection is None else embeddings.embedding_projection(x)


def step_of(layer: nn.Module) -> Callable[..., Tensor]:
    """layer_step of this layer, or its own, which first fetches its weights (distributed.py)."""
    own: Callable[..., Tensor] | None = getattr(layer, STEP, None)
    return own or partial(layer_step, cast(Layer, layer))


def layer_step(layer: Layer, x: Tensor, tokens: Tokens, wanted: Wanted | None) -> Tensor:
    """x = LayerNorm(x + Attention(x)); x = LayerNorm(x + FFN(x)). See model.Layer."""
    attended = attend(layer.attention, x, tokens, wanted)
    x = x if wanted is None else filled(x.index_select(0, wanted.index))  # (T,D) -> (N,D)
    x = layer.attention_norm(layer.attention_dropout(attended) + x)
    x = layer.feed_forward_norm(layer.feed_forward_dropout(layer.feed_forward(x)) + x)
    return x


def attend(attention: SelfAttention, x: Tensor, tokens: Tokens, wanted: Wanted | None) -> Tensor:
    """Multi-head attention, with all tokens as keys and all or the wanted ones as queries. See model.SelfAttention."""
    if wanted is None:
        query, key, value = joined(x, attention.query, attention.key, attention.value)
    else:
        query = attention.query(filled(x.index_select(0, wanted.index)))
        key, value = joined(x, attention.key, attention.value)
    p = attention.dropout.p if attention.dropout.training else 0.0
    contexts, asking = [], tokens.parts if wanted is None else wanted.parts
    for keys, queries, mask in zip(tokens.parts, asking, tokens.masks, strict=True):
        q, k, v = (
            attention.split_heads(part.spread(given))  # (T,D) -> (B,S,D) -> (B,H,S,W), B rows of the group
            for part, given in ((queries, query), (keys, key), (keys, value))
        )
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        contexts.append(queries.places.gather(context.transpose(1, 2).flatten(2)))  # (B,H,S,W) -> (B,S,D) -> (n,D)
    output: Tensor = attention.output(filled(in_order(contexts, asking)))
    return output


def in_order(contexts: list[Tensor], parts: list[Part]) -> Tensor:
    """What was computed part by part, as one, in the order of the tokens: (N,D)."""
    if len(contexts) == 1:
        return contexts[0]
    return torch.cat(contexts).index_select(0, torch.cat([part.index for part in parts]).argsort())


def joined(x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """Several linear layers with one input as one product."""
    weight = torch.cat([layer.weight for layer in layers])
    return F.linear(x, weight, torch.cat([layer.bias for layer in layers])).chunk(len(layers), dim=-1)
