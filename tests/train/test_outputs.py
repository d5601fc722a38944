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
from training import CHOICES, CLOSE, Found, batch_of, examples, lengths_of
from words import labelled, write_words_checkpoint

import minibert
from minibert.families.base import Family
from minibert.families.bert import BERT
from minibert.families.distilbert import DISTILBERT
from minibert.heads import Head, MaskedLM, MultipleChoice, QuestionAnswering
from minibert.losses import IGNORED
from minibert.tasks.base import Encoded, Example
from minibert.train import finetune, finetuning
from minibert.train import outputs as module
from minibert.train.finetuning import freeze
from minibert.train.loop import set_train_mode
from minibert.train.outputs import States, can_be_kept, outputs
from minibert.train.packed import packed_output

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:all .* texts were predicted"),  # models that have hardly begun
]


Written = Callable[..., tuple[Path, Any]]


def model(written: Written, family: Family, head: str) -> Head:
    """A random model, in eval mode."""
    return minibert.load(written(family, head)[0], head=head)


def readable_logits(model: Head, example: Example) -> Tensor:
    """By the model as it is, without padding."""
    ids, segments = torch.tensor([example.ids]), torch.tensor([example.segments])
    if isinstance(model, MultipleChoice):
        ids, segments = ids[None], segments[None]
    with torch.inference_mode():
        out = model(ids, token_type_ids=segments, attention_mask=torch.ones_like(ids))
    if isinstance(model, QuestionAnswering):
        return torch.cat([out.start_logits, out.end_logits])
    chosen = torch.tensor(example.labels["labels"]) != IGNORED if isinstance(model, MaskedLM) else slice(None)
    return out.logits[0][chosen]  # of a masked LM those of the tokens with a label


@pytest.mark.parametrize(
    ("family", "head"),
    [case for case in HEADS if case[1] != "pretraining"],  # whose two kinds of logits no task uses
    ids=lambda value: getattr(value, "name", value),
)
def test_the_logits_of_each_example_are_the_readable_models(family: Family, head: str, written: Written) -> None:
    made = model(written, family, head).train()
    rows = examples(head, lengths_of(15), family=family)
    found = outputs(
        made, Encoded(rows, CHOICES if head == "multiple-choice" else 0), batch_tokens=40
    )  # several batches
    assert made.training
    made.eval()
    for ours, example in zip(found, rows, strict=True):
        assert ours.dtype == "float32"
        torch.testing.assert_close(torch.from_numpy(ours), readable_logits(made, example), rtol=CLOSE, atol=CLOSE)


def test_logits_in_bfloat16_are_near_and_come_as_float32(written: Written) -> None:
    head = "sequence-classification"
    made, rows = model(written, BERT, head), Encoded(examples(head, lengths_of(9)))
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


def frozen(written: Written, family: Family, head: str) -> Head:
    """A random model of which only the task head is trained."""
    return freeze(model(written, family, head), "encoder")


def encoded(head: str) -> Encoded:
    return Encoded(examples(head, LENGTHS), choices=CHOICES if head == "multiple-choice" else 0)


@cases
def test_loss_gradients_and_logits_are_those_of_the_encoder_run_each_time(
    family: Family, head: str, written: Written
) -> None:
    made, batch = frozen(written, family, head), batch_of(head, LENGTHS)
    states = States.of(made, encoded(head))
    for kept, computed in zip(states.logits(made), outputs(made, encoded(head)), strict=True):
        assert kept.shape == computed.shape
        assert abs(kept - computed).max() <= CLOSE
    found = []
    for output_of in (states.output, packed_output):
        set_train_mode(made)
        if head == "token-classification":  # whose dropout draws for padding too: the same in distribution
            made.eval()
        torch.manual_seed(5)  # one dropout before the task head
        found.append(Found.of(lambda model, batch, output_of=output_of: output_of(model, batch).loss, made, batch))
    assert found[0].gradients
    assert max(found[0].apart(found[1]).values()) <= CLOSE
    other = replace(batch, rows=batch.rows[1:] + batch.rows[:1])  # the control
    with torch.no_grad():
        assert abs(states.output(made.eval(), other).loss - packed_output(made, batch).loss) > 100 * CLOSE


def test_only_constant_states_that_fit_into_memory_are_kept(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    for head in ("question-answering", "masked-lm", "pretraining"):
        assert not can_be_kept(frozen(written, BERT, head), encoded(head)), head
    made = frozen(written, BERT, "token-classification")
    assert can_be_kept(made, encoded("token-classification"))
    monkeypatch.setattr(module, "MAX_BYTES", sum(LENGTHS) * made.config.hidden_size * 4 - 1)
    assert not can_be_kept(made, encoded("token-classification"))


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
        return lambda model, batch: (read.append(len(batch.rows)), right(model, batch))[1]

    monkeypatch.setattr(finetuning, "packed_output", counting(finetuning.packed_output))
    monkeypatch.setattr(module, "states_of", counting(module.states_of))
    finetune("classify", *labelled(20), model=checkpoint, freeze=what, epochs=3, batch_size=8)
    assert sum(read) == 20 * times
