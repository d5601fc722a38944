"""A fine-tuned model as a scikit-learn classifier: pipelines, grid search, clone, pickle."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
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
from minibert.train.finetuning import Job, Request, answers, run, weights_of
from minibert.train.loop import Settings
from minibert.train.packed import OutputFunction

TINY = torch.finfo(torch.float32).tiny  # where all texts of a batch weigh nothing


class FineTunedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """A column of texts, or two of pairs, to labels: fit trains the whole checkpoint with a fresh task head.

    model is a Hub name or a folder; max_length: tokens of a row, None: 128; class_weight: None, "balanced" or a weight
    for each label; the other settings are those of train.loop.Settings. precision "auto" is bfloat16 where the hardware
    multiplies it. The same seed gives the same model. A pickle holds the trained weights.

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
        """Train on texts X and their labels y; sample_weight: how much each text counts.

        Raises TypeError or ValueError, naming the row, for texts and labels that cannot be learned.
        """
        task = Classification()
        texts, pairs = columns(X)
        given = np.asarray(y).tolist()
        data = task.from_labels(texts, given, pairs)
        by_name = dict(zip(data.known_labels, given, strict=True))  # 2 is the class "2" to the model
        weight = self.class_weight
        if isinstance(weight, Mapping):
            weight = {str(label): value for label, value in weight.items()}
        request = Request(
            model=os.fspath(self.model),
            settings=Settings(
                epochs=self.epochs,
                batch_size=self.batch_size,
                learning_rate=self.learning_rate,
                seed=self.seed,
                precision=self.precision,
            ),
            max_length=self.max_length,
            freeze=self.freeze,
            device=self.device,
            class_weights=weights_of(task, data, weight),
        )
        loss_of = None if sample_weight is None else partial(LossBySample, as_weights(sample_weight, len(texts)))
        with tempfile.TemporaryDirectory(prefix="minibert-fit-") as folder:
            trained = run(Job.of(task, data, None, request), Path(folder), loss_of=loss_of)
        self.model_, self.tokenizer_, self.loss_curve_ = (
            trained.model.to("cpu"),
            trained.tokenizer,
            trained.progress.curve,
        )
        self.classes_ = np.array([by_name[label] for label in trained.labels])
        return self

    def predict_proba(self, X: object) -> NDArray[np.float64]:
        """The probability of each class for each text, (N, K), columns in the order of classes_."""
        check_is_fitted(self)
        task = Classification()
        data = task.from_texts(*columns(X))
        labels = list(self.model_.config.id2label.values())
        encoded = task.encode(data, self.tokenizer_, labels, self.tokenizer_.max_length)
        found = answers(task, self.model_.to(choose_device(self.device)), encoded, data, labels)
        rows = [answer.probabilities for answer in found]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(labels))

    def predict(self, X: object) -> NDArray[Any]:
        """The likeliest class of each text, (N,)."""
        probabilities = self.predict_proba(X)
        best: NDArray[Any] = self.classes_[probabilities.argmax(axis=1)]
        return best

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        return tags


def columns(X: Any) -> tuple[list[str], list[str] | None]:
    """Texts, or texts and their pairs where X has two columns; what is no text is refused later, by row."""
    if getattr(X, "ndim", 1) == 2 and X.shape[1] in (1, 2):
        values = X.to_numpy() if hasattr(X, "to_numpy") else X
        return list(values[:, 0]), list(values[:, 1]) if X.shape[1] == 2 else None
    return list(X), None


def as_weights(weights: object, rows: int) -> Tensor:
    """One weight for each row. Raises ValueError for another number, negative ones, or ones that are not finite."""
    values = torch.as_tensor(np.asarray(weights, dtype=np.float32))
    if values.shape != (rows,) or not bool(values.isfinite().all()) or bool((values < 0).any()):
        raise ValueError(
            f"sample_weight has shape {tuple(values.shape)} for {rows} texts; one finite weight of at least "
            "0 for each is wanted"
        )
    return values


@dataclass(frozen=True)
class LossBySample:
    """Cross entropy in which each text counts by its weight, (N), and each label by its own."""

    weights: Tensor
    request: Request
    output_of: OutputFunction

    def __call__(self, model: Head, batch: Batch) -> Tensor:
        """The mean over the texts, ()."""
        logits = self.output_of(model, replace(batch, labels={})).logits  # (B,K)
        labels, of_classes = batch.labels["labels"], self.request.class_weights
        of_labels = None if of_classes is None else logits.new_tensor(of_classes)
        each = nn.functional.cross_entropy(logits, labels, weight=of_labels, reduction="none")
        counts = self.weights[list(batch.rows)].to(logits)
        total: Tensor = (each * counts).sum() / counts.sum().clamp(min=TINY)
        return total

    def weight_of(self, batch: Batch) -> float:
        """What the mean is divided by."""
        return max(float(self.weights[list(batch.rows)].sum(dtype=torch.float64)), TINY)
