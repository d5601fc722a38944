"""Every tensor of one forward pass, under one name, in minibert and in transformers.

The table below is the map: a stage, our module, BERT's and DistilBERT's, and what is read there. Forward hooks read
what goes into a module and what comes out. The scores and probabilities of attention belong to no module: a
TorchFunctionMode watches the calls that really compute them, softmax and the product with the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minibert.model import Encoder

IN, OUT, SCORES, PROBS, CONTEXT = "input", "output", "scores", "probs", "context"

# In the order of computation; `{}` is the layer.
# stage                 minibert                           BERT                                            DistilBERT                                what is read
STAGES = (
    ("token embeddings", "embeddings.token", "embeddings.word_embeddings", "embeddings.word_embeddings", OUT),
    ("segment embeddings", "embeddings.segment", "embeddings.token_type_embeddings", None, OUT),
    (
        "position embeddings",
        "embeddings.position",
        "embeddings.position_embeddings",
        "embeddings.position_embeddings",
        OUT,
    ),
    ("embedding sum", "embeddings.norm", "embeddings.LayerNorm", "embeddings.LayerNorm", IN),
    ("embedding norm", "embeddings.norm", "embeddings.LayerNorm", "embeddings.LayerNorm", OUT),
    ("embeddings", "embeddings", "embeddings", "embeddings", OUT),
    (
        "query",
        "layers.{}.attention.query",
        "encoder.layer.{}.attention.self.query",
        "transformer.layer.{}.attention.q_lin",
        OUT,
    ),
    (
        "key",
        "layers.{}.attention.key",
        "encoder.layer.{}.attention.self.key",
        "transformer.layer.{}.attention.k_lin",
        OUT,
    ),
    (
        "value",
        "layers.{}.attention.value",
        "encoder.layer.{}.attention.self.value",
        "transformer.layer.{}.attention.v_lin",
        OUT,
    ),
    ("scores", "layers.{}.attention", "encoder.layer.{}.attention.self", "transformer.layer.{}.attention", SCORES),
    ("probs", "layers.{}.attention", "encoder.layer.{}.attention.self", "transformer.layer.{}.attention", PROBS),
    ("context", "layers.{}.attention", "encoder.layer.{}.attention.self", "transformer.layer.{}.attention", CONTEXT),
    (
        "attention output",
        "layers.{}.attention.output",
        "encoder.layer.{}.attention.output.dense",
        "transformer.layer.{}.attention.out_lin",
        OUT,
    ),
    (
        "attention sum",
        "layers.{}.attention_norm",
        "encoder.layer.{}.attention.output.LayerNorm",
        "transformer.layer.{}.sa_layer_norm",
        IN,
    ),
    (
        "attention norm",
        "layers.{}.attention_norm",
        "encoder.layer.{}.attention.output.LayerNorm",
        "transformer.layer.{}.sa_layer_norm",
        OUT,
    ),
    (
        "expand",
        "layers.{}.feed_forward.expand",
        "encoder.layer.{}.intermediate.dense",
        "transformer.layer.{}.ffn.lin1",
        OUT,
    ),
    (
        "activation",
        "layers.{}.feed_forward.contract",
        "encoder.layer.{}.output.dense",
        "transformer.layer.{}.ffn.lin2",
        IN,
    ),
    (
        "contract",
        "layers.{}.feed_forward.contract",
        "encoder.layer.{}.output.dense",
        "transformer.layer.{}.ffn.lin2",
        OUT,
    ),
    (
        "feed-forward sum",
        "layers.{}.feed_forward_norm",
        "encoder.layer.{}.output.LayerNorm",
        "transformer.layer.{}.output_layer_norm",
        IN,
    ),
    (
        "feed-forward norm",
        "layers.{}.feed_forward_norm",
        "encoder.layer.{}.output.LayerNorm",
        "transformer.layer.{}.output_layer_norm",
        OUT,
    ),
    ("layer", "layers.{}", "encoder.layer.{}", "transformer.layer.{}", OUT),
    ("pooler dense", "pooler.dense", "pooler.dense", None, OUT),
    ("pooler", "pooler", "pooler", None, OUT),
    # the heads
    ("transform", "transform", "cls.predictions.transform.dense", "vocab_transform", OUT),
    ("transform activation", "transform_norm", "cls.predictions.transform.LayerNorm", "vocab_layer_norm", IN),
    ("transform norm", "transform_norm", "cls.predictions.transform.LayerNorm", "vocab_layer_norm", OUT),
    ("decoder", "decoder", "cls.predictions.decoder", "vocab_projector", OUT),
    ("next sentence", "next_sentence", "cls.seq_relationship", None, OUT),
    ("pre-classifier", "pre_classifier", None, "pre_classifier", OUT),
    ("classifier input", "classifier", "classifier", "classifier", IN),
    ("classifier", "classifier", "classifier", "classifier", OUT),
    ("span input", "qa_outputs", "qa_outputs", "qa_outputs", IN),
    ("span scores", "qa_outputs", "qa_outputs", "qa_outputs", OUT),
)
COLUMN = {"minibert": 1, "bert": 2, "distilbert": 3}
NOT_IN_SDPA = ("scores", "probs")  # the fused kernel never stores them


class Place(NamedTuple):
    """Where a tensor stands: its stage and, inside the encoder, its layer."""

    stage: str
    layer: int | None = None

    def __str__(self) -> str:
        return self.stage if self.layer is None else f"layer {self.layer} {self.stage}"


Tensors = dict[Place, Tensor]


@dataclass(frozen=True)
class Batch:
    """One batch for both sides: ids, mask and segments, (B, S) each; for multiple choice (B, C, S)."""

    input_ids: Tensor
    attention_mask: Tensor
    token_type_ids: Tensor

    def to(self, device: str | torch.device) -> Batch:
        """The same batch on another device."""
        return Batch(*(tensor.to(device) for tensor in (self.input_ids, self.attention_mask, self.token_type_ids)))


def column(model: nn.Module) -> str:
    """Whose model it is: "minibert", or the model type of an upstream model."""
    return "minibert" if isinstance(base(model), Encoder) else str(model.config.model_type)  # type: ignore[union-attr]  # upstream has a config too


def base(model: nn.Module) -> nn.Module:
    """The encoder below a head, ours (`encoder`) or upstream's (`bert`, `distilbert`); itself where it has no head."""
    for name in ("encoder", "bert", "distilbert"):
        below = getattr(model, name, None)
        if isinstance(below, nn.Module) and hasattr(below, "embeddings"):
            return below
    return model


def find(model: nn.Module, path: str) -> nn.Module | None:
    """The module at a path of the table, looked up in the encoder and then in the head; None where it is absent."""
    for found in (base(model), model):
        for name in path.split("."):
            found = getattr(found, name, None)  # type: ignore[assignment]  # a name may lead nowhere
        if isinstance(found, nn.Module):
            return found
    return None


def places(model: nn.Module) -> Iterator[tuple[Place, nn.Module, str]]:
    """Every stage of this model in the order of computation, with the module and what is read there."""
    layers = int(base(model).config.num_hidden_layers)  # type: ignore[union-attr,arg-type]  # both sides have a config
    in_layers = [row for row in STAGES if "{}" in row[1]]
    before = STAGES[: STAGES.index(in_layers[0])]
    rows = [(row, None) for row in before] + [(row, i) for i in range(layers) for row in in_layers]
    for row, layer in [*rows, *((row, None) for row in STAGES[len(before) + len(in_layers) :])]:
        path = row[COLUMN[column(model)]]
        module = find(model, path.format(layer)) if path else None
        if module is not None:
            yield Place(row[0], layer), module, row[4]


class WatchAttention(TorchFunctionMode):
    """Reads the scores that enter softmax, the probabilities that weigh the values, and the context that results."""

    def __init__(self, kept: Tensors) -> None:
        super().__init__()
        self.kept = kept
        self.layer: int | None = None  # the attention being computed
        self.awaits_product = False

    def enter(self, layer: int | None, *_: object) -> None:
        """An attention module begins."""
        self.layer, self.awaits_product = layer, False

    def leave(self, *_: object) -> None:
        """An attention module is done."""
        self.layer = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if self.layer is not None and name == "softmax":
            self.keep(SCORES, args[0])
            self.awaits_product = True
        elif self.layer is not None and self.awaits_product and name in ("matmul", "__matmul__"):
            self.keep(PROBS, args[0])
            self.keep(CONTEXT, result)
            self.awaits_product = False
        elif self.layer is not None and name == "scaled_dot_product_attention":
            self.keep(CONTEXT, result)
        return result

    def keep(self, stage: str, tensor: Tensor) -> None:
        """Remember one tensor of this layer's attention."""
        self.kept[Place(stage, self.layer)] = tensor.detach()


@contextmanager
def recording(model: nn.Module) -> Iterator[Tensors]:
    """Yield a dictionary that fills, in the order of computation, with every stage of the next forward pass."""
    kept: Tensors = {}
    watch = WatchAttention(kept)

    def keep(place: Place, what: str, module: nn.Module, given: tuple[Any, ...], returned: Any) -> None:
        value = given[0] if what == IN else returned
        kept[place] = (value[0] if isinstance(value, tuple) else value).detach()

    with ExitStack() as stack, watch:
        for place, module, what in places(model):
            if what in (IN, OUT):
                stack.callback(module.register_forward_hook(partial(keep, place, what)).remove)
            elif what == SCORES:
                stack.callback(module.register_forward_pre_hook(partial(watch.enter, place.layer)).remove)
                stack.callback(module.register_forward_hook(watch.leave).remove)
        yield kept


def forward(model: nn.Module, batch: Batch, more: Mapping[str, Any] | None = None) -> Any:
    """Call either side with the arguments that it takes; upstream's DistilBERT takes no segments."""
    inputs = {"attention_mask": batch.attention_mask, "token_type_ids": batch.token_type_ids}
    if column(model) == "distilbert":
        del inputs["token_type_ids"]
    return model(batch.input_ids, **inputs, **(more or {}))


def record(model: nn.Module, batch: Batch) -> Tensors:
    """Every stage of one forward pass, without gradients, in the mode in which the model is."""
    with torch.no_grad(), recording(model) as kept:
        forward(model, batch)
    return in_order(model, kept)


def in_order(model: nn.Module, kept: Tensors) -> Tensors:
    """The tensors in the order of the table: a module's hook fires only when the module returns."""
    return {place: kept[place] for place, _, _ in places(model) if place in kept}
