"""A stream of texts to a .npy file: memory stays flat however many there are, and a kill loses one part of the work.

    texts -> chunks of a few thousand -> ids -> engine -> a part on disk for each chunk -> joined as vectors.npy

The same call resumes an interrupted one. Joining needs disk space for the vectors twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sized
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from minibert.outputs import check_output
from minibert.printing import brief
from minibert.text.tables import TextFile
from minibert.text.texts import CHARACTERS, TEXTS, TextOrPair, as_text, portions
from minibert.text.tokenized import TokenStats
from minibert.vectors.embedder import Embedder
from minibert.vectors.parts import Parts, part_folder
from minibert.vectors.recipe import Recipe, with_settings

DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class Written:
    """A file that embed_file or embed_stream wrote, in numbers."""

    out: str
    shape: tuple[int, int]
    dtype: str
    rows: int
    resumed_rows: int  # computed by an earlier, interrupted run
    tokens: int  # of all rows, special tokens included
    truncated: int  # texts that were too long and lost their ends
    windowed: int  # texts that were too long and were read in several windows
    windows: int  # these windows
    kernels: str  # that computed them
    cosine: float | None = None  # the smallest to float32, of some texts computed in int8; None: not measured


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
    """One vector for each text of a file of any size, as a numpy file (N, D).

    path, column, format: see text.tables.TextFile (- is standard input; .txt, .tsv, .csv, .jsonl, each with .gz).
    column2: the column of second texts, if the rows are pairs. The other settings, and what happens with `out`: see
    embed_stream. Raises what those two raise.
    """
    with TextFile(path, column, format, column2) as file:
        return embed_stream(file, out, model, **settings)


@with_settings
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
    interrupt is a KeyboardInterrupt that says how many rows are kept.
    """
    if isinstance(texts, str) or isinstance(pairs, str):
        raise TypeError("texts is one str; embed_stream needs a stream of texts, embed_file the name of a file")
    out = check_out(out, overwrite, model)
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {brief(dtype)}; choose from {', '.join(DTYPES)}")
    if part_rows < 1:
        raise ValueError(f"part_rows is {part_rows}; it must be at least 1 ({TEXTS} is a good value)")
    embedder = Embedder(model, Recipe(**settings), device)
    are_pairs = pairs is not None or (isinstance(texts, TextFile) and len(texts.columns) == 2)
    identity = embedder.identity | {
        "batch_tokens": embedder.recipe.batch_tokens,
        "part_rows": [part_rows, CHARACTERS],
        "pairs": are_pairs,
        "dtype": dtype,
        "kernels": embedder.engine.kernels,
    }
    rows = checked(texts if pairs is None else zip(texts, pairs, strict=True), embedder.recipe.missing, are_pairs)
    with part_folder(out, identity, restart) as parts:
        resumed, cosine = fill(parts, portions(rows, part_rows), texts, embedder, dtype)
        check_output(out, overwrite)  # it may have appeared meanwhile
        parts.join(out, embedder.width, dtype)
    stats = sum(parts.stats, TokenStats())
    embedder.warn(stats)
    return Written(
        str(out),
        (stats.texts, embedder.width),
        dtype,
        stats.texts,
        resumed,
        stats.tokens,
        stats.truncated,
        stats.windowed,
        stats.windows,
        embedder.engine.kernels,
        cosine,
    )


def check_out(out: str | os.PathLike[str], overwrite: bool, model: str | os.PathLike[str]) -> Path:
    """The path, or ValueError or FileNotFoundError if no numpy file can be put there, or what is there must be kept."""
    path = Path(out)
    if path.suffix != ".npy" or path.is_dir():
        raise ValueError(f"out is {path}; it must be a file that ends in .npy")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"out is {path}, and there is no folder {path.parent}")
    check_output(path, overwrite, apart=[model])
    return path


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
    file = source if isinstance(source, TextFile) and source.size is not None else None
    total = file.size if file else len(source) if isinstance(source, Sized) else None
    bar = tqdm(desc="embed", total=total, unit="B" if file else "text", unit_scale=True, delay=2, disable=None)
    cosine, left = None, chunks
    for chunk in chunks:
        if not parts.holds(chunk):
            left = chain([chunk], chunks)
            break
        bar.update((file.position if file else parts.rows) - bar.n)
    resumed = parts.rows
    with bar, closing(embedder.tokenized(left, first=resumed)) as tokenized:
        for new in tokenized:
            if cosine is None and embedder.engine.precision == "int8":
                cosine = embedder.float32_cosine(new.tokens)
            parts.add(embedder.vectors(new.tokens, new.rows), new.texts, new.tokens.stats, dtype)
            bar.update((file.position if file else parts.rows) - bar.n)
    return resumed, cosine
