"""Whole checkpoints up the parity ladder: the encoder and every head, against transformers or against ourselves.

If a tensor differs, known causes are tried, and the one that reproduces the other side's tensor is named. Parameters
come first: a difference that vanishes with upstream's parameters is a loading error. Then the way of computing
(activation, eps, biases, norms, positions) is changed on our side, and inputs (segments, mask) on either side: a side
that drops an input cannot be made to read it, so the other side drops it too.
"""

import copy
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minibert.activations import ACTIVATION
from minibert.checkpoints.checkpoint import Checkpoint
from minibert.checkpoints.load import load
from minibert.families.base import Family
from minibert.hooks import Inputs, Place, record
from minibert.model import Embeddings, Layer
from minibert.parity import checkpoints
from minibert.parity.compare import (
    DECISIONS,
    DROPOUT,
    EQUAL,
    FULL_LENGTH,
    GRADIENTS,
    LOGITS,
    LOSSES,
    MEASURED,
    TENSORS,
    TRAINED,
    Bounds,
    Comparison,
    compare,
    compare_full_length,
    compare_training,
    first_divergent,
    parameter_pairs,
)

TOKENS = 24  # S of the batch for a checkpoint of any size; only the encoder is also compared at full length


@dataclass
class Result:
    """One checkpoint up the ladder."""

    checkpoint: str
    origin: str  # where it comes from, in words
    tiny: bool = False
    rows: list[Comparison] = field(default_factory=list)
    cause: str = ""  # why the first divergent tensor differs
    seconds: float = 0.0

    @property
    def first(self) -> Comparison | None:
        """The first divergent tensor."""
        return first_divergent(self.rows)


def climb(
    result: Result,
    ours: nn.Module,
    theirs: nn.Module,
    task: checkpoints.LabelledBatch,
    head: str | None,
    *,
    train: bool,
    bounds: Bounds = EQUAL,
) -> None:
    """Compare one pair of models on every rung and note the cause of the first difference. `train` changes both."""
    rows = compare(ours, theirs, task.batch, task.labels or None, bounds)
    if head is None:
        longest = int(ours.config.max_tokens)  # type: ignore[union-attr,arg-type]  # a Module that has a config
        rows += compare_full_length(ours, theirs, checkpoints.make_batch(theirs.config, longest, rows=2), bounds)
    for trained in range(1 + train):
        if trained:
            rows += compare_training(ours, theirs, task.batch, task.labels)
        first = first_divergent(rows)
        if first and not result.cause:
            result.cause = explain(ours, theirs, task.batch, first) if bounds == EQUAL else "outside its bound"
    result.rows += [replace(row, head=head or "encoder") for row in rows]


def trained_head(family: Family) -> str:
    """Return the task head that is trained at full size, where a step takes seconds: the one of pretraining."""
    return next(head for head in ("pretraining", "replaced-token-detection", "masked-lm") if head in family.heads)


def climb_random(size: checkpoints.Size) -> Result:
    """Return a random checkpoint written by transformers: the encoder and every head that its model type has."""
    result = Result(size.name, "random parameters, written by transformers", tiny=not size.full)
    for head in (None, *size.family.heads):
        with tempfile.TemporaryDirectory() as folder:
            theirs = checkpoints.make(size, head, Path(folder))
            if mistake := checkpoints.mistake_upstream(theirs, head, Path(folder)):
                result.origin += f"; not {head}, which this transformers builds {mistake}"
                continue
            ours = load(folder, head=head)
        task = checkpoints.task(head, theirs.config, size.tokens, size.seed)
        train = bool(task.labels) and (not size.full or head == trained_head(size.family))
        climb(result, ours, theirs, task, head, train=train)
    return result


def climb_checkpoint(checkpoint: Checkpoint) -> Result:
    """Return a checkpoint as it is. A head that it does not hold is added to its encoder with random parameters."""
    result = Result(checkpoint.name, f"from {checkpoint.origin}")
    encoder: Any = load(checkpoint)
    family = encoder.config.family
    pooler = encoder.pooler is not None
    for head in (None, *family.heads):
        theirs, complete = checkpoints.open_upstream(checkpoint.folder, family, head, pooler)
        with tempfile.TemporaryDirectory() as written, checkpoints.quiet():
            if head and not complete:
                theirs.save_pretrained(written)  # type: ignore[operator]  # an upstream model, typed as Module
            ours = load(written if head and not complete else checkpoint, head=head)
        task = checkpoints.task(head, theirs.config, min(TOKENS, encoder.config.max_tokens))
        climb(result, ours, theirs, task, head, train=head == trained_head(family))
    return result


def climb_path(checkpoint: Checkpoint, device: str, dtype: torch.dtype, attention: str) -> Result:
    """Compare another device, dtype or attention with our written-out float32 path on the CPU, within measured bounds.

    Training is left out: dropout draws other numbers on another device. transformers is not needed.
    """
    kind = str(dtype).removeprefix("torch.")
    result = Result(f"{checkpoint.name}: {device}, {kind}, {attention}", f"from {checkpoint.origin}")
    for head in (None, *load(checkpoint).config.family.heads):
        new: Any = {"head": head, "new_head": True} if head else {}
        reference: nn.Module = load(checkpoint, **new)
        added = {name for name, _ in reference.named_parameters() if head and not name.startswith("encoder.")}
        checkpoints.randomise(reference, 0, only=added)
        ours: nn.Module = load(checkpoint, dtype=dtype, device=device, attention=attention, **new)
        ours.load_state_dict(reference.state_dict())  # copies into the dtype and onto the device
        config: Any = reference.config
        task = checkpoints.task(head, config, min(TOKENS, config.max_tokens))
        climb(result, ours, reference, task, head, train=False, bounds=MEASURED[dtype])
    return result


# ---------------------------------------------------------------------------------------------------------------
# The cause of a difference

WHERE_TO_LOOK = {
    TENSORS: "a step between this tensor and the one before it",
    FULL_LENGTH: "positions that shorter rows do not reach",
    LOGITS: "what the head does after its last layer",
    LOSSES: "labels: which are ignored, their order, the mean over tokens or texts",
    DECISIONS: "how a decision is read from equal logits: ties, positions",
    GRADIENTS: "a part cut off from the graph, or a parameter that one side shares and the other does not",
    DROPOUT: "dropout: on which tensor, with which probability, in which order",
    TRAINED: "shared parameters: the gradients were equal and the weights after the same steps are not",
}


def explain(ours: nn.Module, theirs: nn.Module, batch: Inputs, first: Comparison) -> str:
    """Return one line: the cause that reproduces upstream's tensor at the first divergent row, or where to look."""
    if first.note:
        return first.note
    if first.rung != TENSORS:
        return f"the rungs above are equal; look at {WHERE_TO_LOOK[first.rung]}"
    place = Place(first.stage, first.layer)
    mine, upstream = record(ours, batch)[place], record(theirs, batch)[place]

    def reproduces(model: nn.Module, batch: Inputs, target: Tensor) -> bool:
        tensor = record(model, batch).get(place)
        return tensor is not None and tensor.numel() == target.numel() and torch.equal(tensor.view_as(target), target)

    if cause := loading(ours, theirs, lambda model: reproduces(model, batch, upstream)):
        return cause
    for name, other in computations(ours):
        if reproduces(other, batch, upstream):
            return f"{name}; computed so, minibert gives upstream's values bit for bit"
    mask = batch.attention_mask
    for name, changed in (
        ("segments: {} ignores them", replace(batch, token_type_ids=torch.zeros_like(batch.token_type_ids))),
        ("mask: {} ignores it", replace(batch, attention_mask=torch.ones_like(mask))),
        ("mask: {} reads it inverted", replace(batch, attention_mask=1 - mask)),
    ):
        if reproduces(theirs, changed, mine):
            return f"{name.format('minibert')}; computed so, both sides agree bit for bit"
        if "inverted" not in name and reproduces(ours, changed, upstream):  # minibert refuses an inverted mask
            return f"{name.format('upstream')}; computed so, both sides agree bit for bit"
    return f"no known cause reproduces it; look at {WHERE_TO_LOOK[TENSORS]}"


def changed(ours: nn.Module, kind: type[nn.Module], change: Callable[[Any], object]) -> nn.Module:
    """Return a copy of our model in which each module of this kind is changed."""
    model = copy.deepcopy(ours)
    with torch.no_grad():
        for module in [module for module in model.modules() if isinstance(module, kind)]:
            change(module)
    return model


def computations(ours: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield copies of our model that compute in another way, each with the cause that it shows."""

    def assign(name: str, value: object, module: nn.Module) -> None:
        if hasattr(module, name):
            setattr(module, name, value)

    def swap_norms(layer: Layer) -> None:
        if hasattr(layer, "feed_forward_norm"):
            layer.attention_norm, layer.feed_forward_norm = layer.feed_forward_norm, layer.attention_norm

    def move(by: int, embeddings: Embeddings) -> None:
        if hasattr(embeddings, "position"):
            embeddings.position.weight.copy_(embeddings.position.weight.roll(by, dims=0))

    def without_bias(linear: nn.Linear) -> None:
        if linear.bias is not None:
            linear.bias.zero_()

    for name, function in ACTIVATION.items():
        yield f"activation: upstream computes {name}", changed(ours, nn.Module, partial(assign, "activation", function))
    for eps in (1e-12, 1e-5, 1e-6, 1e-3):
        yield f"eps: upstream's LayerNorms have {eps:g}", changed(ours, nn.LayerNorm, partial(assign, "eps", eps))
    yield "missing bias: upstream's linear layers have none", changed(ours, nn.Linear, without_bias)
    yield "swapped norms: the two LayerNorms of each layer are exchanged", changed(ours, Layer, swap_norms)
    for by, word in ((-1, "higher"), (1, "lower")):
        yield f"positions: upstream's are one {word}", changed(ours, Embeddings, partial(move, by))


def loading(ours: nn.Module, theirs: nn.Module, reproduces: Callable[[nn.Module], bool]) -> str:
    """Return our first parameter that is not upstream's, if the difference vanishes with upstream's parameters."""
    pairs = [(name, p, other) for name, p, other in parameter_pairs(ours, theirs) if other is not None]
    different = [(name, p) for name, p, other in pairs if not torch.equal(p, other)]
    if not different or any(p.shape != other.shape for _, p, other in pairs):
        return ""
    state = ours.state_dict() | {name: other for name, _, other in pairs}
    loaded = copy.deepcopy(ours)
    loaded.load_state_dict(state, strict=False)  # a tied tensor may have only one name
    if not reproduces(loaded):
        return ""
    name, parameter = different[0]
    if not parameter.any():  # before the next question: an upstream tensor of zeros is not where it came from
        kind = "missing bias" if name.endswith("bias") else "weights not loaded"
        return f"{kind}: minibert's {name} is all zeros, upstream's is not"
    elsewhere = [other_name for other_name, _, other in pairs if other_name != name and torch.equal(other, parameter)]
    if elsewhere:
        kind = "swapped norms" if "norm" in name and "norm" in elsewhere[0] else "swapped weights"
        return f"{kind}: minibert's {name} holds what upstream has as {elsewhere[0]}"
    return f"weights not loaded: {len(different)} parameters differ from upstream's, {name} the first"
