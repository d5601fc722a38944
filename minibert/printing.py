"""How results are printed: a name in the first column, values in aligned, short lines beside it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minibert.tasks.frozen import Classifier, Evaluation

MARGIN = 15  # columns for the name
WIDTH = 96


def block(name: str, *paragraphs: str) -> str:
    """A name and what there is to say; each paragraph begins a line, and long ones are wrapped."""
    lines = [line for text in paragraphs for line in wrap(text)]
    return textwrap.indent("\n".join(lines), " " * MARGIN).replace(" " * MARGIN, f"{name:<{MARGIN}}", 1)


def wrap(text: str) -> list[str]:
    """Lines that fit beside the margin; a path is never broken."""
    return textwrap.wrap(text, WIDTH - MARGIN, break_long_words=False, break_on_hyphens=False)


def table(rows: Sequence[Sequence[object]], left: int = 1) -> str:
    """Rows with aligned columns: the first `left` to the left, the others to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def line(row: list[str]) -> str:
        return "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()

    return "\n".join(line(row) for row in cells)


def folded(columns: Sequence[Sequence[object]]) -> str:
    """Columns aligned to the right, in as many tables one below the other as the width needs."""
    parts: list[list[Sequence[object]]] = [[]]
    room = WIDTH - MARGIN
    for column in columns:
        width = max(len(str(cell)) for cell in column) + 2
        if width > room and parts[-1]:
            parts.append([])
            room = WIDTH - MARGIN
        parts[-1].append(column)
        room -= width
    return "\n".join(table(list(zip(*part, strict=True)), left=0) for part in parts)


def beside(name: str, lines: str) -> str:
    """A name with a table beside it, which is not wrapped."""
    first, *others = lines.splitlines()
    return "\n".join([f"{name:<{MARGIN}}{first}", *(" " * MARGIN + line for line in others)])


def named(labels: Iterable[str], meaning: Mapping[str, str]) -> list[str]:
    """The labels, each with its meaning where there is one: "1 positive"."""
    return [f"{label} {meaning[label]}" if label in meaning else label for label in labels]


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


def score_table(classifier: Classifier) -> str:
    """The cross-validated accuracy at each C that was tried, the chosen one marked."""
    if not classifier.scores:
        return block("accuracy", f"not measured, too few rows or folds; C = {classifier.C:g}")
    best = classifier.score
    if best and len(classifier.scores) == 1:
        spread = f"mean and standard deviation over {classifier.folds} folds, C = {best.C:g}"
        return block("accuracy", f"{best.mean:.3f} ± {best.std:.3f} ({spread})")
    rows = [
        [f"{score.C:g}", f"{score.mean:.4f}", f"{score.std:.4f}", "chosen" if score is best else ""]
        for score in classifier.scores
    ]
    heading = [["C", "accuracy", "std", f"over {classifier.folds} folds"]]
    return beside("accuracy", table(heading + rows, left=0))
