"""The special tokens around a text or a pair, and the segment of each token.

    BERT, ALBERT, ELECTRA    [CLS] A [SEP]     [CLS] A [SEP] B [SEP]       segment 1 from B on
    RoBERTa, XLM-R           <s> A </s>        <s> A </s></s> B </s>       one segment

tokenizer.json defines the template as its post_processor. It is applied here rather than by the library because texts
are cut, counted, split into windows and packed into rows as ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers


@dataclass(frozen=True)
class SpecialTokenTemplate:
    """The ids before a text, between two, and after the last; segment: of the second text and all that follows it."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    segment: int = 1

    def specials(self, pairs: bool) -> int:
        """The number of special tokens in a row."""
        return len(self.before) + len(self.after) + pairs * len(self.between)

    def row(self, a: Sequence[Any], b: Sequence[Any] | None = None, special: Callable[[int], Any] = int) -> list[Any]:
        """The ids of a text or a pair with the special tokens; or other values of tokens, `special` of special ids."""
        before, between, after = (list(map(special, ids)) for ids in (self.before, self.between, self.after))
        return [*before, *a, *after] if b is None else [*before, *a, *between, *b, *after]

    def second(self, n: int) -> int:
        """The position of the second text in its row, after a first text of n tokens."""
        return len(self.before) + n + len(self.between)

    def segments(self, n: int, m: int | None = None) -> list[int]:
        """The segment of each token, for a row of one text of n tokens, or of a pair of n and m tokens."""
        if m is None:
            return [0] * (n + self.specials(pairs=False))
        return [0] * self.second(n) + [self.segment] * (m + len(self.after))


def read_template(
    backend: tokenizers.Tokenizer, cls: tuple[str, int], sep: tuple[str, int], source: str
) -> SpecialTokenTemplate:
    """The template of the library's post_processor, read off an encoded pair; cls, sep: a token and its id.

    Without a post_processor it is BERT's, or RoBERTa's if `cls` is <s>. Raises ValueError for any other template.
    """
    text = cls[0]  # every vocabulary has a token for this text
    alone, pair = backend.encode(text), backend.encode(text, text)
    first, second = ([i for i, side in enumerate(pair.sequence_ids) if side == number] for number in (0, 1))
    if len(first) + len(second) == len(pair):
        doubled = cls[0] == "<s>"
        return SpecialTokenTemplate((cls[1],), (sep[1],) * (1 + doubled), (sep[1],), segment=int(not doubled))
    if first and second and first[0] == 1 and second[-1] == len(pair) - 2:
        between = tuple(pair.ids[first[-1] + 1 : second[0]])
        found = SpecialTokenTemplate((pair.ids[0],), between, (pair.ids[-1],), pair.type_ids[-1])
        same = alone.ids == found.row(pair.ids[1 : first[-1] + 1])
        if same and pair.type_ids == found.segments(len(first), len(second)) and found.segment in (0, 1):
            return found
    raise ValueError(
        f"{source}: post_processor turns a pair into {' '.join(pair.tokens)} with segments {pair.type_ids}, and one "
        f"text into {' '.join(alone.tokens)}; supported are [CLS] A [SEP] B [SEP] and <s> A </s></s> B </s>"
    )
