"""Texts to classes: features and logistic regression, trained, measured, saved without a pickle.

    texts -> TextFeatures (N, D), encoded once -> StandardScaler -> LogisticRegression -> a label by name

A saved classifier (see saved.py) holds no encoder: it names its checkpoint and the SHA-256 of its weights, and refuses
any other.
"""

# ruff: noqa: N802  (C is the name that scikit-learn gives it)
from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm

import minibert
from minibert.files import shown
from minibert.printing import beside, block, brief, table
from minibert.tasks import saved
from minibert.tasks.metrics import Evaluation, compare
from minibert.text.texts import TextOrPair, are_pairs, as_columns, as_texts_or_pairs, table_of
from minibert.vectors.cache import Matrix
from minibert.vectors.embedder import Embedder
from minibert.vectors.features import TextFeatures
from minibert.vectors.recipe import Recipe

# What a vector depends on, as it is saved; an earlier minibert saved truncation in place of the last two.
RECIPE = tuple(one.name for one in fields(Recipe) if one.name not in ("batch_tokens", "truncation", "long", "stride"))
LONG = ("long", "stride")
SAMPLED = 8  # of given vectors, which are compared with those of their texts
FARTHEST = 0.05  # from a vector to the same one in bfloat16, relative to its length; another text's is farther by far
GRIDS = {
    "tutorial": np.linspace(0.0001, 100, 20),  # "A Visual Guide to Using BERT for the First Time"
    "log": np.logspace(-4, 2, 13),
}


# ---------------------------------------------------------------------------------------------------------------
# What counts as labels


def as_labels(labels: object) -> list[str]:
    """The names of the classes, row by row; whole numbers become names. Raises ValueError for NaN, None or empty."""
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable) or getattr(labels, "ndim", 1) != 1:
        raise TypeError(f"labels are of type {type(labels).__name__}; one column of names or whole numbers is wanted")
    return [as_label(label, f"row {row}") for row, label in enumerate(labels)]


def as_label(label: object, where: str) -> str:
    """The name of one class. Raises ValueError, naming where, for what is none."""
    if isinstance(label, str) and label.strip():
        return str(label)
    if isinstance(label, int | np.integer | np.bool_):
        return str(label)
    shown = "an empty label" if isinstance(label, str) else f"the label {brief(label)}"
    raise ValueError(f"{where} has {shown}; each row needs the name of its class, a str or a whole number")


def check_classes(labels: Sequence[str], rows: int, least: int) -> None:
    """Raise ValueError for labels that cannot be learned: too few, of one class, or a class of under `least` rows."""
    counts = Counter(labels)
    if len(labels) != rows:
        raise ValueError(f"there are {rows} texts and {len(labels)} labels; each text needs one label")
    if len(counts) < 2:
        raise ValueError(
            f"all {rows} labels are {labels[0]!r}; a classifier needs two classes"
            if labels
            else "there are no rows; a classifier needs texts of two classes"
        )
    if len(counts) == rows > 2:
        raise ValueError(f"there are {rows} classes in {rows} rows: a label of its own for each row is no class")
    label, fewest = min(counts.items(), key=lambda item: item[1])
    if fewest < least:
        raise ValueError(
            f"class {label!r} has {fewest} rows, and {least} are needed, one for each part that the data "
            "is split into; add rows, or use fewer folds"
        )


def as_grid(grid: str | Sequence[float] | None) -> list[float]:
    """The values of C to try: none, those of a named grid, or the given ones."""
    if grid is None:
        return []
    if isinstance(grid, str):
        if grid not in GRIDS:
            raise ValueError(f"grid is {brief(grid)}; choose from {', '.join(GRIDS)}, or give the values of C")
        grid = GRIDS[grid].tolist()
    values = [float(C) for C in grid]
    if not values or not all(0 < C < math.inf for C in values):
        raise ValueError(f"grid is {brief(values)}; it must hold values of C, each larger than 0")
    return values


# ---------------------------------------------------------------------------------------------------------------
# The classifier


@dataclass(frozen=True)
class Score:
    """Accuracy over the folds of a cross-validation at one C."""

    C: float
    mean: float
    std: float


@dataclass
class Classifier:
    """Features and the scikit-learn pipeline on top of them, both fitted."""

    features: TextFeatures
    head: Pipeline  # StandardScaler, LogisticRegression
    rows: int  # that it was trained on
    folds: int = 0  # 0: not cross-validated
    scores: list[Score] = field(default_factory=list)

    @property
    def labels(self) -> list[str]:
        """The names of the classes, in the order of predict_proba's columns."""
        return [str(label) for label in self.head[-1].classes_]

    @property
    def pairs(self) -> bool:
        """Whether it classifies pairs of texts."""
        return bool(self.features.pairs_)

    @property
    def C(self) -> float:
        """The inverse strength of regularisation."""
        return float(self.head[-1].C)

    @property
    def score(self) -> Score | None:
        """The cross-validated accuracy at the C that was chosen, None where it was not measured."""
        return next((score for score in self.scores if score.C == self.C), None)

    def predict(self, texts: object, pairs: object = None) -> NDArray[np.str_]:
        """The name of the class of each text or pair, (N,).

        Raises ValueError for pairs where it was trained on single texts and the other way round, and, naming the row,
        where the numbers overflow.
        """
        vectors, regression = self.scaled(texts, pairs), self.head[-1]
        if not len(vectors):
            return np.asarray([], dtype=regression.classes_.dtype)
        with np.errstate(all="ignore"):
            check_finite(regression.decision_function(vectors), "a score")
        return np.asarray(regression.predict(vectors))

    def predict_proba(self, texts: object, pairs: object = None) -> NDArray[np.floating[Any]]:
        """The probability of each class, (N, classes), columns in the order of `labels`; raises as predict does."""
        vectors = self.scaled(texts, pairs)
        if not len(vectors):
            return np.empty((0, len(self.labels)))
        with np.errstate(all="ignore"):
            probabilities = np.asarray(self.head[-1].predict_proba(vectors))
        check_finite(probabilities, "a probability")
        return probabilities

    def scaled(self, texts: object, pairs: object) -> NDArray[np.floating[Any]]:
        """The vectors as the regression takes them, (N, width)."""
        rows = as_texts_or_pairs(texts, pairs, missing=self.features.missing)
        if rows and are_pairs(rows) != self.pairs:
            raise ValueError(
                "the classifier was trained on pairs, and these are single texts; give second texts (--pair, pairs=)"
                if self.pairs
                else "the classifier was trained on single texts, and these are pairs; leave out the second texts"
            )
        vectors = self.features.transform(table_of(rows))
        with np.errstate(all="ignore"):
            scaled = np.asarray(self.head[0].transform(vectors)) if len(vectors) else vectors
        check_finite(scaled, "a feature")
        return scaled

    def details(self) -> dict[str, Any]:
        """Everything but the numbers of the head."""
        model, recipe = str(self.features.model), self.features.recipe
        return {
            "model": os.path.abspath(model) if os.path.isdir(model) else model,
            "weights_sha256": self.features.weights_sha256_,
            "tokenizer_fingerprint": self.features.tokenizer_fingerprint_,
            "pairs": self.pairs,
            **{name: getattr(recipe, name) for name in (*RECIPE, *LONG)},
            "labels": self.labels,
            "C": self.C,
            "rows": self.rows,
            "folds": self.folds,
            "scores": [asdict(score) for score in self.scores],
            "minibert": minibert.__version__,
            "scikit_learn": sklearn.__version__,
        }

    def save(self, folder: str | Path) -> None:
        """Write the folder: the classifier that was there, or this one whole, whatever happens on the way."""
        scaler, regression = self.head[0], self.head[-1]
        arrays = (scaler.mean_, scaler.scale_, regression.coef_, regression.intercept_)
        saved.write(Path(folder), self.details(), dict(zip(saved.ARRAYS, arrays, strict=True)))

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        model: str | None = None,
        device: str = "auto",
        batch_tokens: int = Recipe.batch_tokens,
    ) -> Classifier:
        """Read a folder that `save` wrote; `model` says where its checkpoint is now, if it was moved.

        Raises FileNotFoundError where the folder or the checkpoint is missing, ValueError where the folder is damaged
        or the checkpoint is not the one that it was trained on.
        """
        folder = Path(folder)
        details, arrays = saved.read(folder, RECIPE)
        pairs = details.get("pairs", False)  # of an earlier minibert: none
        if not isinstance(pairs, bool):
            raise saved.damaged(folder, f"pairs is {shown(pairs)}")
        head = fitted_head(details, arrays)
        recipe = replace(read_recipe(folder, details), batch_tokens=batch_tokens)
        embedder = Embedder(model or details["model"], recipe, device)
        check_hashes(folder, details, embedder)
        if embedder.width != head[0].n_features_in_:
            raise saved.damaged(folder, f"{head[0].n_features_in_} columns, {embedder.width} by its settings")
        scores = [Score(**score) for score in details["scores"]]
        return cls(TextFeatures.of(embedder, pairs), head, details["rows"], details["folds"], scores)


def new_head(C: float = 1.0) -> Pipeline:
    """The recipe on top of the features; scaled, because logistic regression converges slowly on raw vectors."""
    return make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=1000))


def train(
    texts: object,
    labels: object,
    *,
    pairs: object = None,
    vectors: NDArray[np.floating[Any]] | None = None,
    C: float = 1.0,
    grid: str | Sequence[float] | None = None,
    folds: int = 5,
    **recipe: Any,
) -> Classifier:
    """Train logistic regression on the features of labelled texts, which are encoded once.

    pairs: the second text of each, to train on pairs. vectors: the features, (N, width), where they are there already.
    recipe: the settings of TextFeatures, `model` first; with cache=FOLDER the same call after an interruption, or with
    another grid, computes no text twice. grid: values of C to choose from by cross-validated accuracy, or "tutorial" or
    "log"; of equals the smallest C is taken. folds: of the cross-validation, stratified; without a grid, C itself is
    measured if each class has enough rows; 0 measures nothing.
    Raises ValueError or TypeError for labels that cannot be learned, before anything is encoded, and what TextFeatures
    raises.
    """
    features = TextFeatures(**recipe)
    rows = as_texts_or_pairs(texts, pairs, missing=features.missing)
    names, candidates = as_labels(labels), as_grid(grid)
    if folds < 0 or folds == 1 or (candidates and not folds):
        raise ValueError(f"folds is {folds}; cross-validation needs at least 2")
    check_classes(names, len(rows), folds if candidates else 1)
    if min(Counter(names).values()) < folds:
        folds = 0
    features.fit(table_of(rows))
    vectors = features.transform(table_of(rows)) if vectors is None else checked(vectors, features, rows)
    scores = cross_validate(vectors, names, sorted(candidates) or [C], folds) if folds else []
    best = max(scores, key=lambda score: score.mean).C if scores else C
    return Classifier(features, new_head(best).fit(vectors, names), len(rows), folds, scores)


def checked(vectors: NDArray[np.floating[Any]], features: TextFeatures, rows: Sequence[TextOrPair]) -> Matrix:
    """Vectors that are there already, in float32, or ValueError where they cannot be those of these texts.

    A matrix does not say what it was made from, so SAMPLED of its rows are computed anew.
    """
    expected = (len(rows), features.n_features_out_)
    if vectors.shape != expected or not np.issubdtype(vectors.dtype, np.floating):
        raise ValueError(
            f"the vectors are {vectors.shape} of {vectors.dtype}, and by these texts and settings {expected} of "
            "float32; "
            "give vectors of the same texts, model and settings"
        )
    narrow = vectors.astype(np.float32)
    if not np.isfinite(narrow).all():
        row = int(np.flatnonzero(~np.isfinite(narrow).all(axis=1))[0])
        raise ValueError(f"the vector of row {row} holds NaN or infinity; compute the vectors again")
    sample = np.unique(np.linspace(0, len(rows) - 1, SAMPLED, dtype=int))
    anew = features.transform(table_of([rows[row] for row in sample]))
    distances = np.linalg.norm(anew - narrow[sample], axis=1) / np.linalg.norm(anew, axis=1)
    if distances.max() > FARTHEST:
        row = int(sample[distances.argmax()])
        raise ValueError(
            f"the vector of row {row} is not that of its text ({str(rows[row])[:40]!r}) by these settings; give "
            "vectors of the same texts in the same order, by the same model and settings"
        )
    return narrow


def cross_validate(
    vectors: NDArray[np.float32], labels: Sequence[str], grid: Sequence[float], folds: int
) -> list[Score]:
    """Accuracy at each C, the scaler fitted afresh in each fold; the folds are the same for all and at every run."""
    splits = StratifiedKFold(folds, shuffle=True, random_state=0)
    scores = []
    for C in tqdm(grid, unit="C", delay=2, disable=None):
        accuracies = cross_val_score(new_head(C), vectors, labels, cv=splits)
        scores.append(Score(C, float(accuracies.mean()), float(accuracies.std())))
    return scores


# ---------------------------------------------------------------------------------------------------------------
# Reading a saved classifier


def fitted_head(details: dict[str, Any], arrays: saved.Arrays) -> Pipeline:
    """The fitted scikit-learn pipeline, put together from its numbers."""
    head = new_head(details["C"])
    scaler, regression = head[0], head[-1]
    scaler.mean_, scaler.scale_, scaler.var_ = arrays["mean"], arrays["scale"], arrays["scale"] ** 2
    scaler.n_features_in_ = regression.n_features_in_ = arrays["mean"].size
    regression.coef_, regression.intercept_ = arrays["coef"], arrays["intercept"]
    regression.classes_ = np.array(details["labels"])
    return head


def read_recipe(folder: Path, details: dict[str, Any]) -> Recipe:
    """What the vectors were that the classifier was trained on."""
    try:
        settings = {name: details[name] for name in (*RECIPE, "truncation", *LONG) if name in details}
        if "truncation" not in settings and (absent := [name for name in LONG if name not in settings]):
            raise ValueError(f"it lacks {', '.join(absent)}")
        return Recipe(**settings)
    except (TypeError, ValueError) as error:
        raise saved.damaged(folder, str(error)) from None


def check_hashes(folder: Path, details: dict[str, Any], embedder: Embedder) -> None:
    """Raise ValueError unless the checkpoint at hand is the one that the classifier was trained on."""
    for what, trained, found in (
        ("weights of sha256", details["weights_sha256"], embedder.hashes.weights),
        ("a tokenizer of fingerprint", details["tokenizer_fingerprint"], embedder.hashes.tokenizer),
    ):
        if trained != found:
            raise ValueError(
                f"the classifier in {folder} was trained on {details['model']} with {what} {trained}, and "
                f"{embedder.model} has {found}; name the folder of the right checkpoint with model= "
                "(--model), or train again"
            )


# ---------------------------------------------------------------------------------------------------------------
# Measuring


def check_finite(numbers: NDArray[np.floating[Any]], what: str) -> None:
    """Raise ValueError, naming the row, where a number of the classifier is NaN or infinite."""
    finite = np.isfinite(numbers.reshape(len(numbers), -1)).all(axis=1) if len(numbers) else np.array([])
    if not finite.all():
        raise ValueError(
            f"row {int(finite.argmin())} has {what} that is NaN or infinite: the numbers of the classifier are too "
            "large or damaged; train it again"
        )


def evaluate(classifier: Classifier, texts: object, labels: object, pairs: object = None) -> Evaluation:
    """Predict the labels of texts and compare. Raises ValueError for a label that the classifier does not know."""
    first, second = as_columns(texts, pairs, missing=classifier.features.missing)
    names = as_labels(labels)
    if len(first) != len(names) or not first:
        raise ValueError(
            f"there are {len(first)} texts and {len(names)} labels; one label a text is wanted, and at least one text"
        )
    for row, name in enumerate(names):
        if name not in classifier.labels:
            raise ValueError(
                f"row {row} ({first[row][:40]!r}) has the label {name!r}, which the classifier does "
                f"not know; it knows {', '.join(classifier.labels)}"
            )
    return compare(names, classifier.predict(first, second).tolist(), classifier.labels)


def score_table(classifier: Classifier) -> str:
    """The cross-validated accuracy at each C that was tried, the chosen one marked."""
    if not classifier.scores:
        return block("accuracy", f"not measured, too few rows or folds; C = {classifier.C:g}")
    best = classifier.score
    if best and len(classifier.scores) == 1:
        spread = f"mean and standard deviation over {classifier.folds} folds, C = {best.C:g}"
        return block("accuracy", f"{best.mean:.3f} ± {best.std:.3f} ({spread})")
    rows = [
        [f"{score.C:g}", f"{score.mean:.4f}", f"{score.std:.4f}", "chosen" if score is best else ""]
        for score in classifier.scores
    ]
    heading = [["C", "accuracy", "std", f"over {classifier.folds} folds"]]
    return beside("accuracy", table(heading + rows, left=0))
