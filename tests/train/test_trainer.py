"""An epoch of transformers' own Trainer, given our batches in our order, ends at our weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import HEADS, assert_equal, every_head
from torch import Tensor
from training import batches_of, inputs

import minibert
from minibert.families.base import Family
from minibert.families.bert import BERT
from minibert.families.distilbert import DISTILBERT
from minibert.parity.checkpoints import quiet
from minibert.parity.compare import parameter_pairs
from minibert.train.batches import Batches
from minibert.train.loop import Settings, readable_loss, train

pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate, which the extra `test` brings")
Written = Callable[..., tuple[Path, Any]]
EPOCH = Settings(epochs=1, batch_size=4, learning_rate=1e-3, warmup=0.3)
SEED = 5  # of dropout
REORDERED = [(BERT, "masked-lm"), (BERT, "pretraining")]
IN_UPSTREAMS_ORDER = [case for case in HEADS if case[0] in (BERT, DISTILBERT) and case not in REORDERED]
pytestmark = pytest.mark.usefixtures("one_thread")


class InOurOrder:
    """Our batches as Trainer asks for them: something with a length that is gone through once an epoch."""

    def __init__(self, batches: Batches, segments: bool) -> None:
        self.batches, self.segments = batches, segments

    def __len__(self) -> int:
        return self.batches.an_epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        torch.manual_seed(SEED)
        for batch in self.batches.of_epoch(0):
            given = {name: value for name, value in vars(inputs(batch)).items() if self.segments or "type" not in name}
            yield given | batch.labels


def trained_by_trainer(model: Any, batches: Batches, settings: Settings, segments: bool, folder: Path) -> list[float]:
    """Train transformers' model as a user of Trainer would; returns the loss of each step."""
    from transformers import Trainer, TrainingArguments

    class OurBatches(Trainer):  # type: ignore[misc]  # Any
        def get_train_dataloader(self) -> Any:
            return InOurOrder(batches, segments)

        def training_step(self, *given: Any, **more: Any) -> Any:
            loss = super().training_step(*given, **more)
            losses.append(float(loss))
            return loss

    losses: list[float] = []
    with quiet():
        arguments = TrainingArguments(
            output_dir=str(folder),
            num_train_epochs=settings.epochs,
            per_device_train_batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
            warmup_steps=settings.warmup,  # a share of the steps
            weight_decay=settings.weight_decay,
            max_grad_norm=settings.clip,
            optim="adamw_torch_fused",
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        OurBatches(model=model, args=arguments).train()
    return losses


@dataclass
class Ends:
    """What an epoch of both came to: the loss of each step, and the weights by our names."""

    curve: list[float]
    losses: list[float]
    ours: dict[str, Tensor]
    theirs: dict[str, Tensor]


@pytest.fixture
def ends(written: Written, tmp_path: Path) -> Callable[..., Ends]:
    """An epoch of our loop and one of Trainer, from the same weights, on the same batches."""

    def ends(family: Family, head: str, in_our_order: bool) -> Ends:
        folder, original = written(family, head)
        batches = batches_of(head, 30, 4, family=family)
        ours, theirs = minibert.load(folder, head=head), copy.deepcopy(original)
        pairs = parameter_pairs(ours, theirs)
        if in_our_order:
            theirs.parameters = lambda recurse=True: iter([parameter for _, _, parameter in pairs])
        torch.manual_seed(SEED)
        curve = train(ours, batches, EPOCH, loss_of=readable_loss).curve
        losses = trained_by_trainer(theirs, batches, EPOCH, family.has_segments, tmp_path)
        mine, found = {name: p.data for name, p, _ in pairs}, {name: p.data for name, _, p in pairs}
        return Ends(curve, losses, mine, found)

    return ends


@every_head
def test_an_epoch_of_trainer_ends_at_the_same_weights_bit_for_bit(
    family: Family, head: str, ends: Callable[..., Ends]
) -> None:
    """With its own optimizer, schedule, clipping and groups for weight decay; only the order of the rows is ours.

    To clip, the squares of all gradients are summed in the order of the parameters. The bias of BERT's decoder stands
    before the transform upstream and after it here, and float32 sums depend on their order in the last bit. For masked
    language models of BERT Trainer is therefore shown the parameters in our order, as for the relatives that list norms
    or tables in another one.
    """
    found = ends(family, head, in_our_order=(family, head) not in IN_UPSTREAMS_ORDER)
    assert found.losses == found.curve
    assert_equal(found.ours, found.theirs)


@pytest.mark.parametrize(("family", "head"), REORDERED, ids=[head for _, head in REORDERED])
def test_the_order_in_which_clipping_sums_is_worth_a_last_bit(
    family: Family, head: str, ends: Callable[..., Ends]
) -> None:
    """Losses within 1e-5, and weights within two steps of the rate: Adam takes whole steps along gradients that are
    nothing but rounding, such as those of the biases of the keys, which softmax cancels."""
    found = ends(family, head, in_our_order=False)
    assert found.losses == pytest.approx(found.curve, rel=1e-5)
    for name, weight in found.ours.items():
        assert (weight - found.theirs[name]).abs().max() < 2 * EPOCH.learning_rate, name
