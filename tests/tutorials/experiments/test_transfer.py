"""What pretraining is worth: a checkpoint that knows the labels beats random weights of its shape."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transfer
from support.words import labelled, write_words_checkpoint

from minibert.tasks.classification import Classification
from minibert.train.finetuning import FinetuneRun
from minibert.train.settings import FinetuneSettings

pytestmark = pytest.mark.filterwarnings("ignore:all .* texts were predicted")  # models that have hardly begun


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    task = Classification()
    data = (task, task.from_labels(*labelled(24)), task.from_labels(*labelled(12)))
    monkeypatch.setattr(transfer, "read_data", lambda name, folder: data)
    return write_words_checkpoint(tmp_path / "checkpoint")


def test_the_table_has_every_way_with_its_standard_error(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINIBERT_DATA", str(checkpoint))
    assert (
        transfer.main(["sst2", "--model", str(checkpoint), "--rows", "16", "--seeds", "2", "--epochs", "2", "--json"])
        == 0
    )
    header, row = capsys.readouterr().out.splitlines()[:2]
    assert header.count("standard error") == len(("fine-tuned", "random", "frozen", "gain"))
    assert row.split()[:4] == ["sst2", "16", "12", "0.500"] and row.count(",") == 4
    assert header.count("fitted: ") == 2


def test_fewer_rows_are_a_part_of_more_with_their_own_labels_and_too_many_are_refused(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, training, _ = transfer.read_data("", checkpoint)
    label = dict(zip(training.texts, training.known_labels, strict=True))
    few, more = transfer.drawn(training, 5), transfer.drawn(training, 20)
    assert few.texts == more.texts[:5] != training.texts[:5] and len(set(more.texts)) == 20
    assert more.labels == [label[text] for text in more.texts] and more.pairs is None
    monkeypatch.setenv("MINIBERT_DATA", str(checkpoint))
    for rows in ("0", "25"):
        with pytest.raises(SystemExit, match="2"):
            transfer.main(["sst2", "--model", str(checkpoint), "--rows", rows])
        assert f"--rows is {rows}; sst2 has 1 to 24" in " ".join(capsys.readouterr().err.split())


def test_random_weights_have_the_shape_of_the_checkpoint_and_none_of_its_numbers(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    monkeypatch.setattr(transfer, "train", lambda model, *args: iter([started.append(model.state_dict())]))
    run = FinetuneRun.of(*transfer.read_data("", checkpoint), FinetuneSettings(model=str(checkpoint), device="cpu"))
    for pretrained in (True, False):
        transfer.fine_tune(run, transfer.read_data("", checkpoint)[1], 0, pretrained=pretrained)
    tuned, random = started
    name = "encoder.layers.0.attention.query.weight"
    assert tuned[name].shape == random[name].shape and not torch.equal(tuned[name], random[name])
    assert torch.equal(tuned[name], run.new_model().state_dict()[name])


@pytest.mark.parametrize(("random", "error"), [([True] * 6 + [False] * 6, 0.0), ([False] * 6 + [True] * 6, 0.3015)])
def test_the_error_of_the_gain_is_that_of_paired_rows(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, random: list[bool], error: float
) -> None:
    """Both ways have half of the rows right: the same rows, or the others."""
    right = {True: [True] * 6 + [False] * 6, False: random}
    monkeypatch.setattr(
        transfer, "fine_tune", lambda run, training, seed, pretrained: transfer.Right([True, False], right[pretrained])
    )
    task, training, held_out = transfer.read_data("", checkpoint)
    run = FinetuneRun.of(task, training, held_out, FinetuneSettings(model=str(checkpoint), device="cpu"))
    found = transfer.gain(run, training, held_out, seeds=2)
    assert (found.gain.mean, found.gain.standard_error) == (0.0, pytest.approx(error, abs=1e-4))
    assert found.fitted == {"fine-tuned": [0.5, 0.5], "random": [0.5, 0.5]}


def test_the_fit_is_the_accuracy_on_the_training_rows(checkpoint: Path) -> None:
    """With all training labels swapped, the model learns its own rows and is wrong on the others."""
    task, training, held_out = transfer.read_data("", checkpoint)
    swapped = replace(training, labels=[{"pos": "neg", "neg": "pos"}[one] for one in training.known_labels])
    settings = FinetuneSettings(model=str(checkpoint), device="cpu", epochs=60, learning_rate=3e-3)
    run = FinetuneRun.of(task, swapped, held_out, settings)
    found = transfer.fine_tune(run, swapped, 0, pretrained=True)
    assert (found.training, found.held_out) == ([True] * 24, [False] * 12)
