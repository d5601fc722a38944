"""Fine-tuning from data to a folder: it learns, and it predicts on the command line.

A head that the checkpoint has for the labels is kept. That transformers decides alike is shown by test_reader.py.
"""

import hashlib
import json
import pickle
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from support.models import assert_equal
from support.words import labelled, write_tsv, write_words_checkpoint

import minibert
from minibert.checkpoints import checkpoint as checkpoints
from minibert.checkpoints.checkpoint import Checkpoint
from minibert.prediction import frozen
from minibert.prediction.reader import open_reader
from minibert.storage.tensor_files import sha256_of
from minibert.tasks import base, task_class
from minibert.tasks.answering import Answering
from minibert.tasks.base import Task
from minibert.tasks.classification import Classification
from minibert.tasks.tagging import Sentences, Tagging
from minibert.text.tokenized import TruncationWarning
from minibert.train import finetune
from minibert.train.finetuning import FinetuneRun, as_data
from minibert.train.settings import FinetuneSettings
from minibert.train.start import freeze

pytestmark = [
    pytest.mark.filterwarnings("ignore:all .* texts were predicted"),  # models that have hardly begun
]
QUICK: dict[str, Any] = {"epochs": 8, "batch_size": 8, "learning_rate": 6e-3}


def test_shuffled_labels_are_not_learned(checkpoint, tmp_path):
    """The control of the tests that learn: the same texts with labels drawn by chance."""
    texts, labels = labelled(48)
    shuffled = np.random.default_rng(0).permutation(labels).tolist()
    finetune("classify", texts, shuffled, model=checkpoint, out=tmp_path / "out", **QUICK | {"epochs": 3})
    reader = open_reader(tmp_path / "out")
    assert reader.measure(reader.task.from_labels(*labelled(24))).score < 0.9


def test_rows_are_as_long_as_the_task_or_the_model_has_them_and_more_is_refused(checkpoint):
    task = task_class("classify")()
    for max_length, expected in ((None, 20), (20, 20), (5, 5)):
        settings = FinetuneSettings(model=str(checkpoint), max_length=max_length)
        data = task.from_labels(*labelled(12))
        shorter = (
            pytest.warns(TruncationWarning, match="^12 of 12 texts .* 5 tokens") if expected == 5 else nullcontext()
        )
        with shorter:
            run = FinetuneRun.of(task, data, None, settings)
        assert bool(run.report["notes"]) == (expected == 5)
        assert run.tokenizer.max_length == run.config["max_length"] == expected
    with pytest.raises(ValueError, match=r"max_length is 21\b.* 3 .* 20$"):
        finetune(task, *labelled(12), model=checkpoint, max_length=21)


def test_a_new_head_of_a_regression_begins_at_the_mean_of_the_labels_and_a_trained_one_is_kept(checkpoint, tmp_path):
    """Far from 0, the labels would else take hundreds of steps to reach."""
    texts, _ = labelled(24)
    numbers = [100.0 + row % 3 for row in range(24)]
    data = Classification(regression=True).from_labels(texts, numbers)
    how = {"model": checkpoint, "out": tmp_path / "out", "dev": data, **QUICK | {"epochs": 1}}
    trained = finetune(Classification(regression=True), data, **how)
    assert all(98 < one["value"] < 104 for one in trained.predict(texts))
    settings = FinetuneSettings(model=str(tmp_path / "out"))
    run = FinetuneRun.of(Classification(regression=True), data, None, settings)
    again = run.new_model()
    assert_equal(again.state_dict(), trained.state_dict())
    fresh = replace(run, checkpoint=Checkpoint.open(checkpoint)).new_model()
    assert fresh.classifier.bias.tolist() == [101.0]


def test_data_without_a_token_is_refused(checkpoint):
    data = Sentences([["\u200b"], ["\u200b"]], [["O"], ["B-thing"]])
    with pytest.raises(ValueError, match=r"\b2 rows"):
        finetune("tag", data, model=checkpoint)


@pytest.mark.parametrize(("what", "parts"), [("embeddings", 1), ("1", 2), (2, 3), ("encoder", 4)])
def test_what_is_frozen_keeps_its_bits(what, parts, checkpoint):
    start = minibert.load(checkpoint, head="sequence-classification", new_head=True)
    trained = finetune("classify", *labelled(24), model=checkpoint, freeze=what, **QUICK | {"epochs": 1})
    places = ("encoder.embeddings.", "encoder.layers.0.", "encoder.layers.1.", "encoder.")[:parts]
    for name, before in start.encoder.named_parameters(prefix="encoder"):
        assert torch.equal(before, trained.get_parameter(name)) == name.startswith(places), name
    with pytest.raises(ValueError, match=r"freeze is '3'.*none, embeddings, encoder"):
        freeze(start, "3")


def test_the_commands_train_with_several_seeds_measure_predict_and_plot(checkpoint, tmp_path, run):
    train, dev = (write_tsv(tmp_path / f"{rows}.tsv", rows) for rows in (48, 24))
    out, plot = tmp_path / "out", tmp_path / "curve.svg"
    command = (
        f"finetune classify {train} --dev {dev} --model {checkpoint} --out {out} --json --epochs 8 --batch-size 8 "
        "--learning-rate 6e-3 --precision float32"
    )
    refused = run(*command.split(), "--plot", tmp_path / "curve.docx", status=2)
    assert ".png, .svg, .pdf" in refused
    assert "--seeds is 0" in run(*command.split(), "--seeds", 0, status=2)
    *printed, last = run(*command.split(), "--seeds", 2, "--plot", plot).splitlines()
    figures = json.loads(last)
    assert len(figures["seeds"]["scores"]) == 2 and {"seconds", "tokens_per_second"} <= set(figures)
    assert figures["dev"]["accuracy"] == max(figures["seeds"]["scores"])
    epochs = [line for line in printed if line.startswith("epoch ")]
    assert "the best so far" in epochs[0] and "held-out accuracy 1.0000" in epochs[7] and len(epochs) == 16
    assert "<svg" in plot.read_text() and not list(tmp_path.glob("out.training*"))
    assert json.loads(run("evaluate", out, dev, "--json").splitlines()[-1])["accuracy"] == 1.0
    assert "--batch-tokens is 0" in run("evaluate", out, dev, "--batch-tokens", 0, status=2)
    lines = run("predict", out, "the film very lovely play", "the book very dull play").splitlines()
    assert [line.split("\t")[0] for line in lines] == ["pos", "neg"]
    assert lines[0].endswith("\tthe film very lovely play")


def test_a_folder_that_learned_that_there_may_be_no_answer_remembers_it(checkpoint, tmp_path):
    context = "the film very good play the book"
    known = {"id": "1", "question": "the film", "answers": [{"text": "good", "answer_start": 14}]}
    none = {"id": "2", "question": "the play", "answers": [], "is_impossible": True}
    squad = {"version": "v2.0", "data": [{"paragraphs": [{"context": context, "qas": [known, none]}]}]}
    (tmp_path / "squad.json").write_text(json.dumps(squad))
    how = {"max_question": 3, "max_answer": 2, "n_best": 4, "stride": 2, "null_threshold": -99.0}
    finetune(Answering(**how), tmp_path / "squad.json", model=checkpoint, out=tmp_path / "out", epochs=2, max_length=12)
    reader = open_reader(tmp_path / "out")
    assert reader.task == Answering(**how, unanswerable=True)
    assert reader.answer(reader.task.from_texts(["the book"], [context]))[0]["answer"] == ""  # no answer scores better


def test_answering_chooses_lengths_that_fit_a_model_of_few_positions(checkpoint, tmp_path):
    context = "the film very good play the book " * 4
    row = {"question": "the film " * 20, "context": context, "answers": {"text": ["good"], "answer_start": [14]}}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.warns(UserWarning, match=r"1 of 1 question .* 8 tokens"):
        finetune("answer", tmp_path / "rows.jsonl", model=checkpoint, out=tmp_path / "out", batch_size=2, epochs=1)
    found = minibert.predict(tmp_path / "out", ["the film"], [context])[0]
    assert found["answer"] == context[found["start"] : found["end"]] != ""
    with pytest.raises(ValueError, match=r"max_length is 20\b.*max_question 30.*stride None.* 34"):
        finetune("answer", tmp_path / "rows.jsonl", model=checkpoint, max_question=30)


# ---------------------------------------------------------------------------------------------------------------
# Tables from Python


def as_frame(rows: int = 24) -> pd.DataFrame:
    texts, labels = labelled(rows)
    return pd.DataFrame({"id": range(rows), "message": texts, "category": labels}, index=range(7, 7 + rows))


def test_named_columns_of_a_data_frame_a_dict_and_a_file_are_the_same_data(tmp_path):
    frame, task = as_frame(), Classification(text="message", label="category")
    frame.to_csv(tmp_path / "frame.csv", index=False)
    forms = [as_data(task, form) for form in (frame, frame.to_dict("list"), tmp_path / "frame.csv")]
    assert forms == forms[:1] * 3


def test_a_model_from_a_data_frame_answers_texts_also_after_a_pickle(checkpoint):
    frame = as_frame()
    how = {"text": "message", "label": "category", "epochs": 1, "batch_size": 8}
    model = finetune("classify", frame, dev=frame, model=checkpoint, **how)
    texts = frame["message"][:2].tolist()
    answers = model.predict(texts)
    assert answers == minibert.predict(model, texts)
    assert {answer["label"] for answer in answers} <= {"neg", "pos"}
    assert model.predict("the film") == minibert.predict(model, ["the film"])
    assert model.tokenizer.max_length == 20
    assert pickle.loads(pickle.dumps(model)).predict(texts) == answers


def test_lists_of_labels_in_a_file_train_a_model_of_several_labels(checkpoint, tmp_path):
    rows = [{"text": f"the film {n}", "label": [["plot", "cast"], ["cast"], []][n % 3]} for n in range(6)]
    for name, given in (("x.jsonl", rows), ("dev.jsonl", [{"text": "the film", "label": "plot"}] * 2)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in given))
    how = {"model": checkpoint, "epochs": 1, "batch_size": 2, "dev": tmp_path / "dev.jsonl"}
    model = finetune("classify", tmp_path / "x.jsonl", **how)
    assert model.config.problem_type == "multi_label_classification"
    assert list(model.predict(["the film"])[0]["probabilities"]) == ["cast", "plot"]
    with pytest.raises(ValueError, match="finetune classify"):
        frozen.train(Classification().read(tmp_path / "x.jsonl"), model=checkpoint)


def test_a_missing_text_is_refused_with_its_row_or_is_empty_as_the_message_says(checkpoint):
    texts, labels = labelled(8)
    nothing, how = pd.NA, {"model": checkpoint, "epochs": 2}
    gaps = [*texts[:3], nothing, *texts[4:]]
    with pytest.raises(TypeError, match=r"row 3 .*missing='empty'"):
        finetune("classify", {"text": gaps, "label": labels}, **how)
    one = finetune("classify", {"text": gaps, "label": labels}, missing="empty", **how)
    assert one.predict([nothing, "the film"]) == one.predict(["", "the film"])


@pytest.mark.parametrize(
    ("task", "data", "how", "words"),
    [
        ("classify", as_frame(), {}, r"sentence or text.*'id', 'message', 'category'"),
        ("classify", as_frame(), {"text": "body", "label": "category"}, "'body'"),
        ("classify", as_frame(), {"txt": "message"}, r"txt.* text\b"),
        ("tag", as_frame(), {}, r"row 0 .*'message'.* it needs a list of words and a list of tags"),
        ("classify", as_frame(), {"delimiter": ";"}, "format, delimiter and encoding .* DataFrame"),
        ("classify", {"text": ["a", "b"], "label": ["x", float("nan")]}, {}, r"row 1 .* nan\b"),
        ("classify", ["a", "b"], {"labels": ["x", "x"]}, r"\b1 class\b.*'x'"),
        ("classify", ["a", "b"], {"labels": ["x", None]}, "row 1"),
        ("classify", ["a", "b", "c"], {"labels": ["x", "y"]}, r"\b3 texts.* 2 labels"),
        ("classify", "train.tsv", {"labels": ["x", "y"]}, "labels and pairs"),
        ("classify", as_frame(), {"pairs": ["x", "y"]}, "labels and pairs"),
    ],
)
def test_data_that_cannot_be_learned_is_refused_before_anything_is_loaded(task, data, how, words):
    with pytest.raises((ValueError, TypeError), match=words):
        finetune(task, data, model="no such checkpoint", **how)


def test_the_data_and_the_weights_are_hashed_once(checkpoint, monkeypatch):
    examples, weights = Mock(side_effect=hashlib.sha256), Mock(side_effect=sha256_of)
    monkeypatch.setattr(base, "hashlib", Mock(sha256=examples))
    monkeypatch.setattr(checkpoints, "sha256_of", weights)
    data = labelled(12)
    finetune("classify", *data, dev=data, model=checkpoint, **QUICK | {"epochs": 2})
    assert (examples.call_count, weights.call_count) == (2, 1)  # of the training data and of dev


# ---------------------------------------------------------------------------------------------------------------
# A trained head goes on learning where the data has its labels; elsewhere one line says that the head is new

TEXTS, NAMES = labelled(24)
THREE = ["entailment", "neutral", "contradiction"]  # as in MNLI: not in alphabetical order
BY_NAME = [THREE[row % 3] for row in range(24)]
ONE, SEVERAL, NUMBER = Classification(), Classification(separator="|"), Classification(regression=True)
MATRIX = np.array([[row % 2, row % 3 == 0, 0] for row in range(24)], dtype=int)
Made = Callable[..., Path]


@pytest.fixture(scope="module")
def with_head(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A checkpoint with a random head that knows these labels."""

    def with_head(names=None, head="sequence-classification", **more):
        named = {} if names is None else {"id2label": dict(enumerate(names)), "num_labels": len(names)}
        return write_words_checkpoint(tmp_path_factory.mktemp("head"), head=head, **named | more)

    return with_head


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
def test_a_head_for_the_same_labels_is_kept_with_its_order(with_head, head, task, labels, expected):
    folder = with_head(**head)
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
def test_one_line_says_that_the_head_is_new_and_why(with_head, head, task, labels, note):
    folder = with_head(**head)
    run = run_of(folder, labels, task)
    assert not is_kept(run, folder)
    [found] = run.notes
    assert run.summary.replace("\n", " ").count("the task head is new") == 1 and run.report["notes"] == [found]
    assert re.search(note, found)


def test_a_checkpoint_without_a_head_or_with_one_of_another_task_needs_no_line(with_head, checkpoint):
    tags = with_head(["neg", "pos"], head="token-classification")  # its classifier has the name of ours
    assert run_of(checkpoint, NAMES).notes == run_of(tags, NAMES).notes == []
    assert run_of(tags, NAMES).new_model().config.id2label == {0: "neg", 1: "pos"}


def test_training_goes_on_and_is_measured_with_the_order_of_the_head(with_head, tmp_path):
    how = {"batch_size": 8, "learning_rate": 6e-3, "precision": "float32"}
    first = finetune("classify", TEXTS, NAMES, model=with_head(["pos", "neg"]), out=tmp_path / "one", epochs=8, **how)
    assert first.config.id2label == {0: "pos", 1: "neg"}
    finetune("classify", TEXTS, NAMES, model=tmp_path / "one", out=tmp_path / "two", epochs=1, **how | {"seed": 7})
    reader = open_reader(tmp_path / "two")
    assert reader.measure(ONE.from_labels(TEXTS, NAMES)).score == 1.0
    report = json.loads((tmp_path / "two" / "training.json").read_text())
    assert (report["labels"], report["notes"]) == (["pos", "neg"], [])
    assert report["curve"][0] < 0.3  # of a new head: log 2


def test_a_new_head_is_noted_in_the_report_and_the_log(with_head, tmp_path, caplog):
    finetune("classify", TEXTS, NAMES, model=with_head(THREE), out=tmp_path / "out", epochs=1, batch_size=12)
    [note] = json.loads((tmp_path / "out" / "training.json").read_text())["notes"]
    assert "the task head is new" in note and note in caplog.text


def test_unnamed_labels_are_the_numbers_of_the_data_in_an_evaluation(with_head):
    reader = open_reader(with_head(num_labels=3))
    numbers = [row % 3 for row in range(24)]
    found = reader.measure(ONE.from_labels(TEXTS, numbers)).figures
    named = reader.measure(ONE.from_labels(TEXTS, [f"LABEL_{number}" for number in numbers])).figures
    assert (found["labels"], found["confusion"]) == (["0", "1", "2"], named["confusion"])
    with pytest.raises(ValueError, match=r"row 3 .*'3'.*'0', '1', '2'"):
        reader.measure(ONE.from_labels(TEXTS, [row % 4 for row in range(24)]))
