"""Predictions compared with the truth, as figures and as tables.

one label a text    accuracy, scores by class, the confusion matrix; of two classes Matthews' correlation too
several labels      texts that are right in every label, scores by label
numbers             Pearson's and Spearman's correlation, the root of the mean squared error
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
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
        standard_error=standard_error(accuracy, len(true)),
        labels=list(labels),
        classes={
            label: ClassScore(float(precision[i]), float(recall[i]), float(f1[i]), int(counts[i]))
            for i, label in enumerate(labels)
        },
        confusion=confusion_matrix(true, predicted, labels=labels).tolist(),
    )


def standard_error(share: float, rows: int) -> float:
    """How far a share that was counted on so many rows may be from the true one: sqrt(p (1 - p) / rows)."""
    return math.sqrt(share * (1 - share) / rows)


def commonest(labels: Sequence[Hashable]) -> tuple[Hashable, float]:
    """The commonest label and the share of the rows that have it: what always giving the same answer scores."""
    label, count = Counter(labels).most_common(1)[0]
    return label, count / len(labels)


def matthews(confusion: Sequence[Sequence[int]]) -> float:
    """Matthews' correlation of a confusion matrix of two classes, -1 to 1; 0 where a row or column of it is empty."""
    (tn, fp), (fn, tp) = confusion
    product = (tn + fp) * (fn + tp) * (tn + fn) * (fp + tp)
    return (tn * tp - fp * fn) / math.sqrt(product) if product else 0.0


# ---------------------------------------------------------------------------------------------------------------
# Several labels a text


@dataclass(frozen=True)
class SeveralEvaluation:
    """Predicted sets of labels compared with the true ones."""

    rows: int
    exact_match: float  # the share of texts with all labels right, and no other
    standard_error: float  # of that
    f1: float  # of all labels of all texts together (micro)
    macro_f1: float  # the mean over the labels
    labels: list[str]
    classes: dict[str, ClassScore]


def compare_several(
    true: Sequence[Collection[str]], predicted: Sequence[Collection[str]], labels: Sequence[str]
) -> SeveralEvaluation:
    """Exact matches and scores by label; warns where every text is given the same labels."""
    if len(set(map(frozenset, predicted))) == 1 and len(predicted) > 1:
        given = " and ".join(map(repr, predicted[0])) or "none"
        message = f"all {len(predicted)} texts were predicted to have the same labels: {given}"
        warnings.warn(message, OneClassPredicted, stacklevel=2)
    has, said = (np.array([[label in row for label in labels] for row in rows]) for rows in (true, predicted))  # (N,K)
    hits, found, there = (part.sum(axis=0).tolist() for part in (has & said, said, has))  # (K)
    exact_match = float((has == said).all(axis=1).mean())
    classes = {
        label: ClassScore(share(hits[i], found[i]), share(hits[i], there[i]), f1(hits[i], found[i], there[i]), there[i])
        for i, label in enumerate(labels)
    }
    return SeveralEvaluation(
        rows=len(true),
        exact_match=exact_match,
        standard_error=standard_error(exact_match, len(true)),
        f1=f1(sum(hits), sum(found), sum(there)),
        macro_f1=sum(score.f1 for score in classes.values()) / len(labels),
        labels=list(labels),
        classes=classes,
    )


def share(part: int, whole: int) -> float:
    """part / whole; 0 of nothing."""
    return part / whole if whole else 0.0


def f1(hits: int, predicted: int, true: int) -> float:
    """The harmonic mean of precision, hits / predicted, and recall, hits / true; 0 where there is neither."""
    return share(2 * hits, predicted + true)


# ---------------------------------------------------------------------------------------------------------------
# Numbers


def pearson(true: ArrayLike, predicted: ArrayLike) -> float:
    """How well a straight line leads from one to the other, -1 to 1; 0 where one of them is the same for all rows."""
    x, y = (centred(values) for values in (true, predicted))
    return float(np.clip(x @ y, -1.0, 1.0))


def centred(values: ArrayLike) -> NDArray[np.float64]:
    """Less their mean, and of length 1; zeros where they are all equal."""
    x = np.array(values, dtype=np.float64)
    if x.min() == x.max():
        return np.zeros_like(x)
    x -= x.mean()
    x /= np.abs(x).max()  # so that no square is too large or too small
    x /= np.linalg.norm(x)
    return x


def spearman(true: ArrayLike, predicted: ArrayLike) -> float:
    """How well the order of one is that of the other: Pearson's correlation of their ranks."""
    return pearson(ranks(true), ranks(predicted))


def ranks(values: ArrayLike) -> NDArray[np.float64]:
    """1 for the smallest value, N for the largest; equals share the mean of their ranks."""
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    shared: NDArray[np.float64] = (counts.cumsum() - (counts - 1) / 2)[place]
    return shared


def root_mean_square(errors: ArrayLike) -> float:
    """How large errors are, the large ones counting more, in the unit of the numbers themselves."""
    return float(np.sqrt(np.mean(np.square(np.asarray(errors, dtype=np.float64)))))


# ---------------------------------------------------------------------------------------------------------------
# What is shown of it


def accuracy(evaluation: Evaluation) -> str:
    """Accuracy with its standard error: "0.818 ± 0.017"."""
    return f"{evaluation.accuracy:.3f} ± {evaluation.standard_error:.3f}"


def class_table(evaluation: Evaluation | SeveralEvaluation, names: Sequence[str]) -> str:
    """Precision, recall and F1 of each class or label."""
    rows = [
        [name, f"{score.precision:.3f}", f"{score.recall:.3f}", f"{score.f1:.3f}", f"{score.rows:,}"]
        for name, score in zip(names, evaluation.classes.values(), strict=True)
    ]
    return table([["class", "precision", "recall", "F1", "rows"], *rows])


def confusion_table(evaluation: Evaluation, names: Sequence[str]) -> str:
    """A row for each true class, a column for each predicted one."""
    rows = [[name, *counts] for name, counts in zip(names, evaluation.confusion, strict=True)]
    return table([["true \\ predicted", *names], *rows])
