"""Masking: the shares of the paper, special tokens never, whole words whole, a draw for each seed, epoch and row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import minilm_folder
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from words import SPECIAL

from minibert.losses import IGNORED
from minibert.text.masking import Masking, unmasked
from minibert.text.tokenizer import Tokenizer, load_tokenizer
from minibert.text.tokenizer_files import definition_from_vocab

TOKENIZER = load_tokenizer(minilm_folder())
MASKING = Masking.of(TOKENIZER)
WORDS = Masking.of(TOKENIZER, whole_words=True)
CONTINUES = TOKENIZER.continues
MILLION, LENGTH = 1_000_000, 125
rows = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), min_size=1, max_size=60)
numbers = st.integers(0, 2**31)


@dataclass(frozen=True)
class Drawn:
    """What became of a million tokens of text in rows with [CLS], [SEP] and [PAD]: (rows, LENGTH + 4) each."""

    original: NDArray[np.int64]
    hidden: NDArray[np.int64]
    labels: NDArray[np.int64]

    @property
    def chosen(self) -> NDArray[np.bool_]:
        return self.labels != IGNORED

    @property
    def is_text(self) -> NDArray[np.bool_]:
        return np.isin(self.original, list(TOKENIZER.control_ids), invert=True)


def draw(masking: Callable[..., Any]) -> Drawn:
    """Of tokens as a text has them: every third goes on with a word, and in each row a [MASK] was typed."""
    random = np.random.default_rng(5)
    ordinary = np.setdiff1d(np.arange(TOKENIZER.vocab_size), list(TOKENIZER.control_ids))
    begins, goes_on = ordinary[~CONTINUES[ordinary]], ordinary[CONTINUES[ordinary]]
    shape = (MILLION // LENGTH, LENGTH)
    text = np.where(random.random(shape) < 1 / 3, random.choice(goes_on, shape), random.choice(begins, shape))
    frame = [np.full((len(text), 1), id) for id in (TOKENIZER.cls_id, TOKENIZER.mask_id, TOKENIZER.sep_id)]
    padding = np.full((len(text), 1), TOKENIZER.pad_id)
    original = np.concatenate([frame[0], frame[1], text, frame[2], padding], axis=1)
    made = [masking(row.tolist(), 0, number) for number, row in enumerate(original)]
    return Drawn(original, *(np.array(part) for part in zip(*made, strict=True)))


@cache
def million(whole_words: bool = False) -> Drawn:
    return draw(WORDS if whole_words else MASKING)


# ---------------------------------------------------------------------------------------------------------------
# The shares


def shares(drawn: Drawn) -> dict[str, float]:
    """Chosen among tokens of text; of these [MASK], another token, and the same."""
    before, after = drawn.original[drawn.chosen], drawn.hidden[drawn.chosen]
    masked = after == TOKENIZER.mask_id
    return {
        "chosen": drawn.chosen.sum() / drawn.is_text.sum(),
        "masked": masked.mean(),
        "replaced": (~masked & (after != before)).mean(),
        "kept": (after == before).mean(),
    }


def right(found: dict[str, float]) -> bool:
    """15 +- 0.1 %, and of these 80, 10 and 10 +- 0.5 %."""
    wanted = {"chosen": (0.15, 0.001), "masked": (0.8, 0.005), "replaced": (0.1, 0.005), "kept": (0.1, 0.005)}
    return all(abs(found[name] - share) <= apart for name, (share, apart) in wanted.items())


@pytest.mark.parametrize("whole_words", [False, True])
def test_fifteen_per_cent_are_chosen_and_of_these_80_10_and_10(whole_words: bool) -> None:
    drawn = million(whole_words)
    assert drawn.is_text.sum() == MILLION
    assert right(shares(drawn)), shares(drawn)


def test_only_masks_and_a_rate_that_is_off_by_a_hundredth_would_be_seen() -> None:
    drawn = million()
    only_masks = np.where(drawn.chosen, TOKENIZER.mask_id, drawn.original)
    assert not right(shares(replace(drawn, hidden=only_masks)))
    assert not right(shares(draw(replace(MASKING, rate=0.16))))


@pytest.mark.parametrize("whole_words", [False, True])
def test_special_tokens_and_padding_are_never_chosen_and_never_put_in_place_of_a_token(whole_words: bool) -> None:
    drawn = million(whole_words)
    assert not (drawn.chosen & ~drawn.is_text).any()
    replaced = drawn.chosen & (drawn.hidden != TOKENIZER.mask_id)
    assert not np.isin(drawn.hidden[replaced], list(TOKENIZER.control_ids)).any()


def test_special_tokens_that_were_chosen_would_be_seen() -> None:
    drawn = draw(replace(MASKING, special=np.zeros_like(MASKING.special)))
    assert (drawn.chosen & ~drawn.is_text).any()
    assert not right(shares(drawn))


@pytest.mark.parametrize("whole_words", [False, True])
def test_labels_are_what_stood_there_and_everything_else_is_as_it_was(whole_words: bool) -> None:
    drawn = million(whole_words)
    assert np.array_equal(drawn.labels[drawn.chosen], drawn.original[drawn.chosen])
    assert np.array_equal(drawn.hidden[~drawn.chosen], drawn.original[~drawn.chosen])


@given(rows, numbers, numbers, numbers, st.floats(0.01, 0.99), st.booleans())
def test_what_was_hidden_comes_back(ids: list[int], seed: int, epoch: int, row: int, rate: float, whole: bool) -> None:
    hidden, labels = replace(WORDS if whole else MASKING, seed=seed, rate=rate)(ids, epoch, row)
    assert len(hidden) == len(labels) == len(ids)
    assert unmasked(hidden, labels) == ids


# ---------------------------------------------------------------------------------------------------------------
# Whole words


def broken_words(drawn: Drawn) -> int:
    """Tokens that go on with a word of which only one of the two was chosen."""
    goes_on = CONTINUES[drawn.original[:, 1:]] & drawn.is_text[:, :-1]
    return int((goes_on & (drawn.chosen[:, 1:] != drawn.chosen[:, :-1])).sum())


def test_words_are_chosen_whole_where_that_is_asked_for_and_torn_where_it_is_not() -> None:
    assert broken_words(million(whole_words=True)) == 0
    assert broken_words(million()) > MILLION / 20


def test_the_pieces_of_a_real_word_are_chosen_together() -> None:
    text = "unbelievably antidisestablishmentarianism , she rummaged ."
    batch = TOKENIZER(text)
    ids, words = batch.input_ids[0].tolist(), batch.word_ids[0]
    chosen_words = set()
    for row in range(200):
        _, labels = WORDS(ids, 0, row)
        chosen = {word for word, label in zip(words, labels, strict=True) if label != IGNORED}
        assert all((label != IGNORED) == (word in chosen) for word, label in zip(words, labels, strict=True))
        chosen_words |= chosen
    assert chosen_words == {word for word in words if word is not None}


def test_the_tokens_of_a_phrase_are_chosen_together_and_the_longer_phrase_counts() -> None:
    text = "the united states of america and the united nations , unitedly"
    phrases = ["united states", "United States of America", "united nations", "and"]
    ids = np.array(TOKENIZER.ids([text])[0])
    known = Masking.of(TOKENIZER, phrases=phrases)
    words = [TOKENIZER.token_text(int(id)) for id in ids]
    groups: dict[int, list[str]] = {}
    for word, group in zip(words, known.groups(ids), strict=True):
        groups.setdefault(int(group), []).append(word)
    together = [group for group in groups.values() if len(group) > 1]
    assert together == [["united", "states", "of", "america"], ["united", "nations"]]
    for row in range(300):
        labels = np.array(known(ids.tolist(), 0, row)[1]) != IGNORED
        assert len(set(labels[2:6])) == len(set(labels[8:10])) == 1
    torn = [len(set(np.array(MASKING(ids.tolist(), 0, row)[1])[2:6] != IGNORED)) for row in range(300)]
    assert max(torn) == 2  # the control: without phrases they are chosen one by one


def test_a_row_may_begin_in_the_middle_of_a_word() -> None:
    ids = [TOKENIZER.vocab["##s"], TOKENIZER.vocab["##ing"], TOKENIZER.vocab["a"]]
    found = {tuple(label != IGNORED for label in WORDS(ids, 0, row)[1]) for row in range(300)}
    assert found == {(False, False, False), (True, True, False), (False, False, True), (True, True, True)}


def with_vocabulary(folder: Path, pieces: list[str]) -> Tokenizer:
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *pieces]), encoding="utf-8")
    return Tokenizer(definition_from_vocab(folder / "vocab.txt", {}, True))


def test_whole_words_of_a_vocabulary_that_marks_none_are_refused(tmp_path: Path) -> None:
    tokenizer = with_vocabulary(tmp_path, ["a", "b"])
    assert Masking.of(tokenizer)([2, 5, 6, 3], 0, 0)
    with pytest.raises(ValueError, match="no token of this vocabulary goes on with a word"):
        Masking.of(tokenizer, whole_words=True)


# ---------------------------------------------------------------------------------------------------------------
# The draw


@given(rows, numbers, numbers, numbers)
def test_the_same_seed_epoch_and_row_hide_the_same_whatever_drew_numbers_before(
    ids: list[int], seed: int, epoch: int, row: int
) -> None:
    masking = replace(MASKING, seed=seed)
    first = masking(ids, epoch, row)
    np.random.default_rng().random(3)
    masking(ids[::-1], epoch + 1, row)
    assert masking(ids, epoch, row) == first


def test_another_seed_epoch_or_row_hides_something_else() -> None:
    ids = list(range(2000, 2100))
    cases = [(seed, epoch, row) for seed in (0, 1, -1) for epoch in range(3) for row in range(3)]
    found = {tuple(replace(MASKING, seed=seed)(ids, epoch, row)[1]) for seed, epoch, row in cases}
    assert len(found) == len(cases)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_a_rate_with_which_nothing_can_be_learned_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=r"the mask rate is .*; it must be more than 0 and less than 1"):
        Masking.of(TOKENIZER, rate)
