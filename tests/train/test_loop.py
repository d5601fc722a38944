"""The loop: the same bits twice, batches that add up, weights that must not move, losses that are not finite.

Gradients, losses and weights are bit for bit those of a plain loop with transformers; that those of its Trainer are the
same is shown by tests/bench/test_training.py.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.models import HEADS, Pair, assert_equal, every_family, every_head
from support.training import (
    Changed,
    Found,
    batch_of,
    batches_of,
    examples,
    to_the_end,
    upstream_loss,
    upstream_training,
)
from torch import Tensor, nn

from minibert.families.albert import ALBERT
from minibert.families.bert import BERT
from minibert.families.distilbert import DISTILBERT
from minibert.families.electra import ELECTRA
from minibert.heads import Head
from minibert.inputs import IGNORED
from minibert.parity.compare import parameter_pairs
from minibert.prediction.collate import ExampleBatch
from minibert.train.loop import (
    Loss,
    NotFiniteError,
    learning_rate_at,
    new_optimizer,
    one_step,
    packed_loss,
    readable_loss,
    set_train_mode,
    train,
)
from minibert.train.objectives import OBJECTIVES
from minibert.train.settings import TrainSettings

HEAD = "sequence-classification"
TWENTY = TrainSettings(epochs=4, batch_size=4, learning_rate=1e-3, warmup=0.3)  # steps, with 18 rows
both_steps = pytest.mark.parametrize("loss_of", [packed_loss, readable_loss], ids=["packed", "readable"])


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def one(
    model: Head,
    parts: Sequence[ExampleBatch],
    settings: TrainSettings = TWENTY,
    loss_of: Loss = packed_loss,
    step: int = 1,
) -> float:
    """A single step with an optimizer of its own."""
    return float(one_step(model, parts, new_optimizer(model, settings), loss_of, settings, step).loss)


# ---------------------------------------------------------------------------------------------------------------
# What is trained


def decays(model: nn.Module) -> dict[str, list[float]]:
    """By the name of each parameter, the weight decay of every group that it is in."""
    groups = new_optimizer(model, TrainSettings(weight_decay=0.25)).param_groups
    return {
        name: [group["weight_decay"] for group in groups for p in group["params"] if p is parameter]
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }


@every_family
def test_matrices_decay_and_biases_and_norms_do_not_each_in_one_group(family, made):
    model = made(family)
    norms = {name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)}
    assert len(norms) >= 1 + 2 * len(model.encoder.layers)
    model.again = model.encoder.embeddings.token  # a second name for one parameter
    for name, found in decays(model).items():
        plain = name.endswith("bias") or name.rpartition(".")[0] in norms
        assert found == [0.0 if plain else 0.25], name
    assert "again.weight" in decays(model)


@every_family
def test_frozen_weights_are_in_no_group_and_have_no_dropout(family, made):
    groups = {"num_hidden_groups": 2} if family is ALBERT else {}  # two layers, as the others have
    model = made(family, **groups)
    frozen = (model.encoder.embeddings, model.encoder.layers[0])
    for part in frozen:
        part.requires_grad_(False)
    assert {name for name, found in decays(model).items() if not found} == {
        name for name, p in model.named_parameters() if not p.requires_grad
    }
    set_train_mode(model)
    for part in frozen:
        assert not any(module.training for module in part.modules())
    for part in (model.encoder.layers[1], model.dropout):
        assert all(module.training for module in part.modules())


def test_progress_counts_steps_epochs_tokens_and_losses_and_training_ends_in_eval_mode(made):
    model, batches, calls = made(), batches_of(HEAD, 18, 4), list[tuple[int, int]]()
    model.head_is_trained = False
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))  # what was there before does not count
    modes = list[bool]()
    for progress in train(model, batches, replace(TWENTY, accumulate=2)):
        if progress.batch == 0:
            modes.append(model.training)
        else:
            calls.append((progress.step, progress.batch))
    assert progress.step == len(progress.curve) == 4 * 3  # five batches an epoch, two to a step
    assert calls[:4] == [(1, 2), (2, 4), (3, 5), (4, 2)]
    assert progress.epoch == 4 and progress.batch == 0
    assert progress.tokens == 4 * sum(len(example.ids) for example in batches.examples)
    assert modes == [False] * 4
    assert model.head_is_trained
    assert not any(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_run_of_one_step_with_warmup_changes_no_weight_and_warns(made):
    model, batches, settings = made(), batches_of(HEAD, 4, 4), TrainSettings(epochs=1)
    before = copy.deepcopy(model.state_dict())
    with pytest.warns(UserWarning, match=r"warmup 0\.1 .*rate is 0.*epochs.*batch_size.*warmup 0"):
        to_the_end(train(model, batches, settings))
    assert_equal(model.state_dict(), before)
    to_the_end(train(model, batches, replace(settings, warmup=0.0)))  # which learns, without a warning
    assert any(not torch.equal(x, before[name]) for name, x in model.state_dict().items())
    to_the_end(train(model, batches, replace(settings, epochs=2, warmup=0.99)))  # two steps, the first at a rate of 0


# ---------------------------------------------------------------------------------------------------------------
# Several batches in one step


# The loss of pretraining is a mean over tokens and one over texts, which no single weight can put together.
@both_steps
@pytest.mark.parametrize(
    ("family", "head"),
    [case for case in HEADS if case[0] in (BERT, ELECTRA) and case[1] != "pretraining"],
    ids=lambda value: getattr(value, "name", value),
)
def test_uneven_parts_of_a_batch_make_the_step_of_the_whole(loss_of, family, head, made):
    """A mean of means would count what the smaller part holds for more."""
    made_up = examples(head, [3, 9, 9, 5, 7, 2, 4], seed=1, family=family)  # padded alike, which answers depend on
    rows = replace(batches_of(head, 7, 7, family=family), examples=made_up)
    whole, *parts = (rows.of_rows(range(*ends)) for ends in ((0, 7), (0, 2), (2, 7)))
    right = Found.of_step(loss_of, made(family, head).double(), [whole])
    assert max(Found.of_step(loss_of, made(family, head).double(), parts).apart(right).values()) < 1e-6
    first, second = (Found.of(loss_of, made(family, head).double(), part) for part in parts)
    middle = {name: (first.gradients[name] + second.gradients[name]) / 2 for name in right.gradients}
    assert max(Found((first.loss + second.loss) / 2, middle).apart(right).values()) > 1e-2


@both_steps
def test_a_part_without_a_label_is_left_out(loss_of, made):
    head = "token-classification"
    batch, empty = (batch_of(head, [3, 7, 11], seed=seed) for seed in (1, 2))
    empty.labels["labels"][:] = IGNORED
    whole = Found.of_step(loss_of, made(BERT, head), [batch])
    assert max(Found.of_step(loss_of, made(BERT, head), [empty, batch]).apart(whole).values()) == 0
    model = made(BERT, head)
    before = weights_of(model)
    assert one(model, [empty], loss_of=loss_of) == 0
    assert_equal(weights_of(model), before)


# ---------------------------------------------------------------------------------------------------------------
# What cannot be learned, and bfloat16


@pytest.mark.parametrize("finite", [False, True], ids=["loss", "gradient"])
def test_a_loss_or_gradient_that_is_not_finite_stops_with_step_and_rows_and_leaves_the_weights(finite, made):
    """Clipping divides by the norm of the gradient: every weight would become NaN."""

    def change(loss):
        loss.register_hook(lambda gradient: gradient * float("inf"))
        return loss if finite else loss * float("nan")

    model, batch = made(), replace(batch_of(HEAD, [3, 7, 11]), rows=(40, 2, 31))
    before = weights_of(model)
    words = rf"step 7 .*not finite \(loss {r'[0-9.]+' if finite else 'nan'}, gradient (inf|nan)\).*rows 40, 2, 31;"
    with pytest.raises(NotFiniteError, match=words):
        one(model, [batch], loss_of=Changed(packed_loss, change), step=7)
    assert_equal(weights_of(model), before)


def test_bfloat16_is_of_the_products_alone_and_learns_alike(made):
    settings = TrainSettings(epochs=30, batch_size=4, learning_rate=5e-3, precision="bfloat16")
    model = made()
    optimizer = new_optimizer(model, settings)
    dtypes = set()
    model.encoder.layers[0].feed_forward.expand.register_forward_hook(lambda *given: dtypes.add(given[2].dtype))
    progress = to_the_end(train(model, batches_of(HEAD, 4, 4), settings, optimizer=optimizer))
    assert dtypes == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {value.dtype for state in optimizer.state.values() for value in state.values()} == {torch.float32}
    assert progress.curve[-1] < 0.3 < progress.curve[0]


# ---------------------------------------------------------------------------------------------------------------
# Beside a plain loop with transformers

EPOCH = replace(TWENTY, epochs=1)  # five steps


def assert_trains_as_upstream(
    both: Pair,
    batches: Any,
    settings: TrainSettings = EPOCH,
    loss_of: Any = readable_loss,
    in_order: bool = False,
) -> None:
    """Gradients of the first batch, losses of all steps and the weights after them: every bit.

    To clip, the squares of all gradients are summed in the order of the parameters, and float32 sums depend on their
    order: the other loop gets the parameters in our order, unless they are in order. Parameters that hold several of
    ours have other sums, so nothing is clipped then.
    """
    ours, theirs = both.ours, both.theirs
    if ours.config.family.fused:
        in_order, settings = True, replace(settings, clip=1e9)
    batch = next(batches.epoch_batches(0))
    for model, function in ((ours.train(), readable_loss), (theirs.train(), upstream_loss)):
        torch.manual_seed(3)
        function(model, batch).backward()
    pairs = parameter_pairs(ours, theirs)
    assert_equal({name: p.grad for name, p, _ in pairs}, {name: p.grad for name, _, p in pairs})
    for model in (ours, theirs):
        model.zero_grad()
    torch.manual_seed(3)
    progress = to_the_end(train(ours, batches, settings, loss_of=loss_of))
    torch.manual_seed(3)
    in_our_order = None if in_order else [p for _, _, p in pairs]
    assert progress.curve == upstream_training(theirs, batches, settings, in_our_order)
    pairs = parameter_pairs(ours, theirs)
    assert_equal({name: p.data for name, p, _ in pairs}, {name: p.data for name, _, p in pairs})


@every_head
def test_readable_steps_are_those_of_a_transformers_loop_bit_for_bit(family, head, pair):
    """Dropout, warmup, decay of the rate and of matrices, clipping.

    The bias of BERT's decoder comes before the transform upstream and after it here, and relatives list norms or tables
    in another order.
    """
    both = pair(family, head)
    in_order = family in (BERT, DISTILBERT) and not hasattr(both.ours, "decoder")
    assert_trains_as_upstream(both, batches_of(head, 18, 4, family=family), in_order=in_order)


@pytest.mark.parametrize("head", ["masked-lm", "sequence-classification"])
@pytest.mark.parametrize("change", [{"fused": False}, {"accumulate": 2}], ids=str)
def test_twenty_steps_with_another_optimizer_or_of_two_batches_are_bit_equal_too(head, change, pair):
    assert_trains_as_upstream(pair(BERT, head), batches_of(head, 18, 4), replace(TWENTY, **change))


@pytest.mark.parametrize("kind", ["multi_label_classification", "regression"])
@every_family
def test_several_labels_and_numbers_are_learned_as_upstream_bit_for_bit(kind, family, pair):
    head = "sequence-classification"
    both = pair(family, head, problem_type=kind, num_labels=1 if kind == "regression" else 3)
    assert_trains_as_upstream(both, batches_of(head, 18, 4, kind=kind, family=family), EPOCH)


@pytest.mark.parametrize(
    ("family", "name"), [(BERT, "mlm"), (BERT, "mlm+nsp"), (ALBERT, "mlm+sop")], ids=["mlm", "nsp", "sop"]
)
def test_an_objective_is_learned_as_upstream_bit_for_bit(family, name, pair):
    """The losses of an objective are added up in the order of transformers."""
    objective = OBJECTIVES[name]("readable")
    batches = batches_of(objective.head, 18, 4, family=family)
    assert_trains_as_upstream(pair(family, objective.head), batches, loss_of=objective)


@pytest.mark.parametrize("change", [{"weight_decay": 0.0}, {"clip": 1e9}, {"warmup": 0.2}, {"learning_rate": 1.001e-3}])
def test_a_recipe_that_differs_in_one_thing_gives_other_bits(change, pair):
    both = pair(head="sequence-classification")
    batches = batches_of("sequence-classification", 18, 4)
    torch.manual_seed(3)
    to_the_end(train(both.ours, batches, replace(EPOCH, **change), loss_of=readable_loss))
    torch.manual_seed(3)
    upstream_training(both.theirs, batches, EPOCH)
    assert not all(torch.equal(p, other) for _, p, other in parameter_pairs(both.ours, both.theirs))


@pytest.mark.parametrize("steps", [1, 2, 7, 100, 651])
@pytest.mark.parametrize("warmup", [0.0, 0.06, 1 / 3, 0.999])
def test_the_learning_rate_of_every_step_is_that_of_the_linear_schedule_of_transformers(steps, warmup):
    from transformers import get_linear_schedule_with_warmup

    settings = TrainSettings(learning_rate=3e-5, warmup=warmup)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=3e-5)
    (factor,) = get_linear_schedule_with_warmup(optimizer, math.ceil(warmup * steps), steps).lr_lambdas
    rates = [learning_rate_at(step, steps, settings) for step in range(steps)]
    assert rates == [3e-5 * factor(step) for step in range(steps)]
