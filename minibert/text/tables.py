"""Columns of a file, read as a stream: memory does not grow with the file.

    file -> rows (rows.py) -> the columns that are asked for -> a text for each

.txt      one text a line; an empty line is an empty text. So are standard input and a name without an ending
.tsv      columns by tab; quotes are characters like any other
.csv      columns by comma, quoted
.jsonl    one object of names and values a line
.json     an array of such objects, or of texts
.parquet  where pyarrow is installed

Each may end in .gz as well, but for .parquet. Blank lines of a table and of .jsonl are skipped. A table whose columns
are asked for by name has a header; one whose columns are asked for by number, from 1, has none.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from minibert.files import regular
from minibert.text.rows import (
    TABLES,
    JsonArray,
    decompressed,
    open_parquet,
    read_json_lines,
    read_lines,
    read_parquet,
    read_rows,
    size_of,
)
from minibert.text.texts import Row

FORMATS = ("txt", *TABLES, "jsonl", "json", "parquet")
WITH_COLUMNS = ".tsv, .csv, .jsonl, .json or .parquet"
TEXT_COLUMNS = ("sentence", "text")  # what a column of texts is called
STANDARD_INPUT = "standard input"
KINDS = {
    "NoneType": "null",
    "bool": "true or false",
    "int": "a number",
    "float": "a number",
    "list": "a list",
    "dict": "an object",
    "str": "a string",
}


@dataclass(frozen=True)
class Column:
    """A column that is asked for: by name, by number from 1, or, where `name` is None, by what it is usually called."""

    role: str  # what a caller asks for it as: column, text, pair or label
    name: str | None = None
    usual: tuple[str, ...] = TEXT_COLUMNS
    labels: str = "name"  # what labels are: name; names, joined, of which there may be none; or number

    @property
    def number(self) -> int | None:
        """The number that it is asked for by."""
        return int(self.name) if self.name is not None and self.name.isdecimal() else None


# ---------------------------------------------------------------------------------------------------------------
# A file


class Table:
    """Columns of a file, to be read once, inside `with`.

    path: - is standard input. format: one of FORMATS; None goes by the name, with or without .gz. stream: the open
    file, where `path` is only its name. Once the first row is read, `names` are those of the columns, None where they
    have none.
    Raises FileNotFoundError for a missing file, ImportError for .parquet without pyarrow, and ValueError for a pipe, a
    device, a format or column that is not there, or, naming the line, for what is not UTF-8, a row without its
    columns, a row of gigabytes, or a .gz that is cut off.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        columns: Sequence[Column],
        format: str | None = None,
        stream: BinaryIO | None = None,
    ) -> None:
        self.name = STANDARD_INPUT if os.fspath(path) == "-" else os.fspath(path)
        self.format, self.compressed = format_of(self.name, format)
        self.columns = tuple(columns)
        if self.format == "txt" and (len(columns) > 1 or columns[0].name is not None):
            what = [f"{column.role} is {column.name!r}" for column in columns if column.name is not None]
            raise ValueError(
                f"{' and '.join(what) or 'a text and a label are wanted'}, and {self.name} is read as one text a line, "
                f"without columns; a table ends in {WITH_COLUMNS}, or its format is named"
            )
        self.names: tuple[str, ...] | None = None
        self.place = self.name  # where the last row stands, for messages
        self.stream = stream or opened(path)
        self.size = None if self.format == "parquet" else size_of(self.stream)  # bytes, None where nobody knows

    def __enter__(self) -> Table:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stream.close()

    @property
    def position(self) -> int:
        """How many bytes of the file, compressed if it is, were read; 0 where its size is not known."""
        return 0 if self.size is None else self.stream.tell()

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The cells of each row, a text for each column that is asked for, labels without the spaces around them."""
        with decompressed(self.stream, self.name) if self.compressed else nullcontext(self.stream) as stream:
            if self.format == "txt":
                yield from ((line,) for line in read_lines(stream, self.name))
            elif self.format in TABLES:
                yield from self._table(stream)
            elif self.format == "parquet":
                yield from self._parquet(stream)
            elif self.format == "jsonl":
                yield from self._records(read_json_lines(stream, self.name))
            else:
                items = JsonArray(stream, self.name)  # a text alone is an object of nothing but a text
                yield from self._records((at, {"text": x} if isinstance(x, str) else x) for at, x in items)

    def _table(self, stream: BinaryIO) -> Iterator[tuple[str, ...]]:
        rows = read_rows(stream, self.name, self.format)
        if (first := next(rows, None)) is None:
            return
        line, cells = first
        places, width, why = self._places([name.strip() for name in cells], f"{self.name}, line {line},")
        for line, row in rows if self.names else chain([first], rows):
            where = self.place = f"{self.name}, line {line},"
            if len(row) == 1 < width and self.columns[-1].role == "label":
                raise ValueError(f"{where} has one column: the label is missing")
            if len(row) != width:
                raise ValueError(f"{where} has {len(row)} columns, {width} are expected ({why})")
            yield tuple(cell(row[place], column, where) for place, column in zip(places, self.columns, strict=True))

    def _places(self, first: list[str], where: str) -> tuple[list[int], int, str]:
        """Where each column stands, how many columns a row has, and why so many, by the first row of a table."""
        by_number = any(column.number is not None for column in self.columns)
        by_name = any(column.name is not None and column.number is None for column in self.columns)
        usual = len(self.columns) == 1 or all(usual_name(column, first) for column in self.columns)
        if by_name or (usual and not by_number):
            names = self._find(first, where)
            return [first.index(name) for name in names], len(first), "as in the header"
        if by_number:
            return numbered_places(self.columns, first, where), len(first), "as in the first row"
        roles, words = (" and ".join(said) for said in zip(*((c.role, c.usual[0]) for c in self.columns), strict=True))
        why = f"{roles}, or a header that names {words}; ask for other columns by name or number"
        return list(range(len(self.columns))), len(self.columns), why

    def _parquet(self, stream: BinaryIO) -> Iterator[tuple[str, ...]]:
        file = open_parquet(stream, self.name)
        names = self._find(file.schema_arrow.names, f"{self.name}")
        return self._records(read_parquet(file, self.name, list(names)))

    def _records(self, records: Iterable[tuple[str, object]]) -> Iterator[tuple[str, ...]]:
        for where, record in records:
            if not isinstance(record, dict):
                raise ValueError(f"{where} is {kind_of(record)}, not an object of names and values")
            names, self.place = self.names or self._find(list(record), where), where
            yield tuple(value(record, name, column, where) for name, column in zip(names, self.columns, strict=True))

    def _find(self, names: list[str], where: str) -> tuple[str, ...]:
        """The names of the columns that are asked for, of those that the first row has."""
        alone, in_table = len(names) == len(self.columns) == 1, self.format in TABLES
        found = [name_in(names, column, where, alone, in_table) for column in self.columns]
        check_different(self.columns, found)
        self.names = tuple(found)
        return self.names


class TextFile(Table):
    """A column of texts in a file, to be iterated once, inside `with`; a file without any is warned of.

    column: a name, or a number from 1 where there is no header; None takes the one called sentence or text, or the
    only one. column2: that of second texts; then each row is a pair of texts. The rest is as with Table.
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

    def __enter__(self) -> TextFile:
        return self

    def __iter__(self) -> Iterator[Row]:
        row = None
        for row in self.rows():
            yield row[0] if len(row) == 1 else (row[0], row[1])
        if row is None:
            warnings.warn(f"{self.name} holds no texts", stacklevel=2)


def format_of(name: str, format: str | None) -> tuple[str, bool]:
    """The format of a file, and whether it is compressed. Raises ValueError where its name ends in another."""
    endings = [suffix.lower()[1:] for suffix in Path(name).suffixes]
    compressed = endings[-1:] == ["gz"]
    ending = "".join(endings[-2:-1] if compressed else endings[-1:])
    if format is not None and format not in FORMATS:
        raise ValueError(f"format is {format!r}; choose from {', '.join(FORMATS)}")
    if format is None and ending and ending not in FORMATS:
        raise ValueError(
            f"{name} ends in .{ending}, which is none of .{', .'.join(FORMATS)}, with or without .gz; "
            f"name its format, format= (--format): {', '.join(FORMATS)}"
        )
    found = format or ending or "txt"
    if found == "parquet" and (compressed or name == STANDARD_INPUT):
        raise ValueError(
            f"{name} cannot be read as parquet, whose end is read first; give it as a file that is not .gz"
        )
    return found, compressed


def opened(path: str | os.PathLike[str]) -> BinaryIO:
    """The file or standard input as bytes. A pipe or a device is refused: who opens one may wait for ever."""
    if os.fspath(path) == "-":
        return sys.stdin.buffer
    if not Path(path).is_dir():  # which open() refuses in words that everybody knows
        regular(Path(path), "file; what comes from a pipe is read from standard input, whose name is -")
    return open(path, "rb")


# ---------------------------------------------------------------------------------------------------------------
# Columns


def usual_name(column: Column, names: list[str]) -> str | None:
    """The first of the column's usual names that is there, in whatever case, as it is written there."""
    return next((name for usual in column.usual for name in names if name.lower() == usual), None)


def name_in(names: list[str], column: Column, where: str, alone: bool, in_table: bool) -> str:
    """The name of a column in a file that has these. Raises ValueError where it is not there, or twice.

    alone: there is one column, and it is wanted, whatever it is called. in_table: numbers count the columns.
    """
    name = names[0] if alone and column.name is None else column.name or usual_name(column, names)
    if in_table and column.number is not None and 1 <= column.number <= len(names):
        name = names[column.number - 1]
    if name is None or name not in names:
        what = " or ".join(column.usual) if column.name is None else repr(column.name)
        hint = f"; where there is no header, {column.role} is a number from 1" if in_table else ""
        raise ValueError(f"{where} has no column {what}; choose as {column.role} one of: {listed(names)}{hint}")
    if names.count(name) > 1:
        raise ValueError(f"{where} has {names.count(name)} columns {name!r}; give them different names")
    return name


def numbered_places(columns: Sequence[Column], first: list[str], where: str) -> list[int]:
    """The places of columns of a table without a header; one that has no number is the only one that is left."""
    left = [place for place in range(len(first)) if place + 1 not in [column.number for column in columns]]
    places = []
    for column in columns:
        number = column.number
        if number is None:
            if len(left) != 1:
                raise ValueError(f"{where} has {len(first)} columns; give the number of the {column.role} too")
            number = left[0] + 1
        if not 1 <= number <= len(first):
            raise ValueError(f"{column.role} is {number}, and {where} has columns 1 to {len(first)}")
        if (name := first[number - 1]).lower() in column.usual:
            raise ValueError(f"{where} is a header, and {column.role} is {number}, as in a file without; use {name!r}")
        places.append(number - 1)
    check_different(columns, [place + 1 for place in places])
    return places


def check_different(columns: Sequence[Column], found: Sequence[str | int]) -> None:
    """Raise ValueError where the same column is taken for two things."""
    for column, one in zip(columns, found, strict=True):
        first = columns[found.index(one)]
        if first is not column:
            raise ValueError(
                f"{first.role} and {column.role} are both the column {one!r}; name another for one of them"
            )


# ---------------------------------------------------------------------------------------------------------------
# Cells


def cell(text: str, column: Column, where: str) -> str:
    """A text as it is, a label without the spaces around it. Raises ValueError for an empty label."""
    if column.role != "label":
        return text
    if not (label := text.strip()) and column.labels != "names":
        raise ValueError(f"{where} has an empty label")
    return label


def value(record: dict[str, object], name: str, column: Column, where: str) -> str:
    """The text or label of an object; a label may be a whole number too."""
    if name not in record:
        raise ValueError(f"{where} has no {name!r}; it has: {listed(list(record))}")
    found = record[name]
    number = column.labels == "number"
    if column.role == "label" and isinstance(found, int | float if number else int):
        return str(found)
    if not isinstance(found, str):
        label = "a number" if number else "a name or a whole number"
        wanted = label if column.role == "label" else "a text"
        raise ValueError(f"{where} has {kind_of(found)} as {name!r}, not {wanted}")
    try:
        found.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where} has a lone surrogate (U+{ord(found[error.start]):04X}, half a character) in {name!r}; "
            "write it as U+FFFD or leave it out"
        ) from None
    return cell(found, column, where)


def kind_of(found: object) -> str:
    """What a value is called in a message."""
    return KINDS.get(type(found).__name__, f"a value of type {type(found).__name__}")


def listed(names: list[str]) -> str:
    """Names for a message: the first ten, none longer than 40 characters."""
    shown = ", ".join(repr(name if len(name) <= 40 else name[:37] + "...") for name in names[:10])
    return (shown or "none") + (f" and {len(names) - 10} more" if len(names) > 10 else "")
