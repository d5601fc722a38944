"""Columns of texts and of pairs of texts: the one place where user input is checked row by row."""

import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import compress
from typing import Any, TypeVar

import numpy as np

from minibert.utils.files import AnyPath
from minibert.utils.printing import brief, counted
from minibert.utils.wording import advice

TextOrPair = str | tuple[str, str]
AnyText = TypeVar("AnyText", str, tuple[str, str], TextOrPair)

TEXTS = 4096  # in a chunk: enough of each length for full batches; their encodings fit in memory
CHARACTERS = 2_000_000  # in a chunk of long texts; tokenizing takes about a hundred bytes per character
MISSING = {"None": "None", "nan": "NaN", "<NA>": "NA", "NaT": "NaT"}  # keys: str() of a missing value
NUMBERS = re.compile(r"(torch\.)?(b?float|u?int)\d")  # a dtype
CONTAINERS = (list, tuple, set, frozenset, np.ndarray)  # of several labels
# The usual names of a column of texts, of first texts of pairs, of second texts, and of how similar both are.
TEXT_COLUMNS = ("sentence", "text")
FIRST = (
    *["anchor", "query", "question", "premise", "question1", "sentence1", "sentence_a", "text1", "text_a"],
    *TEXT_COLUMNS,
)
SECOND = (
    *["positive", "passage", "document", "answer", "context", "hypothesis", "pair"],
    *["question2", "sentence2", "sentence_b", "text2", "text_b", "text"],
)
SCORE = tuple(["score", "similarity", "similarity_score", "relatedness_score", "label"])
VECTORS_HINT = "minibert makes vectors of texts; to compare vectors, use a @ b.T"
PAIRS_HINT = "pass pairs as two columns: tokenizer(first, second), embed(first, pairs=second)"


def as_texts(texts: object, *, missing: str = "error") -> list[str]:
    """Make a list of str from any column of texts: list, tuple, 1-D array, Series with any index, Arrow, generator.

    A str is one text. missing: "error" refuses None, NaN and pandas.NA; "empty" turns each into an empty text.
    Raises TypeError for any other container and for a row that is not a text, ValueError for a lone surrogate; both
    name the row. A generator is consumed.
    """
    if missing not in ("error", "empty"):
        raise ValueError(f"missing is {brief(missing)}; it must be 'error' or 'empty'")
    if isinstance(texts, str):
        texts = [texts]
    texts, pairs = columns_of(texts)
    kind = type(texts).__name__
    if isinstance(texts, (bytes, bytearray, Mapping, set, frozenset)) or not isinstance(texts, Iterable):
        order = "; the texts come first, then the model" if isinstance(texts, os.PathLike) else ""
        raise TypeError(
            f"texts is of type {kind}; a text, or a list, tuple, 1-D array, Series or generator of texts is expected"
            f"{order}"
        )
    if NUMBERS.match(str(getattr(texts, "dtype", ""))):
        raise TypeError(f"texts is of type {kind} with numbers in it; {VECTORS_HINT}")
    dimensions = getattr(texts, "ndim", 1) if pairs is None else 2
    if dimensions != 1:
        raise TypeError(f"texts is of type {kind} with {dimensions} dimensions; one column is expected; {PAIRS_HINT}")
    return [as_text(text, row, missing) for row, text in enumerate(as_column(texts))]


def as_name(model: object, order: str) -> AnyPath:
    """Return the name or folder of a checkpoint. Raises TypeError for anything else; order: of model and texts."""
    if not isinstance(model, str | os.PathLike):
        raise TypeError(f"model is {brief(model)}; it must be a name, a folder or a model, and {order}")
    return model


def as_column(values: Any) -> Any:
    """Return a column of Arrow, polars or pandas as a list, and any other column as it is."""
    for method in ("to_pylist", "to_list"):
        if hasattr(values, method):
            return getattr(values, method)()
    return values


def column_names(table: Any) -> list[Any] | None:
    """Return the names of the columns of a dict, a frame, records, an Arrow table or a Dataset; else None.

    Raises TypeError for a table that is not computed yet, and for several tables.
    """
    if hasattr(table, "collect"):  # of polars, Spark
        raise TypeError(f"a {type(table).__name__} has no rows yet; pass the result of its collect()")
    if isinstance(table, Mapping):
        if any(column_names(value) is not None for value in table.values()):
            raise TypeError(
                f"this is a {type(table).__name__} of several tables; pass one: data[{next(iter(table))!r}]"
            )
        return list(table)
    names = getattr(getattr(table, "dtype", None), "names", None)  # of records
    names = getattr(table, "column_names", getattr(table, "columns", names))  # an Arrow table has columns too
    return None if names is None else list(names)


class RowError(ValueError):
    """Something is wrong with a row: its number in the data, or its place in a file, and the problem."""

    def __init__(self, row: int | str, problem: str) -> None:
        super().__init__(row, problem)  # so that it can be pickled
        self.row = row
        self.problem = problem

    def __str__(self) -> str:
        return f"{f'row {self.row}' if isinstance(self.row, int) else self.row} " + self.problem


@contextmanager
def rows_from(first: int) -> Iterator[None]:
    """Within the block, count the rows of a RowError from `first`: the data is a part of a larger one."""
    try:
        yield
    except RowError as error:
        if isinstance(error.row, int):
            error.row += first
        raise


def as_text(text: object, row: int, missing: str) -> str:
    """Return one row as a str. Raises TypeError or ValueError, naming the row, if it is not a text."""
    if not isinstance(text, str):
        name = MISSING.get(str(text))
        if name is not None and missing == "empty":
            return ""
        several = isinstance(text, (list, tuple, np.ndarray))
        if name is not None:
            empty = advice("; use {} to treat it as an empty text", missing="empty")
            raise TypeError(f"row {row} is {name}, not a text" + empty)
        hint = advice("; " + PAIRS_HINT, pairs=...) + f"; {VECTORS_HINT}" if several else ""
        raise TypeError(f"row {row} is of type {type(text).__name__}, not a text" + hint)
    try:
        text.encode()
    except UnicodeEncodeError as error:  # UTF-8 cannot encode half a character
        problem = (
            f"has a lone surrogate (U+{ord(text[error.start]):04X}, half a character) at character {error.start}; "
            "read the text as UTF-8" + advice(", or replace it: text.encode({}).decode()", errors="replace")
        )
        raise RowError(row, problem) from None
    return text


def without_missing(*columns: Any) -> list[Any]:
    """Return columns without the rows that have None, NaN or NA in one of them; a warning counts these rows.

    A column that is None stays None; columns of different lengths or of other types are returned unchanged.
    """
    given = [
        list(column) if isinstance(column, Iterable) and not hasattr(column, "ndim") else column for column in columns
    ]
    rows = [
        np.asarray(column, dtype=object) if hasattr(column, "ndim") else column
        for column in given
        if column is not None
    ]
    if any(isinstance(column, str) for column in columns) or len(set(map(len, rows))) != 1:
        return given
    kept = [not any(is_missing(cell) for cell in row) for row in zip(*rows, strict=True)]
    if not all(kept):
        warnings.warn(
            f"{len(kept) - sum(kept):,} of {len(kept):,} rows have no text or label and are left out", stacklevel=3
        )
    return [
        column if column is None else np.asarray(column)[kept] if hasattr(column, "ndim") else [*compress(column, kept)]
        for column in given
    ]


def is_missing(value: object) -> bool:
    """Return whether this is None, NaN or NA."""
    return not isinstance(value, (str, *CONTAINERS)) and str(value) in MISSING


def chunked(texts: Iterable[AnyText], most: int = TEXTS) -> Iterator[list[AnyText]]:
    """Yield lists of up to `most` texts or pairs, shorter if they reach CHARACTERS; deterministic."""
    chunk: list[AnyText] = []
    characters = 0
    for text in texts:
        chunk.append(text)
        characters += len(text) if isinstance(text, str) else sum(map(len, text))
        if len(chunk) == most or characters >= CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


# ---------------------------------------------------------------------------------------------------------------
# Pairs


def as_columns(texts: object, pairs: object, *, missing: str = "error") -> tuple[list[str], list[str] | None]:
    """Return texts and their second texts as lists of the same length; a str is one text, two str are one pair.

    texts may also be a table of both, see columns_of. Raises what as_texts raises, TypeError for a str beside a list,
    ValueError for columns of different lengths.
    """
    texts, pairs = columns_of(texts) if pairs is None else (texts, pairs)
    first = as_texts(texts, missing=missing)
    if pairs is None:
        return first, None
    if isinstance(texts, str) != isinstance(pairs, str):
        raise TypeError(
            f"texts is of type {type(texts).__name__} and pairs of type {type(pairs).__name__}; "
            "pass two texts or two lists of texts"
        )
    second = as_texts(pairs, missing=missing)
    if len(first) != len(second):
        counts = f"{counted(len(first), 'text')} and {counted(len(second), 'pair')}"
        raise ValueError(f"the columns have {counts}; each text needs a second one")
    return first, second


def as_texts_or_pairs(texts: object, pairs: object = None, *, missing: str = "error") -> Sequence[TextOrPair]:
    """Return one column as a list of texts, two columns as a list of pairs. Raises what as_columns raises."""
    first, second = as_columns(texts, pairs, missing=missing)
    return first if second is None else list(zip(first, second, strict=True))


def are_pairs(texts: Sequence[TextOrPair]) -> bool:
    """Return whether these are pairs of texts; all are of one kind."""
    return bool(texts) and isinstance(texts[0], tuple)


def columns_of(table: Any) -> tuple[Any, Any]:
    """Return the texts and pairs of a table: its first and its second column.

    table: a data frame, an Arrow table, a Dataset, or a 2-D array. pairs is None for a table of one column, and for
    anything that is a single column. Raises TypeError for three columns, and for two whose names are not those of
    pairs: the second may be a language, or a label.
    """
    names = column_names(table)
    is_column = names is None and (getattr(table, "ndim", 1) != 2 or NUMBERS.match(str(table.dtype)))
    if is_column or isinstance(table, Mapping):
        return table, None
    kind = f"texts is of type {type(table).__name__}"
    count = table.shape[1] if names is None else len(names)
    if count not in (1, 2):
        raise TypeError(f"{kind} with {count} columns; pass one of texts or two of pairs")
    if names is None:
        return table[:, 0], table[:, 1] if count == 2 else None
    if count == 2 and str(names[1]).lower() not in SECOND:
        raise TypeError(
            f"{kind} with the columns {names[0]!r} and {names[1]!r}; pass only the column of the texts, or, if each "
            "row is a pair of texts, an array: table.to_numpy()"
        )
    return table[names[0]], table[names[1]] if count == 2 else None


def table_of(texts: Sequence[TextOrPair]) -> Any:
    """Return texts unchanged, and pairs as an array of two columns, (N, 2): the inverse of columns_of."""
    return np.array(texts, dtype=object) if are_pairs(texts) else texts
