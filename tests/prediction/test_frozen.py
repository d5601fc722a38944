"""A classifier is what scikit-learn would train, survives its folder, and refuses what it cannot learn or use."""

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from support.words import labelled

from minibert import TextFeatures, embed
from minibert.prediction.frozen import CLASSIFIER_FILE, DETAILS, Classifier, read, train
from minibert.tasks.classification import Classification, Texts

TEXTS, LABELS = labelled()
NEW = ["a very good play", "the awful meal", "", "book"]


@pytest.fixture(scope="module")
def trained(checkpoint: Path) -> Classifier:
    return train(TEXTS, LABELS, model=checkpoint, pooling="mean", layers=(-2, -1))


@pytest.fixture
def saved(trained: Classifier, tmp_path: Path) -> Path:
    trained.save(tmp_path / "classifier")
    return tmp_path / "classifier"


# -- training


def test_it_predicts_what_the_scikit_learn_pipeline_predicts_before_and_after_saving(trained, saved, checkpoint):
    features = TextFeatures(checkpoint, pooling="mean", layers=(-2, -1))
    steps = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    chosen = GridSearchCV(
        steps, {"logisticregression__C": [0.0001, 0.001, 0.01, 0.1, 1]}, cv=folds, scoring="neg_log_loss"
    )
    reference = make_pipeline(features, chosen).fit(TEXTS, LABELS)
    for classifier in (trained, Classifier.load(saved)):
        assert classifier.labels == reference.classes_.tolist()
        assert classifier.predict(NEW).tolist() == reference.predict(NEW).tolist()
        np.testing.assert_array_equal(classifier.predict_proba(NEW), reference.predict_proba(NEW))


@pytest.mark.parametrize("kind", [int, str])
def test_twelve_classes_have_the_order_and_the_probabilities_of_scikit_learn(kind, checkpoint, tmp_path):
    labels = [kind(row % 12 - 3) for row in range(24)]
    classifier = train(TEXTS, labels, model=checkpoint, folds=0)
    reference = make_pipeline(TextFeatures(checkpoint), StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    reference.fit(TEXTS, labels)
    classifier.save(tmp_path)
    for one in (classifier, Classifier.load(tmp_path)):
        assert one.labels == list(map(str, reference.classes_))
        assert one.predict(NEW).tolist() == list(map(str, reference.predict(NEW)))
        np.testing.assert_array_equal(one.predict_proba(NEW), reference.predict_proba(NEW))
        assert one.measure(Texts(TEXTS, None, list(map(str, labels)))).figures["labels"] == one.labels


def test_a_grid_scores_each_c_as_scikit_learn_does_and_takes_the_best(checkpoint):
    labels = [*LABELS[:-6], *LABELS[-6:][::-1]]  # some are wrong, so that the scores differ
    classifier = train(TEXTS, labels, grid=[10.0, 0.001, 0.1], folds=3, model=checkpoint)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    search = GridSearchCV(
        pipeline,
        {"logisticregression__C": [0.001, 0.1, 10.0]},
        cv=StratifiedKFold(3, shuffle=True, random_state=0),
        scoring=("accuracy", "neg_log_loss"),
        refit="neg_log_loss",
    ).fit(TextFeatures(checkpoint).fit_transform(TEXTS), labels)
    assert [score.C for score in classifier.scores] == [0.001, 0.1, 10.0]
    np.testing.assert_allclose([score.mean for score in classifier.scores], search.cv_results_["mean_test_accuracy"])
    losses = [score.loss for score in classifier.scores]
    np.testing.assert_allclose(losses, -search.cv_results_["mean_test_neg_log_loss"])
    np.testing.assert_allclose([score.std for score in classifier.scores], search.cv_results_["std_test_accuracy"])
    assert search.best_params_["logisticregression__C"] == classifier.head[-1].C


def test_numpys_numbers_are_saved_as_pythons(checkpoint, tmp_path):
    classifier = train(TEXTS, LABELS, folds=np.int64(2), model=checkpoint)
    classifier.save(tmp_path / "out")
    again = Classifier.load(tmp_path / "out", batch_tokens=np.int64(64))
    assert again.predict(TEXTS).tolist() == classifier.predict(TEXTS).tolist()


def test_without_a_grid_too_few_rows_for_the_folds_leave_the_accuracy_unmeasured(checkpoint):
    assert train(TEXTS[:4], LABELS[:4], model=checkpoint).scores == []
    assert train(TEXTS, LABELS, folds=0, model=checkpoint).scores == []


@pytest.mark.parametrize(
    ("labels", "settings", "message"),
    [
        (["a"] * 24, {}, r"\b24 rows.* 1 class\b"),
        ([f"label {row}" for row in range(24)], {}, r"\b24 classes"),
        (["a", "b"] * 11 + ["a"], {}, r"\b24 texts.* 23 labels"),
        (["a", "b"] * 11 + ["a", math.nan], {}, r"row 23 .* nan\b"),
        (["a", "b"] * 11 + [None, "b"], {}, r"row 22 .* None"),
        (["a", " "] * 12, {}, r"row 1 .*' '"),
        ([0.5, 1.5] * 12, {}, r"row 0 .*0\.5"),
        (["a"] * 20 + ["b"] * 4, {"grid": "log"}, r"'b'.* 4 rows.*\b5 rows or more"),
        (LABELS, {"grid": "fine"}, r"grid is 'fine'.*tutorial, log"),
        (LABELS, {"grid": []}, r"\bC\b"),
        (LABELS, {"grid": [1.0, -1.0]}, r"\bC\b"),
        (LABELS, {"grid": [math.inf]}, r"\bC\b"),
        (LABELS, {"folds": 1}, "folds is 1"),
        (LABELS, {"grid": "log", "folds": 0}, "folds is 0"),
    ],
)
def test_what_cannot_be_learned_is_refused_before_the_model_is_loaded(labels, settings, message):
    with pytest.raises(ValueError, match=message):
        train(TEXTS, labels, model="no such checkpoint", **settings)


def test_labels_beside_data_that_has_its_own_are_refused():
    data = Classification().from_labels(TEXTS, LABELS)
    for more in ({"labels": LABELS[::-1]}, {"pairs": TEXTS}):
        with pytest.raises(TypeError, match=r"Classification\.read"):
            train(data, **more, model="no such checkpoint")


# -- features that are there already


def test_given_vectors_train_the_same_classifier_and_nothing_but_a_sample_is_computed(checkpoint, trained, monkeypatch):
    how = {"pooling": "mean", "layers": (-2, -1)}
    vectors, calls, transform = embed(TEXTS, checkpoint, **how), [], TextFeatures.transform
    monkeypatch.setattr(TextFeatures, "transform", lambda self, rows: calls.append(len(rows)) or transform(self, rows))
    again = train(TEXTS, LABELS, vectors=vectors, model=checkpoint, **how)
    assert calls == [8]
    train(TEXTS, LABELS, grid=[0.1, 1.0, 10.0], model=checkpoint)
    assert calls == [8, len(TEXTS)]  # once for all of the grid
    halved = train(TEXTS, LABELS, vectors=vectors.astype(np.float16), model=checkpoint, **how)
    np.testing.assert_allclose(again.predict_proba(NEW), trained.predict_proba(NEW), atol=1e-4)
    np.testing.assert_allclose(halved.predict_proba(NEW), trained.predict_proba(NEW), atol=1e-2)


def test_vectors_of_other_texts_or_settings_are_refused(checkpoint):
    vectors, others = embed(TEXTS, checkpoint, pooling="mean"), embed(TEXTS, checkpoint, pooling="cls")
    broken = vectors.copy()
    broken[5, 3] = np.nan  # not in the sample
    message = r"the vectors, .*, are not made from these texts, \(24, 24\) of float32; give|Input X contains NaN"
    for given in (vectors[:-1], vectors[:, 1:], vectors.astype(int), vectors[::-1], np.nan * vectors, others, broken):
        with pytest.raises(ValueError, match=message):
            train(TEXTS, LABELS, vectors=given, model=checkpoint, pooling="mean", folds=0)


# -- using


def test_it_is_used_and_measured_as_a_fine_tuned_task(trained):
    assert trained.predict([]).shape == (0,)
    assert trained.predict_proba([]).shape == (0, 2)
    found = trained.measure(Texts(TEXTS, None, LABELS))
    assert found.figures["accuracy"] == np.mean(trained.predict(TEXTS) == np.array(LABELS))
    with pytest.raises(ValueError, match=r"row 1 .*'dull'.*'meh'.*'neg', 'pos'"):
        trained.measure(Texts(["fine", "dull"], None, ["pos", "meh"]))
    with pytest.raises(ValueError, match="pairs"):
        trained.predict(["a"], ["b"])


# -- the folder


def edit(folder: Path, change: dict[str, Any], arrays: dict[str, Any] | None = None) -> None:
    """Write other entries (None removes one) and arrays into the file of a classifier."""
    details, there = read(folder)
    there |= arrays or {}
    entries = details | change
    content = json.dumps({name: value for name, value in entries.items() if name not in change or value is not None})
    (folder / CLASSIFIER_FILE).write_bytes(save(there, {DETAILS: content}))


def test_a_checkpoint_that_was_moved_is_named_anew(saved, checkpoint, tmp_path):
    copy = shutil.copytree(checkpoint, tmp_path / "moved")
    edit(saved, {"model": str(tmp_path / "gone")})
    with pytest.raises(FileNotFoundError, match="gone"):
        Classifier.load(saved)
    assert Classifier.load(saved, model=str(copy)).predict(["fine"]).shape == (1,)


@pytest.mark.parametrize(
    ("change", "arrays", "message"),
    [
        ({"format": 2}, {}, r"format.* 1\b"),
        ({"labels": None}, {}, "'labels'"),
        ({"labels": ["pos"]}, {}, "labels"),
        ({"labels": ["pos", "pos"]}, {}, "labels"),
        ({"labels": ["neg", 7]}, {}, "labels"),
        ({"labels": 7}, {}, "not iterable|has no len"),
        ({"labels": ["a", "b", "c"]}, {}, "coef, intercept"),
        ({"C": "1"}, {}, r"\bC\b"),
        ({"C": math.nan}, {}, r"\bC\b"),
        ({"rows": 2.5}, {}, "rows"),
        ({"C": 10**400}, {}, r"\bC\b"),
        ({"weights_sha256": "x" * 100_000}, {}, "weights_sha256"),
        ({"model": {}}, {}, "model"),
        ({"pooling": None}, {}, "'pooling'"),
        ({"pooling": "best"}, {}, "pooling is 'best'"),
        ({"layers": ["-1"]}, {}, "layers"),
        ({}, {"coef": np.full((1, 48), np.nan)}, "numbers"),
        ({}, {"coef": np.ones((1, 48), dtype=np.int32)}, "coef"),
        ({}, {"mean": np.ones(48, dtype=bool)}, "mean"),
        ({}, {"scale": np.zeros(48)}, "numbers"),
        ({}, {"mean": np.array(1.0)}, "mean"),
        ({}, {"intercept": np.ones(2)}, "intercept"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_sentence(saved, change, arrays, message):
    edit(saved, change, arrays)
    with pytest.raises(ValueError, match=message) as error:
        Classifier.load(saved)
    assert str(saved) in str(error.value)
    assert "train it again" in str(error.value)


def test_a_file_without_a_classifier_is_refused(saved):
    path, (_, arrays) = saved / CLASSIFIER_FILE, read(saved)
    path.write_bytes(save(arrays))
    with pytest.raises(ValueError, match="'classifier'"):
        read(saved)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="minibert classify train"):
        read(saved)
    os.mkfifo(path)
    with pytest.raises(ValueError, match=r"classifier\.safetensors.*pipe"):
        read(saved)
