"""FineTunedClassifier keeps the contract of scikit-learn: order and type of classes, shapes of answers, its tools."""

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import VotingClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from support.words import labelled, write_words_checkpoint

import minibert

QUICK: dict[str, Any] = {"epochs": 8, "batch_size": 8, "learning_rate": 6e-3, "precision": "float32"}


def classifier(checkpoint: Path, **changes: Any) -> minibert.FineTunedClassifier:
    return minibert.FineTunedClassifier(str(checkpoint), **QUICK | changes)


def twelve() -> tuple[list[str], list[int]]:
    """Texts of twelve classes, each told by a word of its own: from eleven on the order of text is another."""
    words = ["good", "fine", "lovely", "bad", "dull", "awful", "film", "book", "play", "meal", "a", "b"]
    return [f"the {words[row % 12]} very {words[row % 12]}" for row in range(48)], [row % 12 for row in range(48)]


def test_twelve_classes_are_measured_right_by_scikit_learn(checkpoint):
    """Its functions sort the labels that they are given."""
    texts, labels = twelve()
    given = np.array(labels, dtype=str)
    fitted = classifier(checkpoint, learning_rate=1e-2).fit(texts, given)
    probabilities, predicted = fitted.predict_proba(texts), fitted.predict(texts)
    right = [row[fitted.classes_.tolist().index(label)] for row, label in zip(probabilities, given, strict=True)]
    assert log_loss(given, probabilities) == pytest.approx(-np.log(right).mean())
    assert roc_auc_score(given, probabilities, multi_class="ovr") > 0.95
    assert fitted.score(texts, given) == accuracy_score(given, predicted) > 0.5


@pytest.mark.parametrize("kind", [np.int64, np.uint8, str, float, bool, object])
def test_classes_keep_their_type_and_are_those_of_scikit_learn(checkpoint, kind):
    texts, labels = twelve()
    given = np.array([f"{label}" for label in labels], kind) if kind is object else np.array(labels).astype(kind)
    theirs = LogisticRegression().fit(np.eye(48), given)
    fitted = classifier(checkpoint, epochs=1).fit(texts, given)
    assert (fitted.classes_.tolist(), fitted.classes_.dtype) == (theirs.classes_.tolist(), theirs.classes_.dtype)
    assert fitted.predict(texts).dtype == theirs.predict(np.eye(48)).dtype


def test_it_votes_is_calibrated_and_cross_validated_with_twelve_classes(checkpoint):
    texts, labels = twelve()
    one = classifier(checkpoint, learning_rate=1e-2, epochs=4)
    counts = make_pipeline(CountVectorizer(), LogisticRegression(C=100))
    voting = VotingClassifier([("a", one), ("b", counts)], voting="soft").fit(texts, labels)
    members = [member.predict_proba(texts) for member in voting.estimators_]
    np.testing.assert_allclose(voting.predict_proba(texts), np.mean(members, axis=0))
    assert voting.score(texts, labels) == 1.0
    folds = cross_val_predict(one, texts, labels, method="predict_proba", cv=2)
    assert folds.shape == (48, 12) and roc_auc_score(labels, folds, multi_class="ovr") > 0.8
    calibrated = CalibratedClassifierCV(one, cv=2).fit(texts, labels)
    assert calibrated.classes_.tolist() == list(range(12)) and calibrated.score(texts, labels) > 0.5


def several() -> tuple[list[str], NDArray[np.int64]]:
    """Texts with a matrix of labels, whose first column is never 1."""
    texts, labels = labelled(24)
    return texts, np.array([[0, label == "pos", label == "neg"] for label in labels], dtype=int)


def test_a_matrix_of_labels_is_answered_as_scikit_learn_answers_one(checkpoint):
    texts, matrix = several()
    theirs = MLPClassifier((8,), solver="lbfgs").fit(np.eye(24), matrix)
    fitted = classifier(checkpoint).fit(texts, matrix)
    assert fitted.classes_.tolist() == theirs.classes_.tolist() == [0, 1, 2]
    ours, expected = fitted.predict(texts), theirs.predict(np.eye(24))
    assert (ours.dtype, ours.shape) == (expected.dtype, expected.shape) and np.array_equal(ours, matrix)
    assert fitted.predict_proba(texts).shape == theirs.predict_proba(np.eye(24)).shape
    assert fitted.score(texts, matrix) == 1.0 and fitted.predict_proba([]).shape == (0, 3)


def test_a_matrix_of_any_kind_is_learned_as_an_array(checkpoint):
    texts, matrix = several()
    kinds = (matrix, csr_matrix(matrix), pd.DataFrame(matrix), matrix.tolist(), matrix.astype(bool))
    curves = [classifier(checkpoint, epochs=1).fit(texts, y).loss_curve_ for y in kinds]
    assert curves == curves[:1] * len(kinds)


def test_weights_of_texts_with_several_labels_weigh_their_losses(checkpoint):
    texts, labels = labelled(24)
    matrix = np.array([[label == "pos", label == "neg"] for label in labels])
    weighted = classifier(checkpoint, epochs=2).fit(texts, matrix, sample_weight=np.full(24, 0.5))
    plain = classifier(checkpoint, epochs=2).fit(texts, matrix)
    np.testing.assert_allclose(weighted.loss_curve_, plain.loss_curve_, rtol=1e-5)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, "a"], r"row 0 .* 1 .*row 1 .*'a'"),
        ([0.5, 1.5], r"row 0 .*0\.5"),
        ([[0, 2], [1]], "MultiLabelBinarizer"),
        ([["a", "b"], ["b", "c"]], "could not convert string to float|not compatible with arrays of bytes/strings"),
        ([[0, 1], [math.nan, 0]], "y contains NaN"),
        ([[0, 2], [1, 0]], r"row 1|\[0, 2\]"),
    ],
)
def test_labels_that_scikit_learn_would_not_take_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        minibert.FineTunedClassifier("no such checkpoint").fit(["a", "b"], labels)


def test_a_head_that_is_kept_answers_in_the_order_of_classes(checkpoint, tmp_path):
    texts, labels = labelled(24)
    names = {"id2label": {0: "pos", 1: "neg"}, "label2id": {"pos": 0, "neg": 1}}
    folder = write_words_checkpoint(tmp_path / "head", head="sequence-classification", **names)
    fitted = classifier(folder).fit(texts, labels)
    assert (fitted.classes_.tolist(), fitted.notes_) == (["neg", "pos"], [])
    assert list(fitted.model_.config.id2label.values()) == ["pos", "neg"]
    assert fitted.score(texts, labels) == 1.0 and log_loss(labels, fitted.predict_proba(texts)) < 0.1
    other = classifier(folder, epochs=1).fit(texts, [1, 2] * 12)
    assert [note for note in other.notes_ if "the task head is new" in note and "'pos', 'neg'" in note]


def test_the_classifier_is_searched_in_a_pipeline_with_numpys_numbers_and_numbers_as_labels(checkpoint):
    texts, labels = labelled(24)
    one = make_pipeline(classifier(checkpoint, class_weight={2: 1.0, 10: 3.0}))
    grid = {"epochs": np.array([1, 2]), "max_length": np.array([8]), "freeze": np.array([1]), "seed": [np.uint8(3)]}
    named = {f"finetunedclassifier__{name}": values for name, values in grid.items()}
    search = GridSearchCV(one, named, cv=2, error_score="raise")  # clones it
    search.fit(texts, [10 if label == "pos" else 2 for label in labels])
    assert set(search.predict(texts).tolist()) <= {2, 10} == set(search.classes_.tolist())


def test_the_classifier_fits_predicts_and_survives_a_pickle(checkpoint):
    texts, labels = labelled(48)
    fitted = classifier(checkpoint).fit(np.array(texts), np.array(labels))
    assert fitted.score(texts, labels) == 1.0 and fitted.classes_.tolist() == ["neg", "pos"]
    probabilities = fitted.predict_proba(texts)
    assert np.allclose(probabilities.sum(axis=1), 1.0)
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(texts), probabilities)


def test_a_text_of_weight_zero_is_not_learned_from(checkpoint):
    texts, labels = labelled(24)
    data = texts + texts, labels + labels[::-1]  # the second half is wrong: labels alternate
    with_zeros = classifier(checkpoint).fit(*data, sample_weight=[1.0] * 24 + [0.0] * 24)
    assert with_zeros.score(texts, labels) == 1.0
    unlearned = classifier(checkpoint, epochs=1).fit(texts, labels, sample_weight=[0.0] * 24)
    assert unlearned.loss_curve_ == [0.0] * 3
    with pytest.raises(ValueError, match=r"Negative values .* sample_weight"):
        classifier(checkpoint).fit(texts, labels, sample_weight=[-1.0] * 24)


def test_a_missing_text_is_refused_with_its_row_or_is_empty(checkpoint):
    texts, labels = labelled(8)
    gaps = [*texts[:3], pd.NA, *texts[4:]]
    fitted = classifier(checkpoint, epochs=2, missing="empty").fit(gaps, labels)
    assert fitted.predict([pd.NA]).tolist() == fitted.predict([""]).tolist()
    with pytest.raises(TypeError, match=r"row 3\b"):
        classifier(checkpoint).fit(gaps, labels)
    with pytest.raises(ValueError, match="missing is 'drop'"):
        classifier(checkpoint, missing="drop").fit(gaps, labels)
