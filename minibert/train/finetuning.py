"""Fine-tuning: a pretrained checkpoint with a task head, all of it trained on the data of one task.

    data -> labels, examples -> model with a task head -> train, evaluated on dev after each epoch -> the best epoch
         -> a folder that transformers loads, with training.json beside the weights

The head is fresh, unless the checkpoint has a trained one for the same labels, which then goes on learning.

Devlin et al. 2018, section 3: every task is trained in the same way, only its inputs and outputs differ.
"""

import logging
import os
import statistics
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array, check_consistent_length, column_or_1d
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from minibert.config import Config
from minibert.heads import Head
from minibert.prediction.logits import States, can_be_kept, predict_logits
from minibert.prediction.packed import OutputFunction, packed_output
from minibert.prediction.reader import Reader
from minibert.storage import hub
from minibert.storage.tensor_files import weights_sha256
from minibert.tables.texts import columns_of
from minibert.tasks import task_class
from minibert.tasks.base import Encoded, Measure, Task
from minibert.tasks.classification import Classification
from minibert.tasks.labels import MultiLabel
from minibert.tasks.names import as_label
from minibert.text.tokenizer import TruncationWarning, load_tokenizer
from minibert.train import distributed
from minibert.train.batches import Batches
from minibert.train.loop import HeadLoss, Loss, WeightedLoss, readable_output
from minibert.train.run import Goal, Run, check_out, resolve_precision
from minibert.train.settings import FinetuneSettings
from minibert.train.start import freeze, labels_of_head, new_model
from minibert.utils.device import choose_device
from minibert.utils.files import user_path
from minibert.utils.habits import refuse_unknown
from minibert.utils.printing import block

log = logging.getLogger("minibert")


@dataclass(frozen=True)
class FinetuneRun(Run):
    """A task, its data as the model reads it, and a checkpoint."""

    settings: FinetuneSettings
    task: Task
    source: hub.Source
    labels: list[str]
    encoded: Encoded
    dev: Any  # data for evaluation, or None
    held_out: Encoded | None  # its examples
    weights: Tensor | None = None  # of the training texts, (N); None: equal

    @classmethod
    def of(cls, task: Task, data: Any, dev: Any, settings: FinetuneSettings) -> Self:
        """Check and encode. Raises ValueError for data that cannot be learned, before anything is loaded."""
        distributed.check(settings.batch_size)
        task = task.resolve(data)
        labels = task.labels_of(data)
        by_label = weights = None
        if settings.class_weight is not None:
            by_label = dict(zip(labels, task.class_weights(data, labels, settings.class_weight), strict=True))
            weights = torch.tensor([by_label[label] for label in data.known_labels])
        source = hub.locate(settings.model)
        known, reason = labels_of_head(source.folder, task, labels)
        note = f"the task head is new: {reason}" if reason else task.fresh_head if known is None else ""
        labels = labels if known is None else known
        longest = Config.from_file(source.folder / "config.json").max_tokens
        length = min(task.row_length, longest) if settings.max_length is None else settings.max_length
        tokenizer = load_tokenizer(source.folder, max_length=length)
        encoded = task.encode(data, tokenizer, labels, length)
        held_out = None if dev is None else task.encode(dev, tokenizer, labels, length)
        if not encoded.examples:
            raise ValueError(
                f"none of the {len(data):,} rows has a token that the vocabulary knows: nothing to learn from"
            )
        if note:
            encoded = replace(encoded, notes=(note, *encoded.notes))
        settings = resolve_precision(settings, max_length=length, class_weight=by_label)
        run = cls(settings, tokenizer, task, source, labels, encoded, dev, held_out, weights)
        for cut in run.cuts:
            warnings.warn(cut, stacklevel=3)
        return run

    @property
    def main(self) -> str:
        """The main figure of the task."""
        return self.task.main

    @property
    def notes(self) -> list[str]:
        """What a user should know about the data, beside the warnings of texts that were cut."""
        return list(dict.fromkeys([*self.encoded.notes, *(self.held_out.notes if self.held_out else ())]))

    @property
    def cuts(self) -> list[TruncationWarning]:
        """The warnings of texts that were cut, in the data and in dev."""
        return [one.cut for one in (self.encoded, self.held_out) if one and one.cut]

    @property
    def summary(self) -> str:
        """The number of examples, and the notes, for people."""
        dev = f", {len(self.held_out.examples):,} for evaluation" if self.held_out else ""
        lines = [block("data", f"{len(self.encoded.examples):,} examples{dev}; {self.computed_in}")]
        return "\n".join([*lines, *(block("note", note) for note in self.notes)])

    @property
    def config(self) -> dict[str, Any]:
        """With the task, and hashes of data and starting weights."""
        return super().config | {
            "task": self.task.name,
            "task_settings": {name: str(value) for name, value in sorted(vars(self.task).items())},
            "labels": self.labels,
            "weights_sha256": weights_sha256(self.source.folder),
            "train_sha256": self.encoded.sha256,
            "dev_sha256": None if self.held_out is None else self.held_out.sha256,
        }

    @property
    def report(self) -> dict[str, Any]:
        """What TrainedFolder reads, and notes on the data."""
        notes = [*map(str, self.cuts), *self.notes]
        return {"task": self.task.name, "settings": vars(self.task), "labels": self.labels, "notes": notes}

    def new_model(self) -> Head:
        """The checkpoint with a task head, frozen as the settings say.

        A new head of a regression begins at the mean of the labels, from which a small learning rate gets away slowly.
        """
        model: Any = new_model(self.source.folder, self.task, self.labels)
        if self.task.problem_type == "regression" and not model.head_is_trained:
            nn.init.constant_(
                model.classifier.bias, statistics.mean(one.labels["labels"] for one in self.encoded.examples)
            )
        return freeze(model, self.settings.freeze)

    def batches(self, folder: Path | None = None) -> Batches:
        """The training data in batches."""
        settings, context = self.settings, distributed.context()
        return Batches(
            self.encoded.examples,
            settings.batch_size,
            settings.seed,
            self.tokenizer.pad_id,
            self.encoded.choices,
            self.task.augment(self.tokenizer, settings.seed),
            context.rank,
            context.size,
        )

    def goal(self, model: Head) -> Goal:
        """Return the task's loss and its score on dev; constant states of a frozen encoder are computed here, once."""
        output_of, states = packed_output if self.settings.step == "packed" else readable_output, None
        if self.settings.freeze == "encoder" and self.settings.step == "packed":
            if can_be_kept(model, self.encoded):
                output_of = States.of(model, self.encoded, self.settings.precision).output
            if self.held_out and can_be_kept(model, self.held_out):
                states = States.of(model, self.held_out, self.settings.precision)
        return Goal(self.loss_of(output_of), partial(self.measure, states=states) if self.held_out else None)

    def finished(self, model: Head) -> dict[str, Head]:
        """Return the model with the tokenizer and the task with which it answers texts."""
        model.task = self.task
        return super().finished(model)

    def loss_of(self, output_of: OutputFunction) -> Loss:
        """The loss function, from the output of the model."""
        return HeadLoss(output_of) if self.weights is None else WeightedLoss(self.weights, output_of)

    def predict(self, model: Head, states: States | None = None) -> list[Any]:
        """The predictions for dev; states: of its encoder, where that is frozen."""
        task, encoded = self.task, self.held_out
        assert encoded is not None
        if states:
            logits = states.logits(model)
        else:
            logits = predict_logits(model, encoded, self.settings.precision, task.reduce)
        return task.decode(logits, encoded, self.dev, self.labels)

    def measure(self, model: Head, states: States | None = None) -> Measure:
        """Return the score on dev; states: of its encoder, if that is frozen."""
        return self.task.measure(self.predict(model, states), self.dev, self.labels)


# ---------------------------------------------------------------------------------------------------------------
# From Python


def finetune(
    task: str | Task,
    data: object,
    labels: Iterable[object] | None = None,
    *,
    pairs: Sequence[str] | None = None,
    dev: object = None,
    out: str | os.PathLike[str] | None = None,
    model: str | os.PathLike[str] = "distilbert-base-uncased",
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
    from minibert.train.embedding import prepare  # which builds on this module

    if out is not None:
        check_out(user_path(out), overwrite, model)
    kind: Any = task_class(task) if isinstance(task, str) else type(task)
    refuse_unknown("finetune", settings, [one.name for one in (*fields(kind), *fields(FinetuneSettings))], "setting")
    own = {one.name: settings.pop(one.name) for one in fields(kind) if one.name in settings}
    chosen: Task = kind(**own) if isinstance(task, str) else replace(cast(Any, task), **own)
    checked = FinetuneSettings(model=os.fspath(model), **{"precision": "float32"} | settings)
    learned = as_data(chosen, data, labels, pairs)
    chosen = chosen.resolve(learned)
    held_out = None if dev is None else as_data(chosen, *(dev if isinstance(dev, tuple) else (dev,)))
    run = prepare(chosen, learned, held_out, checked)
    log_notes(run)
    if out is not None:
        return run.finish(user_path(out), restart=restart, overwrite=overwrite).model
    with tempfile.TemporaryDirectory(prefix="minibert-finetune-") as folder:
        return run.train(Path(folder)).model


def log_notes(run: FinetuneRun) -> None:
    """Log the notes that the command prints in its summary: a task head that is new, words without tokens."""
    for note in run.notes:
        log.warning("minibert: notice: %s", note)


def as_data(task: Task, data: Any, labels: Iterable[object] | None = None, pairs: Sequence[str] | None = None) -> Any:
    """Data of the task: read from a file, made of the columns of a table or of texts and labels, or as it is.

    Raises TypeError or ValueError, with the row or the names of the columns, for what is not such data.
    """
    is_file = isinstance(data, str | os.PathLike)
    if (labels is not None and is_file) or (labels is None and pairs is not None):
        raise TypeError("labels and pairs are for plain texts; a file or a table has them as columns: label=, pair=")
    if is_file:
        return task.read(os.fspath(data))
    names = data if isinstance(data, Mapping) else getattr(data, "columns", None)
    if names is not None and labels is None:
        return task.from_table({str(name): data[name] for name in names}, type(data).__name__)
    return data if labels is None else task.from_labels(data, labels, pairs)


# ---------------------------------------------------------------------------------------------------------------
# As a scikit-learn classifier


def as_target(y: Any) -> tuple[Any, bool]:
    """Return labels as a column or a matrix, and whether they are a matrix: several labels a text, (N, K), K > 1.

    Raises ValueError for lists of different lengths, and for a matrix of anything but numbers.
    """
    y = y.toarray() if hasattr(y, "toarray") else y  # of a sparse matrix
    try:
        axes = np.ndim(y)
    except ValueError:
        raise ValueError(
            "y has lists of different lengths; several labels a text are a matrix of 0 and 1 (MultiLabelBinarizer of "
            "scikit-learn makes one)"
        ) from None
    if axes == 2 and np.shape(y)[1] > 1:
        return check_array(y, input_name="y"), True
    return column_or_1d(y, warn=True) if axes == 2 else y, False


class FineTunedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """A column of texts, or two of pairs, to labels: fit trains the whole checkpoint with its task head.

    The head is fresh, unless the checkpoint has one for these labels. Labels are one column, or a matrix of 0 and 1
    with a column for each label, (N, K), also sparse, as in scikit-learn. class_weight: None, "balanced" or a weight
    for each label. missing: "error", or "empty", which treats None and NaN as empty texts. The other parameters are
    those of FinetuneSettings. The same seed gives the same model. A pickle holds the trained weights.

    After fit: classes_ (as np.unique has them; of a matrix the numbers of its columns), model_ (with its task head),
    tokenizer_, loss_curve_ (a value for each step), notes_ (texts that were truncated, a head that was replaced).
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "distilbert-base-uncased",
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
        texts, pairs = columns_of(X)
        y, several = as_target(y)
        task = Classification(missing=self.missing, separator="|" if several else None)
        data = task.from_labels(texts, y, pairs)
        settings = {name: value for name, value in self.get_params().items() if name != "missing"}
        run = FinetuneRun.of(task, data, None, FinetuneSettings(**settings | {"model": os.fspath(self.model)}))
        log_notes(run)
        if sample_weight is not None:
            limits: dict[str, Any] = {"ensure_2d": False, "ensure_non_negative": True, "input_name": "sample_weight"}
            weights = check_array(column_or_1d(sample_weight), dtype=np.float32, **limits)
            check_consistent_length(data.texts, weights)
            of_texts = torch.from_numpy(weights)
            run = replace(run, weights=of_texts if run.weights is None else of_texts * run.weights)
        with tempfile.TemporaryDirectory(prefix="minibert-fit-") as folder:
            trained = run.train(Path(folder))
        self.model_, self.tokenizer_ = trained.model.to("cpu"), run.tokenizer
        self.loss_curve_, self.notes_ = trained.figures["curve"], trained.figures["notes"]
        self.classes_ = np.arange(len(run.labels)) if several else np.unique(np.asarray(y))
        return self

    def predict_proba(self, X: object) -> NDArray[np.float64]:
        """The probability of each class for each text, (N, K), columns in the order of classes_."""
        check_is_fitted(self)
        reader = Reader.of(self.model_.to(choose_device(self.device)), self.tokenizer_)
        task = replace(cast(Classification, reader.task), missing=self.missing)
        names = [str(as_label(label, "classes_")) for label in self.classes_]  # 2 is the class "2" to the model
        answers = reader.answer(task.from_texts(*columns_of(X)))
        rows = [[answer["probabilities"][name] for name in names] for answer in answers]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(names))

    def predict(self, X: object) -> NDArray[Any]:
        """The likeliest class of each text, (N,); of a matrix 1 where a probability is above one half, (N, K)."""
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
