"""Fine-tuning from Python: one function for every task, and a scikit-learn classifier."""

import logging
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array, check_consistent_length, column_or_1d
from sklearn.utils.validation import check_is_fitted

from minibert.heads import Head
from minibert.prediction.reader import Reader
from minibert.tasks import task_class
from minibert.tasks.base import Task
from minibert.tasks.classification import Classification
from minibert.tasks.embedding import Embedding
from minibert.tasks.labels import MultiLabel
from minibert.tasks.names import as_label
from minibert.train.finetuning import FinetuneRun, as_data
from minibert.train.sentence_vectors import EmbeddingRun
from minibert.train.settings import FinetuneSettings
from minibert.utils.device import choose_device
from minibert.utils.files import AnyPath, user_path
from minibert.utils.habits import refuse_unknown
from minibert.utils.outputs import check_folder
from minibert.utils.settings import with_settings

log = logging.getLogger("minibert")


def prepare(task: Task, data: Any, dev: Any, settings: FinetuneSettings) -> FinetuneRun:
    """Return the run for a task. Raises ValueError for data that cannot be learned."""
    return (EmbeddingRun if isinstance(task, Embedding) else FinetuneRun).of(task, data, dev, settings)


def finetune(
    task: str | Task,
    data: object,
    labels: Iterable[object] | None = None,
    *,
    pairs: Sequence[str] | None = None,
    dev: object = None,
    out: AnyPath | None = None,
    model: AnyPath = "distilbert-base-uncased",
    restart: bool = False,
    overwrite: bool = False,
    **settings: Any,
) -> Head:
    """Train a checkpoint for a task and return the model with its head, in eval mode, its labels in config.id2label.

        model = minibert.train.finetune("classify", frame, text="message", label="category")
        model.predict(["a new message"])  # as minibert.predict does; its tokenizer is model.tokenizer

    A head that the checkpoint has for these labels is kept, with their order; else the log says that the head is new.
    task: "classify", "tag", "answer", "choose", "embed", "mask", or a Task. data: a file, the result of the task's
    `read`, or for "classify" and "embed" also a data frame or a dict of columns, or texts, with labels (for "embed"
    similarities) and optional pairs. dev: the same, or
    (texts, labels); the best epoch on it is kept. out: a new folder for the finished checkpoint; the same call resumes
    a killed run. overwrite: replace an earlier result of minibert in `out`. settings: those of the task, as the command
    has them (text, label, pair: names of columns; missing="empty": None and NaN are empty texts; "drop" leaves such
    rows out), and epochs, batch_size, learning_rate, ... (settings.FinetuneSettings).
    Raises TypeError or ValueError for an `out` that is taken, settings and data that cannot be learned, before anything
    is loaded, and what Run.train raises.
    """
    if out is not None:
        check_folder(user_path(out), overwrite, apart=[model])
    chosen, others = with_own_settings(task, settings)
    checked = FinetuneSettings(model=os.fspath(model), **{"precision": "float32"} | others)
    learned = as_data(chosen, data, labels, pairs)
    chosen = chosen.resolve(learned)
    held_out = None if dev is None else as_data(chosen, *(dev if isinstance(dev, tuple) else (dev,)))
    run = prepare(chosen, learned, held_out, checked)
    log_notes(run)
    if out is not None:
        return run.finish(user_path(out), restart=restart, overwrite=overwrite).model
    with tempfile.TemporaryDirectory(prefix="minibert-finetune-") as folder:
        return run.train(Path(folder)).model


def with_own_settings(task: str | Task, settings: Mapping[str, Any]) -> tuple[Task, dict[str, Any]]:
    """Return the task with those of the settings that are its own, and the others, which are of training."""
    kind: Any = task_class(task) if isinstance(task, str) else type(task)
    own = {setting.name for setting in fields(kind)}
    known = own.union(setting.name for setting in fields(FinetuneSettings))
    refuse_unknown("finetune", settings, ["out", "dev", *sorted(known)], "setting")
    given = {name: value for name, value in settings.items() if name in own}
    chosen: Task = kind(**given) if isinstance(task, str) else replace(cast(Any, task), **given)
    return chosen, {name: value for name, value in settings.items() if name not in own}


def log_notes(run: FinetuneRun) -> None:
    """Log the notes that the command prints in its summary: a task head that is new, words without tokens."""
    for note in run.notes:
        log.warning("minibert: notice: %s", note)


# ---------------------------------------------------------------------------------------------------------------
# As a scikit-learn classifier


def as_target(y: Any) -> tuple[Any, bool]:
    """Return labels as a column or a matrix, and whether they are a matrix: several labels per text, (N, K), K > 1.

    Raises ValueError for lists of different lengths, and for a matrix of anything but numbers.
    """
    y = y.toarray() if hasattr(y, "toarray") else y  # of a sparse matrix
    try:
        axes = np.ndim(y)
    except ValueError:
        raise ValueError(
            "y has lists of different lengths; several labels per text are a matrix of 0 and 1 (MultiLabelBinarizer of "
            "scikit-learn makes one)"
        ) from None
    if axes == 2 and np.shape(y)[1] > 1:
        return check_array(y, input_name="y"), True
    return column_or_1d(y, warn=True) if axes == 2 else y, False


class FineTunedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """A scikit-learn classifier of texts or pairs that fine-tunes the whole model, not only a head.

    The head is fresh, unless the checkpoint has one for these labels. Labels are one column, or a matrix of 0 and 1
    with a column for each label, (N, K), also sparse, as in scikit-learn. class_weight: None, "balanced" or a weight
    for each label. missing: "error", or "empty", which treats None and NaN as empty texts. The other parameters are
    those of FinetuneSettings. The same seed gives the same model. A pickle holds the trained weights.

    After fit: classes_ (as np.unique has them; for a matrix the numbers of its columns), model_ (with its task head),
    tokenizer_, loss_curve_ (a value for each step), notes_ (texts that were truncated, a head that was replaced).
    """

    @with_settings()
    def __init__(
        self,
        model: AnyPath = "distilbert-base-uncased",
        *,
        epochs: int = 3,
        learning_rate: float = 5e-5,
        batch_size: int = 32,
        seed: int = 0,
        precision: str = "float32",
        max_length: int | None = None,
        freeze: str = "none",
        class_weight: str | Mapping[Any, float] | None = None,
        device: str = "auto",
        missing: str = "error",
    ) -> None:
        self.model = model
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.seed = seed
        self.precision = precision
        self.max_length = max_length
        self.freeze = freeze
        self.class_weight = class_weight
        self.device = device
        self.missing = missing

    def fit(self, X: object, y: Any, sample_weight: object = None) -> Self:
        """Train on texts X and their labels y, (N) or (N, K); sample_weight: the weight of each text.

        Raises TypeError or ValueError, naming the row, for texts and labels that cannot be learned.
        """
        if self.missing not in ("error", "empty"):  # a row that is dropped would have no prediction
            raise ValueError(f"missing is {self.missing!r}; choose 'error' or 'empty', or drop rows before")
        y, several = as_target(y)
        task = Classification(missing=self.missing, separator="|" if several else None)
        data = task.from_labels(X, y)
        settings = {name: value for name, value in self.get_params().items() if name != "missing"}
        run = FinetuneRun.of(task, data, None, FinetuneSettings(**settings | {"model": os.fspath(self.model)}))
        log_notes(run)
        if sample_weight is not None:
            weights = check_array(
                column_or_1d(sample_weight),
                dtype=np.float32,
                ensure_2d=False,
                ensure_non_negative=True,
                input_name="sample_weight",
            )
            check_consistent_length(data.texts, weights)
            of_texts = torch.from_numpy(weights)
            run = replace(run, weights=of_texts if run.weights is None else of_texts * run.weights)
        with tempfile.TemporaryDirectory(prefix="minibert-fit-") as folder:
            trained = run.train(Path(folder))
        self.model_ = trained.model.to("cpu")
        self.tokenizer_ = run.tokenizer
        self.loss_curve_ = trained.figures["curve"]
        self.notes_ = trained.figures["notes"]
        self.classes_ = np.arange(len(run.labels)) if several else np.unique(np.asarray(y))
        return self

    def predict_proba(self, X: object) -> NDArray[np.float64]:
        """Return the probability of each class for each text, (N, K), columns in the order of classes_."""
        check_is_fitted(self)
        reader = Reader.of(self.model_.to(choose_device(self.device)), self.tokenizer_)
        task = replace(cast(Classification, reader.task), missing=self.missing)
        names = [str(as_label(label, "classes_")) for label in self.classes_]  # 2 is the class "2" to the model
        answers = reader.answer(task.from_texts(X))
        rows = [[answer["probabilities"][name] for name in names] for answer in answers]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(names))

    def predict(self, X: object) -> NDArray[Any]:
        """Return the likeliest class of each text, (N,); for a matrix, 1 where a probability exceeds 0.5, (N, K)."""
        probabilities = self.predict_proba(X)
        if self.model_.config.problem_type == MultiLabel.problem_type:
            return (probabilities > 0.5).astype(np.int64)
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.one_d_array = True
        tags.classifier_tags.multi_label = True
        tags.input_tags.allow_nan = self.missing == "empty"
        return tags
