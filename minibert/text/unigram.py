"""SentencePiece's unigram model by hand: from text to ids as in XLM-R, CamemBERT and ALBERT, step by step.

    "ﬁne  ｗｏｒｄｓ"
    normalise, by a table of the model                  ->  "fine  words"
    split at white space, ▁ before each word            ->  ▁fine | ▁words
    the most probable of all segmentations of a word    ->  ▁fine | ▁word s
    look each piece up in the vocabulary

Every piece has a score, the logarithm of its probability. The score of a segmentation is the sum over its pieces, as if
they were drawn independently: hence the name. The best one is found without trying all: the best segmentation up to
some place is the best one up to an earlier place plus one piece (Viterbi's algorithm).

The model is that of Kudo 2018 ("Subword Regularization", section 3.2), the table that of SentencePiece (Kudo and
Richardson 2018, section 3.5), which the library applies: `tokenizers.normalizers.Precompiled`. The rest of this file
does what the `tokenizers` library does (0.23 Unigram, Metaspace), and a test compares the two. It is for reading;
`minibert.text.tokenizer` is the one in use.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from minibert.text.byte_pairs import WHITE_SPACE, cut_at_special_tokens

UNKNOWN_PENALTY = 10.0  # how far the score of an unknown character is below that of the worst piece


def split_words(text: str) -> list[str]:
    """Split at white space, put ▁ before each word, and split before each ▁ that was typed, too."""
    words = [word if word.startswith("▁") else "▁" + word for word in re.split(f"[{WHITE_SPACE}]+", text) if word]
    return [part for word in words for part in re.findall("▁[^▁]*", word)]


class Unigram:
    """Pieces with their scores, which turn text into ids, without special tokens around it.

    pieces: (piece, score) by id. unknown: the id of characters that no piece has. normalise: the model's table, such as
    `normalizers.Precompiled(charsmap).normalize_str`. special_tokens: recognised if typed in a text. taking_space: as
    in BytePairs.
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
        """The segmentation of a word with the largest sum of scores; a run of unknown characters is one token."""
        best = [0.0] + [-math.inf] * len(word)  # score of the best segmentation of the first n characters
        begin = [0] * (len(word) + 1)  # where its last piece begins
        for start in range(len(word)):
            for end in range(start + 1, min(start + self.longest, len(word)) + 1):
                score = self.scores.get(word[start:end], self.unknown_score if end == start + 1 else -math.inf)
                if best[start] + score > best[end]:  # of equal scores the one whose last piece begins first
                    best[end], begin[end] = best[start] + score, start
        pieces: list[str] = []
        end, unknown = len(word), False  # whether the piece after this one is unknown
        while end:
            piece = word[begin[end] : end]
            was, unknown = unknown, piece not in self.scores
            if unknown and was:
                pieces.pop()
            pieces.append(self.unknown if unknown else piece)
            end = begin[end]
        return pieces[::-1]

    def tokens(self, text: str) -> list[str]:
        """The pieces of all words of a text; a typed special token stays whole."""
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
