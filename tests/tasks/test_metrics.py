"""The metrics agree with scikit-learn and scipy, also where they are undefined."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import f1_score, precision_recall_fscore_support

from minibert.tasks import metrics

NAMES = ["a", "b", "c", "d"]
SETS = st.frozensets(st.sampled_from(NAMES))
NUMBERS = st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=2)


def test_an_evaluation_equals_one_counted_by_hand() -> None:
    evaluation = metrics.compare(list("aaaabb"), list("aaabba"), list("ab"))
    assert evaluation.confusion == [[3, 1], [1, 1]]
    assert evaluation.accuracy == 4 / 6
    assert evaluation.standard_error == pytest.approx(math.sqrt(4 / 6 * 2 / 6 / 6))
    assert evaluation.classes["a"].precision == evaluation.classes["a"].recall == 3 / 4
    assert (evaluation.classes["b"].f1, evaluation.classes["b"].rows) == (1 / 2, 2)


@given(st.lists(st.tuples(SETS, SETS), min_size=1))
def test_scores_of_label_sets_are_those_of_scikit_learn(rows: list[tuple[frozenset[str], frozenset[str]]]) -> None:
    true, predicted = zip(*rows, strict=True)
    there, found = (np.array([[name in row for name in NAMES] for row in side]) for side in (true, predicted))
    overall, classes = metrics.class_scores(true, predicted, NAMES)
    columns = precision_recall_fscore_support(there, found, zero_division=0.0)
    for name, *expected in zip(NAMES, *columns, strict=True):
        one = classes[name]
        assert [one.precision, one.recall, one.f1, one.rows] == pytest.approx(expected)
    assert overall.f1 == pytest.approx(f1_score(there, found, average="micro", zero_division=0.0))


def test_constant_predictions_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="all 3 texts were predicted to be 'a'"):
        metrics.compare(list("abb"), list("aaa"), list("ab"))


@given(NUMBERS)
def test_correlations_are_those_of_scipy(rows: list[tuple[int, int]]) -> None:
    true, predicted = zip(*rows, strict=True)
    constant = len(set(true)) == 1 or len(set(predicted)) == 1  # NaN in scipy
    expected = 0.0 if constant else stats.pearsonr(true, predicted)[0]
    assert metrics.correlation(true, predicted) == pytest.approx(expected, abs=1e-9)


def test_the_standard_error_by_hand() -> None:
    assert (metrics.standard_error(0.5, 100), metrics.standard_error(1.0, 7)) == (0.05, 0.0)
