"""The training step without padding: the same loss and gradients, about twice as fast.

In a random batch half of all positions are padding. Here the tokens of a batch are stored one after the other, (T, D),
so that linear layers, norms and dropout see no padding. Only attention gets rows again, (B, S, D), with a mask, in
groups of similar length. In the last layer everything except keys and values is computed only for the tokens that the
task head reads: the first of each text, or those that have a label. All of it is exact: what is left out never reaches
the loss.

The encoder itself computes it (model.Encoder.through_layers), with this layout and this attention. More letters:

    T  tokens of all texts in the batch        N  tokens that the task head reads

Why not the groups of equal length of kernels/packing.py: a training batch of 32 texts has about as many lengths as
texts, dropout must be applied, and the gradient needs the modules themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from minibert.heads import Head, HeadInput, Reads
from minibert.inputs import IGNORED
from minibert.kernels.attention import blocks
from minibert.kernels.training import attention, fused_attention
from minibert.model import Embeddings, Encoder
from minibert.prediction.collate import ExampleBatch
from minibert.utils.device import move

GROUP_ROWS = 16  # rows of similar length in a group of attention on a CPU; on a GPU one group has them all
# On a CPU oneDNN, which multiplies bfloat16, caches megabytes of kernels for each number of rows, and no two batches
# have the same T. Rows of zeros round it up to a number with few significant binary digits, unless T is small.
PADDED_FROM = 256
SIGNIFICANT_DIGITS = 5
CAST_ONE_BY_ONE = ("cpu", "mps")  # devices on which casting is left to autocast

# A function that computes the output of a model for a batch, including its loss.
OutputFunction = Callable[[Head, ExampleBatch], Any]


@dataclass(frozen=True)
class Group:
    """Rows of similar length, padded to the longest of them."""

    rows: int
    width: int
    cells: Tensor | None = None  # (n): row · width + column of each token; None: the tokens fill the rows
    tokens_at: Tensor | None = None  # (rows · width): the token in each cell; in padding token 0, which is masked
    mask: Tensor | None = None  # (rows,1,1,width), True for a token; None: no padding

    @classmethod
    def of_lengths(cls, lengths: Tensor) -> Group:
        """Return a group of rows with these numbers of tokens, (rows)."""
        width = max(1, int(lengths.max()))
        real = torch.arange(width) < lengths[:, None]
        if bool(real.all()):
            return cls(len(lengths), width)
        cells = real.flatten().nonzero().squeeze(1)
        tokens_at = torch.zeros(real.numel(), dtype=torch.int64).index_copy(0, cells, torch.arange(len(cells)))
        return cls(len(lengths), width, cells, tokens_at, real[:, None, None])

    @property
    def tokens(self) -> int:
        """How many tokens the rows have."""
        return self.rows * self.width if self.cells is None else len(self.cells)

    def pad(self, x: Tensor) -> Tensor:
        """(n, ...) -> (rows, width, ...); padding has the numbers of token 0."""
        if self.cells is not None:
            # torch leaves Function.apply untyped.
            x = Pad.apply(x, self.tokens_at, self.cells)  # type: ignore[no-untyped-call]
        return x.view(self.rows, self.width, *x.shape[1:])

    def unpad(self, x: Tensor) -> Tensor:
        """(rows, width, ...) -> (n, ...)."""
        return x.flatten(0, 1) if self.cells is None else x.flatten(0, 1).index_select(0, self.cells)


class Pad(torch.autograd.Function):
    """A cell for each token and for padding, whose gradient is 0, since no token attends to it: one kernel each way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tokens_at: Tensor, cells: Tensor) -> Tensor:
        """(n, ...) -> (rows · width, ...)."""
        ctx.save_for_backward(cells)
        return x.index_select(0, tokens_at) if len(x) else x.new_zeros(len(tokens_at), *x.shape[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """(rows · width, ...) -> (n, ...)."""
        return gradients[0].index_select(0, *ctx.saved_tensors), None, None


@dataclass(frozen=True)
class PackedBatch:
    """The tokens of a batch without padding, group by group, rows of similar length in the same group (model.Layout).

    It is built on the CPU, where its parts are known without waiting for a GPU, and then moved at once. On a CPU a few
    tokens of padding follow, see PADDED_FROM.
    """

    ids: Tensor  # (T), and so are positions and segments
    positions: Tensor
    columns: Tensor  # in its row
    segments: Tensor
    groups: list[Group]
    read: Tensor | None  # (N): which of the T tokens are read; None: all
    read_groups: list[Group]  # of these tokens
    order: Tensor  # which of the tokens that are read is the first of the batch, the second, ...
    keeps_padding: bool = False  # padding is among the tokens, which attend to no padding
    is_last: bool = False  # whether this is the layout of the last layer
    window: int | None = None  # of this layer: a token attends to those at most half of it away; None: to all

    def within(self, window: int | None) -> PackedBatch:
        """Return the layout for a layer with this window."""
        return self if window is None else replace(self, window=window)

    def last(self) -> PackedBatch:
        """Return the layout for the last layer."""
        return replace(self, is_last=True)

    def wanted(self, x: Tensor) -> Tensor:
        """Return the rows of x whose output is needed: (T,D) -> (T,D), or in the last layer (N,D)."""
        return x.index_select(0, self.read) if self.is_last and self.read is not None else x

    @classmethod
    def of(
        cls, embeddings: Embeddings, batch: ExampleBatch, wanted: Tensor | None = None, keep_padding: bool = False
    ) -> PackedBatch:
        """Pack a batch of the CPU for a model with these embeddings, on the CPU.

        wanted: True for the tokens that are read, (B,S); None: all. keep_padding: treat padding as tokens that no other
        token attends to.
        """
        real = batch.attention_mask.bool()
        ids = batch.input_ids
        B, S = real.shape
        on_cpu = embeddings.token.weight.is_cpu
        index = torch.arange(B * S)  # (T): row · S + column of each token
        if keep_padding:
            lengths = torch.full((B,), S)
            groups = [Group(B, S, mask=None if bool(real.all()) else real[:, None, None])]
        else:
            lengths, longest_first = real.sum(dim=1).sort(descending=True, stable=True)
            index = index.view(B, S)[longest_first][real[longest_first]]
            size = GROUP_ROWS if on_cpu else B
            groups = [Group.of_lengths(part) for part in torch.split(lengths, size)]
        positions = embeddings.positions(ids).expand_as(ids)
        columns = torch.arange(S).expand_as(ids)
        values = {"ids": ids, "positions": positions, "columns": columns, "segments": batch.token_type_ids}
        tokens: dict[str, Any] = {name: x.flatten().index_select(0, index) for name, x in values.items()}
        tokens = {name: padded(x) if on_cpu else x for name, x in tokens.items()}
        if wanted is None:
            return cls(
                **tokens,
                groups=groups,
                read_groups=groups,
                keeps_padding=keep_padding,
                read=None,
                order=index.argsort(),
            )
        chosen = wanted.flatten().index_select(0, index)  # (T)
        rows = torch.arange(B).repeat_interleave(lengths)  # (T): the row of each token, the longest rows first
        counts = torch.zeros(B, dtype=torch.int64).index_add(0, rows, chosen.long())
        read_groups = [Group.of_lengths(part) for part in torch.split(counts, [group.rows for group in groups])]
        read = chosen.nonzero().squeeze(1)
        order = index.index_select(0, read).argsort()
        return cls(**tokens, groups=groups, read=padded(read) if on_cpu else read, read_groups=read_groups, order=order)


def padded(x: Tensor) -> Tensor:
    """Return x (T), after which zeros round up T: from T to 2 T there are only 16 numbers of rows."""
    if len(x) < PADDED_FROM:
        return x
    bucket = 2 ** max(0, len(x).bit_length() - SIGNIFICANT_DIGITS)
    return F.pad(x, (0, -len(x) % bucket))


def pad_groups(x: Tensor, groups: Sequence[Group]) -> list[Tensor]:
    """(T, ...) -> (rows, width, ...) for each group; rows of x after the T tokens are left out."""
    sizes = [group.tokens for group in groups]
    # One group, as on a GPU, is not split: the gradient of a split is a copy.
    parts = [x] if sizes == [len(x)] else torch.split(x[: sum(sizes)], sizes)
    return [group.pad(part) for group, part in zip(groups, parts, strict=True)]


def packed_output(model: Head, batch: ExampleBatch) -> Any:
    """Return the output of the model's task head with its loss.

    Its logits are of the tokens that were needed: (B, K) of texts, (1, N, K) of labelled tokens.
    """
    encoded, labels = packed_states(model, batch)
    return model.read(encoded, **labels)


def packed_states(model: Head, batch: ExampleBatch) -> tuple[HeadInput, dict[str, Any]]:
    """Return what the task head reads of a batch of the CPU, and its labels; in the order of the batch."""
    labels = dict[str, Any](batch.labels)
    reads, encoder = model.reads, model.encoder
    first, real = first_tokens(batch), batch.attention_mask.bool()  # (B,S)
    read = first if reads == Reads.FIRST else torch.ones_like(real) if Reads.ALL in reads else real
    if Reads.LABELLED in reads:
        read = labels["labels"] != IGNORED
    of_text = real if Reads.MEAN in reads else first if Reads.FIRST in reads else read
    wanted = read if of_text is read else read | of_text
    places = [] if of_text is read else [x[wanted].nonzero().squeeze(1) for x in (read, of_text)]
    if reads & (Reads.LABELLED | Reads.REAL):
        labels["labels"] = labels["labels"][read][None]  # (1,N)
    every = wanted is real or Reads.ALL in reads
    packed = PackedBatch.of(encoder.embeddings, batch, None if every else wanted, keep_padding=Reads.ALL in reads)
    packed, labels, places = move((packed, labels, places), model.device)
    labels |= {"choices": batch.choices} if batch.choices else {}
    tokens = texts = encode(encoder, packed)
    if places:
        tokens, texts = (tokens.index_select(0, place) for place in places)
    D = tokens.shape[-1]
    tokens = tokens.view((*first.shape, D) if Reads.ALL in reads else (-1, 1, D) if read is first else (1, -1, D))
    if Reads.MEAN in reads:
        return HeadInput(tokens, mean_of_texts(texts, batch)), labels
    return HeadInput(tokens, text_of_first(model, texts) if Reads.FIRST in reads else None), labels


def mean_of_texts(states: Tensor, batch: ExampleBatch) -> Tensor:
    """(T,D) -> (B,D), the mean of the states of each text of the batch, which is on the CPU."""
    lengths = batch.attention_mask.sum(dim=1)  # (B)
    rows, lengths = move((torch.arange(len(lengths)).repeat_interleave(lengths), lengths), states.device)
    sums = states.new_zeros(len(lengths), states.shape[1]).index_add(0, rows, states)
    return cast(Tensor, sums / lengths[:, None])


def first_tokens(batch: ExampleBatch) -> Tensor:
    """Return (B,S), True for the first token of each text."""
    return torch.arange(batch.input_ids.shape[1]).expand_as(batch.input_ids) == 0


def text_of_first(model: Head, first: Tensor) -> Tensor:
    """Return HeadInput.text, (B,D), of first tokens (B,D)."""
    pooler = model.encoder.pooler
    return first if pooler is None else cast(Tensor, pooler(first[:, None]))


# ---------------------------------------------------------------------------------------------------------------
# The forward pass of model.py with packed tokens


def encode(encoder: Encoder, packed: PackedBatch) -> Tensor:
    """Return the last states of the tokens that are read, (N,D), in the order of the batch."""
    device = encoder.device
    if device.type in CAST_ONE_BY_ONE or not torch.is_autocast_enabled(device.type):
        return last_states(encoder, packed)
    weights = cast_weights(encoder, torch.get_autocast_dtype(device.type))
    return cast(Tensor, functional_call(FunctionModule(encoder), weights, (last_states, packed)))


def last_states(encoder: Encoder, packed: PackedBatch) -> Tensor:
    """Return what `encode` returns, with the encoder's weights as they are."""
    x = encoder.embeddings(packed.ids, packed.segments, positions=packed.positions)  # (T) -> (T,D)
    [(x, _)] = deque(encoder.through_layers(x, packed, packed_attention), maxlen=1)  # (T,D) -> (N,D)
    return x.index_select(0, packed.order)


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, packed: PackedBatch, dropout: nn.Dropout
) -> tuple[Tensor, None]:
    """Attend within each text, (H,T,W) -> (H,T,W), or from the tokens that are read, (H,N,W) -> (H,N,W)."""
    p = dropout.p if dropout.training else 0.0
    groups = packed.read_groups if packed.is_last else packed.groups
    q, k, v = (x.transpose(0, 1) for x in (query, key, value))  # (H,T,W) -> (T,H,W)
    queries = pad_groups(q, groups)
    keys = pad_groups(k, packed.groups)
    values = pad_groups(v, packed.groups)
    contexts = []
    for number, heads in enumerate(zip(queries, keys, values, strict=True)):
        q, k, v = (x.transpose(1, 2) for x in heads)  # (B,S,H,W) -> (B,H,S,W), B rows of the group
        context = group_attention(q, k, v, packed, number, p)
        contexts.append(groups[number].unpad(context.transpose(1, 2)))  # (B,H,S,W) -> (B,S,H,W) -> (n,H,W)
    of_tokens = torch.cat(contexts) if len(contexts) > 1 else contexts[0]
    more = query.shape[1] - len(of_tokens)  # the rows of padding after the tokens
    return (F.pad(of_tokens, (0, 0, 0, 0, 0, more)) if more else of_tokens).transpose(0, 1), None


def group_attention(query: Tensor, key: Tensor, value: Tensor, packed: PackedBatch, number: int, p: float) -> Tensor:
    """Attend in the group of this number, (B,H,S,W) or from the tokens that are read, (B,H,N,W), to the same."""
    mask = packed.groups[number].mask
    window = packed.window
    if window is None or key.shape[2] <= window // 2 + 1:  # every token of these texts is in the window
        return fused_attention(query, key, value, mask, p)
    if packed.is_last and packed.read is not None:
        return fused_attention(query, key, value, local_mask(packed, number, window), p)
    if packed.keeps_padding:  # written out: the fused kernel's gradient is wrong where a window has only padding
        seen = local_mask(packed, number, window)
        bias = torch.zeros_like(seen, dtype=torch.float32).masked_fill(~seen, torch.finfo(torch.float32).min)
        return attention(query, key, value, bias, p)
    contexts = []
    for at, reached, near in blocks(torch.arange(key.shape[2], device=key.device), window):
        if mask is not None:  # a query that is padding sees every key: without any its gradient would not be a number
            near = near & mask[..., reached] | ~mask[..., at].transpose(-1, -2)
        contexts.append(fused_attention(query[:, :, at], key[:, :, reached], value[:, :, reached], near, p))
    return torch.cat(contexts, dim=2)


def local_mask(packed: PackedBatch, number: int, window: int) -> Tensor:
    """Return the mask of a group, (rows,1,queries,keys): True for a key in the window of a query.

    A query of read_groups that is padding sees every key: without any its gradient would not be a number.
    """
    columns = packed.columns[:, None]  # (T,1), as many axes as one head has
    read_groups = packed.read_groups if packed.is_last else packed.groups
    queries = pad_groups(packed.wanted(columns), read_groups)[number]  # (rows,queries,1)
    near = (queries - pad_groups(columns, packed.groups)[number].transpose(1, 2)).abs()[:, None] <= window // 2
    real = packed.groups[number].mask
    read = read_groups[number].mask
    seen = near if real is None else near & real
    return seen if read is None or packed.keeps_padding else seen | ~read.transpose(-1, -2)


def cast_weights(encoder: Encoder, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the weights of the layers' linear layers in this dtype, cast by one kernel, by their names.

    Autocast casts each weight, and each gradient, by a kernel of its own; on a GPU the launches take longer than the
    work.
    """
    linear = [name for name, module in encoder.named_modules() if isinstance(module, nn.Linear)]
    weights = {name: weight for name, weight in encoder.layers.named_parameters(prefix="layers")}
    weights = {name: weight for name, weight in weights.items() if name.rpartition(".")[0] in linear}
    # torch leaves Function.apply untyped.
    copies = CastTogether.apply(dtype, *weights.values())  # type: ignore[no-untyped-call]
    return {f"model.{name}": weight for name, weight in zip(weights, copies, strict=True)}


class CastTogether(torch.autograd.Function):
    """Tensors in another dtype by one kernel, and their gradients back by another."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Cast to this dtype."""
        ctx.dtype = tensors[0].dtype
        return cast_together(tensors, dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Cast to the dtype of the tensors."""
        return None, *cast_together(gradients, ctx.dtype)


def cast_together(tensors: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return copies in this dtype, made by one kernel."""
    copies = tuple(torch.empty_like(x, dtype=dtype) for x in tensors)
    torch._foreach_copy_(copies, tensors)
    return copies


class FunctionModule(nn.Module):
    """Functions of a model as a module: what functional_call and DistributedDataParallel work on."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return function(model, ...)."""
        return function(self.model, *args)
