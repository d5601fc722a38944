"""An encoder that is not trained is asked once, and the task head learns the same as if it were asked each time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from training import CHOICES, CLOSE, batch_of, examples
from words import labelled, write_words_checkpoint

import minibert
from minibert.families.base import Family
from minibert.families.bert import BERT
from minibert.families.distilbert import DISTILBERT
from minibert.heads import Head
from minibert.tasks import task_class
from minibert.tasks.base import Encoded
from minibert.train import finetune, frozen_encoder
from minibert.train import finetuning as room
from minibert.train.finetuning import FinetuneRun, freeze
from minibert.train.frozen_encoder import States, can_be_kept
from minibert.train.loop import set_train_mode
from minibert.train.outputs import outputs
from minibert.train.packed import packed_output
from minibert.train.settings import FinetuneSettings

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:all .* texts were predicted"),  # models that have hardly begun
]
LENGTHS = [7, 1, 11, 3, 11, 2]
KEPT = [(BERT, "sequence-classification"), (DISTILBERT, "sequence-classification"), (BERT, "multiple-choice")]
KEPT += [(BERT, "token-classification"), (DISTILBERT, "token-classification")]
cases = pytest.mark.parametrize(("family", "head"), KEPT, ids=lambda value: getattr(value, "name", value))


@pytest.fixture
def frozen(written: Callable[..., tuple[Path, Any]]) -> Callable[..., Head]:
    """A random model of which the task head alone is trained, by family and task head."""

    def frozen(family: Family, head: str) -> Head:
        model = minibert.load(written(family, head)[0], head=head)
        freeze(model, "encoder")
        return model

    return frozen


def encoded(head: str) -> Encoded:
    return Encoded(examples(head, LENGTHS), choices=CHOICES if head == "multiple-choice" else 0)


@cases
def test_loss_and_gradients_are_those_of_the_encoder_asked_each_time(
    family: Family, head: str, frozen: Callable[..., Head]
) -> None:
    model, batch = frozen(family, head), batch_of(head, LENGTHS)
    states = States.of(model, encoded(head))
    found = []
    for output_of in (states.output, packed_output):
        set_train_mode(model)
        torch.manual_seed(5)  # one dropout before the task head
        model.zero_grad()
        loss = output_of(model, batch).loss
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(found[0]) == len(found[1]) > 1
    if head == "token-classification":  # whose dropout draws for padding too: the same in distribution
        model.eval()
        found = [[output_of(model, batch).loss.detach()] for output_of in (states.output, packed_output)]
    for once, again in zip(*found, strict=True):
        assert (once - again).abs().max() <= CLOSE * max(1.0, float(again.abs().max()))


@cases
def test_answers_are_those_of_the_encoder_asked_each_time(
    family: Family, head: str, frozen: Callable[..., Head]
) -> None:
    model = frozen(family, head)
    once, again = States.of(model, encoded(head)).logits(model), outputs(model, encoded(head))
    for kept, asked in zip(once, again, strict=True):
        assert kept.shape == asked.shape
        assert abs(kept - asked).max() <= CLOSE


def test_states_of_other_rows_are_caught(frozen: Callable[..., Head]) -> None:
    """The control of the tests above."""
    model, batch = frozen(BERT, "sequence-classification"), batch_of("sequence-classification", LENGTHS)
    states = States.of(model, encoded("sequence-classification"))
    shifted = States(states.hidden[1:] + states.hidden[:1], states.pooled and states.pooled[1:] + states.pooled[:1])
    with torch.no_grad():
        right = packed_output(model, batch).loss
        assert abs(states.output(model, batch).loss - right) <= CLOSE
        assert abs(shifted.output(model, batch).loss - right) > 100 * CLOSE


def test_answers_and_masked_text_are_never_kept(frozen: Callable[..., Head]) -> None:
    for head in ("question-answering", "masked-lm", "pretraining"):
        assert not can_be_kept(frozen(BERT, head), encoded(head)), head


def test_states_that_take_too_much_memory_are_not_kept(
    frozen: Callable[..., Head], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = frozen(BERT, "token-classification")
    assert can_be_kept(model, encoded("token-classification"))
    monkeypatch.setattr(frozen_encoder, "MOST_BYTES", sum(LENGTHS) * model.config.hidden_size * 4 - 1)
    assert not can_be_kept(model, encoded("token-classification"))


@pytest.mark.parametrize(("what", "times"), [("encoder", 1), ("2", 3)])
def test_a_frozen_encoder_reads_each_text_once(
    what: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one of which the pooler is trained in each of three epochs."""
    read = []
    for file in (room, frozen_encoder):
        right = getattr(file, "packed_output" if file is room else "first_states")

        def counting(model: Any, batch: Any, right: Any = right) -> Any:
            read.append(batch.places.rows if hasattr(batch, "places") else len(batch.rows))
            return right(model, batch)

        monkeypatch.setattr(file, right.__name__, counting)
    texts, labels = labelled(20)
    checkpoint = write_words_checkpoint(tmp_path / "checkpoint")
    finetune("classify", texts, labels, model=checkpoint, freeze=what, epochs=3, batch_size=8)
    assert sum(read) == 20 * times


@pytest.mark.parametrize("weights", [None, "balanced"])
def test_training_ends_where_it_ends_without_kept_states(
    weights: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, labels = labelled(20)
    checkpoint = write_words_checkpoint(tmp_path / "checkpoint")
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 8, "learning_rate": 1e-2, "freeze": "encoder"}
    settings |= {"model": checkpoint, "class_weight": weights}
    kept = finetune("classify", texts, labels, **settings)
    monkeypatch.setattr(room, "can_be_kept", lambda model, encoded: False)
    asked = finetune("classify", texts, labels, **settings)
    begun = minibert.load(checkpoint, head="sequence-classification", new_head=True)
    for name, weight in kept.named_parameters():
        assert (weight - asked.get_parameter(name)).abs().max() < 1e-5, name
    assert not torch.equal(kept.get_parameter("classifier.weight"), begun.get_parameter("classifier.weight"))


def test_the_readable_step_asks_the_encoder_each_time(tmp_path: Path) -> None:
    task: Any = task_class("classify")()
    data = task.from_labels(*labelled(8))
    checkpoint = write_words_checkpoint(tmp_path / "checkpoint")
    settings = FinetuneSettings(model=str(checkpoint), epochs=1, freeze="encoder", step="readable")
    assert FinetuneRun.of(task, data, None, settings).train(tmp_path / "run").model.head_is_trained
