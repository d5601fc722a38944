"""Fine-tuning from data to a folder: it learns, and it predicts on the command line.

That transformers decides alike with such a folder is shown by test_reader.py.
"""

import hashlib
import json
import pickle
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from support.models import assert_equal
from support.words import labelled, write_tsv

import minibert
from minibert.checkpoints import checkpoint as checkpoints
from minibert.checkpoints.checkpoint import Checkpoint
from minibert.prediction import frozen
from minibert.prediction.reader import open_reader
from minibert.storage.tensor_files import sha256_of
from minibert.tasks import base, task_class
from minibert.tasks.answering import Answering
from minibert.tasks.classification import Classification
from minibert.tasks.tagging import Sentences
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


def test_numpys_numbers_are_written_to_the_report_as_pythons(checkpoint, tmp_path):
    given = {"epochs": np.int64(1), "freeze": np.int64(1), "max_length": np.int8(9), "batch_size": np.uint8(8)}
    texts, labels = labelled(24)
    numbers = [float(label == "pos") for label in labels]
    task = {"regression": np.True_, "missing": np.str_("empty")}
    finetune("classify", texts, numbers, model=checkpoint, out=tmp_path / "out", **given, **task)
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    asked = {name: report["asked"][name] for name in ("epochs", "freeze", "max_length")}
    assert asked == {"epochs": 1, "freeze": "1", "max_length": 9} and report["settings"]["regression"] is True


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
