"""What stands around the texts: the special tokens that say where a text begins, and where the next one does.

    BERT, ALBERT, ELECTRA    [CLS] A [SEP]     [CLS] A [SEP] B [SEP]       B and what follows in segment 1
    RoBERTa, XLM-R           <s> A </s>        <s> A </s></s> B </s>       one segment

tokenizer.json says it as its post_processor. The library could do the framing, but not after texts were cut and counted
here: it is asked once what it would do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import tokenizers

T = TypeVar("T")


@dataclass(frozen=True)
class Framing:
    """The ids before a text, between two, and after the last; segment: that of the second text and all behind it."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    segment: int = 1

    def specials(self, pairs: bool) -> int:
        """How many special tokens a row has."""
        return len(self.before) + len(self.after) + pairs * len(self.between)

    def row(self, a: Sequence[int], b: Sequence[int] | None = None) -> list[int]:
        """The ids of a text or a pair with the special ones."""
        return self.around(a, b, lambda id: id)

    def around(self, a: Sequence[T], b: Sequence[T] | None, special: Callable[[int], T]) -> list[T]:
        """What is said of each token of a row: of its texts a and b, and `special` of the special ones, by id."""
        before, between, after = (list(map(special, ids)) for ids in (self.before, self.between, self.after))
        return [*before, *a, *after] if b is None else [*before, *a, *between, *b, *after]

    def second(self, n: int) -> int:
        """Where in its row the second text begins, behind a first one of n tokens."""
        return len(self.before) + n + len(self.between)

    def segments(self, n: int, m: int | None = None) -> list[int]:
        """The segment of each token of a row of n and m tokens; m is None: of one text."""
        if m is None:
            return [0] * (n + self.specials(pairs=False))
        return [0] * self.second(n) + [self.segment] * (m + len(self.after))


def read_framing(backend: tokenizers.Tokenizer, cls: tuple[str, int], sep: tuple[str, int], source: str) -> Framing:
    """The framing that the library would give, read off a pair; cls, sep: these tokens and their ids.

    Where tokenizer.json says nothing of it, it is that of BERT, or of RoBERTa if `cls` is called <s>. Raises ValueError
    for one that no relative of BERT has.
    """
    text = cls[0]  # whatever the vocabulary is, it makes a token or more of this
    alone, pair = backend.encode(text), backend.encode(text, text)
    first, second = ([i for i, side in enumerate(pair.sequence_ids) if side == wanted] for wanted in (0, 1))
    if len(first) + len(second) == len(pair):
        doubled = cls[0] == "<s>"
        return Framing((cls[1],), (sep[1],) * (1 + doubled), (sep[1],), segment=int(not doubled))
    if first and second and first[0] == 1 and second[-1] == len(pair) - 2:
        between = tuple(pair.ids[first[-1] + 1 : second[0]])
        found = Framing((pair.ids[0],), between, (pair.ids[-1],), pair.type_ids[-1])
        same = alone.ids == found.row(pair.ids[1 : first[-1] + 1])
        if same and pair.type_ids == found.segments(len(first), len(second)) and found.segment in (0, 1):
            return found
    raise ValueError(
        f"{source}: post_processor makes {' '.join(pair.tokens)} of a pair, in segments {pair.type_ids}, and "
        f"{' '.join(alone.tokens)} of one text; it must be [CLS] A [SEP] B [SEP] or <s> A </s></s> B </s>, of which "
        "one text has the first token and the last, in segments 0 and then 0 or 1"
    )
