"""A stream of texts to a .npy file: memory stays flat however many there are, and a kill loses one part of the work.

    texts -> chunks of a few thousand -> ids -> engine -> a part on disk for each chunk -> joined as vectors.npy

    vectors.npy.parts/manifest.json   the settings: everything that determines a vector except its text
    vectors.npy.parts/part-0.npz      the first vectors, the hash of their texts, and their token stats

A part appears by a rename, so it is done if its file exists. The same call resumes an interrupted one. The texts alone
determine where a part ends, so both ways give the same bits. Joining needs disk space for the vectors twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, field, fields
from glob import has_magic
from itertools import chain, dropwhile, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from minibert.text.tables import TextFile
from minibert.text.texts import CHARACTERS, TEXTS, TextOrPair, as_text, chunked
from minibert.text.tokenized import TokenStats
from minibert.utils.files import atomic_write, lock_file, matching_files, read_json, write_text_atomically
from minibert.utils.outputs import NPY_HEADER, NPY_START, check_output
from minibert.utils.printing import brief, progress_bar
from minibert.vectors.embedder import Embedder
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
    each once, in the order of their names. column: see text.tables.TextFile. column2: the column of second texts, if
    the rows are pairs. format, delimiter, encoding: see text.formats.FileSettings. The other settings, and what happens
    with `out`: see embed_stream. Raises what those raise, and FileNotFoundError for a pattern without files.
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

    Arguments as for text.tables.TextFile. Raises FileNotFoundError if no file matches, and, before any text is read,
    what TextFile raises for the first row of a file.
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
        yield from self.file
        for name in self.paths[1:]:
            self.before += self.file.position
            self.close()
            self.file = TextFile(name, **self.settings)
            yield from self.file

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
    check_output(Path(out), overwrite, endings=(".npy",), apart=[model])
    embedder = Embedder(model, Recipe(**settings), device)
    are_pairs = pairs is not None or (isinstance(texts, TextFiles) and texts.pairs)
    identity = embedder.identity | {"batch_tokens": embedder.recipe.batch_tokens, "part_rows": [part_rows, CHARACTERS]}
    identity |= {"pairs": are_pairs, "dtype": dtype, "kernels": embedder.engine.kernels}
    rows = checked(texts if pairs is None else zip(texts, pairs, strict=True), embedder.recipe.missing, are_pairs)
    with part_folder(Path(out), identity, restart) as parts:
        resumed, cosine = fill(parts, chunked(rows, part_rows), texts, embedder, dtype)
        check_output(Path(out), overwrite)  # it may have appeared meanwhile
        parts.join(Path(out), embedder.width, dtype)
    return Written(
        **summary(out, sum(parts.stats, TokenStats()), embedder),
        shape=(parts.rows, embedder.width),
        dtype=dtype,
        resumed_rows=resumed,
        kernels=embedder.engine.kernels,
        cosine=cosine,
    )


def checked(rows: Iterable[Any], missing: str, pairs: bool) -> Iterator[TextOrPair]:
    """Each row as a text or a pair. Raises TypeError or ValueError, naming the row, for anything else."""
    for number, row in enumerate(rows):
        texts = [as_text(text, number, missing) for text in (row if pairs else [row])]
        yield (texts[0], texts[1]) if pairs else texts[0]


def fill(
    parts: Parts, chunks: Iterator[list[TextOrPair]], source: object, embedder: Embedder, dtype: str
) -> tuple[int, float | None]:
    """Compute the parts that are not done. Returns how many rows were done, and Written.cosine of the first new ones.

    source: the texts before they were chunks; progress is counted in bytes of a file of known size, else in texts.
    """
    file = source if isinstance(source, TextFiles) and source.size is not None else None
    total = file.size if file else len(source) if isinstance(source, Sized) else None
    bar = progress_bar(name="embed", total=total, unit="B" if file else "text", unit_scale=True)
    left = dropwhile(parts.holds, chunks)
    next_chunk = list(islice(left, 1))  # that all before it are done is known now
    resumed, cosine = parts.rows, None
    with bar, closing(embedder.tokenized(chain(next_chunk, left), first=resumed)) as tokenized:
        for new in tokenized:
            if cosine is None and embedder.engine.precision == "int8":
                cosine = embedder.float32_cosine(new.tokens)
            try:
                vectors = embedder.vectors(new.tokens, new.rows)
            except torch.OutOfMemoryError as error:  # with a single text in a batch
                raise RuntimeError(
                    f"no memory for the longest of the texts from row {new.rows.start} on; {parts.rows:,} rows are "
                    f"kept, and the same command continues, on a device with more: {error}"
                ) from error
            parts.add(vectors, new.texts, new.tokens.stats, dtype)
            bar.update((file.position if file else parts.rows) - bar.n)
    return resumed, cosine


# ---------------------------------------------------------------------------------------------------------------
# Unfinished work


@contextmanager
def work_folder(folder: Path, settings: dict[str, Any], restart: bool, outputs: Iterable[Path]) -> Iterator[None]:
    """A folder of unfinished work, locked inside `with`: new, empty, or started earlier with the same settings.

    outputs: the files that the work writes there, which restart removes.
    Raises ValueError for any other file, except hidden ones, and, unless restart, for other settings, naming the first
    that differs; RuntimeError while another process works in the folder.
    """
    manifest, lock = folder / "manifest.json", folder / ".lock"
    folder.mkdir(parents=True, exist_ok=True)
    with lock_file(lock):
        try:
            started = manifest.exists()
            own = {manifest, *outputs} if started else set()
            files = {path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")}
            if others := sorted(files - own):
                raise ValueError(f"{others[0]} is not an output of this work; move it away, or choose another folder")
            before = read_json(manifest).get("settings") if started and not restart else settings
            before = before if isinstance(before, dict) else {}
            for name in settings:
                if before.get(name) != settings[name]:
                    raise ValueError(
                        f"{folder} was started with {name} {brief(before.get(name))}, and now it is "
                        f"{settings[name]!r}; use the earlier settings, or start again (--restart, restart=True)"
                    )
            if restart:
                for path in own - {manifest}:
                    path.unlink(missing_ok=True)
            write_text_atomically(manifest, json.dumps({"settings": settings}, indent=1) + "\n")
            yield
        finally:
            lock.unlink(missing_ok=True)


@contextmanager
def part_folder(out: Path, settings: dict[str, Any], restart: bool) -> Iterator[Parts]:
    """The parts of a matrix whose file will be `out`, in a folder beside it, which is removed when it has no parts.

    Raises what work_folder raises; an interrupt inside `with` becomes one that states how many rows are kept.
    """
    folder = out.with_name(out.name + ".parts")
    with work_folder(folder, settings, restart, folder.glob("part-*")):
        parts = Parts(folder)
        try:
            yield parts
        except KeyboardInterrupt:
            kept = f"{parts.rows:,} rows are kept; the same command continues" if parts.rows else ""
            raise KeyboardInterrupt(kept) from None
        finally:
            if not any(folder.glob("part-*")):
                shutil.rmtree(folder)


@dataclass
class Parts:
    """The parts of a matrix (N, D): for each chunk of texts `holds` or `add`, in their order, then `join`."""

    folder: Path
    stats: list[TokenStats] = field(default_factory=list)  # of the parts that are done

    @property
    def rows(self) -> int:
        """How many rows are done."""
        return sum(stats.texts for stats in self.stats)

    def path(self, number: int) -> Path:
        """The file of a part."""
        return self.folder / f"part-{number}.npz"

    def holds(self, texts: Sequence[TextOrPair]) -> bool:
        """Whether the next part, that of these texts, was done by an earlier run.

        Raises ValueError if it was done with other texts.
        """
        number = len(self.stats)
        if not self.path(number).exists():
            return False
        if str(self.read(number, "sha256")) != texts_sha256(texts):
            raise ValueError(
                f"{self.folder} was started with other texts: those from row {self.rows:,} on have changed; "
                "use the earlier texts, or start again (--restart, restart=True)"
            )
        stats = self.read(number, "stats")
        if stats.dtype.kind != "i" or not 0 < stats.size <= len(fields(TokenStats)) or stats[0] != len(texts):
            raise self.damaged(number, "its counts are not those of its texts")
        self.stats.append(TokenStats(*stats.tolist()))
        return True

    def read(self, number: int, name: str) -> NDArray[Any]:
        """Return one array of a part. Raises ValueError where the file is damaged."""
        try:
            with self.path(number).open("rb") as file, np.load(file) as part:
                return np.asarray(part[name])
        except (ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile):
            raise self.damaged(number, f"its {name} cannot be read") from None

    def damaged(self, number: int, problem: str) -> ValueError:
        """Return the error for a part that cannot be used."""
        return ValueError(f"{self.path(number)} is damaged ({problem}); remove it, and run the same command again")

    def add(self, vectors: Matrix, texts: Sequence[TextOrPair], stats: TokenStats, dtype: str) -> None:
        """Write the next part, (n, D). Raises ValueError for a number beyond this dtype."""
        with np.errstate(over="ignore"):
            rows = vectors.astype(dtype)
        for row, column in np.argwhere(np.isinf(rows)):
            raise ValueError(
                f"row {self.rows + row} has the number {vectors[row, column]:.6g}, and {dtype} ends at "
                f"{np.finfo(dtype).max:.6g}; use dtype float32"
            )
        with atomic_write(self.path(len(self.stats))) as temporary, temporary.open("wb") as file:
            np.savez(file, vectors=rows, sha256=texts_sha256(texts), stats=astuple(stats))
        self.stats.append(stats)

    def join(self, out: Path, width: int, dtype: str) -> None:
        """Write all parts as one numpy file (N, D), part by part, so that memory stays flat, and remove them.

        Raises ValueError if an earlier run had more texts.
        """
        self.holds([])  # a part after the last one was of other texts
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (self.rows, width)}
        with atomic_write(out) as temporary, temporary.open("wb") as file:
            file.write((NPY_START + str(header).encode()).ljust(NPY_HEADER - 1) + b"\n")
            for number, stats in enumerate(self.stats):
                vectors = self.read(number, "vectors")
                if vectors.shape != (stats.texts, width) or vectors.dtype != dtype:
                    raise self.damaged(number, f"its vectors are {vectors.shape} of {vectors.dtype}")
                file.write(vectors.tobytes())
        for path in self.folder.glob("part-*"):
            path.unlink()


def texts_sha256(texts: Sequence[TextOrPair]) -> str:
    """The hash of texts or pairs; no others have the same."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()
