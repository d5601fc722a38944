"""Masking has the paper's shares, leaves special tokens, keeps words whole, and depends on seed, epoch and row."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.models import minilm_folder

from minibert.inputs import IGNORED
from minibert.text.masking import Masking, unmasked
from minibert.text.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer(minilm_folder())
MASKING = Masking.of(TOKENIZER)
WORDS = Masking.of(TOKENIZER, whole_words=True)
CONTINUES = TOKENIZER.continues
MILLION, LENGTH = 1_000_000, 125
ROLES = ("cls", "mask", "sep", "pad")
rows = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), min_size=1, max_size=60)
numbers = st.integers(0, 2**31)


def draw(masking: Callable[..., Any]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """A million tokens in rows with [CLS], [SEP] and [PAD], masked, and their labels: (rows, LENGTH + 4) each.

    Every third token continues a word, and each row has a typed [MASK].
    """
    random = np.random.default_rng(5)
    ordinary = np.setdiff1d(np.arange(TOKENIZER.vocab_size), list(TOKENIZER.control_ids))
    begins, continues = ordinary[~CONTINUES[ordinary]], ordinary[CONTINUES[ordinary]]
    shape = (MILLION // LENGTH, LENGTH)
    text = np.where(random.random(shape) < 1 / 3, random.choice(continues, shape), random.choice(begins, shape))
    cls, mask, sep, pad = (np.full((len(text), 1), getattr(TOKENIZER, f"{role}_id")) for role in ROLES)
    original = np.concatenate([cls, mask, text, sep, pad], axis=1)
    masked, labels = zip(*(masking(row.tolist(), 0, number) for number, row in enumerate(original)), strict=True)
    return original, np.array(masked), np.array(labels)


# ---------------------------------------------------------------------------------------------------------------
# The shares


@pytest.mark.parametrize("whole_words", [False, True])
def test_of_a_million_tokens_15_per_cent_are_chosen_and_never_special_ones(whole_words):
    original, masked, labels = draw(WORDS if whole_words else MASKING)
    chosen, is_text = labels != IGNORED, np.isin(original, list(TOKENIZER.control_ids), invert=True)
    assert is_text.sum() == MILLION and not (chosen & ~is_text).any()
    assert abs(chosen.sum() / MILLION - 0.15) <= 0.001
    before, after = original[chosen], masked[chosen]
    is_mask = after == TOKENIZER.mask_id
    shares = [is_mask.mean(), (~is_mask & (after != before)).mean(), (after == before).mean()]
    np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], rtol=0, atol=0.005)
    assert not np.isin(after[~is_mask], list(TOKENIZER.control_ids)).any()
    assert np.array_equal(labels[chosen], before) and np.array_equal(masked[~chosen], original[~chosen])
    # Tokens that continue a word, of which only one of the two was chosen.
    continues = CONTINUES[original[:, 1:]] & is_text[:, :-1]
    broken = (continues & (chosen[:, 1:] != chosen[:, :-1])).sum()
    assert broken == 0 if whole_words else broken > MILLION / 20


@given(rows, numbers, numbers, numbers, st.floats(0.01, 0.99), st.booleans())
def test_unmasked_restores_the_row(ids, seed, epoch, row, rate, whole):
    masked, labels = replace(WORDS if whole else MASKING, seed=seed, rate=rate)(ids, epoch, row)
    assert len(masked) == len(labels) == len(ids)
    assert unmasked(masked, labels) == ids


# ---------------------------------------------------------------------------------------------------------------
# Whole words


def chosen(masking: Masking, ids: list[int]) -> list[list[bool]]:
    """Which tokens are chosen in each of 300 rows of the same ids."""
    return [[label != IGNORED for label in masking(ids, 0, row)[1]] for row in range(300)]


def test_the_tokens_of_a_phrase_are_chosen_together_and_the_longer_phrase_counts():
    [ids] = TOKENIZER.ids(["the united states of america and the united nations , unitedly"])
    phrases = ["united states", "United States of America", "united nations", "and"]
    known = Masking.of(TOKENIZER, phrases=phrases)
    assert np.unique(known.groups(np.array(ids)), return_counts=True)[1].tolist() == [1, 1, 4, 1, 1, 2, 1, 1, 1, 1]
    assert all(len(set(row[2:6])) == len(set(row[8:10])) == 1 for row in chosen(known, ids))
    assert any(len(set(row[2:6])) == 2 for row in chosen(MASKING, ids))  # the control: chosen one by one


def test_a_row_may_begin_in_the_middle_of_a_word():
    found = set(map(tuple, chosen(WORDS, [TOKENIZER.vocab[token] for token in ("##s", "##ing", "a")])))
    assert found == {(False, False, False), (True, True, False), (False, False, True), (True, True, True)}


# ---------------------------------------------------------------------------------------------------------------
# The draw


@given(rows, numbers, numbers, numbers)
def test_the_same_seed_epoch_and_row_mask_the_same_tokens(ids, seed, epoch, row):
    masking = replace(MASKING, seed=seed)
    first, _ = masking(ids, epoch, row), masking(ids[::-1], epoch + 1, row)
    assert masking(ids, epoch, row) == first


def test_another_seed_epoch_or_row_masks_other_tokens():
    cases = [(seed, epoch, row) for seed in (0, 1, -1) for epoch in range(3) for row in range(3)]
    found = {tuple(replace(MASKING, seed=seed)(range(2000, 2100), epoch, row)[1]) for seed, epoch, row in cases}
    assert len(found) == len(cases)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_a_rate_with_which_nothing_can_be_learned_is_refused(rate):
    with pytest.raises(ValueError, match=r"mask rate.* 0 and below 1"):
        Masking.of(TOKENIZER, rate)
