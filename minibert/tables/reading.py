"""Columns of texts and labels from a file, row by row.

    bytes, decompressed -> lines, decoded -> rows -> the requested columns -> a text for each

.txt      one text per line; an empty line is an empty text. Standard input and names without an ending too
.tsv      columns separated by tabs; quotes are ordinary characters (--format csv --delimiter tab reads them as quotes)
.csv      columns separated by commas, quoted
.jsonl    one object or text per line
.json     an array of objects or of texts, read at once
.parquet  with pyarrow
a folder  one text per .txt file; the name of its subfolder is its label (rows.py)

memory    a data frame, an Arrow table, a dict of columns, a list of objects, of tuples or of texts (rows.py)

A file may be compressed by gzip, bzip2 or xz. A .csv or .tsv may have another delimiter: it is given, or stated in a
first line such as sep=; as Excel has it, or found in the first rows, with a warning (formats.py). Blank lines of a
table and of .jsonl are skipped. A table has a header if a column is requested by name, and none if all are requested by
number, from 1. Except for .json and UTF-16, memory does not grow with the file: a row longer than ROW_LIMIT is refused
before it is read, and so is a compressed file that holds much more than its size. Errors name the file and the place in
it.
"""

import io
import os
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import reduce
from itertools import chain, islice, repeat
from typing import Any, BinaryIO, Self

from minibert.tables.columns import Column, find_columns, has_header, listed, names_in, names_of, nested
from minibert.tables.formats import (
    CANDIDATES,
    CELL_LIMIT,
    DELIMITERS,
    FIRST_LINES,
    FOLDER,
    MEMORY,
    STATED,
    FileSettings,
    decoded_lines,
    decompressed,
    dialect,
    first_rows,
    looks_like_header,
    opened,
    shown_delimiter,
)
from minibert.tables.rows import (
    PlacedCells,
    PlacedRows,
    fields_of,
    open_parquet,
    read_folder,
    read_json_array,
    read_json_lines,
    read_parquet,
    read_table,
    records_of,
    texts_in,
    without_quotes,
)
from minibert.tables.texts import FIRST, SCORE, SECOND, TextOrPair, as_text, is_missing
from minibert.utils.files import parse_json
from minibert.utils.printing import brief, counted
from minibert.utils.wording import advice

DEFAULT = FileSettings()
STANDARD_INPUT = "standard input"
# Of a .csv: names without spaces, one of them usual. No text consists of such words between commas.
HEADER = re.compile(rf'(?=.*[,;|])("?[\w-]*"?[,;|])*"?({"|".join([*FIRST, *SECOND, *SCORE])})"?([,;|]"?[\w-]+"?)*')


class Table:
    """Columns of a file, to be read once, inside `with`.

    path: - is standard input; or data in memory. settings: format, delimiter, encoding, missing texts. After the first
    row `names` are the names of the requested columns, or their numbers without a header. Raises FileNotFoundError for
    a missing file, ImportError for .parquet without pyarrow, TypeError for what is no data, and ValueError for a pipe,
    a device, a folder without .txt files, an unknown format, a missing column, a file that changes while it is read,
    or, with its place, for content that is damaged.

    whole: `record` has all columns of the row, also of a .parquet.
    """

    # Cells that show a table if the first line of standard input has them after a tab; None: any cell does.
    cells: Collection[str] | None = None

    def __init__(
        self,
        path: Any,
        columns: Sequence[Column],
        settings: FileSettings = DEFAULT,
        whole: bool = False,
    ) -> None:
        self.format = settings.format_of(path)
        self.is_file = self.format not in (FOLDER, MEMORY) and os.fspath(path) != "-"
        self.name = f"the {type(path).__name__}" if self.format == MEMORY else os.fspath(path)
        self.name = STANDARD_INPUT if self.name == "-" else self.name
        self.data = records_of(path, self.name) if self.format == MEMORY else []
        self.settings, self.delimiter, self.whole = settings, settings.delimiter, whole
        self.columns = tuple(columns)
        self.names: tuple[str, ...] | None = None  # of the requested columns
        self.header = True
        self.place = self.name  # of the last row, for messages
        self.record: dict[str, Any] = {}  # the last row, all columns if `whole`
        self.first_row: list[str] = []  # its cells, in a .csv or .tsv
        self.texts, self.others = texts_in(self.name) if self.format == FOLDER else ([], [])  # files of a folder
        self.stream = io.BytesIO() if self.format in (FOLDER, MEMORY) else opened(path)
        self.begun = self.state()
        self.size = self.begun[0] if self.begun and self.format != "parquet" else None  # bytes, None if unknown

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    @property
    def position(self) -> int:
        """Bytes read so far, compressed ones of a compressed file; 0 if the size is unknown."""
        return 0 if self.size is None else self.stream.tell()

    def state(self) -> tuple[int, int] | None:
        """Return the bytes and modification time of a file; None for anything else."""
        status = os.fstat(self.stream.fileno()) if self.is_file else None
        return status and (status.st_size, status.st_mtime_ns)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the values of the requested columns, row by row: texts, and labels of any type, stripped.

        A warning counts the rows that are left out.
        """
        rows = dropped = 0
        drop = self.settings.missing == "drop"
        unnamed: ValueError | None = None
        for place, content in self.records():
            rows += 1
            self.place = place
            record = {"text": content} if isinstance(content, str) else content
            if not isinstance(record, dict):
                raise ValueError(f"{place} is {brief(record)}, not an object")
            try:
                self.names = self.names or find_columns(self.columns, names_in(record), place)
            except ValueError as error:
                if not drop:
                    raise
                unnamed, dropped = unnamed or error, dropped + 1  # a later row may have the columns
                continue
            self.record = record
            cells = [record[name] if name in record else nested(record, name) for name in self.names]
            if drop and any(map(self.is_missing, cells, self.columns)):
                dropped += 1
            else:
                yield tuple(map(self.value, cells, self.names, self.columns, repeat(place)))
        if unnamed and not self.names:
            raise unnamed
        if dropped:
            names = " or ".join(map(repr, self.names or ()))
            warnings.warn(f"{self.name}: {dropped:,} of {rows:,} rows have no {names} and are left out", stacklevel=2)

    def whole_columns(self, needs: str) -> tuple[list[str], list[list[Any]]]:
        """Return the place of each row, and the requested columns. Raises ValueError, with `needs`, without rows."""
        rows = [(self.place, *row) for row in self.rows()]
        if not rows:
            raise ValueError(f"{self.name} holds no rows" + needs)
        places, *columns = map(list, zip(*rows, strict=True))
        return places, columns

    def records(self) -> PlacedRows:
        """Yield each row as it is in the file, with its place."""
        damage: ValueError | None = None
        try:
            with decompressed(self.stream, self.name) as stream:
                yield from self._records(stream)
        except ValueError as error:
            damage = error
        if self.state() != self.begun:  # which may be the cause of the damage
            raise ValueError(f"{self.name} was changed while it was read; wait until it is complete, then start again")
        if damage:
            raise damage

    def _records(self, stream: BinaryIO) -> PlacedRows:
        """Yield the rows as objects or as texts, each with its place."""
        encoding = self.settings.encoding
        if self.format in DELIMITERS:
            lines = decoded_lines(stream, self.name, encoding)
            first = list[str]()
            while len(first) < FIRST_LINES and sum(map(len, first)) < CELL_LIMIT and (line := next(lines, "")):
                first.append(line)
            if stated := STATED.fullmatch(first[0] if first else ""):  # by Excel, which has quotes between tabs too
                self.delimiter, first[0] = self.delimiter or stated[1], "\n"  # blank: later lines keep their numbers
            self.delimiter = self.delimiter or self._delimiter(first)
            how = dialect("csv" if stated else self.format, self.delimiter)
            rows = read_table(chain(first, lines), self.name, how)
            unlabelled = not any(column.role == "label" for column in self.columns)  # labels tell more, see tasks
            beginning = first_rows(first, how)
            if unlabelled and looks_like_header(beginning) and not has_header(self.columns, beginning[0]):
                warnings.warn(
                    f"the first row of {self.name} looks like a header and is read as a text, as columns are requested "
                    "by number; request them by name to leave it out",
                    stacklevel=2,
                )
            yield from self._table(rows if how.get("strict") or self.settings.format else without_quotes(rows))
        elif self.format == MEMORY:
            yield from self._in_memory()
        elif self.format == "parquet":
            schema = open_parquet(stream, self.name).schema_arrow
            self.names = find_columns(self.columns, fields_of(schema), self.name)
            yield from read_parquet(stream, self.name, schema.names if self.whole else self.names)
        elif self.format == FOLDER:
            if self.others:
                count = f"{len(self.others):,} of {len(self.others) + len(self.texts):,}"
                warnings.warn(f"{self.name}: {count} files are left out, such as {self.others[0]}", stacklevel=2)
            labelled = any(column.role == "label" for column in self.columns)
            yield from read_folder(self.name, self.texts, encoding, labelled)
        elif self.format == "txt":
            place = f"{self.name}, read as one text per line,"
            lines = decoded_lines(stream, self.name, encoding)
            if self.name == STANDARD_INPUT and not self.settings.format:
                lines = chain(map(self._text, islice(lines, 1)), lines)
            yield from ((place, line.removesuffix("\n").removesuffix("\r")) for line in lines)
        else:
            yield from (read_json_lines if self.format == "jsonl" else read_json_array)(stream, self.name, encoding)

    def _text(self, line: str) -> str:
        """Return the first line of standard input. Raises ValueError if it is a row of a table."""
        _, *others = line.rstrip().split("\t")
        kind = "csv" if HEADER.fullmatch(line.strip().lower()) else ""
        kind = "tsv" if others and (self.cells is None or set(others).intersection(self.cells)) else kind
        with suppress(ValueError):
            kind = "jsonl" if isinstance(parse_json(line), dict) else kind
        if kind:
            ways = advice("; so is standard input with {}", format=kind)
            ways += advice(", and {} reads each line as a text", format="txt")
            raise ValueError(
                f"{self.name} begins with {brief(line.rstrip())}, a row of columns; a file named .{kind} is read as "
                f"such" + ways + " (predict, score: with --file -)"
            )
        return line

    def _in_memory(self) -> PlacedRows:
        """Yield the rows of data in memory; the cells of a tuple are called 1, 2, ..."""
        if self.data and isinstance(self.data[0], list):
            self.first_row = list(map(str, self.data[0]))
            keys = [str(number) for number in range(1, len(self.first_row) + 1)]
            self.names = find_columns(self.columns, keys, self.name, self.first_row)
        for number, row in enumerate(self.data):
            place = f"row {number}"
            if isinstance(row, list) and len(row) != len(self.first_row):
                raise ValueError(f"{place} has {len(row)} items, and row 0 has {len(self.first_row)}")
            yield place, dict(zip(keys, row, strict=True)) if isinstance(row, list) else row

    def _delimiter(self, lines: Sequence[str]) -> str:
        """Return the delimiter by the first lines of a table, with a warning if it is not the one of the format.

        The first that fits wins: one that separates the requested names, one that every row has equally often, one in
        the header. Raises ValueError if every row has two of them equally often.
        """
        implied = DELIMITERS[self.format]
        rows = {delimiter: first_rows(lines, dialect(self.format, delimiter)) for delimiter in CANDIDATES}
        order = sorted(
            (delimiter for delimiter in CANDIDATES if rows[delimiter]), key=lambda delimiter: delimiter != implied
        )
        likely = [delimiter for delimiter in order if self._has_names(rows[delimiter][0])][:1]
        several = [delimiter for delimiter in order if len(rows[delimiter][0]) > 1]
        likely = likely or [delimiter for delimiter in several if len(set(map(len, rows[delimiter]))) == 1]
        if [column.name for column in self.columns] == ["1"] and implied not in likely:
            likely = [implied, *likely]  # each line may be a text
        if len(likely) > 1 and not likely[0] == implied == "\t":
            one, *others = (advice("{}", delimiter=delimiter.replace("\t", "tab")) for delimiter in likely)
            ways = reduce(lambda ways, other: ways + " or " + other, others, one)
            raise ValueError(f"{self.name}: the delimiter of its columns is not certain; choose " + ways)
        likely = likely or (several if has_header(self.columns, ()) else []) or [implied]
        if likely[0] != implied:
            confirm = advice("; {} confirms it", delimiter=likely[0].replace("\t", "tab"))
            warnings.warn(
                f"{self.name}: its columns are separated by {shown_delimiter(likely[0])}, not by "
                + shown_delimiter(implied)
                + confirm,
                stacklevel=2,
            )
        return likely[0]

    def _has_names(self, row: Sequence[str]) -> bool:
        """Return whether this is a header with the requested columns."""
        return bool(self.columns) and has_header(self.columns, row) and set(row).issuperset(names_of(self.columns, row))

    def is_missing(self, cell: Any, column: Column) -> bool:
        """Return whether a value is null, NaN, a label of only blanks, or a text that is an empty cell of a table."""
        if not isinstance(cell, str):
            return is_missing(cell)
        if column.role == "label":
            return not cell.strip() and not column.blank
        return not cell and self.format in DELIMITERS

    def value(self, cell: Any, name: str, column: Column, where: str) -> object:
        """Return a text unchanged, a label stripped. Raises ValueError if it is missing or not a text."""
        absent = self.is_missing(cell, column)
        if column.role == "label":
            label = cell.strip() if isinstance(cell, str) else cell
            if absent:
                raise ValueError(
                    f"{where} has the label {brief(label)}; each row needs one: fill it"
                    + advice(", or leave such rows out: {}", missing="drop")
                )
            return label
        missing = self.settings.missing_text
        if self.format == MEMORY:
            return as_text(cell, int(where.removeprefix("row ")), missing)
        if absent and missing == "empty":
            return ""
        if absent or not isinstance(cell, str):
            wrong = f"{where} has {'an empty cell' if cell == '' else brief(cell)} as {brief(name)}, not a text"
            hint = "; fill it" + advice(", or {} reads an empty text", missing="empty") if absent else ""
            if absent and column.role != "column":  # which may be embedded, row by row
                hint += advice(", {} leaves the row out", missing="drop")
            raise ValueError(f"{wrong}; it has: {listed(names_in(self.record))}" + hint)
        return cell

    def _table(self, rows: PlacedCells) -> PlacedRows:
        """Yield the rows of a table as objects. The first is a header unless columns are requested by number.

        Without a header, the columns are called 1, 2, ...
        """
        for place, first in rows:
            self.first_row = names = [name.strip() for name in first]
            if len(names) < len(self.columns):
                roles = " and ".join(column.role for column in self.columns)
                choose = advice(" ({})", delimiter=...)
                raise ValueError(f"{place} has one column, {listed(names)}; {roles} need one each" + choose)
            self.header = has_header(self.columns, names)
            keys = names if self.header else [str(number) for number in range(1, len(names) + 1)]
            self.names = find_columns(self.columns, keys, place, () if self.header else names)
            if self.whole and len(set(keys)) < len(keys):
                [(twice, _)] = Counter(keys).most_common(1)
                raise ValueError(f"{place} has more than one column {brief(twice)}, and all are kept; rename one")
            requested = zip(self.names, self.columns, strict=True)
            if not self.header and any(first[int(key) - 1].lower() in column.usual for key, column in requested):
                by_name = {column.role: "NAME" for column in self.columns}
                choose = advice("; name the columns:" + " {}" * len(by_name), **by_name)
                raise ValueError(f"{place} is a header: {listed(first)}" + choose)
            for at, row in rows if self.header else chain([(place, first)], rows):
                if len(row) != len(keys):
                    quotes: str = f"; a cell with {shown_delimiter(self.delimiter or '')} in it needs quotes" * (
                        self.format == "csv"
                    )
                    if self.format == "tsv" and any(cell.startswith('"') for cell in row):
                        how = {"format": "csv", "delimiter": "tab"}
                        quotes = advice("; {} {} reads cells in quotes, as pandas writes them", **how)
                    raise ValueError(
                        f"{at} has {counted(len(row), 'column')}, {len(keys)} are expected, as in the first row"
                        + quotes
                    )
                yield at, dict(zip(keys, row, strict=True))


class TextFile(Table):
    """A column of texts in a file, to be iterated once, inside `with`.

    column: a name, or a number from 1 if there is no header; None takes the column called sentence or text, or the
    only one. column2: the column of second texts; each row is then a pair of texts. format and settings: as for
    FileSettings. Otherwise as Table.
    """

    def __init__(
        self,
        path: Any,
        column: str | int | None = None,
        format: str | None = None,
        column2: str | int | None = None,
        whole: bool = False,
        **settings: Any,
    ) -> None:
        columns = [Column("column", column)]
        if column2 is not None:
            columns.append(Column("column2", column2, ()))
        super().__init__(path, columns, FileSettings(format=format, **settings), whole)

    def __iter__(self) -> Iterator[TextOrPair]:
        for row in self.rows():
            yield row[0] if len(row) == 1 else (row[0], row[1])
