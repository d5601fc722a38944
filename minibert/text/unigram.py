"""SentencePiece's unigram model by hand: text to ids as XLM-R, CamemBERT and ALBERT have it, in the order of things.

    "ﬁne  ｗｏｒｄｓ"
    normalise, by a table of the model                ->  "fine  words"
    split at white space, ▁ before each word          ->  ▁fine | ▁words
    of all ways to cut a word the most probable one   ->  ▁fine | ▁word s
    look each piece up in the vocabulary

Every piece has a score, the logarithm of its probability; a cut is worth the sum over its pieces, as if they were drawn
independently of each other: hence the name. The best cut is found without trying all: the best one up to some place is
the best one up to an earlier place and one piece more (Viterbi's algorithm).

The model is Kudo 2018 ("Subword Regularization", section 3.2), the table that of SentencePiece (Kudo and Richardson
2018, section 3.5). This file does what the `tokenizers` library does (0.23 Unigram, Precompiled, Metaspace), and a test
holds the two together; `Precompiled` says where they differ. This is for reading; `minibert.text.tokenizer` does the
work.
"""

from __future__ import annotations

import math
import re
import struct
import unicodedata
from collections.abc import Callable, Iterator, Sequence

from minibert.text.byte_pairs import WHITE_SPACE, cut_at_special_tokens

UNKNOWN_PENALTY = 10.0  # what a character that no piece has is worse than the worst piece

# Characters that join the one before them beside marks (M.): joiners, Thai and Lao am, half-width sound marks, tags.
JOINING = frozenset("\u200c\u200d\u0e33\u0eb3\uff9e\uff9f" + "".join(map(chr, range(0xE0020, 0xE0080))))
ALONE = ("Cc", "Cf", "Zl", "Zp")  # the categories of characters that nothing joins


def clusters(text: str) -> Iterator[str]:
    """A character and the marks on it, nearly as in Unicode's UAX 29 (see Precompiled); the first may be empty."""
    cluster = ""
    for character in text:
        mark = character in JOINING or unicodedata.category(character)[0] == "M"
        joins = mark and cluster and unicodedata.category(cluster[0]) not in ALONE
        if joins or cluster + character == "\r\n":
            cluster += character
        else:
            yield cluster
            cluster = character
    yield cluster


class Precompiled:
    """SentencePiece's table of what is written in place of what, ﬁ as fi: a trie of bytes, and the texts it leads to.

    charsmap: normalizer_spec.precompiled_charsmap of the model, or that of tokenizer.json without its base64.

    The library looks up clusters under 6 bytes as a whole (a letter with its accent), and what it finds for their
    first bytes replaces all of them; else it looks up each character. Its clusters are those of UAX 29. Here they are
    a character and its marks: that differs for signs of Myanmar and Tai Tham that join none, where one stands behind a
    character of two bytes that the table has (ª), and for marks that are newer than Python's Unicode.
    """

    def __init__(self, charsmap: bytes) -> None:
        (size,) = struct.unpack_from("<I", charsmap)
        self.units = struct.unpack_from(f"<{size // 4}I", charsmap, 4)  # a double array (darts-clone)
        self.texts = charsmap[4 + size :]  # each ends with a zero byte

    def find(self, key: str) -> str | None:
        """What the shortest beginning of `key` that the table has becomes; None where it has none."""
        place = offset(self.units[0])
        for byte in key.encode():
            place ^= byte
            if place >= len(self.units) or self.units[place] & 0x800000FF != byte or byte == 0:
                return None
            unit = self.units[place]
            place ^= offset(unit)
            if unit >> 8 & 1:  # a key ends here; where its text begins stands in the leaf
                start = self.units[place] & 0x7FFFFFFF
                return self.texts[start : self.texts.index(0, start)].decode()
        return None

    def __call__(self, text: str) -> str:
        """The text as the model knows it."""
        found = []
        for cluster in clusters(text):
            whole = self.find(cluster) if len(cluster.encode()) < 6 else None
            found += [whole] if whole is not None else [c if (x := self.find(c)) is None else x for c in cluster]
        return "".join(found)


def offset(unit: int) -> int:
    """How far the children of a unit of the double array are from it."""
    return (unit >> 10) << ((unit & 0x200) >> 6)


def lower_without_accents(text: str) -> str:
    """What ALBERT does before the table: one kind of quotes, letters without accents, in lower case.

    As the library does it for what Unicode 3.2 had (1999 to 2002); of later characters it takes some for unassigned.
    """
    text = unicodedata.normalize("NFKD", text.replace("``", '"').replace("''", '"'))
    return "".join(c.lower() for c in text if unicodedata.category(c)[0] != "M")


def split_words(text: str) -> list[str]:
    """Split at white space, write ▁ before each word, and split before each ▁ that was typed too."""
    words = [word if word.startswith("▁") else "▁" + word for word in re.split(f"[{WHITE_SPACE}]+", text) if word]
    return [part for word in words for part in re.findall("▁[^▁]*", word)]


class Unigram:
    """Pieces with their scores, which turn text into ids, without special tokens around it.

    pieces: (piece, score) by id. unknown: the id of what no piece has. normalise: from the text to what pieces are made
    of, such as a Precompiled. special_tokens are recognised where they are typed; taking_space: as in BytePairs.
    """

    def __init__(
        self,
        pieces: Sequence[tuple[str, float]],
        unknown: int,
        normalise: Callable[[str], str] = str,
        special_tokens: Sequence[str] = ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
        taking_space: Sequence[str] = ("<mask>",),
    ) -> None:
        self.vocab = {piece: id for id, (piece, _) in enumerate(pieces)}
        self.scores = dict(pieces)
        self.unknown = pieces[unknown][0]
        self.unknown_score = min(self.scores.values()) - UNKNOWN_PENALTY
        self.longest = max(map(len, self.scores))  # characters of a piece
        self.normalise = normalise
        self.special_tokens, self.taking_space = special_tokens, taking_space

    def pieces(self, word: str) -> list[str]:
        """The cut of a word with the largest sum of scores; characters that no piece has are unknown, a run as one."""
        best = [0.0] + [-math.inf] * len(word)  # score of the best cut of the first n characters
        begin = [0] * (len(word) + 1)  # where the last piece of that cut begins
        for start in range(len(word)):
            for end in range(start + 1, min(start + self.longest, len(word)) + 1):
                score = self.scores.get(word[start:end], self.unknown_score if end == start + 1 else -math.inf)
                if best[start] + score > best[end]:  # of equal cuts the one whose last piece begins first
                    best[end], begin[end] = best[start] + score, start
        pieces: list[str] = []
        end, unknown = len(word), False  # whether the piece before, behind it in the word, is unknown
        while end:
            piece = word[begin[end] : end]
            was, unknown = unknown, piece not in self.scores
            if unknown and was:
                pieces.pop()
            pieces.append(self.unknown if unknown else piece)
            end = begin[end]
        return pieces[::-1]

    def tokens(self, text: str) -> list[str]:
        """The pieces of all words of a text; a special token typed in it stays whole."""
        tokens = []
        for part in cut_at_special_tokens(text, self.special_tokens, self.taking_space):
            if (token := part.lstrip()) in self.special_tokens:
                tokens.append(token)
            else:
                tokens.extend(piece for word in split_words(self.normalise(part)) for piece in self.pieces(word))
        return tokens

    def ids(self, text: str) -> list[int]:
        """The ids of the tokens of a text."""
        return [self.vocab[token] for token in self.tokens(text)]
