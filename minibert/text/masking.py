"""Masking: some tokens of a text are masked, to be predicted from those on both sides of them.

    ids      [CLS]  the   man   went    to    the   store   [SEP]
    chosen                       x                    x                 15 %, never a special token
    masked   [CLS]  the   man  [MASK]   to    the   apple   [SEP]       80 % [MASK], 10 % any token, 10 % unchanged
    labels   -100   -100  -100  went   -100   -100  store   -100        the original token

Devlin et al. 2018, section 3.1 (task 1) and appendix A.1. Texts in use have no [MASK]: if every chosen token became
one, nothing would ask the model to keep the words that it sees in their own vectors (tutorial 12 measures how well it
names them all the same). Each token is chosen independently with a probability of 15 %, so that the rows of a corpus
have that share on average; the authors' script masks the same number of tokens in all rows of the same length.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from minibert.inputs import IGNORED
from minibert.text.tokenizer import Tokenizer
from minibert.utils.settings import check_number

RATE = 0.15  # of the tokens are chosen
MASKED, REPLACED = 0.8, 0.1  # of the chosen ones become [MASK], or any token; the others stay


@dataclass(frozen=True)
class Masking:
    """Masks tokens of a row. Which ones depends only on seed, epoch and row."""

    mask_id: int
    special: NDArray[np.bool_]  # (V): never chosen
    ordinary: NDArray[np.int64]  # the ids that may replace a token: all that are not special
    continues: NDArray[np.bool_]  # (V): chosen together with the token before it
    rate: float = RATE
    seed: int = 0
    masked: float = MASKED  # of the chosen tokens
    replaced: float = REPLACED
    phrases: Mapping[int, Sequence[tuple[int, ...]]] = field(default_factory=dict)  # by their first token, long first

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        rate: float = RATE,
        whole_words: bool = False,
        seed: int = 0,
        phrases: Sequence[str] = (),
    ) -> Self:
        """Return a Masking with the vocabulary of a tokenizer.

        whole_words: all tokens of a word are chosen together, or none. phrases: the same for phrases, such as names of
        places (ERNIE: Sun et al. 2019, section 3.2). Raises ValueError for a rate that is not between 0 and 1.
        """
        check_number("the mask rate", rate, float, above=0, below=1)
        ids = np.unique([id for token, id in tokenizer.vocab.items() if token])  # no blank line of vocab.txt
        special = np.zeros(ids[-1] + 1, dtype=bool)
        special[list(tokenizer.control_ids)] = True
        continues = tokenizer.continues if whole_words else np.zeros_like(special)
        known: dict[int, list[tuple[int, ...]]] = {}
        for phrase in sorted((tuple(one.ids) for one in tokenizer.encode_each(phrases)), key=len, reverse=True):
            if len(phrase) > 1:
                known.setdefault(phrase[0], []).append(phrase)
        return cls(tokenizer.mask_id, special, ids[~special[ids]], continues, rate, seed, phrases=known)

    def __call__(self, ids: Sequence[int], epoch: int, row: int) -> tuple[list[int], list[int]]:
        """Return the row with masked tokens, and its labels: (S) and (S)."""
        random = np.random.default_rng([self.seed % 2**64, epoch, row])
        original = np.array(ids)
        group = self.groups(original)
        chosen = (random.random(len(ids) + 1)[group] < self.rate) & ~self.special[original]
        places = chosen.nonzero()[0]
        fate = random.random(len(places))
        replaced = places[(fate >= self.masked) & (fate < self.masked + self.replaced)]
        masked = original.copy()
        masked[places[fate < self.masked]] = self.mask_id
        masked[replaced] = random.choice(self.ordinary, len(replaced))
        return masked.tolist(), np.where(chosen, original, IGNORED).tolist()

    def groups(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return (S): a number for each token, at most S; tokens with the same number are chosen together.

        A group may begin with a special token, which is never chosen.
        """
        continues = self.continues[ids]
        place = 0
        row = ids.tolist() if self.phrases else []
        while place < len(row):
            found = next((p for p in self.phrases.get(row[place], ()) if tuple(row[place : place + len(p)]) == p), (0,))
            continues[place + 1 : place + len(found)] = True
            place += len(found)
        return np.cumsum(~continues)


def unmasked(ids: Sequence[int], labels: Sequence[int]) -> list[int]:
    """Return the row before masking."""
    return [id if label == IGNORED else label for id, label in zip(ids, labels, strict=True)]
