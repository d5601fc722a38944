"""A stream of texts to a .npy file: memory stays flat however many there are, and a kill loses one part of the work.

    texts -> chunks of a few thousand -> ids -> engine -> a part on disk for each chunk -> joined as vectors.npy

The same call resumes an interrupted one (parts.py). The texts alone determine where a part ends, so both ways give the
same bits. Joining needs disk space for the vectors twice.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sized
from contextlib import closing
from dataclasses import dataclass
from glob import has_magic
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import torch

from minibert.tables.reading import TextFile
from minibert.tables.texts import CHARACTERS, TEXTS, TextOrPair, as_text, chunked
from minibert.text.tokenized import TokenStats
from minibert.utils.files import matching_files, user_path
from minibert.utils.outputs import check_output
from minibert.utils.printing import brief, progress_bar
from minibert.vectors.embedder import Chunk, Embedder
from minibert.vectors.parts import Parts, part_folder
from minibert.vectors.readable import Matrix
from minibert.vectors.recipe import Recipe, with_settings

DTYPES = ("float32", "float16")


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What was embedded, in numbers."""

    out: str
    rows: int
    tokens: int  # of all rows, special tokens included
    truncated: int  # texts that were too long and lost their ends
    windowed: int  # texts that were too long and were read in several windows
    windows: int  # these windows
    description: str  # of how the vectors were made


@dataclass(frozen=True, kw_only=True)
class Written(Summary):
    """A file that embed_file or embed_stream wrote."""

    shape: tuple[int, int]
    dtype: str
    resumed_rows: int  # computed by an earlier, interrupted run
    kernels: str  # that computed them
    cosine: float | None = None  # the smallest to float32, of some texts computed in int8; None: not measured


def summary(out: str | os.PathLike[str], stats: TokenStats, embedder: Embedder) -> dict[str, Any]:
    """The fields of a Summary, after a warning if texts were cut."""
    embedder.warn(stats)
    counts = {name: getattr(stats, name) for name in ("tokens", "truncated", "windowed", "windows")}
    return {"out": str(out), "rows": stats.texts, **counts, "description": embedder.description}


def embed_file(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    model: str | os.PathLike[str] = "distilbert-base-uncased",
    *,
    column: str | int | None = None,
    column2: str | int | None = None,
    format: str | None = None,
    delimiter: str | None = None,
    encoding: str = "utf-8",
    **settings: Any,
) -> Written:
    """One vector for each text of a file of any size, as a numpy file (N, D).

    path: a file, - for standard input, or a pattern such as "corpus/*.parquet": the rows are those of all its files,
    each once, in the order of their names. column: see tables.reading.TextFile. column2: the column of second texts,
    if the rows are pairs. format, delimiter, encoding: see tables.formats.FileSettings. The other settings, and what
    happens with `out`: see embed_stream. Raises what those raise, and FileNotFoundError for a pattern without files.
    """
    texts = TextFiles(
        path,
        column=column,
        column2=column2,
        format=format,
        delimiter=delimiter,
        encoding=encoding,
        missing=settings.get("missing", "error"),
    )
    with closing(texts):
        return embed_stream(texts, out, model, **settings)


class TextFiles:
    """The texts of a file, or of all files that match a pattern, one file after the other; to be iterated once.

    Arguments as for tables.reading.TextFile. Raises FileNotFoundError if no file matches, before any text is read what
    TextFile raises for the first row of a file, and ValueError if none has a text; warns of one among several.
    """

    def __init__(self, path: str | os.PathLike[str], **settings: Any) -> None:
        self.paths = matching_files(os.fspath(path)) or [os.fspath(path)]
        if has_magic(self.paths[0]) and not os.path.exists(self.paths[0]):
            raise FileNotFoundError(f"{path} matches no file; name files, such as 'corpus/*.csv' in quotes")
        self.settings = settings
        for name in self.paths[1:]:
            with TextFile(name, **settings) as file:
                next(file.rows(), None)
        self.file = TextFile(self.paths[0], **settings)  # the one that is read
        self.before = 0  # bytes of the files before it
        self.pairs = len(self.file.columns) == 2
        self.size = self.file.size and sum(map(os.path.getsize, self.paths))  # bytes, None if unknown

    def __iter__(self) -> Iterator[TextOrPair]:
        empty = 0
        for name in self.paths:
            if name != self.paths[0]:
                self.before += self.file.position
                self.close()
                self.file = TextFile(name, **self.settings)
            rows = iter(self.file)
            first = list(islice(rows, 1))
            empty += not first
            if empty == len(self.paths):
                raise ValueError(f"{self.file.name} holds no texts, so there is nothing to compute")
            if not first:
                warnings.warn(f"{self.file.name} holds no texts", stacklevel=2)
            yield from chain(first, rows)

    @property
    def position(self) -> int:
        """Bytes read so far."""
        return self.before + self.file.position

    def close(self) -> None:
        """Close the file that is read."""
        self.file.stream.close()


@with_settings
def embed_stream(
    texts: Iterable[str] | TextFiles,
    out: str | os.PathLike[str],
    model: str | os.PathLike[str] = "distilbert-base-uncased",
    *,
    pairs: Iterable[str] | None = None,
    device: str | torch.device = "auto",
    dtype: str = "float32",
    restart: bool = False,
    overwrite: bool = False,
    part_rows: int = TEXTS,
    **settings: Any,
) -> Written:
    """One vector for each text, in their order, as a numpy file (N, D).

    pairs: a stream of second texts, one for each text.
    out: a name that ends in .npy; it appears when all is done. Until then OUT.npy.parts holds the parts that are done.
    A later call resumes them if texts and settings are the same, and refuses them if not; restart=True discards them.
    overwrite: replace a numpy file that exists; else it is refused before anything is computed.
    dtype: of the numbers in the file, "float32" or "float16". part_rows: the maximum number of texts in a part.
    model is a Hub name or a folder, device as for `embed`; settings: those of a Recipe.
    Raises what `embed` raises, FileNotFoundError for a folder that does not exist, ValueError for unfinished work of
    other texts or settings and for numbers beyond float16, RuntimeError while another process writes `out`. An
    interrupt is a KeyboardInterrupt that states how many rows are kept.
    """
    if isinstance(texts, str) or isinstance(pairs, str):
        raise TypeError("texts is one str; embed_stream needs a stream of texts, embed_file the name of a file")
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {brief(dtype)}; choose from {', '.join(DTYPES)}")
    out = user_path(out)
    check_output(out, overwrite, endings=(".npy",), apart=[model])
    embedder = Embedder(model, Recipe(**settings), device)
    are_pairs = pairs is not None or (isinstance(texts, TextFiles) and texts.pairs)
    identity = embedder.identity | {"batch_tokens": embedder.recipe.batch_tokens, "part_rows": [part_rows, CHARACTERS]}
    identity |= {"pairs": are_pairs, "dtype": dtype, "kernels": embedder.engine.kernels}
    rows = checked(texts if pairs is None else zip(texts, pairs, strict=True), embedder.recipe.missing, are_pairs)
    parts = Parts(Path(f"{out}.parts"), embedder.width, dtype)
    with part_folder(parts, identity, restart):
        computed, cosine = fill(parts, chunked(rows, part_rows), texts, embedder)
        check_output(out, overwrite)  # it may have appeared meanwhile
        parts.join(out)
    return Written(
        **summary(out, sum(parts.stats.values(), TokenStats()), embedder),
        shape=(parts.rows, embedder.width),
        dtype=dtype,
        resumed_rows=parts.rows - computed,
        kernels=embedder.engine.kernels,
        cosine=cosine,
    )


def checked(rows: Iterable[Any], missing: str, pairs: bool) -> Iterator[TextOrPair]:
    """Each row as a text or a pair. Raises TypeError or ValueError, naming the row, for anything else."""
    for number, row in enumerate(rows):
        texts = [as_text(text, number, missing) for text in (row if pairs else [row])]
        yield (texts[0], texts[1]) if pairs else texts[0]


def fill(
    parts: Parts, chunks: Iterator[list[TextOrPair]], source: object, embedder: Embedder
) -> tuple[int, float | None]:
    """Compute the parts that are not done. Returns how many rows were computed, and Written.cosine of the first ones.

    source: the texts before they were chunks; progress is counted in bytes of a file of known size, else in texts.
    """
    file = source if isinstance(source, TextFiles) and source.size is not None else None
    total = file.size if file else len(source) if isinstance(source, Sized) else None
    computed, cosine = 0, None
    with progress_bar(name="embed", total=total, unit="B" if file else "text", unit_scale=True) as bar:
        for done, group in groupby(enumerate(chunks), parts.holds):
            if done:
                continue
            first = len(parts.stats)
            with closing(embedder.tokenized((texts for _, texts in group), first=parts.rows)) as tokenized:
                for number, new in enumerate(tokenized, first):
                    if cosine is None and embedder.engine.precision == "int8":
                        cosine = embedder.float32_cosine(new.tokens)
                    parts.add(number, new, vectors_of(new, embedder, parts))
                    computed += len(new.rows)
                    bar.update((file.position if file else parts.rows) - bar.n)
    return computed, cosine


def vectors_of(chunk: Chunk, embedder: Embedder, parts: Parts) -> Matrix:
    """The vectors of a chunk, (n, D). Raises RuntimeError if one of its texts needs more memory than there is."""
    try:
        return embedder.vectors(chunk.tokens, chunk.rows)
    except torch.OutOfMemoryError as error:  # with a single text in a batch
        raise RuntimeError(
            f"no memory for the longest of the texts from row {chunk.rows.start} on; {parts.rows:,} rows are kept, and "
            f"the same command continues, on a device with more: {error}"
        ) from error
