"""Texts as ids: special tokens around them, texts that are too long, rows with statistics, and a padded Batch.

    BERT, ALBERT, ELECTRA    [CLS] A [SEP]     [CLS] A [SEP] B [SEP]       segment 1 from B on
    RoBERTa, XLM-R           <s> A </s>        <s> A </s></s> B </s>       one segment

tokenizer.json defines this template as its post_processor. It is applied here rather than by the library because texts
are truncated, counted, split into windows and packed into rows as ids. B batch, S tokens.
"""

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from typing import Any, Self, TypeVar

import tokenizers
import torch
from torch import Tensor

from minibert.tables.texts import RowError
from minibert.utils.habits import ATTRIBUTES, Habits
from minibert.utils.printing import brief, counted
from minibert.utils.wording import advice, named


@contextmanager
def guarded(source: str, doing: str = "read this tokenizer.json") -> Iterator[None]:
    """Raise a ValueError that names `source` for anything that the `tokenizers` library raises within the block.

    If a definition surprises the library, it panics with a BaseException whose text may quote anything.
    """
    try:
        yield
    except BaseException as error:
        panic = type(error).__name__ == "PanicException"  # no module has this class
        if not panic and not isinstance(error, Exception):
            raise
        problem = "one of its rules or tokens makes the library fail" if panic else str(error).partition("\n")[0]
        raise ValueError(f"{source}: tokenizers {tokenizers.__version__} cannot {doing}: {problem}") from None


# ---------------------------------------------------------------------------------------------------------------
# Special tokens


@dataclass(frozen=True)
class SpecialTokenTemplate:
    """The ids before a text, between two, and after the last; segment: of the second text and all that follows it."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    segment: int = 1

    def specials(self, pairs: bool) -> int:
        """Return the number of special tokens in a row."""
        return len(self.before) + len(self.after) + pairs * len(self.between)

    def row(self, a: Sequence[Any], b: Sequence[Any] | None = None, special: Callable[[int], Any] = int) -> list[Any]:
        """Return the ids of a text or pair with special tokens; or other values per token, special(id) for these."""
        before, between, after = (list(map(special, ids)) for ids in (self.before, self.between, self.after))
        return [*before, *a, *after] if b is None else [*before, *a, *between, *b, *after]

    def second(self, n: int) -> int:
        """Return the position of the second text in its row, after a first text of n tokens."""
        return len(self.before) + n + len(self.between)

    def segments(self, n: int, m: int | None = None) -> list[int]:
        """Return the segment of each token, for a row of one text of n tokens, or of a pair of n and m tokens."""
        if m is None:
            return [0] * (n + self.specials(pairs=False))
        return [0] * self.second(n) + [self.segment] * (m + len(self.after))


def read_template(
    backend: tokenizers.Tokenizer, cls: tuple[str, int], sep: tuple[str, int], source: str
) -> SpecialTokenTemplate:
    """Return the template of the library's post_processor, read off an encoded pair; cls, sep: a token and its id.

    Without a post_processor it is BERT's, or RoBERTa's if `cls` is <s>. Raises ValueError for any other template.
    """
    texts = sep[0], cls[0]  # every vocabulary has tokens for these; in this order no template can hide in them
    with guarded(source):
        alone = backend.encode(sep[0])
        pair = backend.encode(*texts)
        a, b = (backend.encode(text, add_special_tokens=False).ids for text in texts)
    if pair.ids == [*a, *b]:
        doubled = cls[0] == "<s>"
        return SpecialTokenTemplate((cls[1],), (sep[1],) * (1 + doubled), (sep[1],), segment=int(not doubled))
    between = tuple(pair.ids[1 + len(a) : -1 - len(b)])
    template = SpecialTokenTemplate((pair.ids[0],), between, (pair.ids[-1],), int(pair.type_ids[-1] != 0))
    known = all(backend.id_to_token(id) is not None for id in pair.ids)
    if known and (alone.ids, pair.ids, pair.type_ids) == (
        template.row(a),
        template.row(a, b),
        template.segments(len(a), len(b)),
    ):
        return template
    raise ValueError(
        f"{source}: post_processor turns a pair into {' '.join(pair.tokens)} with segments {pair.type_ids}, and one "
        f"text into {' '.join(alone.tokens)}; supported are [CLS] A [SEP] B [SEP] and <s> A </s></s> B </s>"
    )


# ---------------------------------------------------------------------------------------------------------------
# Statistics


@dataclass(eq=False)
class TruncationWarning(UserWarning):
    """Texts were longer than max_length and lost their ends, or their beginnings by truncation_side."""

    truncated: int = 0  # texts that lost tokens
    texts: int = 0  # all texts
    limit: int = 0  # tokens
    longest: int = 0  # tokens of the longest text before truncation
    at_least: bool = False  # the longest was tokenized only as far as needed
    what: str = "text"
    left: bool = False  # they lost their beginnings, by truncation_side

    def __str__(self) -> str:
        verb = "is" if self.truncated == 1 else "are"
        least = "at least " if self.at_least else ""
        return (
            f"{self.truncated:,} of {counted(self.texts, self.what)} {verb} longer than {self.limit} tokens (the "
            f"longest has {least}{self.longest}): what comes {'before' if self.left else 'after'} was cut off"
        )


ENOUGH = 20  # tokens that say something about their language


class UnknownTokensWarning(UserWarning):
    """Most of the text is not in the vocabulary and became [UNK]."""


@dataclass(frozen=True)
class TokenStats:
    """Counts of what tokenizing did to some texts; the stats of several chunks can be added."""

    texts: int = 0  # or pairs
    tokens: int = 0  # of all rows, special tokens included, after truncation
    unknown: int = 0  # of these
    truncated: int = 0  # texts that lost tokens
    longest: int = 0  # tokens of the longest text before truncation, special tokens included
    special: int = 0  # [CLS] and [SEP] among the tokens
    uncounted: int = 0  # very long texts that were tokenized only as far as needed
    windowed: int = 0  # texts that were split into several windows
    windows: int = 0  # these windows

    def __add__(self, other: Self) -> Self:
        sums = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(TokenStats)}
        return replace(self, **sums | {"longest": max(self.longest, other.longest)})

    def truncation(self, max_length: int, left: bool) -> TruncationWarning | None:
        """Return the warning of truncated texts; None if all are whole."""
        at_least = self.uncounted > 0
        warning = TruncationWarning(self.truncated, self.texts, max_length, self.longest, at_least, left=left)
        return warning if self.truncated else None

    def warn(self, max_length: int, unknown_token: str, stacklevel: int, left: bool = False) -> None:
        """Warn of truncated texts and of unknown tokens, once each."""
        if truncation := self.truncation(max_length, left):
            warnings.warn(truncation, stacklevel=stacklevel)
        total = self.tokens - self.special
        if 2 * self.unknown > total:
            language = "does not cover this language or script; choose a checkpoint that was trained on it"
            warnings.warn(
                f"{self.unknown} of {total} tokens are {unknown_token}: the vocabulary "
                f"{language if total >= ENOUGH else 'has none for these characters'}",
                UnknownTokensWarning,
                stacklevel,
            )


# ---------------------------------------------------------------------------------------------------------------
# Rows


@dataclass(frozen=True)
class Tokenized:
    """N texts or pairs as K rows of ids, [CLS] to [SEP], without padding; K > N if texts are split into windows."""

    ids: list[list[int]]  # K
    stats: TokenStats
    second: list[int] | None = None  # K: where segment 1 begins in each row; None: single texts, or one segment only
    windows: list[int] | None = None  # N: rows per text; None: one each
    details: Mapping[str, list[list[Any]]] = field(default_factory=dict)  # tokens, offsets, word_ids: K rows each

    def segments(self) -> list[list[int]]:
        """Return the segment of each token of each row, 0 or 1."""
        second = self.second or map(len, self.ids)
        return [[0] * start + [1] * (len(ids) - start) for ids, start in zip(self.ids, second, strict=True)]

    def take(self, numbers: Sequence[int]) -> Self:
        """Return the rows of some of the texts, in this order; the stats still count all texts."""
        starts = list(accumulate(self.windows or [1] * len(self.ids), initial=0))
        rows = [row for number in numbers for row in range(starts[number], starts[number + 1])]
        second = self.second and [self.second[row] for row in rows]
        windows = self.windows and [self.windows[number] for number in numbers]
        return replace(self, ids=[self.ids[row] for row in rows], second=second, windows=windows)


# ---------------------------------------------------------------------------------------------------------------
# Texts that are too long


def shares(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of each text of a pair to keep: the longer one is cut first, down to half of the room."""
    shorter = min(first, second, room // 2)
    longer = min(max(first, second), room - shorter)
    return (shorter, longer) if first <= second else (longer, shorter)


def in_windows(ids: Sequence[int], room: int, stride: int | None = None) -> list[Any]:
    """Return windows of up to `room` ids, each `stride` ids after the one before, until one reaches the end.

    stride: half of a window by default. Raises ValueError for one that would leave ids out.
    """
    stride = max(1, room // 2) if stride is None else stride
    if stride > room:
        problem = f"stride is {stride}, and a window has {room} tokens of text; lower it, or raise "
        raise ValueError(problem + named("max_length"))
    starts = range(0, max(1, len(ids) - room + stride), stride)
    return [ids[start : start + room] for start in starts]


def as_long(truncation: str | bool) -> str:
    """Return what a Recipe calls this `truncation`; the longest text of a pair is cut first, as for True."""
    ways = {"warn": "cut", True: "cut", "longest_first": "cut", "error": "error", False: "error"}
    if not isinstance(truncation, str | bool) or truncation not in ways:
        raise ValueError(f"truncation is {brief(truncation)}; it must be 'warn' or 'error'")
    return ways[truncation]


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
    """Return the stats of texts that became `rows`, each with this number of special tokens.

    lengths: tokens of each text before truncation, and whether these are all of its tokens. windows: rows per text.
    Raises ValueError, with its row, for the first text that is too long if `long` is "error".
    """
    too_long = [row for row, (count, _) in enumerate(lengths) if count + specials > max_length]
    if too_long and long == "error":
        count, whole = lengths[too_long[0]]
        raise RowError(
            first_row + too_long[0],
            f"has {'' if whole else 'at least '}{count + specials} tokens, more than "
            + named("max_length")
            + f" {max_length}; shorten it"
            + advice(", or use {} to cut it", long="cut"),
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
Row = TypeVar("Row")


class Rows(list[Row]):
    """A list with a row per text: batch.word_ids[1], or as a method of transformers, batch.word_ids(1)."""

    def __call__(self, number: int = 0) -> Row:
        """Return one row."""
        return self[number]


@dataclass(frozen=True, eq=False)
class Batch(Habits, Mapping[str, Any]):
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
    tokens: Rows[list[str]]
    offsets: list[list[tuple[int, int]]]
    word_ids: Rows[list[int | None]]
    truncated: int  # rows that lost tokens
    longest: int  # tokens of the longest row before truncation, special tokens included

    def __len__(self) -> int:
        return len(self.tokens)

    def __iter__(self) -> Iterator[str]:
        return iter(MODEL_INPUTS)

    def __getitem__(self, name: str) -> Any:
        if name not in vars(self):
            ours = ATTRIBUTES.get(name) or f"it has {', '.join(vars(self))}"
            raise KeyError(f"{name!r} is not in a batch; {ours}")
        return vars(self)[name]

    def to(self, device: torch.device | str) -> Self:
        """Return the same batch with its tensors on another device."""
        return replace(self, **{name: self[name].to(device) for name in TENSORS})


def pad(encoded: Tokenized, control_ids: Collection[int], id: int, token: str, least: int = 0) -> Batch:
    """Return rows with details as one batch, padded to the longest or to `least`; id, token: the padding's."""
    width = max([least, *map(len, encoded.ids)])

    def padded(rows: Iterable[list[Any]], filler: Any) -> Rows[list[Any]]:
        return Rows(row + [filler] * (width - len(row)) for row in rows)

    def tensor(rows: Iterable[list[int]], filler: int) -> Tensor:
        return torch.tensor(padded(rows, filler), dtype=torch.long).reshape(len(encoded.ids), width)

    return Batch(
        input_ids=tensor(encoded.ids, id),
        attention_mask=tensor(([1] * len(ids) for ids in encoded.ids), 0),
        token_type_ids=tensor(encoded.segments(), 0),
        special_tokens_mask=tensor(([int(id in control_ids) for id in ids] for ids in encoded.ids), 1),
        tokens=padded(encoded.details["tokens"], token),
        offsets=padded(encoded.details["offsets"], (0, 0)),
        word_ids=padded(encoded.details["word_ids"], None),
        truncated=encoded.stats.truncated,
        longest=encoded.stats.longest,
    )
