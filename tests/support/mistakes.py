"""Mistakes made on purpose, each of which the parity ladder must find at its place, and say its cause.

Here are those that need a certain batch, mode, rung or explanation to be seen. What a port of the equations gets wrong
is a list for `minibert check` (minibert/checking/mistakes.py); that the ladder finds a change of any stage is one test.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minibert import model
from minibert.activations import ACTIVATION
from minibert.checking.relatives import exchange, ignore_mask, scale_scores, set_eps
from minibert.parity.compare import DROPOUT
from support.models import zero_biases

Model = Any


# What is done at a place: a module by its name, "" for the whole model.


def put(ours: Model, place: str, name: str, value: Any) -> None:
    setattr(ours.get_submodule(place), name, value)


def change_input(ours: Model, place: str, change: Callable[[Tensor], Tensor]) -> None:
    ours.get_submodule(place).register_forward_pre_hook(lambda module, given: (change(given[0]),))


def change_output(ours: Model, name: str, change: Callable[..., Any]) -> None:
    """The loss, or the logits, become change(output, **labels)."""
    right = ours.forward

    def forward(*given: Any, **more: Any) -> Any:
        output = right(*given, **more)
        return output if getattr(output, name) is None else replace(output, **{name: change(output, **more)})

    ours.forward = forward


def change_positions(ours: Model, positions: Callable[[Tensor, int, int], Tensor]) -> None:
    """positions: of ids, the id of [PAD] and the position of the first token."""
    pad, first = ours.config.pad_token_id, ours.config.architecture.first_position
    ours.encoder.embeddings.positions = lambda ids: positions(ids, pad, first)


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
    drops_scores: bool = False,
) -> Any:
    """Eager attention, of which the mask and the place of the dropout can be changed."""
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    scores = scores.masked_fill(~mask(layout.keep), torch.finfo().min)
    probs = dropout(scores).softmax(dim=-1) if drops_scores else dropout(scores.softmax(dim=-1))
    return probs @ value, probs


# Mistakes that are more than that.


def dropout_after_the_sum(ours: Model) -> None:
    layer = ours.encoder.layers[0]
    layer.attention_norm.register_forward_hook(lambda module, given, x: layer.attention_residual.dropout(x))


def outputs_flipped(ours: Model) -> None:
    with torch.no_grad():
        for parameter in ours.qa_outputs.parameters():
            parameter.copy_(parameter.flip(0))


def untied(ours: Model) -> None:
    ours.decoder.weight = nn.Parameter(ours.encoder.embeddings.token.weight.detach().clone())


def layers_not_shared(ours: Model) -> None:
    """Each step has a copy of its own, as equal as it can be before anything is learned."""
    steps = ours.config.architecture.order
    ours.encoder.layers = nn.ModuleList(copy.deepcopy(ours.encoder.layers[number]) for number in steps)
    ours.encoder.order = tuple(range(len(steps)))
    object.__setattr__(ours.config, "architecture", replace(ours.config.architecture, order=ours.encoder.order))


def ignored_tokens_counted(output: Any, labels: Tensor, **_: Any) -> Tensor:
    return F.cross_entropy(output.logits.flatten(0, 1), labels.clamp(min=0).flatten(), ignore_index=-1)


def padding_counted(output: Any, labels: Tensor, **_: Any) -> Tensor:
    return F.binary_cross_entropy_with_logits(output.logits, labels.clamp(min=0).float())


def positions_past_the_end_counted(output: Any, start_positions: Tensor, end_positions: Tensor, **_: Any) -> Any:
    sides = ((output.start_logits, start_positions), (output.end_logits, end_positions))
    return sum(F.cross_entropy(logits, places.clamp(0, logits.shape[1] - 1)) for logits, places in sides) / 2


class Mistake(NamedTuple):
    """What is done to our side, the first tensor that must be named, and words that the cause must have."""

    name: str
    make: Callable[[Model], None]
    place: str
    cause: str
    head: str = "masked-lm"
    families: tuple[str, ...] = ("bert",)


BOTH, ROBERTA, ALBERT, MODERN = ("bert", "distilbert"), ("roberta",), ("albert",), ("modernbert",)
NO_CAUSE = "no known cause"
MISTAKES = (
    # Loading
    Mistake(
        "query and key swapped",
        partial(exchange, part="attention", one="query", other="key"),
        "layer 0 query",
        "swapped weights",
        families=BOTH,
    ),
    Mistake(
        "norms swapped",
        partial(exchange, part="", one="attention_norm", other="feed_forward_norm"),
        "layer 0 attention norm",
        "swapped norms",
        families=BOTH,
    ),
    Mistake("zero biases", zero_biases, "layer 0 query", "missing bias", families=BOTH),
    Mistake("start and end swapped", outputs_flipped, "span scores", "weights not loaded", "question-answering"),
    # Computing
    Mistake(
        "wrong activation",
        partial(put, place="encoder.layers.1.feed_forward", name="activation", value=ACTIVATION["gelu_pytorch_tanh"]),
        "layer 1 activation",
        "activation: upstream computes gelu;",
        families=BOTH,
    ),
    Mistake(
        "gelu by the error function",
        partial(put, place="encoder.layers.0.feed_forward", name="activation", value=ACTIVATION["gelu"]),
        "layer 0 activation",
        "upstream computes gelu_new",
        families=ALBERT,
    ),
    Mistake(
        "wrong eps",
        partial(set_eps, eps=1e-5),
        "embedding norm",
        "eps: upstream's LayerNorms have 1e-12",
        families=BOTH,
    ),
    Mistake("wrong scale", partial(scale_scores, power=-0.5), "layer 0 scores", NO_CAUSE, families=BOTH),
    Mistake(
        "positions off by one",
        partial(change_input, place="encoder.embeddings.position", change=lambda ids: (ids + 1) % 11),
        "position embeddings",
        "positions: upstream's are one lower",
        families=BOTH,
    ),
    # What only padding, a second text or labels of a certain kind show
    Mistake(
        "segments ignored",
        partial(change_input, place="encoder.embeddings.segment", change=torch.zeros_like),
        "segment embeddings",
        "segments: minibert ignores them",
    ),
    Mistake(
        "mask inverted",
        partial(attention_with, mask=torch.logical_not),
        "layer 0 scores",
        "mask: minibert reads it inverted",
    ),
    Mistake("mask ignored", ignore_mask, "layer 0 scores", "mask: minibert ignores it", families=BOTH),
    Mistake(
        "positions that count padding",
        partial(
            change_positions, positions=lambda ids, pad, first: (first + torch.arange(ids.shape[1])).expand_as(ids)
        ),
        "position embeddings",
        NO_CAUSE,
        families=ROBERTA,
    ),
    Mistake(
        "padding after the last position",
        partial(change_positions, positions=lambda ids, pad, first: first - 1 + (ids != pad).cumsum(dim=1)),
        "position embeddings",
        NO_CAUSE,
        families=ROBERTA,
    ),
    Mistake(
        "positions that skip padding",
        partial(change_positions, positions=lambda ids, pad, first: (ids != pad).cumsum(dim=1) - 1),
        "layer 0 scores",
        NO_CAUSE,
        families=MODERN,
    ),
    # After the last layer
    Mistake(
        "choices mixed",
        partial(change_output, name="logits", change=lambda output, **_: output.logits.flip(1)),
        "logits: logits",
        "after its last layer",
        "multiple-choice",
    ),
    Mistake(
        "ignored tokens counted",
        partial(change_output, name="loss", change=ignored_tokens_counted),
        "losses: loss",
        "labels",
        families=BOTH,
    ),
    Mistake(
        "padding counted",
        partial(change_output, name="loss", change=padding_counted),
        "losses: loss",
        "labels",
        "replaced-token-detection",
        ("electra",),
    ),
    Mistake(
        "positions past the end counted",
        partial(change_output, name="loss", change=positions_past_the_end_counted),
        "losses: loss",
        "labels",
        "question-answering",
    ),
    # In training
    Mistake("untied", untied, "gradients: encoder.embeddings.token.weight", "shares"),
    Mistake(
        "cut off",
        partial(change_input, place="transform", change=Tensor.detach),
        "gradients: encoder.embeddings.token.weight",
        "cut off",
    ),
    Mistake(
        "layers not shared",
        layers_not_shared,
        "gradients: encoder.layers.0.attention.query.weight",
        "shares",
        families=ALBERT,
    ),
    Mistake("dropout on scores", partial(attention_with, drops_scores=True), f"{DROPOUT}: layer 0 scores", "dropout"),
    Mistake("dropout after the sum", dropout_after_the_sum, f"{DROPOUT}: layer 0 attention norm", "dropout"),
    Mistake(
        "dropout of the encoder",
        partial(put, place="dropout", name="p", value=0.1),
        f"{DROPOUT}: span input",
        "dropout",
        "question-answering",
        BOTH,
    ),
    Mistake(
        "first dropout left out",
        partial(put, place="", name="dropout_before", value=False),
        f"{DROPOUT}: pre-classifier",
        "dropout",
        "sequence-classification",
        ("roberta", "electra"),
    ),
)
