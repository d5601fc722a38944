"""Classification: a text, or a pair of texts, to a label, to several labels at once, or to a number.

    text, pair, label -> [CLS] text [SEP] pair [SEP] -> logits (K) -> an answer -> figures

What a label is, labels.py says; all else is the same for every kind (Devlin et al. 2018, section 4.1, where the tasks
of GLUE are of one label or of a number).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from minibert.settings import check, setting
from minibert.tasks.base import Encoded, Example, Logits, Measure, Task
from minibert.tasks.labels import Kind, Number, OneLabel, SeveralLabels, finite
from minibert.tasks.reviews import LABEL_COLUMNS, PAIR_COLUMNS, check_header, check_there
from minibert.text.tables import Column, Table
from minibert.text.texts import TextOrPair, as_columns, as_texts_or_pairs
from minibert.text.tokenizer import Tokenizer, TokenStats

AT_ONCE = 4096  # texts between two steps of the progress bar
BREAKS = re.compile(r"[\r\n\t]+")


@dataclass(frozen=True)
class Texts:
    """Texts or pairs of texts, each with its label where there are labels."""

    texts: list[str]
    pairs: list[str] | None = None
    labels: list[Any] | None = None  # a name, a tuple of names, or a number for each; None: to be answered
    places: list[str] | None = None  # where each row stands in its file

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def rows(self) -> Sequence[TextOrPair]:
        """What the tokenizer is given: texts, or pairs."""
        return as_texts_or_pairs(self.texts, self.pairs)

    def place(self, row: int) -> str:
        """Where a row stands, for a message."""
        return f"row {row}" if self.places is None else self.places[row]

    @property
    def known_labels(self) -> list[Any]:
        """The labels. Raises ValueError where they are to be answered."""
        if self.labels is None:
            raise ValueError("these texts have no labels; to learn from them or to measure, each text needs one")
        return self.labels


@dataclass(frozen=True)
class Classification(Task):
    """Labels or numbers for texts or pairs of texts.

    text, pair, label: columns of a file by name, or by number from 1 where there is no header; text and label have
    usual names (sentence or text, label), pair is asked for. format: of a file whose name does not say it. separator:
    what stands between several labels of a text; None: each has exactly one. regression: labels are numbers.
    """

    text: str | int | None = setting(
        None, "column of the texts: name, or number without a header (default: sentence or text)", metavar="COLUMN"
    )
    pair: str | int | None = setting(None, "column of second texts", metavar="COLUMN")
    label: str | int | None = setting(None, "column of the labels (default: label)", metavar="COLUMN")
    format: str | None = setting(None, "tsv, csv, jsonl, json or parquet (default: by the file name)", metavar="TYPE")
    separator: str | None = setting(None, "between several labels of a text, such as |", metavar="CHARACTER")
    regression: bool = setting(False, "labels are numbers")

    name = "classify"
    head = "sequence-classification"
    data_help = "labelled texts: a table"

    def __post_init__(self) -> None:
        check(self)
        if self.regression and self.separator is not None:
            raise ValueError(f"separator is {self.separator!r}, and a regression has one number a text; leave out one")
        if self.separator == "":
            raise ValueError("separator is empty; it must be a character that no label has, such as '|'")

    @property
    def kind(self) -> Kind:
        """What a label is."""
        if self.regression:
            return Number()
        return OneLabel() if self.separator is None else SeveralLabels(self.separator)

    @property
    def main(self) -> str:
        """accuracy, f1 (of several labels, micro) or pearson."""
        return self.kind.main

    def problem_type(self) -> str:
        """single_label_classification, multi_label_classification or regression."""
        return self.kind.problem_type

    def read(self, path: str | Path) -> Texts:
        """Texts and labels of a table, see text.tables.Table. Raises ValueError, too, for a header taken for a row."""
        check_there(path)
        cells: list[tuple[str, ...]] = []
        places: list[str] = []
        with Table(path, self.columns(), self.format) as table:
            for row in table.rows():
                cells.append(row)
                places.append(table.place)
        if not cells:
            raise ValueError(f"{table.name} holds no rows; each needs a text and a label")
        texts, given, *pairs = map(list, zip(*cells, strict=True))
        labels = [self.kind.label(cell, place) for cell, place in zip(given, places, strict=True)]
        if words := self.kind.words(labels):
            check_header(table, texts[0], words)
        return Texts(texts, pairs[0] if pairs else None, labels, places)

    def columns(self) -> list[Column]:
        """The columns to ask a table for: text, label and, if it is named, pair."""
        text, label, pair = (None if name is None else str(name) for name in (self.text, self.label, self.pair))
        asked = [Column("text", text), Column("label", label, LABEL_COLUMNS, self.kind.cells)]
        return asked if pair is None else [*asked, Column("pair", pair, PAIR_COLUMNS)]

    def from_texts(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Texts:
        """Texts or pairs to be answered. Raises TypeError or ValueError, naming the row, for what is no text."""
        return Texts(*as_columns(list(texts), None if pairs is None else list(pairs)))

    def from_labels(self, texts: Sequence[str], labels: Iterable[object], pairs: Sequence[str] | None = None) -> Texts:
        """Texts or pairs with their labels: names or whole numbers, several for each (see SeveralLabels), or numbers.

        Raises TypeError for what is no column of labels, ValueError, naming the row, for a label that is none.
        """
        data = self.from_texts(texts, pairs)
        dimensions, several = getattr(labels, "ndim", 1), isinstance(self.kind, SeveralLabels)
        if isinstance(labels, str | bytes) or not isinstance(labels, Iterable) or dimensions > 1 + several:
            raise TypeError(f"labels are of type {type(labels).__name__}; one column is wanted, a label for each text")
        rows = np.asarray(labels) if dimensions == 2 else labels  # a data frame would give its columns' names
        found = [self.kind.label(one, data.place(row)) for row, one in enumerate(rows)]
        if len(found) != len(data):
            raise ValueError(f"there are {len(data)} texts and {len(found)} labels; each text needs one")
        return replace(data, labels=found)

    def labels_of(self, data: Texts) -> list[str]:
        """The names of the labels, sorted; of a regression that of its one output."""
        return self.kind.names(data.known_labels)

    def encode(self, data: Texts, tokenizer: Tokenizer, labels: Sequence[str], max_length: int) -> Encoded:
        """An example for each row; of a pair that is too long the longer text is cut first."""
        targets: list[dict[str, Any]] = [{} for _ in data.texts]
        if data.labels is not None:
            numbers = {name: number for number, name in enumerate(labels)}
            for row, label in enumerate(data.labels):
                targets[row]["labels"] = self.kind.target(label, numbers, data.place(row))
        rows, account = data.rows, TokenStats()
        examples: list[Example] = []
        with tqdm(total=len(rows), desc="encoding", unit="text", delay=2, disable=None) as bar:
            for start in range(0, len(rows), AT_ONCE):
                made = tokenizer.encode_texts(rows[start : start + AT_ONCE], max_length=max_length)
                second = made.second or map(len, made.ids)  # where the second text begins; there may be none
                for ids, begin in zip(made.ids, second, strict=True):
                    segments = [0] * begin + [1] * (len(ids) - begin)
                    examples.append(Example(ids, segments, targets[len(examples)]))
                account += made.stats
                bar.update(len(made.ids))
        return Encoded(examples, notes=notes(account, max_length))

    def decode(self, logits: Sequence[Logits], encoded: Encoded, data: Texts, labels: Sequence[str]) -> list[Any]:
        """An Answer for each row; of several labels a SeveralAnswer, of a regression a number."""
        if not logits:
            return []
        return self.kind.answers(finite(np.stack(logits), data.place), labels)  # (N,K)

    def measure(self, answers: Sequence[Any], data: Texts, labels: Sequence[str]) -> Measure:
        """What the kind of label asks for; warns where all answers are the same class."""
        return self.kind.measure(answers, data.known_labels, labels)

    def format_predictions(self, answers: Sequence[Any], data: Texts) -> list[str]:
        """The answer, its probability unless it is a number, and the text or both texts, by tabs."""
        shown = (self.kind.shown(answer) for answer in answers)
        rows = ([row] if isinstance(row, str) else row for row in data.rows)
        return [one_line(*cells, *row) for cells, row in zip(shown, rows, strict=True)]


def one_line(*cells: str) -> str:
    """Cells by tabs; what would break the line becomes a space."""
    return "\t".join(BREAKS.sub(" ", cell) for cell in cells)


def notes(account: TokenStats, max_length: int) -> tuple[str, ...]:
    """What a user should know of texts that the model does not see as they were."""
    found = []
    if account.truncated:
        longest = f"{'at least ' if account.uncounted else ''}{account.longest:,}"
        found.append(
            f"{account.truncated:,} of {account.texts:,} texts are longer than {max_length} tokens (the longest has "
            f"{longest}): what comes after was cut off"
        )
    if 2 * account.unknown > (tokens := account.tokens - account.special):
        found.append(f"{account.unknown:,} of {tokens:,} tokens are unknown: the vocabulary is of another language")
    return tuple(found)
