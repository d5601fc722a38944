"""A fine-tuned model as a scikit-learn classifier: pipelines, grid search, clone, pickle."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array, check_consistent_length, column_or_1d
from sklearn.utils.validation import check_is_fitted

from minibert.device import choose_device
from minibert.tasks.classification import Classification
from minibert.text.texts import columns_of
from minibert.train.finetuning import FinetuneRun
from minibert.train.reader import Reader
from minibert.train.settings import FinetuneSettings


class FineTunedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """A column of texts, or two of pairs, to labels: fit trains the whole checkpoint with a fresh task head.

    class_weight: None, "balanced" or a weight for each label. missing: "error", or "empty", which treats None and NaN
    as empty texts. The other parameters are those of FinetuneSettings. The
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

    def fit(self, X: object, y: object, sample_weight: object = None) -> Self:
        """Train on texts X and their labels y; sample_weight: the weight of each text.

        Raises TypeError or ValueError, naming the row, for texts and labels that cannot be learned.
        """
        task = Classification(missing=self.missing)
        texts, pairs = columns_of(X)
        given = np.asarray(y).tolist()
        data = task.from_labels(texts, given, pairs)
        settings = {name: value for name, value in self.get_params().items() if name != "missing"}
        run = FinetuneRun.of(task, data, None, FinetuneSettings(**settings | {"model": os.fspath(self.model)}))
        if sample_weight is not None:
            limits: dict[str, Any] = {"ensure_2d": False, "ensure_non_negative": True, "input_name": "sample_weight"}
            weights = check_array(column_or_1d(sample_weight), dtype=np.float32, **limits)
            check_consistent_length(data.texts, weights)
            of_texts = torch.from_numpy(weights)
            run = replace(run, weights=of_texts if run.weights is None else of_texts * run.weights)
        with tempfile.TemporaryDirectory(prefix="minibert-fit-") as folder:
            trained = run.train(Path(folder))
        self.model_, self.tokenizer_, self.loss_curve_ = (
            trained.model.to("cpu"),
            run.tokenizer,
            trained.figures["curve"],
        )
        by_name = dict(zip(data.known_labels, given, strict=True))  # 2 is the class "2" to the model
        self.classes_ = np.array([by_name[label] for label in run.labels])
        return self

    def predict_proba(self, X: object) -> NDArray[np.float64]:
        """The probability of each class for each text, (N, K), columns in the order of classes_."""
        check_is_fitted(self)
        task, labels = Classification(missing=self.missing), list(self.model_.config.id2label.values())
        model = self.model_.to(choose_device(self.device))
        reader = Reader(task, model, self.tokenizer_, labels, self.tokenizer_.max_length)
        rows = [list(answer["probabilities"].values()) for answer in reader.answer(task.from_texts(*columns_of(X)))]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(labels))

    def predict(self, X: object) -> NDArray[Any]:
        """The likeliest class of each text, (N,)."""
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.one_d_array = True
        tags.input_tags.allow_nan = self.missing == "empty"
        return tags
