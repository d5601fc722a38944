"""A fine-tuned model as a scikit-learn classifier: pipelines, grid search, clone, pickle."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from minibert.device import choose_device
from minibert.heads import Head
from minibert.tasks.classification import Classification
from minibert.train.batches import Batch
from minibert.train.finetuning import FinetuneRun, Reader
from minibert.train.loop import Loss
from minibert.train.packed import OutputFunction
from minibert.train.settings import FinetuneSettings

TINY = torch.finfo(torch.float32).tiny  # the least sum of weights in a batch


class FineTunedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """A column of texts, or two of pairs, to labels: fit trains the whole checkpoint with a fresh task head.

    class_weight: None, "balanced" or a weight for each label; the other parameters are those of FinetuneSettings. The
    same seed gives the same model. A pickle holds the trained weights.

    After fit: classes_, model_ (with its task head), tokenizer_, loss_curve_ (a value for each step).
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "distilbert-base-uncased",
        *,
        epochs: int = 3,
        learning_rate: float = 5e-5,
        batch_size: int = 32,
        seed: int = 0,
        precision: str = "auto",
        max_length: int | None = None,
        freeze: str = "none",
        class_weight: str | Mapping[Any, float] | None = None,
        device: str = "auto",
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

    def fit(self, X: object, y: object, sample_weight: object = None) -> FineTunedClassifier:
        """Train on texts X and their labels y; sample_weight: the weight of each text.

        Raises TypeError or ValueError, naming the row, for texts and labels that cannot be learned.
        """
        task, weight = Classification(), self.class_weight
        texts, pairs = columns(X)
        given = np.asarray(y).tolist()
        data = task.from_labels(texts, given, pairs)
        by_name = dict(zip(data.known_labels, given, strict=True))  # 2 is the class "2" to the model
        settings = self.get_params() | {"model": os.fspath(self.model)}
        if isinstance(weight, Mapping):
            settings["class_weight"] = {str(label): value for label, value in weight.items()}
        run = WeightedRun.of(task, data, None, FinetuneSettings(**settings))
        if sample_weight is not None:
            run = replace(run, sample_weight=as_weights(sample_weight, len(texts)))
        with tempfile.TemporaryDirectory(prefix="minibert-fit-") as folder:
            trained = run.train(Path(folder))
        self.model_, self.tokenizer_, self.loss_curve_ = trained.model.to("cpu"), run.tokenizer, trained.progress.curve
        self.classes_ = np.array([by_name[label] for label in run.labels])
        return self

    def predict_proba(self, X: object) -> NDArray[np.float64]:
        """The probability of each class for each text, (N, K), columns in the order of classes_."""
        check_is_fitted(self)
        task, labels = Classification(), list(self.model_.config.id2label.values())
        model = self.model_.to(choose_device(self.device))
        reader = Reader(task, model, self.tokenizer_, labels, self.tokenizer_.max_length)
        rows = [answer.probabilities for answer in reader.answer(task.from_texts(*columns(X)))]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(labels))

    def predict(self, X: object) -> NDArray[Any]:
        """The likeliest class of each text, (N,)."""
        best: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(axis=1)]
        return best

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.one_d_array = True
        return tags


def columns(X: Any) -> tuple[list[str], list[str] | None]:
    """Texts, or texts and their pairs where X has two columns; other values are refused later, by row."""
    if getattr(X, "ndim", 1) == 2 and X.shape[1] in (1, 2):
        values = X.to_numpy() if hasattr(X, "to_numpy") else X
        return list(values[:, 0]), list(values[:, 1]) if X.shape[1] == 2 else None
    return list(X), None


def as_weights(weights: object, rows: int) -> Tensor:
    """One weight for each row. Raises ValueError for another number, negative ones, or ones that are not finite."""
    values = torch.as_tensor(np.asarray(weights, dtype=np.float32))
    if values.shape != (rows,) or not bool(values.isfinite().all()) or bool((values < 0).any()):
        raise ValueError(
            f"sample_weight has shape {tuple(values.shape)} for {rows} texts; give one finite weight of at least 0 each"
        )
    return values


@dataclass(frozen=True)
class WeightedRun(FinetuneRun):
    """Fine-tuning in which each text has a weight, (N)."""

    sample_weight: Tensor | None = None

    def loss_of(self, output_of: OutputFunction) -> Loss:
        """With the weights, if there are any."""
        weights = self.sample_weight
        return (
            super().loss_of(output_of)
            if weights is None
            else SampleWeightedLoss(weights, self.class_weights, output_of)
        )


@dataclass(frozen=True)
class SampleWeightedLoss:
    """Cross entropy in which each text has a weight, (N), and each class too, (K)."""

    weights: Tensor
    class_weights: tuple[float, ...] | None
    output_of: OutputFunction

    def __call__(self, model: Head, batch: Batch) -> Tensor:
        """The weighted mean over the texts, ()."""
        logits = self.output_of(model, replace(batch, labels={})).logits  # (B,K)
        of_classes = None if self.class_weights is None else logits.new_tensor(self.class_weights)
        each = nn.functional.cross_entropy(logits, batch.labels["labels"], weight=of_classes, reduction="none")
        weights = self.weights[list(batch.rows)].to(logits)
        total: Tensor = (each * weights).sum() / weights.sum().clamp(min=TINY)
        return total

    def weight_of(self, batch: Batch) -> float:
        """The sum of the weights, by which the mean is divided."""
        return max(float(self.weights[list(batch.rows)].sum(dtype=torch.float64)), TINY)
