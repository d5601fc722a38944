"""Training beside transformers: gradients, losses and weights of a plain loop, bit for bit.

That those of its Trainer are the same is shown by tests/bench/test_training.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import Pair, assert_equal, every_family, every_head
from torch import nn
from training import batches_of, upstream_loss, upstream_training

from minibert.families.albert import ALBERT
from minibert.families.base import Family
from minibert.families.bert import BERT
from minibert.families.distilbert import DISTILBERT
from minibert.parity.compare import parameter_pairs
from minibert.train.loop import learning_rate_at, readable_loss, train
from minibert.train.objectives import OBJECTIVES
from minibert.train.settings import TrainSettings

EPOCH = TrainSettings(epochs=1, batch_size=4, learning_rate=1e-3, warmup=0.3)  # five steps, with 18 rows
TWENTY = replace(EPOCH, epochs=4)
MakePair = Callable[..., Pair]


def assert_trains_as_upstream(
    both: Pair,
    batches: Any,
    settings: TrainSettings = EPOCH,
    loss_of: Any = readable_loss,
    in_order: bool = False,
) -> None:
    """Gradients of the first batch, losses of all steps and the weights after them: every bit.

    To clip, the squares of all gradients are summed in the order of the parameters, and float32 sums depend on their
    order: the other loop gets the parameters in our order, unless they are in order.
    """
    ours, theirs = both.ours, both.theirs
    pairs = parameter_pairs(ours, theirs)
    batch = next(batches.epoch_batches(0))
    for model, function in ((ours.train(), readable_loss), (theirs.train(), upstream_loss)):
        torch.manual_seed(3)
        function(model, batch).backward()
    assert_equal({name: p.grad for name, p, _ in pairs}, {name: p.grad for name, _, p in pairs})
    for model in (ours, theirs):
        model.zero_grad()
    torch.manual_seed(3)
    progress = train(ours, batches, settings, loss_of=loss_of)
    torch.manual_seed(3)
    in_our_order = None if in_order else [p for _, _, p in pairs]
    assert progress.curve == upstream_training(theirs, batches, settings, in_our_order)
    assert_equal({name: p.data for name, p, _ in pairs}, {name: p.data for name, _, p in pairs})


@every_head
def test_readable_steps_are_those_of_a_transformers_loop_bit_for_bit(family: Family, head: str, pair: MakePair) -> None:
    """Dropout, warmup, decay of the rate and of matrices, clipping.

    The bias of BERT's decoder comes before the transform upstream and after it here, and relatives list norms or tables
    in another order.
    """
    both = pair(family, head)
    in_order = family in (BERT, DISTILBERT) and not hasattr(both.ours, "decoder")
    assert_trains_as_upstream(both, batches_of(head, 18, 4, family=family), in_order=in_order)


@pytest.mark.parametrize("head", ["masked-lm", "sequence-classification"])
@pytest.mark.parametrize("change", [{"fused": False}, {"accumulate": 2}], ids=str)
def test_twenty_steps_with_another_optimizer_or_of_two_batches_are_bit_equal_too(
    head: str, change: dict[str, Any], pair: MakePair
) -> None:
    assert_trains_as_upstream(pair(BERT, head), batches_of(head, 18, 4), replace(TWENTY, **change))


@pytest.mark.parametrize("kind", ["multi_label_classification", "regression"])
@every_family
def test_several_labels_and_numbers_are_learned_as_upstream_bit_for_bit(
    kind: str, family: Family, pair: MakePair
) -> None:
    head = "sequence-classification"
    both = pair(family, head, problem_type=kind, num_labels=1 if kind == "regression" else 3)
    assert_trains_as_upstream(both, batches_of(head, 18, 4, kind=kind, family=family), EPOCH)


@pytest.mark.parametrize(
    ("family", "name"), [(BERT, "mlm"), (BERT, "mlm+nsp"), (ALBERT, "mlm+sop")], ids=["mlm", "nsp", "sop"]
)
def test_an_objective_is_learned_as_upstream_bit_for_bit(family: Family, name: str, pair: MakePair) -> None:
    """The losses of an objective are added up in the order of transformers."""
    objective = OBJECTIVES[name]("readable")
    batches = batches_of(objective.head, 18, 4, family=family)
    assert_trains_as_upstream(pair(family, objective.head), batches, loss_of=objective)


@pytest.mark.parametrize("change", [{"weight_decay": 0.0}, {"clip": 1e9}, {"warmup": 0.2}, {"learning_rate": 1.001e-3}])
def test_a_recipe_that_differs_in_one_thing_gives_other_bits(change: dict[str, float], pair: MakePair) -> None:
    both = pair(head="sequence-classification")
    batches = batches_of("sequence-classification", 18, 4)
    torch.manual_seed(3)
    train(both.ours, batches, replace(EPOCH, **change), loss_of=readable_loss)
    torch.manual_seed(3)
    upstream_training(both.theirs, batches, EPOCH)
    assert not all(torch.equal(p, other) for _, p, other in parameter_pairs(both.ours, both.theirs))


@pytest.mark.parametrize("steps", [1, 2, 7, 100, 651])
@pytest.mark.parametrize("warmup", [0.0, 0.06, 1 / 3, 0.999])
def test_the_learning_rate_of_every_step_is_that_of_the_linear_schedule_of_transformers(
    steps: int, warmup: float
) -> None:
    from transformers import get_linear_schedule_with_warmup

    settings = TrainSettings(learning_rate=3e-5, warmup=warmup)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=3e-5)
    (factor,) = get_linear_schedule_with_warmup(optimizer, math.ceil(warmup * steps), steps).lr_lambdas
    rates = [learning_rate_at(step, steps, settings) for step in range(steps)]
    assert rates == [3e-5 * factor(step) for step in range(steps)]
