"""Columns of texts and labels from a file, row by row.

    bytes (.gz decompressed) -> lines, decoded -> rows -> the requested columns -> a text for each

.txt      one text per line; an empty line is an empty text. Standard input and names without an ending are read as this
.tsv      columns separated by tabs; quotes are ordinary characters
.csv      columns separated by commas, quoted
.jsonl    one object or text per line
.json     an array of objects or of texts, read at once
.parquet  with pyarrow

All may also end in .gz. A .csv or .tsv may have another delimiter: it is found in the first rows, with a warning, or
given (formats.py). Blank lines of a table and of .jsonl are skipped. A table has a header if a column is requested by
name, and none if all are requested by number, from 1. Except for .json and UTF-16, memory does not grow with the file:
a row longer than ROW_LIMIT is refused before it is read. Errors name the file and the place in it.
"""

import csv
import importlib
import io
import os
import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, BinaryIO, Self

from minibert.text.formats import (
    CANDIDATES,
    DELIMITERS,
    FIRST_LINES,
    FileSettings,
    decoded_lines,
    decompressed,
    dialect,
    first_rows,
    opened,
    shown,
    whole_text,
)
from minibert.text.texts import TextOrPair
from minibert.utils.files import parse_json
from minibert.utils.printing import brief, install_hint

DEFAULT = FileSettings()
TEXT_COLUMNS = ("sentence", "text")  # the usual names of a column of texts
STANDARD_INPUT = "standard input"


@dataclass(frozen=True)
class Column:
    """A requested column: by name, by number from 1, or by one of its usual names if `name` is None."""

    role: str  # in messages: column, text, pair or label
    name: str | None = None
    usual: tuple[str, ...] = TEXT_COLUMNS


# ---------------------------------------------------------------------------------------------------------------
# A file


class Table:
    """Columns of a file, to be read once, inside `with`.

    path: - is standard input. settings: format, delimiter, encoding, missing texts. After the first row `names` are
    those of the requested columns, or their numbers without a header. Raises FileNotFoundError for a missing file,
    ImportError for .parquet without pyarrow, and ValueError for a pipe, a device or a folder, an unknown format, a
    missing column, a file that changes while it is read, or, with its place, for content that is damaged.

    whole: `record` has all columns of the row, also of a .parquet.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        columns: Sequence[Column],
        settings: FileSettings = DEFAULT,
        whole: bool = False,
    ) -> None:
        self.name = STANDARD_INPUT if os.fspath(path) == "-" else os.fspath(path)
        self.format, self.compressed = settings.format_of(self.name)
        self.settings, self.delimiter, self.whole = settings, settings.delimiter, whole
        self.columns = tuple(columns)
        self.names: tuple[str, ...] | None = None  # of the requested columns
        self.header = True
        self.place = self.name  # of the last row, for messages
        self.record: dict[str, Any] = {}  # the last row, all columns if `whole`
        self.stream = opened(path)
        self.begun = self.state()
        self.size = self.begun[0] if self.begun and self.format != "parquet" else None  # bytes, None if unknown

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    @property
    def position(self) -> int:
        """Bytes read so far, compressed ones of a .gz; 0 if the size is unknown."""
        return 0 if self.size is None else self.stream.tell()

    def state(self) -> tuple[int, int] | None:
        """Bytes and modification time of a file; None for standard input."""
        found = os.fstat(self.stream.fileno()) if self.name != STANDARD_INPUT else None
        return found and (found.st_size, found.st_mtime_ns)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The values of the requested columns, row by row: texts, and labels of any type, stripped."""
        for place, found in self.records():
            self.place = place
            record = {"text": found} if isinstance(found, str) else found
            if not isinstance(record, dict):
                raise ValueError(f"{place} is {brief(record)}, not an object")
            self.names, self.record = self.names or find_columns(self.columns, list(record), place), record
            columns = zip(self.names, self.columns, strict=True)
            yield tuple(self.value(record, name, column, place) for name, column in columns)

    def records(self) -> Iterator[tuple[str, object]]:
        """Each row as it is, an object of a .jsonl or .json, with its place."""
        damage: ValueError | None = None
        try:
            with decompressed(self.stream, self.name, self.compressed) as stream:
                yield from self._records(stream)
        except ValueError as error:
            damage = error
        if self.state() != self.begun:  # which may be the cause of the damage
            raise ValueError(f"{self.name} was changed while it was read; wait until it is complete, then start again")
        if damage:
            raise damage

    def _records(self, stream: BinaryIO) -> Iterator[tuple[str, object]]:
        """The rows as objects or as texts, each with its place."""
        encoding = self.settings.encoding
        if self.format in DELIMITERS:
            lines = decoded_lines(stream, self.name, encoding)
            first = list(islice(lines, FIRST_LINES))
            self.delimiter = self.delimiter or self._delimiter(first)
            how = dialect(self.format, self.delimiter)
            yield from self._table(read_table(chain(first, lines), self.name, how))
        elif self.format == "parquet":
            file = open_parquet(stream, self.name)
            self.names = find_columns(self.columns, file.schema_arrow.names, self.name)
            yield from read_parquet(file, self.name, file.schema_arrow.names if self.whole else self.names)
        elif self.format == "txt":
            place = f"{self.name}, read as one text per line,"
            lines = decoded_lines(stream, self.name, encoding)
            yield from ((place, line.removesuffix("\n").removesuffix("\r")) for line in lines)
        else:
            yield from (read_json_lines if self.format == "jsonl" else read_json_array)(stream, self.name, encoding)

    def _delimiter(self, lines: Sequence[str]) -> str:
        """The delimiter by the first lines of a table, with a warning if it is not the one of the format.

        The first that fits wins: one that separates the requested names, one that is as often in each row, one in
        the header. Raises ValueError where two are as often in each row.
        """
        implied = DELIMITERS[self.format]
        rows = {one: first_rows(lines, dialect(self.format, one)) for one in CANDIDATES}
        order = sorted((one for one in CANDIDATES if rows[one]), key=lambda one: one != implied)
        found = [one for one in order if self._has_names(rows[one][0])][:1]
        several = [one for one in order if len(rows[one][0]) > 1]
        found = found or [one for one in several if len(set(map(len, rows[one]))) == 1]
        if [column.name for column in self.columns] == ["1"] and implied not in found:
            found = [implied, *found]  # each line may be a text
        if len(found) > 1 and not found[0] == implied == "\t":
            ways = " or ".join(f"--delimiter {shown(one)}" for one in found)
            raise ValueError(f"{self.name}: the delimiter of its columns is not certain; choose {ways} (delimiter=)")
        found = found or (several if has_header(self.columns, ()) else []) or [implied]
        if found[0] != implied:
            warnings.warn(
                f"{self.name}: its columns are separated by {shown(found[0])}, not by {shown(implied)}; --delimiter "
                f"{shown(found[0])} (delimiter=) confirms it",
                stacklevel=2,
            )
        return found[0]

    def _has_names(self, row: Sequence[str]) -> bool:
        """Whether this is a header with the requested columns."""
        return has_header(self.columns, row) and all(name_of(column, row) in row for column in self.columns)

    def value(self, record: Mapping[str, object], name: str, column: Column, where: str) -> object:
        """A text unchanged, a label stripped. Raises ValueError for an empty cell, and for anything but a text."""
        found = record.get(name)
        if column.role == "label":
            return found.strip() if isinstance(found, str) else found
        absent = found is None or (found == "" and self.format in DELIMITERS)
        if absent and self.settings.missing == "empty":
            return ""
        if absent or not isinstance(found, str):
            wrong = f"{where} has {'an empty cell' if found == '' else brief(found)} as {name!r}, not a text"
            hint = "; fill it, leave the row out, or read it as an empty text: --missing empty (missing=)" * absent
            raise ValueError(f"{wrong}; it has: {listed(list(record))}{hint}")
        return found

    def _table(self, rows: Iterator[tuple[str, list[str]]]) -> Iterator[tuple[str, object]]:
        """The rows of a table as objects. The first is a header unless columns are requested by number.

        Without a header, the columns are called 1, 2, ...
        """
        for place, first in rows:
            names = [name.strip() for name in first]
            if len(names) < len(self.columns):
                roles = " and ".join(column.role for column in self.columns)
                raise ValueError(f"{place} has one column, {listed(names)}; {roles} need one each (--delimiter)")
            self.header = has_header(self.columns, names)
            keys = names if self.header else [str(number) for number in range(1, len(names) + 1)]
            self.names = find_columns(self.columns, keys, place, self.header)
            if self.whole and len(set(keys)) < len(keys):
                twice = next(name for name in keys if keys.count(name) > 1)
                raise ValueError(f"{place} has more than one column {twice!r}, and all are kept; rename one")
            requested = zip(self.names, self.columns, strict=True)
            if not self.header and any(first[int(key) - 1].lower() in column.usual for key, column in requested):
                raise ValueError(f"{place} is a header: {listed(first)}; request columns by name, not by number")
            for at, row in rows if self.header else chain([(place, first)], rows):
                if len(row) != len(keys):
                    quotes = f"; a cell with {shown(self.delimiter or '')} in it needs quotes" * (self.format == "csv")
                    raise ValueError(
                        f"{at} has {len(row)} columns, {len(keys)} are expected, as in the first row{quotes}"
                    )
                yield at, dict(zip(keys, row, strict=True))


class TextFile(Table):
    """A column of texts in a file, to be iterated once, inside `with`.

    column: a name, or a number from 1 if there is no header; None takes the column called sentence or text, or the
    only one. column2: the column of second texts; each row is then a pair of texts. format and settings: those of
    FileSettings. Otherwise as Table.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        column: str | int | None = None,
        format: str | None = None,
        column2: str | int | None = None,
        whole: bool = False,
        **settings: Any,
    ) -> None:
        columns = [Column("column", None if column is None else str(column))]
        if column2 is not None:
            columns.append(Column("column2", str(column2), ()))
        super().__init__(path, columns, FileSettings(format=format, **settings), whole)

    def __iter__(self) -> Iterator[TextOrPair]:
        for row in self.rows():
            yield row[0] if len(row) == 1 else (row[0], row[1])


# ---------------------------------------------------------------------------------------------------------------
# Rows


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
        plain = " --format tsv reads quotes as ordinary characters" * (dialect["delimiter"] == "\t")
        raise ValueError(f"{place} cannot be read: {error}; is a quote not closed?{plain}") from None


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


def read_parquet(file: Any, name: str, columns: Sequence[str]) -> Iterator[tuple[str, object]]:
    """The rows, as objects of these columns, each with its place."""
    rows = (row for batch in file.iter_batches(1024, columns=columns) for row in batch.to_pylist())
    try:
        yield from ((f"{name}, row {number},", row) for number, row in enumerate(rows, 1))
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} is not a sound parquet file: {error}") from None


# ---------------------------------------------------------------------------------------------------------------
# Columns


def name_of(column: Column, names: Sequence[str]) -> str | None:
    """The name of a column as the file has it: blanks around it do not matter, nor the case of a usual name."""
    if column.name is None:
        return next((name for usual in column.usual for name in names if name.strip().lower() == usual), None)
    return next((name for name in names if plain(name) == plain(column.name)), column.name)


def plain(name: str) -> str:
    """A name without blanks around it, each umlaut as one character."""
    return unicodedata.normalize("NFC", name.strip())


def has_header(columns: Sequence[Column], first: Sequence[str]) -> bool:
    """Whether the first row of a table has names: one is requested, or none by number and all usual ones are there."""
    if requested := [column.name for column in columns if column.name is not None]:
        return not all(name.isdecimal() for name in requested)
    return len(columns) == 1 or all(name_of(column, first) for column in columns)


def find_columns(columns: Sequence[Column], names: Sequence[str], where: str, header: bool = True) -> tuple[str, ...]:
    """The name of each requested column in a file that has these.

    A column that is not requested by name is the only one, or one of those left, in order, of a table without a header.
    Raises ValueError for a column that is not there, or there twice, or requested twice.
    """
    left = [name for name in names if name not in [name_of(column, names) for column in columns if column.name]]
    unnamed = sum(column.name is None for column in columns)
    spare = iter(left if (not header or len(columns) == 1) and len(left) == unnamed else ())
    found: list[str] = []
    for column in columns:
        name = name_of(column, names) or next(spare, "")
        if name in found or names.count(name) != 1:
            what = repr(name) if name else " or ".join(column.usual)
            count = "only one" if name in found else "more than one" if name in names else "no"
            raise ValueError(
                f"{where} has {count} column {what}; choose as {column.role} one of: {listed(names)}"
                f"{'' if header else ' (without a header, columns have numbers)'}"
            )
        found.append(name)
    return tuple(found)


def listed(names: Sequence[str]) -> str:
    """Names for a message: the first ten, none longer than 40 characters."""
    first = ", ".join(repr(name if len(name) <= 40 else name[:37] + "...") for name in names[:10])
    return (first or "none") + (f" and {len(names) - 10} more" if len(names) > 10 else "")
