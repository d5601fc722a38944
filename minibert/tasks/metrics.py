"""Predictions compared with the true labels, as figures and as tables.

one label per text  accuracy, scores by class, confusion matrix
several labels      exact matches, F1 over all labels, scores by label
numbers             correlation

The scores of classes count sets of items: the one label of a text, its labels, or the entities of a sentence.
"""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
from sklearn.metrics import confusion_matrix

from minibert.utils.printing import beside, block, counted, table

Item = TypeVar("Item")


@dataclass(frozen=True)
class ClassScore:
    """Precision, recall and F1 of one class; 0 where undefined."""

    precision: float
    recall: float
    f1: float
    rows: int  # of this class

    @classmethod
    def of(cls, hits: int, predicted: int, true: int) -> Self:
        """Return the scores from the counts of correct predictions, predictions and rows of a class."""
        return cls(hits / max(predicted, 1), hits / max(true, 1), f1(hits, predicted, true), true)


@dataclass(frozen=True)
class Evaluation:
    """Predictions compared with the true labels, one label for each text."""

    rows: int
    accuracy: float
    standard_error: float  # of the accuracy
    labels: list[str]
    classes: dict[str, ClassScore]
    confusion: list[list[int]]  # [true class][predicted class], in the order of labels


def evaluate(true: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> Evaluation:
    """Return accuracy, scores by class and confusion matrix; warns if all predictions are the same class."""
    warn_if_constant(predicted)
    _, classes = class_scores([{label} for label in true], [{label} for label in predicted], labels)
    accuracy = sum(t == p for t, p in zip(true, predicted, strict=True)) / len(true)
    error = standard_error(accuracy, len(true))
    confusion = confusion_matrix(true, predicted, labels=labels)  # (K, K)
    return Evaluation(len(true), accuracy, error, list(labels), classes, confusion.tolist())


def class_scores(
    true: Iterable[set[Item]],
    predicted: Iterable[set[Item]],
    labels: Iterable[str] = (),
    class_of: Callable[[Item], str] = str,
) -> tuple[ClassScore, dict[str, ClassScore]]:
    """Return the score over all items, and one per class: of `labels` first, then of other classes among the items."""
    there, predicted_counts, hits = Counter[str](), Counter[str](), Counter[str]()
    for true_items, predicted_items in zip(true, predicted, strict=True):
        there.update(map(class_of, true_items))
        predicted_counts.update(map(class_of, predicted_items))
        hits.update(map(class_of, true_items & predicted_items))
    names = dict.fromkeys([*labels, *sorted(there | predicted_counts)])
    classes = {name: ClassScore.of(hits[name], predicted_counts[name], there[name]) for name in names}
    return ClassScore.of(hits.total(), predicted_counts.total(), there.total()), classes


def warn_if_constant(predicted: Sequence[str]) -> None:
    """Warn if several texts all got the same prediction: the accuracy then means nothing."""
    if len(set(predicted)) == 1 < len(predicted):
        warnings.warn(f"all {len(predicted)} texts were predicted to be {predicted[0]!r}", stacklevel=3)


def standard_error(accuracy: float, rows: int) -> float:
    """Return the standard error of an accuracy measured on this many rows: sqrt(p (1 - p) / rows)."""
    return math.sqrt(accuracy * (1 - accuracy) / rows)


def f1(hits: int, predicted: int, true: int) -> float:
    """Return the harmonic mean of precision, hits / predicted, and recall, hits / true; 0 without any."""
    return 2 * hits / max(predicted + true, 1)


def correlation(true: Sequence[float], predicted: Sequence[float]) -> float:
    """Return Pearson's correlation, -1 to 1; 0 if one side is constant."""
    x, y = np.asarray(true, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    return 0.0 if np.ptp(x) == 0 or np.ptp(y) == 0 else float(np.corrcoef(x, y)[0, 1])


# ---------------------------------------------------------------------------------------------------------------
# Tables


def accuracy_text(accuracy: float, rows: int, baseline: str) -> str:
    """Return an accuracy with its standard error, beside a baseline."""
    error = standard_error(accuracy, rows)
    return block("accuracy", f"{accuracy:.3f} ± {error:.3f} (standard error), {counted(rows, 'row')}; {baseline}")


def class_table(name: str, classes: Mapping[str, ClassScore], rows: str = "rows") -> str:
    """Return precision, recall and F1, a row for each class."""
    lines = [
        [label, f"{score.precision:.3f}", f"{score.recall:.3f}", f"{score.f1:.3f}", f"{score.rows:,}"]
        for label, score in classes.items()
    ]
    return beside(name, table([["", "precision", "recall", "F1", rows], *lines]))


def confusion_table(evaluation: Evaluation, names: Sequence[str]) -> str:
    """Format the confusion matrix: rows are true classes, columns predicted ones."""
    rows = [[name, *counts] for name, counts in zip(names, evaluation.confusion, strict=True)]
    return table([["true \\ predicted", *names], *rows])
