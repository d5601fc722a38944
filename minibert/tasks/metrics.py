"""Predictions compared with the truth: accuracy, scores by class and the confusion matrix, as figures and as tables."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from minibert.printing import table


class OneClassPredicted(UserWarning):
    """Every text was given the same class, so the accuracy says nothing."""


@dataclass(frozen=True)
class ClassScore:
    """How well one class is told from the others."""

    precision: float
    recall: float
    f1: float
    rows: int  # of this class


@dataclass(frozen=True)
class Evaluation:
    """Predictions compared with the truth."""

    rows: int
    accuracy: float
    standard_error: float  # of the accuracy, sqrt(p (1 - p) / rows)
    labels: list[str]
    classes: dict[str, ClassScore]
    confusion: list[list[int]]  # [true class][predicted class], in the order of labels


def compare(true: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> Evaluation:
    """Accuracy, scores by class and confusion matrix; warns where every prediction is the same class."""
    if len(set(predicted)) == 1 and len(predicted) > 1:
        message = f"all {len(predicted)} texts were predicted to be {predicted[0]!r}"
        warnings.warn(message, OneClassPredicted, stacklevel=2)
    precision, recall, f1, counts = precision_recall_fscore_support(true, predicted, labels=labels, zero_division=0.0)
    accuracy = sum(t == p for t, p in zip(true, predicted, strict=True)) / len(true)
    return Evaluation(
        rows=len(true),
        accuracy=accuracy,
        standard_error=math.sqrt(accuracy * (1 - accuracy) / len(true)),
        labels=list(labels),
        classes={
            label: ClassScore(float(precision[i]), float(recall[i]), float(f1[i]), int(counts[i]))
            for i, label in enumerate(labels)
        },
        confusion=confusion_matrix(true, predicted, labels=labels).tolist(),
    )


# ---------------------------------------------------------------------------------------------------------------
# What is shown of it


def accuracy(evaluation: Evaluation) -> str:
    """Accuracy with its standard error: "0.818 ± 0.017"."""
    return f"{evaluation.accuracy:.3f} ± {evaluation.standard_error:.3f}"


def class_table(evaluation: Evaluation, names: Sequence[str]) -> str:
    """Precision, recall and F1 of each class."""
    rows = [
        [name, f"{score.precision:.3f}", f"{score.recall:.3f}", f"{score.f1:.3f}", f"{score.rows:,}"]
        for name, score in zip(names, evaluation.classes.values(), strict=True)
    ]
    return table([["class", "precision", "recall", "F1", "rows"], *rows])


def confusion_table(evaluation: Evaluation, names: Sequence[str]) -> str:
    """A row for each true class, a column for each predicted one."""
    rows = [[name, *counts] for name, counts in zip(names, evaluation.confusion, strict=True)]
    return table([["true \\ predicted", *names], *rows])
