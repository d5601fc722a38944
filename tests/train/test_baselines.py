"""Baselines: probabilities that sum to one, counted right, and better where a word tells the next."""

from __future__ import annotations

import math

import pytest

from minibert.losses import IGNORED
from minibert.tasks.base import Example
from minibert.train.baselines import Counts, losses

V = 8
# After 5 always comes 6; all else is mixed.
DOCUMENTS = [[[5, 6, 7], [5, 6, 1]], [[7, 5, 6, 2, 1, 7]]] * 10
COUNTS = Counts.of(DOCUMENTS, V)


def hidden(ids: list[int], place: int, label: int) -> Example:
    labels = [IGNORED] * len(ids)
    labels[place] = label
    return Example(ids, [0] * len(ids), {"labels": labels})


def test_what_is_counted_are_tokens_and_neighbours_within_documents() -> None:
    assert COUNTS.total == 120
    assert COUNTS.pairs[5, 6] == 30
    assert COUNTS.pairs[7, 5] == 20  # across sentences, and not from one document to the next
    assert COUNTS.pairs[1, 7] == 10


def test_probabilities_sum_to_one() -> None:
    assert sum(COUNTS.unigram(token) for token in range(V)) == pytest.approx(1)
    for before in range(V):
        assert sum(COUNTS.bigram(before, token) for token in range(V)) == pytest.approx(1)


def test_a_word_that_tells_the_next_makes_the_bigram_better() -> None:
    found = losses(COUNTS, [hidden([3, 5, 4], 2, 6)])
    assert found["unigram"] == pytest.approx(-math.log(31 / 128))
    assert found["bigram"] < found["unigram"]


def test_behind_a_word_that_was_never_seen_the_two_are_the_same() -> None:
    found = losses(COUNTS, [hidden([3, 4, 4], 2, 6)])
    assert found["bigram"] == pytest.approx(found["unigram"])
