"""What stands in a file, piece by piece: lines, rows of a table, items of JSON, rows of parquet.

    bytes (.gz opened) -> lines of UTF-8 -> rows

Nothing here holds more than one row, and no row is longer than ROW_LIMIT: a file without line ends, or one that is
small only as long as it is compressed, is refused while memory is still small. Errors name the file and the place.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import importlib
import io
import itertools
import json
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO

from minibert.extras import install_hint

ROW_LIMIT = 64_000_000  # bytes of a line, characters of an item: a thousand times what BERT reads of a text
CHUNK = 2**16  # characters of JSON that are read at a time, while items are short
ROWS_AT_ONCE = 1024  # of parquet
DECODER = json.JSONDecoder()
TABLES: dict[str, dict[str, Any]] = {
    "tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
    "csv": {"delimiter": ",", "strict": True},
}


# ---------------------------------------------------------------------------------------------------------------
# Bytes


def size_of(stream: BinaryIO) -> int | None:
    """Bytes of a regular file; None for a pipe, a terminal, or what is no file of the system."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


@contextmanager
def decompressed(stream: BinaryIO, name: str) -> Iterator[BinaryIO]:
    """What is in a gzip file, to be read inside `with`. Raises ValueError for one that is damaged or cut off."""
    try:
        if size_of(stream) == 0:
            raise EOFError
        with gzip.open(stream) as inside:
            yield inside  # type: ignore[misc]  # it reads as one, without being declared as one
    except EOFError:
        raise ValueError(f"{name} is cut off: its compressed data has no end; fetch it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{name} is not a sound gzip file: {error}") from None


# ---------------------------------------------------------------------------------------------------------------
# Lines


def read_bytes_lines(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """The lines of a stream with their ends. Raises ValueError for a line beyond ROW_LIMIT, before it is read."""
    for number, line in enumerate(iter(partial(stream.readline, ROW_LIMIT + 1), b""), 1):
        if len(line) > ROW_LIMIT:
            raise too_long(f"{name}, line {number},")
        yield line


def decoded(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """The lines as text, without a byte order mark; ValueError names the line that is not UTF-8."""
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise ValueError(f"{name}, line {number}, is not UTF-8 (byte 0x{byte:02X}); save it as UTF-8") from None
        yield text


def read_lines(stream: BinaryIO, name: str) -> Iterator[str]:
    """The lines of a UTF-8 stream, as they come; an empty line is a text like any other."""
    for line in decoded(read_bytes_lines(stream, name), name):
        yield line.removesuffix("\n").removesuffix("\r")


def too_long(place: str) -> ValueError:
    """The error for a row beyond ROW_LIMIT."""
    return ValueError(
        f"{place} is longer than {ROW_LIMIT / 1e6:g} MB, the most that is read as one row; "
        "split it, or look whether the file is what its name says"
    )


# ---------------------------------------------------------------------------------------------------------------
# Tables


def read_rows(stream: BinaryIO, name: str, format: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a .tsv or .csv that are not blank, each with the number of the line that it begins on, from 1."""
    begin, size = 1, 0  # of the row that is being read

    def measured() -> Iterator[str]:
        nonlocal size
        for line in table_lines(stream, name):
            size += len(line)
            if size > ROW_LIMIT:  # a quoted text may go on over many lines
                raise too_long(f"{name}, line {begin},")
            yield line

    rows = csv.reader(measured(), **TABLES[format])
    try:
        for row in rows:
            if row:
                yield begin, row
            begin, size = rows.line_num + 1, 0
    except csv.Error as error:
        limit = csv.field_size_limit()
        hint = " (a quote is not closed, or use .jsonl for texts as long as that)" if str(limit) in str(error) else ""
        raise ValueError(f"{name}, line {begin}, cannot be read: {error}{hint}") from None


def table_lines(stream: BinaryIO, name: str) -> Iterator[str]:
    """The lines of a table, which may end in a lone carriage return."""

    def whole(line: bytes) -> bytes:
        if b"\0" in line:
            raise ValueError(f"{name} is a binary file (or UTF-16), not text; save it as UTF-8")
        return line

    for text in decoded(map(whole, read_bytes_lines(stream, name)), name):
        yield from io.StringIO(text, newline="")


# ---------------------------------------------------------------------------------------------------------------
# JSON


def read_json_lines(stream: BinaryIO, name: str) -> Iterator[tuple[str, object]]:
    """The value of each line that is not blank, with its place."""
    for number, line in enumerate(decoded(read_bytes_lines(stream, name), name), 1):
        if line.strip():
            place = f"{name}, line {number},"
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{place} is not JSON: {error}") from None
            yield place, value


class JsonArray:
    """The items of a JSON array, each with its place, of which no more than one and a CHUNK is held."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self.stream, self.name = stream, name
        self.decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self.held, self.at = "", 0  # characters, and how many of them are done

    def __iter__(self) -> Iterator[tuple[str, object]]:
        if (first := self._next()) != "[":
            hint = "; with one object a line, its format is jsonl (--format jsonl)" if first == "{" else ""
            raise ValueError(f"{self.name} is not a JSON array of objects or of texts{hint}")
        self.at += 1
        if self._next() == "]":
            self.at += 1
        else:
            yield from self._items()
        if self._next():
            raise ValueError(f"{self.name} goes on after its JSON array; one array is read")

    def _items(self) -> Iterator[tuple[str, object]]:
        for number in itertools.count(1):
            place = f"{self.name}, item {number},"
            yield place, self._item(place)
            mark = self._next()
            self.at += 1
            if mark == "]":
                return
            if mark != ",":
                found = repr(mark) if mark else "the end of the file"
                raise ValueError(f"{place} is followed by {found}, not by a comma or the end of the array")

    def _next(self) -> str:
        """The next character that is no white space, "" at the end of the file."""
        while True:
            while self.held[self.at : self.at + 1].isspace():
                self.at += 1
            if self.at < len(self.held) or not self._more():
                return self.held[self.at : self.at + 1]

    def _item(self, place: str) -> object:
        self._next()
        while True:
            try:
                item, self.at = DECODER.raw_decode(self.held, self.at)
                return item
            except json.JSONDecodeError as error:  # of JSON that is wrong, or that goes on in the next chunk
                if not self._more():
                    raise ValueError(f"{place} is not JSON: {error.msg}") from None
                if len(self.held) > ROW_LIMIT:
                    raise too_long(place) from None
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{place} is not JSON: {error}") from None

    def _more(self) -> bool:
        """Read as much as is held, so that all tries at a long item together take a time in proportion to it."""
        self.held, self.at = self.held[self.at :], 0
        chunk = self.stream.read(max(CHUNK, len(self.held)))
        try:
            self.held += self.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise ValueError(f"{self.name} is not UTF-8 (byte 0x{byte:02X}); save it as UTF-8") from None
        return bool(chunk)


# ---------------------------------------------------------------------------------------------------------------
# Parquet


def open_parquet(stream: BinaryIO, name: str) -> Any:
    """A pyarrow ParquetFile. Raises ImportError without pyarrow, ValueError for what is not parquet."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        hint = f"{install_hint('parquet')}; or save it as .jsonl"
        raise ImportError(
            f"{name} is read as parquet, and pyarrow, which does that, is not installed: {hint}"
        ) from None
    try:
        return parquet.ParquetFile(stream)
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} is not a sound parquet file: {error}") from None


def read_parquet(file: Any, name: str, columns: list[str]) -> Iterator[tuple[str, object]]:
    """The rows, as objects of these columns, each with its place."""
    number = 0
    batches = file.iter_batches(ROWS_AT_ONCE, columns=columns)
    while True:
        try:
            batch = next(batches, None)
            rows = [] if batch is None else batch.to_pylist()
        except (OSError, ValueError, RuntimeError) as error:
            raise ValueError(f"{name} is not a sound parquet file: after row {number}, {error}") from None
        if batch is None:
            return
        for row in rows:
            number += 1
            yield f"{name}, row {number},", row
