"""Known mistakes of ports of a relative that the reference does not compute, each as a change of minibert's own model.

ALBERT, ModernBERT, an ELECTRA with narrow tables, and checkpoints with another activation than GELU.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from minibert.activations import ACTIVATION

ACTIVATIONS = ("gelu", "gelu_new", "quick_gelu", "silu", "relu")  # by which ports replace each other
PRODUCTS = ("query", "value", "output", "expand", "gate", "contract")  # the bias of key changes no probability


class Change(NamedTuple):
    """A mistake that is made on a model; one whose model lacks what it changes raises AttributeError or TypeError."""

    cause: str  # what is wrong, for a message
    change: Callable[..., None]
    arguments: tuple[Any, ...]  # of the change, after the model

    def make(self, model: Any) -> None:
        """Change a model."""
        self.change(model, *self.arguments)


def encoder_of(model: Any) -> Any:
    """Return the encoder of a model with a head, or the model."""
    return getattr(model, "encoder", model)


def exchange(model: Any, part: str, one: str, other: str) -> None:
    """Exchange two modules of a part of each layer; part "": of the layer itself."""
    for layer in encoder_of(model).layers:
        module = layer.get_submodule(part)
        first, second = getattr(module, one), getattr(module, other)
        setattr(module, one, second)
        setattr(module, other, first)


def put(model: Any, part: str, name: str, value: Any) -> None:
    """Set an attribute of a part of each layer."""
    for layer in encoder_of(model).layers:
        setattr(getattr(layer, part), name, value)


def fill(model: Any, ending: str, name: str, value: float) -> None:
    """Set a parameter of the modules whose names end so to a number. Raises TypeError if none of them has it."""
    modules = (module for path, module in model.named_modules() if path.endswith(ending))
    parameters = [x for module in modules if (x := getattr(module, name, None)) is not None]
    if not parameters:
        raise TypeError(f"no {name}")
    for x in parameters:
        x.data.fill_(value)


def set_eps(model: Any, eps: float) -> None:
    """Set the eps of all norms."""
    for module in model.modules():
        if hasattr(module, "eps"):
            module.eps = eps


def scale_scores(model: Any, power: float) -> None:
    """Multiply the scores by W to this power."""
    encoder = encoder_of(model)
    attend = encoder.attend
    encoder.attend = lambda query, *more: attend(query * query.shape[-1] ** power, *more)


def ignore_mask(model: Any) -> None:
    """Let tokens attend to padding."""
    encoder = encoder_of(model)
    forward = encoder.forward
    encoder.forward = lambda ids, **more: forward(ids, **(more | {"attention_mask": torch.ones_like(ids)}))


def change_heads(model: Any, factor: float) -> None:
    """Cut the vectors into heads of another width."""
    for layer in encoder_of(model).layers:
        layer.attention.head_size = int(layer.attention.head_size * factor)


def change_table(model: Any, name: str, change: Callable[[Tensor], Tensor]) -> None:
    """Change a table of the embeddings."""
    table = getattr(encoder_of(model).embeddings, name).weight
    table.data.copy_(change(table.data))


def move_positions(model: Any, by: int) -> None:
    """Give each position the vector of another one."""
    change_table(model, "position", lambda x: x.roll(by, 0))


def leave_out(model: Any, path: str) -> None:
    """Leave a module out. Raises AttributeError if there is none."""
    model = model if path.startswith("transform") else encoder_of(model)
    model.get_submodule(path)
    model.set_submodule(path, nn.Identity())


def turn_neighbours(model: Any) -> None:
    """Turn numbers 2i and 2i + 1 together, which are numbers i and i + W/2 of a head in another order."""
    for layer in encoder_of(model).layers:
        for product in (layer.attention.query, layer.attention.key):
            for x in product.parameters():
                pairs = x.data.unflatten(0, (-1, layer.attention.head_size // 2, 2))
                x.data.copy_(pairs.movedim(2, 1).flatten(0, 2))


def same_theta(model: Any, which: int) -> None:
    """Give all layers the angles of one of them."""
    put(model, "attention", "theta", encoder_of(model).layers[which].attention.theta)


def widen_windows(model: Any) -> None:
    """Let a token attend to as many on each side as the window has in all."""
    for layer in encoder_of(model).layers:
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


def reorder(model: Any, order: Sequence[int]) -> None:
    """Compute the layers in another order."""
    encoder_of(model).order = order


def repeat(model: Any, number: int, times: int) -> None:
    """Use a layer twice, or not at all. Raises AttributeError where steps share layers."""
    encoder = encoder_of(model)
    if len(encoder.layers) < len(encoder.order):
        raise AttributeError("the steps share layers")
    forward = encoder.layers[number].forward

    def changed(x: Tensor, *more: Any) -> tuple[Tensor, Any]:
        after, probabilities = forward(x, *more)
        return forward(after, *more) if times == 2 else (x, probabilities)

    encoder.layers[number].forward = changed


def known_changes(model: Any) -> list[Change]:
    """Return the known mistakes of ports of this model; see mistakes.text_of for the values in their texts."""
    config = encoder_of(model).config
    first, own = config.architecture.first_position, config.hidden_act
    steps = len(encoder_of(model).order)
    each_layer = range(config.num_hidden_layers)
    rows: list[tuple[Any, ...]] = [
        *((f"eps is {eps}, not {{eps}}", set_eps, float(eps)) for eps in ("1e-5", "1e-6", "1e-12", "0")),
        *((f"the activation is {a}, not {own}", put, "feed_forward", "activation", ACTIVATION[a]) for a in ACTIVATIONS),
        ("the scores are not divided by √W", scale_scores, 0.5),
        ("the scores are divided by √W twice", scale_scores, -0.5),
        ("the mask is not used: padding is attended to", ignore_mask),
        ("there are twice as many heads", change_heads, 0.5),
        ("there are half as many heads", change_heads, 2),
        ("query and key are exchanged", exchange, "attention", "query", "key"),
        ("key and value are exchanged", exchange, "attention", "key", "value"),
        ("query and value are exchanged", exchange, "attention", "query", "value"),
        *((f"the bias of {name} is left out", fill, f".{name}", "bias", 0.0) for name in PRODUCTS),
        ("the weights (gamma) of the norms are not used", fill, "norm", "weight", 1.0),
        ("the biases (beta) of the norms are not used", fill, "norm", "bias", 0.0),
        ("positions are not added", change_table, "position", torch.zeros_like),
        *((f"positions begin at {n}, not at {{first}}", move_positions, first - n) for n in range(4)),
        ("all tokens are in segment 0", change_table, "segment", lambda x: x[:1].expand_as(x).clone()),
        ("segments 0 and 1 are exchanged", change_table, "segment", lambda x: x.flip(0)),
        ("segments are not added", change_table, "segment", torch.zeros_like),
        ("the token embedding is multiplied by √D", change_table, "token", lambda x: x * math.sqrt(x.shape[1])),
        ("the norm of the embeddings is left out", leave_out, "embeddings.norm"),
        ("the bias of the projection of the embeddings is left out", fill, "embedding_projection", "bias", 0.0),
        ("queries and keys are not turned by their positions", unrotated),
        ("neighbours are turned together (2i and 2i + 1), not i and i + W/2", turn_neighbours),
        ("all layers have the angles of the first, a global one", same_theta, 0),
        ("all layers have the angles of the second, a local one", same_theta, 1),
        ("local layers attend to all tokens", put, "attention", "window", None),
        ("the window is on each side, not in all", widen_windows),
        ("activation and gate are exchanged", exchange, "feed_forward", "expand", "gate"),
        ("the first layer normalises its input, which the embeddings did", norm_first_layer),
        ("the final norm is left out", leave_out, "final_norm"),
        ("the norm of the transform is left out", leave_out, "transform_norm"),
        ("the layers are in reverse order", reorder, range(steps)[::-1]),
        ("all layers have the weights of the first", reorder, (0,) * steps),
        *((f"layer {number} is left out", repeat, number, 0) for number in each_layer),
        *((f"layer {number} is used twice", repeat, number, 2) for number in each_layer),
    ]
    return [Change(cause, change, tuple(arguments)) for cause, change, *arguments in rows]
