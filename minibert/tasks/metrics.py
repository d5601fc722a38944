"""Predictions compared with the true labels, as figures and as tables.

one label a text    accuracy, scores by class, confusion matrix; for two classes also Matthews' correlation
several labels      exact matches, F1 over all labels, scores by label
numbers             Pearson's and Spearman's correlation, root mean squared error
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata
from sklearn.metrics import confusion_matrix

from minibert.printing import beside, block, table


class OneClassPredicted(UserWarning):
    """Every text got the same prediction, so the accuracy means nothing."""


@dataclass(frozen=True)
class ClassScore:
    """Precision, recall and F1 of one class; 0 where undefined."""

    precision: float
    recall: float
    f1: float
    rows: int  # of this class

    @classmethod
    def of(cls, hits: int, predicted: int, true: int) -> ClassScore:
        """From the counts of correct predictions, predictions and rows of a class."""
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


def compare(true: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> Evaluation:
    """Accuracy, scores by class and confusion matrix; warns where all predictions are the same class."""
    warn_if_constant(predicted)
    confusion = confusion_matrix(true, predicted, labels=labels)  # (K, K)
    counts = zip(
        labels, confusion.diagonal().tolist(), confusion.sum(0).tolist(), confusion.sum(1).tolist(), strict=True
    )
    classes = {label: ClassScore.of(*count) for label, *count in counts}
    accuracy = sum(t == p for t, p in zip(true, predicted, strict=True)) / len(true)
    error = standard_error(accuracy, len(true))
    return Evaluation(len(true), accuracy, error, list(labels), classes, confusion.tolist())


def compare_label_sets(
    true: Sequence[Collection[str]], predicted: Sequence[Collection[str]], labels: Sequence[str]
) -> tuple[float, ClassScore, dict[str, ClassScore]]:
    """The fraction of exact matches, the score over all labels, and that of each label; warns as `compare` does."""
    warn_if_constant([", ".join(sorted(row)) for row in predicted])
    both = [set(t) & set(p) for t, p in zip(true, predicted, strict=True)]
    hits, found, there = (Counter(name for row in rows for name in row) for rows in (both, predicted, true))
    exact = sum(set(t) == set(p) for t, p in zip(true, predicted, strict=True)) / len(true)
    classes = {label: ClassScore.of(hits[label], found[label], there[label]) for label in labels}
    return exact, ClassScore.of(hits.total(), found.total(), there.total()), classes


def warn_if_constant(predicted: Sequence[str]) -> None:
    """Warn where several texts all got the same prediction."""
    if len(set(predicted)) == 1 < len(predicted):
        message = f"all {len(predicted)} texts were predicted to be {predicted[0]!r}"
        warnings.warn(message, OneClassPredicted, stacklevel=3)


def standard_error(accuracy: float, rows: int) -> float:
    """The standard error of an accuracy measured on this many rows: sqrt(p (1 - p) / rows)."""
    return math.sqrt(accuracy * (1 - accuracy) / rows)


def majority_class(labels: Sequence[Hashable]) -> tuple[Hashable, float]:
    """The most frequent label and its fraction of the rows: the accuracy of always predicting it."""
    label, count = Counter(labels).most_common(1)[0]
    return label, count / len(labels)


def f1(hits: int, predicted: int, true: int) -> float:
    """The harmonic mean of precision, hits / predicted, and recall, hits / true; 0 without predictions and rows."""
    return 2 * hits / max(predicted + true, 1)


def pearson(true: ArrayLike, predicted: ArrayLike) -> float:
    """Pearson's correlation, -1 to 1; 0 where one side is constant."""
    x, y = np.asarray(true, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    return 0.0 if np.ptp(x) == 0 or np.ptp(y) == 0 else float(np.corrcoef(x, y)[0, 1])


def spearman(true: ArrayLike, predicted: ArrayLike) -> float:
    """Spearman's rank correlation, -1 to 1; 0 where one side is constant."""
    return pearson(rankdata(true), rankdata(predicted))


# ---------------------------------------------------------------------------------------------------------------
# Tables


def accuracy_text(accuracy: float, rows: int, baseline: str) -> str:
    """An accuracy with its standard error, beside a baseline."""
    error = standard_error(accuracy, rows)
    return block("accuracy", f"{accuracy:.3f} ± {error:.3f} (standard error), {rows:,} rows; {baseline}")


def evaluation_text(evaluation: Evaluation, baseline: str) -> str:
    """Accuracy, scores by class and confusion matrix."""
    accuracy = accuracy_text(evaluation.accuracy, evaluation.rows, baseline)
    confusion = beside("confusion", confusion_table(evaluation, evaluation.labels))
    return "\n".join([accuracy, class_table("by class", evaluation.classes), confusion])


def class_table(name: str, classes: Mapping[str, ClassScore], rows: str = "rows") -> str:
    """Precision, recall and F1, a row for each class."""
    lines = [
        [label, f"{score.precision:.3f}", f"{score.recall:.3f}", f"{score.f1:.3f}", f"{score.rows:,}"]
        for label, score in classes.items()
    ]
    return beside(name, table([["", "precision", "recall", "F1", rows], *lines]))


def confusion_table(evaluation: Evaluation, names: Sequence[str]) -> str:
    """A row for each true class, a column for each predicted one."""
    rows = [[name, *counts] for name, counts in zip(names, evaluation.confusion, strict=True)]
    return table([["true \\ predicted", *names], *rows])
