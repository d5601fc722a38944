"""A corpus in shards: files that are found, checked before any work begins, and embedded one by one, each whole.

    corpus/a.parquet -> row groups -> chunks -> the columns with a vector beside them -> vectors/a.parquet

Shards are read and written chunk by chunk, so memory does not grow with them. A finished shard appears by a rename, and
its footer holds the settings and the state of its source, by which a later run recognises that it is done. All
columns of a .parquet are kept; from other tables, and from lines, the texts. n rows of a chunk, D width of a vector.
"""

import glob
import json
import os
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import chain, islice, takewhile, tee
from pathlib import Path
from typing import Any

from minibert.tables.columns import Column, find_columns
from minibert.tables.formats import FileSettings
from minibert.tables.reading import TextFile
from minibert.tables.rows import batches, open_parquet
from minibert.tables.texts import TEXTS, TextOrPair, chunked
from minibert.text.tokenized import TokenStats
from minibert.utils.files import atomic_write, matching_files, user_path
from minibert.utils.printing import require
from minibert.utils.wording import advice
from minibert.vectors.embedder import Embedder
from minibert.vectors.readable import Matrix

require("ray", "pyarrow", "ray")
import pyarrow  # noqa: E402
import pyarrow.parquet as parquet  # noqa: E402

VECTOR = "vector"  # the column that is added
FOOTER = b"minibert"  # the key of our metadata in a footer


@dataclass(frozen=True)
class Shard:
    """A file of the corpus, and the file that its vectors go to."""

    source: str
    out: str

    @property
    def source_state(self) -> list[int]:
        """Bytes and modification time: a source with another state has changed."""
        return [os.stat(self.source).st_size, os.stat(self.source).st_mtime_ns]

    @property
    def footer(self) -> dict[str, Any]:
        """What embed_shard stated of a finished shard. Raises OSError, ValueError or KeyError for any other file."""
        footer: dict[str, Any] = json.loads(parquet.read_metadata(self.out).metadata[FOOTER])
        return footer

    def stats(self, settings: dict[str, Any]) -> TokenStats | None:
        """Return the token stats of a finished shard; None if it is missing, outdated or, after a warning, damaged."""
        if not os.path.exists(self.out):
            return None
        try:
            footer = self.footer
            if footer["settings"] != settings or footer["source"] != self.source_state:
                return None
            stats = TokenStats(**footer["stats"])
            with parquet.ParquetFile(self.out, page_checksum_verification=True) as file:
                if footer.pop("crc32", None) != footer_crc32(footer, file.schema_arrow.names):
                    raise ValueError("the checksum of its footer differs")
                if (rows := sum(batch.num_rows for batch in file.iter_batches())) != stats.texts:
                    raise ValueError(f"it has {rows} rows of {stats.texts}")
            return stats
        except Exception as error:  # pyarrow has many classes of errors for a damaged file
            reason = " ".join(str(error).split())
            warnings.warn(f"{self.out} is damaged ({reason}); it is computed again", stacklevel=2)
            return None


@dataclass(frozen=True)
class Columns(FileSettings):
    """What is read of every shard: the column of texts, the column of second texts if rows are pairs, and how.

    None: the usual names, and single texts; see tables.reading.
    """

    text: str | int | None = None
    pair: str | int | None = None


def find_shards(pattern: str, out: Path) -> list[Shard]:
    """Return the files of a name or a pattern such as corpus/*.parquet, in the order of their names.

    Their vectors get the same names under `out`, from the first folder with a wildcard on: corpus/a.parquet becomes
    out/a.parquet, corpus/a.jsonl out/a.jsonl.parquet. Files in `out` are never input. Raises FileNotFoundError if no
    file matches, ValueError if two shards would have the same output.
    """
    inside = out.absolute()
    is_file = user_path(pattern).exists()
    fixed = takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts[:-1])
    root = Path(pattern).parent if is_file else Path(*fixed)
    shards: dict[str, Shard] = {}
    for path in map(Path, matching_files(pattern)):
        if not path.is_file() or inside in path.absolute().parents:
            continue
        name = path.relative_to(root).as_posix().removesuffix(".parquet") + ".parquet"
        if name in shards:
            raise ValueError(
                f"the vectors of {shards[name].source} and of {path} would both be {out / name}; rename one"
            )
        shards[name] = Shard(str(path.absolute()), str(inside / name))
    if not shards:
        raise FileNotFoundError(
            f"{pattern} matches no file here outside of {out}; name files, such as 'corpus/*.parquet' in quotes"
        )
    return list(shards.values())


# ---------------------------------------------------------------------------------------------------------------
# Read


def read_shard(path: str, columns: Columns) -> Iterator[tuple[Any, list[TextOrPair]]]:
    """Yield chunks of a shard: an arrow table of n rows that is kept, and its texts or pairs.

    The first chunk is empty and has the schema. Reading only this one checks the shard: it raises ValueError, naming
    the file, if it is unreadable, and for columns that are missing, hold no texts, or are called vector.
    """
    if (columns.format or Path(path).suffix.lower()[1:]) == "parquet":
        with open(path, "rb") as stream:
            file = open_parquet(stream, path)
            names = text_columns(file.schema_arrow, columns, path)
            first = 0
            yield file.schema_arrow.empty_table(), []
            for batch in batches(stream, path, rows=TEXTS):
                yield from in_chunks(pyarrow.Table.from_batches([batch]), names, columns.missing, path, first)
                first += batch.num_rows
        return
    with TextFile(path, columns.text, column2=columns.pair, **columns.reading) as source:
        chunks = chunked(iter(source))
        begin = list(islice(chunks, 1))  # after which the names are known
        if not begin:
            warnings.warn(f"{path} holds no texts", stacklevel=2)
        names = list(source.names) if source.names and source.header else ["text", "pair"][: len(source.columns)]
        schema = pyarrow.schema([(name, pyarrow.string()) for name in names])
        yield schema.empty_table(), []
        for chunk in chain(begin, chunks):
            cells = list(zip(*chunk, strict=True)) if len(names) == 2 else [chunk]
            yield pyarrow.table([list(column) for column in cells], schema=schema), chunk


def in_chunks(
    table: Any, names: list[str], missing: str, path: str, first: int
) -> Iterator[tuple[Any, list[TextOrPair]]]:
    """Yield rows of a shard from row `first` on, and their texts or pairs, in several chunks if they are long.

    missing: "empty" makes a null an empty text, "error" raises ValueError with its row.
    """
    columns = [table.column(name).to_pylist() for name in names]
    for name, column in zip(names, columns, strict=True):
        if missing == "error" and None in column:
            row = first + column.index(None) + 1
            raise ValueError(f"{path}, row {row}, has null as {name!r}, not a text; leave the row out, or fill it")
    texts = [[text or "" for text in column] for column in columns]
    rows: list[TextOrPair] = texts[0] if len(texts) == 1 else list(zip(*texts, strict=True))
    start = 0
    for chunk in chunked(rows):
        yield table.slice(start, len(chunk)), chunk
        start += len(chunk)


def text_columns(schema: Any, columns: Columns, where: str) -> list[str]:
    """Return the columns of texts, one or two. Raises ValueError if they are missing or hold something else."""
    if VECTOR in schema.names:
        raise ValueError(f"{where} has a column {VECTOR!r} already, which the vectors would replace; rename it")
    pair = [] if columns.pair is None else [Column("pair", columns.pair, ())]
    requested = [Column("text", columns.text), *pair]
    names = list(find_columns(requested, schema.names, where))
    for name in names:
        kind = str(schema.field(name).type)
        if not kind.removeprefix("dictionary<values=").startswith(("string", "large_string")):
            raise ValueError(f"{where} has {kind} as {name!r}, not texts; choose a column of strings")
    return names


# ---------------------------------------------------------------------------------------------------------------
# Embedded


def embed_shard(shard: Shard, columns: Columns, embedder: Embedder, settings: dict[str, Any]) -> TokenStats:
    """Write the vectors of a shard beside its columns, and return its token stats.

    settings: everything that determines a vector except its text and the precision in which this device computes, which
    is beside them in the footer. Raises ValueError, naming the file, for what read_shard and `embed` refuse;
    OSError if the output cannot be written.
    """
    source = shard.source_state
    stats = TokenStats()
    Path(shard.out).parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(Path(shard.out)) as temporary:
        chunks = read_shard(shard.source, columns)
        schema = next(chunks)[0].schema
        others = schema.names  # vectors repeat nothing and need no statistics
        schema = schema.append(pyarrow.field(VECTOR, pyarrow.list_(pyarrow.float32(), embedder.width)))
        how = {"use_dictionary": others, "write_statistics": others, "write_page_checksum": True}
        with parquet.ParquetWriter(temporary, schema, **how) as writer:
            for table, vectors, more in embedded(chunks, embedder, shard.source):
                column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.ravel()), embedder.width)
                writer.write_table(table.append_column(VECTOR, column))
                stats += more
            footer = {"settings": settings, "precision": embedder.identity["precision"]}
            footer |= {"source": source, "stats": asdict(stats)}
            footer |= {"crc32": footer_crc32(footer, schema.names)}
            writer.add_key_value_metadata({FOOTER: json.dumps(footer).encode()})
    return stats


def footer_crc32(footer: dict[str, Any], names: list[str]) -> int:
    """Return the checksum of our metadata and the names of the columns, which the checksums of pages do not cover."""
    return zlib.crc32(json.dumps([footer, names]).encode())


def finished(shards: Iterable[Shard], settings: dict[str, Any]) -> dict[Shard, TokenStats]:
    """Return the shards that earlier runs with these settings finished, with stats. Raises what check_alike raises."""
    done = {shard: stats for shard in shards if (stats := shard.stats(settings)) is not None}
    check_alike(list(done))
    return done


def check_alike(shards: Sequence[Shard]) -> None:
    """Raise ValueError if finished shards were computed in several precisions, as by workers on unlike devices."""
    for shard in shards[1:]:
        first = shards[0].footer["precision"]
        other = shard.footer["precision"]
        if first != other:
            raise ValueError(
                f"{shards[0].out} was computed in {first}, and {shard.out} in {other}, on another device or with other "
                "settings of torch; let all workers compute alike, and remove the shards that differ"
                + advice(", or start again: {}", restart=True)
            )


def embedded(
    chunks: Iterable[tuple[Any, list[TextOrPair]]], embedder: Embedder, where: str
) -> Iterator[tuple[Any, Matrix, TokenStats]]:
    """Yield chunks with their vectors, (n, D), and token stats, in order. Raises ValueError that names `where`."""
    kept, read = tee(chunks)  # on a GPU the next chunk is tokenized meanwhile
    try:
        with closing(embedder.chunks(rows for _, rows in read)) as computed:
            for (table, _), chunk in zip(kept, computed, strict=False):
                yield table, chunk.vectors, chunk.tokens.stats
    except (ValueError, OSError) as error:
        raise error if where in str(error) else ValueError(f"{where}: " + str(error)) from None
