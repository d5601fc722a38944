"""SentencePiece's unigram model by hand: from text to ids as in XLM-R, CamemBERT and ALBERT, step by step.

    "ﬁne  ｗｏｒｄｓ"
    normalise, by a table of the model                  ->  "fine  words"
    split at white space, ▁ before each word            ->  ▁fine | ▁words
    the most probable of all segmentations of a word    ->  ▁fine | ▁word s
    look each piece up in the vocabulary

Every piece has a score, the logarithm of its probability. The score of a segmentation is the sum over its pieces, as if
they were drawn independently, which explains the name. The best one is found without trying all: the best segmentation
up to some place is the best one up to an earlier place plus one piece (Viterbi's algorithm).

The model is from Kudo 2018 ("Subword Regularization", section 3.2), the table from SentencePiece (Kudo and
Richardson 2018, section 3.5), which the library applies: `tokenizers.normalizers.Precompiled`. The rest of this file
does what the `tokenizers` library does (0.23 Unigram, Metaspace), and a test compares the two. It is for reading;
`minibert.text.tokenizer` is the one in use.
"""

import math
import re
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise

from minibert.text.wordpiece import WHITE_SPACE, Subwords

UNKNOWN_PENALTY = 10.0  # how far the score of an unknown character is below the score of the worst piece


def split_words(text: str) -> list[str]:
    """Split at white space, put ▁ before each word, and split before each ▁ that was typed, too."""
    words = [word if word.startswith("▁") else "▁" + word for word in re.split(f"[{WHITE_SPACE}]+", text) if word]
    return [part for word in words for part in re.findall("▁[^▁]*", word)]


class Unigram(Subwords):
    """Pieces with their scores, which turn text into ids, without special tokens around it.

    pieces: (piece, score) by id. unknown: the id of characters that no piece has. normalise: the model's table, such as
    `normalizers.Precompiled(charsmap).normalize_str`. special_tokens, taking_space: see Subwords.
    """

    def __init__(
        self,
        pieces: Sequence[tuple[str, float]],
        unknown: int,
        normalise: Callable[[str], str] = str,
        special_tokens: Sequence[str] = ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
        taking_space: Sequence[str] = ("<mask>",),
    ) -> None:
        super().__init__({piece: id for id, (piece, _) in enumerate(pieces)}, special_tokens, taking_space)
        self.scores = dict(pieces)
        self.unknown = pieces[unknown][0]
        self.unknown_score = min(self.scores.values()) - UNKNOWN_PENALTY
        self.longest = max(map(len, self.scores))  # characters of a piece
        self.normalise = normalise

    def split(self, text: str) -> list[str]:
        """Return the words of a text, normalised by the model's table."""
        return split_words(self.normalise(text))

    def pieces(self, word: str) -> list[str]:
        """Return the segmentation of a word with the largest sum of scores; a run of unknowns is one token."""
        best = [0.0] + [-math.inf] * len(word)  # score of the best segmentation of the first n characters
        begin = [0] * (len(word) + 1)  # where its last piece begins
        for start in range(len(word)):
            for end in range(start + 1, min(start + self.longest, len(word)) + 1):
                score = self.scores.get(word[start:end], self.unknown_score if end == start + 1 else -math.inf)
                if best[start] + score > best[end]:  # of equal scores the one whose last piece begins first
                    best[end] = best[start] + score
                    begin[end] = start
        cuts = [len(word)]  # from the end to the beginning
        while cuts[-1]:
            cuts.append(begin[cuts[-1]])
        pieces: list[str] = []
        for known, run in groupby((word[a:b] for a, b in pairwise(reversed(cuts))), self.scores.__contains__):
            pieces.extend(run if known else [self.unknown])
        return pieces
