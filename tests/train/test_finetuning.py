"""Fine-tuning from data to a folder: it learns, resumes, transformers loads it, and it answers on the command line."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from words import labelled, write_tsv, write_words_checkpoint

import minibert
from minibert import FineTunedClassifier
from minibert.cli import main as cli
from minibert.tasks.base import Measure
from minibert.train import finetune
from minibert.train import finetuning as room
from minibert.train.finetuning import (
    DegenerateWarning,
    Reader,
    freeze,
    new_model,
    new_task,
    warn_of_nothing_learned,
)
from minibert.train.loop import NotFiniteError

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:all .* texts were predicted"),  # models that have hardly begun
]
QUICK: dict[str, Any] = {"epochs": 12, "batch_size": 8, "learning_rate": 3e-3}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return write_tsv(tmp_path / "train.tsv", 48), write_tsv(tmp_path / "dev.tsv", 24)


def test_a_model_learns_and_its_folder_answers_as_it_does(checkpoint: Path, tmp_path: Path) -> None:
    texts, labels = labelled(48)
    model = finetune("classify", texts, labels, dev=labelled(24), model=checkpoint, out=tmp_path / "out", **QUICK)
    assert model.head_is_trained
    assert list(model.config.id2label.values()) == ["neg", "pos"]
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    assert report["dev"]["accuracy"] == 1.0
    assert len(report["curve"]) == report["steps"] == 12 * 6
    assert report["curve"][-1] < report["curve"][0] / 2
    reader = Reader.load(tmp_path / "out")
    answers = reader.answer(reader.task.from_texts(["the film very good play", "the book very awful play"]))
    assert [answer.label for answer in answers] == ["pos", "neg"]
    assert not (tmp_path / "out.training").exists()


def test_labels_that_say_nothing_are_not_learned(checkpoint: Path) -> None:
    """The control of the test above: the same texts with labels drawn by chance."""
    texts, labels = labelled(48)
    shuffled = np.random.default_rng(0).permutation(labels).tolist()
    model: Any = finetune("classify", texts, shuffled, model=checkpoint, **QUICK | {"epochs": 3})
    task = new_task("classify")
    data = task.from_labels(*labelled(24))  # type: ignore[attr-defined]  # of a Classification
    tokenizer = minibert.load_tokenizer(checkpoint)
    encoded = task.encode(data, tokenizer, ["neg", "pos"], 20)
    found = room.answers(task, model, encoded, data, ["neg", "pos"])
    assert np.mean([answer.label == label for answer, label in zip(found, data.labels, strict=True)]) < 0.9


def test_transformers_loads_the_folder_and_decides_alike(checkpoint: Path, tmp_path: Path) -> None:
    texts, labels = labelled(48)
    ours: Any = finetune("classify", texts, labels, model=checkpoint, out=tmp_path / "out", **QUICK | {"epochs": 2})
    theirs: Any = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "out", attn_implementation="eager"
    )
    batch = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = theirs.eval()(**batch).logits
        found = ours(batch.input_ids, attention_mask=batch.attention_mask).logits
    assert torch.allclose(found, expected, atol=1e-6)
    assert theirs.config.id2label == {0: "neg", 1: "pos"}


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(checkpoint: Path) -> None:
    texts, labels = labelled(24)
    quick = QUICK | {"epochs": 2}
    one, again = (finetune("classify", texts, labels, model=checkpoint, seed=3, **quick) for _ in range(2))
    other = finetune("classify", texts, labels, model=checkpoint, seed=4, **quick)
    same = [torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True)]
    assert all(same)
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_run_that_was_broken_off_is_resumed_by_the_same_call_to_the_same_bits(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, labels = labelled(24)
    quick: dict[str, Any] = QUICK | {"epochs": 4, "dev": labelled(12), "model": checkpoint}
    whole = finetune("classify", texts, labels, **quick)
    monkeypatch.setattr(room, "SAVE_EVERY", 2)
    steps = {"left": 7}
    right = room.packed_output

    def broken_off(model: Any, batch: Any) -> Any:
        steps["left"] -= 1
        if steps["left"] < 0:
            raise KeyboardInterrupt
        return right(model, batch)

    monkeypatch.setattr(room, "packed_output", broken_off)
    with pytest.raises(KeyboardInterrupt):
        finetune("classify", texts, labels, out=tmp_path / "out", **quick)
    assert (tmp_path / "out.training").is_dir()
    monkeypatch.setattr(room, "packed_output", right)
    resumed = finetune("classify", texts, labels, out=tmp_path / "out", **quick)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    with pytest.raises(ValueError, match=r"learning_rate was 0\.003 and is 0\.1"):
        (tmp_path / "again.training").mkdir()
        (tmp_path / "again.training" / "asked.json").write_text(json.dumps(asked(checkpoint, texts, labels)))
        finetune("classify", texts, labels, out=tmp_path / "again", **quick | {"learning_rate": 0.1})


def asked(checkpoint: Path, texts: list[str], labels: list[str]) -> dict[str, Any]:
    """What a run with the settings of the test above notes."""
    task: Any = new_task("classify")
    data, dev = task.from_labels(texts, labels), task.from_labels(*labelled(12))
    settings = room.Settings(**QUICK | {"epochs": 4})
    return room.Job.of(task, data, dev, room.Request(model=str(checkpoint), settings=settings)).asked


def test_rows_are_as_long_as_the_task_or_the_model_has_them_and_more_is_refused(checkpoint: Path) -> None:
    task: Any = new_task("classify")
    data, limit = task.from_labels(*labelled(12)), minibert.load(checkpoint).config.max_tokens
    assert limit < task.row_length < new_task("answer").row_length

    def length(max_length: int | None) -> int:
        job = room.Job.of(task, data, None, room.Request(model=str(checkpoint), max_length=max_length))
        assert job.tokenizer.max_length == job.asked["max_length"]
        return int(job.asked["max_length"])

    assert (length(None), length(limit), length(5)) == (limit, limit, 5)
    for too_long in (limit + 1, task.row_length):
        with pytest.raises(ValueError, match=f"max_length is {too_long}; the model has {limit} positions, the most"):
            length(too_long)


@pytest.mark.parametrize(("what", "parts"), [("embeddings", 1), ("1", 2), ("2", 3), ("encoder", 4)])
def test_what_is_frozen_stays_as_it_was_to_the_bit(what: str, parts: int, checkpoint: Path) -> None:
    texts, labels = labelled(24)
    before = dict(minibert.load(checkpoint, head="sequence-classification", new_head=True).named_parameters())
    after = dict(
        finetune("classify", texts, labels, model=checkpoint, freeze=what, **QUICK | {"epochs": 1}).named_parameters()
    )
    places = ["encoder.embeddings.", "encoder.layers.0.", "encoder.layers.1.", "encoder."][:parts]
    for name in before:
        frozen = name.startswith(tuple(places))
        assert torch.equal(before[name], after[name]) == frozen or not name.startswith("encoder."), name


def test_what_cannot_be_frozen_is_refused(checkpoint: Path) -> None:
    model = minibert.load(checkpoint, head="sequence-classification", new_head=True)
    with pytest.raises(
        ValueError, match="freeze is '3'; choose none, embeddings, encoder, or a number of layers up to 2"
    ):
        freeze(model, "3")


def test_a_head_that_fits_is_kept_and_another_is_fresh(checkpoint: Path, tmp_path: Path) -> None:
    texts, labels = labelled(24)
    first = finetune("classify", texts, labels, model=checkpoint, out=tmp_path / "one", **QUICK | {"epochs": 1})
    kept: Any = new_model(tmp_path / "one", new_task("classify"), ["neg", "pos"])
    assert torch.equal(kept.classifier.weight, first.classifier.weight)  # type: ignore[arg-type]  # a Linear
    fresh: Any = new_model(tmp_path / "one", new_task("classify"), ["a", "b", "c"])
    assert fresh.classifier.weight.shape[0] == 3


def test_a_score_of_the_majority_is_called_degenerate() -> None:
    with pytest.warns(DegenerateWarning, match=r"degenerate: the score on dev, 0\.500"):
        warn_of_nothing_learned(Measure({"accuracy": 0.5, "degenerate": True}, "accuracy", ""))
    warn_of_nothing_learned(Measure({"accuracy": 0.5, "degenerate": False}, "accuracy", ""))


def test_a_loss_that_is_not_finite_stops_the_run_and_names_step_and_rows(checkpoint: Path) -> None:
    texts, labels = labelled(24)
    with pytest.raises(NotFiniteError, match=r"the loss of step \d+ .*(nan|inf).*, of the rows \d+"):
        finetune("classify", texts, labels, model=checkpoint, epochs=9, learning_rate=1e38, clip=1e38, warmup=0.0)


@pytest.mark.parametrize(
    ("labels", "words"),
    [(["a"] * 4, "all 4 labels are 'a'"), (["a", "b", "c", None], "row 3"), (["a", "b"], "4 texts and 2 labels")],
)
def test_labels_that_cannot_be_learned_are_refused_before_anything_is_loaded(labels: list[Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        finetune("classify", ["one", "two", "three", "four"], labels, model="no such checkpoint")


def test_the_commands_train_measure_and_answer(
    checkpoint: Path, files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, dev = files
    quick = ["--epochs", "12", "--batch-size", "8", "--learning-rate", "3e-3", "--precision", "float32"]
    out = tmp_path / "sentiment"
    begin = ["finetune", "classify", str(train), "--dev", str(dev), "--model", str(checkpoint), "--out", str(out)]
    assert cli.main([*begin, *quick, "--json"]) == 0
    printed = capsys.readouterr().out
    figures = json.loads(printed.splitlines()[-1])
    assert figures["dev"]["accuracy"] == 1.0
    assert {"seconds", "tokens_per_second"} <= set(figures)
    assert printed.count("the best so far") >= 1
    assert [line for line in printed.splitlines() if line.startswith("epoch ")][-1].startswith("epoch 12")
    assert cli.main(["evaluate", str(out), str(dev), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["accuracy"] == 1.0
    assert cli.main(["predict", str(out), "the film very lovely play", "the book very dull play"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["pos", "neg"]
    assert lines[0].endswith("\tthe film very lovely play")


def test_several_seeds_give_mean_and_spread_and_the_best_is_kept(
    checkpoint: Path, files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, dev = files
    args = ["finetune", "classify", str(train), "--dev", str(dev), "--model", str(checkpoint), "--seeds", "2"]
    args += ["--out", str(tmp_path / "out"), "--epochs", "3", "--learning-rate", "3e-3", "--batch-size", "8", "--json"]
    assert cli.main([*args, "--precision", "float32"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(figures["seeds"]["scores"]) == 2
    assert figures["dev"]["accuracy"] == max(figures["seeds"]["scores"])


def test_the_curve_is_drawn_and_a_name_that_is_no_picture_is_refused_before_training(
    checkpoint: Path, files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, dev = files
    args = ["finetune", "classify", str(train), "--dev", str(dev), "--model", str(checkpoint), "--seeds", "2"]
    args += ["--out", str(tmp_path / "out"), "--epochs", "2", "--learning-rate", "3e-3", "--batch-size", "8"]
    assert cli.main([*args, "--plot", str(tmp_path / "curve.docx")]) == 2
    assert "must end in .png, .svg or .pdf" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert cli.main([*args, "--plot", str(tmp_path / "curve.svg")]) == 0
    assert "<svg" in (tmp_path / "curve.svg").read_text()


def test_a_folder_that_learned_that_there_may_be_no_answer_remembers_it(checkpoint: Path, tmp_path: Path) -> None:
    context = "the film very good play the book"
    known = {"id": "1", "question": "the film", "answers": [{"text": "good", "answer_start": 14}]}
    none = {"id": "2", "question": "the play", "answers": [], "is_impossible": True}
    squad = {"version": "v2.0", "data": [{"paragraphs": [{"context": context, "qas": [known, none]}]}]}
    (tmp_path / "squad.json").write_text(json.dumps(squad))
    args = [
        "finetune",
        "answer",
        str(tmp_path / "squad.json"),
        "--model",
        str(checkpoint),
        "--out",
        str(tmp_path / "o"),
    ]
    options = ["--max-length", "12", "--max-question", "3", "--max-answer", "2", "--n-best", "4", "--stride", "2"]
    assert cli.main([*args, *options, "--null-threshold", "-99", "--epochs", "1"]) == 0
    task: Any = Reader.load(tmp_path / "o").task
    assert (task.unanswerable, task.max_answer, task.n_best, task.null_threshold) == (True, 2, 4, -99.0)
    assert (task.max_question, task.stride, task.repair) == (3, 2, False)
    asked = task.from_texts(["the book"], [context])
    assert Reader.load(tmp_path / "o").answer(asked)[0].text == ""  # no answer scores better than -99 less


# ---------------------------------------------------------------------------------------------------------------
# The scikit-learn classifier


def classifier(checkpoint: Path, **changes: Any) -> FineTunedClassifier:
    return FineTunedClassifier(str(checkpoint), precision="float32", **QUICK | changes)


def test_the_classifier_fits_predicts_and_survives_a_pickle(checkpoint: Path) -> None:
    texts, labels = labelled(48)
    fitted = classifier(checkpoint).fit(np.array(texts), np.array(labels))
    assert fitted.score(texts, labels) == 1.0
    assert fitted.classes_.tolist() == ["neg", "pos"]
    probabilities = fitted.predict_proba(texts)
    assert np.allclose(probabilities.sum(axis=1), 1.0)
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(texts), probabilities)


def test_the_classifier_is_cloned_searched_and_put_into_pipelines(checkpoint: Path) -> None:
    texts, labels = labelled(24)
    one = classifier(checkpoint, epochs=1)
    assert clone(one).get_params() == one.get_params()
    assert one.set_params(epochs=2).epochs == 2
    search = GridSearchCV(make_pipeline(one), {"finetunedclassifier__epochs": [1, 2]}, cv=2, n_jobs=1)
    assert search.fit(texts, labels).best_score_ >= 0.0


def test_numbers_as_labels_come_back_as_numbers(checkpoint: Path) -> None:
    texts, labels = labelled(24)
    numbers = [10 if label == "pos" else 2 for label in labels]
    fitted = classifier(checkpoint, epochs=1).fit(texts, numbers)
    assert set(fitted.predict(texts).tolist()) <= {2, 10}
    assert fitted.classes_.tolist() == [10, 2] or fitted.classes_.tolist() == [2, 10]


def test_a_text_of_weight_zero_is_not_learned_from(checkpoint: Path) -> None:
    texts, labels = labelled(24)
    wrong = ["pos" if label == "neg" else "neg" for label in labels]
    weights = [1.0] * 24 + [0.0] * 24
    with_zeros = classifier(checkpoint).fit(texts + texts, labels + wrong, sample_weight=weights)
    assert with_zeros.score(texts, labels) == 1.0
    with pytest.raises(ValueError, match="one finite weight of at least 0"):
        classifier(checkpoint).fit(texts, labels, sample_weight=[-1.0] * 24)
