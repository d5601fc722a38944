"""What the label of a text is: one of several names, any number of them, or a number.

    a cell of a file -> label -> target of the loss;     logits, (N, K) -> predictions -> figures

SingleLabel, MultiLabel and Regression have the same methods; classification.py calls them.

    N texts     K labels; a regression has one output
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax
from scipy.stats import rankdata
from sklearn.metrics import f1_score, matthews_corrcoef, root_mean_squared_error

from minibert.tables.columns import listed
from minibert.tables.texts import RowError
from minibert.tasks import metrics
from minibert.tasks.base import Doubles, Measure, Prediction
from minibert.tasks.names import (
    ARRAYS,
    NUMBER,
    REGRESSION,
    Names,
    array_in,
    as_float,
    as_label,
    as_number,
    in_order,
    is_matrix,
    of_matrix,
)
from minibert.utils.printing import Figures, beside, block, brief, counted
from minibert.utils.wording import advice, named

# ---------------------------------------------------------------------------------------------------------------
# Validation


def check_classes(labels: Sequence[str], least: int = 1) -> None:
    """Raise ValueError for labels that cannot be learned: of one class, all different, or a class under `least`."""
    counts = Counter(labels)
    label, fewest = min(counts.items(), key=lambda item: item[1], default=("", 0))
    if len(counts) < 2 or len(counts) == len(labels) > 2 or fewest < least:
        numbers = len(counts) > 2 and all(map(NUMBER.fullmatch, counts))
        raise ValueError(
            f"the labels of {counted(len(labels), 'row')} cannot be learned: they have {counted(len(counts), 'class')}"
            f", the smallest {brief(label)} with {counted(fewest, 'row')}; at least 2 classes are needed, "
            f"{'one' if least < 2 else 'each'} of {max(least, 2)} rows or more{REGRESSION if numbers else ''}"
        )


def is_alone(labels: Sequence[object]) -> bool:
    """Return whether the first row may be a header: its label is a name no other row has, while others repeat."""
    rows = [label if isinstance(label, tuple) else (label,) for label in labels if isinstance(label, str | tuple)]
    counts = Counter(name for row in rows for name in row)
    names = [name for name in rows[0] if not NUMBER.fullmatch(str(name))] if len(rows) == len(labels) else []
    return bool(names) and all(counts[name] == 1 for name in rows[0]) and counts.total() > len(counts)


def label_number(name: str, numbers: Mapping[str, int], where: str) -> int:
    """Return the number of a label. Raises ValueError, with the known labels, for an unknown one."""
    if name not in numbers:
        raise ValueError(f"{where} has the label {brief(name)}; the model knows {listed(list(numbers))}")
    return numbers[name]


def check_finite(numbers: NDArray[Any], what: str) -> None:
    """Raise ValueError, with the row, if a number is NaN or infinite."""
    if not np.isfinite(numbers).all():
        row = int(np.argwhere(~np.isfinite(numbers))[0][0])
        raise RowError(row, f"has {what} that is NaN or infinite; the model is damaged: train it again")


# ---------------------------------------------------------------------------------------------------------------
# Predictions


def best_label(probabilities: Sequence[float], labels: Sequence[str]) -> Prediction:
    """Return the most probable label of a text, and the probability of each, (K)."""
    largest = max(probabilities)
    by_label = dict(zip(labels, probabilities, strict=True))
    return {"label": labels[probabilities.index(largest)], "probability": largest, "probabilities": by_label}


# ---------------------------------------------------------------------------------------------------------------
# Types of label


@dataclass(frozen=True)
class SingleLabel:
    """One of K names: softmax and cross entropy."""

    problem_type = "single_label_classification"  # in config.json
    main = "accuracy"  # the figure by which epochs are compared

    check = staticmethod(check_classes)
    target = staticmethod(label_number)  # the input of the loss

    def parse(self, given: object, where: str) -> str | int:
        """Return the class, see as_label. Raises ValueError, with its place, for anything else, several labels too."""
        value = array_in(given, where) if isinstance(given, str) else given
        if isinstance(value, ARRAYS) and len(value) > 1:
            raise ValueError(
                f"{where} has the label {brief(given)}, which is an array; several labels of a text are learned by "
                f"`minibert finetune classify` with a separator" + advice(", {}", separator=",")
            )
        return as_label(given, where)

    def named(self, given: Sequence[str | int]) -> tuple[list[str], list[str]]:
        """Return the name of each label, and all names in order: strings sorted, integers by value."""
        labels = list(map(str, given))
        return labels, sorted(set(labels)) if isinstance(next(iter(given), ""), str) else in_order(labels)

    def predictions(self, scores: Doubles, labels: Sequence[str]) -> list[Prediction]:
        """Return the label of the largest logit, with p = softmax(logits); (N, K)."""
        return [best_label(row, labels) for row in softmax(scores, axis=1).tolist()]

    def measure(self, answers: Sequence[Prediction], true: Sequence[str], labels: Sequence[str]) -> Measure:
        """Return accuracy, macro F1, scores by class, confusion; of two classes also Matthews' correlation and F1."""
        predicted = [answer["label"] for answer in answers]
        evaluation = metrics.evaluate(true, predicted, labels)
        [(usual, rows)] = Counter(true).most_common(1)
        accuracy = evaluation.accuracy
        macro = float(f1_score(true, predicted, average="macro"))
        figures = asdict(evaluation) | {"majority": rows / len(true), "macro_f1": macro}
        figures["degenerate"] = accuracy == rows / len(true)
        lines = [
            metrics.accuracy_text(accuracy, len(true), f"majority class {usual!r} {rows / len(true):.3f}"),
            metrics.class_table("by class", evaluation.classes),
            block("macro F1", f"{macro:.3f}"),
            beside("confusion", metrics.confusion_table(evaluation, labels)),
        ]
        if len(labels) == 2:
            matthews = float(matthews_corrcoef(true, predicted))
            f1 = evaluation.classes[labels[1]].f1
            figures |= {"matthews": matthews, "f1": f1, "positive": labels[1]}
            lines.append(block("two classes", f"Matthews' correlation {matthews:.3f}, F1 of {labels[1]!r} {f1:.3f}"))
        return Measure(figures, self.main, "\n".join(lines))

    def cells_of(self, answer: Prediction) -> list[str]:
        """Return the first columns of a printed line: the label and its probability."""
        return [answer["label"], f"{answer['probability']:.4f}"]


@dataclass(frozen=True)
class MultiLabel:
    """Any of K names, or none: an independent sigmoid and binary cross entropy for each.

    In a file the names are joined by `separator`, or a cell is an array, as in .jsonl: ["plot", "cast"]. In Python they
    are a list of names for each text, a str as in a file, or a matrix of 0 and 1, (N, K), also sparse or a frame, whose
    columns are named 0, 1, 2, ...

    Arrays of numbers, of a file or in a list, are the rows of such a matrix if all have the same length and only 0 and
    1; else they are numbers of labels, [[0, 2], [1]], each at most once in a row. Joined text with 0 or 1 twice, as
    0|1|1, is such an array.
    """

    separator: str

    problem_type = "multi_label_classification"
    main = "f1"

    def parse(self, given: object, where: str) -> tuple[str | int, ...] | NDArray[np.int64]:
        """Return the names or numbers, sorted, without repetitions, or an array of integers as it is.

        Raises ValueError, with their place, for anything else.
        """
        if isinstance(given, np.ndarray) and given.dtype.kind in "bif" and np.all((given == 0) | (given == 1)):
            return given.astype(np.int64)
        cell = array_in(given.strip(), where) if isinstance(given, str) else given
        if isinstance(cell, str):
            cell = [item.strip() for item in cell.split(self.separator)] if cell else []
            zeros_and_ones = len(cell) > len(set(cell)) and set(cell) <= {"0", "1"}  # not names, of which none is twice
            cell = [int(item) for item in cell] if zeros_and_ones else set(cell)
        items = [as_label(item, where) for item in (cell if isinstance(cell, (*ARRAYS, set, frozenset)) else [cell])]
        if isinstance(cell, ARRAYS) and not any(isinstance(item, str) for item in items):
            return np.array(items, dtype=np.int64)
        return tuple(sorted({item.strip() if isinstance(item, str) else item for item in items}, key=str))

    def named(self, given: Sequence[tuple[str | int, ...] | NDArray[np.int64]]) -> tuple[list[Names], list[str]]:
        """Return the names of each text, and all names in order; the names in a matrix are the numbers of its columns.

        Raises ValueError for arrays that may be either a matrix of 0 and 1 or numbers of labels, or that are neither.
        """
        if is_matrix(given):
            if len(given[0]) == 1:
                raise ValueError(
                    "the labels are arrays of one number, 0 or 1: the only column of a matrix, or the labels 0 and 1? "
                    "Give a numpy matrix, or names instead of numbers"
                )
            return of_matrix(given)
        for row, numbers in enumerate(given):
            if isinstance(numbers, np.ndarray) and len(set(numbers.tolist())) < len(numbers):
                raise ValueError(
                    f"row {row} has the labels {brief(numbers.tolist())}; rows of a matrix have the same length and "
                    "only 0 and 1, and numbers of labels are all different"
                )
        labels = [tuple(map(str, row if isinstance(row, tuple) else sorted(row.tolist()))) for row in given]
        names = {name for row in labels for name in row}
        return labels, sorted(names) if any(isinstance(label, str) for row in given for label in row) else in_order(
            names
        )

    def check(self, labels: Sequence[Names]) -> None:
        """Raise ValueError if there is nothing to learn: all rows have the same labels, or every label occurs once."""
        counts = Counter(name for row in labels for name in row)
        if len(set(labels)) < 2 or counts.total() == len(counts) == len(labels) > 2:
            raise ValueError(
                f"the labels of {counted(len(labels), 'row')} cannot be learned: all have the same ones, or no two "
                f"rows share one ({listed(list(counts))}); is {self.separator!r} the separator?"
            )

    def target(self, label: Names, numbers: Mapping[str, int], where: str) -> list[float]:
        """Return the input of the loss, (K): 1 at each label of the text, 0 elsewhere."""
        chosen = {label_number(name, numbers, where) for name in label}
        return [float(number in chosen) for number in range(len(numbers))]

    def predictions(self, scores: Doubles, labels: Sequence[str]) -> list[Prediction]:
        """Return the labels with p = sigmoid(logit) above one half, and the probability of each label; (N, K)."""
        by_label = [dict(zip(labels, row, strict=True)) for row in expit(scores).tolist()]
        chosen = [{label: p for label, p in row.items() if p > 0.5} for row in by_label]
        return [
            {"labels": tuple(likely), "probability": tuple(likely.values()), "probabilities": row}
            for likely, row in zip(chosen, by_label, strict=True)
        ]

    def measure(self, answers: Sequence[Prediction], true: Sequence[Names], labels: Sequence[str]) -> Measure:
        """Return F1 over all labels, its mean over the labels, exact matches and scores by label."""
        true_sets = [set(row) for row in true]
        predicted = [set(answer["labels"]) for answer in answers]
        metrics.warn_if_constant([", ".join(sorted(row)) for row in predicted])
        overall, classes = metrics.class_scores(true_sets, predicted, labels)
        exact = sum(a == b for a, b in zip(true_sets, predicted, strict=True)) / len(true)
        majority = max(Counter(map(frozenset, true)).values()) / len(true)
        figures: Figures = {
            "rows": len(true),
            "exact_match": exact,
            "standard_error": metrics.standard_error(exact, len(true)),
            "f1": overall.f1,
            "macro_f1": sum(score.f1 for score in classes.values()) / len(labels),
            "labels": list(labels),
            "classes": {label: asdict(score) for label, score in classes.items()},
            "majority": majority,
            "degenerate": exact == majority,
        }
        text = "{exact_match:.3f} ± {standard_error:.3f} (standard error); majority {majority:.3f}"
        lines = [
            block("F1", "{f1:.3f} over all labels, mean over the labels {macro_f1:.3f}".format(**figures)),
            block("exact match", text.format(**figures)),
            metrics.class_table("by label", classes),
        ]
        return Measure(figures, self.main, "\n".join(lines))

    def cells_of(self, answer: Prediction) -> list[str]:
        """Return the first columns of a printed line: the labels and their probabilities, joined."""
        return [self.separator.join(answer["labels"]), self.separator.join(f"{p:.4f}" for p in answer["probability"])]


@dataclass(frozen=True)
class Regression:
    """A number: one output and the squared error."""

    problem_type = "regression"
    main = "pearson"

    def parse(self, given: object, where: str) -> float:
        """Return a float that is finite in float32. Raises ValueError, with its place, for anything else."""
        return as_number(given, where, "label", " (in a header, name the columns: --text, --label)")

    def named(self, given: Sequence[float]) -> tuple[list[float], list[str]]:
        """Return the numbers, and the one output, named as in transformers."""
        return list(given), ["LABEL_0"]

    def check(self, labels: Sequence[float]) -> None:
        """Raise ValueError for numbers that are all equal."""
        if len(set(labels)) < 2:
            raise ValueError(
                f"the labels of {counted(len(labels), 'row')} cannot be learned: a regression needs different numbers"
            )

    def target(self, label: float, numbers: Mapping[str, int], where: str) -> float:
        """Return the input of the loss: the number itself. Raises ValueError for a model of several numbers."""
        if len(numbers) > 1:
            raise ValueError(f"{where} has one number, and the model predicts {len(numbers)}: {listed([*numbers])}")
        return label

    def predictions(self, scores: Doubles, labels: Sequence[str]) -> list[Prediction]:
        """Return the outputs, (N, K), by name if there are several."""
        several = len(labels) > 1
        return [
            {"values": dict(zip(labels, row, strict=True))} if several else {"value": row[0]} for row in scores.tolist()
        ]

    def measure(self, answers: Sequence[Prediction], true: Sequence[float], labels: Sequence[str]) -> Measure:
        """Return Pearson's and Spearman's correlation, the RMSE, and the RMSE of always predicting the mean."""
        values = [answer["value"] for answer in answers]
        figures: Figures = {
            "rows": len(true),
            "pearson": metrics.correlation(true, values),
            "spearman": metrics.correlation(rankdata(true), rankdata(values)),
            "rmse": float(root_mean_squared_error(true, values)),
            "rmse_of_mean": float(np.std(true)),
            "degenerate": len(set(values)) == 1,
        }
        lines = [
            block("correlation", "Pearson {pearson:.3f}, Spearman {spearman:.3f}, {rows:,} rows".format(**figures)),
            block("error", "{rmse:.4g} (RMSE); of the mean {rmse_of_mean:.4g}".format(**figures)),
        ]
        return Measure(figures, self.main, "\n".join(lines))

    def cells_of(self, answer: Prediction) -> list[str]:
        """Return the first columns of a printed line."""
        return [f"{value:.6g}" for value in answer.get("values", answer).values()]


LabelType = SingleLabel | MultiLabel | Regression


# ---------------------------------------------------------------------------------------------------------------
# Rare classes


def class_weights(
    rows: Sequence[str], labels: Sequence[str], how: str | Mapping[Any, float] = "balanced"
) -> list[float]:
    """Return the weight of each of the K labels in the loss.

    rows: the label of each text; each label is among them. how: "balanced", rows / (K · rows of the class), as in
    scikit-learn; or a weight for each label, 1 by default. Raises ValueError for anything else.
    """
    if how == "balanced":
        counts = Counter(rows)
        return [len(rows) / (len(labels) * counts[label]) for label in labels]
    pairs = how.items() if isinstance(how, Mapping) else [(" ", 0.0)]  # no label is blank
    given = {
        str(label if isinstance(label, str) else as_label(label, "class_weight")): as_float(x) for label, x in pairs
    }
    weights = [given.get(label, 1.0) for label in labels]
    if not given.keys() <= set(labels) or not any(weights) or not all(0 <= weight < np.inf for weight in weights):
        raise ValueError(
            named("class_weight") + f" is {brief(how)}; it must be 'balanced', or weights of at least 0, "
            f"one of them above 0, for labels of {listed(list(labels))}"
        )
    return weights
