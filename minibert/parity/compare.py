"""The parity ladder: two models, one batch, and every number that the two compute from it, compared bit for bit.

Rung by rung: tensors (every stage of stages.py), the hidden states of a row that fills every position, logits, losses,
gradients; then, with dropout on and the same seed, the tensors again and the weights after training steps; last, what
a user would decide from the logits. Padding is compared like everything else. A row of nothing but padding is left out:
no text looks like that, and no one defines it.

    rows = compare(ours, theirs, batch, labels)
    first = first_divergent(rows)        # None: bit-identical
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from minibert.checkpoints.load import full_name, name_in_file
from minibert.model import ATTENTION
from minibert.parity.stages import (
    NOT_IN_SDPA,
    Batch,
    Place,
    Tensors,
    base,
    config_of,
    forward,
    head_of,
    in_order,
    recording,
    upstream_family,
)

# The versions of transformers for which parity was established.
OLDEST, NEWEST = "5.0.0", "5.23.0"

TENSORS, FULL_LENGTH, LOGITS, LOSSES, DECISIONS = "tensors", "full length", "logits", "losses", "decisions"
GRADIENTS, DROPOUT, TRAINED = "gradients", "tensors, dropout on", "trained weights"
RUNGS = (TENSORS, FULL_LENGTH, LOGITS, LOSSES, GRADIENTS, DROPOUT, TRAINED, DECISIONS)
LOGIT_FIELDS = (
    "logits",
    "prediction_logits",
    "seq_relationship_logits",
    "sop_logits",
    "start_logits",
    "end_logits",
)
SEED = 1810_04805  # of dropout, on both sides
STEPS = 3  # of training


@dataclass(frozen=True)
class Row:
    """One tensor compared: how far apart, and where the first value stands that differs."""

    rung: str
    stage: str  # a stage, an output, or the name of a parameter in our state_dict
    layer: int | None
    shape: tuple[int, ...]
    largest: float  # largest absolute difference
    ulp: int  # largest difference in float32 units in the last place
    equal: bool  # every bit
    allowed: float = 0.0  # the absolute difference that passes; 0: none, bit for bit
    index: tuple[int, ...] | None = None  # of the first value that differs
    ours: float | None = None  # the values there
    theirs: float | None = None
    note: str = ""
    head: str = "encoder"
    checkpoint: str = ""

    @property
    def ok(self) -> bool:
        """Bit-identical or, where a bound was set, within it."""
        return self.equal or (self.largest <= self.allowed and not self.note)

    @property
    def values(self) -> int:
        """How many numbers were compared."""
        return torch.Size(self.shape).numel()

    @property
    def place(self) -> str:
        """Where it stands, in words."""
        where = str(Place(self.stage, self.layer)) if self.rung.startswith("tensors") else self.stage
        return where if self.rung == TENSORS else f"{self.rung}: {where}"


@dataclass(frozen=True)
class Bounds:
    """How far a faster or coarser path may stray, as a share of the largest value of the tensor it is compared with.

    For gradients the share is of at least LEAST_SHARE of the largest gradient of the model: some are zero but for
    rounding, such as that of a bias which softmax cancels, and have no size of their own.
    """

    forward: float
    backward: float


EQUAL = Bounds(0.0, 0.0)
LEAST_SHARE = 0.1
# Measured on a CPU with all-MiniLM-L6-v2 and every head, eager and sdpa, and set to two to five times that.
MEASURED = {
    torch.float64: Bounds(2e-5, 5e-5),
    torch.float32: Bounds(2e-5, 5e-5),
    torch.float16: Bounds(2e-2, 4e-2),
    torch.bfloat16: Bounds(1.5e-1, 6e-1),
}


def ordered(x: Tensor) -> Tensor:
    """Float32 as whole numbers that count its representable values: neighbours differ by 1, both zeros are 0."""
    bits = x.contiguous().view(torch.int32).long()
    return torch.where(bits < 0, -(2**31) - bits, bits)


def row(rung: str, place: Place, ours: Tensor, theirs: Tensor, bound: float = 0.0, least: float = 0.0) -> Row:
    """Compare one tensor, in float64 where both are. With a bound, `least` is the smallest scale it is a share of."""
    shape = tuple(ours.shape)
    if ours.shape != theirs.shape and ours.shape == theirs.squeeze(0).shape:
        theirs = theirs.squeeze(0)  # positions: (1, S, D) upstream
    if ours.shape != theirs.shape:
        return broken(rung, place, shape, f"shape {shape}, upstream {tuple(theirs.shape)}")
    double = ours.dtype == theirs.dtype == torch.float64
    dtype, bits = (torch.float64, torch.int64) if double else (torch.float32, torch.int32)
    ours, theirs = (x.detach().to("cpu", dtype).contiguous() for x in (ours, theirs))
    if bound and place.stage == "scores":  # padding is the lowest number of each side's own dtype
        ours, theirs = (torch.where(theirs == torch.finfo(dtype).min, 0.0, x) for x in (ours, theirs))
    same = ours.view(bits) == theirs.view(bits)
    if bool(same.all()):
        return Row(rung, place.stage, place.layer, shape, 0.0, 0, True)
    difference = (ours - theirs).abs().nan_to_num(nan=float("inf"))
    steps = (ordered(ours.float()) - ordered(theirs.float())).abs()
    index = tuple((~same).nonzero()[0].tolist())
    scale = max(float(theirs.abs().max()), least)
    return Row(
        rung,
        place.stage,
        place.layer,
        shape,
        float(difference.max()),
        int(steps.max()),
        False,
        bound * scale,
        index,
        float(ours[index]),
        float(theirs[index]),
    )


def broken(rung: str, place: Place, shape: tuple[int, ...], note: str) -> Row:
    """The row of a tensor that cannot be compared."""
    return Row(rung, place.stage, place.layer, shape, float("inf"), 2**32, False, note=note)


def compare_tensors(rung: str, ours: Tensors, theirs: Tensors, bound: float = 0.0, least: float = 0.0) -> list[Row]:
    """A row for each place of either side; a tensor that one side lacks is a row that differs."""
    rows = []
    for place in [*ours, *(place for place in theirs if place not in ours)]:
        if place not in theirs:
            rows.append(broken(rung, place, tuple(ours[place].shape), "upstream has no such tensor"))
        elif place not in ours:
            rows.append(broken(rung, place, tuple(theirs[place].shape), "minibert has no such tensor"))
        else:
            rows.append(row(rung, place, ours[place], theirs[place], bound, least))
    return rows


@dataclass
class Pass:
    """What one side computed from a batch."""

    tensors: Tensors
    output: Any
    loss: Tensor | None

    def outputs(self, names: Iterable[str]) -> Tensors:
        """The fields of the output that are there."""
        found = ((name, getattr(self.output, name, None)) for name in names)
        return {Place(name): value for name, value in found if value is not None}


def run(model: nn.Module, batch: Batch, labels: dict[str, Tensor] | None) -> Pass:
    """One forward pass, and one backward pass where labels give a loss. Gradients are left in the parameters."""
    model.zero_grad(set_to_none=True)
    device = next(model.parameters()).device
    labels = labels and {name: label.to(device) for name, label in labels.items()}
    with torch.set_grad_enabled(labels is not None), recording(model) as kept:
        output = forward(model, batch.to(device), labels)
    loss = getattr(output, "loss", None)
    if loss is not None:
        loss.backward()
    return Pass(in_order(model, kept), output, loss)


def compare(
    ours: nn.Module, theirs: nn.Module, batch: Batch, labels: dict[str, Tensor] | None = None, bounds: Bounds = EQUAL
) -> list[Row]:
    """Compare tensors, logits and decisions; with labels, losses and gradients too. Both models in eval mode.

    `theirs` is the reference: an upstream model or, with bounds, one of ours.
    """
    mine, reference = run(ours, batch, labels), run(theirs, batch, labels)
    if getattr(base(ours), "attend", None) is ATTENTION["sdpa"]:
        reference.tensors = {place: x for place, x in reference.tensors.items() if place.stage not in NOT_IN_SDPA}
    rows = compare_tensors(TENSORS, mine.tensors, reference.tensors, bounds.forward)
    logits, expected = mine.outputs(LOGIT_FIELDS), reference.outputs(LOGIT_FIELDS)
    rows += compare_tensors(LOGITS, logits, expected, bounds.forward)
    if reference.loss is not None:
        rows += compare_tensors(LOSSES, mine.outputs(["loss"]), reference.outputs(["loss"]), bounds.forward)
    rows += [undecided(r, bounds) for r in compare_tensors(DECISIONS, decide(logits, labels), decide(expected, labels))]
    if reference.loss is not None:
        rows += compare_gradients(ours, theirs, bounds)
    return rows


def compare_full_length(ours: nn.Module, theirs: nn.Module, batch: Batch, bounds: Bounds = EQUAL) -> list[Row]:
    """Compare the hidden states alone: attention matrices of 512 tokens, all layers at once, take gigabytes."""
    states = []
    for model in (ours, theirs):
        device = next(model.parameters()).device
        with torch.no_grad():
            output = forward(model, batch.to(device), {"output_hidden_states": True})
        states.append({Place("hidden states", layer): x for layer, x in enumerate(output.hidden_states)})
    return compare_tensors(FULL_LENGTH, states[0], states[1], bounds.forward)


def undecided(decision: Row, bounds: Bounds) -> Row:
    """With bounds, a decision may fall the other way where two scores are close: it is shown and does not count."""
    return decision if bounds == EQUAL or decision.equal or decision.note else replace(decision, allowed=float("inf"))


def decide(logits: Tensors, labels: dict[str, Tensor] | None) -> Tensors:
    """What a user would read off: the most likely token at each masked place, the label, the best span."""
    decisions: Tensors = {}
    for place, scores in logits.items():
        chosen = scores.argmax(dim=-1)
        masked = (labels or {}).get("labels")
        if masked is not None and masked.shape == chosen.shape and scores.dim() == 3:
            chosen = chosen[masked.to(chosen.device) != -100]
        if masked is not None and masked.shape == scores.shape:
            chosen = (scores > 0).long()  # one yes or no for each label
        if place.stage not in ("start_logits", "end_logits"):
            decisions[place] = chosen
    if Place("start_logits") in logits:
        decisions[Place("span")] = best_span(logits[Place("start_logits")], logits[Place("end_logits")])
    return decisions


def best_span(start: Tensor, end: Tensor) -> Tensor:
    """First and last token of the span with the largest sum of scores that does not end before it begins, (B, 2)."""
    S = start.shape[1]
    scores = (start[:, :, None] + end[:, None, :]).triu() + torch.full((S, S), -torch.inf, device=start.device).tril(-1)
    best = scores.flatten(1).argmax(dim=1)  # (B,S,S) -> (B,S·S) -> (B)
    return torch.stack([best // S, best % S], dim=1)


def parameter_pairs(ours: nn.Module, theirs: nn.Module) -> list[tuple[str, nn.Parameter, nn.Parameter | None]]:
    """Our parameters with those of the other side, by the tables of families/; None where it has no such parameter."""
    family = upstream_family(theirs)
    others = dict(theirs.named_parameters(remove_duplicate=False))
    pairs = []
    for name, parameter in ours.named_parameters():
        candidates = [name]
        if family is not None:
            where = (family, name, head_of(theirs, family), config_of(ours).layers_in_group)
            candidates = [name_in_file(*where), full_name(*where)]
        pairs.append((name, parameter, next((others[c] for c in candidates if c in others), None)))
    return pairs


def compare_parameters(
    rung: str, ours: nn.Module, theirs: nn.Module, read: Callable[[nn.Parameter], Tensor | None], bound: float = 0.0
) -> list[Row]:
    """Compare what `read` takes from every pair of parameters, the gradient or the value, after a backward pass."""
    rows: list[Row] = []
    mine: Tensors = {}
    reference: Tensors = {}
    for name, our_parameter, their_parameter in parameter_pairs(ours, theirs):
        place = Place(name)
        if their_parameter is None:
            rows.append(broken(rung, place, tuple(our_parameter.shape), "upstream has no such parameter"))
            continue
        for tensors, value in ((mine, read(our_parameter)), (reference, read(their_parameter))):
            if value is not None:
                tensors[place] = value
    # Upstream's BERT keeps a bias that nothing reads where the decoder is not tied: it gets no gradient.
    extra = sum(p.grad is not None for p in theirs.parameters()) - sum(1 for _ in ours.parameters())
    if extra:
        rows.append(broken(rung, Place("parameters"), (), f"upstream has {extra:+d} parameters of its own"))
    scale = max((float(x.abs().max()) for x in reference.values()), default=0.0) if bound else 0.0
    return compare_tensors(rung, mine, reference, bound, LEAST_SHARE * scale) + rows


def compare_gradients(ours: nn.Module, theirs: nn.Module, bounds: Bounds = EQUAL) -> list[Row]:
    """The gradients that the last backward pass left in both models."""
    return compare_parameters(GRADIENTS, ours, theirs, lambda p: p.grad, bounds.backward)


def compare_training(ours: nn.Module, theirs: nn.Module, batch: Batch, labels: dict[str, Tensor]) -> list[Row]:
    """Train both by AdamW, dropout on, same seed: the tensors of the first step, the weights after STEPS steps.

    Both models are changed: use them for nothing else afterwards.
    """
    passes = []
    for model in (ours, theirs):
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            passes.append(run(model, batch, labels))
            optimizer.step()
            for _ in range(STEPS - 1):
                model.zero_grad(set_to_none=True)
                forward(model, batch, labels).loss.backward()
                optimizer.step()
        model.eval()
    rows = compare_tensors(DROPOUT, passes[0].tensors, passes[1].tensors)
    rows += compare_parameters(TRAINED, ours, theirs, lambda p: p.data)
    for model in (ours, theirs):
        model.zero_grad(set_to_none=True)
    return rows


def first_divergent(rows: Iterable[Row]) -> Row | None:
    """The first tensor in the order of computation that differs (or leaves its bound); None: there is none."""
    return next((r for r in rows if not r.ok), None)
