"""A look at a corpus before anything is learned from it: what would keep a loss from falling is said beforehand.

Windows from all over the file are read and made into rows as the training will make them. People who pretrain for the
first time meet the same few mistakes: each line taken for a document, so that no sentence follows another; a corpus
that repeats itself; a vocabulary that cannot write it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from minibert.losses import IGNORED
from minibert.printing import block
from minibert.tasks.base import Example
from minibert.text.masking import Masking
from minibert.text.tokenizer import Tokenizer
from minibert.train.baselines import Counts
from minibert.train.corpus import Corpus, Document
from minibert.train.pairs import LABELS, Packing

LOOKED_AT = 4  # windows
MOST_UNKNOWN = 0.5  # of the tokens: beyond that nothing is learned
MANY_UNKNOWN, MANY_REPEATED, MANY_ALONE = 0.02, 0.2, 0.5  # shares that are worth a word
LEAST_RANDOM, ENOUGH = 0.3, 20  # the share of pairs that should be random, and how many it takes to tell


@dataclass(frozen=True)
class Findings:
    """What a corpus is like, by a few of its windows."""

    documents: int
    sentences: int
    tokens: int
    rows: int
    row_tokens: float  # of a row on average, special ones included
    alone: float  # the share of documents of one sentence
    repeated: float  # of sentences that were met before
    unknown: float  # of tokens that the vocabulary cannot write
    masked: float  # of tokens that were hidden
    second: float | None  # of pairs with label 1, random or exchanged; None: no pairs
    counts: Counts = field(repr=False)

    @property
    def figures(self) -> dict[str, Any]:
        """For --json and training.json."""
        return {name: value for name, value in vars(self).items() if name != "counts"}

    @property
    def text(self) -> str:
        """For people."""
        said = [
            f"{self.documents:,} documents, {self.sentences:,} sentences, {self.tokens:,} tokens; "
            f"{self.rows:,} rows of {self.row_tokens:.0f} tokens",
            f"{self.alone:.1%} of the documents have one sentence, {self.repeated:.1%} of the sentences are repeated, "
            f"{self.unknown:.2%} of the tokens are unknown, {self.masked:.1%} are masked"
            + ("" if self.second is None else f"; {self.second:.0%} of the pairs have label 1"),
        ]
        return "\n".join([block("corpus", *said), *(block("note", note) for note in self.notes)])

    @property
    def notes(self) -> list[str]:
        """What may go wrong."""
        notes = []
        if self.unknown > MANY_UNKNOWN:
            notes.append(f"{self.unknown:.1%} of the tokens are unknown: is this the vocabulary of this language?")
        if self.repeated > MANY_REPEATED:
            notes.append(f"{self.repeated:.1%} of the sentences are repeated: they are learned by heart")
        if self.second is not None and self.alone > MANY_ALONE:
            notes.append(
                f"{self.alone:.1%} of the documents have one sentence, which nothing follows: is there an empty line "
                "after each sentence, in place of one after each document?"
            )
        return notes


def examine(corpus: Corpus, tokenizer: Tokenizer, packing: Packing, masking: Masking) -> Findings:
    """Look at a few windows. Raises ValueError for a corpus from which this objective cannot be learned."""
    lengths: list[int] = []
    sentences: Counter[str] = Counter()
    unknown = tokens = masked = maskable = 0
    rows: list[Example] = []
    documents: list[Document] = []
    labels: list[int] = []
    for number in sorted({corpus.windows * part // LOOKED_AT for part in range(LOOKED_AT)}):
        for document in corpus.documents(number):
            lengths.append(len(document))
            sentences.update(document)
        found = corpus.tokenized(number, tokenizer)
        tokens += sum(len(sentence) for document in found for sentence in document)
        unknown += sum(sentence.count(tokenizer.unk_id) for document in found for sentence in document)
        rows += packing.rows(found, Random(number))
        documents += found
    for number, row in enumerate(rows):
        hidden = masking(row.ids, 0, number)[1]
        masked += sum(label != IGNORED for label in hidden)
        maskable += sum(id not in tokenizer.control_ids for id in row.ids)
        labels += row.labels.values()
    if tokens and unknown > MOST_UNKNOWN * tokens:
        raise ValueError(
            f"{corpus.path}: {unknown / tokens:.0%} of its tokens are unknown to the vocabulary, so that nothing "
            "can be learned; learn one from it: minibert vocab"
        )
    if packing.paired:
        check_documents(corpus, lengths, LABELS[packing.objective] == "next_sentence_label", labels)
    if not rows:
        raise ValueError(f"{corpus.path} gives no row to learn from: nothing in it is a token of the vocabulary")
    return Findings(
        documents=len(lengths),
        sentences=sum(lengths),
        tokens=tokens,
        rows=len(rows),
        row_tokens=sum(len(row.ids) for row in rows) / len(rows),
        alone=lengths.count(1) / len(lengths),
        repeated=1 - len(sentences) / sentences.total(),
        unknown=unknown / max(1, tokens),
        masked=masked / max(1, maskable),
        second=sum(labels) / len(labels) if labels else None,
        counts=Counts.of(documents, max(tokenizer.vocab.values()) + 1),
    )


def check_documents(corpus: Corpus, lengths: list[int], next_sentences: bool, labels: list[int]) -> None:
    """Raise ValueError, with the format, where there are no pairs of sentences to learn from."""
    form = "a corpus has one sentence a line and an empty line between documents"
    if lengths and max(lengths) == 1:
        raise ValueError(
            f"{corpus.path}: each of the {len(lengths):,} documents has one sentence, so that none follows another; "
            f"{form} (or each line is a paragraph: --paragraphs, paragraphs=True)"
        )
    if next_sentences and len(lengths) < 2:
        raise ValueError(f"{corpus.path} is one document, and random sentences are to come from another; {form}")
    if next_sentences and len(labels) >= ENOUGH and sum(labels) < LEAST_RANDOM * len(labels):
        raise ValueError(
            f"{corpus.path}: {sum(labels) / len(labels):.0%} of the pairs are random, and half should be; "
            f"documents are too long to draw from another within {corpus.window:,} bytes: {form}"
        )
