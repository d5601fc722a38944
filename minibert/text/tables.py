"""A column of texts in a file, read as a stream: memory does not grow with the file.

    bytes (.gz opened) -> lines of UTF-8 -> rows (.tsv, .csv, .jsonl) -> the texts of one column

.tsv: columns by tab, quotes are characters like any other. .csv: columns by comma, quoted; the first row of both is a
header, unless the column is named by its number. .jsonl: one object a line. Blank lines of these three are skipped.
Every other name, and standard input: one text a line; an empty line is an empty text.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

TABLES: dict[str, dict[str, Any]] = {
    "tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
    "csv": {"delimiter": ",", "strict": True},
}
FORMATS = ("txt", *TABLES, "jsonl")
TEXT_COLUMNS = ("sentence", "text")  # what a column of texts is called
KINDS = {
    "NoneType": "null",
    "bool": "true or false",
    "int": "a number",
    "float": "a number",
    "list": "a list",
    "dict": "an object",
    "str": "a string",
}


# ---------------------------------------------------------------------------------------------------------------
# Lines and rows


def decoded(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """The lines of a UTF-8 stream with their ends, without a byte order mark; ValueError names the line."""
    for number, line in enumerate(stream, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise ValueError(f"{name}, line {number}, is not UTF-8 (byte 0x{byte:02X}); save it as UTF-8") from None
        yield text


def read_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """The lines of a UTF-8 stream, as they come; an empty line is a text like any other."""
    for line in decoded(stream, name):
        yield line.removesuffix("\n").removesuffix("\r")


def read_rows(stream: Iterable[bytes], name: str, kind: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table that are not blank, each with the number of the line that it begins on, from 1."""
    rows = csv.reader(table_lines(stream, name), **TABLES[kind])
    begin = 1
    try:
        for row in rows:
            if row:
                yield begin, row
            begin = rows.line_num + 1
    except csv.Error as error:
        limit = csv.field_size_limit()
        hint = " (a quote is not closed, or use .jsonl for texts as long as that)" if str(limit) in str(error) else ""
        raise ValueError(f"{name}, line {begin}, cannot be read: {error}{hint}") from None


def table_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """The lines of a table, which may end in a lone carriage return."""

    def whole(line: bytes) -> bytes:
        if b"\0" in line:
            raise ValueError(f"{name} is a binary file (or UTF-16), not text; save it as UTF-8")
        return line

    for text in decoded(map(whole, stream), name):
        yield from io.StringIO(text, newline="")


# ---------------------------------------------------------------------------------------------------------------
# A column


class TextFile:
    """A column of texts in a file, to be iterated once, inside `with`.

    path: - is standard input. format: txt, tsv, csv or jsonl; None goes by the name, with or without .gz.
    column: a name in the header (in .jsonl: of each object), or, in a .tsv or .csv without a header, a number from 1;
    None takes the one called sentence or text, or the only one. Once the first row is read, `column` says which it is.
    Raises FileNotFoundError for a missing file, and ValueError for a format or column that is not there, or, naming
    the line, for what is not UTF-8, no row with its text, or a .gz that is cut off.
    """

    def __init__(
        self, path: str | os.PathLike[str], column: str | int | None = None, format: str | None = None
    ) -> None:
        self.name = "standard input" if os.fspath(path) == "-" else os.fspath(path)
        suffixes = [suffix.lower()[1:] for suffix in Path(path).suffixes]
        self.compressed = suffixes[-1:] == ["gz"]
        by_name = suffixes[-2:-1] if self.compressed else suffixes[-1:]
        self.format = format or (by_name[0] if by_name and by_name[0] in FORMATS else "txt")
        if self.format not in FORMATS:
            raise ValueError(f"format is {format!r}; choose from {', '.join(FORMATS)}")
        self.column = None if column is None else str(column)
        if self.format == "txt" and self.column is not None:
            raise ValueError(
                f"column is {self.column!r}, and {self.name} is read as one text a line, without columns; "
                "a table ends in .tsv, .csv or .jsonl, or its format is named"
            )
        self.stream: BinaryIO = sys.stdin.buffer if os.fspath(path) == "-" else open(path, "rb")  # noqa: SIM115  # __exit__ closes it
        self.size = size_of(self.stream)  # bytes; None where nobody knows, as of a pipe

    def __enter__(self) -> TextFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stream.close()

    @property
    def position(self) -> int:
        """How many bytes of the file, compressed if it is, were read; 0 where its size is not known."""
        return 0 if self.size is None else self.stream.tell()

    def __iter__(self) -> Iterator[str]:
        stream = self._decompressed() if self.compressed else self.stream
        if self.format == "txt":
            return read_lines(stream, self.name)
        return self._objects(stream) if self.format == "jsonl" else self._table(stream)

    def _decompressed(self) -> Iterator[bytes]:
        try:
            if self.size == 0:
                raise EOFError
            with gzip.open(self.stream) as lines:
                yield from lines
        except EOFError:
            raise ValueError(f"{self.name} is cut off: its compressed data has no end; fetch it again") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{self.name} is not a sound gzip file: {error}") from None

    def _table(self, stream: Iterable[bytes]) -> Iterator[str]:
        rows = read_rows(stream, self.name, self.format)
        first = next(rows, None)
        if first is None:
            return
        line, names = first
        if self.column is not None and self.column.isdecimal():
            place = self._numbered_column(int(self.column), line, names)
            rows = chain([first], rows)
        else:
            place = self._named_column(line, names, "; where there is no header, column is a number from 1")
        for line, row in rows:
            if len(row) != len(names):
                raise ValueError(
                    f"{self.name}, line {line}, has {len(row)} columns, {len(names)} are expected, as in the first row"
                )
            yield row[place]

    def _numbered_column(self, number: int, line: int, first: list[str]) -> int:
        """The place of a column of a table without a header."""
        if not 1 <= number <= len(first):
            raise ValueError(f"column is {number}, and {self.name} has columns 1 to {len(first)}")
        if (name := first[number - 1].strip()).lower() in TEXT_COLUMNS:
            raise ValueError(
                f"column is {number}, for a file without a header, and line {line} of {self.name} is one; "
                f"use its name, {name!r}"
            )
        return number - 1

    def _named_column(self, line: int, names: list[str], hint: str = "") -> int:
        """The place of the column that is asked for by name, or by none."""
        names = [name.strip() for name in names]
        if self.column is None:
            called = [name for name in names if name.lower() in TEXT_COLUMNS]
            likely = called or (names if len(names) == 1 else [])
            self.column = min(likely, key=str.lower, default=None)  # sentence before text
        if self.column is None or self.column not in names:
            what = "sentence or text" if self.column is None else repr(self.column)
            raise ValueError(
                f"{self.name}, line {line}, has no column {what}; choose as column one of: {listed(names)}{hint}"
            )
        if names.count(self.column) > 1:
            raise ValueError(
                f"{self.name}, line {line}, has {names.count(self.column)} columns {self.column!r}; "
                "give them different names"
            )
        return names.index(self.column)

    def _objects(self, stream: Iterable[bytes]) -> Iterator[str]:
        for number, line in enumerate(decoded(stream, self.name), 1):
            if line.strip():
                record = self._object(line, number)
                if self.column is None:
                    self._named_column(number, list(record))
                yield self._text(record, number)

    def _object(self, line: str, number: int) -> dict[str, object]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.name}, line {number}, is not JSON: {error}") from None
        if not isinstance(record, dict):
            raise ValueError(
                f"{self.name}, line {number}, is {KINDS[type(record).__name__]}, not an object of names and values"
            )
        return record

    def _text(self, record: dict[str, object], number: int) -> str:
        name = str(self.column)
        if name not in record:
            raise ValueError(f"{self.name}, line {number}, has no {name!r}; it has: {listed(list(record))}")
        text = record[name]
        if not isinstance(text, str):
            raise ValueError(f"{self.name}, line {number}, has {KINDS[type(text).__name__]} as {name!r}, not a text")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{self.name}, line {number}, has a lone surrogate (U+{ord(text[error.start]):04X}, half "
                f"a character) in {name!r}; write it as U+FFFD or leave it out"
            ) from None
        return text


def size_of(stream: BinaryIO) -> int | None:
    """Bytes of a regular file; None for a pipe, a terminal, or what is no file of the system."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def listed(names: list[str]) -> str:
    """Names for a message: the first ten, none longer than 40 characters."""
    shown = ", ".join(repr(name if len(name) <= 40 else name[:37] + "...") for name in names[:10])
    return (shown or "none") + (f" and {len(names) - 10} more" if len(names) > 10 else "")
