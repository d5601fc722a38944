"""The loop: transformers' bits step for step, the same bits twice, batches that add up, weights that must not move."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_equal, every_family, every_head
from torch import Tensor, nn
from training import CLOSE, Found, batch_of, batches_of, examples, upstream_training

import minibert
from minibert.families.base import Family
from minibert.families.bert import BERT
from minibert.families.distilbert import DISTILBERT
from minibert.heads import Head
from minibert.lab.parity.compare import parameter_pairs
from minibert.losses import IGNORED
from minibert.train.batches import Batch, Batches
from minibert.train.loop import (
    NotFiniteError,
    Progress,
    Settings,
    learn,
    new_optimizer,
    one_step,
    packed_loss,
    rate,
    readable_loss,
    train,
    trained,
)

Written = Callable[..., tuple[Path, Any]]
pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = Settings(epochs=4, batch_size=4, learning_rate=1e-3, warmup=0.3, clip=1.0)  # of 18 rows: 20 steps


@pytest.fixture
def both(written: Written) -> Callable[..., tuple[Head, Any]]:
    """A random checkpoint in minibert and in transformers, both for the test to change."""

    def both(family: Family = BERT, head: str = "sequence-classification", **changes: Any) -> tuple[Head, Any]:
        folder, theirs = written(family, head, **changes)
        return minibert.load(folder, head=head), copy.deepcopy(theirs)

    return both


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


# ---------------------------------------------------------------------------------------------------------------
# Beside transformers


def assert_trains_as_upstream(
    ours: Head, theirs: Any, batches: Batches, settings: Settings, parameters: list[Any] | None = None
) -> None:
    """Losses of all steps, gradients of the first, weights after the last: every bit."""
    first: list[Tensor | None] = []
    mine: list[Tensor | None] = []
    pairs = parameter_pairs(ours, theirs)

    def loss_of(model: Head, batch: Batch) -> Tensor:
        if len(progress.curve) == 1 and not mine:
            mine.extend(kept)
        return readable_loss(model, batch)

    kept: list[Tensor | None] = []
    handle = torch.optim.Optimizer.register_optimizer_step_pre_hook  # noqa: F841
    progress = Progress()
    optimizer = new_optimizer(ours, settings)
    optimizer.register_step_pre_hook(lambda *_: kept or kept.extend(p.grad.clone() for _, p, _ in pairs))
    torch.manual_seed(3)
    train(ours, batches, settings, loss_of=loss_of, progress=progress, optimizer=optimizer)
    torch.manual_seed(3)
    losses = upstream_training(theirs, batches, settings, parameters=parameters)
