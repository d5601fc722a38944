"""How good vectors are: their cosines beside people's judgements of similarity, and finding the right text of many.

    two texts, a score from people     cosine of both vectors     -> correlation with the scores (STS: Cer et al. 2017)
    a query, the text that answers it  the nearest of all texts   -> recall@k, MRR@10, nDCG@10

Each figure has its standard error: over queries, or of a correlation by the bootstrap, which draws the rows again and
again with replacement.

    spearman    correlation of ranks; pearson: of the numbers themselves
    recall@k    share of a query's texts among the k nearest
    MRR@10      1 / rank of the first right text; 0 if it is not among the 10 nearest
    nDCG@10     Σ 1 / log2(1 + rank) of the right texts, as a share of the best possible
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from minibert.tables.columns import Column, listed
from minibert.tables.formats import FileSettings, is_doubtful
from minibert.tables.reading import Table
from minibert.tables.texts import FIRST, SCORE, SECOND
from minibert.tasks.base import Doubles
from minibert.tasks.metrics import correlation
from minibert.tasks.names import as_float, as_number
from minibert.utils.files import AnyPath
from minibert.utils.printing import block, counted
from minibert.utils.settings import with_settings
from minibert.vectors.embedder import Embedder
from minibert.vectors.readable import Matrix
from minibert.vectors.recipe import DEFAULT, Recipe
from minibert.vectors.search import DEFAULT_MODEL, nearest, scaled

DRAWS = 1000  # of the bootstrap
CUTOFFS = (1, 5, 10)  # of recall
MOST = 10  # ranks that count in MRR and nDCG
SCORED = (Column("text", usual=FIRST), Column("pair", usual=SECOND), Column("label", usual=SCORE))


@dataclass(frozen=True)
class Measured:
    """Figures of vectors, each with its standard error."""

    rows: int  # pairs, or queries
    figures: dict[str, float]  # by name
    errors: dict[str, float] = field(repr=False)
    texts: int | None = None  # different ones that were searched

    @property
    def with_errors(self) -> dict[str, float]:
        """Return the figures and, by their names and _error, their standard errors."""
        return self.figures | {f"{name}_error": error for name, error in self.errors.items()}

    def __str__(self) -> str:
        figures = [f"{name} {value:.4f} ± {self.errors[name]:.4f}" for name, value in self.figures.items()]
        of = "" if self.texts is None else f" among {counted(self.texts, 'text')}"
        rows = counted(self.rows, "pair" if self.texts is None else "query")
        return block("vectors", rows + of, *figures)


@with_settings(Recipe)
def measure_similarity(
    texts: Sequence[str],
    pairs: Sequence[str],
    scores: Sequence[float],
    model: Any = DEFAULT_MODEL,
    recipe: Recipe = DEFAULT,
    device: str = "auto",
    **settings: Any,
) -> Measured:
    """Return Spearman's and Pearson's correlation of the rows' cosines with the scores of people.

    model, recipe, device, settings: as for `embed`. Raises what `embed` raises, and ValueError for fewer than 2 rows,
    columns of different lengths, scores that are not finite or all equal, and a text whose vector has length 0.
    """
    if not len(texts) == len(pairs) == len(scores):
        raise ValueError(
            f"{counted(len(texts), 'text')}, {counted(len(pairs), 'pair')}, {counted(len(scores), 'score')}; each row "
            "needs all three"
        )
    given = different_scores([as_number(score, f"row {row}") for row, score in enumerate(scores)])
    embedder = Embedder(model, recipe, device, **settings)
    return similarity_of(embedder(list(texts)), embedder(list(pairs)), given)


def different_scores(scores: Sequence[float]) -> Doubles:
    """Return scores as an array. Raises ValueError if they are all equal."""
    if (different := len(set(scores))) < 2:
        raise ValueError(f"a correlation needs at least 2 different scores; these have {different}")
    return np.array(scores)


def similarity_of(first: Matrix, second: Matrix, scores: Doubles) -> Measured:
    """Return the figures of measure_similarity from the vectors of both texts, (N,D) each, and the scores, (N)."""
    cosines = np.clip(np.einsum("nd,nd->n", scaled(first, "row"), scaled(second, "row")), -1, 1)  # (N)
    measures = {"spearman": (rankdata(scores), rankdata(cosines)), "pearson": (scores, cosines)}
    draws = np.random.default_rng(0).integers(len(scores), size=(DRAWS, len(scores)))
    return Measured(
        len(scores),
        {name: correlation(*both) for name, both in measures.items()},
        {name: bootstrap_error(*both, draws) for name, both in measures.items()},
    )


def bootstrap_error(x: Doubles, y: Doubles, draws: NDArray[np.int64]) -> float:
    """Return the deviation of the correlation of x and y, (N), over draws of their rows, (DRAWS,N)."""
    return float(np.std([correlation(x[rows], y[rows]) for rows in draws]))


@with_settings(Recipe)
def measure_retrieval(
    queries: Sequence[str],
    texts: Sequence[str],
    model: Any = DEFAULT_MODEL,
    recipe: Recipe = DEFAULT,
    device: str = "auto",
    **settings: Any,
) -> Measured:
    """Return how well each query finds its text among the texts of all rows.

    Equal texts are one, and so are equal queries, which then have several right texts. Raises what `embed` raises, and
    ValueError for columns of different lengths or fewer than 2 different texts.
    """
    if len(queries) != len(texts):
        raise ValueError(f"{counted(len(queries), 'query')} and {counted(len(texts), 'text')}; each row needs both")
    numbers, right = right_texts(queries, texts)
    embedder = Embedder(model, recipe, device, **settings)
    return retrieval_of(embedder(list(right)), embedder(list(numbers)), list(right.values()))


def right_texts(queries: Sequence[Any], texts: Sequence[Any]) -> tuple[dict[Any, int], dict[Any, set[int]]]:
    """Return the number of each different text, and by each different query the numbers of its texts."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    if len(numbers) < 2:
        raise ValueError(f"a search needs at least 2 different texts, and finds {counted(len(numbers), 'text')}")
    right: dict[Any, set[int]] = {}
    for query, text in zip(queries, texts, strict=False):
        right.setdefault(query, set()).add(numbers[text])
    return numbers, right


def retrieval_of(queries: Matrix, texts: Matrix, right: Sequence[set[int]]) -> Measured:
    """Return the figures of measure_retrieval from the vectors of different queries and texts; right: see above."""
    ranked = nearest(texts, queries, MOST)
    each = [ranking_scores(rows.tolist(), wanted) for (rows, _), wanted in zip(ranked, right, strict=True)]
    columns = {name: np.array([scores[name] for scores in each]) for name in each[0]}
    return Measured(
        len(each),
        {name: float(values.mean()) for name, values in columns.items()},
        {name: float(values.std(ddof=len(each) > 1) / len(each) ** 0.5) for name, values in columns.items()},
        len(texts),
    )


def ranking_scores(rows: Sequence[int], right: set[int]) -> dict[str, float]:
    """Return the figures of one query from the nearest texts, in order, and its right ones."""
    hits = [row in right for row in rows[:MOST]]
    gains = [1 / np.log2(rank + 2) for rank in range(MOST)]  # of rank 0, 1, ...
    first = hits.index(True) + 1 if any(hits) else 0
    return {
        **{f"recall@{k}": sum(hits[:k]) / len(right) for k in CUTOFFS},
        f"mrr@{MOST}": 1 / first if first else 0.0,
        f"ndcg@{MOST}": float(np.dot(gains[: len(hits)], hits) / sum(gains[: len(right)])),
    }


def measure_file(
    path: AnyPath,
    what: str,
    model: Any = DEFAULT_MODEL,
    *,
    columns: Sequence[str | int | None] = (None, None, None),
    files: FileSettings | None = None,
    recipe: Recipe = DEFAULT,
    device: str = "auto",
) -> Measured:
    """Measure vectors on a table: what="similarity", two texts and a score, or "retrieval", a query and its text.

    columns: the names or numbers of the columns, None for the usual ones. Raises what the two functions raise, and
    ValueError, with the row, for a score that is not a number.
    """
    wanted = SCORED if what == "similarity" else SCORED[:2]
    chosen = [Column(column.role, name, column.usual) for column, name in zip(wanted, columns, strict=False)]
    rows = []
    with Table(path, chosen, files or FileSettings(), whole=what == "retrieval") as table:
        for row in table.rows():
            if len(row) == 2 and as_float(table.record.get("score", 1)) == 0:
                raise ValueError(f"{table.place} has the score 0: its text does not answer its query; leave it out")
            rows.append((table.place, *row))
    if not rows:
        raise ValueError(f"{table.name} holds no rows")
    places, *read = map(list, zip(*rows, strict=True))
    if what == "retrieval":
        if not (table.header or any(columns)) and is_doubtful([row[1:] for row in rows]):
            raise ValueError(f"{table.name} may begin with a header, {listed(rows[0][1:])}; choose --text and --pair")
        return measure_retrieval(read[0], read[1], model, recipe, device)
    scores = [as_number(cell, place) for cell, place in zip(read[2], places, strict=True)]
    return measure_similarity(read[0], read[1], scores, model, recipe, device)
