"""Sentence vectors: texts that belong together get vectors of a high cosine, other texts of a low one.

    text                                the same text twice, each time with other dropout (SimCSE: Gao et al. 2021)
    text, pair                          a question and its answer, a sentence and its paraphrase
    text, pair, negative, ...           and texts that do not belong to it, though they look alike: hard negatives
    text, pair, similarity              how similar people find them

Without similarities each text must find its pair among all pairs and negatives of its step (in-batch negatives). With
them the cosines are brought into the same order (cosent), or to the same values (cosine). losses.py has the formulas.

A dev file with similarities is measured by correlation, another one by retrieval (vector_measures.py). N rows of C
texts, D hidden size.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from minibert.losses import cosent, cosine_error, in_batch_negatives
from minibert.tables.columns import Column, listed, names_of
from minibert.tables.formats import DELIMITERS, FIRST_LINES, FileSettings, is_doubtful, is_number, looks_like_header
from minibert.tables.reading import Table
from minibert.tables.texts import FIRST, SCORE, SECOND, as_texts
from minibert.tables.writing import one_line
from minibert.tasks.base import Encoded, Example, Logits, Measure, Prediction, Task
from minibert.tasks.names import as_number
from minibert.tasks.settings import EmbeddingSettings
from minibert.tasks.vector_measures import SCORED, different_scores, retrieval_of, right_texts, similarity_of
from minibert.text.tokenizer import Tokenizer, TokenStats
from minibert.utils.wording import advice

MEASURED = {True: "spearman", False: "mrr@10"}  # the main figure on dev: with similarities, and without
CHOOSE_COLUMNS = advice("; choose the columns: {}, {}, and {} or {}", text=..., pair=..., label=..., negatives=...)
NEGATIVE = "negative"  # columns of hard negatives have names that begin with this


@dataclass(frozen=True)
class TextRows:
    """N rows of texts, as columns."""

    columns: tuple[list[str], ...]  # C: texts, pairs, hard negatives
    similarity: list[float] | None = None  # of text and pair in each row

    def __post_init__(self) -> None:
        lengths = [len(column) for column in self.columns]
        lengths += [] if self.similarity is None else [len(self.similarity)]
        if len(set(lengths)) > 1 or (self.similarity is not None and len(self.columns) != 2):
            raise ValueError(
                f"there are columns of {', '.join(map(str, lengths))} rows; each row needs a text in each, and a "
                "similarity needs two texts"
            )

    def __len__(self) -> int:
        return len(self.columns[0])


def peek(path: Any, settings: FileSettings) -> list[list[Any]]:
    """Return the names of a table's columns, or its first row, then rows of cells; [] for one of texts.

    Raises what Table raises.
    """
    is_table = settings.format_of(path) in DELIMITERS
    with Table(path, (), settings, whole=not is_table) as table:
        records = [record for _, record in islice(table.records(), FIRST_LINES) if isinstance(record, dict)]
    names = table.first_row or (list(records[0]) if records else [])
    return [names, *(list(record.values()) for record in records)] if names else []


def usual_columns(rows: Sequence[Sequence[Any]], where: str) -> list[Column]:
    """Return the columns of a file by its first rows: by their usual names, else all of them in order.

    Raises ValueError for a header without a usual name, and for what may be one above a single row.
    """
    names = {str(name).strip().lower(): str(name) for name in (rows[0] if rows else ())}
    text, pair, label = names_of(SCORED, list(names.values()))
    if text is not None:
        pair = next((names[usual] for usual in SECOND if names.get(usual, text) != text), None)
        negatives = [name for lower, name in names.items() if lower.startswith(NEGATIVE)]
        return requested_columns(text, pair, negatives, label if pair and not negatives else None)
    cells = [[str(cell) for cell in row] for row in rows]
    if looks_like_header(cells) or (is_doubtful(cells) and cells[0] != cells[1]) or pair or label:
        raise ValueError(f"{where} has the columns {listed(list(map(str, rows[0])))}" + CHOOSE_COLUMNS)
    numbers: list[str | None] = [str(number) for number in range(1, len(rows[0]) + 1)] if rows else [None]
    if len(numbers) == 3 and is_number(str(rows[0][2])):
        return requested_columns(numbers[0], numbers[1], [], numbers[2])
    return requested_columns(numbers[0], numbers[1] if len(numbers) > 1 else None, numbers[2:], None)


def requested_columns(text: Any, pair: Any, negatives: Iterable[Any], label: Any) -> list[Column]:
    """Return these names or numbers as columns to read; None: no such column, or for `text` the usual one."""
    columns = [Column("text", text, FIRST)]
    columns += [] if pair is None else [Column("pair", pair, SECOND)]
    columns += [Column("negative", name, ()) for name in negatives]
    return columns + ([] if label is None else [Column("label", label, SCORE)])


@dataclass(frozen=True)
class Embedding(EmbeddingSettings, Task):
    """Vectors of texts that belong together; see EmbeddingSettings."""

    name = "embed"
    head = "sentence-vectors"
    served_at = ""
    main = "spearman"
    pairs = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pair is None and (self.negatives or self.label is not None):
            raise ValueError("negatives and label need pair: the column of the texts that belong to the first ones")
        if self.negatives and self.label is not None:
            raise ValueError("a row has hard negatives or a similarity, not both; leave out negatives or label")

    # -- data

    def columns_of(self, rows: Sequence[Sequence[Any]], where: str) -> list[Column]:
        """Return the columns that were named, else those that these first rows imply."""
        if self.text is None and self.pair is None:
            return usual_columns(rows, where)
        return requested_columns(self.text, self.pair, self.negatives, self.label)

    def read(self, path: Any) -> TextRows:
        """Read the rows of a table, or one text per line. Raises ValueError, with the place, for invalid content."""
        is_input = isinstance(path, str) and path == "-"
        if is_input and self.text is None and self.format not in (None, "txt"):
            raise ValueError("standard input is read only once" + CHOOSE_COLUMNS)
        where = str(path) if isinstance(path, str | os.PathLike) else "the data"
        columns = self.columns_of([] if is_input else peek(path, self), where)
        with Table(path, columns, self) as table:
            places, cells = table.whole_columns("; each needs a text")
        if columns[-1].role != "label":
            return TextRows(tuple(cells))
        return TextRows(tuple(cells[:-1]), list(map(as_number, cells[-1], places)))

    def from_texts(self, texts: object, pairs: object = None) -> TextRows:
        """Return rows of a text or two."""
        given = (column for column in (texts, pairs) if column is not None)
        return TextRows(tuple(as_texts(column, missing=self.missing_text) for column in given))

    def from_labels(
        self, texts: Sequence[str], labels: Iterable[object], pairs: Sequence[str] | None = None
    ) -> TextRows:
        """Return rows of two texts and, if there are labels, their similarity. Raises TypeError without pairs."""
        if labels is None:
            return self.from_texts(texts, pairs)
        if pairs is None:
            raise TypeError("labels are the similarity of two texts; pass pairs= too")
        values = [as_number(value, f"row {row}") for row, value in enumerate(labels)]
        return TextRows(self.from_texts(texts, pairs).columns, values)

    def labels_of(self, data: TextRows) -> list[str]:
        """Return []. Raises ValueError if no text differs from the others, or similarities are not on the scale."""
        if data.similarity is None:
            if self.loss == "cosine":
                column = advice("; name its column: {}", label=...)
                raise ValueError("loss is 'cosine', and the rows have no similarity" + column)
            if len(set(data.columns[min(1, len(data.columns) - 1)])) < 2:
                raise ValueError(f"all {len(data)} rows have the same text; vectors are learned from different ones")
        elif self.loss == "cosent" and len(set(data.similarity)) < 2:
            raise ValueError(f"the similarity of all {len(data)} rows is the same, so they have no order to be learned")
        elif self.loss == "cosine":
            for row, value in enumerate(data.similarity):
                if not 0 <= value <= self.highest:
                    raise ValueError(
                        f"row {row} has the similarity {value:g}; it must be from 0 to {self.highest:g}"
                        + advice("; name the similarity of equal texts: {}", highest=max(data.similarity))
                    )
        return []

    # -- to the model and back

    def encode(self, data: TextRows, tokenizer: Tokenizer, labels: Sequence[str], max_length: int) -> Encoded:
        """Return an example for each text of each row, or two if it is the only one.

        Labels: `numbers`, (C), equal for equal texts, and `similarity`, from 0 to 1 for the loss "cosine".
        """
        columns = [tokenizer.encode_texts(column, max_length=max_length) for column in data.columns]
        stats = sum((column.stats for column in columns), TokenStats())
        tokenizer.warn(replace(stats, truncated=0), max_length)
        ids = [column.ids for column in columns] * (2 if len(columns) == 1 else 1)
        unit = self.highest if self.loss == "cosine" else 1.0
        numbers: dict[tuple[int, ...], int] = {}
        examples = []
        for row, texts in enumerate(zip(*ids, strict=True)):
            targets: dict[str, Any] = {"numbers": [numbers.setdefault(tuple(one), len(numbers)) for one in texts]}
            if data.similarity is not None:
                targets["similarity"] = data.similarity[row] / unit
            examples += [Example(one, [0] * len(one), targets) for one in texts]
        return Encoded(examples, choices=len(ids), truncation=stats.truncation(max_length, tokenizer.truncates_left))

    def step_loss(self, vectors: Tensor, numbers: Tensor, similarity: Tensor | None) -> Tensor:
        """Return the loss of all rows of a step, (N,C,D), (N,C), (N) -> ()."""
        if similarity is not None:
            cosines = torch.cosine_similarity(vectors[:, 0], vectors[:, 1])  # (N)
            return (
                cosine_error(cosines, similarity) if self.loss == "cosine" else cosent(cosines, similarity, self.scale)
            )
        texts = vectors[:, 1:].transpose(0, 1).flatten(0, 1)  # (N,C,D) -> ((C-1)·N,D): all pairs, then the negatives
        return in_batch_negatives(vectors[:, 0], texts, false_negatives(numbers), self.scale)

    def decode(
        self, logits: Sequence[Logits], encoded: Encoded, data: TextRows, labels: Sequence[str]
    ) -> list[Prediction]:
        """Return the vectors of each row, (C,D), and the cosine of the first two; for one text, only its vector.

        They are what `minibert.embed` gives: scaled to length 1 if the folder states it, and then cut.
        """
        C = encoded.choices
        vectors = torch.from_numpy(np.stack(logits)) if logits else torch.zeros(0, 1)  # (N·C,D)
        vectors = (F.normalize(vectors) if self.normalize else vectors)[:, : self.dimensions]
        rows = (vectors[at : at + C].numpy() for at in range(0, len(vectors), C))
        if len(data.columns) == 1:
            return [{"vectors": row[:1]} for row in rows]
        return [{"vectors": row, "similarity": cosine(row[0], row[1])} for row in rows]

    @staticmethod
    def check_measurable(data: TextRows) -> None:
        """Raise ValueError for rows on which vectors cannot be measured."""
        if len(data.columns) == 1:
            raise ValueError("the rows have one text each; vectors are measured on pairs, perhaps with a similarity")
        if data.similarity is None:
            right_texts(data.columns[0], [text for column in data.columns[1:] for text in column])
        else:
            different_scores(data.similarity)

    def measure(self, answers: Sequence[Prediction], data: TextRows, labels: Sequence[str]) -> Measure:
        """Return the correlation with the similarities of the data, or without them how well a text finds its pair."""
        self.check_measurable(data)
        vectors = np.stack([one["vectors"] for one in answers])  # (N,C,D)
        if data.similarity is not None:
            measured = similarity_of(vectors[:, 0], vectors[:, 1], np.array(data.similarity))
        else:
            queries, *others = data.columns
            texts = [text for column in others for text in column]
            numbers, right = right_texts(queries, texts)
            of_texts = dict(zip(texts, vectors[:, 1:].swapaxes(0, 1).reshape(len(texts), -1), strict=True))
            of_queries = dict(zip(queries, vectors[:, 0], strict=True))
            measured = retrieval_of(
                np.stack([of_queries[one] for one in right]),
                np.stack([of_texts[one] for one in numbers]),
                list(right.values()),
            )
        return Measure(
            {"rows": measured.rows, **measured.with_errors}, MEASURED[data.similarity is not None], str(measured)
        )

    def as_dicts(self, answers: Sequence[Prediction], data: TextRows) -> list[Prediction]:
        """Return the similarity of each pair, or the vector of each text."""
        if len(data.columns) == 1:
            return [{"vector": answer["vectors"][0]} for answer in answers]
        return [{"similarity": answer["similarity"]} for answer in answers]

    def format_predictions(self, answers: Sequence[Prediction], data: TextRows) -> list[str]:
        """Return the similarity and the texts."""
        shown = [f"{answer['similarity']:.4f}" if "similarity" in answer else "" for answer in answers]
        return [one_line(*cells) for cells in zip(shown, *data.columns, strict=True)]


def cosine(a: Logits, b: Logits) -> float:
    """Return the cosine of two vectors, (D) each, neither of which is 0."""
    return float(np.clip(np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)), -1, 1))


def false_negatives(numbers: Tensor) -> Tensor:
    """Return which texts do not count as negatives of an anchor, (N,C) -> (N, (C-1)·N).

    These are the texts that the rows of the step connect with it: (france, paris), (x, paris), (france, rome) make
    rome no negative of x. A row's own hard negatives stay its negatives, unless they equal its anchor or are a pair of
    it. Its own pair, in column i of row i, is never excluded.
    """
    numbers = torch.unique(numbers, return_inverse=True)[1]  # from 0, of this step
    N, size = len(numbers), int(numbers.max()) + 1
    edges = coo_array((np.ones(N), tuple(numbers[:, :2].T.cpu().numpy())), (size, size))
    groups = torch.from_numpy(connected_components(edges, directed=False)[1]).to(numbers.device)  # (size)
    anchors, texts = numbers[:, :1], numbers[:, 1:]  # (N,1), (N,C-1)
    excluded = groups[texts.T.flatten()] == groups[anchors]  # (N, (C-1)·N)
    rows = anchors * size + texts  # (N,C-1): the anchor and each text as one number
    own = torch.isin(rows, rows[:, :1]) | (texts == anchors)
    own[:, 0] = False
    excluded.view(N, -1, N).diagonal(dim1=0, dim2=2).copy_(own.T)  # (C-1,N)
    return excluded
