"""A stream of texts to a .npy file: memory stays flat however many there are, and a kill loses no finished row.

    texts -> portions -> ids -> engine -> appended to vectors.npy.partial -> renamed to vectors.npy at the end

A second run with the same texts and settings resumes an interrupted one (see growing_file.py). Its
portions are those of an uninterrupted run, so every bit of its rows is too, on the same kind of machine.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import torch
from tqdm import tqdm

from minibert.text.tables import TextFile
from minibert.text.texts import as_text
from minibert.vectors.embedder import Embedder
from minibert.vectors.growing_file import GrowingFile
from minibert.vectors.prefetch import CHARACTERS, TEXTS, portions
from minibert.vectors.recipe import Recipe, Settings, spelled

DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class Written:
    """What stands in a file that embed_file or embed_stream wrote, and how it came about."""

    out: str
    shape: tuple[int, int]
    dtype: str
    rows: int
    resumed_rows: int  # that an earlier, interrupted run had done
    tokens: int  # of all rows, special tokens included
    truncated: int  # texts that were too long and lost their ends
    kernels: str  # what computed them


# ---------------------------------------------------------------------------------------------------------------
# Texts to a file


def embed_file(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    model: str | os.PathLike[str] = "distilbert-base-uncased",
    *,
    column: str | int | None = None,
    format: str | None = None,
    **settings: Any,
) -> Written:
    """One vector for each text of a file, larger than memory perhaps, as a numpy file (N, D).

    path, column, format: see text.tables.TextFile (- is standard input; .txt, .tsv, .csv, .jsonl, each with .gz).
    The other settings, and what happens with `out`: see embed_stream. Raises what those two raise.
    """
    with TextFile(path, column, format) as file:
        return embed_stream(file, out, model, **settings)


@spelled
def embed_stream(
    texts: Iterable[str],
    out: str | os.PathLike[str],
    model: str | os.PathLike[str] = "distilbert-base-uncased",
    *,
    device: str | torch.device = "auto",
    dtype: str = "float32",
    restart: bool = False,
    portion: int = TEXTS,
    **settings: Unpack[Settings],
) -> Written:
    """One vector for each text, in their order, appended portion by portion to a numpy file (N, D).

    out: a name that ends in .npy; it appears, or is replaced, when all is done. What an interrupted run has done
    stands beside it and is resumed if texts and settings are the same, refused if not; restart=True begins again.
    dtype: of the numbers in the file, "float32" or "float16". portion: texts computed and saved at a time.
    model is a Hub name or a folder, device as for `embed`; settings: those of a Recipe.
    Raises what `embed` raises, FileNotFoundError for a folder that is not there, ValueError for a partial file
    of other texts or settings and for numbers beyond float16, RuntimeError while another process writes `out`.
    """
    if isinstance(texts, str):
        raise TypeError("texts is one str; embed_stream wants a stream of texts, embed_file the name of a file")
    out = check_out(out)
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; choose from {', '.join(DTYPES)}")
    if portion < 1:
        raise ValueError(f"portion is {portion}; it must be at least 1 ({TEXTS} is a good value)")
    embedder = Embedder(model, Recipe(**settings), device)
    determining = embedder.identity | {
        "batch_tokens": embedder.recipe.batch_tokens,
        "portion": [portion, CHARACTERS],
        "dtype": dtype,
        "kernels": embedder.engine.kernels,
    }
    with GrowingFile(out, embedder.width, dtype, determining, restart) as matrix:
        reading = Reading(texts, portion, embedder.recipe.missing)
        resumed = matrix.rows
        with reading.bar("find the place") as bar:
            for done in matrix.resume(iter(reading)):
                bar.update(reading.progress(len(done)))
        tokens = embedder.tokenized(reading, first=resumed)
        with reading.bar("embed") as bar, closing(tokens):
            for made in tokens:
                matrix.append(embedder.vectors(made.ids), made.texts, made.account)
                bar.update(reading.progress(len(made.texts)))
        matrix.finish()
    account = matrix.journal.account
    embedder.tokenizer.warn(account, embedder.tokenizer.max_length)
    shape = (account.texts, embedder.width)
    how = (account.tokens, account.truncated, embedder.engine.kernels)
    return Written(str(out), shape, dtype, account.texts, resumed, *how)


def check_out(out: str | os.PathLike[str]) -> Path:
    """The path, or ValueError or FileNotFoundError where no numpy file can be put."""
    path = Path(out)
    if path.suffix != ".npy" or path.is_dir():
        raise ValueError(f"out is {path}; it must be a file that ends in .npy")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"out is {path}, and there is no folder {path.parent}")
    return path


class Reading:
    """Texts in portions, checked by row, with how far the reading is: in bytes for a file of known size, else texts."""

    def __init__(self, texts: Iterable[str], most: int, missing: str) -> None:
        self.file = texts if isinstance(texts, TextFile) and texts.size is not None else None
        checked = (as_text(text, row, missing) for row, text in enumerate(texts))
        self.portions = portions(checked, most)
        self.done = 0  # bytes or texts that are computed
        self.ahead: deque[int] = deque()  # the position after each portion that is read and not computed

    def __iter__(self) -> Iterator[list[str]]:
        for portion in self.portions:
            if self.file is not None:
                self.ahead.append(self.file.position)
            yield portion

    def progress(self, texts: int) -> int:
        """What is to be added to the bar now that the next portion, of so many texts, is computed."""
        before, self.done = self.done, self.ahead.popleft() if self.file is not None else self.done + texts
        return self.done - before

    def bar(self, what: str) -> tqdm[Any]:
        """A progress bar from where the reading is; the time that remains is known where the size is."""
        total, unit = (None, "text") if self.file is None else (self.file.size, "B")
        return tqdm(desc=what, total=total, initial=self.done, unit=unit, unit_scale=True, delay=2, disable=None)
