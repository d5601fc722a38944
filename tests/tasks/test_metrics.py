"""The metrics agree with scikit-learn, scipy and the scripts of SQuAD, also where they are undefined."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import f1_score, precision_recall_fscore_support
from support.models import HARD_TEXTS

from minibert.tasks import metrics
from minibert.tasks.answering import Gold, Question, score_answer

NAMES = ["a", "b", "c", "d"]
SETS = st.frozensets(st.sampled_from(NAMES))


@given(st.lists(st.tuples(SETS, SETS), min_size=1))
def test_scores_of_label_sets_are_those_of_scikit_learn(rows):
    true, predicted = zip(*rows, strict=True)
    there, found = (np.array([[name in row for name in NAMES] for row in side]) for side in (true, predicted))
    overall, classes = metrics.class_scores(true, predicted, NAMES)
    columns = precision_recall_fscore_support(there, found, zero_division=0.0)
    for name, *expected in zip(NAMES, *columns, strict=True):
        one = classes[name]
        assert [one.precision, one.recall, one.f1, one.rows] == pytest.approx(expected)
    assert overall.f1 == pytest.approx(f1_score(there, found, average="micro", zero_division=0.0))


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=2))
def test_correlations_are_those_of_scipy(rows):
    true, predicted = zip(*rows, strict=True)
    constant = len(set(true)) == 1 or len(set(predicted)) == 1  # NaN in scipy
    expected = 0.0 if constant else stats.pearsonr(true, predicted)[0]
    assert metrics.correlation(true, predicted) == pytest.approx(expected, abs=1e-9)


# -- the official score of SQuAD


def official_words(text: str) -> list[str]:
    """Lower case; ASCII punctuation out; runs of letters that are an article become a space; split."""
    kept = text.lower().translate(dict.fromkeys(b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"))
    runs = ["".join(run) for _, run in itertools.groupby(kept, key=lambda c: c.isalnum() or c == "_")]
    return "".join(" " if run in {"a", "an", "the"} else run for run in runs).split()


def official(answer: str, golds: list[str], unanswerable: bool) -> tuple[float, float]:
    """Exact match and F1 as the scripts of SQuAD 1.1 and 2.0 count them."""
    if unanswerable:
        golds = [text for text in golds if official_words(text)] or [""]
    said, exact, f1 = official_words(answer), [], []
    for text in golds:
        right = official_words(text)
        exact.append(float(said == right))
        common = (Counter(said) & Counter(right)).total()
        f1.append(2 * common / (len(said) + len(right)) if common else float(unanswerable and said == right))
    return max(exact), max(f1)


PIECES = ["the", "a", "an", "The", "AN", "cat", "Cat", "cats", "U.S.", "don't", "1,000", *"-—«_ßİé"]


PHRASE = st.one_of(
    st.lists(st.sampled_from([*PIECES, " ", " ", "\u3000"]), max_size=8).map("".join),
    st.lists(st.sampled_from(PIECES), max_size=5).map(" ".join),
    st.text(max_size=40),
    st.sampled_from(HARD_TEXTS),
)


@given(answer=PHRASE, golds=st.lists(PHRASE, min_size=1, max_size=3), unanswerable=st.booleans())
def test_scores_are_the_official_ones(answer, golds, unanswerable):
    golds = [text for text in golds if text.strip()] or ["cat"]
    starts = [sum(len(text) for text in golds[:number]) for number in range(len(golds))]
    question = Question("?", "".join(golds), tuple(map(Gold, golds, starts)))
    assert score_answer(answer, question, unanswerable) == pytest.approx(official(answer, golds, unanswerable))


@pytest.mark.parametrize(
    ("said", "right", "unanswerable", "expected"),
    [
        ("cat", "the black cat", False, (0.0, 2 / 3)),
        ("", "the", False, (1.0, 0.0)),  # as the script of 1.1 has it
        ("", "the", True, (1.0, 1.0)),
        ("the", "cat", True, (0.0, 0.0)),
    ],
)
def test_a_score_by_hand(said, right, unanswerable, expected):
    assert score_answer(said, Question("?", right, (Gold(right, 0),)), unanswerable) == pytest.approx(expected)
