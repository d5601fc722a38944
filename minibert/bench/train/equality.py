"""That both train the same, found out before anything is timed.

A way that is quicker because it leaves something out would not be worth a figure. So a few steps of minibert's readable
way must end at the weights of the Trainer bit for bit, dropout included, with transformers' written-out attention and
AdamW unfused; and the packed step, which sums in another order, must have the readable one's loss and gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minibert.bench.backends import Setting
from minibert.bench.train.ways import BATCH, Ours, Theirs, batches_of
from minibert.heads import Head
from minibert.kernels.training import Quick
from minibert.parity.compare import parameter_pairs
from minibert.tasks.base import Example
from minibert.train.batches import Batch
from minibert.train.loop import packed_loss, readable_loss

Step = Callable[[Head, Batch], Tensor]  # the loss of a batch
STEPS = 3
CLOSE = 1e-5  # relative: what sums in another order may differ by
LEAST = 0.1  # a gradient that is zero but for rounding has no size of its own: then this share of the largest counts


@dataclass(frozen=True)
class Check:
    """What came of the comparison."""

    parameters: int  # that were trained
    differing: int  # of them, whose bits are not those of the Trainer after STEPS readable steps
    packed: float  # by how much loss and gradients of the packed step differ from the readable ones, relative

    @property
    def holds(self) -> bool:
        """Whether minibert trains as the Trainer does."""
        return self.parameters > 0 and self.differing == 0 and self.packed <= CLOSE


def check(setting: Setting, examples: Sequence[Example], objective: str = "classify") -> Check:
    """Train both for STEPS, and compare the packed step with the readable one on the first batch."""
    some = examples[: STEPS * BATCH]
    theirs = Theirs(setting, "float32", "eager", objective, exact=True, optim="adamw_torch")
    ours = Ours(setting, "float32", readable_loss, True, objective)
    batch = batches_of(objective, some, ours.tokenizer).of_rows(range(min(BATCH, len(some))))
    packed = difference(ours.model, batch)
    theirs(some), ours(some)
    pairs = parameter_pairs(ours.model, theirs.model)
    differing = sum(other is None or not torch.equal(mine, other) for _, mine, other in pairs)
    return Check(len(pairs), differing, packed)


def difference(model: Head, batch: Batch) -> float:
    """The largest relative difference of loss and gradients between both steps, dropout off."""
    with Quick():
        loss, gradients = found(packed_loss, model.eval(), batch)
    other, others = found(readable_loss, model, batch)
    most = max(float(gradient.abs().max()) for gradient in others.values())
    differences = [float((loss - other).abs() / other.abs())]
    for name in {**gradients, **others}:
        if name not in gradients or name not in others:
            return float("inf")
        size = max(float(others[name].abs().max()), LEAST * most)
        differences.append(float((gradients[name] - others[name]).abs().max()) / size)
    return max(differences)


def found(loss_of: Step, model: Head, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and the gradient of every parameter that it reaches."""
    model.zero_grad(set_to_none=True)
    loss = loss_of(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return loss.detach(), gradients
