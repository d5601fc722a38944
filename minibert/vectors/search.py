"""The nearest texts of a corpus, and its closest pairs: exact, by one matrix product per block of the corpus.

    queries -> vectors (Q,D)        scaled to length 1 -> scores (Q,n), the cosines -> merged with the best so far
    a block of the corpus (n,D)     scaled to length 1                                        -> the next block

Memory is one block: a .npy file is read as it is needed. `embed` writes beside a .npy file how it was made, so
that queries become vectors in the same way, and rows the same texts again, whose hashes are compared. For more than a
few million vectors an approximate index is faster. faiss (pip install faiss-cpu) and hnswlib take the same file, with
vectors of length 1:

    vectors = np.load("corpus.npy"); vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = faiss.IndexHNSWFlat(vectors.shape[1], 32, faiss.METRIC_INNER_PRODUCT); index.add(vectors)
    scores, rows = index.search(queries, 10)  # queries of length 1 too

More letters: Q queries, N vectors of the corpus, n of a block, D numbers of a vector.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minibert.tables.reading import TextFile
from minibert.tables.texts import TextOrPair, are_pairs, as_texts
from minibert.utils.files import AnyPath, regular, user_path
from minibert.utils.printing import progress_bar
from minibert.utils.settings import check_number, with_settings
from minibert.utils.wording import advice
from minibert.vectors.embedder import Embedder
from minibert.vectors.origin import Origin
from minibert.vectors.readable import Matrix
from minibert.vectors.recipe import DEFAULT, Recipe
from minibert.vectors.stream import TextFiles

SCORES = 2**24  # at once: 64 MB
DEFAULT_MODEL = "distilbert-base-uncased"
BLOCK = 2**14  # vectors of the corpus at once
Texts = AnyPath | Sequence[str]  # a file of texts, or texts


class Hit(NamedTuple):
    """A text of the corpus that is near to a query."""

    row: int  # from 0
    score: float  # the cosine
    text: TextOrPair


class ClosePair(NamedTuple):
    """Two texts of the corpus that are near to each other."""

    row: int
    other_row: int  # after `row`
    score: float
    text: TextOrPair
    other_text: TextOrPair


@dataclass(frozen=True)
class SearchCorpus:
    """The vectors of texts, the texts, and what makes vectors of queries."""

    vectors: Any  # (N,D): an array, or a file that is read as needed
    texts: Sequence[TextOrPair]
    embedder: Embedder

    @classmethod
    def of(
        cls, corpus: Texts, texts: Texts | None, model: AnyPath | None, device: str, recipe: Recipe
    ) -> "SearchCorpus":
        """Return a corpus from a .npy file, a file of texts, or texts. Raises what `search` raises."""
        if not isinstance(corpus, str | os.PathLike) or not os.fspath(corpus).endswith(".npy"):
            if texts is not None:
                raise ValueError(
                    "texts are for the vectors of a .npy file, and this corpus has its own; leave them out"
                )
            read = read_texts(corpus)
            embedder = Embedder(DEFAULT_MODEL if model is None else model, recipe, device)
            columns = zip(*read, strict=True) if are_pairs(read) else [read]
            return cls(embedder(*map(list, columns)), read, embedder)
        path = user_path(corpus)
        vectors = open_vectors(path)
        origin = Origin.read(path)
        embedder = embedder_of(path, origin, model, device, recipe)
        read = texts_of(path, origin) if texts is None else read_texts(texts)
        if vectors.shape[1] != embedder.width:
            raise ValueError(
                f"{path} has vectors of {vectors.shape[1]} numbers, and {embedder.model} makes {embedder.width}; give "
                "the model and the settings with which it was made"
            )
        if len(read) != len(vectors):
            raise ValueError(
                f"{path} has {len(vectors):,} vectors, and there are {len(read):,} texts; they must be its own"
            )
        if origin and (rows := origin.changed(read)):
            where = files_of(rows, **(origin.texts or {}) if texts is None else {"path": texts})
            raise ValueError(
                f"{path} was made of other texts, or of these in another order: row {rows[0]:,}"
                f"{f' to {rows[-1]:,}' * (len(rows) > 1)}{where} differs; embed these again"
                + advice(", or name its own: {}", texts=...)
            )
        return cls(vectors, read, embedder)


def embedder_of(path: Path, origin: Origin | None, model: AnyPath | None, device: str, recipe: Recipe) -> Embedder:
    """Return what makes vectors as in the file. Raises ValueError if it is not known, or did not make the file."""
    if origin is None:
        if model is None:
            raise ValueError(f"nothing beside {path} says which model made it" + advice("; name it: {}", model=...))
        return Embedder(model, recipe, device)
    embedder = Embedder(origin.model if model is None else model, Recipe(**origin.recipe), device)
    if recipe != DEFAULT:
        raise ValueError(f"{path} says how it was made; leave the settings of the recipe out")
    identity = embedder.identity
    if wrong := [
        name for name, value in origin.identity.items() if name != "precision" and identity.get(name) != value
    ]:
        raise ValueError(
            f"{embedder.model} is not what made {path}: {wrong[0]} was {origin.identity[wrong[0]]} and is "
            f"{identity.get(wrong[0])}" + advice("; name the right model: {}", model=...)
        )
    return embedder


@with_settings(Recipe)
def search(
    corpus: Texts,
    queries: str | Sequence[str],
    *,
    top: int = 10,
    texts: Texts | None = None,
    model: AnyPath | None = None,
    device: str = "auto",
    recipe: Recipe = DEFAULT,
    **settings: Any,
) -> list[list[Hit]]:
    """Return the `top` nearest texts of each query, the nearest first; equal scores are in the order of rows.

    corpus: a .npy file of `embed`, whose model and texts are found beside it, or a file of texts, or texts, which are
    embedded first. queries: a text or several. texts: the texts of the .npy file, or their file, if it was moved.
    model: as for `embed`; for a .npy file only if the model was moved. recipe, settings: as for `embed`, if texts are
    embedded. If the corpus has fewer texts than `top`, all are returned.
    Raises ValueError for a `top` below 1, a corpus without texts, an empty query, and vectors that are not what the
    model makes, have length 0 or are not finite, and, with the first row that differs, for texts that are not what was
    embedded; FileNotFoundError for a missing file.
    """
    check_number("top", top, int, minimum=1)
    searched = SearchCorpus.of(corpus, texts, model, device, replace(recipe, **settings))
    asked = as_texts(queries, missing=searched.embedder.recipe.missing)
    if "" in map(str.strip, asked):
        raise ValueError(f"query {[*map(str.strip, asked)].index('')} is empty; give a text to search for")
    vectors = searched.embedder(asked)
    return [
        [Hit(int(row), float(score), searched.texts[row]) for row, score in zip(rows, scores, strict=True)]
        for rows, scores in nearest(searched.vectors, vectors, top)
    ]


@with_settings(Recipe)
def mine(
    corpus: Texts,
    *,
    top: int = 100,
    above: float = -1.0,
    texts: Texts | None = None,
    model: AnyPath | None = None,
    device: str = "auto",
    recipe: Recipe = DEFAULT,
    **settings: Any,
) -> list[ClosePair]:
    """Return the `top` closest pairs with a cosine of at least `above`, the closest first: near duplicates.

    The other arguments, and what it raises: see `search`. The time grows with the square of the number of texts.
    """
    check_number("top", top, int, minimum=1)
    check_number("above", above, float, minimum=-1, maximum=1)
    mined = SearchCorpus.of(corpus, texts, model, device, replace(recipe, **settings))
    pairs = closest_pairs(mined.vectors, top, above)
    return [ClosePair(i, j, score, mined.texts[i], mined.texts[j]) for i, j, score in pairs]


def read_texts(texts: Texts) -> Sequence[TextOrPair]:
    """Return the texts of a file, or these. Raises ValueError if there are none."""
    rows: Sequence[TextOrPair] = read_file(texts) if isinstance(texts, str | os.PathLike) else as_texts(texts)
    if not rows:
        raise ValueError("the corpus has no texts")
    return rows


def texts_of(path: Path, origin: Origin | None) -> Sequence[TextOrPair]:
    """Return the texts of a .npy file. Raises ValueError or FileNotFoundError if they are not found."""
    if origin is None or not origin.texts:
        raise ValueError(f"nothing beside {path} says where its texts are" + advice("; name their file: {}", texts=...))
    try:
        return read_file(**origin.texts)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"the texts of {path} were moved ({error})" + advice("; name their file: {}", texts=...)
        ) from None


def read_file(path: AnyPath, **how: Any) -> list[TextOrPair]:
    """Return the texts of a file, or of a pattern of files; how: as tables.reading.TextFile reads them."""
    with closing(TextFiles(path, partial(TextFile, **how))) as texts:
        return list(texts)


def files_of(rows: range, path: Any = None, **how: Any) -> str:
    """Return which files some rows are in, for a message; "" for texts in memory."""
    if not isinstance(path, str | os.PathLike):
        return ""
    with closing(TextFiles(path, partial(TextFile, **how))) as texts:
        return " of " + " or ".join(dict.fromkeys(texts.file.name for row, _ in enumerate(texts) if row in rows))


def open_vectors(path: Path) -> Any:
    """Return the matrix of a .npy file, (N,D), mapped. Raises FileNotFoundError, ValueError for anything else."""
    regular(path)
    try:
        with np.errstate(over="ignore"):  # of a shape that cannot be
            vectors = np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception:  # numpy has many classes of errors for a damaged header
        raise ValueError(f"{path} is not a numpy file of numbers, or it is damaged; embed the texts again") from None
    if vectors.ndim != 2 or vectors.dtype not in (np.float32, np.float16) or not vectors.size:
        raise ValueError(
            f"{path} holds {vectors.dtype} of shape {vectors.shape}; vectors are float32 or float16, a row per text; "
            "embed the texts, or save the array with .astype('float32')"
        )
    return vectors


def scaled(vectors: Any, what: str, first: int = 0) -> Matrix:
    """Return vectors (n,D) scaled to length 1. Raises ValueError, with the row, for one of length 0 or not finite."""
    matrix = np.array(vectors, np.float32)
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)  # (n,1)
    for row in np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0))[:, 0]):
        raise ValueError(f"the vector of {what} {first + row} has length {lengths[row, 0]}; a cosine needs another")
    return np.asarray(matrix / lengths)


def blocks(vectors: Any, size: int) -> Iterator[tuple[int, Matrix]]:
    """Yield the number of the first row of each block, and its vectors scaled to length 1."""
    for first in range(0, len(vectors), size):
        yield first, scaled(vectors[first : first + size], "row", first)


def cosines(a: Matrix, b: Matrix) -> Matrix:
    """Return the cosines of vectors of length 1, (m,D) @ (D,n) -> (m,n); rounding would make some 1.0000001."""
    products: Matrix = a @ b.T
    return np.clip(products, -1, 1, out=products)


def nearest(vectors: Any, queries: Matrix, top: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Yield the rows and the cosines of the `top` nearest vectors, (N,D), of each query, (Q,D).

    Equal to sorting all cosines, without ever holding more than SCORES of them.
    """
    size = SCORES // BLOCK  # queries at once
    for begin in range(0, len(queries), size):
        some = scaled(queries[begin : begin + size], "query", begin)
        rows = np.empty((len(some), 0), np.int64)
        scores = np.empty((len(some), 0), np.float32)
        for first, block in blocks(vectors, BLOCK):
            of_block = cosines(some, block)  # (Q,n)
            numbers = np.broadcast_to(np.arange(first, first + len(block)), of_block.shape)
            rows, scores = best(np.hstack([rows, numbers]), np.hstack([scores, of_block]), top)
        yield from zip(rows, scores, strict=True)


def best(
    rows: NDArray[np.int64], scores: NDArray[np.float32], top: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the `top` highest scores of each line, the highest first, and their rows; of equals the first."""
    most = scores.shape[1]
    if top < most:  # only rows of at least the `top`-th score are sorted
        least = np.partition(scores, most - top, axis=1)[:, most - top, None]  # (Q,1)
        order = []
        for line, high in zip(scores, scores >= least, strict=True):
            candidates = np.flatnonzero(high)
            order.append(candidates[np.argsort(-line[candidates], kind="stable")[:top]])
    else:
        order = list(np.argsort(-scores, axis=1, kind="stable"))
    chosen = np.stack(order)
    return np.take_along_axis(rows, chosen, axis=1), np.take_along_axis(scores, chosen, axis=1)


def closest_pairs(vectors: Any, top: int, above: float) -> list[tuple[int, int, float]]:
    """Return the rows and cosines of the `top` closest pairs, the closest first; equal ones in the order of rows."""
    size = int(SCORES**0.5)
    rows = np.empty((0, 2), np.int64)
    scores = np.empty(0, np.float32)
    total = -(-len(vectors) // size)
    for first, block in progress_bar(blocks(vectors, size), "mine", total, unit="block"):
        for other, more in blocks(vectors[: first + len(block)], size):
            of_block = cosines(more, block)  # (n,n): rows before, rows of this block
            least = max(above, float(scores[-1])) if len(scores) == top else above
            i, j = np.nonzero(of_block >= least)
            later = i + other < j + first  # each pair once, none with itself
            i, j = i[later], j[later]
            rows = np.concatenate([rows, np.stack([i + other, j + first], axis=1)])
            scores = np.concatenate([scores, of_block[i, j]])
            order = np.lexsort((rows[:, 1], rows[:, 0], -scores))[:top]
            rows, scores = rows[order], scores[order]
    return [(int(i), int(j), float(score)) for (i, j), score in zip(rows, scores, strict=True)]
