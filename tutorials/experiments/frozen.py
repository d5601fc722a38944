"""Which classifier on frozen vectors: the measurement behind the default of `minibert classify train`.

    python tutorials/experiments/frozen.py [--out tutorials/tables/frozen_classifiers.tsv]

Six data sets of at most 2,000 rows, two checkpoints (384 and 256 numbers), [CLS] and mean pooling, 200 and 1,000 rows
for training, two random splits of each; the score is the accuracy on the other rows. The data are in $MINIBERT_DATA;
the reviews are shipped with minibert. About twenty minutes of one core.
"""

import argparse
import gzip
import json
import os
import statistics
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

import minibert
from minibert.prediction.frozen import GRIDS
from minibert.utils.printing import progress_bar, table

DATA = Path(os.environ.get("MINIBERT_DATA", "."))
MODELS = ("all-MiniLM-L6-v2", "minibert-novels")
MOST = 2000  # rows of a data set
ROWS = (200, 1000)
SPLITS = 2
Columns = tuple[list[str], list[str] | None, list[str]]  # texts, second texts, labels


def sst2() -> Columns:
    """Return film reviews and whether they are positive."""
    rows = [line.rsplit("\t", 1) for line in (DATA / "sst2" / "train.tsv").read_text("utf-8").splitlines()]
    return [text for text, _ in rows], None, [label for _, label in rows]


def mrpc() -> Columns:
    """Return pairs of sentences and whether they say the same."""
    lines = (DATA / "mrpc" / "train.tsv").read_text("utf-8-sig").splitlines()[1:]
    label, _, _, first, second = (list(column) for column in zip(*(line.split("\t") for line in lines), strict=True))
    return first, second, label


def topics() -> Columns:
    """Return the questions of XQuAD and which of 48 articles each is about."""
    articles = json.loads((DATA / "xquad" / "xquad.en.json").read_text("utf-8"))["data"]
    rows = [
        (qa["question"], str(number))
        for number, article in enumerate(articles)
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]
    return [text for text, _ in rows], None, [label for _, label in rows]


def novels() -> Columns:
    """Return 400 sentences of each of ten novels, and which novel each is from."""
    with gzip.open(DATA / "novels" / "train.txt.gz", "rt", encoding="utf-8") as file:
        books = file.read().split("\n\n")[:40:4]
    draw = np.random.default_rng(0)
    long = [[line for line in book.splitlines() if len(line) > 40] for book in books]
    drawn = [[lines[at] for at in draw.choice(len(lines), 400, replace=False)] for lines in long]
    return [text for lines in drawn for text in lines], None, [str(n) for n, lines in enumerate(drawn) for _ in lines]


def grammar() -> Columns:
    """Return 400 sentences of each paradigm of Zorro and whether they are grammatical: even lines are."""
    lines = [path.read_text("utf-8").splitlines()[:400] for path in sorted((DATA / "zorro").glob("*.txt"))]
    return [text for some in lines for text in some], None, [str(at % 2) for some in lines for at in range(len(some))]


def reviews() -> Columns:
    """Return the reviews that minibert ships and whether they are positive."""
    content = (resources.files("minibert") / "data" / "reviews.tsv").read_text("utf-8")
    rows = [line.rsplit("\t", 1) for line in content.splitlines()]
    return [text for text, _ in rows], None, [label for _, label in rows]


def drawn(*columns: list[str] | None) -> Any:
    """Return the columns with MOST of their rows, drawn at random, or all."""
    count = len(columns[0] or [])
    chosen = sorted(np.random.default_rng(1).permutation(count)[:MOST].tolist())
    return [None if column is None else [column[row] for row in chosen] for column in columns]


SETS: dict[str, Callable[[], Columns]] = {
    "sst2": sst2,
    "mrpc": mrpc,
    "topics": topics,
    "novels": novels,
    "grammar": grammar,
    "reviews": reviews,
}


def regression(*steps: Any, C: Sequence[float] = (1,)) -> Any:
    """Return logistic regression after these steps; several values of C are compared by cross-validation."""
    pipeline = make_pipeline(*steps, LogisticRegression(max_iter=1000))
    return pipeline if len(C) == 1 else GridSearchCV(pipeline, {"logisticregression__C": C}, scoring="neg_log_loss")


WAYS: dict[str, Callable[[], Any]] = {
    "plain": regression,
    "standardised": lambda: regression(StandardScaler()),
    "unit length": lambda: regression(Normalizer()),
    "unit length, grid": lambda: regression(Normalizer(), C=(1, 10, 100)),
    "standardised, grid": lambda: regression(StandardScaler(), C=GRIDS["short"]),
}


def accuracies(vectors: Any, labels: Any, rows: int, seed: int) -> list[float]:
    """Return the accuracy of each way on one random split; a class needs rows for five folds, else it is left out."""
    order = np.random.default_rng(seed).permutation(len(labels))
    training = order[: min(rows, len(labels) * 3 // 4)]
    names, counts = np.unique(labels[training], return_counts=True)
    known = names[counts >= 5]
    training = training[np.isin(labels[training], known)]
    rest = np.setdiff1d(order, training)
    held_out = rest[np.isin(labels[rest], known)]
    fitted = [way().fit(vectors[training], labels[training]) for way in WAYS.values()]
    return [float((classifier.predict(vectors[held_out]) == labels[held_out]).mean()) for classifier in fitted]


def main() -> None:
    """Measure, print the table and its means, and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a .tsv for the table")
    out = parser.parse_args().out
    lines = [["data", "model", "pooling", "rows", *WAYS]]
    scores: list[list[float]] = []
    settings = [(name, model, pooling) for name in SETS for model in MODELS for pooling in ("cls", "mean")]
    for name, model, pooling in progress_bar(settings, "vectors", unit="setting"):
        texts, pairs, labels = drawn(*SETS[name]())
        vectors = minibert.embed(texts, model, pairs=pairs, pooling=pooling)
        for rows in ROWS:
            each = [accuracies(vectors, np.array(labels), rows, seed) for seed in range(SPLITS)]
            scores.append([statistics.mean(column) for column in zip(*each, strict=True)])
            used = str(min(rows, len(texts) * 3 // 4))
            lines.append([name, model, pooling, used, *(f"{score:.4f}" for score in scores[-1])])
    means = [statistics.mean(column) for column in zip(*scores, strict=True)]
    lines.append(["mean", "", "", "", *(f"{mean:.4f}" for mean in means)])
    worst = [min(row[at] - max(row) for row in scores) for at in range(len(WAYS))]
    lines.append(["farthest below the best", "", "", "", *(f"{gap:.4f}" for gap in worst)])
    print(table(lines, left=3))
    if out is not None:
        out.write_text("\n".join("\t".join(line) for line in lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
