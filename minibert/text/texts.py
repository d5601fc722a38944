"""What counts as a column of texts: the one place where what a user hands over is checked, row by row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np


def as_texts(texts: object, *, missing: str = "error") -> list[str]:
    """Make a list of str from any column of texts: list, tuple, 1-D array, Series of any index, generator.

    missing: "error" refuses None, NaN and pandas.NA; "empty" makes each an empty text.
    Raises TypeError for another container or a row that is no text, ValueError for a lone surrogate; both name
    the row. A generator is consumed, once.
    """
    if missing not in ("error", "empty"):
        raise ValueError(f"missing is {missing!r}; it must be 'error' or 'empty'")
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
            f"texts is a {type(texts).__name__} with {dimensions} dimensions, one column is wanted; "
            "pass pairs as two columns: tokenizer(first, second)"
        )
    return [as_text(text, row, missing) for row, text in enumerate(texts)]


def as_text(text: object, row: int, missing: str) -> str:
    """One row as a str, or the TypeError or ValueError that names it."""
    if not isinstance(text, str):
        if (name := name_of_missing(text)) is None:
            hint = "; pass pairs as two columns: tokenizer(first, second)" if isinstance(text, (list, tuple)) else ""
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
