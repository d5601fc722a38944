"""Texts to features: the same vectors as a step of a scikit-learn pipeline, each text encoded once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import assert_all_finite, check_consistent_length
from sklearn.utils.validation import check_is_fitted

from minibert.text.texts import TEXTS, TextOrPair, are_pairs, as_texts_or_pairs, columns_of
from minibert.vectors.cache import MEMORY, DiskRows, Matrix, MemoryRows, cached
from minibert.vectors.embedder import Embedder, Hashes
from minibert.vectors.recipe import Recipe, with_settings


class TextFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """A column of texts, or two of pairs, to a matrix (N, width) of float32, as a scikit-learn transformer.

        make_pipeline(TextFeatures("distilbert-base-uncased"), StandardScaler(), LogisticRegression(max_iter=1000))

    Pairs are a data frame or a 2-D array of two columns: the first texts and the second.
    model is a Hub name or a folder, device as for `embed`; the other settings are those of a Recipe. cache: None keeps
    the last 256 MiB of vectors in this process, so that a grid search encodes each text once; a folder keeps all of
    them on disk, for every process that uses it. A cached vector may come from another batch or device (a difference
    of about 1e-6).

    The model is loaded at the first fit, once for all estimators of the process. A pickle holds settings and hashes,
    no weights; it refuses other weights or another tokenizer than it was fitted with.

    After fit: n_features_out_ (the width), weights_sha256_, tokenizer_fingerprint_, pairs_ (whether they are pairs).
    After a transform that computed anything: stats_, with the counts .truncated, .windowed and .windows.
    """

    @with_settings
    def __init__(
        self,
        model: str | os.PathLike[str] = "distilbert-base-uncased",
        *,
        device: str | torch.device = "auto",
        cache: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> None:
        self.model, self.device, self.cache = model, device, cache
        defaults = {one.name: one.default for one in fields(Recipe)}
        if unknown := settings.keys() - defaults.keys():
            raise TypeError(f"TextFeatures has no setting {', '.join(sorted(unknown))}; choose from {list(defaults)}")
        self.__dict__.update(defaults | settings)

    @classmethod
    def of(cls, embedder: Embedder, pairs: bool = False) -> TextFeatures:
        """The same vectors as the embedder's, fitted without texts. pairs: of pairs of texts."""
        model: Any = embedder.model  # an Encoder fails below: it has no hashes
        features = cls(model, device=embedder.device, **asdict(embedder.recipe))
        features._learn(embedder, pairs)
        return features

    @property
    def recipe(self) -> Recipe:
        """The settings of the vectors. Raises ValueError or TypeError for settings that are not possible."""
        return Recipe(**{setting.name: getattr(self, setting.name) for setting in fields(Recipe)})

    def fit(self, X: object, y: object = None) -> TextFeatures:
        """Check settings, texts and labels, and load the model; nothing is learned and no text is encoded.

        Raises what `embed` raises, and ValueError for labels of another number or NaN among them.
        """
        embedder = self._embedder()
        self._store()
        rows = self._rows(X)
        if y is not None:
            check_consistent_length(rows, y)
            assert_all_finite(y, input_name="y")
        self._learn(embedder, are_pairs(rows))
        return self

    def transform(self, X: object) -> Matrix:
        """One vector for each text, (N, width) float32, in the order of the texts.

        Raises NotFittedError before fit, ValueError for another checkpoint than that of fit and for pairs in place of
        texts or the reverse, and what `embed` raises.
        """
        check_is_fitted(self)
        embedder = self._embedder()
        embedder.expected = Hashes(self.weights_sha256_, self.tokenizer_fingerprint_)
        rows = self._rows(X)
        if rows and are_pairs(rows) != self.pairs_:
            found, fitted = ("single texts", "pairs") if self.pairs_ else ("pairs", "single texts")
            raise ValueError(f"these are {found}, and it was fitted on {fitted}; pass {fitted}, or fit again")

        def compute(numbers: list[int]) -> Iterator[Matrix]:
            tokens = embedder.tokenize(rows)  # all, so that the tokenizer's warnings count the caller's rows
            self.stats_ = tokens.stats
            for start in range(0, len(numbers), TEXTS):
                some = numbers[start : start + TEXTS]
                yield embedder.vectors(tokens.take(some), some, progress=True)

        return cached(rows, list(embedder.identity.values()), embedder.width, self._store(), compute)

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
        tags.input_tags.two_d_array = False  # of numbers; two columns of texts are taken
        tags.input_tags.allow_nan = self.missing == "empty"
        tags.transformer_tags.preserves_dtype = []  # text in, float32 out
        return tags

    def _embedder(self) -> Embedder:
        """The embedder with the current settings; nothing is loaded yet."""
        if not isinstance(self.model, str | os.PathLike):
            raise TypeError(
                f"model is of type {type(self.model).__name__}; TextFeatures needs a Hub name or a folder, "
                "which a pickle can refer to"
            )
        return Embedder(self.model, self.recipe, self.device)

    def _learn(self, embedder: Embedder, pairs: bool) -> None:
        """Set the attributes of a fitted transformer."""
        self.pairs_ = pairs
        self.n_features_out_ = embedder.width
        self.weights_sha256_, self.tokenizer_fingerprint_ = embedder.hashes.weights, embedder.hashes.tokenizer

    def _rows(self, X: object) -> Sequence[TextOrPair]:
        """Texts or pairs; a data frame of one column, as ColumnTransformer makes of ["text"], holds texts."""
        return as_texts_or_pairs(*columns_of(X), missing=self.missing)

    def _store(self) -> MemoryRows | DiskRows:
        return MEMORY if self.cache is None else DiskRows(self.cache)
