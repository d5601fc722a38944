"""Byte-level BPE by hand, RoBERTa's way from text to ids, step by step.

    "Hello world! Hello"
    split before spaces, and where letters end   ->  "Hello" | " world" | "!" | " Hello"
    bytes of UTF-8, each as one character        ->  Hello | Ġworld | ! | ĠHello        (é is two bytes, Ã©)
    merge two neighbours, as learned, repeatedly ->  H e l l o, H e ll o, ..., Hello    (and the others)
    look each piece up in the vocabulary         ->  31414, 232, 328, 20920             (roberta-base)

A text is bytes, and all 256 of them are in the vocabulary: no word is unknown, in any language. A space belongs to the
word after it, Ġ, so a word at the beginning of a text differs from the same word in the middle.

Merging follows Sennrich et al. 2016 ("Neural Machine Translation of Rare Words with Subword Units", section 3.2).
Words are split and bytes written as in GPT-2 (Radford et al. 2019, section 2.2), which RoBERTa adopted (Liu et al.
2019, section 4.4). This file does what the `tokenizers` library does (0.23 ByteLevel, BPE), and a test compares the two
on all of Unicode that Python has a table of. It is for reading; `minibert.text.tokenizer` is the one in use.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise

from minibert.text.wordpiece import WHITE_SPACE, Subwords

IS_WHITE_SPACE = re.compile(f"[{WHITE_SPACE}]")

# Words: the ends of I'm and don't, in lower case only, as GPT-2 was trained; a run of one kind, with a space before;
# white space except for its last character, which may belong to the next word. Kinds: see `kind`.
CONTRACTION = re.compile("'(?:s|t|re|ve|m|ll|d)")
RUN = re.compile(" ?L+| ?N+| ?O+|[ W]+(?![LNO])|[ W]+")


@cache
def kind(character: str) -> str:
    """Return L for a letter, N a number, " " a space, W other white space, O all else: punctuation, signs, marks."""
    if IS_WHITE_SPACE.match(character):
        return " " if character == " " else "W"
    category = unicodedata.category(character)[0]
    return category if category in "LN" else "O"


def split_words(text: str) -> list[str]:
    """Split a text into words: nothing is lost, a space is the first character of its word."""
    kinds = "".join(map(kind, text))
    words = []
    start = 0
    while start < len(text):
        match = CONTRACTION.match(text, start) or RUN.match(kinds, start)
        assert match is not None  # RUN matches every kind
        words.append(text[start : match.end()])
        start = match.end()
    return words


@cache
def byte_characters() -> list[str]:
    """Return a character for each byte: printable ones represent themselves, the others are 256 and up (space: Ġ)."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printed]
    return [chr(byte) if byte in printed else chr(256 + others.index(byte)) for byte in range(256)]


class BytePairs(Subwords):
    """A vocabulary and its merges, which turn text into ids, without <s> and </s> around it.

    vocab: piece to id, with all of `byte_characters()`. merges: pairs of pieces in the order in which they were
    learned. add_prefix_space: whether the first word of a text is treated as one in the middle. special_tokens,
    taking_space: see Subwords.
    """

    def __init__(
        self,
        vocab: Mapping[str, int],
        merges: Sequence[tuple[str, str]],
        add_prefix_space: bool = False,
        special_tokens: Sequence[str] = ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
        taking_space: Sequence[str] = ("<mask>",),
    ) -> None:
        super().__init__(vocab, special_tokens, taking_space)
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        self.add_prefix_space = add_prefix_space

    def split(self, text: str) -> list[str]:
        """Return the words of a text, the first one with a space before it if add_prefix_space is set."""
        space = " " if self.add_prefix_space and text and not text.startswith(" ") else ""
        return split_words(space + text)

    def pieces(self, word: str) -> list[str]:
        """Start with the bytes of a word and merge the pair learned first, until no pair was learned."""
        pieces = [byte_characters()[byte] for byte in word.encode()]
        while len(pieces) > 1:
            ranks = [self.ranks.get(pair, len(self.ranks)) for pair in pairwise(pieces)]
            at = ranks.index(min(ranks))  # of equal ones the leftmost
            if ranks[at] == len(self.ranks):
                break
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return pieces
