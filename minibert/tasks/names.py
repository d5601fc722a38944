"""The names of labels: what is accepted as a label, and in which order a model has them.

A model knows its labels by name, in the order of config.id2label and of the columns of its logits. The order is as in
scikit-learn: integers by value, strings sorted. Numbers in the text of a file count as numbers: 0, 1, 2, 10. A matrix
of 0 and 1 keeps all of its columns, also one that is never 1. A head that is trained already keeps its order.

    N texts     K labels
"""

import ast
import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np

from minibert.config import Config
from minibert.utils.files import parse_json
from minibert.utils.printing import brief, counted

Names = tuple[str, ...]  # of the labels of a text
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?", re.ASCII)  # a name that is a number
COMMA = re.compile(r"[+-]?\d*,\d+(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)  # a number with a decimal comma, perhaps
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}", re.ASCII)  # 1,234 is 1234 to some and 1.234 to others
REGRESSION = "; `minibert finetune classify --regression` learns numbers"
UNNAMED = "LABEL_"  # transformers calls labels without names LABEL_0, LABEL_1, ...
ITEM = r"""(\d+(\.\d*)?|True|False|'[^']*'|"[^"]*")"""
PRINTED = re.compile(rf"\[\s*{ITEM}(\s+{ITEM})+\s*\]", re.ASCII)  # as numpy prints an array: [0 1 1], ['a' 'b']
ARRAYS = (list, tuple, np.ndarray)
LARGEST = float(np.finfo(np.float32).max)  # the logits of a model are float32


def label_names(config: Config) -> list[str]:
    """Return the labels of a checkpoint in the order of its logits.

    Raises ValueError for a label without a name, or with the name of another one.
    """
    names: dict[str, int] = {}
    for number, name in sorted(config.id2label.items()):
        if not isinstance(name, str) or name in names:
            problem = "twice" if isinstance(name, str) else f"as the name of {number}, which is not a text,"
            raise ValueError(f"config.json has the label {brief(name)} {problem} in id2label; each needs its own name")
        names[name] = number
    return list(names)


# ---------------------------------------------------------------------------------------------------------------
# What is accepted


def as_label(label: object, where: str) -> str | int:
    """Return one class: a name, a bool, or an integer; 1.0 is the integer 1, as in scikit-learn.

    Raises ValueError, with its place, for anything else.
    """
    if isinstance(label, str) and label.strip():
        return str(label)
    if isinstance(label, bool | np.bool_):
        return bool(label)
    if isinstance(label, int | np.integer) or (isinstance(label, float | np.floating) and float(label).is_integer()):
        return int(label)
    hint = REGRESSION if isinstance(label, float | np.floating) else ""
    raise ValueError(f"{where} has the label {brief(label)}; each row needs the name of its class, or an integer{hint}")


def as_float(value: object) -> float:
    """Return a number as a float; NaN for anything else, also for an integer that no float can hold."""
    try:
        return float(value)  # type: ignore[arg-type]  # raises TypeError
    except (TypeError, ValueError, OverflowError):
        return math.nan


def as_number(value: object, place: str, what: str = "score", hint: str = "") -> float:
    """Return a number that float32 can hold. Raises ValueError, with its place, for anything else."""
    if not abs(number := as_float(value)) <= LARGEST:  # NaN is not
        raise ValueError(
            f"{place} has the {what} {brief(value)}; it must be a finite number, up to {LARGEST:.3g}{hint}"
        )
    return number


def are_several(labels: Any) -> bool:
    """Return whether these are several labels for each text: a matrix, or lists."""
    if hasattr(labels, "ndim"):
        return bool(labels.ndim == 2 and labels.shape[1] > 1)
    several = isinstance(labels, Iterable) and not isinstance(labels, str)
    return several and any(isinstance(label, ARRAYS) for label in labels)


def as_labels(labels: object, rows: int, parse: Callable[[object, str], Any], axes: int) -> list[Any]:
    """Return the labels, row by row, each by `parse`.

    rows: how many there must be. axes: 2 allows a matrix, with one row for each text. Raises TypeError for anything but
    a column of labels, ValueError for another number of them, for names mixed with numbers, and what `parse` raises.
    """
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable) or getattr(labels, "ndim", 1) > axes:
        raise TypeError(f"labels are of type {type(labels).__name__}; pass one column, a label for each text")
    column = np.asarray(labels) if hasattr(labels, "ndim") else labels  # iterating a frame gives its column names
    values = [parse(label, f"row {row}") for row, label in enumerate(column)]
    if len(values) != rows:
        raise ValueError(f"there are {counted(rows, 'text')} and {counted(len(values), 'label')}; each text needs one")
    known = [row for row, label in enumerate(values) if isinstance(label, int | float) or len(label)]
    first = {type(values[row]): row for row in reversed(known)}
    if len(first) > 1:
        one, other = sorted(first.values())[:2]
        raise ValueError(
            f"row {one} has the label {brief(values[one])} and row {other} {brief(values[other])}; labels must be all "
            "names, all integers or all booleans"
        )
    return values


def array_in(cell: str, where: str) -> str | list[Any]:
    """Return the items of a text that is a JSON array or a list as Python prints it; any other text as it is.

    Raises ValueError, with its place, for an array as numpy prints it.
    """
    if not cell.startswith("["):
        return cell
    if PRINTED.fullmatch(cell):  # Python would read 'a' 'b' as one text
        raise ValueError(f"{where} has the label {brief(cell)}; write an array as JSON, with commas: [0, 1, 1]")
    value = parsed(cell)
    return value if isinstance(value, list) else cell


def parsed(cell: str) -> Any:
    """Return the value of a text that is JSON, or a value as Python prints it; None for any other."""
    for parse in (parse_json, ast.literal_eval):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return parse(cell)
    return None


def with_points(cells: Sequence[Any], places: Sequence[str]) -> list[Any]:
    """Return the cells of a column of numbers with points in place of decimal commas: 3,5 as 3.5.

    Raises ValueError, with its place, for a comma that may separate thousands, and for points beside commas.
    """
    commas = [row for row, cell in enumerate(cells) if isinstance(cell, str) and COMMA.fullmatch(cell)]
    points = [row for row, cell in enumerate(cells) if isinstance(cell, str) and "." in cell]
    if commas and (points or all(THOUSANDS.fullmatch(cells[row]) for row in commas)):
        beside = f", and {places[points[0]]} {brief(cells[points[0]])}" if points else ", which may also be thousands"
        raise ValueError(
            f"{places[commas[0]]} has the label {brief(cells[commas[0]])}{beside}; write all numbers with a decimal "
            "point and without separators of thousands"
        )
    pointed = list(cells)
    for row in commas:
        pointed[row] = cells[row].replace(",", ".")
    return pointed


def without_points(cells: list[Any]) -> list[Any]:
    """Return the cells of a column of integers without points: pandas writes 1.0 for 1 if a cell is missing."""
    whole = [re.fullmatch(r"([+-]?\d+)(\.0+)?", str(cell), re.ASCII) for cell in cells]
    return [match[1] for match in whole if match] if all(whole) else cells


def is_matrix(rows: Sequence[object]) -> bool:
    """Return whether these are rows of a matrix of labels: arrays of the same length, at least 1, of only 0 and 1."""
    arrays = [row for row in rows if isinstance(row, np.ndarray) and row.size]
    same = len(arrays) == len(rows) and len({row.size for row in arrays}) == 1
    return same and bool(np.isin(np.stack(arrays), (0, 1)).all())


def of_matrix(rows: Sequence[Any]) -> tuple[list[Names], list[str]]:
    """Return the names of each row of a matrix of 0 and 1, (N, K), and the names of all columns: 0, 1, 2, ...

    Raises ValueError, with the row, for other numbers.
    """
    matrix = np.stack(rows)
    if len(wrong := np.argwhere(~np.isin(matrix, (0, 1)))):
        row = int(wrong[0][0])
        raise ValueError(f"row {row} has the labels {brief(matrix[row].tolist())}; a matrix has only 0 and 1")
    names = [str(number) for number in range(matrix.shape[1])]
    return [tuple(names[at] for at in row.nonzero()[0].tolist()) for row in matrix], names


# ---------------------------------------------------------------------------------------------------------------
# Order


def in_order(names: Iterable[str]) -> list[str]:
    """Return the different names, sorted; by value if all are numbers: 0, 1, 2, 10."""
    different = sorted(set(names))
    return sorted(different, key=Decimal) if all(map(NUMBER.fullmatch, different)) else different


def as_numbers(known: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return the labels of a model, LABEL_0, LABEL_1, ... as 0, 1, ... if the data has such numbers among `names`."""
    plain = [name.removeprefix(UNNAMED) for name in known]
    return plain if set(names) & set(plain) else list(known)


def in_order_of(known: Sequence[str], names: Sequence[str]) -> list[str] | None:
    """Return the names in the order of a head that knows the labels `known`; None if it knows others.

    LABEL_0, LABEL_1, ... and 0, 1, ... are the same labels.
    """
    plain = {name.removeprefix(UNNAMED): name for name in names}
    order = [name.removeprefix(UNNAMED) for name in known]
    return [plain[name] for name in order] if sorted(order) == sorted(plain) and len(plain) == len(names) else None
