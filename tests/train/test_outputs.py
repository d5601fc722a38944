"""Logits of many examples: those of the readable model, each at its own place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import HEADS
from torch import Tensor
from training import CHOICES, CLOSE, examples, inputs, lengths_of

import minibert
from minibert.families.base import Family
from minibert.families.bert import BERT
from minibert.heads import Head, MaskedLM, QuestionAnswering, ReplacedTokenDetection
from minibert.losses import IGNORED
from minibert.parity.stages import forward
from minibert.tasks.base import Encoded
from minibert.train.batches import Batch, Batches
from minibert.train.outputs import outputs

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def model(written: Callable[..., tuple[Path, Any]]) -> Callable[..., Head]:
    """A random model by family and task head, in eval mode."""

    def model(family: Family, head: str) -> Head:
        return minibert.load(written(family, head)[0], head=head)

    return model


def readable_logits(model: Head, batch: Batch) -> list[Tensor]:
    """By the model as it is: each row's, padding cut off."""
    with torch.inference_mode():
        out = forward(model, inputs(batch))
    lengths = batch.attention_mask.sum(dim=1).tolist()
    if isinstance(model, QuestionAnswering):
        both = torch.stack([out.start_logits, out.end_logits], dim=1)
        return [row[:, :length] for row, length in zip(both, lengths, strict=True)]
    if batch.choices:
        return list(out.logits.view(-1, 1))
    if isinstance(model, MaskedLM):  # of the tokens with a label alone
        return [row[labels != IGNORED] for row, labels in zip(out.logits, batch.labels["labels"], strict=True)]
    if out.logits.dim() == 3 or isinstance(model, ReplacedTokenDetection):
        return [row[:length] for row, length in zip(out.logits, lengths, strict=True)]
    return list(out.logits)


@pytest.mark.parametrize(
    ("family", "head"),
    [case for case in HEADS if case[1] != "pretraining"],  # whose two kinds of logits no task asks for
    ids=lambda value: getattr(value, "name", value),
)
def test_the_logits_of_each_example_are_the_readable_models(
    family: Family, head: str, model: Callable[..., Head], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibert.train.outputs.BATCH_TOKENS", 40)  # several batches
    made = model(family, head).train()
    choices = CHOICES if head == "multiple-choice" else 0
    rows = examples(head, lengths_of(15), family=family)
    found = outputs(made, Encoded(rows, choices))
    assert made.training
    made.eval()
    whole = Batches(rows, len(rows), 0, pad_id=0, choices=choices).of_rows(range(15))
    right = readable_logits(made, whole)
    assert len(found) == len(right) == len(rows)
    for ours, theirs in zip(found, right, strict=True):
        assert ours.dtype == "float32"
        torch.testing.assert_close(torch.from_numpy(ours), theirs, rtol=CLOSE, atol=CLOSE)


def test_no_examples_have_no_logits(model: Callable[..., Head]) -> None:
    assert outputs(model(BERT, "sequence-classification"), Encoded([])) == []


def test_logits_in_bfloat16_are_near_and_come_as_float32(model: Callable[..., Head]) -> None:
    made, rows = model(BERT, "sequence-classification"), Encoded(examples("sequence-classification", lengths_of(9)))
    coarse = outputs(made, rows, "bfloat16")
    for one, other in zip(coarse, outputs(made, rows), strict=True):
        assert one.dtype == "float32"
        assert 0 < abs(one - other).max() < 0.1
