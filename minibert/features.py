"""Texts to matrix: pooling, batching, and the scikit-learn transformer.

    texts -> ids (tokenizer) -> packed batches of similar length (engine) -> one vector a text, in the texts' order

`embed` is the function, `TextFeatures` the same as a step of a scikit-learn pipeline, which also remembers the
vectors of texts that it has seen. B batch, S tokens, D hidden, L layers; N texts.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import assert_all_finite, check_consistent_length
from sklearn.utils.validation import check_is_fitted
from tqdm import tqdm

from minibert import hub
from minibert.checkpoint import check_device, load
from minibert.engine import Engine
from minibert.matmul import PRECISIONS
from minibert.model import Encoder
from minibert.overlap import portions, tokenized
from minibert.recipe import COMBINATIONS, POOLINGS, check_batch_tokens, check_recipe
from minibert.row_cache import MEMORY, DiskRows, Matrix, MemoryRows, cached
from minibert.tensor_files import weights_sha256
from minibert.texts import as_texts
from minibert.tokenizer import Account, Tokenizer, load_tokenizer

CHOICES = {
    "pooling": POOLINGS,
    "combine": COMBINATIONS,
    "precision": PRECISIONS,
    "truncation": ("warn", "error"),
    "missing": ("error", "empty"),
}
DEVICES = ("cpu", "cuda", "mps")


# ---------------------------------------------------------------------------------------------------------------
# What is asked for


def check_choices(**settings: object) -> None:
    """Raise ValueError for a setting that is none of its choices."""
    for name, value in settings.items():
        if value not in CHOICES[name]:
            raise ValueError(f"{name} is {value!r}; choose from {', '.join(CHOICES[name])}")


def choose_device(device: str | torch.device) -> str:
    """The device to compute on: "auto" is CUDA where torch sees it, else the CPU; MPS only when it is named."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if str(device).partition(":")[0] not in DEVICES:
        raise ValueError(f"device is {device!r}; choose from auto, {', '.join(DEVICES)}")
    check_device(device)
    return str(device)


# ---------------------------------------------------------------------------------------------------------------
# The model, loaded once


@dataclass(frozen=True)
class Loaded:
    """A checkpoint ready for use. The encoder itself is not kept: the engine has its weights in a form of its own."""

    engine: Engine
    tokenizer: Tokenizer
    weights: str  # sha256 of the weights


def check_for(
    engine: Engine, *, pooling: str, layers: int | Sequence[int], combine: str
) -> tuple[tuple[int, ...], int]:
    """The layers counted from 0 and the width of a vector, or ValueError where this checkpoint cannot give it."""
    has_pooler = engine.pooler is not None
    return check_recipe(engine.config, pooling=pooling, layers=layers, combine=combine, has_pooler=has_pooler)


def load_shared(model: str | os.PathLike[str], device: str, precision: str) -> Loaded:
    """The checkpoint, loaded once for all of the process; again where the files in its folder have changed."""
    folder = hub.locate(os.fspath(model)).folder
    files = tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(folder.iterdir()))
    return load_folder(folder, files, device, precision)


@functools.lru_cache(maxsize=2)  # two, so that a comparison of two models loads each once
def load_folder(folder: Path, files: tuple[tuple[str, int, int], ...], device: str, precision: str) -> Loaded:
    """What load_shared keeps; `files` are there to tell one state of the folder from the next."""
    return Loaded(Engine(load(folder, device=device), precision), load_tokenizer(folder), weights_sha256(folder))


def embed(
    texts: object,
    model: str | os.PathLike[str] | Encoder = "distilbert-base-uncased",
    *,
    pooling: str = "cls",
    layers: int | Sequence[int] = (-1,),
    combine: str = "concat",
    precision: str = "float32",
    device: str | torch.device = "auto",
    batch_tokens: int = 4096,
    truncation: str = "warn",
    missing: str = "error",
    tokenizer: Tokenizer | None = None,
) -> Matrix:
    """Texts to vectors, (N, width) float32, in the order of the texts; one str gives one vector, (width,).

    texts: list, tuple, 1-D array, Series or generator. model: a Hub name, a folder, or an Encoder, which stays on its
    device and needs its tokenizer beside it.
    pooling: "cls", "mean" (over all tokens, the special ones too, never padding), "max", or "pooler" (last layer only).
    layers: any of -L-1 to L, as in hidden_states: 0 is the embeddings, -1 the last layer; each is pooled, and then
    they are put together by combine: "concat" (width k D for k layers), "sum" or "mean" (width D).
    precision: "float32"; "bfloat16" where the hardware multiplies it (else a warning, and float32); "float16" on CUDA;
    "auto", the fastest of these that keeps a cosine above 0.9999 to float32.
    device: "auto" is CUDA where there is one, else the CPU.
    batch_tokens: the most tokens in a batch; less takes less memory.
    truncation: a text over the tokenizer's max_length is cut with one warning ("warn") or refused ("error").
    missing: None and NaN are refused ("error") or taken as empty texts ("empty").
    Raises TypeError for what is no text, naming its row; ValueError for a setting that is not possible;
    FileNotFoundError where the checkpoint is not found.
    """
    check_choices(pooling=pooling, combine=combine, precision=precision, truncation=truncation, missing=missing)
    check_batch_tokens(batch_tokens)
    rows = as_texts([texts] if isinstance(texts, str) else texts, missing=missing)
    if isinstance(model, Encoder):
        if tokenizer is None:
            raise TypeError("model is an Encoder, which has no tokenizer; pass tokenizer=load_tokenizer(name)")
        if device != "auto":
            raise ValueError(f"device is {device!r}, and an Encoder stays where it is; use model.to({device!r})")
        engine = Engine(model, precision)
    else:
        loaded = load_shared(model, choose_device(device), precision)
        engine, tokenizer = loaded.engine, loaded.tokenizer if tokenizer is None else tokenizer
    recipe: dict[str, Any] = {"pooling": pooling, "layers": layers, "combine": combine}
    check_for(engine, **recipe)
    recipe["batch_tokens"] = batch_tokens
    if engine.device.type == "cpu":  # which would tokenize and compute with the same cores
        vectors = engine.vectors(tokenizer.ids(rows, truncation=truncation), **recipe, progress=True)
    else:
        vectors = embed_overlapped(rows, engine, tokenizer, truncation=truncation, **recipe)
    return vectors[0] if isinstance(texts, str) else vectors


def embed_overlapped(
    texts: list[str], engine: Engine, tokenizer: Tokenizer, *, truncation: str, **recipe: Any
) -> Matrix:
    """`embed` on a device that computes by itself: meanwhile the next portion of texts is tokenized."""
    account, parts = Account(), [engine.vectors([], **recipe)]  # the first for its width
    bar = tqdm(total=len(texts), unit="text", unit_scale=True, delay=2, disable=None)
    with bar, closing(tokenized(portions(texts), tokenizer, engine.device, truncation=truncation)) as tokens:
        for portion in tokens:
            parts.append(engine.vectors(portion.ids, **recipe))
            account += portion.account
            bar.update(len(portion.ids))
    tokenizer.warn(account, tokenizer.max_length)
    return np.concatenate(parts)


# ---------------------------------------------------------------------------------------------------------------
# scikit-learn


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
        identity = [loaded.weights, loaded.tokenizer.fingerprint, loaded.tokenizer.max_length, self.pooling, layers,
                    self.combine, str(loaded.engine.dtype), self.truncation]  # fmt: skip
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
        check_choices(pooling=self.pooling, combine=self.combine, precision=self.precision,
                      truncation=self.truncation, missing=self.missing)  # fmt: skip
        check_batch_tokens(self.batch_tokens)
        choose_device(self.device)
        self._store()
        if not isinstance(self.model, str | os.PathLike):
            raise TypeError(f"model is of type {type(self.model).__name__}; TextFeatures needs a Hub name or a folder, "
                            "which a pickle can refer to")  # fmt: skip

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
                raise ValueError(f"checkpoint {self.model} has {what} {found}, and this TextFeatures was fitted with "
                                 f"{fitted}; put that checkpoint back, or fit again")  # fmt: skip
