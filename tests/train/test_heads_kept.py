"""A trained head goes on learning where the data has its labels; elsewhere one line says that the head is new."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.words import labelled, write_words_checkpoint

import minibert
from minibert.prediction.reader import open_reader
from minibert.tasks.base import Task
from minibert.tasks.classification import Classification
from minibert.tasks.tagging import Sentences, Tagging
from minibert.train import finetune
from minibert.train.finetuning import FinetuneRun
from minibert.train.settings import FinetuneSettings

pytestmark = [pytest.mark.filterwarnings("ignore:all .* texts were predicted")]
TEXTS, NAMES = labelled(24)
THREE = ["entailment", "neutral", "contradiction"]  # as in MNLI: not in alphabetical order
BY_NAME = [THREE[row % 3] for row in range(24)]
ONE, SEVERAL, NUMBER = Classification(), Classification(separator="|"), Classification(regression=True)
MATRIX = np.array([[row % 2, row % 3 == 0, 0] for row in range(24)], dtype=int)
Made = Callable[..., Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A checkpoint with a random head that knows these labels."""

    def made(names=None, head="sequence-classification", **more):
        named = {} if names is None else {"id2label": dict(enumerate(names)), "num_labels": len(names)}
        return write_words_checkpoint(tmp_path_factory.mktemp("head"), head=head, **named | more)

    return made


def run_of(folder: Path, labels: Any, task: Task = ONE, dev: Any = None) -> FinetuneRun:
    data = labels if isinstance(labels, Sentences) else task.from_labels(TEXTS, labels)
    return FinetuneRun.of(task, data, dev, FinetuneSettings(model=str(folder), precision="float32"))


def is_kept(run: FinetuneRun, folder: Path) -> bool:
    """Whether the run begins with the head of the checkpoint, its labels as they are numbered in the data."""
    model = run.new_model()
    assert list(model.config.id2label.values()) == run.labels and model.config.problem_type == run.task.problem_type
    before = minibert.load(folder, head=run.task.head)
    same = model.classifier.weight.shape == before.classifier.weight.shape
    return bool(same and torch.equal(model.classifier.weight, before.classifier.weight))


TAGGED = Sentences([["a", "b"], ["c"]], [["I-x", "O"], ["B-x"]])


@pytest.mark.parametrize(
    ("head", "task", "labels", "expected"),
    [
        ({"names": THREE}, ONE, BY_NAME, THREE),
        ({"names": THREE, "problem_type": "single_label_classification"}, ONE, BY_NAME, THREE),
        ({"names": ["2", "10", "1"]}, ONE, [(1, 2, 10)[row % 3] for row in range(24)], ["2", "10", "1"]),
        ({"num_labels": 3}, ONE, [row % 3 for row in range(24)], ["0", "1", "2"]),  # LABEL_0, LABEL_1, LABEL_2
        ({"num_labels": 3}, ONE, [f"LABEL_{row % 3}" for row in range(24)], ["LABEL_0", "LABEL_1", "LABEL_2"]),
        ({"names": ["z", "a"], "problem_type": "multi_label_classification"}, SEVERAL, ["a|z", "a"] * 12, ["z", "a"]),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, SEVERAL, MATRIX, ["0", "1", "2"]),
        ({"names": ["score"]}, NUMBER, np.arange(24.0), ["score"]),
        ({"num_labels": 1, "problem_type": "regression"}, NUMBER, np.arange(24.0), ["LABEL_0"]),
        ({"names": ["O", "B-x", "I-x"], "head": "token-classification"}, Tagging(), TAGGED, ["O", "B-x", "I-x"]),
    ],
)
def test_a_head_for_the_same_labels_is_kept_with_its_order(made, head, task, labels, expected):
    folder = made(**head)
    run = run_of(folder, labels, task)
    assert run.labels == expected == run.report["labels"]
    assert is_kept(run, folder) and run.notes == []


@pytest.mark.parametrize(
    ("head", "task", "labels", "note"),
    [
        (
            {"names": THREE},
            ONE,
            NAMES,
            "new: .*'entailment', 'neutral', 'contradiction', and the data has 'neg', 'pos'",
        ),
        ({"num_labels": 2}, ONE, NAMES, "new: .*'LABEL_0', 'LABEL_1', and the data has 'neg', 'pos'"),
        ({"num_labels": 2}, ONE, [row % 2 + 1 for row in range(24)], "new: .*'LABEL_1', and the data has '1', '2'"),
        (
            {"names": ["neg", "pos"], "problem_type": "multi_label_classification"},
            ONE,
            NAMES,
            "new: .*head is for multi_label_classification, and the data is for single_label_classification",
        ),
        (
            {"names": ["neg", "pos"], "problem_type": "single_label_classification"},
            SEVERAL,
            ["neg|pos", "pos"] * 12,
            "new: .*head is for single_label_classification, and the data is for multi_label_classification",
        ),
        ({"num_labels": 2}, NUMBER, np.arange(24.0), "new: .*'LABEL_0', 'LABEL_1', and the data has numbers"),
        ({"names": ["O", "B-x"], "head": "token-classification"}, Tagging(), TAGGED, "new: .*has 'B-x', 'I-x', 'O'"),
    ],
)
def test_one_line_says_that_the_head_is_new_and_why(made, head, task, labels, note):
    folder = made(**head)
    run = run_of(folder, labels, task)
    assert not is_kept(run, folder)
    [found] = run.notes
    assert run.summary.replace("\n", " ").count("the task head is new") == 1 and run.report["notes"] == [found]
    assert re.search(note, found)


def test_a_checkpoint_without_a_head_or_with_one_of_another_task_needs_no_line(made, checkpoint):
    tags = made(["neg", "pos"], head="token-classification")  # its classifier has the name of ours
    assert run_of(checkpoint, NAMES).notes == run_of(tags, NAMES).notes == []
    assert run_of(tags, NAMES).new_model().config.id2label == {0: "neg", 1: "pos"}


def test_training_goes_on_and_is_measured_with_the_order_of_the_head(made, tmp_path):
    how = {"batch_size": 8, "learning_rate": 6e-3, "precision": "float32"}
    first = finetune("classify", TEXTS, NAMES, model=made(["pos", "neg"]), out=tmp_path / "one", epochs=8, **how)
    assert first.config.id2label == {0: "pos", 1: "neg"}
    finetune("classify", TEXTS, NAMES, model=tmp_path / "one", out=tmp_path / "two", epochs=1, **how | {"seed": 7})
    reader = open_reader(tmp_path / "two")
    assert reader.measure(ONE.from_labels(TEXTS, NAMES)).score == 1.0
    report = json.loads((tmp_path / "two" / "training.json").read_text())
    assert (report["labels"], report["notes"]) == (["pos", "neg"], [])
    assert report["curve"][0] < 0.3  # of a new head: log 2


def test_a_new_head_is_noted_in_the_report_and_the_log(made, tmp_path, caplog):
    finetune("classify", TEXTS, NAMES, model=made(THREE), out=tmp_path / "out", epochs=1, batch_size=12)
    [note] = json.loads((tmp_path / "out" / "training.json").read_text())["notes"]
    assert "the task head is new" in note and note in caplog.text


def test_unnamed_labels_are_the_numbers_of_the_data_in_an_evaluation(made):
    reader = open_reader(made(num_labels=3))
    numbers = [row % 3 for row in range(24)]
    found = reader.measure(ONE.from_labels(TEXTS, numbers)).figures
    named = reader.measure(ONE.from_labels(TEXTS, [f"LABEL_{number}" for number in numbers])).figures
    assert (found["labels"], found["confusion"]) == (["0", "1", "2"], named["confusion"])
    with pytest.raises(ValueError, match=r"row 3 .*'3'.*'0', '1', '2'"):
        reader.measure(ONE.from_labels(TEXTS, [row % 4 for row in range(24)]))
