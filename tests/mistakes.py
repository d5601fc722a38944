"""Mistakes made on purpose, each a function that changes our side; the parity ladder must find every one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from helpers import zero_biases
from torch import Tensor, nn

from minibert import model
from minibert.parity.compare import DROPOUT

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


def key_bias_not_loaded(ours: Model) -> None:
    nn.init.zeros_(ours.encoder.layers[0].attention.key.bias)


def pooler_bias_not_loaded(ours: Model) -> None:
    nn.init.zeros_(ours.encoder.pooler.dense.bias)


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


def attention_with(ours: Model, *, dim: int = -1, dropped: str = "probs") -> None:
    """Eager attention with its softmax over another dimension, or its dropout on another tensor."""

    def attend(query: Tensor, key: Tensor, value: Tensor, keep: Tensor, dropout: nn.Dropout) -> Any:
        scores = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).masked_fill(~keep, torch.finfo().min)
        probs = (dropout(scores) if dropped == "scores" else scores).softmax(dim=dim)
        probs = dropout(probs) if dropped == "probs" else probs
        return probs @ (dropout(value) if dropped == "values" else value), probs

    attend_with(ours, attend)


def softmax_over_queries(ours: Model) -> None:
    attention_with(ours, dim=-2)


def dropout_on_scores(ours: Model) -> None:
    attention_with(ours, dropped="scores")


def dropout_on_values(ours: Model) -> None:
    attention_with(ours, dropped="values")


def dropout_on_embeddings_left_out(ours: Model) -> None:
    ours.encoder.embeddings.dropout.p = 0.0


def dropout_after_attention(ours: Model) -> None:
    ours.encoder.layers[0].attention_dropout.p = 0.1


def dropout_of_the_encoder(ours: Model) -> None:
    ours.dropout.p = ours.config.hidden_dropout_prob


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


def flip(linear: nn.Linear) -> None:
    """The outputs in reverse order."""
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.copy_(parameter.flip(0))


def classes_swapped(ours: Model) -> None:
    flip(ours.next_sentence)


def order_exchanged(ours: Model) -> None:
    flip(ours.sentence_order)


def start_and_end_swapped(ours: Model) -> None:
    flip(ours.qa_outputs)


def untied(ours: Model) -> None:
    ours.decoder.weight = nn.Parameter(ours.encoder.embeddings.token.weight.detach().clone())


def cut_off(ours: Model) -> None:
    ours.transform.register_forward_pre_hook(lambda module, given: (given[0].detach(),))


def changing_loss(ours: Model, change: Callable[..., Any]) -> None:
    """The loss becomes change(output, **labels)."""
    right = ours.forward

    def forward(*given: Any, **more: Any) -> Any:
        output = right(*given, **more)
        return output if output.loss is None else replace(output, loss=change(output, **more))

    ours.forward = forward


def choices_mixed(ours: Model) -> None:
    right = ours.forward

    def forward(*given: Any, **more: Any) -> Any:
        output = right(*given, **more)
        return replace(output, logits=output.logits.flip(1))

    ours.forward = forward


def ignored_tokens_counted(ours: Model) -> None:
    def loss(output: Any, labels: Tensor, **_: Any) -> Tensor:
        return F.cross_entropy(output.logits.flatten(0, 1), labels.clamp(min=0).flatten(), ignore_index=-1)

    changing_loss(ours, loss)


def loss_summed(ours: Model) -> None:
    changing_loss(ours, lambda output, labels, **_: output.loss * len(labels))


def positions_past_the_end_counted(ours: Model) -> None:
    def loss(output: Any, start_positions: Tensor, end_positions: Tensor, **_: Any) -> Any:
        sides = ((output.start_logits, start_positions), (output.end_logits, end_positions))
        return sum(F.cross_entropy(logits, places.clamp(0, logits.shape[1] - 1)) for logits, places in sides) / 2

    changing_loss(ours, loss)


# What a port of a relative gets wrong.


def positions_from_0(ours: Model) -> None:
    positions = ours.encoder.embeddings.positions
    first = ours.config.first_position
    ours.encoder.embeddings.positions = lambda ids: (positions(ids) - first).clamp(min=0)


def positions_that_count_padding(ours: Model) -> None:
    first = ours.config.first_position
    ours.encoder.embeddings.positions = lambda ids: (first + torch.arange(ids.shape[1])).expand_as(ids)


def padding_after_the_last_position(ours: Model) -> None:
    """Counted are the others, and [PAD] has the place of the token before it."""
    pad, before = ours.config.pad_token_id, ours.config.first_position - 1
    ours.encoder.embeddings.positions = lambda ids: before + (ids != pad).cumsum(dim=1)


def norm_after_the_map(ours: Model) -> None:
    """The LayerNorm of the embeddings, at the hidden size."""
    embeddings = ours.encoder.embeddings
    weight, bias = embeddings.norm.weight, embeddings.norm.bias
    embeddings.norm = nn.Identity()
    embeddings.norm.weight, embeddings.norm.bias = weight, bias
    embeddings.embedding_projection.register_forward_hook(lambda module, given, x: F.layer_norm(x, x.shape[-1:]))


def map_left_out(ours: Model) -> None:
    """The tables filled up with zeros."""
    projection = ours.encoder.embeddings.embedding_projection
    projection.forward = lambda x: F.pad(x, (0, ours.config.hidden_size - x.shape[-1]))


def layers_not_shared(ours: Model) -> None:
    """Each step has a copy of its own, as equal as it can be before anything is learned."""
    steps = ours.config.shared_layers
    ours.encoder.layers = nn.ModuleList(copy.deepcopy(ours.encoder.layers[number]) for number in steps)
    object.__setattr__(ours.config, "shared_layers", tuple(range(len(steps))))


def gelu_by_the_error_function(ours: Model) -> None:
    for layer in ours.encoder.layers:
        layer.feed_forward.activation = model.ACTIVATION["gelu"]


def dropout_after_the_feed_forward(ours: Model) -> None:
    for layer in ours.encoder.layers:
        layer.feed_forward_dropout.p = 0.1


def first_dropout_left_out(ours: Model) -> None:
    ours.dropout_before = False


def second_dropout_left_out(ours: Model) -> None:
    def score(encoded: Any) -> Tensor:
        first = ours.dropout(encoded.last_hidden_state[:, 0])
        scores: Tensor = ours.classifier(ours.activation(ours.pre_classifier(first)))
        return scores

    ours.score = score


def relu_in_the_classifier(ours: Model) -> None:
    ours.activation = torch.relu


def task_left_out(ours: Model) -> None:
    ours.encoder.embeddings.task = None


def another_task(ours: Model) -> None:
    ours.encoder.embeddings.task.register_forward_pre_hook(lambda module, given: (given[0] + 1,))


def dropout_before_the_order_left_out(ours: Model) -> None:
    ours.dropout.p = 0.0


def padding_counted_in_the_loss(ours: Model) -> None:
    def loss(output: Any, labels: Tensor, **_: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(output.logits, labels.clamp(min=0).float())

    changing_loss(ours, loss)


class Mistake(NamedTuple):
    """What is done to our side, the first tensor that must be named, and words that the cause must have."""

    make: Callable[[Model], None]
    place: str
    cause: str
    heads: tuple[str, ...] = ("masked-lm",)
    families: tuple[str, ...] = ("bert",)


BOTH = ("bert", "distilbert")
OWN_LAYER = ("roberta", "electra")
ON_POOLER = ("next-sentence", "sequence-classification", "multiple-choice")
NO_CAUSE, TIED = "no known cause", "gradients: encoder.embeddings.token.weight"
MISTAKES = (
    Mistake(query_and_key_swapped, "layer 0 query", "swapped weights", families=BOTH),
    Mistake(layers_swapped, "layer 0 query", "swapped weights"),
    Mistake(norms_swapped, "layer 1 attention norm", "swapped norms", families=BOTH),
    Mistake(positions_off_by_one, "position embeddings", "positions: upstream's are one lower", families=BOTH),
    Mistake(bias_not_loaded, "layer 1 expand", "missing bias"),
    Mistake(zero_biases, "layer 0 query", "missing bias", families=BOTH),
    Mistake(pooler_bias_not_loaded, "pooler dense", "missing bias", ("next-sentence",)),
    Mistake(segments_ignored, "segment embeddings", "segments: minibert ignores them"),
    Mistake(wrong_activation, "layer 1 activation", "activation: upstream computes gelu;", families=BOTH),
    Mistake(wrong_activation_everywhere, "layer 0 activation", "activation: upstream computes gelu;"),
    Mistake(wrong_eps, "embedding norm", "eps: upstream's LayerNorms have 1e-12", families=BOTH),
    Mistake(mask_inverted, "layer 0 scores", "mask: minibert reads it inverted"),
    Mistake(mask_ignored, "layer 0 scores", "mask: minibert ignores it", families=BOTH),
    Mistake(wrong_scale, "layer 0 scores", NO_CAUSE, families=BOTH),
    Mistake(heads_interleaved, "layer 0 scores", NO_CAUSE),
    Mistake(heads_joined_interleaved, "layer 0 attention output", NO_CAUSE),
    Mistake(softmax_over_queries, "layer 0 probs", NO_CAUSE),
    Mistake(residual_dropped, "layer 1 attention sum", NO_CAUSE),
    Mistake(embedding_norm_left_out, "embedding norm", ""),
    Mistake(pooler_on_the_last_token, "pooler dense", NO_CAUSE, ON_POOLER),
    Mistake(pooler_without_tanh, "pooler", NO_CAUSE, ("next-sentence",)),
    Mistake(bias_added_twice, "decoder", NO_CAUSE, families=BOTH),
    Mistake(classes_swapped, "next sentence", "weights not loaded", ("next-sentence", "pretraining")),
    Mistake(start_and_end_swapped, "span scores", "weights not loaded", ("question-answering",)),
    Mistake(choices_mixed, "logits: logits", "after its last layer", ("multiple-choice",)),
    Mistake(ignored_tokens_counted, "losses: loss", "labels", ("masked-lm", "token-classification"), BOTH),
    Mistake(loss_summed, "losses: loss", "labels", ("next-sentence",)),
    Mistake(positions_past_the_end_counted, "losses: loss", "labels", ("question-answering",)),
    Mistake(untied, TIED, "shares", ("masked-lm", "pretraining")),
    Mistake(cut_off, TIED, "cut off"),
    Mistake(dropout_on_scores, f"{DROPOUT}: layer 0 scores", "dropout"),
    Mistake(dropout_on_values, f"{DROPOUT}: layer 0 probs", "dropout"),
    Mistake(dropout_on_embeddings_left_out, f"{DROPOUT}: embeddings", "dropout"),
    Mistake(dropout_after_the_sum, f"{DROPOUT}: layer 0 attention norm", "dropout"),
    Mistake(dropout_after_attention, f"{DROPOUT}: layer 0 attention sum", "dropout", families=("distilbert",)),
    Mistake(
        dropout_of_the_encoder,
        f"{DROPOUT}: classifier input",
        "dropout",
        ("sequence-classification", "token-classification"),
    ),
    Mistake(
        dropout_of_the_encoder, f"{DROPOUT}: classifier input", "dropout", ("sequence-classification",), ("distilbert",)
    ),
    Mistake(dropout_of_the_encoder, f"{DROPOUT}: span input", "dropout", ("question-answering",), BOTH),
    Mistake(positions_from_0, "position embeddings", NO_CAUSE, families=("roberta",)),
    Mistake(positions_that_count_padding, "position embeddings", NO_CAUSE, families=("roberta",)),
    Mistake(padding_after_the_last_position, "position embeddings", NO_CAUSE, families=("roberta",)),
    Mistake(norm_after_the_map, "embedding norm", "", families=("albert", "electra")),
    Mistake(map_left_out, "embeddings", NO_CAUSE, families=("albert", "electra")),
    Mistake(layers_not_shared, "gradients: encoder.layers.0.attention.query.weight", "shares", families=("albert",)),
    Mistake(gelu_by_the_error_function, "layer 0 activation", "upstream computes gelu_new", families=("albert",)),
    Mistake(dropout_after_the_feed_forward, f"{DROPOUT}: layer 0 feed-forward sum", "dropout", families=("albert",)),
    Mistake(first_dropout_left_out, f"{DROPOUT}: pre-classifier", "dropout", ("sequence-classification",), OWN_LAYER),
    Mistake(
        second_dropout_left_out, f"{DROPOUT}: classifier input", "dropout", ("sequence-classification",), OWN_LAYER
    ),
    Mistake(relu_in_the_classifier, "classifier input", "", ("sequence-classification",), OWN_LAYER),
    Mistake(task_left_out, "embedding sum", "", families=("ernie",)),
    Mistake(another_task, "task embeddings", NO_CAUSE, families=("ernie",)),
    Mistake(order_exchanged, "sentence order", "weights not loaded", ("pretraining",), ("albert",)),
    Mistake(dropout_before_the_order_left_out, f"{DROPOUT}: sentence order", "dropout", ("pretraining",), ("albert",)),
    Mistake(padding_counted_in_the_loss, "losses: loss", "labels", ("replaced-token-detection",), ("electra",)),
)
