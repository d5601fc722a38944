"""The batches of a corpus: read, tokenized, packed into rows and masked; memory does not grow with the corpus.

Documents become rows of one text or two, of as many sentences as fit:

    document         a . b . c . d . e .
    one text         [CLS] a . b . c . [SEP]
    next-sentence    [CLS] a . [SEP] b . c . [SEP]                0: the second text follows the first
                     [CLS] a . [SEP] x . y . [SEP]                1: it is from another document
    sentence-order   [CLS] b . c . [SEP] a . [SEP]                1: the two are swapped

Devlin et al. 2018, appendix A.2, and the authors' script: a row is filled with sentences up to max_length, except for
10 % of the rows, which are shorter, so that the model sees short texts too; half of all second texts come from another
document; pairs that are too long lose tokens of the longer text, at its beginning or its end. Sentence order is that
of ALBERT (Lan et al. 2019, section 3.1).

Every window of the corpus is read once in a pass, in an order that the seed determines, and its rows are shuffled. A
thread prepares the rows of the next window while the model computes. Each batch is a function of its number, so a
killed run resumes where it was: the number of rows of each window is written to a journal, and windows of earlier
batches are not read again. Of several ranks (distributed.py) each reads its own windows and gives its shard of
each batch, so the batches depend on the number of ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random

from minibert.kernels.packing import map_ahead
from minibert.tasks.base import Example
from minibert.text.masking import Masking
from minibert.text.template import SpecialTokenTemplate
from minibert.text.tokenizer import Tokenizer
from minibert.train.batches import Batch, collate, order
from minibert.train.corpus import Corpus, Document

SHORT = 0.1  # of the rows are made for a random shorter length
SHORTEST = 2  # tokens of text


@dataclass(frozen=True)
class Packing:
    """How rows are made of documents."""

    pairing: str | None  # None: rows have one text; "next-sentence" or "sentence-order": two
    max_length: int  # tokens of a row, special tokens included
    template: SpecialTokenTemplate

    @property
    def text_length(self) -> int:
        """The most tokens of text in a row."""
        return self.max_length - self.template.specials(self.pairing is not None)

    def rows(self, documents: Sequence[Document], random: Random) -> list[Example]:
        """The rows of these documents, shuffled."""
        found = [row for number in range(len(documents)) for row in self.document_rows(documents, number, random)]
        random.shuffle(found)
        return found

    def document_rows(self, documents: Sequence[Document], number: int, random: Random) -> Iterator[Example]:
        """The rows of one of the documents."""
        document, first, most = documents[number], 0, self.text_length
        if self.pairing is None:
            document = [[id] for id in joined(document)]  # a single text may end anywhere, and no token is lost
        while first < len(document):
            target = random.randint(min(SHORTEST, most), most) if random.random() < SHORT else most
            after = end_of_text(document, first, target)
            if self.pairing is None:
                ids = joined(document[first:after])
                yield Example(self.template.row(ids), self.template.segments(len(ids)))
            elif self.pairing == "sentence-order":
                yield self.ordered_or_swapped(document[first:after], random)
            elif len(documents) > 1 or after - first > 1:
                row, after = self.next_or_random(documents, number, first, after, target, random)
                yield row
            first = after

    def next_or_random(
        self, documents: Sequence[Document], number: int, first: int, after: int, target: int, random: Random
    ) -> tuple[Example, int]:
        """Two texts, the second of which follows the first or is from another document; and where to continue."""
        document = documents[number]
        cut = first + 1 if after - first == 1 else random.randint(first + 1, after - 1)
        a = joined(document[first:cut])
        if len(documents) == 1 or (cut < after and random.random() < 0.5):
            return self.pair(a, joined(document[cut:after]), 0, random), after
        other = documents[(number + random.randint(1, len(documents) - 1)) % len(documents)]
        begin = random.randrange(len(other))
        b = joined(other[begin : end_of_text(other, begin, max(SHORTEST, target - len(a)))])
        return self.pair(a, b, 1, random), cut  # the sentences after the cut are used in the next row

    def ordered_or_swapped(self, sentences: Sequence[list[int]], random: Random) -> Example:
        """Two consecutive texts, in order or swapped; a single sentence is cut in two."""
        if len(sentences) > 1:
            cut = random.randint(1, len(sentences) - 1)
            a, b = joined(sentences[:cut]), joined(sentences[cut:])
        else:
            cut = random.randint(1, max(1, len(sentences[0]) - 1))
            a, b = sentences[0][:cut], sentences[0][cut:]
        swapped = random.random() < 0.5
        return self.pair(b, a, 1, random) if swapped else self.pair(a, b, 0, random)

    def pair(self, a: list[int], b: list[int], label: int, random: Random) -> Example:
        """[CLS] a [SEP] b [SEP], cut to max_length."""
        a, b = cut_pair(a, b, self.text_length, random)
        name = f"{str(self.pairing).replace('-', '_')}_label"
        return Example(self.template.row(a, b), self.template.segments(len(a), len(b)), {name: label})


def end_of_text(document: Document, first: int, target: int) -> int:
    """The end of the sentences from `first` on that have at least `target` tokens, or of the document."""
    lengths = itertools.accumulate(len(sentence) for sentence in document[first:])
    return next((end for end, length in enumerate(lengths, start=first + 1) if length >= target), len(document))


def joined(sentences: Sequence[list[int]]) -> list[int]:
    """The tokens of sentences, concatenated."""
    return [id for sentence in sentences for id in sentence]


def cut_pair(a: list[int], b: list[int], most: int, random: Random) -> tuple[list[int], list[int]]:
    """Remove tokens of the longer text, at its beginning or end, until at most `most` are left."""
    starts, ends = [0, 0], [len(a), len(b)]
    while sum(ends) - sum(starts) > most:
        longer = int(ends[1] - starts[1] >= ends[0] - starts[0])
        if random.random() < 0.5:
            starts[longer] += 1
        else:
            ends[longer] -= 1
    return a[starts[0] : ends[0]], b[starts[1] : ends[1]]


@dataclass(frozen=True)
class Stream:
    """As many batches of a corpus as wanted, over as many passes as that takes: a single epoch."""

    corpus: Corpus
    tokenizer: Tokenizer
    packing: Packing
    masking: Masking
    batch_size: int  # rows, of all ranks together
    batches_per_epoch: int  # batches in all
    seed: int
    pad_id: int
    journal: Path | None = None  # file for the number of rows of each window; None: none
    counts: list[int] = field(default_factory=list)  # rows of each window read so far, in the order of reading
    rank: int = 0  # the rank whose windows are read and whose rows are given
    ranks: int = 1

    @property
    def windows(self) -> range:
        """The windows that this rank reads."""
        return range(self.rank, self.corpus.windows, self.ranks)

    def epoch_batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """The batches from number `first` on."""
        rows = self.rows(first * (self.batch_size // self.ranks))
        for number in range(first, self.batches_per_epoch):
            numbers = range(number * self.batch_size, (number + 1) * self.batch_size)[self.rank :: self.ranks]
            batch = [masked(row, self.masking, at) for at, row in zip(numbers, rows, strict=False)]
            yield collate(batch, numbers, self.pad_id)

    def rows(self, first: int) -> Iterator[Example]:
        """The rows from number `first` on, without end. Raises ValueError for a corpus that gives none."""
        counts = self.known_counts
        window = before = 0
        while window < len(counts) and before + counts[window] <= first:
            before, window = before + counts[window], window + 1
        for number, rows in enumerate(map_ahead(self.window_rows, itertools.count(window)), start=window):
            if number == len(counts):
                counts.append(len(rows))
                if not any(counts[-len(self.windows) :]):
                    raise ValueError(f"{self.corpus.path} gives no row to learn from")
                if self.journal is not None:
                    with self.journal.open("a", encoding="ascii") as file:
                        file.write(f"{len(rows)}\n")
            yield from rows[max(0, first - before) :]
            before += len(rows)

    def window_rows(self, number: int) -> list[Example]:
        """The rows of the window that is read as the `number`-th of all passes."""
        turn, index = divmod(number, len(self.windows))
        window = self.windows[order(len(self.windows), self.seed, turn)[index]]
        return self.packing.rows(self.corpus.tokenized(window, self.tokenizer), Random(f"{self.seed} {turn} {window}"))

    @cached_property
    def known_counts(self) -> list[int]:
        """`counts`, with those of the journal; its last line does not count where a kill cut it off."""
        if self.journal is not None and self.journal.exists():
            lines = self.journal.read_text(encoding="ascii").split("\n")[:-1]
            self.journal.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
            self.counts[:] = map(int, lines)
        return self.counts


def masked(row: Example, masking: Masking, number: int) -> Example:
    """A row with masked tokens; they depend on its number, so they differ each time a sentence is used."""
    ids, labels = masking(row.ids, 0, number)
    return Example(ids, row.segments, {**row.labels, "labels": labels})
