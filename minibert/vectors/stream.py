"""A stream of texts to a .npy file: memory stays flat however many there are, and a kill loses no finished row.

    texts -> portions -> ids -> engine -> appended to vectors.npy.partial -> renamed to vectors.npy at the end

A second run with the same texts and settings resumes an interrupted one, within a portion too (see growing_file.py).
Its portions and batches are those of an uninterrupted run, and so is every bit of it on the same kind of machine.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from minibert.files import check_output
from minibert.kernels.prefetch import Portion
from minibert.printing import brief
from minibert.text.tables import TextFile
from minibert.text.texts import CHARACTERS, TEXTS, TextOrPair, as_text, portions
from minibert.vectors.cache import Matrix
from minibert.vectors.embedder import Embedder
from minibert.vectors.growing_file import GrowingFile
from minibert.vectors.recipe import Recipe, Settings, spelled

DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class Written:
    """What stands in a file that embed_file or embed_stream wrote, and how it came about."""

    out: str
    shape: tuple[int, int]
    dtype: str
    rows: int
    resumed_rows: int  # that an earlier, interrupted run had computed
    tokens: int  # of all rows, special tokens included
    truncated: int  # texts that were too long and lost their ends
    windowed: int  # texts that were too long and were read in several windows
    windows: int  # these windows
    kernels: str  # what computed them
    cosine: float | None = None  # the smallest to float32, of some texts that int8 computed; None: of none


# ---------------------------------------------------------------------------------------------------------------
# Texts to a file


def embed_file(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    model: str | os.PathLike[str] = "distilbert-base-uncased",
    *,
    column: str | int | None = None,
    column2: str | int | None = None,
    format: str | None = None,
    **settings: Any,
) -> Written:
    """One vector for each text of a file, larger than memory perhaps, as a numpy file (N, D).

    path, column, format: see text.tables.TextFile (- is standard input; .txt, .tsv, .csv, .jsonl, each with .gz).
    column2: the column of second texts, where the rows are pairs. The other settings, and what happens with `out`: see
    embed_stream. Raises what those two raise.
    """
    with TextFile(path, column, format, column2) as file:
        return embed_stream(file, out, model, **settings)


@spelled
def embed_stream(
    texts: Iterable[str] | TextFile,
    out: str | os.PathLike[str],
    model: str | os.PathLike[str] = "distilbert-base-uncased",
    *,
    pairs: Iterable[str] | None = None,
    device: str | torch.device = "auto",
    dtype: str = "float32",
    restart: bool = False,
    overwrite: bool = False,
    portion: int = TEXTS,
    **settings: Unpack[Settings],
) -> Written:
    """One vector for each text, in their order, appended portion by portion to a numpy file (N, D).

    pairs: a stream of second texts, one for each text.
    out: a name that ends in .npy; it appears when all is done. What an interrupted run has done stands beside it and is
    resumed if texts and settings are the same, refused if not; restart=True begins again. overwrite: a numpy file that
    is there is replaced; else it is refused before anything is computed.
    dtype: of the numbers in the file, "float32" or "float16". portion: texts computed at a time, saved when it is
    done and every 10 seconds. An interrupt leaves by KeyboardInterrupt, which says how many rows are kept.
    model is a Hub name or a folder, device as for `embed`; settings: those of a Recipe.
    Raises what `embed` raises, FileNotFoundError for a folder that is not there, ValueError for a partial file
    of other texts or settings and for numbers beyond float16, RuntimeError while another process writes `out`.
    """
    if isinstance(texts, str) or isinstance(pairs, str):
        raise TypeError("texts is one str; embed_stream wants a stream of texts, embed_file the name of a file")
    out = check_out(out, overwrite, model)
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {brief(dtype)}; choose from {', '.join(DTYPES)}")
    if portion < 1:
        raise ValueError(f"portion is {portion}; it must be at least 1 ({TEXTS} is a good value)")
    embedder = Embedder(model, Recipe(**settings), device)
    reading = Reading(texts, pairs, portion, embedder.recipe.missing)
    determining = embedder.identity | {
        "batch_tokens": embedder.recipe.batch_tokens,
        "portion": [portion, CHARACTERS],
        "pairs": reading.pairs,
        "dtype": dtype,
        "kernels": embedder.engine.kernels,
    }
    matrix = GrowingFile(out, embedder.width, dtype, determining, restart)
    try:
        with matrix:
            resumed = matrix.kept
            cosine = fill(matrix, reading, embedder, overwrite)
    except KeyboardInterrupt:
        if not matrix.kept:
            raise
        raise KeyboardInterrupt(f"{matrix.kept:,}{reading.of_all()} rows are kept; the same command goes on") from None
    account = matrix.journal.account
    embedder.warn(account)
    shape, kernels = (account.texts, embedder.width), embedder.engine.kernels
    counts = (account.tokens, account.truncated, account.windowed, account.windows)
    return Written(str(out), shape, dtype, account.texts, min(resumed, account.texts), *counts, kernels, cosine)


def fill(matrix: GrowingFile, reading: Reading, embedder: Embedder, overwrite: bool) -> float | None:
    """Find the place where an interrupted run stopped, compute all rows after it, and give the file its name.

    Returned is Written.cosine, measured on the first texts that are computed.
    """
    cosine = None
    with reading.bar("find the place") as bar:
        for _ in matrix.resume(iter(reading)):
            bar.update(reading.progress())
    tokens = embedder.tokenized(reading, first=matrix.rows)
    with reading.bar("embed") as bar, closing(tokens):
        for made in tokens:
            if cosine is None and embedder.engine.precision == "int8":
                cosine = embedder.float32_cosine(made.tokens)
            matrix.append(compute(made, matrix, reading, embedder, bar), made.texts, made.tokens.stats)
            bar.update(reading.progress())
    check_output(matrix.out, overwrite)  # it may have been made meanwhile
    matrix.finish()
    return cosine


def compute(made: Portion, matrix: GrowingFile, reading: Reading, embedder: Embedder, bar: tqdm[Any]) -> Matrix:
    """The rows of a portion, (n, D): saved now and then, and after an interruption only those that are not there."""
    lengths = np.fromiter(map(len, made.tokens.ids), np.int64)

    def arrived(order: NDArray[np.int64], vectors: Matrix) -> None:
        matrix.arrived(order, vectors)
        bar.update(reading.progress(lengths[order].sum() / lengths.sum()))

    begun = matrix.begin(made.texts, len(lengths))
    return embedder.vectors(made.tokens, made.rows, begun=begun, arrived=arrived)


def check_out(out: str | os.PathLike[str], overwrite: bool, model: str | os.PathLike[str]) -> Path:
    """The path, or ValueError or FileNotFoundError where no numpy file can be put, or what is there must be kept."""
    path = Path(out)
    if path.suffix != ".npy" or path.is_dir():
        raise ValueError(f"out is {path}; it must be a file that ends in .npy")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"out is {path}, and there is no folder {path.parent}")
    check_output(path, overwrite, apart=[model])
    return path


class Reading:
    """Texts in portions, checked by row, with how far the work is: in bytes for a file of known size, else in texts."""

    def __init__(self, texts: Iterable[Any], pairs: Iterable[str] | None, most: int, missing: str) -> None:
        self.pairs = pairs is not None or (isinstance(texts, TextFile) and len(texts.columns) == 2)
        self.file = texts if isinstance(texts, TextFile) and texts.size is not None else None
        self.total = len(texts) if isinstance(texts, Sized) else None if self.file is None else self.file.size
        rows = texts if pairs is None else zip(texts, pairs, strict=True)
        self.portions = portions(self._checked(rows, missing), most)
        self.texts = 0  # that are read
        self.before = 0  # bytes or texts before the portion in progress
        self.done = 0  # bytes or texts that are computed
        self.ahead: deque[int] = deque()  # bytes or texts up to the end of each portion that is read and not computed

    def __iter__(self) -> Iterator[list[TextOrPair]]:
        for portion in self.portions:
            self.ahead.append(self.texts if self.file is None else self.file.position)
            yield portion

    def _checked(self, rows: Iterable[Any], missing: str) -> Iterator[TextOrPair]:
        for row, given in enumerate(rows):
            self.texts = row + 1
            texts = [as_text(one, row, missing) for one in (given if self.pairs else [given])]
            yield (texts[0], texts[1]) if self.pairs else texts[0]

    def progress(self, share: float | None = None) -> int:
        """What is to be added to the bar: this share of the portion in progress is computed; None: it is done."""
        before = self.done
        if share is None:
            self.before = self.done = self.ahead.popleft()
        else:
            self.done = self.before + int(share * (self.ahead[0] - self.before))
        return self.done - before

    def bar(self, what: str) -> tqdm[Any]:
        """A progress bar from where the work is; the time that remains is known where the size is."""
        unit = "text" if self.file is None else "B"
        return tqdm(desc=what, total=self.total, initial=self.done, unit=unit, unit_scale=True, delay=2, disable=None)

    def of_all(self) -> str:
        """ " of 45": how many texts there are, where that is known; of a file about, by how much of it is read."""
        if self.total is None or not self.texts:
            return ""
        if self.file is None:
            return f" of {self.total:,}"
        return f" of about {float(f'{self.texts * self.total / self.file.position:.2g}'):,.0f}"
