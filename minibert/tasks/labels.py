"""What the label of a text is: one of several names, any of them, or a number.

    a cell of a file -> label -> target of the loss;     logits, (N, K) -> answers -> figures

The three kinds, OneLabel, SeveralLabels and Number, answer the same questions; classification.py asks them.

    N texts     K labels; of a number one output
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from minibert.printing import beside, block
from minibert.tasks import metrics
from minibert.tasks.base import Measure
from minibert.tasks.frozen import as_label, check_classes
from minibert.text.tables import listed

LARGEST = float(np.finfo(np.float32).max)  # the logits of a model are float32
Scores = NDArray[np.float64]


# ---------------------------------------------------------------------------------------------------------------
# Answers


@dataclass(frozen=True)
class Answer:
    """The most probable label of a text."""

    label: str
    probability: float
    probabilities: tuple[float, ...]  # (K), in the order of the labels; their sum is 1


@dataclass(frozen=True)
class SeveralAnswer:
    """The labels of a text that are more probable than not."""

    labels: tuple[str, ...]
    probability: tuple[float, ...]  # of each of these
    probabilities: tuple[float, ...]  # (K), in the order of the labels; each is between 0 and 1 by itself


# ---------------------------------------------------------------------------------------------------------------
# What a label is


class Kind(ABC):
    """What a label is, from the file to the figures."""

    problem_type: ClassVar[str]  # what config.json says of the loss
    main: ClassVar[str]
    cells: ClassVar[str]  # what stands in a column of labels: see text.tables.Column

    @abstractmethod
    def label(self, given: object, where: str) -> Any:
        """A label as Texts has it. Raises ValueError, naming where, for what is none."""

    @abstractmethod
    def words(self, labels: Sequence[Any]) -> list[str]:
        """All names in the labels of some rows, in their order, by which a header is known that was taken for a row."""

    @abstractmethod
    def names(self, labels: Sequence[Any]) -> list[str]:
        """The K names, sorted. Raises ValueError where nothing can be learned."""

    @abstractmethod
    def target(self, label: Any, numbers: Mapping[str, int], where: str) -> Any:
        """What the loss is given. Raises ValueError, naming where, for a name that has no number."""

    @abstractmethod
    def answers(self, scores: Scores, labels: Sequence[str]) -> list[Any]:
        """What logits, (N, K), say."""

    @abstractmethod
    def measure(self, answers: Sequence[Any], true: Sequence[Any], labels: Sequence[str]) -> Measure:
        """The answers against the truth."""

    @abstractmethod
    def shown(self, answer: Any) -> list[str]:
        """The answer as the first columns of a line."""


@dataclass(frozen=True)
class OneLabel(Kind):
    """One of K names: softmax and cross entropy."""

    problem_type = "single_label_classification"
    main = "accuracy"
    cells = "name"

    def label(self, given: object, where: str) -> str:
        """Names as they are; whole numbers become names."""
        return as_label(given, where)

    def words(self, labels: Sequence[str]) -> list[str]:
        """The labels are names."""
        return list(labels)

    def names(self, labels: Sequence[str]) -> list[str]:
        """Refuses labels of one class, and a class for each row."""
        check_classes(labels, len(labels), least=1)
        return sorted(set(labels))

    def target(self, label: str, numbers: Mapping[str, int], where: str) -> int:
        """The number of the label."""
        return number_of(label, numbers, where)

    def answers(self, scores: Scores, labels: Sequence[str]) -> list[Answer]:
        """The label of the largest logit, with p = softmax(logits)."""
        p = softmax(scores)
        return [
            Answer(labels[best], float(row[best]), tuple(row.tolist()))
            for best, row in zip(p.argmax(axis=1), p, strict=True)
        ]

    def measure(self, answers: Sequence[Answer], true: Sequence[str], labels: Sequence[str]) -> Measure:
        """Accuracy, scores by class and confusion; for two classes Matthews' correlation, and F1 of the second one."""
        found = metrics.compare(true, [answer.label for answer in answers], labels)
        usual, majority = metrics.commonest(true)
        figures = asdict(found) | {"majority": majority, "degenerate": found.accuracy == majority}
        rows = f"{found.rows:,} rows; always {usual!r} has {majority:.3f}"
        told = [block("accuracy", f"{metrics.accuracy(found)} (standard error), {rows}")]
        if len(labels) == 2:
            matthews, f1 = metrics.matthews(found.confusion), found.classes[labels[1]].f1
            figures |= {"matthews": matthews, "f1": f1, "positive": labels[1]}
            told.append(block("two classes", f"Matthews' correlation {matthews:.3f}, F1 of {labels[1]!r} {f1:.3f}"))
        told.append(beside("by class", metrics.class_table(found, labels)))
        told.append(beside("confusion", metrics.confusion_table(found, labels)))
        return Measure(figures, self.main, "\n".join(told))

    def shown(self, answer: Answer) -> list[str]:
        """The label and its probability."""
        return [answer.label, f"{answer.probability:.4f}"]


@dataclass(frozen=True)
class SeveralLabels(Kind):
    """Any of K names, or none: for each by itself a sigmoid and binary cross entropy.

    In a file they are joined by `separator`; in Python they are a list of names for each text, a text with names so
    joined, or a matrix of 0 and 1, (N, K), whose columns are called 0, 1, 2 ...
    """

    separator: str

    problem_type = "multi_label_classification"
    main = "f1"
    cells = "names"

    def label(self, given: object, where: str) -> tuple[str, ...]:
        """Each name once, sorted."""
        if isinstance(given, str):
            given = given.split(self.separator) if given.strip() else []
        elif isinstance(given, np.ndarray) and given.dtype.kind in "bif":
            if not np.isin(given, (0, 1)).all():
                raise ValueError(f"{where} has labels {given.tolist()}; a row of the matrix of labels holds 0 and 1")
            given = given.nonzero()[0].tolist()
        if not isinstance(given, Iterable):
            raise ValueError(
                f"{where} has the labels {given!r}; a list of names is wanted, or one text of them, joined"
            )
        return tuple(sorted({as_label(one, where).strip() for one in given}))

    def words(self, labels: Sequence[tuple[str, ...]]) -> list[str]:
        """The names of all rows."""
        return [name for row in labels for name in row]

    def names(self, labels: Sequence[tuple[str, ...]]) -> list[str]:
        """Refuses rows that all have the same labels, and names that no two rows share."""
        counts = Counter(self.words(labels))
        if len(set(labels)) < 2:
            same = f"all {len(labels)} rows have the same labels: {listed(list(labels[0]))}" if labels else "no rows"
            raise ValueError(f"{same}; a classifier needs texts that differ in their labels")
        if len(counts) == len(labels) > 2 and set(counts.values()) == {1}:
            raise ValueError(
                f"there are {len(counts)} labels in {len(labels)} rows, each in one alone; "
                f"are they joined by {self.separator!r}, the separator?"
            )
        return sorted(counts)

    def target(self, label: tuple[str, ...], numbers: Mapping[str, int], where: str) -> list[float]:
        """1 at each label of the text, 0 elsewhere, (K)."""
        row = [0.0] * len(numbers)
        for name in label:
            row[number_of(name, numbers, where)] = 1.0
        return row

    def answers(self, scores: Scores, labels: Sequence[str]) -> list[SeveralAnswer]:
        """The labels with p = sigmoid(logit) above one half."""
        p = np.exp(-np.logaddexp(0, -scores))  # 1 / (1 + exp(-score)), which cannot overflow
        found = []
        for row in p.tolist():
            chosen = {label: one for label, one in zip(labels, row, strict=True) if one > 0.5}
            found.append(SeveralAnswer(tuple(chosen), tuple(chosen.values()), tuple(row)))
        return found

    def measure(
        self, answers: Sequence[SeveralAnswer], true: Sequence[tuple[str, ...]], labels: Sequence[str]
    ) -> Measure:
        """F1 of all labels together, the mean of F1 over the labels, texts with all labels right, scores by label."""
        found = metrics.compare_several(true, [answer.labels for answer in answers], labels)
        _, majority = metrics.commonest([frozenset(row) for row in true])
        figures = asdict(found) | {"majority": majority, "degenerate": found.exact_match == majority}
        exact = f"{found.exact_match:.3f} ± {found.standard_error:.3f} (standard error), {found.rows:,} rows"
        told = [
            block("F1", f"{found.f1:.3f} of all labels together, {found.macro_f1:.3f} as a mean over the labels"),
            block("all right", f"{exact}; always the commonest labels has {majority:.3f}"),
            beside("by label", metrics.class_table(found, labels)),
        ]
        return Measure(figures, self.main, "\n".join(told))

    def shown(self, answer: SeveralAnswer) -> list[str]:
        """The labels and their probabilities, joined alike; two empty columns where there is none."""
        numbers = [f"{one:.4f}" for one in answer.probability]
        return [self.separator.join(answer.labels), self.separator.join(numbers)]


@dataclass(frozen=True)
class Number(Kind):
    """A number (regression): one output and the squared error."""

    problem_type = "regression"
    main = "pearson"
    cells = "number"

    def label(self, given: object, where: str) -> float:
        """Finite, as float32 too."""
        try:
            number = float(given)  # type: ignore[arg-type]  # what is no number is told from it by this
        except (TypeError, ValueError):
            hint = "; if it stands in a header, name the columns, text= and label= (--text, --label)"
            raise ValueError(
                f"{where} has the label {given!r}; regression needs numbers{hint if isinstance(given, str) else ''}"
            ) from None
        if not abs(number) <= LARGEST:  # NaN is not
            raise ValueError(f"{where} has the label {given!r}; regression needs finite numbers up to {LARGEST:.2g}")
        return number

    def words(self, labels: Sequence[float]) -> list[str]:
        """None: a header is no number."""
        return []

    def names(self, labels: Sequence[float]) -> list[str]:
        """The one output, as transformers calls it. Refuses numbers that are all equal."""
        if len(set(labels)) < 2:
            raise ValueError(
                f"all {len(labels)} labels are {labels[0]:g}; a regression needs numbers that differ"
                if labels
                else "there are no rows; a regression needs texts with numbers"
            )
        return ["LABEL_0"]

    def target(self, label: float, numbers: Mapping[str, int], where: str) -> float:
        """The number itself."""
        return label

    def answers(self, scores: Scores, labels: Sequence[str]) -> list[float]:
        """The one output."""
        return [float(score) for (score,) in scores]

    def measure(self, answers: Sequence[float], true: Sequence[float], labels: Sequence[str]) -> Measure:
        """Pearson's and Spearman's correlation, the root of the mean squared error, and that of always the mean."""
        errors, spread = np.subtract(answers, true), np.subtract(true, np.mean(true))
        figures: dict[str, Any] = {
            "rows": len(true),
            "pearson": metrics.pearson(true, answers),
            "spearman": metrics.spearman(true, answers),
            "rmse": metrics.root_mean_square(errors),
            "rmse_of_mean": metrics.root_mean_square(spread),
        }
        figures["degenerate"] = len(set(answers)) == 1
        told = [
            block("correlation", "Pearson {pearson:.3f}, Spearman {spearman:.3f}, {rows:,} rows".format(**figures)),
            block("error", "{rmse:.4g} (root mean square); always the mean has {rmse_of_mean:.4g}".format(**figures)),
        ]
        return Measure(figures, self.main, "\n".join(told))

    def shown(self, answer: float) -> list[str]:
        """The number."""
        return [f"{answer:.6g}"]


def number_of(name: str, numbers: Mapping[str, int], where: str) -> int:
    """The number of a label. Raises ValueError, with those that are known, for one that has none."""
    if name not in numbers:
        raise ValueError(
            f"{where} has the label {name!r}, and the model knows {listed(list(numbers))}; "
            "mend the row, or train with texts of that label too"
        )
    return numbers[name]


def finite(logits: NDArray[np.float32], place: Callable[[int], str]) -> Scores:
    """The logits, (N, K), in float64. Raises ValueError, naming the row, where one is NaN or infinite."""
    wrong = ~np.isfinite(logits).all(axis=1)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"{place(row)} has the logits {logits[row].tolist()}; the weights of the model are damaged")
    return logits.astype(np.float64)


def softmax(scores: Scores) -> Scores:
    """exp(s_i) / Σ_j exp(s_j) of each row."""
    p: Scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return p


# ---------------------------------------------------------------------------------------------------------------
# Rare classes


def class_weights(
    rows: Sequence[str], labels: Sequence[str], how: str | Mapping[Any, float] = "balanced"
) -> list[float]:
    """How much each of the K labels counts in the loss, by the labels of all rows.

    how: "balanced", rows / (K · rows of the class), so that all classes count alike, as in scikit-learn; or weights by
    label, 1 for those that are not named. Raises ValueError for anything else.
    """
    if isinstance(how, Mapping):
        given = {as_label(label, "class_weight"): weight for label, weight in how.items()}
        for label, weight in given.items():
            if label not in labels:
                raise ValueError(f"class_weight names {label!r}, which is no label; there are {listed(list(labels))}")
            if not (isinstance(weight, int | float) and 0 <= weight < math.inf):
                raise ValueError(f"class_weight of {label!r} is {weight!r}; it must be a number of at least 0")
        if not any(weights := [float(given.get(label, 1.0)) for label in labels]):
            raise ValueError("class_weight is 0 for all classes; nothing is left to learn from")
        return weights
    if how != "balanced":
        raise ValueError(f"class_weight is {how!r}; choose balanced, or give the weight of each label")
    counts = Counter(rows)
    if missing := [label for label in labels if not counts[label]]:
        raise ValueError(f"class_weight is 'balanced', and no row has the label {missing[0]!r}")
    return [len(rows) / (len(labels) * counts[label]) for label in labels]
