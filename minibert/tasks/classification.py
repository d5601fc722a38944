"""Classification: a text, or a pair of texts, to a label, to several labels, or to a number.

    text, pair, label -> [CLS] text [SEP] pair [SEP] -> logits (K) -> a prediction -> figures

labels.py defines the types of label; everything else is the same for all of them (Devlin et al. 2018, section 4.1: the
tasks of GLUE).
"""

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from minibert.config import Config
from minibert.tables.columns import Column, listed
from minibert.tables.formats import DELIMITERS, MEMORY, is_doubtful
from minibert.tables.reading import Table
from minibert.tables.texts import SECOND, TextOrPair, as_column, as_columns, as_texts_or_pairs, without_missing
from minibert.tables.writing import one_line
from minibert.tasks.base import Encoded, Example, Logits, Measure, Prediction, Task
from minibert.tasks.labels import LabelType, MultiLabel, Regression, SingleLabel, check_finite, class_weights, is_alone
from minibert.tasks.names import are_several, as_labels, in_order, of_matrix, with_points, without_points
from minibert.tasks.settings import ClassificationSettings
from minibert.text.tokenizer import Tokenizer
from minibert.utils.printing import brief
from minibert.utils.wording import advice

SEPARATOR = "|"  # between the labels of a text if a file has lists


@dataclass(frozen=True)
class Texts:
    """Texts or pairs of texts, labelled or not."""

    texts: list[str]
    pairs: list[str] | None = None
    labels: list[Any] | None = None  # a name, a tuple of names, or a number for each text
    names: Sequence[str] = ()  # all names of labels in order, columns of a matrix too; (): those in `labels`, sorted
    places: Sequence[str] = field(default=(), compare=False)  # of the rows in a file

    def __len__(self) -> int:
        return len(self.texts)

    def place(self, row: int) -> str:
        """Return where a row is, for a message."""
        return self.places[row] if self.places else f"row {row}"

    @property
    def rows(self) -> Sequence[TextOrPair]:
        """The input of the tokenizer: texts or pairs."""
        return as_texts_or_pairs(self.texts, self.pairs)

    @property
    def known_labels(self) -> list[Any]:
        """The labels. Raises ValueError for unlabelled texts."""
        if self.labels is None:
            raise ValueError("these texts have no labels; training and evaluation need one for each text")
        return self.labels


@dataclass(frozen=True)
class Classification(ClassificationSettings, Task):
    """Labels or numbers for texts or pairs of texts.

    text, pair, label: columns of a file by name, or by number from 1 without a header; the default names are sentence
    or text, and label; without `pair` there are single texts. separator: between several labels of a text; None: each
    text has exactly one, unless a file has lists of labels, as a .jsonl may: `resolve` then sets a separator.
    regression: labels are numbers. The others: as in FileSettings.
    """

    name = "classify"
    head = "sequence-classification"

    @property
    def label_type(self) -> LabelType:
        """The type of the labels."""
        if self.regression:
            return Regression()
        return SingleLabel() if self.separator is None else MultiLabel(self.separator)

    @property
    def pairs(self) -> bool | None:  # type: ignore[override]  # a class attribute of other tasks
        """True if a column of second texts was named; texts from Python may be of either kind."""
        return True if self.pair is not None else None

    @property
    def main(self) -> str:  # type: ignore[override]  # a class attribute of other tasks
        """accuracy, f1 (several labels, micro) or pearson."""
        return self.label_type.main

    @property
    def problem_type(self) -> str:  # type: ignore[override]  # a class attribute of other tasks
        """single_label_classification, multi_label_classification or regression."""
        return self.label_type.problem_type

    @property
    def columns(self) -> list[Column]:
        """The columns of the texts, the labels and, if requested, the second texts."""
        label = Column("label", self.label, ("label",), blank=self.separator is not None)
        pair = [] if self.pair is None else [Column("pair", self.pair, SECOND)]
        return [Column("text", self.text), label, *pair]

    def read(self, path: Any) -> Texts:
        """Read labelled texts, see tables.reading.Table. Raises ValueError also if a header was read as a row."""
        with Table(path, self.columns, self) as table:
            places, (texts, cells, *pairs) = table.whole_columns("; each needs a text and a label")
        kind = self.label_type
        in_text = table.format in DELIMITERS
        cells = with_points(cells, places) if self.regression else without_points(cells) if in_text else cells
        if isinstance(kind, SingleLabel) and any(isinstance(cell, list) for cell in cells):
            kind = MultiLabel(SEPARATOR)
        given: list[Any] = list(map(kind.parse, cells, places))
        kinds = set(map(str, cells))
        if "O" in kinds and len(kinds) > 1 and all(kind == "O" or kind[1:2] == "-" for kind in kinds):
            raise ValueError(
                f"{table.name} has tags of words as labels, {listed(sorted(kinds))}; the task tag reads such a file"
            )
        chosen = self.text or self.label or self.pair
        doubtful = not chosen and is_doubtful(list(zip(texts, cells, strict=True)))
        if not table.header and (doubtful or is_alone(given)):
            text = texts[0] if len(texts[0]) <= 30 else "NAME"
            alone = (
                f"the first row of {table.name} has the label {brief(cells[0])}, which no other row has; if it is a "
                f"header, name the columns" + advice(": {} {}", text=text, label=cells[0])
            )
            if not chosen:
                raise ValueError(alone + advice("; else: {} {}", text=1, label=2))
            warnings.warn(alone, stacklevel=2)
        try:
            labels, names = kind.named(given)
        except ValueError as error:
            raise ValueError(f"{table.name}: " + str(error)) from None
        names = names if table.format == MEMORY else in_order(names)  # in a file, text of numbers is numbers
        return Texts(texts, pairs[0] if pairs else None, labels, names, places)

    def from_texts(self, texts: object, pairs: object = None) -> Texts:
        """Return unlabelled texts or pairs, all of them: missing="drop" is "error" here.

        Raises TypeError or ValueError, with the row, for anything but text.
        """
        return Texts(*as_columns(texts, pairs, missing=self.missing_text))

    def from_labels(self, texts: object, labels: Iterable[object], pairs: Sequence[str] | None = None) -> Texts:
        """Return texts or pairs with labels: names or integers, several for each text (see MultiLabel), or numbers.

        missing="drop" leaves out rows without a text or a label, with a warning. Raises what names.as_labels raises.
        """
        kind = self.label_type
        labels = as_column(labels.toarray() if hasattr(labels, "toarray") else labels)  # of a sparse matrix
        labels = list(labels) if isinstance(labels, Iterator) else labels
        if isinstance(kind, SingleLabel) and are_several(labels):
            kind = MultiLabel(SEPARATOR)
        if self.missing == "drop":
            texts, labels, pairs = without_missing(texts, labels, pairs)
        data = self.from_texts(texts, pairs)
        given = as_labels(labels, len(data), kind.parse, axes=2 if isinstance(kind, MultiLabel) else 1)
        matrix = getattr(labels, "ndim", 1) == 2 and len(given) > 0 and isinstance(given[0], np.ndarray)
        labels_read, names = of_matrix(given) if matrix else kind.named(given)
        return replace(data, labels=labels_read, names=names)

    @classmethod
    def of_config(cls, config: Config) -> Self:
        """Return the task with the type of label that config.json states, or a regression if there is one output."""
        kind = config.problem_type or (Regression.problem_type if len(config.id2label) == 1 else None)
        separator = SEPARATOR if kind == MultiLabel.problem_type else None
        return cls(separator=separator, regression=kind == Regression.problem_type)

    def resolve(self, data: Texts) -> Self:
        """Return the task with a separator if a file had lists of labels."""
        lists = self.separator is None and any(isinstance(label, tuple) for label in data.known_labels)
        return replace(self, separator=SEPARATOR) if lists else self

    def labels_of(self, data: Texts) -> list[str]:
        """Return the label names in order, see names.py; for a regression the name of its one output."""
        self.label_type.check(data.known_labels)
        return list(data.names or self.label_type.named(data.known_labels)[1])

    def names_in(self, data: Texts) -> Collection[str]:
        """Return all names of labels that the data has."""
        return data.names

    def class_weights(self, data: Texts, labels: Sequence[str], how: str | Mapping[Any, float]) -> list[float]:
        """Return the weight of each label, see labels.class_weights."""
        if self.problem_type != SingleLabel.problem_type:
            return super().class_weights(data, labels, how)
        return class_weights(data.known_labels, labels, how)

    def encode(self, data: Texts, tokenizer: Tokenizer, labels: Sequence[str], max_length: int) -> Encoded:
        """Return an example for each row; a pair that is too long is truncated longest text first."""
        targets: list[dict[str, Any]] = [{}] * len(data)
        if data.labels is not None:
            numbers = {name: number for number, name in enumerate(labels)}
            target = self.label_type.target
            targets = [{"labels": target(label, numbers, data.place(row))} for row, label in enumerate(data.labels)]
        tokens = tokenizer.encode_texts(data.rows, max_length=max_length)
        examples = list(map(Example, tokens.ids, tokens.segments(), targets))
        stats = tokens.stats
        tokenizer.warn(replace(stats, truncated=0), max_length)
        return Encoded(examples, truncation=stats.truncation(max_length, tokenizer.truncates_left))

    def decode(
        self, logits: Sequence[Logits], encoded: Encoded, data: Texts, labels: Sequence[str]
    ) -> list[Prediction]:
        """Return one label or several with the probability of each, and of all labels; or the value of a regression."""
        if not logits:
            return []
        scores = np.stack(logits).astype(np.float64)  # (N, K)
        check_finite(scores, "a logit")
        return self.label_type.predictions(scores, labels)

    def measure(self, answers: Sequence[Prediction], data: Texts, labels: Sequence[str]) -> Measure:
        """Return the figures of the label type; warns if all predictions are the same."""
        return self.label_type.measure(answers, data.known_labels, labels)

    def format_predictions(self, answers: Sequence[Prediction], data: Texts) -> list[str]:
        """Return the prediction, its probability unless it is a number, and the text or both texts."""
        texts = ([row] if isinstance(row, str) else row for row in data.rows)
        return [one_line(*self.label_type.cells_of(answer), *row) for answer, row in zip(answers, texts, strict=True)]
