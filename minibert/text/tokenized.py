"""Texts as ids: rows of ids with statistics for bulk work, and a padded Batch for a model. B batch, S tokens."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from minibert.printing import brief


class TruncationWarning(UserWarning):
    """Texts were longer than max_length and lost their ends."""


class UnknownTokensWarning(UserWarning):
    """Most of the text is not in the vocabulary and became [UNK]."""


@dataclass(frozen=True)
class TokenStats:
    """Counts of what tokenizing did to some texts; the stats of several portions can be added."""

    texts: int = 0  # or pairs
    tokens: int = 0  # of all rows, special tokens included, after truncation
    unknown: int = 0  # of these
    truncated: int = 0  # texts that lost their ends
    longest: int = 0  # tokens of the longest text before truncation, special tokens included
    special: int = 0  # [CLS] and [SEP] among the tokens
    uncounted: int = 0  # very long texts that were tokenized only as far as needed
    windowed: int = 0  # texts that were split into several windows
    windows: int = 0  # these windows

    def __add__(self, other: TokenStats) -> TokenStats:
        sums = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(TokenStats)}
        return TokenStats(**sums | {"longest": max(self.longest, other.longest)})

    def warn(self, max_length: int, unknown_token: str, stacklevel: int) -> None:
        """Warn of truncated texts and of unknown tokens, once each."""
        if self.truncated:
            warnings.warn(
                f"{self.truncated} of {self.texts} texts are longer than {max_length} tokens (the longest has "
                f"{'at least ' if self.uncounted else ''}{self.longest}): what comes after was cut off",
                TruncationWarning,
                stacklevel,
            )
        total = self.tokens - self.special
        if 2 * self.unknown > total:
            warnings.warn(
                f"{self.unknown} of {total} tokens are {unknown_token}: the vocabulary does not cover this language "
                "or script; choose a checkpoint that was trained on it",
                UnknownTokensWarning,
                stacklevel,
            )


@dataclass(frozen=True)
class Tokenized:
    """N texts or pairs as K rows of ids, [CLS] to [SEP], without padding; K > N if texts are split into windows."""

    ids: list[list[int]]  # K
    stats: TokenStats
    second: list[int] | None = None  # K: where segment 1 begins in each row; None: single texts, or one segment only
    windows: list[int] | None = None  # N: rows per text; None: one each

    def text_of(self, row: int) -> int:
        """The number of the text that a row of ids belongs to."""
        if self.windows is None:
            return row
        return next(number for number, end in enumerate(accumulate(self.windows)) if row < end)

    def take(self, numbers: Sequence[int]) -> Tokenized:
        """The rows of some of the texts, in this order; the stats remain those of all texts."""
        if self.windows is None:
            second = None if self.second is None else [self.second[number] for number in numbers]
            return Tokenized([self.ids[number] for number in numbers], self.stats, second)
        starts = list(accumulate(self.windows, initial=0))
        ids = [row for number in numbers for row in self.ids[starts[number] : starts[number + 1]]]
        return Tokenized(ids, self.stats, None, [self.windows[number] for number in numbers])


# ---------------------------------------------------------------------------------------------------------------
# Texts that are too long


def shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of each text of a pair to keep: the longer one is cut first, down to half of the room."""
    shorter = min(first, second, room // 2)
    longer = min(max(first, second), room - shorter)
    return (shorter, longer) if first <= second else (longer, shorter)


def in_windows(ids: Sequence[int], room: int, stride: int) -> list[Sequence[int]]:
    """Windows of up to `room` ids, each `stride` ids after the one before, until one reaches the end."""
    starts = range(0, max(1, len(ids) - room + stride), stride)
    return [ids[start : start + room] for start in starts]


def as_long(truncation: str) -> str:
    """The name that `truncation` has in a Recipe."""
    if truncation not in ("warn", "error"):
        raise ValueError(f"truncation is {brief(truncation)}; it must be 'warn' or 'error'")
    return "cut" if truncation == "warn" else "error"


def token_stats(
    lengths: Sequence[tuple[int, bool]],
    rows: Sequence[Sequence[int]],
    unknown_id: int,
    specials: int,
    max_length: int,
    long: str,
    windows: Sequence[int] = (),
    first_row: int = 0,
) -> TokenStats:
    """The stats of texts that became `rows`, each with this number of special tokens.

    lengths: tokens of each text before truncation, and whether these are all of its tokens. windows: rows per text.
    Raises ValueError, with its row, for the first text that is too long if `long` is "error".
    """
    too_long = [row for row, (count, _) in enumerate(lengths) if count + specials > max_length]
    if too_long and long == "error":
        count, whole = lengths[too_long[0]]
        raise ValueError(
            f"row {first_row + too_long[0]} has {'' if whole else 'at least '}{count + specials} tokens, more than "
            f"max_length {max_length}; shorten it, or use long='cut' (truncation='warn') to cut it"
        )
    several = [count for count in windows if count > 1]
    return TokenStats(
        texts=len(lengths),
        tokens=sum(map(len, rows)),
        unknown=sum(row.count(unknown_id) for row in rows),
        truncated=len(too_long) - len(several),
        longest=max((count + specials for count, _ in lengths), default=0),
        special=specials * len(rows),
        uncounted=sum(not whole for _, whole in lengths),
        windowed=len(several),
        windows=sum(several),
    )


# ---------------------------------------------------------------------------------------------------------------
# Padded


MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TENSORS = (*MODEL_INPUTS, "special_tokens_mask")


@dataclass(frozen=True, eq=False)
class Batch:
    """The tokens of B texts or pairs, padded on the right to the longest of them, S.

    Tensors are long, (B, S). Lists have a row per text with S entries: offsets are (start, end) into the original
    text, in characters, (0, 0) for special tokens and padding; word_ids count the words of each text from 0, None for
    special tokens and padding.
    As a mapping it holds the inputs of a model: `encoder(**batch)`, batch["input_ids"]; its length is B.
    """

    input_ids: Tensor
    attention_mask: Tensor  # 1 token, 0 padding
    token_type_ids: Tensor  # 0 first text, 1 second text, for relatives that have segments
    special_tokens_mask: Tensor  # 1 for [CLS], [SEP], [PAD], [MASK], even if typed in the text
    tokens: list[list[str]]
    offsets: list[list[tuple[int, int]]]
    word_ids: list[list[int | None]]
    truncated: int  # rows that lost tokens
    longest: int  # tokens of the longest row before truncation, special tokens included

    def __len__(self) -> int:
        return len(self.tokens)

    def keys(self) -> tuple[str, ...]:
        """The names of a model's inputs."""
        return MODEL_INPUTS

    def items(self) -> list[tuple[str, Tensor]]:
        """A model's inputs by name."""
        return [(name, self[name]) for name in MODEL_INPUTS]

    def __iter__(self) -> Iterator[str]:
        return iter(MODEL_INPUTS)

    def __getitem__(self, name: str) -> Any:
        if name not in vars(self):
            raise KeyError(f"a Batch has no {brief(name)}; it has {', '.join(vars(self))}")
        return vars(self)[name]

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with its tensors on another device."""
        return replace(self, **{name: self[name].to(device) for name in TENSORS})


def pad(rows: Sequence[Mapping[str, list[Any]]], fillers: Mapping[str, Any], stats: TokenStats) -> Batch:
    """Rows of values per token as one batch, each padded to the longest with the filler of its field."""
    width = max((len(row["input_ids"]) for row in rows), default=0)
    columns: dict[str, Any] = {
        name: [row[name] + [filler] * (width - len(row[name])) for row in rows] for name, filler in fillers.items()
    }
    for name in TENSORS:
        columns[name] = torch.tensor(columns[name], dtype=torch.long).reshape(len(rows), width)
    return Batch(**columns, truncated=stats.truncated, longest=stats.longest)
