"""How a file is read: its format, its encoding, and the delimiter between its columns.

Bewertung;Note            reviews.csv: there is no comma between the names,
Sehr gut, danke;1         and one semicolon in each row: it is the delimiter
"Teuer; und laut";5       inside quotes it does not count
"""

import bz2
import codecs
import csv
import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from minibert.utils.files import AnyPath, regular, user_path
from minibert.utils.printing import brief
from minibert.utils.settings import check, setting
from minibert.utils.wording import advice

DELIMITERS = {"tsv": "\t", "csv": ","}  # what the format implies
ROW_LIMIT = 64_000_000  # bytes in a line: a thousand times what BERT reads of a text
WHOLE_LIMIT = 1_000_000_000  # bytes in a .json or a UTF-16 file
RATIO = 100  # of what a compressed file over ROW_LIMIT holds to its size; text has 3 to 50
CELL_LIMIT = 16_000_000  # characters in a cell of a .csv or .tsv, and in the lines that show the delimiter
CANDIDATES = (",", ";", "\t", "|")
FOLDER = "folder"  # the format of a folder: each .txt file in it is one text
MEMORY = "memory"  # the format of what is not a file: a data frame, a list
FORMATS = ("txt", *DELIMITERS, "jsonl", "json", "parquet")
FIRST_LINES = 20  # the delimiter of a table is found in these
COMPRESSED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
GZIP = b"\x1f\x8b"  # a gzip file begins with this, whatever its name is
STATED = re.compile(r'"?sep=([^\w"\r\n])"?[\r\n]*', re.IGNORECASE)  # a first line by which Excel knows the delimiter

# A limit of the whole process, because csv has none for a single reader. It is raised once and never lowered.
csv.field_size_limit(max(csv.field_size_limit(), CELL_LIMIT))


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """How the lines of a file are read. Raises ValueError for an encoding that Python does not know."""

    encoding: str = setting("utf-8", "of the file, such as cp1252 (Windows), latin-1 or utf-16", metavar="NAME")

    def __post_init__(self) -> None:
        check(self)
        try:
            "\n".encode(self.encoding)
        except (LookupError, UnicodeError):
            raise ValueError(
                f"encoding is {brief(self.encoding)}; it must be one that Python knows, such as utf-8, cp1252 or utf-16"
            ) from None


@dataclass(frozen=True, kw_only=True)
class FileSettings(TextSettings):
    """How a file of texts is read.

    format: one of FORMATS; None decides by the name. delimiter: one character, or "tab"; None finds it in the first
    rows. missing: what to do with null, NaN, and an empty cell of a .csv or .tsv: "error" refuses it, "empty" reads an
    empty text, and "drop" leaves out rows without a text or a label; a warning counts them.
    """

    format: str | None = setting(None, "{choices} (default: by the file name)", choices=FORMATS, metavar="TYPE")
    delimiter: str | None = setting(
        None,
        "between the columns of a .csv or .tsv: a character, or tab (default: found in the first rows)",
        metavar="CHARACTER",
    )
    missing: str = setting(
        "error",
        "for an empty cell or null: {choices}; empty reads an empty text, drop leaves the row out",
        choices=("error", "empty", "drop"),
        metavar="HOW",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delimiter in ("tab", r"\t"):
            object.__setattr__(self, "delimiter", "\t")
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise ValueError(f"delimiter is {brief(self.delimiter)}; it must be one character, such as ; or |, or tab")

    @property
    def reading(self) -> dict[str, Any]:
        """Only these settings, of a subclass that has others too."""
        return {field.name: getattr(self, field.name) for field in fields(FileSettings)}

    @property
    def missing_text(self) -> str:
        """What to do with a missing text where no row is left out: "empty" or "error"."""
        return "empty" if self.missing == "empty" else "error"

    def format_of(self, path: object) -> str:
        """Return the format of a file or of data in memory.

        Raises ValueError for an unknown format, and for settings that do not apply to the format.
        """
        name = str(path)
        if format_by_name(path) == MEMORY:
            if self.format or self.delimiter or self.encoding != FileSettings.encoding:
                raise ValueError(
                    f"format, delimiter and encoding are for files; leave them out for a {type(path).__name__}"
                )
            return MEMORY
        if format_by_name(path) == FOLDER:
            if self.format is not None or self.delimiter is not None:
                raise ValueError(
                    f"{name} is a folder, which is read as one text per .txt file; leave out format and delimiter, or "
                    "name a file"
                )
            return FOLDER
        format = self.format or Path(decompressed_name(name)).suffix[1:] or "txt"
        if format not in FORMATS:
            raise ValueError(
                f"{name} ends in .{format}, which is not a known format; name it"
                + advice(" with {}", format=...)
                + f": {', '.join(FORMATS)}; of compressed files only .gz, .bz2 and .xz are read: decompress any other"
            )
        if self.delimiter is not None and format not in DELIMITERS:
            table = advice(", or use {}", format="csv")
            raise ValueError(f"{name} is read as {format}, which has no delimiter; leave it out" + table)
        return format


def decompressed_name(name: str) -> str:
    """Return a name in small letters, without the ending of a compressed file."""
    name, ending = os.path.splitext(name.lower())
    return name if ending in COMPRESSED else name + ending


def format_by_name(path: object) -> str | None:
    """Return the format that a name ends in, .gz aside; FOLDER for a folder, MEMORY for no path, None for the rest."""
    if not isinstance(path, str | os.PathLike):
        return MEMORY
    if os.path.isdir(user_path(path)):
        return FOLDER
    name = decompressed_name(os.fspath(path))
    return next((format for format in FORMATS if name.endswith(f".{format}")), None)


def settings_by_name(path: object, default: str, format: str | None, **more: Any) -> FileSettings:
    """Return how to read a file whose name may have any ending: `default` is the format of an unknown one."""
    return FileSettings(format=format or (None if format_by_name(path) else default), **more)


# ---------------------------------------------------------------------------------------------------------------
# Lines


def opened(path: AnyPath) -> BinaryIO:
    """Open the file or standard input for bytes. Raises ValueError for a pipe or a device, which could block."""
    if os.fspath(path) == "-":
        return sys.stdin.buffer
    return regular(user_path(path), "file; to read from a pipe, use standard input, whose name is -").open("rb")


@contextmanager
def decompressed(stream: BinaryIO, name: str) -> Iterator[BinaryIO]:
    """Yield the content, to be read inside `with`. A compressed file is first decompressed once, without keeping it.

    Raises ValueError for a compressed file that is damaged or cut off, that holds more than most_bytes, or a pipe.
    """
    kind = ""
    if isinstance(stream, io.BufferedReader):  # not a folder, nor data in memory
        kind = ".gz" if stream.peek(2).startswith(GZIP) else os.path.splitext(name.lower())[1]
    if kind not in COMPRESSED:
        yield stream
        return
    try:
        with COMPRESSED[kind](stream) as content:
            most = most_bytes(os.fstat(stream.fileno()).st_size)
            if content.seek(most + 1) > most:
                raise too_long(f"{name}, decompressed,", most)
            content.seek(0)
            yield content
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(
            f"{name} is cut off, not a {kind} file, or a pipe, which has to be decompressed first: {error}"
        ) from None


def decoded_lines(stream: BinaryIO, name: str, encoding: str) -> Iterator[str]:
    """Yield the lines with their ends. Raises ValueError, with the line, for other encodings and endless lines."""
    if "\n".encode(encoding) != b"\n":  # UTF-16, where this byte can be part of other characters
        stream = io.BytesIO(whole_text(stream, name, encoding).encode())
        encoding = "utf-8"
    for number, line in enumerate(iter(partial(stream.readline, ROW_LIMIT + 1), b""), 1):
        if len(line) > ROW_LIMIT:
            raise too_long(f"{name}, line {number},", ROW_LIMIT)
        try:
            text = line.decode(codec(encoding) if number == 1 else encoding)
        except UnicodeDecodeError as error:
            raise other_encoding(f"{name}, line {number},", encoding, error) from None
        yield text


def most_bytes(size: int) -> int:
    """Return how many bytes a compressed file of this size may hold."""
    return max(ROW_LIMIT, RATIO * size)


def too_long(place: str, most: int) -> ValueError:
    """Return the error for more than `most` bytes."""
    return ValueError(
        f"{place} is longer than {most / 1e6:.4g} MB; split it, or check whether it is what its name says"
    )


def whole_text(stream: BinaryIO, name: str, encoding: str) -> str:
    """Return the content, read at once.

    Raises ValueError if the file is too large, or is not in this encoding (naming the first wrong byte).
    """
    content = stream.read(WHOLE_LIMIT + 1)
    if len(content) > WHOLE_LIMIT:
        raise too_long(f"{name}, read at once,", WHOLE_LIMIT)
    try:
        return content.decode(codec(encoding))
    except UnicodeDecodeError as error:
        raise other_encoding(f"{name}, at byte {error.start:,},", encoding, error) from None


def codec(encoding: str) -> str:
    """Return the codec of an encoding; for UTF-8, the one that drops a byte order mark."""
    return "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding


def other_encoding(place: str, encoding: str, error: UnicodeDecodeError) -> ValueError:
    """Return the error for bytes that are not text in this encoding."""
    utf16 = error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    name = advice(", name its encoding: {}", encoding="utf-16" if utf16 else "cp1252")
    return ValueError(
        f"{place} is not {encoding.upper()} (byte 0x{error.object[error.start]:02X}); save it as UTF-8"
        + name
        + ", or decompress it, if it is a .zip or .zst"
    )


# ---------------------------------------------------------------------------------------------------------------
# Delimiters


def dialect(format: str, delimiter: str) -> dict[str, Any]:
    """Return the arguments of csv.reader: quotes are ordinary characters between tabs of a .tsv."""
    plain = format == "tsv" and delimiter == "\t"
    return {"delimiter": delimiter} | ({"quoting": csv.QUOTE_NONE} if plain else {"strict": True})


def first_rows(lines: Sequence[str], how: dict[str, Any]) -> list[list[str]]:
    """Return the rows in the first lines, without blank ones and a last one that may be cut off; [] on failure."""
    try:
        text = "".join(lines)
        rows = list(csv.reader(io.StringIO(text, newline=""), **how | {"strict": False}))
    except csv.Error:
        return []
    return [row for row in rows if row][: -1 if len(lines) == FIRST_LINES or len(text) >= CELL_LIMIT else None]


def looks_like_header(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row has a name in a column whose other cells are all numbers."""
    first, *others = rows if len(rows) > 2 and len(set(map(len, rows))) == 1 else [[]]
    return any(
        name and not is_number(name) and all(is_number(row[at]) for row in others) for at, name in enumerate(first)
    )


def is_doubtful(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first of two rows may be a header or not: each cell is a word or two, none is a number."""
    return len(rows) == 2 and all(
        cell[:1].isalpha() and cell.count(" ") < 2 and not cell.isupper() for cell in map(str, rows[0])
    )


def is_number(cell: str) -> bool:
    """Return whether a cell is a number, perhaps with a decimal comma."""
    return re.fullmatch(r"\s*[+-]?\d*[.,]?\d+\s*", cell) is not None


def in_quotes(cell: str) -> bool:
    """Return whether a cell is in quotes and each quote inside is doubled, as the csv module and pandas write it."""
    return len(cell) > 2 and cell[0] == cell[-1] == '"' and '"' not in cell[1:-1].replace('""', "")


def shown_delimiter(delimiter: str) -> str:
    """Return a delimiter for a message and for --delimiter."""
    return "tab" if delimiter == "\t" else f"'{delimiter}'"
