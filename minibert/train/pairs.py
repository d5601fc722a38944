"""Documents to rows: sentences packed together as far as there is room, one text a row or two.

    document     a . b . c . d . e .
    mlm          [CLS] a . b . c . [SEP]                      one text
    mlm+nsp      [CLS] a . [SEP] b . c . [SEP]                0: the second text follows the first
                 [CLS] a . [SEP] x . y . [SEP]                1: it is from another document
    mlm+sop      [CLS] b . c . [SEP] a . [SEP]                1: the two have changed places

Devlin et al. 2018, appendix A.2, and the script of its authors: a row is filled with sentences up to max_length, but
for 10 % of the rows, which are shorter, so that the model meets short texts too; half of all second texts come from
another document; too long pairs lose tokens of the longer text, from its beginning or its end. Sentence order is that
of ALBERT (Lan et al. 2019, section 3.1). A random second text is never from the same document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from minibert.tasks.base import Example
from minibert.text.template import SpecialTokenTemplate
from minibert.train.corpus import Document

SHORT = 0.1  # of the rows are made for a length that is drawn
SHORTEST = 2  # tokens of text
LABELS = {"mlm": None, "mlm+nsp": "next_sentence_label", "mlm+sop": "sentence_order_label", "electra": None}


@dataclass(frozen=True)
class Packing:
    """How rows are made."""

    objective: str  # of LABELS
    max_length: int  # tokens of a row, special ones included
    framing: SpecialTokenTemplate

    @property
    def paired(self) -> bool:
        """Whether a row has two texts."""
        return LABELS[self.objective] is not None

    @property
    def room(self) -> int:
        """Tokens of text in a row."""
        return self.max_length - self.framing.specials(self.paired)

    def rows(self, documents: Sequence[Document], random: Random) -> list[Example]:
        """The rows of these documents, in a new order."""
        found = [row for number in range(len(documents)) for row in self.of_document(documents, number, random)]
        random.shuffle(found)
        return found

    def of_document(self, documents: Sequence[Document], number: int, random: Random) -> Iterator[Example]:
        """The rows of one of the documents."""
        document, first = documents[number], 0
        if not self.paired:
            document = [[id] for id in joined(document)]  # one text may end anywhere, and nothing is lost
        while first < len(document):
            target = random.randint(min(SHORTEST, self.room), self.room) if random.random() < SHORT else self.room
            after = taken(document, first, target)
            if not self.paired:
                yield self.row(joined(document[first:after]))
            elif self.objective == "mlm+sop":
                yield self.in_order(document[first:after], random)
            elif len(documents) > 1 or after - first > 1:
                row, after = self.next_or_not(documents, number, first, after, target, random)
                yield row
            first = after

    def next_or_not(
        self, documents: Sequence[Document], number: int, first: int, after: int, target: int, random: Random
    ) -> tuple[Example, int]:
        """Two texts, the second of which follows the first or is from another document; and where to go on."""
        document = documents[number]
        cut = first + 1 if after - first == 1 else random.randint(first + 1, after - 1)
        a = joined(document[first:cut])
        if len(documents) == 1 or (cut < after and random.random() < 0.5):
            return self.pair(a, joined(document[cut:after]), 0, random), after
        other = documents[(number + random.randint(1, len(documents) - 1)) % len(documents)]
        begin = random.randrange(len(other))
        b = joined(other[begin : taken(other, begin, max(SHORTEST, target - len(a)))])
        return self.pair(a, b, 1, random), cut  # the sentences behind the cut are not used up

    def in_order(self, sentences: Sequence[list[int]], random: Random) -> Example:
        """Two texts that follow each other, in their order or exchanged; one sentence is cut inside."""
        if len(sentences) > 1:
            cut = random.randint(1, len(sentences) - 1)
            a, b = joined(sentences[:cut]), joined(sentences[cut:])
        else:
            cut = random.randint(1, max(1, len(sentences[0]) - 1))
            a, b = sentences[0][:cut], sentences[0][cut:]
        exchanged = random.random() < 0.5
        return self.pair(b, a, 1, random) if exchanged else self.pair(a, b, 0, random)

    def row(self, ids: list[int]) -> Example:
        """[CLS] text [SEP]"""
        return Example(self.framing.row(ids), self.framing.segments(len(ids)))

    def pair(self, a: list[int], b: list[int], label: int, random: Random) -> Example:
        """[CLS] a [SEP] b [SEP], cut to max_length."""
        a, b = cut_pair(a, b, self.room, random)
        name = str(LABELS[self.objective])
        return Example(self.framing.row(a, b), self.framing.segments(len(a), len(b)), {name: label})


def taken(document: Document, first: int, target: int) -> int:
    """Behind the sentence, from `first` on, with which there are at least `target` tokens, or behind the last one."""
    length = 0
    for after, sentence in enumerate(document[first:], start=first + 1):
        length += len(sentence)
        if length >= target:
            return after
    return len(document)


def joined(sentences: Sequence[list[int]]) -> list[int]:
    """The tokens of sentences, one after the other."""
    return [id for sentence in sentences for id in sentence]


def cut_pair(a: list[int], b: list[int], room: int, random: Random) -> tuple[list[int], list[int]]:
    """Tokens of the longer text go, from its beginning or its end, until both have room."""
    starts, ends = [0, 0], [len(a), len(b)]
    while sum(ends) - sum(starts) > room:
        longer = int(ends[1] - starts[1] >= ends[0] - starts[0])
        if random.random() < 0.5:
            starts[longer] += 1
        else:
            ends[longer] -= 1
    return a[starts[0] : ends[0]], b[starts[1] : ends[1]]
