"""The rows of a file, one after the other, each with its place for messages: cells of a table, or a JSON value."""

import csv
import io
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from minibert.tables import formats
from minibert.tables.formats import decoded_lines, in_quotes, whole_text
from minibert.tables.texts import as_column, column_names
from minibert.utils.files import folders_below, parse_json, user_path
from minibert.utils.printing import brief, install_hint
from minibert.utils.wording import advice

ARROW_TEXTS = ("string", "large_string", "binary", "large_binary")  # types of columns that Arrow can decode later
PlacedCells = Iterator[tuple[str, list[str]]]  # rows of a table, each with its place for messages
PlacedRows = Iterator[tuple[str, object]]  # objects and texts as they are in a file, alike
UNLABELLED = "unsup"  # the folder of texts without a label in the Large Movie Review Dataset


def read_table(lines: Iterator[str], name: str, dialect: Mapping[str, Any]) -> PlacedCells:
    """Yield the rows of a table that are not blank, each with its place: the line it begins on, from 1."""
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
        plain = advice(" {} reads quotes as ordinary characters", format="tsv") if dialect["delimiter"] == "\t" else ""
        raise ValueError(f"{place} cannot be read: {error}; {why}" + plain) from None


def without_quotes(rows: PlacedCells) -> PlacedCells:
    """Yield the rows of a .tsv, with one warning if its quotes do not seem to be part of the texts."""
    warned = False
    for number, (place, row) in enumerate(rows):
        quoted = [] if warned else [cell for cell in row if cell[:1] == '"' and in_quotes(cell)]
        if quoted and (len(quoted) == len(row) > 1 if number == 0 else any('""' in cell for cell in quoted)):
            warned = True
            ways = advice(": {} {} reads them", format="csv", delimiter="tab") + advice(
                ", {} confirms it", format="tsv"
            )
            warnings.warn(
                f"{place} has quotes around a cell, {brief(quoted[0])}, and quotes of a .tsv are part of the text; "
                f"pandas and R write such cells" + ways,
                stacklevel=2,
            )
        yield place, row


def read_json_lines(stream: BinaryIO, name: str, encoding: str) -> PlacedRows:
    """Yield the value of each line that is not blank, with its place."""
    for number, line in enumerate(decoded_lines(stream, name, encoding), 1):
        if line.strip():
            place = f"{name}, line {number},"
            if line.lstrip().startswith("["):
                way = advice(": {}", format="json")
                raise ValueError(f"{place} begins an array; the format of a JSON array is json" + way)
            yield place, parsed(line, place)


def read_json_array(stream: BinaryIO, name: str, encoding: str) -> PlacedRows:
    """Yield the items of a JSON array, each with its place."""
    way = advice(" (with one object per line: {})", format="jsonl")
    place = f"{name}, read as one JSON array" + way + ","
    items = parsed(whole_text(stream, name, encoding), place)
    if not isinstance(items, list):
        raise ValueError(place + " is not an array")
    yield from ((f"{name}, item {number},", item) for number, item in enumerate(items, 1))


def parsed(text: str, place: str) -> Any:
    """Return a JSON value. Raises ValueError with the place."""
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(place + f" is not JSON: {error}") from None


def records_of(data: Any, name: str) -> list[Any]:
    """Return the rows of a table or of a list in memory: objects, or lists of cells, or texts.

    data: what column_names knows, or a column of objects, of tuples or of texts. Raises TypeError for anything else,
    ValueError for columns of different lengths.
    """
    names = column_names(data)
    if names is None and (isinstance(data, str | bytes) or not isinstance(data, Iterable)):
        raise TypeError(
            f"data is {brief(data)}, which is no file and no rows; pass a file, a data frame, a dict of columns, a "
            "list of dicts or of tuples, or texts with labels="
        )
    if names is None:
        return [list(row) if isinstance(row, tuple | np.ndarray) else row for row in as_column(data)]
    columns = [list(as_column(data[column_name])) for column_name in names]
    if len(set(map(len, columns))) > 1:
        lengths = ", ".join(f"{column_name} {len(column)}" for column_name, column in zip(names, columns, strict=True))
        raise ValueError(f"the columns of {name} have different numbers of rows: {lengths}")
    columns = [[cell.tolist() if hasattr(cell, "tolist") else cell for cell in column] for column in columns]
    rows = [dict(zip(map(str, names), row, strict=True)) for row in zip(*columns, strict=True)]
    return with_classes(rows, getattr(getattr(data, "features", data), "arrow_schema", getattr(data, "schema", None)))


def open_parquet(stream: BinaryIO, name: str) -> Any:
    """Return a pyarrow ParquetFile. Raises ImportError without pyarrow, ValueError for a damaged file."""
    try:
        from pyarrow.parquet import ParquetFile

        return ParquetFile(stream)
    except ImportError:
        raise ImportError(
            f"{name} is read as parquet, which needs pyarrow: {install_hint('parquet')}; or save it as .jsonl"
        ) from None
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} is not a sound parquet file: {error}") from None


def texts_in(folder: str) -> tuple[list[Path], list[Path]]:
    """Return the .txt files in a folder, and the files left out: those with other names, and hidden ones.

    Folders below it are read too, except hidden ones; if they have texts, the texts directly in the folder are left
    out, because they have no label. Raises ValueError for a folder without texts.
    """
    root = user_path(folder)
    paths = [Path(below, name) for below in folders_below(str(root)) for name in os.listdir(below or ".")]
    files = sorted(path for path in paths if path.is_file())
    texts = [path for path in files if path.suffix.lower() == ".txt" and not path.name.startswith(".")]
    if not texts:
        raise ValueError(f"{folder} is a folder without .txt files (each would be one text); name a file")
    kept = [path for path in texts if path.parent != root] or texts
    return kept, sorted(set(files) - set(kept))


def read_folder(folder: str, texts: Sequence[Path], encoding: str, labelled: bool) -> PlacedRows:
    """Yield each file as an object of its text, its label and its name in the folder, with its place.

    The label is the name of the subfolder; it is None for unsup, the unlabelled texts of the Large Movie Review
    Dataset. Raises ValueError if labels are needed and a file is directly in the folder, or too deep.
    """
    names = [path.relative_to(user_path(folder)) for path in texts]
    depths = {len(name.parts) for name in names}
    if labelled and depths != {2}:
        wrong = next(name for name in names if len(name.parts) != 2)
        raise ValueError(
            f"{folder} has the text {wrong}; the label of a text is the name of its folder, as in pos/1.txt: name the "
            "folder that holds the folders of all labels"
        )
    for path, name in zip(texts, names, strict=True):
        with path.open("rb") as stream:
            text = whole_text(stream, str(path), encoding).removesuffix("\n").removesuffix("\r")
        label = {"label": None if name.parts[0] == UNLABELLED else name.parts[0]} if depths == {2} else {}
        yield str(path), {"text": text, **label, "file": name.as_posix()}


def fields_of(fields: Any) -> list[str]:
    """Return the names of the columns of a schema, and of fields of structs: review, review.body."""
    inside = (field.flatten() if str(field.type).startswith("struct<") else [] for field in fields)
    return [name for field, inner in zip(fields, inside, strict=True) for name in (field.name, *fields_of(inner))]


def read_parquet(stream: BinaryIO, name: str, columns: Sequence[str]) -> PlacedRows:
    """Yield the rows as objects of these columns, each with its place."""
    rows = (row for batch in batches(stream, name, columns) for row in with_classes(batch.to_pylist(), batch.schema))
    yield from ((f"{name}, row {number},", row) for number, row in enumerate(rows, 1))


def batches(stream: BinaryIO, name: str, columns: Sequence[str] | None = None, rows: int = 1024) -> Iterator[Any]:
    """Yield batches of a parquet file, of up to so many rows and ROW_LIMIT bytes. columns: None: all.

    A text of many rows may be in the file once, so texts stay encoded until the bytes of a batch are known. Raises
    ValueError for a damaged file, a row longer than ROW_LIMIT, and a file that holds more than most_bytes.
    """
    file = open_parquet(stream, name)
    from pyarrow import ArrowException

    most = formats.most_bytes(stream.seek(0, os.SEEK_END))
    too_much = formats.too_long(f"{name}, decompressed,", most)
    if any(file.metadata.row_group(number).total_byte_size > most for number in range(file.num_row_groups)):
        raise too_much
    texts = [field.name for field in file.schema_arrow if str(field.type) in ARROW_TEXTS]
    held, row = 0, 1
    try:
        schema = file.read_row_groups([], columns=columns).schema
        for batch in type(file)(stream, read_dictionary=texts).iter_batches(rows, columns=columns):
            size = sum(map(decoded_size, batch.columns))
            held += size
            if held > most:
                raise too_much
            for part in [batch] if size <= formats.ROW_LIMIT else map(batch.slice, range(len(batch)), repeat(1)):
                if len(part) == 1 and sum(map(decoded_size, part.columns)) > formats.ROW_LIMIT:
                    raise formats.too_long(f"{name}, row {row},", formats.ROW_LIMIT)
                yield part.cast(schema)
                row += len(part)
    except (OSError, RuntimeError, ArrowException) as error:
        raise ValueError(f"{name} is not a sound parquet file: {error}") from None


def decoded_size(array: Any) -> int:
    """Return the bytes of an Arrow array in which each text is written out."""
    if not hasattr(array, "dictionary"):
        return int(array.nbytes)
    from pyarrow import compute

    return compute.sum(compute.binary_length(array.dictionary).take(array.indices)).as_py() or 0


def with_classes(rows: list[dict[str, Any]], schema: Any) -> list[dict[str, Any]]:
    """Return rows with the names of classes in place of their numbers, as the library datasets states in a schema."""
    with suppress(KeyError, TypeError, AttributeError, ValueError):
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        inner = {name: feature.get("feature", feature) for name, feature in features.items()}
        classes = {name: dict(enumerate(feature["names"])) for name, feature in inner.items() if "names" in feature}
        if classes:
            rows = [row | {name: as_class(row[name], classes[name]) for name in row.keys() & classes} for row in rows]
    return rows


def as_class(value: Any, names: Mapping[int, str]) -> Any:
    """Return the name of a class, None for -1, which is no class; or a list of names."""
    return [as_class(item, names) for item in value] if isinstance(value, list) else names.get(value)
