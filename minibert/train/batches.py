"""Rows of token ids to batches, from two sources: the examples of a task, and a corpus.

Each batch is a function of its number and the seed, so that training can begin anywhere. B batch, S tokens.

Batches are padded examples, in an order that seed and epoch determine. A Stream reads a corpus, tokenizes it, packs it
into rows and masks them; memory does not grow with the corpus. Documents become rows of one text or two, of as many
sentences as fit:

    document         a . b . c . d . e .
    one text         [CLS] a . b . c . [SEP]
    next-sentence    [CLS] a . [SEP] b . c . [SEP]                0: the second text follows the first
                     [CLS] a . [SEP] x . y . [SEP]                1: it is from another document
    sentence-order   [CLS] b . c . [SEP] a . [SEP]                1: the two are swapped

Devlin et al. 2018, appendix A.2, and the authors' script: a row is filled with sentences up to max_length, except for
10 % of the rows, which are shorter, so that the model sees short texts too; half of all second texts come from another
document; pairs that are too long lose tokens of the longer text, at its beginning or its end. Sentence order
follows ALBERT (Lan et al. 2019, section 3.1); its script pairs a single sentence with a text of another document, whose
label then tells the topic, not the order: here it is cut in two.

Every window of the corpus is read once in a pass, in an order that the seed determines, and its rows are shuffled. A
thread prepares the rows of the next window while the model computes. The number of rows of each window is written to a
journal, so that a resumed run does not read the windows of earlier batches again. With several ranks (distributed.py)
each reads its own windows and gives its shard of each batch, so the batches depend on the number of ranks.
"""

from __future__ import annotations

import itertools
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import ClassVar

import torch

from minibert.kernels.packing import map_ahead
from minibert.prediction.collate import ExampleBatch, collate
from minibert.tasks.base import Augmentation, Example
from minibert.text.masking import Masking
from minibert.text.tokenized import SpecialTokenTemplate
from minibert.text.tokenizer import Tokenizer
from minibert.train.corpus import CorpusFile, Document
from minibert.utils.files import write_text_atomically

SHORT = 0.1  # of the rows of a corpus are made for a random shorter length
SHORTEST = 2  # tokens of text


def epoch_order(count: int, seed: int, epoch: int) -> list[int]:
    """Return the order of the rows in an epoch, a permutation of 0 .. count - 1."""
    random = torch.Generator().manual_seed(seed * 1_000_003 + epoch)  # independent of all other random numbers
    return torch.randperm(count, generator=random).tolist()


@dataclass(frozen=True)
class Batches:
    """All batches of all epochs; each is a function of its number, so that training can begin anywhere."""

    examples: Sequence[Example]
    batch_size: int
    seed: int
    pad_id: int
    choices: int = 0
    augment: Augmentation | None = None
    rank: int = 0  # the rank whose rows of each batch are given
    ranks: int = 1

    @property
    def rows(self) -> int:
        """The number of texts, or of questions."""
        return len(self.examples) // max(self.choices, 1)

    @property
    def batches_per_epoch(self) -> int:
        """The number of batches in an epoch; the last may be smaller."""
        return -(-self.rows // self.batch_size)

    def epoch_batches(self, epoch: int, first: int = 0) -> Iterator[ExampleBatch]:
        """Yield the batches of an epoch from number `first` on."""
        shuffled = epoch_order(self.rows, self.seed, epoch)
        for start in range(first * self.batch_size, self.rows, self.batch_size):
            yield self.of_rows(shuffled[start : start + self.batch_size], epoch).shard(self.rank, self.ranks)

    def of_rows(self, rows: Sequence[int], epoch: int = 0) -> ExampleBatch:
        """Return the batch of these rows."""
        width = max(self.choices, 1)
        numbers = [row * width + choice for row in rows for choice in range(width)]
        examples = [self.examples[number] for number in numbers]
        if self.augment is not None:
            examples = [self.augment(example, epoch, number) for example, number in zip(examples, numbers, strict=True)]
        return collate(examples, rows, self.pad_id, self.choices)


# ---------------------------------------------------------------------------------------------------------------
# A corpus


class Pairing(ABC):
    """How the two texts of a row belong together, which the model predicts."""

    name: ClassVar[str]  # of the loss
    label: ClassVar[str]  # the argument of the task head

    @abstractmethod
    def row(
        self, packing: Packing, documents: Sequence[Document], number: int, span: range, target: int, random: Random
    ) -> tuple[Example | None, int]:
        """Return a row of these sentences of a document, and the sentence at which the next row begins.

        target: tokens of the row. None: what is left of the document cannot be two texts.
        """


class NextSentencePairs(Pairing):
    """The second text follows the first, or is from another document."""

    name = "next-sentence"
    label = "next_sentence_label"

    def row(
        self, packing: Packing, documents: Sequence[Document], number: int, span: range, target: int, random: Random
    ) -> tuple[Example | None, int]:
        """Return the row; the sentences that a random second text replaced are used in the next one."""
        document = documents[number]
        first = span.start
        after = span.stop
        if len(documents) == 1 and after - first == 1:
            return None, after
        cut = first + 1 if after - first == 1 else random.randint(first + 1, after - 1)
        a = one_text(document[first:cut])
        if len(documents) == 1 or (cut < after and random.random() < 0.5):
            return packing.pair(a, one_text(document[cut:after]), {self.label: 0}, random), after
        other = documents[(number + random.randint(1, len(documents) - 1)) % len(documents)]
        begin = random.randrange(len(other))
        b = one_text(other[begin : end_of_text(other, begin, max(SHORTEST, target - len(a)))])
        return packing.pair(a, b, {self.label: 1}, random), cut


class SentenceOrder(Pairing):
    """Two consecutive texts, in order or swapped."""

    name = "sentence-order"
    label = "sentence_order_label"

    def row(
        self, packing: Packing, documents: Sequence[Document], number: int, span: range, target: int, random: Random
    ) -> tuple[Example | None, int]:
        """Return the row; a single sentence is cut in two."""
        document = documents[number]
        after = span.stop
        if list(map(len, document[after : after + 2])) == [1]:
            after += 1  # a last sentence of one token has no room for two texts
        sentences = document[span.start : after]
        if len(sentences) > 1:
            cut = random.randint(1, len(sentences) - 1)
            a = one_text(sentences[:cut])
            b = one_text(sentences[cut:])
        elif len(sentences[0]) > 1:
            cut = random.randint(1, len(sentences[0]) - 1)
            a = sentences[0][:cut]
            b = sentences[0][cut:]
        else:
            return None, after
        if random.random() < 0.5:
            return packing.pair(b, a, {self.label: 1}, random), after
        return packing.pair(a, b, {self.label: 0}, random), after


@dataclass(frozen=True)
class Packing:
    """How rows are made of documents."""

    pairing: Pairing | None  # None: rows have one text
    max_length: int  # tokens of a row, special tokens included
    template: SpecialTokenTemplate
    by_sentence: bool = False  # each row has one sentence

    @property
    def text_length(self) -> int:
        """The most tokens of text in a row."""
        return self.max_length - self.template.specials(self.pairing is not None)

    def rows(self, documents: Sequence[Document], random: Random) -> list[Example]:
        """Return the rows of these documents, shuffled."""
        if self.by_sentence:
            documents = [[sentence] for document in documents for sentence in document]
        rows = [row for number in range(len(documents)) for row in self.document_rows(documents, number, random)]
        random.shuffle(rows)
        return rows

    def document_rows(self, documents: Sequence[Document], number: int, random: Random) -> Iterator[Example]:
        """Yield the rows of one of the documents."""
        document = documents[number]
        first = 0
        most = self.text_length
        if self.pairing is None:
            document = [[id] for id in one_text(document)]  # a single text may end anywhere, and no token is lost
        while first < len(document):
            target = random.randint(min(SHORTEST, most), most) if random.random() < SHORT else most
            after = end_of_text(document, first, target)
            if self.pairing is None:
                ids = one_text(document[first:after])
                yield Example(self.template.row(ids), self.template.segments(len(ids)))
            else:
                row, after = self.pairing.row(self, documents, number, range(first, after), target, random)
                if row is not None:
                    yield row
            first = after

    def pair(self, a: list[int], b: list[int], labels: Mapping[str, int], random: Random) -> Example:
        """Return the row [CLS] a [SEP] b [SEP], cut to max_length."""
        a, b = cut_pair(a, b, self.text_length, random)
        return Example(self.template.row(a, b), self.template.segments(len(a), len(b)), dict(labels))


def end_of_text(document: Document, first: int, target: int) -> int:
    """Return the end of the sentences from `first` on that have at least `target` tokens, or of the document."""
    lengths = itertools.accumulate(len(sentence) for sentence in document[first:])
    return next((end for end, length in enumerate(lengths, start=first + 1) if length >= target), len(document))


def one_text(sentences: Sequence[list[int]]) -> list[int]:
    """Return the tokens of sentences, concatenated."""
    return [id for sentence in sentences for id in sentence]


def cut_pair(a: list[int], b: list[int], most: int, random: Random) -> tuple[list[int], list[int]]:
    """Remove tokens of the longer text, at its beginning or end, until at most `most` are left."""
    a, b = list(a), list(b)
    while len(a) + len(b) > most:
        longer = a if len(a) > len(b) else b
        longer.pop(0 if random.random() < 0.5 else -1)
    return a, b


@dataclass(frozen=True)
class Stream:
    """As many batches of a corpus as wanted, over as many passes as that takes: a single epoch."""

    corpus: CorpusFile
    tokenizer: Tokenizer
    packing: Packing
    masking: Masking
    batch_size: int  # rows, of all ranks together
    batches_per_epoch: int  # batches in all
    seed: int
    pad_id: int
    journal: Path | None = None  # file for the number of rows of each window, in the order of reading; None: none
    rank: int = 0  # the rank whose windows are read and whose rows are given
    ranks: int = 1

    @property
    def windows(self) -> range:
        """The windows that this rank reads."""
        return range(self.rank, self.corpus.windows, self.ranks)

    def epoch_batches(self, epoch: int, first: int = 0) -> Iterator[ExampleBatch]:
        """Yield the batches from number `first` on."""
        rows = self.rows(first * (self.batch_size // self.ranks))
        for number in range(first, self.batches_per_epoch):
            numbers = range(number * self.batch_size, (number + 1) * self.batch_size)[self.rank :: self.ranks]
            batch = [masked(row, self.masking, at) for at, row in zip(numbers, rows, strict=False)]
            yield collate(batch, numbers, self.pad_id)

    def rows(self, first: int) -> Iterator[Example]:
        """Yield the rows from number `first` on, without end. Raises ValueError for a corpus that gives none."""
        counts = read_journal(self.journal) if self.journal is not None and self.journal.exists() else []
        window = before = 0
        while window < len(counts) and before + counts[window] <= first:
            before += counts[window]
            window += 1
        for number, rows in enumerate(map_ahead(self.window_rows, itertools.count(window)), start=window):
            if number == len(counts):
                counts.append(len(rows))
                if not any(counts[-len(self.windows) :]):
                    raise ValueError(f"{self.corpus.path} gives no row to learn from")
                if self.journal is not None:
                    write_journal(self.journal, counts)
            yield from rows[max(0, first - before) :]
            before += len(rows)

    def window_rows(self, number: int) -> list[Example]:
        """Return the rows of the window that is read as the `number`-th of all passes."""
        turn, index = divmod(number, len(self.windows))
        window = self.windows[epoch_order(len(self.windows), self.seed, turn)[index]]
        return self.packing.rows(self.corpus.tokenized(window, self.tokenizer), Random(f"{self.seed} {turn} {window}"))


def write_journal(path: Path, counts: Sequence[int]) -> None:
    """Write the number of rows of each window, and their CRC-32: a wrong number would shift all later batches."""
    text = "\n".join(map(str, counts))
    write_text_atomically(path, f"{text}\ncrc32 {zlib.crc32(text.encode())}\n")


def read_journal(path: Path) -> list[int]:
    """Return the number of rows of each window; [] after a warning if the checksum is wrong: they are counted again."""
    text, _, crc = path.read_text("ascii", errors="replace").partition("\ncrc32 ")
    if crc.strip() == str(zlib.crc32(text.encode())):
        return [int(count) for count in text.split()]
    warnings.warn(f"{path} is damaged; its windows are read again", stacklevel=2)
    return []


def masked(row: Example, masking: Masking, number: int) -> Example:
    """Return a row with masked tokens; they depend on its number, so they differ each time a sentence is used."""
    ids, labels = masking(row.ids, 0, number)
    return Example(ids, row.segments, {**row.labels, "labels": labels})
