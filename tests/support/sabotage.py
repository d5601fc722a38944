"""Ways to change our side on purpose, of which mistakes.py makes its mistakes."""

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minibert import model
from minibert.activations import ACTIVATION
from minibert.families import modernbert

Model = Any


# What is done at a place: a module by its name, "" for the whole model.


def put(ours: Model, place: str, name: str, value: Any) -> None:
    setattr(ours.get_submodule(place), name, value)


def exchange(ours: Model, place: str, name: str, other: str) -> None:
    module = ours.get_submodule(place)
    first, second = getattr(module, name), getattr(module, other)
    setattr(module, name, second)
    setattr(module, other, first)


def zero_bias(ours: Model, place: str) -> None:
    nn.init.zeros_(ours.get_submodule(place).bias)


def flip(ours: Model, place: str) -> None:
    """The outputs of a linear layer in reverse order."""
    with torch.no_grad():
        for parameter in ours.get_submodule(place).parameters():
            parameter.copy_(parameter.flip(0))


def change_input(ours: Model, place: str, change: Callable[[Tensor], Tensor]) -> None:
    ours.get_submodule(place).register_forward_pre_hook(lambda module, given: (change(given[0]),))


def change_output(ours: Model, name: str, change: Callable[..., Any]) -> None:
    """The loss, or the logits, become change(output, **labels)."""
    right = ours.forward

    def forward(*given: Any, **more: Any) -> Any:
        output = right(*given, **more)
        return output if getattr(output, name) is None else replace(output, **{name: change(output, **more)})

    ours.forward = forward


def attention_with(ours: Model, **changes: Any) -> None:
    ours.encoder.attend = partial(attend, **changes)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: model.Padded,
    dropout: nn.Dropout,
    *,
    mask: Callable[[Tensor], Tensor] = torch.clone,
    scale: float = 1.0,
    dim: int = -1,
    dropped: str = "probs",
) -> Any:
    """Eager attention: its mask and scale, the dimension of its softmax and where its dropout stands can be changed."""
    scores = query * scale @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    scores = scores.masked_fill(~mask(layout.keep), torch.finfo().min)
    probs = (dropout(scores) if dropped == "scores" else scores).softmax(dim=dim)
    probs = dropout(probs) if dropped == "probs" else probs
    return probs @ (dropout(value) if dropped == "values" else value), probs


# Mistakes that are more than that.


def layers_swapped(ours: Model) -> None:
    ours.encoder.layers = nn.ModuleList(reversed(ours.encoder.layers))


def wrong_activation_everywhere(ours: Model) -> None:
    for module in ours.modules():
        if hasattr(module, "activation"):
            module.activation = ACTIVATION["gelu_new"]


def wrong_eps(ours: Model) -> None:
    for module in ours.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5


def heads_interleaved(ours: Model) -> None:
    for layer in ours.encoder.layers:
        layer.attention.split_heads = lambda x: x.unflatten(-1, (8, 3)).permute(0, 3, 1, 2)


def joined_interleaved(*given: Any) -> Any:
    context, probs = model.eager_attention(*given)
    B, H, S, W = context.shape
    return context.permute(0, 2, 3, 1).reshape(B, S, H, W).transpose(1, 2), probs


def dropout_after_the_sum(ours: Model) -> None:
    layer = ours.encoder.layers[0]
    layer.attention_norm.register_forward_hook(lambda module, given, x: layer.attention_residual.dropout(x))


def residual_dropped(ours: Model) -> None:
    layer = ours.encoder.layers[1]

    def forward(x: Tensor, layout: model.Padded, attend: Any) -> Any:
        x = layer.attention_norm(layer.attention(x, layout, attend)[0])
        return layer.feed_forward_norm(layer.feed_forward(x) + x), None

    layer.forward = forward


def embedding_norm_left_out(ours: Model) -> None:
    embeddings = ours.encoder.embeddings
    weight, bias = embeddings.norm.weight, embeddings.norm.bias
    embeddings.norm = nn.Identity()
    embeddings.norm.weight, embeddings.norm.bias = weight, bias


def pooler_on_the_last_token(ours: Model) -> None:
    ours.encoder.pooler.forward = lambda x: torch.tanh(ours.encoder.pooler.dense(x[:, -1]))


def pooler_without_tanh(ours: Model) -> None:
    ours.encoder.pooler.forward = lambda x: ours.encoder.pooler.dense(x[:, 0])


def bias_added_twice(ours: Model) -> None:
    ours.decoder.register_forward_hook(lambda module, given, logits: logits + module.bias)


def untied(ours: Model) -> None:
    ours.decoder.weight = nn.Parameter(ours.encoder.embeddings.token.weight.detach().clone())


def ignored_tokens_counted(output: Any, labels: Tensor, **_: Any) -> Tensor:
    return F.cross_entropy(output.logits.flatten(0, 1), labels.clamp(min=0).flatten(), ignore_index=-1)


def positions_past_the_end_counted(output: Any, start_positions: Tensor, end_positions: Tensor, **_: Any) -> Any:
    sides = ((output.start_logits, start_positions), (output.end_logits, end_positions))
    return sum(F.cross_entropy(logits, places.clamp(0, logits.shape[1] - 1)) for logits, places in sides) / 2


# What a port of a relative gets wrong.


def positions_from_0(ours: Model) -> None:
    positions, first = ours.encoder.embeddings.positions, ours.config.architecture.first_position
    ours.encoder.embeddings.positions = lambda ids: (positions(ids) - first).clamp(min=0)


def positions_that_count_padding(ours: Model) -> None:
    first = ours.config.architecture.first_position
    ours.encoder.embeddings.positions = lambda ids: (first + torch.arange(ids.shape[1])).expand_as(ids)


def padding_after_the_last_position(ours: Model) -> None:
    """Counted are the others, and [PAD] has the place of the token before it."""
    pad, before = ours.config.pad_token_id, ours.config.architecture.first_position - 1
    ours.encoder.embeddings.positions = lambda ids: before + (ids != pad).cumsum(dim=1)


def norm_after_the_map(ours: Model) -> None:
    """The LayerNorm of the embeddings, at the hidden size."""
    embedding_norm_left_out(ours)
    projection = ours.encoder.embeddings.embedding_projection
    projection.register_forward_hook(lambda module, given, x: F.layer_norm(x, x.shape[-1:]))


def map_left_out(ours: Model) -> None:
    """The tables filled up with zeros."""
    projection = ours.encoder.embeddings.embedding_projection
    projection.forward = lambda x: F.pad(x, (0, ours.config.hidden_size - x.shape[-1]))


def task_left_out(ours: Model) -> None:
    embeddings = ours.encoder.embeddings
    embeddings.add = lambda ids, segments, positions, **_: model.Embeddings.add(embeddings, ids, segments, positions)


def layers_not_shared(ours: Model) -> None:
    """Each step has a copy of its own, as equal as it can be before anything is learned."""
    steps = ours.config.architecture.order
    ours.encoder.layers = nn.ModuleList(copy.deepcopy(ours.encoder.layers[number]) for number in steps)
    ours.encoder.order = tuple(range(len(steps)))
    object.__setattr__(ours.config, "architecture", replace(ours.config.architecture, order=ours.encoder.order))


def second_dropout_left_out(ours: Model) -> None:
    ours.score = lambda c: ours.classifier(ours.activation(ours.pre_classifier(ours.dropout(c))))


def padding_counted_in_the_loss(output: Any, labels: Tensor, **_: Any) -> Tensor:
    return F.binary_cross_entropy_with_logits(output.logits, labels.clamp(min=0).float())


# Mistakes of ModernBERT.


def thetas_exchanged(ours: Model) -> None:
    attentions = [layer.attention for layer in ours.encoder.layers]
    low, high = sorted({attention.theta for attention in attentions})
    for attention in attentions:
        attention.theta = low if attention.theta == high else high


def windows_wider(ours: Model, by: int) -> None:
    for layer in ours.encoder.layers:
        layer.attention.window = None if layer.attention.window is None else layer.attention.window + by


def window_on_the_left(ours: Model) -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor, layout: model.Padded, dropout: nn.Dropout) -> Any:
        keep = layout.keep if layout.keep.shape[-2] == 1 else layout.keep.tril()
        return model.eager_attention(query, key, value, replace(layout, keep=keep), dropout)

    ours.encoder.attend = attend


def values_rotated(ours: Model) -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor, layout: model.Padded, dropout: nn.Dropout) -> Any:
        assert layout.positions is not None
        return model.eager_attention(query, key, modernbert.rotate(value, layout.positions, 1e4), layout, dropout)

    ours.encoder.attend = attend


def pairs_interleaved(ours: Model) -> None:
    """Number 2i is turned with 2i + 1: the columns of queries and keys in another order, before they are turned."""
    for layer in ours.encoder.layers:
        attention, right = layer.attention, layer.attention.split_heads
        turned = itertools.cycle([True, True, False])  # queries, keys, values

        def split(x: Tensor, right: Any = right, turned: Any = turned) -> Tensor:
            heads: Tensor = right(x)
            return heads.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2) if next(turned) else heads

        attention.split_heads = split


def norm_before_the_first_attention(ours: Model) -> None:
    layer = ours.encoder.layers[0]
    layer.attention_norm = copy.deepcopy(layer.feed_forward_norm)


def positions_of_real_tokens(ours: Model) -> None:
    embeddings = ours.encoder.embeddings
    embeddings.positions = lambda ids: (ids != ours.config.pad_token_id).cumsum(dim=1) - 1
