"""A corpus in shards: files that are found, checked before any work begins, and embedded one by one, each whole.

    corpus/a.parquet -> row groups -> portions -> the columns with a vector beside them -> vectors/a.parquet

A shard is read portion by portion and written portion by portion, so memory does not grow with it. It appears by a
rename, and its footer says what it was made from and how: a later run recognises by that what is done. Of .parquet all
columns are kept; of other tables, and of lines, the texts. n rows of a portion, D width of a vector.
"""

from __future__ import annotations

import glob
import importlib
import importlib.util
import json
import os
import sys
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import chain, takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

from minibert.checkpoints.tensor_files import sha256
from minibert.extras import install_hint
from minibert.files import atomic_write, parse_json
from minibert.text.tables import Column, TextFile, find_columns, open_parquet
from minibert.text.texts import TEXTS, TextOrPair, portions
from minibert.text.tokenized import TokenStats
from minibert.vectors.cache import Matrix
from minibert.vectors.embedder import Embedder

VECTOR = "vector"  # the column that is added
FOOTER = b"minibert"  # under this name a footer holds a Record
UNSOUND = (OSError, ValueError, RuntimeError)  # what pyarrow raises for a file that is damaged


def check_installed(package: str) -> None:
    """Raise ImportError, with the way to install it, where a package of the extra `ray` is missing."""
    if package not in sys.modules and importlib.util.find_spec(package):
        return  # not imported: that is done where it is needed, and Ray reads its environment then
    needed(package)


def needed(module: str) -> Any:
    """A module of the extra `ray`. Raises ImportError, with the way to install it, where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise ImportError(f"corpora in shards need {package}, which is not installed: {install_hint('ray')}") from None


# ---------------------------------------------------------------------------------------------------------------
# What is read, and what came of it


@dataclass(frozen=True)
class Shard:
    """A file of the corpus, and the file that its vectors go to."""

    source: str
    out: str


@dataclass(frozen=True)
class Columns:
    """What is read of every shard: the column of texts, that of second texts where rows are pairs, and its format.

    None: the usual names, single texts, and the format that the name of the file says; see text.tables.
    """

    text: str | None = None
    pair: str | None = None
    format: str | None = None


@dataclass(frozen=True)
class Source:
    """By what an input file is recognised later: unchanged since it was read, or copied byte for byte."""

    path: str
    bytes: int
    modified_ns: int
    sha256: str

    @classmethod
    def of(cls, path: str) -> Source:
        """The file as it is now; all of it is read for the hash, which takes a thousandth of what its vectors take."""
        status = os.stat(path)
        return cls(path, status.st_size, status.st_mtime_ns, sha256(Path(path)))

    def is_untouched(self, path: str) -> bool:
        """Whether a file has this size and time of change, by which git and make know that it is the same."""
        status = os.stat(path)
        return (status.st_size, status.st_mtime_ns) == (self.bytes, self.modified_ns)

    def is_same(self, path: str) -> bool:
        """Whether it is the same, be it a copy with a time of its own."""
        return self.is_untouched(path) or (os.stat(path).st_size == self.bytes and sha256(Path(path)) == self.sha256)


@dataclass(frozen=True)
class Record:
    """What stands in the footer of a shard that is done."""

    source: Source
    settings: dict[str, Any]  # all that determines a vector except its text
    account: TokenStats  # what became of its texts
    began: float  # seconds since 1970
    seconds: float

    @classmethod
    def of(cls, out: str) -> Record | None:
        """That of a file, or None where there is none: no such file, another file, or one that is damaged."""
        try:
            return cls.read(parse_json(needed("pyarrow.parquet").read_metadata(out).metadata[FOOTER].decode()))
        except (*UNSOUND, KeyError, TypeError):
            return None

    @classmethod
    def read(cls, content: dict[str, Any]) -> Record:
        """What dataclasses.asdict made of one."""
        return cls(**content | {"source": Source(**content["source"]), "account": TokenStats(**content["account"])})

    def is_of(self, shard: Shard, settings: dict[str, Any]) -> bool:
        """Whether the shard need not be computed again."""
        return self.settings == settings and self.source.is_same(shard.source)


# ---------------------------------------------------------------------------------------------------------------
# Found and checked


def find_shards(pattern: str, out: Path) -> list[Shard]:
    """The files that a name or a pattern such as corpus/*.parquet means, in the order of their names.

    Their vectors have the same names under `out`, from the first folder with a wildcard on: corpus/a.parquet becomes
    out/a.parquet, corpus/a.jsonl out/a.jsonl.parquet. What lies in `out` is never input. Raises FileNotFoundError
    where nothing is meant, ValueError for an address such as s3://... and for two shards with the same output.
    """
    if "://" in pattern:
        raise ValueError(
            f"{pattern} is an address, and shards are files; mount it as a folder, or use "
            "minibert.vectors.ray.embed_dataset with a dataset that Ray reads from there"
        )
    if Path(pattern).is_dir():
        raise ValueError(f"{pattern} is a folder; name the files in it, such as {Path(pattern) / '*.parquet'}")
    root, inside = Path(pattern).parent, out.absolute()
    if Path(pattern).exists():
        names = [pattern]
    else:
        names = sorted(glob.glob(pattern, recursive=True))
        root = Path(*takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts[:-1]))
    paths = [Path(name) for name in names if Path(name).is_file()]
    paths = [path for path in paths if inside not in path.absolute().parents]
    if not paths:
        but = " outside of the output folder" if names else "; a pattern stands in quotes"
        raise FileNotFoundError(f"{pattern} matches no file{but}")
    found: dict[str, Path] = {}
    for path in paths:
        relative = path.relative_to(root)
        name = str(relative if path.suffix == ".parquet" else relative.with_name(relative.name + ".parquet"))
        if name in found:
            raise ValueError(f"the vectors of {found[name]} and of {path} would both be {out / name}; rename one")
        found[name] = path
    return [Shard(str(path.absolute()), str(inside / name)) for name, path in found.items()]


def check_shard(shard: Shard, columns: Columns, missing: str = "error") -> None:
    """Open a shard and look for what could be wrong with it, as far as that needs no reading of all of it.

    Raises ValueError, with the file, and the row or the column, for one that is unreadable, or without the columns;
    for a column that holds no texts, nulls (where missing is "error"), or is called `vector`.
    """
    Opened(shard.source, columns, missing).check()


class Opened:
    """A shard that is read; name: what errors call it."""

    def __init__(self, path: str, columns: Columns, missing: str = "error") -> None:
        self.arrow: ModuleType = needed("pyarrow")
        self.path, self.columns, self.missing = path, columns, missing
        self.name = os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else path
        self.is_parquet = (columns.format or Path(path).suffix.lower().removeprefix(".")) == "parquet"

    def check(self) -> None:
        """See check_shard."""
        if self.is_parquet:
            with open(self.path, "rb") as stream:
                file = open_parquet(stream, self.name)
                for name in text_names(file.schema_arrow, self.columns, self.name):
                    self.check_nulls(file, name)
        else:
            with TextFile(self.name, self.columns.text, self.columns.format, self.columns.pair) as file:
                next(file.rows(), None)

    def check_nulls(self, file: Any, name: str) -> None:
        """Raise ValueError for the first null in a column, where its statistics say that there is one."""
        metadata, first = file.metadata, 0
        place = [file.schema.column(number).path for number in range(len(file.schema))].index(name)
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            counts = group.column(place).statistics
            if self.missing == "error" and counts is not None and counts.has_null_count and counts.null_count:
                with self.sound(first):
                    column = file.read_row_group(number, columns=[name]).column(name)
                refuse_null(column, name, self.name, first)
            first += group.num_rows

    @contextmanager
    def sound(self, row: int) -> Iterator[None]:
        """Let errors of pyarrow name the file and the last row before."""
        try:
            yield
        except UNSOUND as error:
            raise ValueError(f"{self.name} is not a sound parquet file: after row {row}, {error}") from None

    def tables(self) -> Generator[tuple[Any, list[TextOrPair]], None, None]:
        """Portions of the shard: what is kept, n rows, and their texts or pairs. The first is empty, for its schema."""
        yield from self.parquet_tables() if self.is_parquet else self.text_tables()

    def parquet_tables(self) -> Iterator[tuple[Any, list[TextOrPair]]]:
        """Those of .parquet, row group by row group."""
        with open(self.path, "rb") as stream:
            file = open_parquet(stream, self.name)
            names, first = text_names(file.schema_arrow, self.columns, self.name), 0
            yield file.schema_arrow.empty_table(), []
            batches = file.iter_batches(TEXTS)
            while True:
                with self.sound(first):
                    if (batch := next(batches, None)) is None:
                        return
                rows = texts_of(batch, names, self.missing, self.name, first)
                yield from in_portions(self.arrow.Table.from_batches([batch]), rows)
                first += batch.num_rows

    def text_tables(self) -> Iterator[tuple[Any, list[TextOrPair]]]:
        """Those of every other format: a column of texts, or two, under their names or as text and pair."""
        text = self.arrow.string()
        with TextFile(self.name, self.columns.text, self.columns.format, self.columns.pair) as file:
            names = ["text", "pair"][: len(file.columns)]
            rows = portions(iter(file))
            first = next(rows, [])
            if file.names and file.header:
                names = list(file.names)
            schema = self.arrow.schema([(name, text) for name in names])
            yield schema.empty_table(), []
            for part in chain([first] if first else [], rows):
                columns = [list(column) for column in zip(*part, strict=True)] if len(names) == 2 else [part]
                yield self.arrow.table(columns, schema=schema), part


def in_portions(table: Any, rows: list[TextOrPair]) -> Iterator[tuple[Any, list[TextOrPair]]]:
    """The table and its texts, in several parts where they are long."""
    begin = 0
    for part in portions(rows):
        yield table.slice(begin, len(part)), part
        begin += len(part)


# ---------------------------------------------------------------------------------------------------------------
# Columns of texts


def text_names(schema: Any, columns: Columns, where: str) -> list[str]:
    """The columns of texts, one or two. Raises ValueError where they are not there, or are something else."""
    if VECTOR in schema.names:
        raise ValueError(f"{where} has a column {VECTOR!r} already, where the vectors are to stand; rename it")
    asked = [Column("text", columns.text)]
    if columns.pair is not None:
        asked.append(Column("pair", columns.pair, ()))
    names = list(find_columns(asked, schema.names, where))
    for name in names:
        if not is_text(kind := schema.field(name).type):
            raise ValueError(f"{where} has {kind} as {name!r}, not texts; choose a column of strings")
    return names


def is_text(kind: Any) -> bool:
    """Whether a column of this type holds strings, as they are or as a dictionary."""
    types = needed("pyarrow").types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def texts_of(table: Any, names: list[str], missing: str, where: str, first: int = 0) -> list[TextOrPair]:
    """The texts or pairs of a table, a null as an empty text where missing is "empty", else refused."""
    columns = []
    for name in names:
        if missing == "error":
            refuse_null(table.column(name), name, where, first)
        columns.append([text or "" for text in table.column(name).to_pylist()])
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def refuse_null(column: Any, name: str, where: str, first: int) -> None:
    """Raise ValueError where a column, whose first value stands in row `first`, counted from 0, has a null."""
    if column.null_count:
        row = first + column.is_null().to_pylist().index(True) + 1
        raise ValueError(f"{where}, row {row}, has null as {name!r}, not a text; leave the row out, or fill it")


# ---------------------------------------------------------------------------------------------------------------
# Embedded


def embed_shard(shard: Shard, columns: Columns, embedder: Embedder, settings: dict[str, Any]) -> Record:
    """Write the vectors of a shard beside its columns, unless that is done already, and return what became of it.

    settings: what to write in the footer as all that determines a vector except its text. Raises ValueError, with the
    file, for what check_shard finds only now and for what `embed` refuses; OSError where it cannot be written.
    """
    done = Record.of(shard.out)
    if done is not None and done.is_of(shard, settings):
        return done
    parquet = needed("pyarrow.parquet")
    began, source = time.time(), Source.of(shard.source)
    opened = Opened(shard.source, columns, embedder.recipe.missing)
    Path(shard.out).parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(Path(shard.out)) as temporary, closing(opened.tables()) as tables:
        schema = with_vectors(next(tables)[0], None, embedder.width).schema
        with parquet.ParquetWriter(temporary, schema, **storage(schema)) as writer:
            account = TokenStats()
            for table, vectors, became in embedded(tables, embedder, opened.name):
                writer.write_table(with_vectors(table, vectors, embedder.width))
                account += became
            if not source.is_untouched(shard.source):
                raise ValueError(f"{opened.name} was changed while it was read; run it again")
            record = Record(source, settings, account, began, time.time() - began)
            writer.add_key_value_metadata({FOOTER: json.dumps(asdict(record)).encode()})
    return record


def embedded(
    tables: Iterable[tuple[Any, list[TextOrPair]]], embedder: Embedder, name: str
) -> Iterator[tuple[Any, Matrix, TokenStats]]:
    """Portions with their vectors, (n, D), and what became of their texts, in order."""
    waiting: deque[Any] = deque()  # where a device computes, the next portion is tokenized meanwhile

    def texts() -> Iterator[list[TextOrPair]]:
        for table, rows in tables:
            waiting.append(table)
            yield rows

    try:
        with closing(embedder.tokenized(texts())) as made:
            for portion in made:
                yield waiting.popleft(), embedder.vectors(portion.tokens, portion.rows), portion.tokens.stats
    except ValueError as error:
        raise error if name in str(error) else ValueError(f"{name}: {error}") from None


def with_vectors(table: Any, vectors: Matrix | None, width: int) -> Any:
    """The table with one column more, a list of `width` float32 in each row; None: of no rows."""
    arrow = needed("pyarrow")
    values = arrow.array([] if vectors is None else vectors.ravel(), arrow.float32())
    return table.append_column(VECTOR, arrow.FixedSizeListArray.from_arrays(values, width))


def storage(schema: Any) -> dict[str, Any]:
    """How columns are stored: vectors plainly, since they repeat nothing and nobody asks for their smallest number."""
    others = [name for name in schema.names if name != VECTOR]
    return {"use_dictionary": others, "write_statistics": others}
