"""The batches of a corpus: read, tokenized, packed into rows, masked; memory does not grow with the corpus.

Every window of the file is read once in a pass, in an order that the seed decides, and its rows are shuffled. A thread
makes the rows of the next window while the model computes. Each batch is a function of its number, so that a killed
run goes on where it was: how many rows each window gave is noted as it is read, and no window before the wanted batch
is read again.

Of several ranks (distributed.py) each reads every so many-th window and gives its part of each batch, so that no window
is read twice. So a batch is made from as many windows as there are ranks: it depends on their number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random

from minibert.kernels.prefetch import map_ahead
from minibert.tasks.base import Example
from minibert.text.masking import Masking
from minibert.text.tokenizer import Tokenizer
from minibert.train.batches import Batch, collate, order
from minibert.train.corpus import Corpus
from minibert.train.pairs import Packing


@dataclass(frozen=True)
class Stream:
    """As many batches of a corpus as wanted, over as many passes as that takes."""

    corpus: Corpus
    tokenizer: Tokenizer
    packing: Packing
    masking: Masking
    batch_size: int  # rows, of all ranks together
    an_epoch: int  # batches in all
    seed: int
    pad_id: int
    journal: Path | None = None  # where the rows of each window are noted; None: nowhere
    given: list[int] = field(default_factory=list)  # rows of each window that was read, in the order of reading
    rank: int = 0  # whose windows are read and whose rows are given
    ranks: int = 1

    @property
    def windows(self) -> range:
        """Those that this rank reads."""
        return range(self.rank, self.corpus.windows, self.ranks)

    def of_epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """The batches from number `first` on; there is one epoch."""
        rows = self.rows(first * (self.batch_size // self.ranks))
        for number in range(first, self.an_epoch):
            numbers = range(number * self.batch_size, (number + 1) * self.batch_size)[self.rank :: self.ranks]
            batch = list(itertools.islice(rows, len(numbers)))
            rows_masked = [masked(row, self.masking, place) for row, place in zip(batch, numbers, strict=True)]
            yield collate(rows_masked, numbers, self.pad_id)

    def rows(self, first: int) -> Iterator[Example]:
        """The rows from number `first` on, without end. Raises ValueError for a corpus that gives none."""
        given = self.known
        window = before = 0
        while window < len(given) and before + given[window] <= first:
            before, window = before + given[window], window + 1
        for number, rows in enumerate(map_ahead(self.of_window, itertools.count(window)), start=window):
            if number == len(given):
                given.append(len(rows))
                if not any(given[-len(self.windows) :]):
                    raise ValueError(f"{self.corpus.path} gives no row to learn from")
                if self.journal is not None:
                    with self.journal.open("a", encoding="ascii") as file:
                        file.write(f"{len(rows)}\n")
            yield from rows[max(0, first - before) :]
            before += len(rows)

    def of_window(self, number: int) -> list[Example]:
        """The rows of the window that is read as the `number`th of all passes."""
        turn, place = divmod(number, len(self.windows))
        window = self.windows[order(len(self.windows), self.seed, turn)[place]]
        return self.packing.rows(self.corpus.tokenized(window, self.tokenizer), Random(f"{self.seed} {turn} {window}"))

    @cached_property
    def known(self) -> list[int]:
        """`given`, with what the journal has noted; a last line that a kill cut off does not count."""
        if self.journal is not None and self.journal.exists():
            noted = self.journal.read_text(encoding="ascii").split("\n")[:-1]
            self.journal.write_text("".join(f"{line}\n" for line in noted), encoding="ascii")
            self.given[:] = map(int, noted)
        return self.given


def masked(row: Example, masking: Masking, number: int) -> Example:
    """A row as the model sees it; what is hidden depends on its number, so that it is new each time it comes by."""
    ids, labels = masking(row.ids, 0, number)
    return Example(ids, row.segments, {**row.labels, "labels": labels})
