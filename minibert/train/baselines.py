"""What a hidden word can be guessed by without a model: by how frequent it is, and by the word before it.

    unigram    p(w)          = (count(w) + 1) / (all + V)
    bigram     p(w | before) = (count(before, w) + K p(w)) / (count(before) + K)

A masked language model that does not beat the second one has learned nothing of the text around a word. Counted on
windows of the corpus that it learns from, asked about the same hidden words of the held-out text. K makes up for pairs
that were never seen (Bayesian smoothing with a Dirichlet prior: MacKay and Peto 1995).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from minibert.losses import IGNORED
from minibert.tasks.base import Example
from minibert.train.corpus import Document

PRIOR = 50.0  # K


@dataclass(frozen=True)
class Counts:
    """How often tokens, and pairs of neighbours, stand in some documents."""

    tokens: Counter[int]
    pairs: Counter[tuple[int, int]]
    before: Counter[int]  # how often a token has another behind it
    total: int
    vocabulary: int  # V

    @classmethod
    def of(cls, documents: Sequence[Document], vocabulary: int) -> Counts:
        """Count. Neighbours are those of a document, across its sentences."""
        tokens: Counter[int] = Counter()
        pairs: Counter[tuple[int, int]] = Counter()
        before: Counter[int] = Counter()
        for document in documents:
            ids = [id for sentence in document for id in sentence]
            tokens.update(ids)
            pairs.update(pairwise(ids))
            before.update(ids[:-1])
        return cls(tokens, pairs, before, tokens.total(), vocabulary)

    def unigram(self, token: int) -> float:
        """p(w)."""
        return (self.tokens[token] + 1) / (self.total + self.vocabulary)

    def bigram(self, before: int, token: int) -> float:
        """p(w | before), which is p(w) where `before` was never seen, as [MASK] and [CLS] were not."""
        return (self.pairs[before, token] + PRIOR * self.unigram(token)) / (self.before[before] + PRIOR)


def losses(counts: Counts, rows: Sequence[Example]) -> dict[str, float]:
    """Nats a hidden word: the mean of -log p over the words that are hidden in the rows, by unigram and bigram."""
    hidden = [
        (row.ids[place - 1], label)
        for row in rows
        for place, label in enumerate(row.labels["labels"])
        if label != IGNORED
    ]
    count = max(1, len(hidden))
    return {
        "unigram": -sum(math.log(counts.unigram(token)) for _, token in hidden) / count,
        "bigram": -sum(math.log(counts.bigram(before, token)) for before, token in hidden) / count,
    }
