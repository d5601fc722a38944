"""What counts as a column of texts, or as pairs of texts: the one place where what a user gives is checked by row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

import numpy as np

from minibert.printing import brief

Row = str | tuple[str, str]  # a text, or a pair of texts
AnyRow = TypeVar("AnyRow", str, tuple[str, str], Row)

TEXTS = 4096  # in a portion: enough of each length for full batches
CHARACTERS = 2_000_000  # in a portion of long texts, whose ids take some hundred bytes each while they are made
PAIRS_HINT = "pass pairs as two columns: tokenizer(first, second), embed(first, pairs=second)"


def as_texts(texts: object, *, missing: str = "error") -> list[str]:
    """Make a list of str from any column of texts: list, tuple, 1-D array, Series of any index, generator.

    missing: "error" refuses None, NaN and pandas.NA; "empty" makes each an empty text.
    Raises TypeError for another container or a row that is no text, ValueError for a lone surrogate; both name
    the row. A generator is consumed, once.
    """
    if missing not in ("error", "empty"):
        raise ValueError(f"missing is {brief(missing)}; it must be 'error' or 'empty'")
    if isinstance(texts, str):
        raise TypeError("texts is one str, not a list of texts; write [text] for a list of one")
    if isinstance(texts, (bytes, bytearray, Mapping, set, frozenset)) or not isinstance(texts, Iterable):
        raise TypeError(
            f"texts is of type {type(texts).__name__}; a list, a tuple, a 1-D array, a Series or a "
            "generator of texts is wanted"
        )
    dimensions = getattr(texts, "ndim", 1)  # numpy arrays and pandas frames say how many they have
    if dimensions != 1:
        raise TypeError(
            f"texts is a {type(texts).__name__} with {dimensions} dimensions, one column is wanted; {PAIRS_HINT}"
        )
    return [as_text(text, row, missing) for row, text in enumerate(texts)]


def as_text(text: object, row: int, missing: str) -> str:
    """One row as a str, or the TypeError or ValueError that names it."""
    if not isinstance(text, str):
        if (name := name_of_missing(text)) is None:
            hint = f"; {PAIRS_HINT}" if isinstance(text, (list, tuple)) else ""
            raise TypeError(f"row {row} is of type {type(text).__name__}, not a text{hint}")
        if missing == "error":
            raise TypeError(f"row {row} is {name}, not a text; use missing='empty' to treat it as an empty text")
        return ""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"row {row} has a lone surrogate (U+{ord(text[error.start]):04X}, half a character) at "
            f"character {error.start}; read the text as UTF-8, or use "
            "text.encode(errors='replace').decode() to put ? there"
        ) from None
    return text


def name_of_missing(value: object) -> str | None:
    """How a missing text is called in a message, None where the value is not missing; needs no pandas."""
    if value is None:
        return "None"
    if isinstance(value, (float, np.floating)) and math.isnan(value):
        return "NaN"
    return {"NAType": "NA", "NaTType": "NaT"}.get(type(value).__name__)


def portions(rows: Iterable[AnyRow], most: int = TEXTS) -> Iterator[list[AnyRow]]:
    """Lists of up to `most` rows, and fewer where they reach CHARACTERS; the same rows make the same portions."""
    portion: list[AnyRow] = []
    characters = 0
    for row in rows:
        portion.append(row)
        characters += len(row) if isinstance(row, str) else len(row[0]) + len(row[1])
        if len(portion) == most or characters >= CHARACTERS:
            yield portion
            portion, characters = [], 0
    if portion:
        yield portion


# ---------------------------------------------------------------------------------------------------------------
# Pairs


def as_columns(texts: object, pairs: object, *, missing: str = "error") -> tuple[list[str], list[str] | None]:
    """Texts and their partners as lists of the same length; a str is one text, two are one pair.

    Raises what as_texts raises, TypeError for a str beside a list, ValueError for columns of different lengths.
    """
    first = as_texts([texts] if isinstance(texts, str) else texts, missing=missing)
    if pairs is None:
        return first, None
    if isinstance(texts, str) != isinstance(pairs, str):
        raise TypeError(
            f"texts is of type {type(texts).__name__} and pairs of type {type(pairs).__name__}; "
            "pass two texts or two lists of texts"
        )
    second = as_texts([pairs] if isinstance(pairs, str) else pairs, missing=missing)
    if len(first) != len(second):
        raise ValueError(f"there are {len(first)} texts and {len(second)} pairs; each text needs one partner")
    return first, second


def as_rows(texts: object, pairs: object = None, *, missing: str = "error") -> Sequence[Row]:
    """A column of texts as a list, or two columns as a list of pairs. Raises what as_columns raises."""
    if pairs is None:
        return as_texts(texts, missing=missing)
    first, second = as_columns(texts, pairs, missing=missing)
    return list(zip(first, second or [], strict=True))


def are_pairs(rows: Sequence[Row]) -> bool:
    """Whether rows are pairs of texts; they are all of one kind."""
    return bool(rows) and isinstance(rows[0], tuple)


def columns_of(table: Any) -> tuple[Any, Any]:
    """Texts and pairs of what may hold both, a data frame or a 2-D array: its first and its second column.

    pairs are None for a frame of one column, and for whatever is one column by itself. Raises TypeError for three.
    """
    shape: tuple[int, ...] = getattr(table, "shape", ())
    is_frame = hasattr(table, "iloc")
    count = shape[1] if len(shape) == 2 else 0
    if count > 2:
        raise TypeError(
            f"texts is a {type(table).__name__} of {count} columns; one of texts, or two of pairs are wanted"
        )
    if count == 2:
        return (table.iloc[:, 0], table.iloc[:, 1]) if is_frame else (table[:, 0], table[:, 1])
    return table.iloc[:, 0] if count == 1 and is_frame else table, None


def table_of(rows: Sequence[Row]) -> Any:
    """The opposite of columns_of: a list of texts as it is, pairs as an array of two columns, (N, 2)."""
    return np.array(rows, dtype=object) if are_pairs(rows) else rows


def paired(texts: Iterable[object], pairs: Iterable[object]) -> Iterator[tuple[object, object]]:
    """Two streams as one of pairs. Raises ValueError where one of them ends before the other."""
    end = object()
    for row, (first, second) in enumerate(zip_longest(texts, pairs, fillvalue=end)):
        if first is end or second is end:
            ended, more = ("texts", "pairs") if first is end else ("pairs", "texts")
            raise ValueError(f"{ended} end after {row} rows, and {more} go on; each text needs one partner")
        yield first, second


def as_row(given: Any, row: int, missing: str, pair: bool) -> Row:
    """One row of a stream, a text or, where pairs are streamed, two. Raises what as_text raises."""
    return (as_text(given[0], row, missing), as_text(given[1], row, missing)) if pair else as_text(given, row, missing)
