"""The training step without padding: the same loss and gradients, about twice as fast.

In a random batch half of all positions are padding. Here the tokens of a batch are stored one after the other, (T, D),
so that linear layers, norms and dropout see no padding. Only attention gets rows again, (B, S, D), with a mask, in
groups of similar length. In the last layer everything except keys and values is computed only for the tokens that the
task head reads: the first of each text, or those that have a label. All of it is exact: what is left out never reaches
the loss.

The encoder itself computes it (model.Encoder.through_layers), with this layout and this attention. More letters:

    T  tokens of all texts in the batch        N  tokens that the task head reads

Groups have similar and not equal lengths, as in inference: a training batch of 32 texts has about as many lengths as
texts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from minibert.heads import Head, HeadInput, Reads
from minibert.inputs import IGNORED
from minibert.kernels.packing import Group, Packed, padded
from minibert.kernels.training import packed_attention
from minibert.model import Embeddings, Encoder
from minibert.prediction.collate import ExampleBatch
from minibert.utils.device import move

GROUP_ROWS = 16  # rows of similar length in a group of attention on a CPU; on a GPU one group has them all
CAST_ONE_BY_ONE = ("cpu", "mps")  # devices on which casting is left to autocast

# A function that computes the output of a model for a batch, including its loss.
OutputFunction = Callable[[Head, ExampleBatch], Any]


def pack_batch(
    embeddings: Embeddings, batch: ExampleBatch, wanted: Tensor | None = None, keep_padding: bool = False
) -> Packed:
    """Pack a batch of the CPU for a model with these embeddings, on the CPU.

    It is built there, where its parts are known without waiting for a GPU, and then moved at once.
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
        return Packed(
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
    return Packed(**tokens, groups=groups, read=padded(read) if on_cpu else read, read_groups=read_groups, order=order)


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
    packed = pack_batch(encoder.embeddings, batch, None if every else wanted, keep_padding=Reads.ALL in reads)
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


def encode(encoder: Encoder, packed: Packed) -> Tensor:
    """Return the last states of the tokens that are read, (N,D), in the order of the batch."""
    device = encoder.device
    if device.type in CAST_ONE_BY_ONE or not torch.is_autocast_enabled(device.type):
        return last_states(encoder, packed)
    weights = cast_weights(encoder, torch.get_autocast_dtype(device.type))
    return cast(Tensor, functional_call(FunctionModule(encoder), weights, (last_states, packed)))


def last_states(encoder: Encoder, packed: Packed) -> Tensor:
    """Return what `encode` returns, with the encoder's weights as they are."""
    x = encoder.embeddings(packed.ids, packed.segments, positions=packed.positions)  # (T) -> (T,D)
    [(x, _)] = deque(encoder.through_layers(x, packed, packed_attention), maxlen=1)  # (T,D) -> (N,D)
    return x if packed.order is None else x.index_select(0, packed.order)


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
