"""The parity ladder: two models, one batch, and every number that the two compute from it, compared bit for bit.

Rung by rung: tensors (every stage of hooks.py), the hidden states of a row that fills every position, logits, losses,
gradients; then, with dropout on and the same seed, the tensors again and the weights after training steps; last, what
a user would decide from the logits. Padding is compared like everything else. A row that is all padding is left out:
no text gives one, and its result is not defined.

    rows = compare(ours, theirs, batch, labels)
    first = first_divergent(rows)        # None: bit-identical
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from minibert.checkpoints.load import full_name, name_in_file, names_in_file
from minibert.hooks import (
    NOT_IN_SDPA,
    Inputs,
    Place,
    Tensors,
    base,
    config_of,
    forward,
    head_of,
    run,
    upstream_family,
)
from minibert.model import ATTENTION

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
class Comparison:
    """One tensor compared: how far apart, and where the first value that differs is."""

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

    @property
    def ok(self) -> bool:
        """Bit-identical or, where a bound was set, within it."""
        return self.equal or (self.largest <= self.allowed and not self.note)

    @property
    def place(self) -> str:
        """The rung, layer and stage, in words."""
        where = str(Place(self.stage, self.layer)) if self.rung.startswith("tensors") else self.stage
        return where if self.rung == TENSORS else f"{self.rung}: {where}"


@dataclass(frozen=True)
class Bounds:
    """How far a faster or coarser path may stray, as a share of the largest value of the tensor it is compared with.

    A gradient may stray by a share of at least LEAST_SHARE of the model's largest gradient: some gradients are zero
    but for rounding, such as that of a bias which softmax cancels, and have no scale of their own.
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
    """Return float32 as integers that count its representable values: neighbours differ by 1, both zeros are 0."""
    bits = x.contiguous().view(torch.int32).long()
    return torch.where(bits < 0, -(2**31) - bits, bits)


def compare_tensor(
    rung: str, place: Place, ours: Tensor, theirs: Tensor, bound: float = 0.0, least: float = 0.0
) -> Comparison:
    """Compare one tensor, in float64 if both are. With a bound, `least` is the smallest scale it is a share of."""
    shape = tuple(ours.shape)
    theirs = theirs.squeeze(0) if theirs.dim() == ours.dim() + 1 else theirs  # positions: (1, S, D) upstream
    if ours.shape != theirs.shape:
        return broken(rung, place, shape, f"shape {shape}, upstream {tuple(theirs.shape)}")
    double = ours.dtype == theirs.dtype == torch.float64
    dtype, bits = (torch.float64, torch.int64) if double else (torch.float32, torch.int32)
    ours, theirs = (x.detach().to("cpu", dtype).contiguous() for x in (ours, theirs))
    if bound and place.stage == "scores":  # padding is the lowest number of each side's own dtype
        ours, theirs = (torch.where(theirs == torch.finfo(dtype).min, 0.0, x) for x in (ours, theirs))
    same = ours.view(bits) == theirs.view(bits)
    if bool(same.all()):
        return Comparison(rung, place.stage, place.layer, shape, 0.0, 0, True)
    difference = (ours - theirs).abs().nan_to_num(nan=torch.finfo(dtype).max)
    index = tuple((~same).nonzero()[0].tolist())
    return Comparison(
        rung,
        place.stage,
        place.layer,
        shape,
        float(difference.max()),
        int((ordered(ours.float()) - ordered(theirs.float())).abs().max()),
        False,
        bound * max(float(theirs.abs().max()), least),
        index,
        float(ours[index]),
        float(theirs[index]),
    )


def broken(rung: str, place: Place, shape: tuple[int, ...], note: str) -> Comparison:
    """Return the row of a tensor that cannot be compared."""
    return Comparison(rung, place.stage, place.layer, shape, torch.finfo(torch.float32).max, 2**32, False, note=note)


def compare_tensors(
    rung: str, ours: Tensors, theirs: Tensors, bound: float = 0.0, least: float = 0.0
) -> list[Comparison]:
    """Return a row for each place of either side; a tensor that one side lacks is a row that differs."""
    rows = []
    for place in ours | theirs:
        if place in ours and place in theirs:
            rows.append(compare_tensor(rung, place, ours[place], theirs[place], bound, least))
        else:
            lacking, present = ("upstream", ours) if place in ours else ("minibert", theirs)
            rows.append(broken(rung, place, tuple(present[place].shape), f"{lacking} has no such tensor"))
    return rows


def fields(output: Any, names: Iterable[str]) -> Tensors:
    """Return the fields of an output that are there."""
    values = ((name, getattr(output, name, None)) for name in names)
    return {Place(name): value for name, value in values if value is not None}


def compare(
    ours: nn.Module, theirs: nn.Module, batch: Inputs, labels: dict[str, Tensor] | None = None, bounds: Bounds = EQUAL
) -> list[Comparison]:
    """Compare tensors, logits and decisions; with labels, losses and gradients too. Both models in eval mode.

    `theirs` is the reference: an upstream model or, with bounds, one of ours.
    """
    (mine, output), (reference, expected) = run(ours, batch, labels), run(theirs, batch, labels)
    if getattr(base(ours), "attend", None) is ATTENTION["sdpa"]:
        reference = {place: x for place, x in reference.items() if place.stage not in NOT_IN_SDPA}
    rows = compare_tensors(TENSORS, mine, reference, bounds.forward)
    for rung, names in ((LOGITS, LOGIT_FIELDS), (LOSSES, ("loss",))):
        rows += compare_tensors(rung, fields(output, names), fields(expected, names), bounds.forward)
    decided, upstream = (decide(fields(side, LOGIT_FIELDS), labels) for side in (output, expected))
    # With bounds, a decision may fall the other way where two scores are close: it is shown and does not count.
    allowed = 0.0 if bounds == EQUAL else float("inf")
    rows += [replace(decision, allowed=allowed) for decision in compare_tensors(DECISIONS, decided, upstream)]
    if getattr(expected, "loss", None) is not None:
        rows += compare_parameters(GRADIENTS, ours, theirs, lambda p: p.grad, bounds.backward)
    return rows


def compare_full_length(ours: nn.Module, theirs: nn.Module, batch: Inputs, bounds: Bounds = EQUAL) -> list[Comparison]:
    """Compare only the hidden states: attention matrices of 512 tokens, all layers at once, take gigabytes.

    The last is last_hidden_state: in transformers 5.0 that of ModernBERT among hidden_states lacks the norm.
    """
    with torch.no_grad():
        outputs = [forward(model, batch, {"output_hidden_states": True}) for model in (ours, theirs)]
    states_of_both = [
        (*output.hidden_states[:-1], getattr(output, "last_hidden_state", output.hidden_states[-1]))
        for output in outputs
    ]
    states = [{Place("hidden states", n): x for n, x in enumerate(hidden)} for hidden in states_of_both]
    return compare_tensors(FULL_LENGTH, states[0], states[1], bounds.forward)


def decide(logits: Tensors, labels: dict[str, Tensor] | None) -> Tensors:
    """Return what a user would read from logits: the likeliest token at each masked place, label, start and end."""
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
        ends = [logits[Place(name)].argmax(dim=1) for name in ("start_logits", "end_logits")]
        decisions[Place("span")] = torch.stack(ends, dim=1)  # (B,S) twice -> (B,2)
    return decisions


def parameter_pairs(ours: nn.Module, theirs: nn.Module) -> list[tuple[str, nn.Parameter, nn.Parameter | None]]:
    """Return our parameters with those of the other side, by the tables of families/; None if it lacks one.

    If a parameter holds several of ours, each is paired with its rows, which share memory with it.
    """
    family = upstream_family(theirs)
    others = dict(theirs.named_parameters(remove_duplicate=False))
    pairs = []
    rows = dict[str, int]()  # of the other side's parameters, by name: how many rows earlier parameters of ours are
    for name, parameter in ours.named_parameters():
        candidates = [name]
        if family is not None:
            where = (family, name, head_of(theirs, family), config_of(ours).architecture.layers_in_group)
            candidates = [name_in_file(*where), full_name(*where)]
        key = next((c for c in candidates if c in others), None)
        other = None if key is None else others[key]
        if key is not None and other is not None and len(other) > len(parameter):
            first = rows.get(key, 0)
            rows[key] = first + len(parameter)
            other = rows_of(other, first, rows[key])
        pairs.append((name, parameter, other))
    return pairs


def rows_of(whole: nn.Parameter, first: int, after: int) -> nn.Parameter:
    """Return some rows of a parameter, with their gradient, in the memory of the whole."""
    part = nn.Parameter(whole.detach()[first:after])
    part.grad = None if whole.grad is None else whole.grad[first:after]
    return part


def compare_parameters(
    rung: str, ours: nn.Module, theirs: nn.Module, read: Callable[[nn.Parameter], Tensor | None], bound: float = 0.0
) -> list[Comparison]:
    """Compare the gradients or the values of all parameters, as `read` returns them, after a backward pass."""
    pairs = parameter_pairs(ours, theirs)
    sides = ([(name, p) for name, p, _ in pairs], [(name, p) for name, _, p in pairs if p is not None])
    mine, reference = ({Place(name): x for name, p in side if (x := read(p)) is not None} for side in sides)
    scale = max((float(x.abs().max()) for x in reference.values()), default=0.0) if bound else 0.0
    rows = compare_tensors(rung, mine, reference, bound, LEAST_SHARE * scale)
    # Upstream's BERT keeps a bias that nothing reads if the decoder is not tied: it gets no gradient.
    # Of ours those that are one matrix in a file count once.
    extra = sum(p.grad is not None for p in theirs.parameters()) - len(names_in_file(ours))
    if extra:
        rows.append(broken(rung, Place("parameters"), (), f"upstream has {extra:+d} parameters of its own"))
    return rows


def compare_training(ours: nn.Module, theirs: nn.Module, batch: Inputs, labels: dict[str, Tensor]) -> list[Comparison]:
    """Train both by AdamW, dropout on, same seed: the tensors of the first step, the weights after STEPS steps.

    Both models are changed: use them for nothing else afterwards.
    """
    first_step = []
    for model in (ours, theirs):
        optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-3, weight_decay=0.01)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            first_step.append(run(model, batch, labels)[0])
            optimizer.step()
            for _ in range(STEPS - 1):
                optimizer.zero_grad()
                forward(model, batch, labels).loss.backward()
                optimizer.step()
        model.eval()
    rows = compare_tensors(DROPOUT, first_step[0], first_step[1])
    return rows + compare_parameters(TRAINED, ours, theirs, lambda p: p.data)


def first_divergent(rows: Iterable[Comparison]) -> Comparison | None:
    """Return the first tensor in the order of computation that differs (or leaves its bound); None: there is none."""
    return next((r for r in rows if not r.ok), None)
