"""Statistics of a corpus before training: problems that would keep the loss from falling, and baselines to beat.

A few windows from all over the file are made into rows as in training. Frequent mistakes: each line is a document, so
that no sentence follows another; much of the corpus is repeated; the vocabulary is of another language.

Masked tokens can be predicted without a model, by their frequency and by the token before:

    unigram    p(w)          = (count(w) + 1) / (all + V)
    bigram     p(w | before) = (count(before, w) + K p(w)) / (count(before) + K)

A masked language model that does not beat the second has learned nothing of the context. K smooths the counts of unseen
pairs (Bayesian smoothing with a Dirichlet prior: MacKay and Peto 1995).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from random import Random

from minibert.losses import IGNORED
from minibert.printing import block
from minibert.tasks.base import Example
from minibert.text.masking import Masking
from minibert.text.tokenizer import Tokenizer
from minibert.train.batches import Packing, joined
from minibert.train.corpus import FORMAT, Corpus, Document

WINDOWS = 4  # that are read
MOST_UNKNOWN = 0.5  # of the tokens: beyond that nothing can be learned
MANY_REPEATED, MANY_ALONE = 0.2, 0.5  # fractions that are worth a note
LEAST_RANDOM, ENOUGH = 0.3, 20  # the fraction of pairs that should be random, and how many pairs it takes to judge
PRIOR = 50.0  # K


@dataclass(frozen=True)
class CorpusStats:
    """Statistics of a few windows of a corpus."""

    documents: int
    sentences: int
    tokens: int
    rows: int
    row_tokens: float  # mean tokens of a row, special tokens included
    alone: float  # fraction of documents of one sentence
    repeated: float  # of sentences seen before
    unknown: float  # of tokens that are not in the vocabulary
    masked: float  # of tokens that are predicted
    second: float | None  # of pairs with label 1, random or swapped; None: no pairs

    @property
    def text(self) -> str:
        """For people, with notes on possible problems."""
        lines = [
            f"{self.documents:,} documents, {self.sentences:,} sentences, {self.tokens:,} tokens; "
            f"{self.rows:,} rows of {self.row_tokens:.0f} tokens",
            f"{self.alone:.1%} of the documents have one sentence, {self.repeated:.1%} of the sentences are repeated, "
            f"{self.unknown:.2%} of the tokens are unknown, {self.masked:.1%} are masked"
            + ("" if self.second is None else f"; {self.second:.0%} of the pairs have label 1"),
        ]
        notes = {
            f"{self.repeated:.1%} of the sentences are repeated: they will be memorized": self.repeated > MANY_REPEATED,
            f"{self.alone:.1%} of the documents have one sentence, so no sentence follows it: is there an empty line "
            "after each sentence, instead of after each document?": self.second is not None and self.alone > MANY_ALONE,
        }
        return "\n".join([block("corpus", *lines), *(block("note", note) for note, holds in notes.items() if holds)])


def examine(
    corpus: Corpus, tokenizer: Tokenizer, packing: Packing, masking: Masking
) -> tuple[CorpusStats, list[Document]]:
    """The statistics of a few windows of a corpus, and their documents.

    Raises ValueError for a corpus from which nothing can be learned with these rows.
    """
    windows = sorted({corpus.windows * part // WINDOWS for part in range(WINDOWS)})
    texts = [document for number in windows for document in corpus.documents(number)]
    sentences, alone = Counter(chain.from_iterable(texts)), sum(len(document) == 1 for document in texts)
    rows: list[Example] = []
    tokenized: list[Document] = []
    for number in windows:
        documents = corpus.tokenized(number, tokenizer)
        tokenized += documents
        rows += packing.rows(documents, Random(number))
    ids = [id for document in tokenized for id in joined(document)]
    labels = [label for row in rows for label in row.labels.values()]
    unknown = ids.count(tokenizer.unk_id) / max(1, len(ids))
    if unknown > MOST_UNKNOWN:
        raise ValueError(
            f"{corpus.path}: {unknown:.0%} of its tokens are unknown to the vocabulary, so nothing can be learned; "
            "learn a vocabulary from it: minibert vocab"
        )
    if packing.pairing:
        check_pairs(corpus, len(texts), alone, packing.pairing == "next-sentence", labels)
    if not rows:
        raise ValueError(f"{corpus.path} gives no row to learn from: it has no token of the vocabulary")
    chosen = sum(label != IGNORED for number, row in enumerate(rows) for label in masking(row.ids, 0, number)[1])
    ordinary = sum(id not in tokenizer.control_ids for row in rows for id in row.ids)
    stats = CorpusStats(
        documents=len(texts),
        sentences=sentences.total(),
        tokens=len(ids),
        rows=len(rows),
        row_tokens=sum(len(row.ids) for row in rows) / len(rows),
        alone=alone / len(texts),
        repeated=1 - len(sentences) / sentences.total(),
        unknown=unknown,
        masked=chosen / max(1, ordinary),
        second=sum(labels) / len(labels) if labels else None,
    )
    return stats, tokenized


def check_pairs(corpus: Corpus, documents: int, alone: int, next_sentence: bool, labels: list[int]) -> None:
    """Raise ValueError, with the format, where there are no pairs of sentences to learn from."""
    if documents and alone == documents:
        raise ValueError(
            f"{corpus.path}: each of the {documents:,} documents has one sentence, so that none follows another; "
            f"{FORMAT} (or each line is a paragraph: --paragraphs, paragraphs=True)"
        )
    if next_sentence and documents < 2:
        raise ValueError(f"{corpus.path} is one document, and random sentences must come from another; {FORMAT}")
    if next_sentence and len(labels) >= ENOUGH and sum(labels) < LEAST_RANDOM * len(labels):
        raise ValueError(
            f"{corpus.path}: {sum(labels) / len(labels):.0%} of the pairs are random, and half should be; "
            f"documents are too long to draw from another within {corpus.window:,} bytes: {FORMAT}"
        )


def baselines(documents: Sequence[Document], vocabulary_size: int, rows: Sequence[Example]) -> dict[str, float]:
    """Nats a masked token: the mean of -log p over the masked tokens of the rows, by counts of the documents."""
    texts = [joined(document) for document in documents]
    tokens = Counter(chain.from_iterable(texts))
    pairs = Counter(pair for ids in texts for pair in pairwise(ids))
    before = Counter(id for ids in texts for id in ids[:-1])
    sums: Counter[str] = Counter()
    for row in rows:
        for at, token in enumerate(row.labels["labels"]):
            if token != IGNORED:
                left = row.ids[at - 1]  # never seen where it is masked itself: then the bigram is the unigram
                unigram = (tokens[token] + 1) / (tokens.total() + vocabulary_size)
                bigram = (pairs[left, token] + PRIOR * unigram) / (before[left] + PRIOR)
                sums.update({"unigram": -math.log(unigram), "bigram": -math.log(bigram), "": 1})
    return {name: sums[name] / max(1, sums[""]) for name in ("unigram", "bigram")}
