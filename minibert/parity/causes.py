"""Why two models differ: each known cause is applied, and the one that reproduces the other side's tensor is named.

Parameters come first: a difference that vanishes with upstream's parameters is a loading error. Then ways of computing
(activation, eps, biases, norms) are changed on our side, and inputs (segments, mask, positions) on either side, since
the side that drops an input cannot be made to read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from minibert.model import ACTIVATION, FeedForward, Layer
from minibert.parity.compare import (
    DECISIONS,
    DROPOUT,
    FULL_LENGTH,
    GRADIENTS,
    LOGITS,
    LOSSES,
    TENSORS,
    TRAINED,
    Row,
    parameter_pairs,
)
from minibert.parity.stages import Batch, Place, record, upstream_family

EPS = (1e-12, 1e-5, 1e-6, 1e-3)
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


@contextmanager
def attributes(changes: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Set attributes (object, name, value) and put back what was there."""
    before = [(thing, name, getattr(thing, name)) for thing, name, _ in changes]
    try:
        for thing, name, value in changes:
            setattr(thing, name, value)
        yield
    finally:
        for thing, name, value in before:
            setattr(thing, name, value)


@contextmanager
def parameters(changes: Sequence[tuple[nn.Parameter, Tensor]]) -> Iterator[None]:
    """Overwrite the values of parameters and put back what was there."""
    before = [(parameter, parameter.detach().clone()) for parameter, _ in changes]
    values = [value.detach().clone() for _, value in changes]
    with torch.no_grad():
        try:
            for (parameter, _), value in zip(changes, values, strict=True):
                parameter.copy_(value)
            yield
        finally:
            for parameter, value in before:
                parameter.copy_(value)


def computations(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Changes to how our side computes: a name, and a context manager that makes the change."""
    modules = list(model.modules())
    activated = [m for m in modules if isinstance(m, FeedForward) or hasattr(m, "activation")]
    for name, function in ACTIVATION.items():
        yield f"activation: upstream computes {name}", attributes([(m, "activation", function) for m in activated])
    norms = [m for m in modules if isinstance(m, nn.LayerNorm)]
    for eps in EPS:
        yield f"eps: upstream's LayerNorms have {eps:g}", attributes([(m, "eps", eps) for m in norms])
    biases = [m.bias for m in modules if isinstance(m, nn.Linear)]
    yield "missing bias: upstream's linear layers have none", parameters([(b, torch.zeros_like(b)) for b in biases])
    swaps = []
    for layer in (m for m in modules if isinstance(m, Layer)):
        first, second = layer.attention_norm, layer.feed_forward_norm
        for a, b in ((first.weight, second.weight), (first.bias, second.bias)):
            swaps += [(a, b), (b, a)]
    yield "swapped norms: the two LayerNorms of each layer stand in each other's place", parameters(swaps)
    positions = model.get_parameter(("encoder." if hasattr(model, "encoder") else "") + "embeddings.position.weight")
    for step, words in ((-1, "higher"), (1, "lower")):
        yield f"positions: upstream's are one {words}", parameters([(positions, positions.roll(step, dims=0))])


def inputs(batch: Batch) -> Iterator[tuple[str, Batch, tuple[str, ...]]]:
    """Changes to the batch: a name with {} for a side, the batch as that side reads it, and which side may be it.

    That upstream inverts the mask cannot be tried: minibert refuses an inverted mask as padding on the left.
    """
    mask, both = batch.attention_mask, ("minibert", "upstream")
    yield "segments: {} ignores them", replace(batch, token_type_ids=torch.zeros_like(batch.token_type_ids)), both
    yield "mask: {} ignores it", replace(batch, attention_mask=torch.ones_like(mask)), both
    yield "mask: {} reads it inverted", replace(batch, attention_mask=1 - mask), ("minibert",)


def explain(ours: nn.Module, theirs: nn.Module, batch: Batch, first: Row) -> str:
    """One line: the cause that reproduces upstream's tensor at the first divergent row, or where to look."""
    if first.note:
        return first.note
    if first.rung != TENSORS:
        return f"the rungs above are equal; look at {WHERE_TO_LOOK[first.rung]}"
    place = Place(first.stage, first.layer)
    wanted = record(theirs, batch)[place]
    mine = record(ours, batch)[place]

    def reproduces(model: nn.Module, batch: Batch, target: Tensor) -> bool:
        found = record(model, batch).get(place)
        return found is not None and found.numel() == target.numel() and torch.equal(found.view_as(target), target)

    if cause := loading(ours, theirs, lambda: reproduces(ours, batch, wanted)):
        return cause
    for name, change in computations(ours):
        with change:
            if reproduces(ours, batch, wanted):
                return f"{name}; computed so, minibert gives upstream's values bit for bit"
    for name, changed, sides in inputs(batch):
        for side in sides:  # the other side, given the changed batch, would have to agree
            if reproduces(*((theirs, changed, mine) if side == "minibert" else (ours, changed, wanted))):
                return f"{name.format(side)}; computed so, both sides agree bit for bit"
    return f"no known cause reproduces it; look at {WHERE_TO_LOOK[TENSORS]}"


def loading(ours: nn.Module, theirs: nn.Module, reproduces: Callable[[], bool]) -> str:
    """The first of our parameters that is not upstream's, if upstream's parameters make the difference vanish."""
    different = [
        (name, p, other)
        for name, p, other in parameter_pairs(ours, theirs)
        if other is not None and not (p.shape == other.shape and torch.equal(p, other))
    ]
    if not different or any(p.shape != other.shape for _, p, other in different):
        return ""
    with parameters([(p, other) for _, p, other in different]):
        if not reproduces():
            return ""
    name, parameter, _ = different[0]
    if not parameter.any():  # asked first: an upstream tensor that is all zeros is no place it came from
        kind = "missing bias" if name.endswith("bias") else "weights not loaded"
        return f"{kind}: minibert's {name} is all zeros, upstream's is not"
    elsewhere = [
        n
        for n, _, other in parameter_pairs(ours, theirs)
        if other is not None and n != name and torch.equal(other, parameter)
    ]
    if elsewhere:
        kind = "swapped norms" if "norm" in name and "norm" in elsewhere[0] else "swapped weights"
        family = upstream_family(theirs)
        where = family.name if family else "minibert"
        return f"{kind}: minibert's {name} holds what upstream has as {elsewhere[0]} ({where})"
    return f"weights not loaded: {len(different)} parameters differ from upstream's, {name} the first"
