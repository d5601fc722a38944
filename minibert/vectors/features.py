"""Texts to features: the same vectors as a step of a scikit-learn pipeline, each text encoded once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import assert_all_finite, check_consistent_length
from sklearn.utils.validation import check_is_fitted

from minibert.device import choose_device
from minibert.text.texts import as_texts
from minibert.vectors.cache import MEMORY, DiskRows, Matrix, MemoryRows, cached
from minibert.vectors.embedder import Loaded, check_choices, check_for, load_shared
from minibert.vectors.recipe import check_batch_tokens


class TextFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """A column of texts to a matrix (N, width) of float32, as a scikit-learn transformer.

        make_pipeline(TextFeatures("distilbert-base-uncased"), StandardScaler(), LogisticRegression(max_iter=1000))

    model is a Hub name or a folder; the other settings are those of `embed`. cache: None keeps the last 256 MiB of
    vectors in this process, so that a grid search encodes each text once; a folder keeps all of them on disk, for
    every process that names it. A cached vector may come from another batch or device (a difference of about 1e-6).

    The model is loaded at the first fit, once for all estimators of the process. A pickle holds settings and hashes,
    no weights; used with other weights or another tokenizer than it was fitted with, it refuses.

    After fit: n_features_out_ (the width), weights_sha256_, tokenizer_fingerprint_.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "distilbert-base-uncased",
        *,
        pooling: str = "cls",
        layers: int | Sequence[int] = (-1,),
        combine: str = "concat",
        precision: str = "float32",
        device: str = "auto",
        batch_tokens: int = 4096,
        truncation: str = "warn",
        cache: str | os.PathLike[str] | None = None,
        missing: str = "error",
    ) -> None:
        self.model = model
        self.pooling = pooling
        self.layers = layers
        self.combine = combine
        self.precision = precision
        self.device = device
        self.batch_tokens = batch_tokens
        self.truncation = truncation
        self.cache = cache
        self.missing = missing

    def fit(self, X: object, y: object = None) -> TextFeatures:
        """Check settings, texts and labels, and load the model; nothing is learned and no text is encoded.

        Raises what `embed` raises, and ValueError for labels of another number or NaN among them.
        """
        self._check_settings()
        texts = self._texts(X)
        if y is not None:
            check_consistent_length(texts, y)
            assert_all_finite(y, input_name="y")
        loaded = self._load()
        _, self.n_features_out_ = check_for(loaded.engine, **self._recipe())
        self.weights_sha256_ = loaded.weights
        self.tokenizer_fingerprint_ = loaded.tokenizer.fingerprint
        return self

    def transform(self, X: object) -> Matrix:
        """One vector for each text, (N, width) float32, in the order of the texts.

        Raises NotFittedError before fit, ValueError where the checkpoint is not that of fit, and what `embed` raises.
        """
        check_is_fitted(self)
        self._check_settings()
        texts = self._texts(X)
        loaded = self._load()
        self._check_identity(loaded)
        layers, width = check_for(loaded.engine, **self._recipe())

        def compute(numbers: list[int]) -> Matrix:
            # All texts, so that what the tokenizer has to say counts the caller's rows.
            ids = loaded.tokenizer.ids(texts, truncation=self.truncation)
            new = [ids[number] for number in numbers]
            recipe = self._recipe() | {"layers": layers}
            return loaded.engine.vectors(new, **recipe, batch_tokens=self.batch_tokens, progress=True)

        # With truncation="error" a text must not be found that was cut with "warn".
        identity = [
            loaded.weights,
            loaded.tokenizer.fingerprint,
            loaded.tokenizer.max_length,
            self.pooling,
            layers,
            self.combine,
            str(loaded.engine.dtype),
            self.truncation,
        ]
        return cached(texts, identity, width, self._store(), compute)

    def fit_transform(self, X: object, y: object = None) -> Matrix:
        """Fit, then transform; a generator is read once."""
        texts = list(X) if isinstance(X, Iterator) else X
        return self.fit(texts, y).transform(texts)

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """textfeatures0, textfeatures1, ...: one name for each column."""
        check_is_fitted(self)
        return np.array([f"textfeatures{column}" for column in range(self.n_features_out_)], dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.input_tags.allow_nan = self.missing == "empty"
        tags.transformer_tags.preserves_dtype = []  # text in, float32 out
        return tags

    def _check_settings(self) -> None:
        """Raise for what can be seen to be wrong without the model."""
        check_choices(
            pooling=self.pooling,
            combine=self.combine,
            precision=self.precision,
            truncation=self.truncation,
            missing=self.missing,
        )
        check_batch_tokens(self.batch_tokens)
        choose_device(self.device)
        self._store()
        if not isinstance(self.model, str | os.PathLike):
            raise TypeError(
                f"model is of type {type(self.model).__name__}; TextFeatures needs a Hub name or a folder, "
                "which a pickle can refer to"
            )

    def _texts(self, X: Any) -> list[str]:
        """The column as a list. ColumnTransformer makes a data frame of ["text"]: its one column is meant."""
        one_column = hasattr(X, "iloc") and X.shape[1:] == (1,)
        return as_texts(X.iloc[:, 0] if one_column else X, missing=self.missing)

    def _load(self) -> Loaded:
        return load_shared(self.model, choose_device(self.device), self.precision)

    def _recipe(self) -> dict[str, Any]:
        return {"pooling": self.pooling, "layers": self.layers, "combine": self.combine}

    def _store(self) -> MemoryRows | DiskRows:
        return MEMORY if self.cache is None else DiskRows(self.cache)

    def _check_identity(self, loaded: Loaded) -> None:
        """Raise ValueError where weights or tokenizer are not those of fit."""
        for what, fitted, found in (
            ("weights with sha256", self.weights_sha256_, loaded.weights),
            ("a tokenizer with fingerprint", self.tokenizer_fingerprint_, loaded.tokenizer.fingerprint),
        ):
            if fitted != found:
                raise ValueError(
                    f"checkpoint {self.model} has {what} {found}, and this TextFeatures was fitted with "
                    f"{fitted}; put that checkpoint back, or fit again"
                )
