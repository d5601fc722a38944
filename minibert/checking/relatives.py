"""Known mistakes of ports of a relative that the reference does not compute, each as a change of minibert's own model.

ALBERT, ModernBERT, an ELECTRA with narrow tables, and checkpoints with another activation than GELU.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from minibert.activations import ACTIVATION

ACTIVATIONS = ("gelu", "gelu_new", "quick_gelu", "silu", "relu")  # by which ports replace each other
PRODUCTS = ("query", "value", "output", "expand", "gate", "contract")  # the bias of key changes no probability


class Change(NamedTuple):
    """A mistake that is made on a model; one whose model lacks what it changes raises AttributeError or TypeError."""

    cause: str  # what is wrong, for a message
    make: Callable[[Any], None]


class Unchanged(nn.Module):
    """A layer that is left out: its probabilities are computed, and its output is not used."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, *more: Any) -> tuple[Tensor, Any]:
        """(B,S,D) -> the same, and the probabilities."""
        return x, self.layer(x, *more)[1]


class Twice(Unchanged):
    """A layer that is used twice."""

    def forward(self, x: Tensor, *more: Any) -> tuple[Tensor, Any]:
        """(B,S,D) -> (B,S,D), and the probabilities of the second time."""
        result: tuple[Tensor, Any] = self.layer(self.layer(x, *more)[0], *more)
        return result


def encoder_of(model: Any) -> Any:
    """Return the encoder of a model with a head, or the model."""
    return getattr(model, "encoder", model)


def in_layers(change: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return what makes a change in each layer."""

    def make(model: Any) -> None:
        for layer in encoder_of(model).layers:
            change(layer)

    return make


def exchange(part: str, one: str, other: str) -> Callable[[Any], None]:
    """Return what exchanges two modules of a part of each layer."""

    def make(layer: Any) -> None:
        module = getattr(layer, part)
        first, second = getattr(module, one), getattr(module, other)
        setattr(module, one, second)
        setattr(module, other, first)

    return in_layers(make)


def fill(modules: Callable[[Any], Iterator[Any]], name: str, value: float) -> Callable[[Any], None]:
    """Return what sets a parameter of these modules to a number. It raises TypeError if none of them has it."""

    def make(model: Any) -> None:
        parameters = [x for x in (getattr(module, name) for module in modules(model)) if x is not None]
        if not parameters:
            raise TypeError(f"no {name}")
        for x in parameters:
            x.data.fill_(value)

    return make


def norms(model: Any) -> Iterator[Any]:
    """Yield the norms of a model."""
    return (module for module in model.modules() if hasattr(module, "eps"))


def products(name: str) -> Callable[[Any], Iterator[Any]]:
    """Return what yields the linear layers of this name."""
    return lambda model: (x for path, x in encoder_of(model).layers.named_modules() if path.endswith(f".{name}"))


def set_eps(eps: float) -> Callable[[Any], None]:
    """Return what sets the eps of all norms."""

    def make(model: Any) -> None:
        for norm in norms(model):
            norm.eps = eps

    return make


def set_activation(name: str) -> Callable[[Any], None]:
    """Return what sets the activation of the feed-forward."""
    return in_layers(lambda layer: setattr(layer.feed_forward, "activation", ACTIVATION[name]))


def scale_scores(power: float) -> Callable[[Any], None]:
    """Return what multiplies the scores by W to this power."""

    def make(model: Any) -> None:
        encoder = encoder_of(model)
        attend = encoder.attend
        encoder.attend = lambda query, *more: attend(query * query.shape[-1] ** power, *more)

    return make


def ignore_mask(model: Any) -> None:
    """Let tokens attend to padding."""
    encoder = encoder_of(model)
    forward = encoder.forward
    encoder.forward = lambda ids, **more: forward(ids, **(more | {"attention_mask": torch.ones_like(ids)}))


def change_heads(factor: float) -> Callable[[Any], None]:
    """Return what cuts the vectors into heads of another width."""

    def make(layer: Any) -> None:
        layer.attention.head_size = int(layer.attention.head_size * factor)

    return in_layers(make)


def change_table(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    """Return what changes a table of the embeddings."""

    def make(model: Any) -> None:
        table = getattr(encoder_of(model).embeddings, name).weight
        table.data.copy_(change(table.data))

    return make


def roll_positions(by: int) -> Callable[[Any], None]:
    """Return what gives each position the vector of another one."""
    return change_table("position", lambda x: x.roll(by, 0))


def leave_out(path: str) -> Callable[[Any], None]:
    """Return what leaves a module out. It raises AttributeError if there is none."""

    def make(model: Any) -> None:
        model = model if path.startswith("transform") else encoder_of(model)
        model.get_submodule(path)
        model.set_submodule(path, nn.Identity())

    return make


def turn_neighbours(layer: Any) -> None:
    """Turn numbers 2i and 2i + 1 together, which are numbers i and i + W/2 of a head in another order."""
    for product in (layer.attention.query, layer.attention.key):
        for x in (product.weight, product.bias):
            if x is not None:
                pairs = x.data.unflatten(0, (-1, layer.attention.head_size // 2, 2))
                x.data.copy_(pairs.movedim(2, 1).flatten(0, 2))


def same_theta(which: int) -> Callable[[Any], None]:
    """Return what gives all layers the angles of one of them."""

    def make(model: Any) -> None:
        layers = encoder_of(model).layers
        for layer in layers:
            layer.attention.theta = layers[which].attention.theta

    return make


def widen_windows(layer: Any) -> None:
    """Let a token attend to as many on each side as the window has in all."""
    if layer.attention.window is not None:
        layer.attention.window *= 2


def norm_first_layer(model: Any) -> None:
    """Normalise the embeddings once more. Raises AttributeError where the first layer has a norm anyway."""
    encoder = encoder_of(model)
    if not isinstance(encoder.layers[0].attention_norm, nn.Identity):
        raise AttributeError("it is right")
    encoder.layers[0].attention_norm = nn.LayerNorm(
        encoder.config.hidden_size, eps=encoder.config.layer_norm_eps, bias=False
    )


def unrotated(model: Any) -> None:
    """Give all tokens position 0. Raises AttributeError if the model has no rotary positions."""
    encoder = encoder_of(model)
    if not encoder.config.architecture.rotary_thetas:
        raise AttributeError("the model has no rotary positions")
    encoder.embeddings.positions = lambda ids: torch.zeros(ids.shape[1], dtype=torch.long)


def reorder(order: Callable[[int], tuple[int, ...]]) -> Callable[[Any], None]:
    """Return what computes the layers in another order."""

    def make(model: Any) -> None:
        encoder = encoder_of(model)
        encoder.order = order(len(encoder.order))

    return make


def wrap(number: int, wrapper: type[Unchanged]) -> Callable[[Any], None]:
    """Return what wraps a layer. It raises AttributeError where steps share layers."""

    def make(model: Any) -> None:
        encoder = encoder_of(model)
        if len(encoder.layers) < len(encoder.order):
            raise AttributeError("the steps share layers")
        encoder.layers[number] = wrapper(encoder.layers[number])

    return make


def known_changes(model: Any) -> list[Change]:
    """Return the known mistakes of ports of this model; see mistakes.text_of for the values in their texts."""
    config = encoder_of(model).config
    first = config.architecture.first_position
    each_layer = range(config.num_hidden_layers)
    rows = [
        *((f"eps is {eps}, not {{eps}}", set_eps(float(eps))) for eps in ("1e-5", "1e-6", "1e-12", "0")),
        *((f"the activation is {name}, not {config.hidden_act}", set_activation(name)) for name in ACTIVATIONS),
        ("the scores are not divided by √W", scale_scores(0.5)),
        ("the scores are divided by √W twice", scale_scores(-0.5)),
        ("the mask is not used: padding is attended to", ignore_mask),
        ("there are twice as many heads", change_heads(0.5)),
        ("there are half as many heads", change_heads(2)),
        ("query and key are exchanged", exchange("attention", "query", "key")),
        ("key and value are exchanged", exchange("attention", "key", "value")),
        ("query and value are exchanged", exchange("attention", "query", "value")),
        *((f"the bias of {name} is left out", fill(products(name), "bias", 0.0)) for name in PRODUCTS),
        ("the weights (gamma) of the norms are not used", fill(norms, "weight", 1.0)),
        ("the biases (beta) of the norms are not used", fill(norms, "bias", 0.0)),
        ("positions are not added", change_table("position", torch.zeros_like)),
        *((f"positions begin at {n}, not at {{first}}", roll_positions(first - n)) for n in range(4)),
        ("all tokens are in segment 0", change_table("segment", lambda x: x[:1].expand_as(x).clone())),
        ("segments 0 and 1 are exchanged", change_table("segment", lambda x: x.flip(0))),
        ("segments are not added", change_table("segment", torch.zeros_like)),
        ("the token embedding is multiplied by √D", change_table("token", lambda x: x * math.sqrt(x.shape[1]))),
        ("the norm of the embeddings is left out", leave_out("embeddings.norm")),
        ("the bias of the projection of the embeddings is left out", leave_out_projection_bias),
        ("queries and keys are not turned by their positions", unrotated),
        ("neighbours are turned together (2i and 2i + 1), not i and i + W/2", in_layers(turn_neighbours)),
        ("all layers have the angles of the first, a global one", same_theta(0)),
        ("all layers have the angles of the second, a local one", same_theta(1)),
        ("local layers attend to all tokens", in_layers(lambda layer: setattr(layer.attention, "window", None))),
        ("the window is on each side, not in all", in_layers(widen_windows)),
        ("activation and gate are exchanged", exchange("feed_forward", "expand", "gate")),
        ("the first layer normalises its input, which the embeddings did", norm_first_layer),
        ("the final norm is left out", leave_out("final_norm")),
        ("the norm of the transform is left out", leave_out("transform_norm")),
        ("the layers are in reverse order", reorder(lambda steps: tuple(reversed(range(steps))))),
        ("all layers have the weights of the first", reorder(lambda steps: (0,) * steps)),
        *((f"layer {number} is left out", wrap(number, Unchanged)) for number in each_layer),
        *((f"layer {number} is used twice", wrap(number, Twice)) for number in each_layer),
    ]
    return [Change(cause, make) for cause, make in rows]


def leave_out_projection_bias(model: Any) -> None:
    """Set the bias of the projection to 0."""
    encoder_of(model).embeddings.embedding_projection.bias.data.zero_()
