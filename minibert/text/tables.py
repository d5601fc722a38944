"""Columns of texts and labels from a file, row by row.

    bytes (.gz decompressed) -> lines of UTF-8 -> rows -> the requested columns -> a text for each

.txt      one text per line; an empty line is an empty text. Standard input and names without an ending are read as this
.tsv      columns separated by tabs; quotes are ordinary characters
.csv      columns separated by commas, quoted
.jsonl    one object or text per line
.json     an array of objects or of texts, read at once
.parquet  with pyarrow

All may also end in .gz. Blank lines of a table and of .jsonl are skipped. A table has a header if a column
is requested by name, and none if all are requested by number, from 1. Except for .json, memory does not grow with the
file: a row longer than ROW_LIMIT is refused before it is read. Errors name the file and the place in it.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import os
import sys
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Self

from minibert.files import regular
from minibert.printing import brief, install_hint
from minibert.text.texts import TextOrPair, check_surrogates

ROW_LIMIT = 64_000_000  # bytes of a line: a thousand times what BERT reads of a text
JSON_LIMIT = 1_000_000_000  # bytes of a .json, decompressed
DIALECTS: dict[str, dict[str, Any]] = {
    "tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
    "csv": {"delimiter": ",", "strict": True},
}
FORMATS = ("txt", *DIALECTS, "jsonl", "json", "parquet")
TEXT_COLUMNS = ("sentence", "text")  # the usual names of a column of texts
STANDARD_INPUT = "standard input"


@dataclass(frozen=True)
class Column:
    """A requested column: by name, by number from 1, or by one of its usual names if `name` is None."""

    role: str  # in messages: column, text, pair or label
    name: str | None = None
    usual: tuple[str, ...] = TEXT_COLUMNS
    labels: str = "name"  # the type of labels: name; names, comma-separated, possibly none; or number


# ---------------------------------------------------------------------------------------------------------------
# A file


class Table:
    """Columns of a file, to be read once, inside `with`.

    path: - is standard input. format: one of FORMATS; None decides by the name. After the first row `names` are those
    of the requested columns, or their numbers without a header. Raises FileNotFoundError for a missing file,
    ImportError for .parquet without pyarrow, and ValueError for a pipe, a device or a folder, an unknown format, a
    missing column, or, with its place, for content that is damaged.
    """

    def __init__(self, path: str | os.PathLike[str], columns: Sequence[Column], format: str | None = None) -> None:
        self.name = STANDARD_INPUT if os.fspath(path) == "-" else os.fspath(path)
        self.format, self.compressed = format_of(self.name, format)
        self.columns = tuple(columns)
        self.names: tuple[str, ...] | None = None  # of the requested columns
        self.header = True
        self.place = self.name  # of the last row, for messages
        self.stream = opened(path)
        in_file = self.name != STANDARD_INPUT and self.format != "parquet"
        self.size = os.path.getsize(path) if in_file else None  # bytes, None if unknown

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    @property
    def position(self) -> int:
        """Bytes read so far, compressed ones of a .gz; 0 if the size is unknown."""
        return 0 if self.size is None else self.stream.tell()

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The text of each requested column, row by row; labels are stripped."""
        for place, found in self.records():
            self.place = place
            record = {"text": found} if isinstance(found, str) else found
            if not isinstance(record, dict):
                raise ValueError(f"{place} is {brief(record)}, not an object")
            self.names = self.names or find_columns(self.columns, list(record), place)
            columns = zip(self.names, self.columns, strict=True)
            yield tuple(value(record, name, column, place) for name, column in columns)

    def records(self) -> Iterator[tuple[str, object]]:
        """Each row as it is, an object of a .jsonl or .json, with its place."""
        with decompressed(self.stream, self.name) if self.compressed else nullcontext(self.stream) as stream:
            yield from self._records(stream)

    def _records(self, stream: BinaryIO) -> Iterator[tuple[str, object]]:
        """The rows as objects or as texts, each with its place."""
        if self.format in DIALECTS:
            yield from self._table(read_table(stream, self.name, self.format))
        elif self.format == "parquet":
            file = open_parquet(stream, self.name)
            self.names = find_columns(self.columns, file.schema_arrow.names, self.name)
            yield from read_parquet(file, self.name, self.names)
        elif self.format == "txt":
            place = f"{self.name}, read as one text per line,"
            yield from (
                (place, line.removesuffix("\n").removesuffix("\r")) for line in decoded_lines(stream, self.name)
            )
        else:
            yield from (read_json_lines if self.format == "jsonl" else read_json_array)(stream, self.name)

    def _table(self, rows: Iterator[tuple[str, list[str]]]) -> Iterator[tuple[str, object]]:
        """The rows of a table as objects. The first is a header unless columns are requested by number.

        Without a header, the columns are called 1, 2, ...
        """
        for place, first in rows:
            names = [name.strip() for name in first]
            self.header = has_header(self.columns, names)
            keys = names if self.header else [str(number) for number in range(1, len(names) + 1)]
            self.names = find_columns(self.columns, keys, place, self.header)
            requested = zip(self.names, self.columns, strict=True)
            if not self.header and any(first[int(key) - 1].lower() in column.usual for key, column in requested):
                raise ValueError(f"{place} is a header: {listed(first)}; request columns by name, not by number")
            for at, row in rows if self.header else chain([(place, first)], rows):
                if len(row) != len(keys):
                    raise ValueError(f"{at} has {len(row)} columns, {len(keys)} are expected, as in the first row")
                yield at, dict(zip(keys, row, strict=True))


class TextFile(Table):
    """A column of texts in a file, to be iterated once, inside `with`; a file without any texts is warned of.

    column: a name, or a number from 1 if there is no header; None takes the column called sentence or text, or the
    only one. column2: the column of second texts; each row is then a pair of texts. Otherwise as Table.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        column: str | int | None = None,
        format: str | None = None,
        column2: str | int | None = None,
    ) -> None:
        columns = [Column("column", None if column is None else str(column))]
        if column2 is not None:
            columns.append(Column("column2", str(column2), ()))
        super().__init__(path, columns, format)

    def __iter__(self) -> Iterator[TextOrPair]:
        row = None
        for row in self.rows():
            yield row[0] if len(row) == 1 else (row[0], row[1])
        if row is None:
            warnings.warn(f"{self.name} holds no texts", stacklevel=2)


# ---------------------------------------------------------------------------------------------------------------
# Bytes


def format_of(name: str, format: str | None) -> tuple[str, bool]:
    """The format of a file, and whether it is compressed. Raises ValueError for an unknown format."""
    endings = [suffix.lower()[1:] for suffix in Path(name).suffixes]
    compressed = endings[-1:] == ["gz"]
    found = format or "".join(endings[-2:-1] if compressed else endings[-1:]) or "txt"
    if found not in FORMATS:
        raise ValueError(
            f"{name}: its format is {found!r}; choose from {', '.join(FORMATS)}, with format= (--format) if its name "
            "does not end in one"
        )
    return found, compressed


def opened(path: str | os.PathLike[str]) -> BinaryIO:
    """The file or standard input, open for bytes. Raises ValueError for a pipe or a device, which could block."""
    if os.fspath(path) == "-":
        return sys.stdin.buffer
    return regular(Path(path), "file; to read from a pipe, use standard input, whose name is -").open("rb")


@contextmanager
def decompressed(stream: BinaryIO, name: str) -> Iterator[BinaryIO]:
    """The content of a gzip file, to be read inside `with`. Raises ValueError for one that is damaged or cut off."""
    try:
        with gzip.open(stream) as inside:
            yield inside  # type: ignore[misc]  # it reads as one, without being declared as one
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{name} is cut off, or not a gzip file: {error}") from None


# ---------------------------------------------------------------------------------------------------------------
# Rows


def decoded_lines(stream: BinaryIO, name: str) -> Iterator[str]:
    """The lines of UTF-8 with their ends. Raises ValueError, with the line, for other encodings and endless lines."""
    for number, line in enumerate(iter(partial(stream.readline, ROW_LIMIT + 1), b""), 1):
        if len(line) > ROW_LIMIT:
            raise ValueError(
                f"{name}, line {number}, is longer than {ROW_LIMIT / 1e6:g} MB; split it, or check whether the file is "
                "what its name says"
            )
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number}, is not UTF-8 (byte 0x{line[error.start]:02X}); save it as UTF-8"
            ) from None
        yield text


def read_table(stream: BinaryIO, name: str, format: str) -> Iterator[tuple[str, list[str]]]:
    """The rows of a .tsv or .csv that are not blank, each with its place: the line that it begins on, from 1."""
    lines = (io.StringIO(line, newline="") for line in decoded_lines(stream, name))  # may end in a lone \r
    rows = csv.reader(chain.from_iterable(lines), **DIALECTS[format])
    place = f"{name}, line 1,"
    try:
        for row in rows:
            if row:
                yield place, row
            place = f"{name}, line {rows.line_num + 1},"
    except csv.Error as error:
        raise ValueError(f"{place} cannot be read: {error}; is a quote not closed?") from None


def read_json_lines(stream: BinaryIO, name: str) -> Iterator[tuple[str, object]]:
    """The value of each line that is not blank, with its place."""
    for number, line in enumerate(decoded_lines(stream, name), 1):
        if line.strip():
            place = f"{name}, line {number},"
            yield place, parsed(line, place)


def read_json_array(stream: BinaryIO, name: str) -> Iterator[tuple[str, object]]:
    """The items of a JSON array, each with its place."""
    content = stream.read(JSON_LIMIT + 1)
    place = f"{name}, read as one JSON array (with one object per line, its format is jsonl: --format jsonl),"
    items = parsed(content, place) if len(content) <= JSON_LIMIT else None
    if not isinstance(items, list):
        raise ValueError(f"{place} is no array, or longer than {JSON_LIMIT / 1e6:g} MB")
    yield from ((f"{name}, item {number},", item) for number, item in enumerate(items, 1))


def parsed(text: str | bytes, place: str) -> Any:
    """A JSON value. Raises ValueError with the place."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} is not JSON: {error}") from None


def open_parquet(stream: BinaryIO, name: str) -> Any:
    """A pyarrow ParquetFile. Raises ImportError without pyarrow, ValueError for a damaged file."""
    try:
        return importlib.import_module("pyarrow.parquet").ParquetFile(stream)
    except ImportError:
        hint = f"{install_hint('parquet')}; or save it as .jsonl"
        raise ImportError(f"{name} is read as parquet, and pyarrow, which does it, is not installed: {hint}") from None
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} is not a sound parquet file: {error}") from None


def read_parquet(file: Any, name: str, columns: Sequence[str]) -> Iterator[tuple[str, object]]:
    """The rows, as objects of these columns, each with its place."""
    rows = (row for batch in file.iter_batches(1024, columns=columns) for row in batch.to_pylist())
    try:
        yield from ((f"{name}, row {number},", row) for number, row in enumerate(rows, 1))
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} is not a sound parquet file: {error}") from None


# ---------------------------------------------------------------------------------------------------------------
# Columns


def usual_name(column: Column, names: Sequence[str]) -> str | None:
    """The first of the column's usual names in the file, in any case, as the file has it."""
    return next((name for usual in column.usual for name in names if name.lower() == usual), None)


def has_header(columns: Sequence[Column], first: Sequence[str]) -> bool:
    """Whether the first row of a table has names: one is requested, or none by number and all usual ones are there."""
    if requested := [column.name for column in columns if column.name is not None]:
        return not all(name.isdecimal() for name in requested)
    return len(columns) == 1 or all(usual_name(column, first) for column in columns)


def find_columns(columns: Sequence[Column], names: Sequence[str], where: str, header: bool = True) -> tuple[str, ...]:
    """The name of each requested column in a file that has these.

    A column that is not requested by name is the only one, or one of those left, in order, of a table without a header.
    Raises ValueError for a column that is not there, or there twice, or requested twice.
    """
    left = [name for name in names if name not in [column.name for column in columns]]
    unnamed = sum(column.name is None for column in columns)
    spare = iter(left if (not header or len(columns) == 1) and len(left) == unnamed else ())
    found: list[str] = []
    for column in columns:
        name = column.name or usual_name(column, names) or next(spare, "")
        if name in found or names.count(name) != 1:
            what = repr(name) if name else " or ".join(column.usual)
            count = "only one" if name in found else "more than one" if name in names else "no"
            raise ValueError(
                f"{where} has {count} column {what}; choose as {column.role} one of: {listed(names)}"
                f"{'' if header else ' (without a header, columns have numbers)'}"
            )
        found.append(name)
    return tuple(found)


# ---------------------------------------------------------------------------------------------------------------
# Cells


def value(record: dict[str, object], name: str, column: Column, where: str) -> str:
    """A text unchanged, a label stripped. Raises ValueError for another type, and for an empty label."""
    found, is_label, number = record.get(name), column.role == "label", column.labels == "number"
    if is_label and isinstance(found, int | float if number else int):
        return str(found)
    if not isinstance(found, str):
        expected = "a text" if not is_label else "a number" if number else "a name or a whole number"
        raise ValueError(f"{where} has {brief(found)} as {name!r}, not {expected}; it has: {listed(list(record))}")
    check_surrogates(found, f"{where} {name!r}")
    if is_label and not found.strip() and column.labels != "names":
        raise ValueError(f"{where} has an empty label")
    return found.strip() if is_label else found


def listed(names: Sequence[str]) -> str:
    """Names for a message: the first ten, none longer than 40 characters."""
    first = ", ".join(repr(name if len(name) <= 40 else name[:37] + "...") for name in names[:10])
    return (first or "none") + (f" and {len(names) - 10} more" if len(names) > 10 else "")
