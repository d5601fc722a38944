"""The rows of a file, one after the other, each with its place for messages: cells of a table, or a JSON value."""

import csv
import importlib
import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, BinaryIO

from minibert.text.formats import decoded_lines, whole_text
from minibert.utils.files import parse_json
from minibert.utils.printing import install_hint


def read_table(lines: Iterator[str], name: str, dialect: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """The rows of a table that are not blank, each with its place: the line that it begins on, from 1."""
    parts = (io.StringIO(line, newline="") for line in lines)  # may end in a lone \r
    rows = csv.reader(chain.from_iterable(parts), **dialect)
    place = f"{name}, line 1,"
    try:
        for row in rows:
            if row:
                yield place, row
            place = f"{name}, line {rows.line_num + 1},"
    except csv.Error as error:
        why = "is a quote not closed?" if dialect.get("strict") else "is it a .tsv?"
        plain = " --format tsv reads quotes as ordinary characters" * (dialect["delimiter"] == "\t")
        raise ValueError(f"{place} cannot be read: {error}; {why}{plain}") from None


def read_json_lines(stream: BinaryIO, name: str, encoding: str) -> Iterator[tuple[str, object]]:
    """The value of each line that is not blank, with its place."""
    for number, line in enumerate(decoded_lines(stream, name, encoding), 1):
        if line.strip():
            place = f"{name}, line {number},"
            yield place, parsed(line, place)


def read_json_array(stream: BinaryIO, name: str, encoding: str) -> Iterator[tuple[str, object]]:
    """The items of a JSON array, each with its place."""
    place = f"{name}, read as one JSON array (with one object per line, its format is jsonl: --format jsonl),"
    items = parsed(whole_text(stream, name, encoding), place)
    if not isinstance(items, list):
        raise ValueError(f"{place} is no array")
    yield from ((f"{name}, item {number},", item) for number, item in enumerate(items, 1))


def parsed(text: str, place: str) -> Any:
    """A JSON value. Raises ValueError with the place."""
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"{place} is not JSON: {error}") from None


def open_parquet(stream: BinaryIO, name: str) -> Any:
    """A pyarrow ParquetFile. Raises ImportError without pyarrow, ValueError for a damaged file."""
    try:
        return importlib.import_module("pyarrow.parquet").ParquetFile(stream)
    except ImportError:
        raise ImportError(
            f"{name} is read as parquet, which needs pyarrow: {install_hint('parquet')}; or save it as .jsonl"
        ) from None
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} is not a sound parquet file: {error}") from None


def fields_of(fields: Any) -> list[str]:
    """The names of the columns of a schema, and of the fields of structs in them: review, review.body."""
    inside = (field.flatten() if str(field.type).startswith("struct<") else [] for field in fields)
    return [name for field, inner in zip(fields, inside, strict=True) for name in (field.name, *fields_of(inner))]


def read_parquet(file: Any, name: str, columns: Sequence[str]) -> Iterator[tuple[str, object]]:
    """The rows, as objects of these columns, each with its place."""
    rows = (row for batch in file.iter_batches(1024, columns=columns) for row in batch.to_pylist())
    try:
        yield from ((f"{name}, row {number},", row) for number, row in enumerate(rows, 1))
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} is not a sound parquet file: {error}") from None
