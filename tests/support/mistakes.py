"""Mistakes made on purpose, each of which the parity ladder must find at its place, and say its cause."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from minibert.activations import ACTIVATION
from minibert.model import Encoder
from minibert.parity.compare import DROPOUT
from support.models import zero_biases
from support.sabotage import (
    Model,
    attention_with,
    bias_added_twice,
    change_input,
    change_output,
    dropout_after_the_sum,
    embedding_norm_left_out,
    exchange,
    flip,
    heads_interleaved,
    ignored_tokens_counted,
    joined_interleaved,
    layers_not_shared,
    layers_swapped,
    map_left_out,
    norm_after_the_map,
    norm_before_the_first_attention,
    padding_after_the_last_position,
    padding_counted_in_the_loss,
    pairs_interleaved,
    pooler_on_the_last_token,
    pooler_without_tanh,
    positions_from_0,
    positions_of_real_tokens,
    positions_past_the_end_counted,
    positions_that_count_padding,
    put,
    residual_dropped,
    second_dropout_left_out,
    task_left_out,
    thetas_exchanged,
    untied,
    values_rotated,
    window_on_the_left,
    windows_wider,
    wrong_activation_everywhere,
    wrong_eps,
    zero_bias,
)


class Mistake(NamedTuple):
    """What is done to our side, the first tensor that must be named, and words that the cause must have."""

    name: str
    make: Callable[[Model], None]
    place: str
    cause: str
    heads: tuple[str, ...] = ("masked-lm",)
    families: tuple[str, ...] = ("bert",)


BOTH = ("bert", "distilbert")
OWN_LAYER = ("roberta", "electra")
MODERN = ("modernbert",)
ON_POOLER = ("next-sentence", "sequence-classification", "multiple-choice")
NO_CAUSE, TIED = "no known cause", "gradients: encoder.embeddings.token.weight"
MISTAKES = (
    Mistake(
        "query and key swapped",
        partial(exchange, place="encoder.layers.0.attention", name="query", other="key"),
        "layer 0 query",
        "swapped weights",
        families=BOTH,
    ),
    Mistake("layers swapped", layers_swapped, "layer 0 query", "swapped weights"),
    Mistake(
        "norms swapped",
        partial(exchange, place="encoder.layers.1", name="attention_norm", other="feed_forward_norm"),
        "layer 1 attention norm",
        "swapped norms",
        families=BOTH,
    ),
    Mistake(
        "positions off by one",
        partial(change_input, place="encoder.embeddings.position", change=lambda ids: (ids + 1) % 11),
        "position embeddings",
        "positions: upstream's are one lower",
        families=BOTH,
    ),
    Mistake(
        "bias not loaded",
        partial(zero_bias, place="encoder.layers.1.feed_forward.expand"),
        "layer 1 expand",
        "missing bias",
    ),
    Mistake("zero biases", zero_biases, "layer 0 query", "missing bias", families=BOTH),
    Mistake(
        "pooler bias not loaded",
        partial(zero_bias, place="encoder.pooler.dense"),
        "pooler dense",
        "missing bias",
        ("next-sentence",),
    ),
    Mistake(
        "segments ignored",
        partial(change_input, place="encoder.embeddings.segment", change=torch.zeros_like),
        "segment embeddings",
        "segments: minibert ignores them",
    ),
    Mistake(
        "wrong activation",
        partial(put, place="encoder.layers.1.feed_forward", name="activation", value=ACTIVATION["gelu_pytorch_tanh"]),
        "layer 1 activation",
        "activation: upstream computes gelu;",
        families=BOTH,
    ),
    Mistake(
        "wrong activation everywhere",
        wrong_activation_everywhere,
        "layer 0 activation",
        "activation: upstream computes gelu;",
    ),
    Mistake("wrong eps", wrong_eps, "embedding norm", "eps: upstream's LayerNorms have 1e-12", families=BOTH),
    Mistake(
        "mask inverted",
        partial(attention_with, mask=torch.logical_not),
        "layer 0 scores",
        "mask: minibert reads it inverted",
    ),
    Mistake(
        "mask ignored",
        partial(attention_with, mask=torch.ones_like),
        "layer 0 scores",
        "mask: minibert ignores it",
        families=BOTH,
    ),
    Mistake("wrong scale", partial(attention_with, scale=8**-0.5), "layer 0 scores", NO_CAUSE, families=BOTH),
    Mistake("heads interleaved", heads_interleaved, "layer 0 scores", NO_CAUSE),
    Mistake(
        "heads joined interleaved",
        partial(put, place="encoder", name="attend", value=joined_interleaved),
        "layer 0 attention output",
        NO_CAUSE,
    ),
    Mistake("softmax over queries", partial(attention_with, dim=-2), "layer 0 probs", NO_CAUSE),
    Mistake("residual dropped", residual_dropped, "layer 1 attention sum", NO_CAUSE),
    Mistake("embedding norm left out", embedding_norm_left_out, "embedding norm", ""),
    Mistake("pooler on the last token", pooler_on_the_last_token, "pooler dense", NO_CAUSE, ON_POOLER),
    Mistake("pooler without tanh", pooler_without_tanh, "pooler", NO_CAUSE, ("next-sentence",)),
    Mistake("bias added twice", bias_added_twice, "decoder", NO_CAUSE, families=BOTH),
    Mistake(
        "classes swapped",
        partial(flip, place="next_sentence"),
        "next sentence",
        "weights not loaded",
        ("next-sentence", "pretraining"),
    ),
    Mistake(
        "start and end swapped",
        partial(flip, place="qa_outputs"),
        "span scores",
        "weights not loaded",
        ("question-answering",),
    ),
    Mistake(
        "choices mixed",
        partial(change_output, name="logits", change=lambda output, **_: output.logits.flip(1)),
        "logits: logits",
        "after its last layer",
        ("multiple-choice",),
    ),
    Mistake(
        "ignored tokens counted",
        partial(change_output, name="loss", change=ignored_tokens_counted),
        "losses: loss",
        "labels",
        ("masked-lm", "token-classification"),
        BOTH,
    ),
    Mistake(
        "loss summed",
        partial(change_output, name="loss", change=lambda output, labels, **_: output.loss * len(labels)),
        "losses: loss",
        "labels",
        ("next-sentence",),
    ),
    Mistake(
        "positions past the end counted",
        partial(change_output, name="loss", change=positions_past_the_end_counted),
        "losses: loss",
        "labels",
        ("question-answering",),
    ),
    Mistake("untied", untied, TIED, "shares", ("masked-lm", "pretraining")),
    Mistake("cut off", partial(change_input, place="transform", change=Tensor.detach), TIED, "cut off"),
    Mistake("dropout on scores", partial(attention_with, dropped="scores"), f"{DROPOUT}: layer 0 scores", "dropout"),
    Mistake("dropout on values", partial(attention_with, dropped="values"), f"{DROPOUT}: layer 0 probs", "dropout"),
    Mistake(
        "dropout on embeddings left out",
        partial(put, place="encoder.embeddings.dropout", name="p", value=0.0),
        f"{DROPOUT}: embeddings",
        "dropout",
    ),
    Mistake("dropout after the sum", dropout_after_the_sum, f"{DROPOUT}: layer 0 attention norm", "dropout"),
    Mistake(
        "dropout after attention",
        partial(put, place="encoder.layers.0.attention_residual.dropout", name="p", value=0.1),
        f"{DROPOUT}: layer 0 attention sum",
        "dropout",
        families=("distilbert",),
    ),
    Mistake(
        "dropout of the encoder",
        partial(put, place="dropout", name="p", value=0.1),
        f"{DROPOUT}: classifier input",
        "dropout",
        ("sequence-classification", "token-classification"),
    ),
    Mistake(
        "dropout of the encoder",
        partial(put, place="dropout", name="p", value=0.1),
        f"{DROPOUT}: classifier input",
        "dropout",
        ("sequence-classification",),
        ("distilbert",),
    ),
    Mistake(
        "dropout of the encoder",
        partial(put, place="dropout", name="p", value=0.1),
        f"{DROPOUT}: span input",
        "dropout",
        ("question-answering",),
        BOTH,
    ),
    Mistake("positions from 0", positions_from_0, "position embeddings", NO_CAUSE, families=("roberta",)),
    Mistake(
        "positions that count padding",
        positions_that_count_padding,
        "position embeddings",
        NO_CAUSE,
        families=("roberta",),
    ),
    Mistake(
        "padding after the last position",
        padding_after_the_last_position,
        "position embeddings",
        NO_CAUSE,
        families=("roberta",),
    ),
    Mistake("norm after the map", norm_after_the_map, "embedding norm", "", families=("albert", "electra")),
    Mistake("map left out", map_left_out, "embeddings", NO_CAUSE, families=("albert", "electra")),
    Mistake(
        "layers not shared",
        layers_not_shared,
        "gradients: encoder.layers.0.attention.query.weight",
        "shares",
        families=("albert",),
    ),
    Mistake(
        "gelu by the error function",
        partial(put, place="encoder.layers.0.feed_forward", name="activation", value=ACTIVATION["gelu"]),
        "layer 0 activation",
        "upstream computes gelu_new",
        families=("albert",),
    ),
    Mistake(
        "dropout after the feed forward",
        partial(put, place="encoder.layers.0.feed_forward_residual.dropout", name="p", value=0.1),
        f"{DROPOUT}: layer 0 feed-forward sum",
        "dropout",
        families=("albert",),
    ),
    Mistake(
        "first dropout left out",
        partial(put, place="", name="dropout_before", value=False),
        f"{DROPOUT}: pre-classifier",
        "dropout",
        ("sequence-classification",),
        OWN_LAYER,
    ),
    Mistake(
        "second dropout left out",
        second_dropout_left_out,
        f"{DROPOUT}: classifier input",
        "dropout",
        ("sequence-classification",),
        OWN_LAYER,
    ),
    Mistake(
        "relu in the classifier",
        partial(put, place="", name="activation", value=torch.relu),
        "classifier input",
        "",
        ("sequence-classification",),
        OWN_LAYER,
    ),
    Mistake(
        "task left out",
        task_left_out,
        "embedding sum",
        "",
        families=("ernie",),
    ),
    Mistake(
        "another task",
        partial(change_input, place="encoder.embeddings.task", change=partial(torch.add, other=1)),
        "task embeddings",
        NO_CAUSE,
        families=("ernie",),
    ),
    Mistake(
        "order exchanged",
        partial(flip, place="sentence_order"),
        "sentence order",
        "weights not loaded",
        ("pretraining",),
        ("albert",),
    ),
    Mistake(
        "dropout before the order left out",
        partial(put, place="dropout", name="p", value=0.0),
        f"{DROPOUT}: sentence order",
        "dropout",
        ("pretraining",),
        ("albert",),
    ),
    Mistake(
        "padding counted in the loss",
        partial(change_output, name="loss", change=padding_counted_in_the_loss),
        "losses: loss",
        "labels",
        ("replaced-token-detection",),
        ("electra",),
    ),
    Mistake("thetas exchanged", thetas_exchanged, "layer 0 scores", "exchanges the thetas", families=MODERN),
    Mistake(
        "window one further",
        partial(windows_wider, by=2),
        "layer 1 scores",
        "reaches one token less",
        families=MODERN,
    ),
    Mistake(
        "window one less", partial(windows_wider, by=-2), "layer 1 scores", "reaches one token further", families=MODERN
    ),
    Mistake("window on the left", window_on_the_left, "layer 1 scores", NO_CAUSE, families=MODERN),
    Mistake("pairs interleaved", pairs_interleaved, "layer 0 scores", NO_CAUSE, families=MODERN),
    Mistake("values rotated", values_rotated, "layer 0 context", NO_CAUSE, families=MODERN),
    Mistake(
        "gate and value exchanged",
        partial(exchange, place="encoder.layers.1.feed_forward", name="expand", other="gate"),
        "layer 1 expand",
        "swapped weights",
        families=MODERN,
    ),
    Mistake(
        "norm before the first attention",
        norm_before_the_first_attention,
        "layer 0 attention norm",
        "layer 0 has none before its attention",
        families=MODERN,
    ),
    Mistake(
        "final norm left out",
        partial(put, place="encoder", name="__class__", value=Encoder),
        "transform",
        "",
        families=MODERN,
    ),
    Mistake("positions that skip padding", positions_of_real_tokens, "layer 0 scores", NO_CAUSE, families=MODERN),
)
