"""Features and logistic regression: trained, measured, saved without a pickle.

    texts -> TextFeatures (N, D), encoded once -> StandardScaler -> LogisticRegression, C by cross-validation -> a label

tutorials/experiments/frozen.py measures this beside other ways. A saved classifier is a folder with one file:

    classifier.safetensors   mean, scale, coef, intercept; everything else as JSON in its metadata

It does not hold the encoder: it names the checkpoint and the SHA-256 of its weights, and refuses any other. Files are
untrusted input: what does not fit is one ValueError.
"""

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import sklearn
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.model_selection import cross_validate as sklearn_scores
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import minibert
from minibert.checkpoints.checkpoint import Checkpoint
from minibert.tables.texts import TextOrPair, as_texts_or_pairs, table_of
from minibert.tasks.base import Measure, Prediction
from minibert.tasks.classification import Classification, Texts
from minibert.tasks.labels import best_label, check_classes, label_number
from minibert.utils.files import AnyPath, atomic_write, parse_json, regular, user_path
from minibert.utils.printing import Figures, beside, block, brief, progress_bar, table
from minibert.utils.settings import check_number
from minibert.vectors.embedder import Embedder
from minibert.vectors.features import TextFeatures
from minibert.vectors.readable import Matrix
from minibert.vectors.recipe import Recipe

CLASSIFIER_FILE = "classifier.safetensors"
DETAILS = "classifier"  # the entry of its metadata
FORMAT = 1  # of the details
ARRAYS = ("mean", "scale", "coef", "intercept")
RECIPE = tuple(one.name for one in fields(Recipe) if one.name != "batch_tokens")
SAMPLED = 8  # rows of given vectors that are computed again
FARTHEST = 0.05  # relative distance of a vector to its bfloat16 version; another text's is much farther
GRIDS: dict[str, Any] = {
    "short": np.logspace(-4, 0, 5),  # the default
    "tutorial": np.linspace(0.0001, 100, 20),  # "A Visual Guide to Using BERT for the First Time"
    "log": np.logspace(-4, 2, 13),
}


# ---------------------------------------------------------------------------------------------------------------
# The classifier


@dataclass(frozen=True)
class GridScore:
    """Cross-validation at one C: accuracy, its mean and standard deviation over the folds, and the mean log loss."""

    C: float
    mean: float
    std: float
    loss: float


@dataclass
class Classifier:
    """Features and the scikit-learn pipeline on top of them, both fitted.

    `task`, `labels`, `pairs`, `answer` and `measure` exist in prediction.reader.Reader, too.
    """

    features: TextFeatures
    head: Pipeline  # StandardScaler, LogisticRegression
    rows: int  # of the training data
    folds: int = 0  # 0: not cross-validated, or loaded from a folder
    scores: list[GridScore] = field(default_factory=list)
    task: Classification = field(default_factory=Classification)  # with the columns of the training data

    @property
    def pairs(self) -> bool:
        """Whether it was trained on pairs of texts."""
        return bool(self.features.pairs_)

    @property
    def labels(self) -> list[str]:
        """The class names, in the order of predict_proba's columns."""
        return [str(label) for label in self.head[-1].classes_]

    def predict(self, texts: object, pairs: object = None) -> NDArray[np.str_]:
        """Return the class name of each text or pair, (N,); raises as predict_proba does."""
        return np.asarray(np.array(self.labels)[self.predict_proba(texts, pairs).argmax(axis=1)])

    def predict_proba(self, texts: object, pairs: object = None) -> NDArray[np.floating[Any]]:
        """Return the probability of each class, (N, classes), columns in the order of `labels`.

        Raises ValueError for pairs if it was trained on single texts, and vice versa.
        """
        rows = as_texts_or_pairs(texts, pairs, missing=self.features.missing)
        if not rows:
            return np.empty((0, len(self.labels)))
        return np.asarray(self.head.predict_proba(self.features.transform(table_of(rows))))

    def answer(self, data: Texts) -> list[Prediction]:
        """Return a prediction for each text or pair; raises as predict_proba does."""
        return [best_label(row, self.labels) for row in self.predict_proba(data.texts, data.pairs).tolist()]

    def measure(self, data: Texts) -> Measure:
        """Compare the predictions with the labels. Raises ValueError for a label that the classifier does not know."""
        numbers = dict.fromkeys(self.labels, 0)
        for row, label in enumerate(data.known_labels):
            label_number(label, numbers, f"{data.place(row)} ({data.texts[row][:40]!r})")
        return self.task.measure(self.answer(data), data, self.labels)

    def details(self) -> Figures:
        """Return everything but the arrays of the head."""
        model = str(self.features.model)
        recipe = self.features.recipe_
        return {
            "model": str(user_path(model).absolute()) if user_path(model).is_dir() else model,
            "weights_sha256": self.features.weights_sha256_,
            "tokenizer_fingerprint": self.features.tokenizer_fingerprint_,
            "pairs": self.features.pairs_,
            **{name: getattr(recipe, name) for name in RECIPE},
            "labels": self.labels,
            "C": float(self.head[-1].C),
            "rows": self.rows,
            "folds": self.folds,
            "scores": [asdict(score) for score in self.scores],
            "columns": asdict(self.task),
            "minibert": minibert.__version__,
            "scikit_learn": sklearn.__version__,
        }

    def save(self, folder: AnyPath) -> None:
        """Write the folder; it holds the earlier classifier or this one, even after a kill."""
        scaler, regression = self.head
        fitted = (scaler.mean_, scaler.scale_, regression.coef_, regression.intercept_)
        arrays = {name: np.ascontiguousarray(array) for name, array in zip(ARRAYS, fitted, strict=True)}
        content = json.dumps({"format": FORMAT, **self.details()})
        folder = user_path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / CLASSIFIER_FILE) as temporary:
            temporary.write_bytes(save(arrays, {DETAILS: content}))

    @classmethod
    def load(
        cls,
        folder: AnyPath,
        *,
        model: str | None = None,
        device: str = "auto",
        batch_tokens: int | None = None,
    ) -> Self:
        """Read a folder written by `save`. model: the checkpoint, if it was moved.

        Raises FileNotFoundError if the folder or the checkpoint is missing, ValueError if the folder is damaged or the
        checkpoint is not the one it was trained with.
        """
        details, arrays = read(user_path(folder))
        recipe = Recipe(**{name: details[name] for name in RECIPE}, batch_tokens=batch_tokens)
        embedder = Embedder(Checkpoint.open(model or details["model"]), recipe, device)
        embedder.expected = {"weights": details["weights_sha256"], "tokenizer": details["tokenizer_fingerprint"]}
        try:
            features = TextFeatures.of(embedder, details["pairs"])
        except ValueError as error:
            raise ValueError(f"the classifier in {folder} cannot be used: {error}") from None
        scaler, regression = head = new_head(details["C"])
        scaler.mean_ = arrays["mean"]
        scaler.scale_ = arrays["scale"]
        scaler.var_ = arrays["scale"] ** 2
        scaler.n_features_in_ = regression.n_features_in_ = arrays["mean"].size
        regression.coef_, regression.intercept_ = arrays["coef"], arrays["intercept"]
        regression.classes_ = np.array(details["labels"])
        return cls(features, head, details["rows"], task=Classification(**details["columns"]))


def new_head(C: float = 1.0) -> Pipeline:
    """Return the classifier of features; scaled, because logistic regression converges slowly on raw vectors."""
    return make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=1000))


def fit_head(
    vectors: NDArray[np.floating[Any]], labels: Any, grid: Sequence[float] = GRIDS["short"], folds: int = 5
) -> tuple[Pipeline, list[GridScore]]:
    """Return the classifier with the C of `grid` that has the smallest log loss on held-out folds, and all scores.

    The loss tells values of C apart that a few rows give the same accuracy. folds: 0, or more than the rows of a class,
    measures nothing and takes the only C of the grid, or 0.01.
    """
    folds = 0 if min(Counter(labels).values()) < folds else folds
    scores = cross_validate(vectors, labels, sorted(grid), folds) if folds else []
    C = min(scores, key=lambda score: score.loss).C if scores else grid[0] if len(grid) == 1 else 0.01
    return new_head(C).fit(vectors, labels), scores


# ---------------------------------------------------------------------------------------------------------------
# Training


def train(
    texts: Any,
    labels: Any = None,
    *,
    pairs: Any = None,
    vectors: NDArray[np.floating[Any]] | None = None,
    grid: str | Sequence[float] = "short",
    folds: int = 5,
    **recipe: Any,
) -> Classifier:
    """Train logistic regression on the features of labelled texts, which are encoded once.

    texts: also the result of Classification.read, which has labels. pairs: the second text of each row. vectors: the
    features, (N, width), if they are computed already. recipe: the settings of TextFeatures, `model` first; with
    cache=FOLDER no text is computed twice, even after an interruption.
    grid, folds: values of C to choose from, or "short" (0.0001 to 1), "tutorial" or "log"; see fit_head. Raises
    ValueError or TypeError for labels that cannot be learned, before anything is encoded, and what TextFeatures raises.
    """
    features = TextFeatures(**recipe)
    task = Classification(missing=features.missing)
    candidates = as_grid(grid)
    if isinstance(texts, Texts) and not (labels is None and pairs is None):
        raise TypeError("labels and pairs are for plain texts; the result of Classification.read has its own")
    folds = check_number("folds", folds, int)
    data = texts if isinstance(texts, Texts) else task.from_labels(texts, labels, pairs)
    known = data.known_labels
    if task.resolve(data) != task:
        raise ValueError("the labels are lists; this classifier gives a text only one; `minibert finetune classify`")
    chosen = candidates != [*GRIDS["short"]] and len(candidates) > 1  # by the user, who needs the folds
    if folds < 0 or folds == 1 or (chosen and not folds):
        raise ValueError(f"folds is {folds}; cross-validation needs at least 2")
    check_classes(known, folds if chosen else 1)
    names = task.labels_of(data)
    numbers = np.array(list(map({name: number for number, name in enumerate(names)}.get, known)))  # 0 .. K - 1
    table = table_of(data.rows)
    features.fit(table)
    vectors = features.transform(table) if vectors is None else check_vectors(vectors, features, data.rows)
    head, scores = fit_head(vectors, numbers, candidates, folds)
    head[-1].classes_ = np.array(names)
    return Classifier(features, head, len(data.rows), folds if scores else 0, scores)


def as_grid(grid: str | Sequence[float]) -> list[float]:
    """Return the values of C to try: of a named grid, or as given; text such as "0.1,1" too."""
    values = GRIDS.get(grid, grid.split(",")) if isinstance(grid, str) else grid
    try:
        candidates = [float(C) for C in values]
    except (TypeError, ValueError, OverflowError):  # the last for an integer that no float can hold
        candidates = []
    if not candidates or not all(0 < C < math.inf for C in candidates):
        raise ValueError(f"grid is {brief(grid)}; it must be {', '.join(GRIDS)} or values of C above 0, such as 0.1,1")
    return candidates


def check_vectors(vectors: NDArray[np.floating[Any]], features: TextFeatures, rows: Sequence[TextOrPair]) -> Matrix:
    """Return vectors in float32. Raises ValueError if they are not of these texts: a sample is computed again."""
    narrow = vectors.astype(np.float32)
    expected = (len(rows), features.n_features_out_)
    sample = np.unique(np.linspace(0, len(rows) - 1, SAMPLED, dtype=int))
    if narrow.shape == expected:
        again = features.transform(table_of([rows[row] for row in sample]))
        distances = np.linalg.norm(again - narrow[sample], axis=1) / np.linalg.norm(again, axis=1)
        if distances.max() <= FARTHEST:  # NaN is not
            return narrow
    raise ValueError(
        f"the vectors, {vectors.shape} of {vectors.dtype}, are not made from these texts, {expected} of float32; give "
        "vectors of the same texts in the same order, by the same model and settings"
    )


def cross_validate(
    vectors: NDArray[np.float32], labels: Sequence[str] | NDArray[np.int64], grid: Sequence[float], folds: int
) -> list[GridScore]:
    """Return the scores at each C, the scaler fitted within each fold; the folds are always the same."""
    splits = StratifiedKFold(folds, shuffle=True, random_state=0)
    scores = []
    for C in progress_bar(grid, "grid", unit="C"):
        each = sklearn_scores(new_head(C), vectors, labels, cv=splits, scoring=("accuracy", "neg_log_loss"))
        accuracies, losses = each["test_accuracy"], -each["test_neg_log_loss"]
        scores.append(GridScore(float(C), float(accuracies.mean()), float(accuracies.std()), float(losses.mean())))
    return scores


def score_table(classifier: Classifier) -> str:
    """Return the cross-validated accuracy at each C, the chosen one marked."""
    if not classifier.scores:
        return block("accuracy", f"not measured, too few rows or folds; C = {classifier.head[-1].C:g}")
    rows = [
        [
            f"{score.C:g}",
            f"{score.mean:.4f}",
            f"{score.std:.4f}",
            f"{score.loss:.4f}",
            "chosen" * (classifier.head[-1].C == score.C),
        ]
        for score in classifier.scores
    ]
    columns = ["C", "mean", "std", "log loss", f"over {classifier.folds} folds"]
    return beside("accuracy", table([columns, *rows], left=0))


# ---------------------------------------------------------------------------------------------------------------
# The saved classifier


def check_saved(details: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise ValueError, TypeError, KeyError or AttributeError for details or arrays that `save` does not write."""
    Recipe(**{name: details[name] for name in RECIPE})
    Classification(**details["columns"])
    labels = details["labels"]
    width = arrays["mean"].size
    rows = 1 if len(labels) == 2 else len(labels)  # two classes share coefficients
    shapes = {"mean": (width,), "scale": (width,), "coef": (rows, width), "intercept": (rows,)}
    kinds = {"rows": int, "pairs": bool, "model": str}
    hashes = ("weights_sha256", "tokenizer_fingerprint")
    valid = {
        "format": details["format"] == FORMAT,
        "labels": list(map(str, labels)) == labels and len(set(labels)) == len(labels) >= 2,
        "C": type(details["C"]) in (int, float) and 0 < details["C"] <= sys.float_info.max,
        **{name: type(details[name]) is kind for name, kind in kinds.items()},
        **{name: re.fullmatch("[0-9a-f]{64}", details[name]) is not None for name in hashes},
        **{name: array.dtype.kind == "f" and array.shape == shapes[name] for name, array in arrays.items()},
        "numbers": all(np.isfinite(array).all() for array in arrays.values()) and (arrays["scale"] > 0).all(),
    }
    if wrong := [name for name, is_right in valid.items() if not is_right]:
        raise ValueError(f"invalid {', '.join(wrong)}; this version of minibert reads format {FORMAT}")


def read(folder: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the details and the arrays of the classifier in a folder, validated.

    Raises FileNotFoundError if there is none, ValueError if it is damaged or has another format.
    """
    if not (path := folder / CLASSIFIER_FILE).exists():
        raise FileNotFoundError(f"{folder} holds no {CLASSIFIER_FILE}; `minibert classify train` writes one")
    try:
        with safe_open(regular(path), framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in ARRAYS}
            details = parse_json((file.metadata() or {})[DETAILS])
        check_saved(details, arrays)
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"the classifier in {folder} cannot be used ({problem}); train it again") from None
    return details, arrays
