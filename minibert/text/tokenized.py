"""Texts as rows of ids without padding, and what became of them in numbers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate

from minibert.printing import brief


class TruncationWarning(UserWarning):
    """Texts were longer than max_length, and their ends were cut off."""


class UnknownTokensWarning(UserWarning):
    """Most of the text is not in the vocabulary: it reached the model as [UNK]."""


@dataclass(frozen=True)
class Account:
    """What became of texts as they were made ids, in numbers; the accounts of several portions can be added."""

    texts: int = 0  # or pairs
    tokens: int = 0  # of all rows, special tokens included, what was cut off not
    unknown: int = 0  # of these
    truncated: int = 0  # texts that lost their ends
    longest: int = 0  # tokens of the longest text before it was cut, special tokens included
    special: int = 0  # [CLS] and [SEP] among the tokens
    uncounted: int = 0  # texts of millions of characters that were read no further than was needed
    windowed: int = 0  # texts that were read in several windows
    windows: int = 0  # these windows

    def __add__(self, other: Account) -> Account:
        sums = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(Account)}
        return Account(**sums | {"longest": max(self.longest, other.longest)})

    def warn(self, max_length: int, unknown_token: str, stacklevel: int) -> None:
        """Warn of cut ends and of unknown tokens, once each."""
        if self.truncated:
            at_least = "at least " if self.uncounted else ""
            warnings.warn(
                f"{self.truncated} of {self.texts} texts are longer than {max_length} tokens (the longest has "
                f"{at_least}{self.longest}): what comes after was cut off",
                TruncationWarning,
                stacklevel,
            )
        total = self.tokens - self.special
        if 2 * self.unknown > total:
            warnings.warn(
                f"{self.unknown} of {total} tokens are {unknown_token}: the vocabulary does not know this language "
                "or script; choose a checkpoint that was trained on it",
                UnknownTokensWarning,
                stacklevel,
            )


@dataclass(frozen=True)
class Tokenized:
    """N texts or pairs as K rows of ids, [CLS] to [SEP], without padding; K is above N where texts have windows."""

    ids: list[list[int]]  # K
    account: Account
    second: list[int] | None = None  # K: where in each row segment 1 begins; None: no pairs, or one segment for both
    windows: list[int] | None = None  # N: how many rows each text has; None: one each

    def text_of(self, row: int) -> int:
        """The number of the text that a row of ids belongs to."""
        if self.windows is None:
            return row
        return next(number for number, end in enumerate(accumulate(self.windows)) if row < end)

    def take(self, numbers: Sequence[int]) -> Tokenized:
        """The rows of some of the texts, in this order; the account stays that of all."""
        if self.windows is None:
            second = None if self.second is None else [self.second[number] for number in numbers]
            return Tokenized([self.ids[number] for number in numbers], self.account, second)
        starts = list(accumulate(self.windows, initial=0))
        ids = [row for number in numbers for row in self.ids[starts[number] : starts[number + 1]]]
        return Tokenized(ids, self.account, None, [self.windows[number] for number in numbers])


# ---------------------------------------------------------------------------------------------------------------
# Texts that are too long


class Lengths:
    """How long texts are before they are cut; those that may not be cut are refused here, by row."""

    def __init__(self, max_length: int, long: str, first_row: int = 0) -> None:
        self.max_length, self.long, self.first_row = max_length, long, first_row
        self.texts = self.too_long = self.longest = self.uncounted = 0

    def add(self, length: int, whole: bool = True) -> None:
        """One more text; where it is not `whole`, it has at least `length` tokens."""
        if length > self.max_length and self.long == "error":
            raise ValueError(
                f"row {self.first_row + self.texts} has {'' if whole else 'at least '}{length} tokens, more than "
                f"max_length {self.max_length}; shorten it, or use long='cut' (truncation='warn') to cut it"
            )
        self.texts += 1
        self.too_long += length > self.max_length
        self.longest = max(self.longest, length)
        self.uncounted += not whole

    def account(
        self, rows: Sequence[Sequence[int]], unknown: int, special: int, windows: Sequence[int] = ()
    ) -> Account:
        """Of all these texts, whose ids are `rows` with so many special tokens each; windows: the rows of each text."""
        several = [count for count in windows if count > 1]
        return Account(
            texts=self.texts,
            tokens=sum(map(len, rows)),
            unknown=sum(row.count(unknown) for row in rows),
            truncated=self.too_long - len(several),
            longest=self.longest,
            special=special * len(rows),
            uncounted=self.uncounted,
            windowed=len(several),
            windows=sum(several),
        )


def as_long(truncation: str) -> str:
    """What `truncation` is called in a Recipe."""
    if truncation not in ("warn", "error"):
        raise ValueError(f"truncation is {brief(truncation)}; it must be 'warn' or 'error'")
    return "cut" if truncation == "warn" else "error"


def shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of each text of a pair stay: the longer one is cut first, to half of the room if need be."""
    if first + second <= room:
        return first, second
    if first <= second:
        first = min(first, room // 2)
        return first, room - first
    second = min(second, room // 2)
    return room - second, second


def in_windows(ids: Sequence[int], room: int, stride: int) -> list[Sequence[int]]:
    """Windows of up to `room` ids, each `stride` ids after the one before, until one reaches the end."""
    starts = range(0, max(1, len(ids) - room + stride), stride)
    return [ids[start : start + room] for start in starts]
