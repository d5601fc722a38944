"""A classifier is what scikit-learn would train, survives its folder, and refuses what it cannot learn or use."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from words import labelled, write_words_checkpoint

from minibert.checkpoints.tensor_files import sha256
from minibert.tasks.frozen import Classifier, evaluate, train
from minibert.tasks.metrics import OneClassPredicted, compare
from minibert.tasks.saved import DETAILS, DETAILS_FILE, TENSORS_FILE, read
from minibert.vectors import features as features_room
from minibert.vectors.cache import ROWS_FILE, MemoryRows
from minibert.vectors.embedder import embed
from minibert.vectors.engine import Engine
from minibert.vectors.features import TextFeatures

TEXTS, LABELS = labelled()
NEW = ["a very good play", "the awful meal", "", "book"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def trained(checkpoint: Path) -> Classifier:
    return train(TEXTS, LABELS, model=str(checkpoint), pooling="mean", layers=(-2, -1))


@pytest.fixture
def saved(trained: Classifier, tmp_path: Path) -> Path:
    trained.save(tmp_path / "classifier")
    return tmp_path / "classifier"


# -- training


def test_it_predicts_what_the_scikit_learn_pipeline_predicts_before_and_after_saving(
    trained: Classifier, saved: Path, checkpoint: Path
) -> None:
    features = TextFeatures(str(checkpoint), pooling="mean", layers=(-2, -1))
    reference = make_pipeline(features, StandardScaler(), LogisticRegression(max_iter=1000)).fit(TEXTS, LABELS)
    for classifier in (trained, Classifier.load(saved)):
        assert classifier.labels == reference.classes_.tolist()
        assert classifier.predict(NEW).tolist() == reference.predict(NEW).tolist()
        np.testing.assert_array_equal(classifier.predict_proba(NEW), reference.predict_proba(NEW))


def test_another_c_gives_other_probabilities(trained: Classifier, checkpoint: Path) -> None:
    other = train(TEXTS, LABELS, C=0.1, model=str(checkpoint), pooling="mean", layers=(-2, -1))
    assert not np.allclose(other.predict_proba(NEW), trained.predict_proba(NEW), atol=1e-3)


def test_three_classes_keep_their_names_through_the_folder(checkpoint: Path, tmp_path: Path) -> None:
    labels = [["one", "two words", "drei"][row % 3] for row in range(len(TEXTS))]
    classifier = train(TEXTS, labels, model=str(checkpoint))
    classifier.save(tmp_path)
    loaded = Classifier.load(tmp_path)
    assert loaded.labels == ["drei", "one", "two words"]
    assert loaded.predict_proba(NEW).shape == (4, 3)
    np.testing.assert_array_equal(loaded.predict_proba(NEW), classifier.predict_proba(NEW))


def test_a_grid_scores_each_c_as_scikit_learn_does_and_takes_the_best(checkpoint: Path) -> None:
    labels = [*LABELS[:-6], *LABELS[-6:][::-1]]  # some are wrong, so that the scores differ
    classifier = train(TEXTS, labels, grid=[10.0, 0.001, 0.1], folds=3, model=str(checkpoint))
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    search = GridSearchCV(
        pipeline,
        {"logisticregression__C": [0.001, 0.1, 10.0]},
        cv=StratifiedKFold(3, shuffle=True, random_state=0),
    ).fit(TextFeatures(str(checkpoint)).fit_transform(TEXTS), labels)
    assert [score.C for score in classifier.scores] == [0.001, 0.1, 10.0]
    np.testing.assert_allclose([score.mean for score in classifier.scores], search.cv_results_["mean_test_score"])
    np.testing.assert_allclose([score.std for score in classifier.scores], search.cv_results_["std_test_score"])
    assert search.best_params_["logisticregression__C"] == classifier.C
    assert classifier.score is not None
    assert classifier.score.mean == max(score.mean for score in classifier.scores)


def test_the_named_grids_are_the_tutorials_and_a_logarithmic_one(checkpoint: Path) -> None:
    tutorial = train(TEXTS, LABELS, grid="tutorial", folds=2, model=str(checkpoint)).scores
    np.testing.assert_allclose([score.C for score in tutorial], np.linspace(0.0001, 100, 20))
    logarithmic = train(TEXTS, LABELS, grid="log", folds=2, model=str(checkpoint)).scores
    np.testing.assert_allclose(np.diff([math.log10(score.C) for score in logarithmic]), 0.5)


def test_a_grid_encodes_the_texts_once(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    transform = TextFeatures.transform
    monkeypatch.setattr(TextFeatures, "transform", lambda self, rows: calls.append(len(rows)) or transform(self, rows))
    train(TEXTS, LABELS, grid=[0.1, 1.0, 10.0], model=str(checkpoint))
    assert calls == [len(TEXTS)]


def test_without_a_grid_too_few_rows_for_the_folds_leave_the_accuracy_unmeasured(checkpoint: Path) -> None:
    assert train(TEXTS[:4], LABELS[:4], model=str(checkpoint)).scores == []
    assert train(TEXTS, LABELS, folds=0, model=str(checkpoint)).scores == []


@pytest.mark.parametrize(
    ("labels", "settings", "message"),
    [
        (["a"] * 24, {}, "all 24 labels are 'a'"),
        ([f"label {row}" for row in range(24)], {}, "24 classes in 24 rows"),
        (["a", "b"] * 11 + ["a"], {}, "24 texts and 23 labels"),
        (["a", "b"] * 11 + ["a", math.nan], {}, "row 23 has the label nan"),
        (["a", "b"] * 11 + [None, "b"], {}, "row 22 has the label None"),
        (["a", " "] * 12, {}, "row 1 has an empty label"),
        ([0.5, 1.5] * 12, {}, "row 0 has the label 0.5"),
        (["a"] * 20 + ["b"] * 4, {"grid": "log"}, "class 'b' has 4 rows, and 5 are needed"),
        (LABELS, {"grid": "fine"}, "grid is 'fine'; choose from tutorial, log"),
        (LABELS, {"grid": []}, "each larger than 0"),
        (LABELS, {"grid": [1.0, -1.0]}, "each larger than 0"),
        (LABELS, {"grid": [math.inf]}, "each larger than 0"),
        (LABELS, {"folds": 1}, "folds is 1"),
        (LABELS, {"grid": "log", "folds": 0}, "folds is 0"),
    ],
)
def test_what_cannot_be_learned_is_refused_before_the_model_is_loaded(
    labels: list[Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        train(TEXTS, labels, model="no such checkpoint", **settings)


def test_labels_that_are_no_column_are_refused() -> None:
    for labels in ("abc", 5, np.ones((24, 2))):
        with pytest.raises(TypeError, match="labels are of type"):
            train(TEXTS, labels, model="no such checkpoint")


def test_whole_numbers_become_names(checkpoint: Path) -> None:
    classifier = train(TEXTS, np.arange(24) % 2, folds=0, model=str(checkpoint))
    assert classifier.labels == ["0", "1"]


# -- features that are there already


def rows_in(cache: Path) -> int:
    """How many vectors a cache holds."""
    if not (cache / ROWS_FILE).exists():
        return 0
    with closing(sqlite3.connect(cache / ROWS_FILE)) as database:
        return int(database.execute("SELECT count(*) FROM rows").fetchone()[0])


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts are computed, batch by batch; a batch of these texts has three or four."""
    counts: list[int] = []
    batches = Engine.batches

    def counting(self: Any, *given: Any) -> Any:
        for rows, pooled in batches(self, *given):
            counts.append(len(rows))
            yield rows, pooled

    monkeypatch.setattr(Engine, "batches", counting)
    return counts


def test_given_vectors_train_the_same_classifier_and_nothing_but_a_sample_is_computed(
    checkpoint: Path, trained: Classifier, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = embed(TEXTS, str(checkpoint), pooling="mean", layers=(-2, -1))
    monkeypatch.setattr(features_room, "MEMORY", MemoryRows())
    computed.clear()
    again = train(TEXTS, LABELS, vectors=vectors, model=str(checkpoint), pooling="mean", layers=(-2, -1))
    assert sum(computed) == 8
    np.testing.assert_allclose(again.predict_proba(NEW), trained.predict_proba(NEW), atol=1e-4)
    halved = train(
        TEXTS, LABELS, vectors=vectors.astype(np.float16), model=str(checkpoint), pooling="mean", layers=(-2, -1)
    )
    np.testing.assert_allclose(halved.predict_proba(NEW), trained.predict_proba(NEW), atol=1e-2)


def test_vectors_of_other_texts_or_settings_are_refused(checkpoint: Path) -> None:
    vectors = embed(TEXTS, str(checkpoint), pooling="mean")
    broken = vectors.copy()
    broken[5, 3] = np.nan
    for given, message in [
        (vectors[:-1], r"the vectors are \(23, 24\) of float32, and by these texts and settings \(24, 24\)"),
        (vectors[:, 1:], r"the vectors are \(24, 23\)"),
        (vectors.astype(int), r"the vectors are \(24, 24\) of int64"),
        (broken, "the vector of row 5 holds NaN or infinity"),
        (vectors[::-1], "the vector of row .* is not that of its text"),
        (embed(TEXTS, str(checkpoint), pooling="cls"), "is not that of its text .* by these settings; give vectors of"),
    ]:
        with pytest.raises(ValueError, match=message):
            train(TEXTS, LABELS, vectors=given, model=str(checkpoint), pooling="mean", folds=0)


# -- using


def test_no_texts_give_no_predictions(trained: Classifier) -> None:
    assert trained.predict([]).shape == (0,)
    assert trained.predict_proba([]).shape == (0, 2)


def test_an_evaluation_is_what_one_counts_by_hand() -> None:
    evaluation = compare(list("aaaabb"), list("aaabba"), list("ab"))
    assert evaluation.confusion == [[3, 1], [1, 1]]
    assert evaluation.accuracy == 4 / 6
    assert evaluation.standard_error == pytest.approx(math.sqrt(4 / 6 * 2 / 6 / 6))
    assert evaluation.classes["a"].precision == evaluation.classes["a"].recall == 3 / 4
    assert (evaluation.classes["b"].f1, evaluation.classes["b"].rows) == (1 / 2, 2)


def test_evaluate_compares_the_predictions_with_the_labels(trained: Classifier) -> None:
    evaluation = evaluate(trained, TEXTS, LABELS)
    assert evaluation.accuracy == np.mean(trained.predict(TEXTS) == np.array(LABELS))
    assert evaluation.rows == len(TEXTS)


def test_predictions_of_a_single_class_are_warned_of() -> None:
    with pytest.warns(OneClassPredicted, match="all 3 texts were predicted to be 'a'"):
        compare(list("abb"), list("aaa"), list("ab"))


def test_a_label_that_the_classifier_does_not_know_is_named_with_its_row(trained: Classifier) -> None:
    with pytest.raises(ValueError, match=r"row 1 \('dull'\) has the label 'meh'.*it knows neg, pos"):
        evaluate(trained, ["fine", "dull"], ["pos", "meh"])
    with pytest.raises(ValueError, match="0 texts and 0 labels"):
        evaluate(trained, [], [])


# -- the folder


def edit(folder: Path, change: dict[str, Any]) -> None:
    """Write other entries into the file of a classifier."""
    details, arrays = read(folder)
    (folder / TENSORS_FILE).write_bytes(save(arrays, {DETAILS: json.dumps(details | change)}))


def in_two_files(folder: Path) -> dict[str, Any]:
    """Make the folder one of an earlier minibert, with the JSON in a file of its own, and return what that holds."""
    details, arrays = read(folder)
    (folder / TENSORS_FILE).write_bytes(save(arrays))
    details |= {"tensors_sha256": sha256(folder / TENSORS_FILE)}
    (folder / DETAILS_FILE).write_text(json.dumps(details))
    return details


def test_the_folder_holds_one_file_and_no_pickle(saved: Path, trained: Classifier) -> None:
    assert [path.name for path in saved.iterdir()] == [TENSORS_FILE]
    details, _ = read(saved)
    assert details["weights_sha256"] == trained.features.weights_sha256_
    assert details["labels"] == ["neg", "pos"]
    assert details["layers"] == [-2, -1]


def test_a_checkpoint_that_was_moved_is_named_anew(saved: Path, checkpoint: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(checkpoint, tmp_path / "moved")
    edit(saved, {"model": str(tmp_path / "gone")})
    with pytest.raises(FileNotFoundError, match="gone"):
        Classifier.load(saved)
    assert Classifier.load(saved, model=str(copy)).predict(["fine"]).shape == (1,)


def test_a_relative_folder_is_found_again_from_elsewhere(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkpoint.parent)
    train(TEXTS, LABELS, folds=0, model=checkpoint.name).save(tmp_path / "classifier")
    monkeypatch.chdir(tmp_path)
    assert Classifier.load(tmp_path / "classifier").labels == ["neg", "pos"]


def test_other_weights_are_refused_with_both_hashes(saved: Path, trained: Classifier, tmp_path: Path) -> None:
    other = write_words_checkpoint(tmp_path / "other", seed=1)
    with pytest.raises(ValueError, match=r"was trained on .* weights of sha256 .*--model") as caught:
        Classifier.load(saved, model=str(other))
    hashes = {trained.features.weights_sha256_, TextFeatures(str(other)).fit([]).weights_sha256_}
    assert len(hashes) == 2
    assert all(digest in str(caught.value) for digest in hashes)


def test_another_tokenizer_is_refused(saved: Path, checkpoint: Path, tmp_path: Path) -> None:
    other = shutil.copytree(checkpoint, tmp_path / "cased")
    (other / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    with pytest.raises(ValueError, match="a tokenizer of fingerprint"):
        Classifier.load(saved, model=str(other))


def test_a_folder_of_an_earlier_minibert_decides_alike(saved: Path, trained: Classifier) -> None:
    in_two_files(saved)
    np.testing.assert_array_equal(Classifier.load(saved).predict_proba(NEW), trained.predict_proba(NEW))


def test_a_damaged_folder_is_refused_in_one_sentence(saved: Path, tmp_path: Path) -> None:
    details = in_two_files(saved)
    tensors = (saved / TENSORS_FILE).read_bytes()

    def refused(error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            Classifier.load(saved)

    (saved / TENSORS_FILE).write_bytes(tensors[:-1])
    refused(ValueError, "is damaged .classifier.safetensors: ")
    (saved / TENSORS_FILE).unlink()
    refused(ValueError, "classifier.safetensors is missing")
    (saved / TENSORS_FILE).write_bytes(tensors)
    for content, message in [
        ("{", "is damaged"),
        ("[]", "holds a list, not an object"),
        ("{}", "not what minibert writes"),
        (json.dumps({**details, "format": 2}), "has format 2, this minibert reads 1"),
        (json.dumps({name: value for name, value in details.items() if name != "labels"}), "lacks labels"),
        (json.dumps({**details, "scores": 3, "C": "1"}), r"is damaged \(C is \"1\"\)"),
        (json.dumps({**details, "labels": ["a", "b", "c"]}), "3 labels and 48 columns need coef"),
        (json.dumps({**details, "layers": [-1]}), "48 columns, 24 by its settings"),
    ]:
        (saved / DETAILS_FILE).write_text(content)
        refused(ValueError, message)
    (saved / DETAILS_FILE).unlink()
    refused(FileNotFoundError, "holds no classifier")


def test_one_layer_as_a_number_as_older_folders_have_it_is_that_layer(checkpoint: Path, tmp_path: Path) -> None:
    classifier = train(TEXTS, LABELS, folds=0, model=str(checkpoint), layers=-1)
    classifier.save(tmp_path)
    assert read(tmp_path)[0]["layers"] == [-1]
    edit(tmp_path, {"layers": -1})
    np.testing.assert_array_equal(Classifier.load(tmp_path).predict_proba(NEW), classifier.predict_proba(NEW))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"pooling": "best"}, "is damaged .*pooling is 'best'; choose from"),
        ({"layers": ["-1"]}, r"is damaged .*layers is \['-1'\]"),
        ({"layers": None}, "is damaged .*layers is None"),
        ({"missing": None}, "is damaged .*missing is None"),
    ],
)
def test_a_recipe_that_is_none_counts_as_damage(saved: Path, entry: dict[str, Any], message: str) -> None:
    edit(saved, entry)
    with pytest.raises(ValueError, match=message):
        Classifier.load(saved)


def test_a_wrong_setting_of_the_caller_is_not_called_damage(saved: Path) -> None:
    with pytest.raises(ValueError, match=r"^batch_tokens is 0; it must be at least 1"):
        Classifier.load(saved, batch_tokens=0)
