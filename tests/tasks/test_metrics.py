"""The metrics agree with scikit-learn and scipy, also where they are undefined."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import confusion_matrix, f1_score, matthews_corrcoef, precision_recall_fscore_support

from minibert.tasks import metrics

NAMES = ["a", "b", "c", "d"]
SETS = st.frozensets(st.sampled_from(NAMES))
NUMBERS = st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=2)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("ab")), min_size=1))
def test_matthews_is_that_of_scikit_learn(rows: list[tuple[str, str]]) -> None:
    true, predicted = zip(*rows, strict=True)
    found = metrics.matthews(confusion_matrix(true, predicted, labels=["a", "b"]).tolist())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a single class, which has the value 0
        assert found == pytest.approx(matthews_corrcoef(true, predicted), abs=1e-12)


@given(st.lists(st.tuples(SETS, SETS), min_size=1))
@pytest.mark.filterwarnings("ignore:all .* predicted to have the same labels")
def test_scores_of_several_labels_are_those_of_scikit_learn(rows: list[tuple[frozenset[str], frozenset[str]]]) -> None:
    true, predicted = zip(*rows, strict=True)
    has, said = (np.array([[name in row for name in NAMES] for row in side]) for side in (true, predicted))
    found = metrics.compare_several(true, predicted, NAMES)
    columns = precision_recall_fscore_support(has, said, zero_division=0.0)
    for name, *theirs in zip(NAMES, *columns, strict=True):
        one = found.classes[name]
        assert [one.precision, one.recall, one.f1, one.rows] == pytest.approx(theirs)
    assert found.f1 == pytest.approx(f1_score(has, said, average="micro", zero_division=0.0))
    assert found.macro_f1 == pytest.approx(f1_score(has, said, average="macro", zero_division=0.0))
    assert found.exact_match == np.mean([a == b for a, b in rows])


def test_one_label_that_texts_have_or_have_not_is_scored_too() -> None:
    found = metrics.compare_several([("a",), (), ("a",)], [("a",), ("a",), ()], ["a"])
    assert (found.exact_match, found.f1, found.classes["a"].precision) == (pytest.approx(1 / 3), 0.5, 0.5)


def test_the_same_labels_for_every_text_are_warned_of() -> None:
    with pytest.warns(metrics.OneClassPredicted, match="all 2 texts were predicted to have the same labels: none"):
        metrics.compare_several([("a",), ()], [(), ()], ["a"])


@given(NUMBERS)
def test_correlations_are_those_of_scipy(rows: list[tuple[int, int]]) -> None:
    true, predicted = zip(*rows, strict=True)
    if len(set(true)) == 1 or len(set(predicted)) == 1:
        assert metrics.pearson(true, predicted) == metrics.spearman(true, predicted) == 0.0  # scipy says NaN
    else:
        assert metrics.pearson(true, predicted) == pytest.approx(stats.pearsonr(true, predicted)[0], abs=1e-9)
        assert metrics.spearman(true, predicted) == pytest.approx(stats.spearmanr(true, predicted)[0], abs=1e-9)


def test_correlations_of_many_random_numbers_are_those_of_scipy() -> None:
    random = np.random.default_rng(0)
    true = random.normal(size=500)
    predicted = (true + random.normal(size=500)).astype(np.float32)
    assert metrics.pearson(true, predicted) == pytest.approx(stats.pearsonr(true, predicted)[0], rel=1e-9)
    assert metrics.spearman(true, predicted) == pytest.approx(stats.spearmanr(true, predicted)[0], rel=1e-9)


def test_correlations_leave_the_numbers_as_they_are_and_hold_for_huge_ones() -> None:
    values = np.array([1e200, -1e200, 3e200])
    assert metrics.pearson(values, values) == pytest.approx(1.0)
    assert values.tolist() == [1e200, -1e200, 3e200]


@given(st.lists(st.integers(-5, 5), min_size=1))
def test_ranks_are_those_of_scipy(values: list[int]) -> None:
    assert metrics.ranks(values).tolist() == stats.rankdata(values).tolist()


def test_the_standard_error_of_a_share_falls_with_the_root_of_the_rows() -> None:
    assert metrics.standard_error(0.5, 100) == 0.05
    assert metrics.standard_error(1.0, 7) == 0.0
    assert metrics.root_mean_square([3, -4]) == math.sqrt(12.5)


def test_the_commonest_label_comes_with_its_share() -> None:
    assert metrics.commonest(["b", "a", "b"]) == ("b", 2 / 3)
