"""Every tensor of one forward pass, under one name, in minibert and in transformers.

The table STAGES is the map: a stage, our module, and what is read there; the tables of families/ name upstream's
module. Forward hooks read a module's input and output. Attention's scores and probabilities belong to no module: a
TorchFunctionMode watches the calls that compute them, softmax and the product with the values.
"""

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minibert.config import Config, family_of
from minibert.families.base import NO_HEAD, Family
from minibert.heads import HEAD_CLASSES, Head
from minibert.model import Encoder

IN, OUT, SCORES, PROBS, CONTEXT = "input", "output", "scores", "probs", "context"

# In the order in which BERT computes them; `{}` is the layer.
STAGES = (
    ("token embeddings", "embeddings.token", OUT),
    ("segment embeddings", "embeddings.segment", OUT),
    ("position embeddings", "embeddings.position", OUT),
    ("task embeddings", "embeddings.task", OUT),
    ("embedding sum", "embeddings.norm", IN),
    ("embedding norm", "embeddings.norm", OUT),
    ("embeddings", "embeddings", OUT),
    ("query", "layers.{}.attention.query", OUT),
    ("key", "layers.{}.attention.key", OUT),
    ("value", "layers.{}.attention.value", OUT),
    ("scores", "layers.{}.attention", SCORES),
    ("probs", "layers.{}.attention", PROBS),
    ("context", "layers.{}.attention", CONTEXT),
    ("attention output", "layers.{}.attention.output", OUT),
    ("attention sum", "layers.{}.attention_norm", IN),
    ("attention norm", "layers.{}.attention_norm", OUT),
    ("expand", "layers.{}.feed_forward.expand", OUT),
    ("gate", "layers.{}.feed_forward.gate", OUT),
    ("activation", "layers.{}.feed_forward.contract", IN),
    ("contract", "layers.{}.feed_forward.contract", OUT),
    ("feed-forward sum", "layers.{}.feed_forward_norm", IN),
    ("feed-forward norm", "layers.{}.feed_forward_norm", OUT),
    ("layer", "layers.{}", OUT),
    ("final norm", "final_norm", OUT),
    ("pooler dense", "pooler.dense", OUT),
    ("pooler", "pooler", OUT),
    # the task heads
    ("transform", "transform", OUT),
    ("transform activation", "transform_norm", IN),
    ("transform norm", "transform_norm", OUT),
    ("decoder", "decoder", OUT),
    ("next sentence", "next_sentence", OUT),
    ("sentence order", "sentence_order", OUT),
    ("pre-classifier", "pre_classifier", OUT),
    ("pre-norm", "pre_norm", OUT),
    ("classifier input", "classifier", IN),
    ("classifier", "classifier", OUT),
    ("span input", "qa_outputs", IN),
    ("span scores", "qa_outputs", OUT),
)
IN_LAYERS = [row for row in STAGES if "{}" in row[1]]
NOT_IN_SDPA = ("scores", "probs")  # the fused kernel never stores them


class Place(NamedTuple):
    """Where a tensor is in the model: its stage and, inside the encoder, its layer."""

    stage: str
    layer: int | None = None

    def __str__(self) -> str:
        return self.stage if self.layer is None else f"layer {self.layer} {self.stage}"


class Part(NamedTuple):
    """One of several equal parts of a module's output: queries, keys and values from one product."""

    number: int
    parts: int


Tensors = dict[Place, Tensor]


@dataclass(frozen=True)
class Inputs:
    """One batch for both sides: ids, mask and segments, (B, S) each; for multiple choice (B, C, S)."""

    input_ids: Tensor
    attention_mask: Tensor
    token_type_ids: Tensor


def upstream_family(model: nn.Module) -> Family | None:
    """Return the family of an upstream model; None for a model of ours."""
    return None if isinstance(base(model), Encoder) else family_of(model.config.model_type)  # type: ignore[union-attr]  # it has a config


def base(model: nn.Module) -> nn.Module:
    """Return the encoder below a task head, ours (`encoder`) or upstream's (`bert`, ...); the model itself if it has no
    head. Raises ValueError if the encoder is not where its family says.
    """
    if isinstance(ours := getattr(model, "encoder", model), Encoder):
        return ours
    config: Any = model.config
    family = family_of(config.model_type)
    name = family.prefix.rstrip(".")
    if head_of(model, family) and not hasattr(model, name):
        raise ValueError(f"{type(model).__name__} has no module {name!r}, where {family.title} has its encoder")
    return getattr(model, name, model)


def head_of(model: nn.Module, family: Family) -> Mapping[str, str]:
    """Return the modules of an upstream model's task head, ours -> theirs, by its class; none for a bare encoder."""
    ending = type(model).__name__.removeprefix(family.upstream)
    return next((names for head, names in family.heads.items() if HEAD_CLASSES[head].upstream == ending), NO_HEAD)


def config_of(model: nn.Module) -> Config:
    """Return the config of either side's model as ours."""
    config: Any = base(model).config
    return config if isinstance(config, Config) else Config.from_dict(vars(config) | {"model_type": config.model_type})


def places(model: nn.Module) -> Iterator[tuple[Place, nn.Module, str | Part]]:
    """Yield every stage of this model in the order of STAGES, with its module and what is read there.

    Layers that share weights are one module at many places, and so are linear layers that are one product. A module
    without a name in files, such as nn.Identity in place of a norm, is no stage.
    """
    config = config_of(model)
    family = upstream_family(model)
    head = model.names_in(config.family) if isinstance(model, Head) else head_of(model, config.family)
    named = [dict(part.named_modules(remove_duplicate=False)) for part in (model, base(model))]
    modules = named[0] | named[1]  # of the task head, and of the encoder below it
    first = STAGES.index(IN_LAYERS[0])
    rows: list[tuple[tuple[str, str, str], int | None]] = [
        *((row, None) for row in STAGES[:first]),
        *((row, layer) for layer in range(len(config.architecture.order)) for row in IN_LAYERS),
        *((row, None) for row in STAGES[first + len(IN_LAYERS) :]),
    ]
    for (stage, path, what), layer in rows:
        number = 0 if layer is None else config.architecture.order[layer]
        official = [config.family.outputs[path]] if path in config.family.outputs else []  # where upstream computes it
        with suppress(LookupError):  # the relative has no such module
            official.append(config.family.official(path, head))
        part = part_of(config.family, path)
        names = [family.numbered(name, number, config.architecture.layers_in_group) for name in official if family]
        if family is None and official:
            names = [f"{path.format(number).rpartition('.')[0]}.products" if part else path.format(number)]
        if owners := [modules[name] for name in names if name and name in modules]:
            yield Place(stage, layer), owners[0], part or what


def part_of(family: Family, path: str) -> Part | None:
    """Return which part of its module's output a stage is; None for the whole."""
    official = family.modules.get(path)
    if official not in family.fused:
        return None
    together = [ours for ours, name in family.modules.items() if name == official]
    return Part(together.index(path), len(together))


class WatchAttention(TorchFunctionMode):
    """Record the scores that enter softmax, the probabilities that weigh the values, and the resulting context.

    Nothing else in either model calls these functions, so each call belongs to the attention entered last.
    """

    layer: int | None = None  # of the attention entered last
    awaits_product = False

    def __init__(self, kept: Tensors) -> None:
        super().__init__()
        self.kept = kept

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        tensors = {}
        if name == "softmax":
            tensors = {SCORES: args[0]}
            self.awaits_product = True
        elif self.awaits_product and name in ("matmul", "__matmul__"):
            tensors = {PROBS: args[0], CONTEXT: result}
            self.awaits_product = False
        elif name == "scaled_dot_product_attention":
            tensors = {CONTEXT: result}
        for stage, tensor in tensors.items():
            self.kept[Place(stage, self.layer)] = tensor.detach()
        return result


@contextmanager
def recording(model: nn.Module) -> Iterator[Tensors]:
    """Yield a dictionary that collects every stage of this thread's next forward pass, in the order of computation."""
    kept: Tensors = {}
    watch = WatchAttention(kept)
    stages = list(places(model))
    thread = threading.get_ident()

    def on_call(
        calls: Iterator[Place], what: str | Part, _: nn.Module, given: tuple[Any, ...], returned: Any = None
    ) -> None:
        if threading.get_ident() != thread:
            return  # another thread is using the model
        place = next(calls)
        if what == SCORES:
            watch.layer = place.layer
            watch.awaits_product = False
        elif isinstance(what, Part):
            parts = returned if isinstance(returned, tuple) else returned.chunk(what.parts, dim=-1)
            kept[place] = parts[what.number].detach()
        else:
            value = given[0] if what == IN else returned
            kept[place] = (value[0] if isinstance(value, tuple) else value).detach()

    # By module, what is read, and stage, because a shared layer is called repeatedly.
    called_for: dict[tuple[nn.Module, str | Part, str], list[Place]] = defaultdict(list)
    for place, module, what in stages:
        if what not in (PROBS, CONTEXT):
            called_for[module, what, place.stage].append(place)
    with ExitStack() as stack, watch:
        for (module, what, _), at in called_for.items():
            hook = partial(on_call, iter(at), what)
            register: Any = module.register_forward_pre_hook if what == SCORES else module.register_forward_hook
            stack.callback(register(hook).remove)
        yield kept


def forward(model: nn.Module, batch: Inputs, more: Mapping[str, Any] | None = None) -> Any:
    """Call either side's model on its device, without segments if upstream's family has none."""
    inputs = vars(batch) | dict(more or {})
    family = upstream_family(model)
    device = next(model.parameters()).device
    if family is not None and not family.has_segments:
        del inputs["token_type_ids"]
    return model(**{name: x.to(device) if isinstance(x, Tensor) else x for name, x in inputs.items()})


def run(model: nn.Module, batch: Inputs, labels: Mapping[str, Tensor] | None = None) -> tuple[Tensors, Any]:
    """Return the stages and output of a forward pass; if labels give a loss, its gradients are left in the model."""
    model.zero_grad(set_to_none=True)
    with torch.set_grad_enabled(labels is not None), recording(model) as kept:
        output = forward(model, batch, labels)
    if getattr(output, "loss", None) is not None:
        output.loss.backward()
    return kept, output


def record(model: nn.Module, batch: Inputs) -> Tensors:
    """Return every stage of one forward pass, without gradients, in the model's current mode."""
    return run(model, batch)[0]
