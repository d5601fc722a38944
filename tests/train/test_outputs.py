"""Logits of many examples are those of the readable model; states of a frozen encoder give the same training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import HEADS
from torch import Tensor
from training import CHOICES, CLOSE, Found, batch_of, examples, inputs, lengths_of
from words import labelled, write_words_checkpoint

import minibert
from minibert.families.base import Family
from minibert.families.bert import BERT
from minibert.families.distilbert import DISTILBERT
from minibert.heads import Head, MaskedLM, QuestionAnswering, ReplacedTokenDetection
from minibert.losses import IGNORED
from minibert.parity.stages import forward
from minibert.tasks.base import Encoded
from minibert.train import finetune, finetuning
from minibert.train import outputs as module
from minibert.train.batches import Batch, Batches
from minibert.train.finetuning import freeze
from minibert.train.loop import set_train_mode
from minibert.train.outputs import States, can_be_kept, outputs
from minibert.train.packed import packed_output

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:all .* texts were predicted"),  # models that have hardly begun
]


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
    [case for case in HEADS if case[1] != "pretraining"],  # whose two kinds of logits no task uses
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


def test_logits_in_bfloat16_are_near_and_come_as_float32(model: Callable[..., Head]) -> None:
    made, rows = model(BERT, "sequence-classification"), Encoded(examples("sequence-classification", lengths_of(9)))
    for one, other in zip(outputs(made, rows, "bfloat16"), outputs(made, rows), strict=True):
        assert one.dtype == "float32"
        assert 0 < abs(one - other).max() < 0.1
    assert outputs(made, Encoded([])) == []


# ---------------------------------------------------------------------------------------------------------------
# A frozen encoder

LENGTHS = [7, 1, 11, 3, 11, 2]
KEPT = [(BERT, "sequence-classification"), (DISTILBERT, "sequence-classification"), (BERT, "multiple-choice")]
KEPT += [(BERT, "token-classification"), (DISTILBERT, "token-classification")]
cases = pytest.mark.parametrize(("family", "head"), KEPT, ids=lambda value: getattr(value, "name", value))


@pytest.fixture
def frozen(model: Callable[..., Head]) -> Callable[..., Head]:
    """A random model of which only the task head is trained, by family and task head."""

    def frozen(family: Family, head: str) -> Head:
        made = model(family, head)
        freeze(made, "encoder")
        return made

    return frozen


def encoded(head: str) -> Encoded:
    return Encoded(examples(head, LENGTHS), choices=CHOICES if head == "multiple-choice" else 0)


@cases
def test_loss_gradients_and_logits_are_those_of_the_encoder_run_each_time(
    family: Family, head: str, frozen: Callable[..., Head]
) -> None:
    model, batch = frozen(family, head), batch_of(head, LENGTHS)
    states = States.of(model, encoded(head))
    for kept, computed in zip(states.logits(model), outputs(model, encoded(head)), strict=True):
        assert kept.shape == computed.shape
        assert abs(kept - computed).max() <= CLOSE
    found = []
    for output_of in (states.output, packed_output):
        set_train_mode(model)
        if head == "token-classification":  # whose dropout draws for padding too: the same in distribution
            model.eval()
        torch.manual_seed(5)  # one dropout before the task head
        found.append(Found.of(lambda model, batch, output_of=output_of: output_of(model, batch).loss, model, batch))
    assert found[0].gradients
    assert max(found[0].apart(found[1]).values()) <= CLOSE


def test_states_of_other_rows_are_caught(frozen: Callable[..., Head]) -> None:
    """The control of the test above."""
    model, batch = frozen(BERT, "sequence-classification"), batch_of("sequence-classification", LENGTHS)
    states = States.of(model, encoded("sequence-classification"))
    rows = replace(batch, rows=batch.rows[1:] + batch.rows[:1])
    with torch.no_grad():
        right = packed_output(model, batch).loss
        assert abs(states.output(model, batch).loss - right) <= CLOSE
        assert abs(states.output(model, rows).loss - right) > 100 * CLOSE


def test_only_constant_states_that_fit_into_memory_are_kept(
    frozen: Callable[..., Head], monkeypatch: pytest.MonkeyPatch
) -> None:
    for head in ("question-answering", "masked-lm", "pretraining"):
        assert not can_be_kept(frozen(BERT, head), encoded(head)), head
    model = frozen(BERT, "token-classification")
    assert can_be_kept(model, encoded("token-classification"))
    monkeypatch.setattr(module, "MAX_BYTES", sum(LENGTHS) * model.config.hidden_size * 4 - 1)
    assert not can_be_kept(model, encoded("token-classification"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.mark.parametrize(("what", "times"), [("encoder", 1), ("2", 3)])
def test_a_frozen_encoder_reads_each_text_once(
    what: str, times: int, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one of which the pooler is trained in each of three epochs."""
    read: list[int] = []

    def counting(right: Callable[..., Any]) -> Callable[..., Any]:
        return lambda model, given: (read.append(len(getattr(given, "batch", given).rows)), right(model, given))[1]

    monkeypatch.setattr(finetuning, "packed_output", counting(finetuning.packed_output))
    monkeypatch.setattr(module, "first_states", counting(module.first_states))
    finetune("classify", *labelled(20), model=checkpoint, freeze=what, epochs=3, batch_size=8)
    assert sum(read) == 20 * times


@pytest.mark.parametrize("weights", [None, "balanced"])
def test_training_ends_where_it_ends_without_kept_states(
    weights: str | None, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 8, "learning_rate": 1e-2, "freeze": "encoder"}
    settings |= {"model": checkpoint, "class_weight": weights}
    kept = finetune("classify", *labelled(20), **settings)
    monkeypatch.setattr(finetuning, "can_be_kept", lambda model, encoded: False)
    computed = finetune("classify", *labelled(20), **settings)
    begun = minibert.load(checkpoint, head="sequence-classification", new_head=True)
    for name, weight in kept.named_parameters():
        assert (weight - computed.get_parameter(name)).abs().max() < 1e-5, name
    assert not torch.equal(kept.get_parameter("classifier.weight"), begun.get_parameter("classifier.weight"))
    monkeypatch.delattr(States, "of")  # which the readable step never needs
    assert finetune("classify", *labelled(20), **settings | {"step": "readable", "epochs": 1}).head_is_trained
