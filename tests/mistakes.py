"""Mistakes made on purpose, each a function that changes our side; the parity ladder must find every one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from minibert import model

TYPES = ("bert", "distilbert")
Model = Any


def exchange(a: nn.Module, b: nn.Module, name: str, other: str | None = None) -> None:
    other = other or name
    first, second = getattr(a, name), getattr(b, other)
    setattr(a, name, second)
    setattr(b, other, first)


def query_and_key_swapped(ours: Model) -> None:
    attention = ours.encoder.layers[0].attention
    exchange(attention, attention, "query", "key")


def layers_swapped(ours: Model) -> None:
    ours.encoder.layers = nn.ModuleList(reversed(ours.encoder.layers))


def norms_swapped(ours: Model) -> None:
    layer = ours.encoder.layers[1]
    exchange(layer, layer, "attention_norm", "feed_forward_norm")


def positions_off_by_one(ours: Model) -> None:
    ours.encoder.embeddings.position.register_forward_pre_hook(lambda module, given: ((given[0] + 1) % 11,))


def bias_not_loaded(ours: Model) -> None:
    nn.init.zeros_(ours.encoder.layers[1].feed_forward.expand.bias)


def segments_ignored(ours: Model) -> None:
    ours.encoder.embeddings.segment.register_forward_pre_hook(lambda module, given: (torch.zeros_like(given[0]),))


def wrong_activation(ours: Model) -> None:
    ours.encoder.layers[1].feed_forward.activation = model.ACTIVATION["gelu_pytorch_tanh"]


def wrong_activation_everywhere(ours: Model) -> None:
    for module in ours.modules():
        if hasattr(module, "activation"):
            module.activation = model.ACTIVATION["gelu_new"]


def wrong_eps(ours: Model) -> None:
    for module in ours.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5


def attend_with(ours: Model, attend: Callable[..., Any]) -> None:
    ours.encoder.attend = attend


def mask_inverted(ours: Model) -> None:
    attend_with(ours, lambda q, k, v, keep, dropout: model.eager_attention(q, k, v, ~keep, dropout))


def mask_ignored(ours: Model) -> None:
    attend_with(ours, lambda q, k, v, keep, dropout: model.eager_attention(q, k, v, keep | True, dropout))


def wrong_scale(ours: Model) -> None:
    attend_with(ours, lambda q, k, v, keep, dropout: model.eager_attention(q * 8**-0.5, k, v, keep, dropout))


def heads_interleaved(ours: Model) -> None:
    for layer in ours.encoder.layers:
        layer.attention.split_heads = lambda x: x.unflatten(-1, (8, 3)).permute(0, 3, 1, 2)


def heads_joined_interleaved(ours: Model) -> None:
    def attend(*given: Any) -> Any:
        context, probs = model.eager_attention(*given)
        B, H, S, W = context.shape
        return context.permute(0, 2, 3, 1).reshape(B, S, H, W).transpose(1, 2), probs

    attend_with(ours, attend)


def softmax_over_queries(ours: Model) -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor, keep: Tensor, dropout: nn.Dropout) -> Any:
        scores = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).masked_fill(~keep, torch.finfo().min)
        probs = dropout(scores.softmax(dim=-2))
        return probs @ value, probs

    attend_with(ours, attend)


def dropout_on_scores(ours: Model) -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor, keep: Tensor, dropout: nn.Dropout) -> Any:
        scores = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).masked_fill(~keep, torch.finfo().min)
        probs = dropout(scores).softmax(dim=-1)
        return probs @ value, probs

    attend_with(ours, attend)


def dropout_on_values(ours: Model) -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor, keep: Tensor, dropout: nn.Dropout) -> Any:
        scores = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).masked_fill(~keep, torch.finfo().min)
        probs = scores.softmax(dim=-1)
        return probs @ dropout(value), probs

    attend_with(ours, attend)


def dropout_on_embeddings_left_out(ours: Model) -> None:
    ours.encoder.embeddings.dropout.p = 0.0


def dropout_after_the_sum(ours: Model) -> None:
    layer = ours.encoder.layers[0]
    layer.attention_norm.register_forward_hook(lambda module, given, x: layer.attention_dropout(x))


def residual_dropped(ours: Model) -> None:
    layer = ours.encoder.layers[1]

    def forward(x: Tensor, keep: Tensor, attend: Any) -> Any:
        x = layer.attention_norm(layer.attention(x, keep, attend)[0])
        return layer.feed_forward_norm(layer.feed_forward(x) + x), None

    layer.forward = forward


def embedding_norm_left_out(ours: Model) -> None:
    ours.encoder.embeddings.norm = nn.Identity()
    ours.encoder.embeddings.norm.register_parameter("weight", nn.Parameter(torch.ones(24)))
    ours.encoder.embeddings.norm.register_parameter("bias", nn.Parameter(torch.ones(24)))


def pooler_on_the_last_token(ours: Model) -> None:
    ours.encoder.pooler.forward = lambda x: torch.tanh(ours.encoder.pooler.dense(x[:, -1]))


def pooler_without_tanh(ours: Model) -> None:
    ours.encoder.pooler.forward = lambda x: ours.encoder.pooler.dense(x[:, 0])


def bias_added_twice(ours: Model) -> None:
    ours.decoder.register_forward_hook(lambda module, given, logits: logits + module.bias)


def classes_swapped(ours: Model) -> None:
    with torch.no_grad():
        ours.next_sentence.weight.copy_(ours.next_sentence.weight.flip(0))
        ours.next_sentence.bias.copy_(ours.next_sentence.bias.flip(0))


def start_and_end_swapped(ours: Model) -> None:
    with torch.no_grad():
        ours.qa_outputs.weight.copy_(ours.qa_outputs.weight.flip(0))


def untied(ours: Model) -> None:
    ours.decoder.weight = nn.Parameter(ours.encoder.embeddings.token.weight.detach().clone())


def cut_off(ours: Model) -> None:
    ours.transform.register_forward_pre_hook(lambda module, given: (given[0].detach(),))


def choices_mixed(ours: Model) -> None:
    right = ours.forward

    def forward(*given: Any, **more: Any) -> Any:
        output = right(*given, **more)
        return replace(output, logits=output.logits.flip(1))

    ours.forward = forward
