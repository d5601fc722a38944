"""A stream of texts to a .npy file: memory stays flat however many there are, and a kill loses one part of the work.

    texts -> chunks of a few thousand -> ids -> engine -> a part on disk per chunk -> joined as vectors.npy

The same call resumes an interrupted one (parts.py). Only the texts determine where a part ends, so both ways give the
same bits. Joining needs disk space for the vectors twice.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sized
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from glob import has_magic
from itertools import chain, count, groupby, islice
from pathlib import Path
from typing import Any

import torch

from minibert.tables.formats import FORMATS
from minibert.tables.reading import TextFile
from minibert.tables.texts import CHARACTERS, TEXTS, TextOrPair, as_text, chunked
from minibert.text.tokenized import TokenStats
from minibert.utils.files import AnyPath, matching_files, user_path
from minibert.utils.outputs import check_file
from minibert.utils.printing import brief, progress_bar
from minibert.utils.settings import with_settings
from minibert.vectors.embedder import Embedder
from minibert.vectors.origin import Origin
from minibert.vectors.parts import Parts, part_folder
from minibert.vectors.recipe import DEFAULT, Recipe

__all__ = ["embed_file", "embed_stream"]

DTYPES = ("float32", "float16")


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What was embedded."""

    out: str
    rows: int
    tokens: int  # of all rows, including special tokens
    truncated: int  # texts that were too long and were cut
    windowed: int  # texts that were too long and were read in several windows
    windows: int  # of these texts
    description: str  # how the vectors were made


@dataclass(frozen=True, kw_only=True)
class Written(Summary):
    """A file that embed_file or embed_stream wrote."""

    shape: tuple[int, int]
    dtype: str
    resumed_rows: int  # computed by an earlier, interrupted run
    kernels: str  # how they were computed
    columns: tuple[str, ...] | None = None  # of the texts, in a file that has columns
    cosine: float | None = None  # in int8, the smallest to float32 among some texts; None: not measured


def counts(stats: TokenStats) -> dict[str, int]:
    """Return the counts of a Summary."""
    return {"rows": stats.texts} | {
        name: getattr(stats, name) for name in ("tokens", "truncated", "windowed", "windows")
    }


def embed_file(
    path: AnyPath,
    out: AnyPath,
    model: AnyPath = "distilbert-base-uncased",
    *,
    column: str | int | None = None,
    column2: str | int | None = None,
    format: str | None = None,
    delimiter: str | None = None,
    encoding: str = "utf-8",
    recipe: Recipe = DEFAULT,
    **settings: Any,
) -> Written:
    """Write one vector per text of a file of any size, as a numpy file (N, D).

    path: a file, - for standard input, or a pattern such as "corpus/*.parquet", whose files are read once each, in the
    order of their names. column: see tables.reading.TextFile. column2: the column of second texts, for rows of pairs.
    format, delimiter, encoding: see tables.formats.FileSettings. The other arguments: see embed_stream. Raises what
    those raise, and FileNotFoundError for a pattern without files.
    """
    open_file = partial(
        TextFile,
        column=column,
        column2=column2,
        format=format,
        delimiter=delimiter,
        encoding=encoding,
        missing=settings.get("missing", recipe.missing),
    )
    with closing(TextFiles(path, open_file)) as texts:
        written = embed_stream(texts, out, model, recipe=recipe, **settings)
        return replace(written, columns=texts.file.names if texts.file.format in FORMATS[1:] else None)


class TextFiles:
    """The texts of a file, or of all files that match a pattern, one file after the other; iterated once.

    open_file: opens a file by its name. Raises FileNotFoundError if no file matches, what open_file raises before any
    text is read, and ValueError if no file has a text; warns of an empty file among several.
    """

    def __init__(self, path: AnyPath, open_file: partial[TextFile]) -> None:
        self.paths = matching_files(os.fspath(path)) or [os.fspath(path)]
        if has_magic(self.paths[0]) and not os.path.exists(self.paths[0]):
            raise FileNotFoundError(f"{path} matches no file; name files, such as 'corpus/*.csv' in quotes")
        self.path = os.fspath(path)
        self.open_file = open_file
        for name in self.paths[1:]:
            with open_file(name) as file:
                next(file.rows(), None)
        self.file = open_file(self.paths[0])  # the one that is read
        self.before = 0  # bytes of the files before it
        self.pairs = len(self.file.columns) == 2
        self.size = self.file.size and sum(map(os.path.getsize, self.paths))  # bytes, None if unknown

    def __iter__(self) -> Iterator[TextOrPair]:
        empty = 0
        for name in self.paths:
            if name != self.paths[0]:
                self.before += self.file.position
                self.close()
                self.file = self.open_file(name)
            rows = iter(self.file)
            first = list(islice(rows, 1))
            empty += not first
            if empty == len(self.paths):
                raise ValueError(f"{self.file.name} holds no texts, so there is nothing to compute")
            if not first:
                warnings.warn(f"{self.file.name} holds no texts", stacklevel=2)
            yield from chain(first, rows)

    @property
    def how(self) -> dict[str, Any] | None:
        """The path, and how it is read, as JSON; None for standard input, which nobody can read again."""
        return None if self.path == "-" else {"path": str(user_path(self.path).absolute()), **self.open_file.keywords}

    @property
    def position(self) -> int:
        """The number of bytes read so far."""
        return self.before + self.file.position

    def close(self) -> None:
        """Close the file that is read."""
        self.file.stream.close()


@with_settings(Recipe)
def embed_stream(
    texts: Iterable[str] | TextFiles,
    out: AnyPath,
    model: AnyPath = "distilbert-base-uncased",
    *,
    pairs: Iterable[str] | None = None,
    recipe: Recipe = DEFAULT,
    device: str | torch.device = "auto",
    dtype: str = "float32",
    restart: bool = False,
    overwrite: bool = False,
    part_rows: int = TEXTS,
    **settings: Any,
) -> Written:
    """Write one vector per text, in their order, as a numpy file (N, D).

    pairs: a stream of second texts, one per text. model: a Hub name or a folder. recipe, device, settings: as for
    `embed`. out: a name that ends in .npy, which appears when all is done. Until then OUT.npy.parts holds the finished
    parts: a later call with the same texts and settings resumes them, and restart=True discards them. OUT.npy.json says
    how the vectors were made (origin.py). overwrite: replace a numpy file that exists. dtype: of the file, "float32" or
    "float16". part_rows: the most texts in a part.
    Raises what `embed` raises; FileNotFoundError for a folder that does not exist; ValueError, before anything is
    computed, for an `out` that exists and for unfinished work with other texts or settings; ValueError for numbers
    beyond float16; RuntimeError while another process writes `out`. An interrupt is a KeyboardInterrupt that states how
    many rows are kept.
    """
    if isinstance(texts, str) or isinstance(pairs, str):
        raise TypeError("texts is one str; embed_stream needs a stream of texts, embed_file the name of a file")
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {brief(dtype)}; choose from {', '.join(DTYPES)}")
    out = user_path(out)
    check_file(out, overwrite, endings=(".npy",), apart=[model])
    Origin.check(out)
    embedder = Embedder(model, recipe, device, **settings)
    are_pairs = pairs is not None or (isinstance(texts, TextFiles) and texts.pairs)
    rows = checked_rows(texts if pairs is None else zip(texts, pairs, strict=True), embedder.recipe.missing, are_pairs)
    parts = Parts(Path(f"{out}.parts"), embedder.width, dtype, identity(embedder, dtype, part_rows, are_pairs))
    with part_folder(parts, restart):
        computed, cosine = fill_parts(parts, chunked(rows, part_rows), texts, embedder)
        check_file(out, overwrite)  # it may have appeared meanwhile
        Origin.place(out).unlink(missing_ok=True)  # it describes the file that is replaced
        parts.join(out)
        Origin.of(embedder, texts.how if isinstance(texts, TextFiles) else None, parts).write(out)
    return written(parts, out, embedder, computed, cosine)


def identity(embedder: Embedder, dtype: str, part_rows: int, pairs: bool) -> dict[str, Any]:
    """Return the settings that unfinished work must share to be resumed."""
    return embedder.identity | {
        "batch_tokens": embedder.recipe.batch_tokens,
        "part_rows": [part_rows, CHARACTERS],
        "pairs": pairs,
        "dtype": dtype,
        "kernels": embedder.engine.kernels,
    }


def written(parts: Parts, out: Path, embedder: Embedder, computed: int, cosine: float | None) -> Written:
    """Return what was written, after a warning if texts were cut."""
    stats = sum(parts.stats.values(), TokenStats())
    embedder.warn(stats)
    return Written(
        out=str(out),
        **counts(stats),  # type: ignore[arg-type]  # no columns
        description=embedder.description,
        shape=(parts.rows, embedder.width),
        dtype=parts.dtype,
        resumed_rows=parts.rows - computed,
        kernels=embedder.engine.kernels,
        cosine=cosine,
    )


def checked_rows(rows: Iterable[Any], missing: str, pairs: bool) -> Iterator[TextOrPair]:
    """Yield each row as a text or a pair. Raises TypeError or ValueError, naming the row, for anything else."""
    for number, row in enumerate(rows):
        texts = [as_text(text, number, missing) for text in (row if pairs else [row])]
        yield (texts[0], texts[1]) if pairs else texts[0]


def fill_parts(
    parts: Parts, chunks: Iterator[list[TextOrPair]], source: object, embedder: Embedder
) -> tuple[int, float | None]:
    """Compute the parts that are not done. Return how many rows were computed, and the Written.cosine of the first.

    source: the texts before they were chunked; progress counts bytes of a file of known size, else texts.
    """
    file = source if isinstance(source, TextFiles) and source.size is not None else None
    total = file.size if file else len(source) if isinstance(source, Sized) else None
    computed = 0
    cosine = None
    with progress_bar(name="embed", total=total, unit="B" if file else "text", unit_scale=True) as bar:
        for done, group in groupby(enumerate(chunks), parts.holds):
            if done:
                continue
            numbers = count(len(parts.stats))
            new = embedder.chunks((texts for _, texts in group), first=parts.rows)
            with closing(new), kept(parts):
                for number, chunk in zip(numbers, new, strict=False):  # count has no end
                    if cosine is None and embedder.engine.precision == "int8":
                        cosine = embedder.float32_cosine(chunk.tokens)
                    parts.add(number, chunk)
                    computed += len(chunk.rows)
                    bar.update((file.position if file else parts.rows) - bar.n)
    return computed, cosine


@contextmanager
def kept(parts: Parts) -> Iterator[None]:
    """Make running out of memory within the block say from which row on, and how many rows are kept."""
    try:
        yield
    except torch.OutOfMemoryError as error:  # with a single text in a batch
        raise RuntimeError(
            f"not enough memory for the longest text from row {parts.rows} on; {parts.rows:,} rows are kept, and the "
            f"same command continues on a device with more memory: {error}"
        ) from error
