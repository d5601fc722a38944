"""Rows from documents: nothing too long, sentences in their order, second texts from where they are said to be."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.tasks.base import Example
from minibert.text.template import SpecialTokenTemplate
from minibert.train.pairs import Packing, cut_pair

CLS, SEP = 1, 2
LONG = 40


def documents(count: int, sentences: int, length: int = 5) -> list[list[list[int]]]:
    """Each token is a number of its own: document · 10,000 + place in it."""
    return [
        [
            [10_000 * (number + 1) + sentence * length + place for place in range(length)]
            for sentence in range(sentences)
        ]
        for number in range(count)
    ]


def texts(row: Example) -> list[list[int]]:
    """The texts of a row, its special tokens taken off."""
    ids = list(row.ids)
    assert ids[0] == CLS
    assert ids[-1] == SEP
    parts: list[list[int]] = [[]]
    for id in ids[1:-1]:
        if id == SEP:
            parts.append([])
        else:
            parts[-1].append(id)
    return parts


def packing(objective: str, max_length: int = LONG) -> Packing:
    return Packing(objective, max_length, SpecialTokenTemplate((CLS,), (SEP,), (SEP,)))


@settings(deadline=None, max_examples=80)
@given(
    st.sampled_from(["mlm", "mlm+nsp", "mlm+sop"]),
    st.lists(st.lists(st.lists(st.integers(10, 99), min_size=1, max_size=30), min_size=1, max_size=8), max_size=5),
    st.integers(8, 40),
    st.integers(0, 9),
)
def test_rows_fit_and_are_framed(objective: str, given: list[list[list[int]]], most: int, seed: int) -> None:
    for row in packing(objective, most).rows(given, Random(seed)):
        assert len(row.ids) == len(row.segments) <= most
        parts = texts(row)
        assert len(parts) == (1 if objective == "mlm" else 2)
        expected = [0] * (len(parts[0]) + 2) + ([1] * (len(parts[1]) + 1) if len(parts) > 1 else [])
        assert list(row.segments) == expected


def test_one_text_a_row_loses_no_token() -> None:
    given = documents(7, 11)
    rows = packing("mlm").rows(given, Random(0))
    assert sorted(id for row in rows for id in texts(row)[0]) == sorted(
        id for document in given for sentence in document for id in sentence
    )


def test_one_row_in_ten_is_short() -> None:
    rows = packing("mlm").rows(documents(40, 400), Random(0))
    short = sum(len(row.ids) < LONG for row in rows) / len(rows)
    assert 0.05 < short < 0.12  # a tenth, less those drawn at full length, more the ends of documents


def test_half_of_the_second_texts_follow_and_half_are_from_another_document() -> None:
    rows = packing("mlm+nsp").rows(documents(50, 60), Random(0))
    labels = [row.labels["next_sentence_label"] for row in rows]
    assert 0.45 < sum(labels) / len(labels) < 0.55
    for row, label in zip(rows, labels, strict=True):
        a, b = texts(row)
        assert (a[0] // 10_000 != b[0] // 10_000) == bool(label)
        if not label:
            assert 0 < b[0] - a[-1] <= LONG  # behind it, less what was cut


def test_a_random_text_of_the_same_document_is_caught() -> None:
    """The control of the test above."""
    copied = documents(1, 60) * 50  # fifty times the same
    rows = packing("mlm+nsp").rows(copied, Random(0))
    random = [texts(row) for row in rows if row.labels["next_sentence_label"]]
    assert not all(a[0] // 10_000 != b[0] // 10_000 for a, b in random)


def test_a_document_alone_gives_no_random_text() -> None:
    rows = packing("mlm+nsp").rows(documents(1, 30), Random(0))
    assert {row.labels["next_sentence_label"] for row in rows} == {0}
    assert packing("mlm+nsp").rows(documents(1, 1), Random(0)) == []


def test_sentences_of_the_same_document_stand_in_order_or_are_exchanged() -> None:
    rows = packing("mlm+sop").rows(documents(50, 60), Random(0))
    labels = [row.labels["sentence_order_label"] for row in rows]
    assert 0.45 < sum(labels) / len(labels) < 0.55
    for row, label in zip(rows, labels, strict=True):
        a, b = texts(row)
        assert a[0] // 10_000 == b[0] // 10_000
        assert (a[0] > b[0]) == bool(label)


def test_the_same_seed_gives_the_same_rows_and_another_seed_others() -> None:
    one, again, other = (packing("mlm+nsp").rows(documents(5, 9), Random(seed)) for seed in (1, 1, 2))
    assert one == again
    assert one != other


@pytest.mark.parametrize(("a", "b"), [(30, 3), (3, 30), (20, 20), (5, 5)])
def test_a_pair_is_cut_from_its_longer_text_at_either_end(a: int, b: int) -> None:
    first, second = list(range(100, 100 + a)), list(range(200, 200 + b))
    cuts = [cut_pair(first, second, 12, Random(seed)) for seed in range(40)]
    for one, two in cuts:
        assert len(one) + len(two) == min(12, a + b)
        assert one == list(range(one[0], one[0] + len(one)))
        assert min(a, b) > 6 or min(len(one), len(two)) == min(a, b)  # the shorter one is whole
    if a + b > 12:
        assert len({(one[0], two[0]) for one, two in cuts}) > 3
