"""Texts to matrix: pooling, batching, and the scikit-learn transformer.

    texts -> ids (tokenizer) -> batches of similar length -> hidden states (encoder) -> one vector a text -> rows
          in the order of the texts

`embed` is the function, `TextFeatures` the same as a step of a scikit-learn pipeline, which also remembers the
vectors of texts that it has seen. B batch, S tokens, D hidden, L layers; N texts.
"""
# ruff: noqa: N803  (X is what scikit-learn calls its argument)

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import assert_all_finite, check_consistent_length
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from minibert import hub
from minibert.checkpoint import check_device, load
from minibert.model import Encoder, EncoderOutput
from minibert.row_cache import MEMORY, DiskRows, Matrix, MemoryRows, cached
from minibert.tensor_files import weights_sha256
from minibert.tokenizer import Tokenizer, as_texts, load_tokenizer

Compute = Callable[..., Matrix]  # ids, and by keyword pooling, layers, combine, batch_tokens, progress -> (N, width)

CHOICES = {
    "pooling": ("cls", "mean", "max", "pooler"),
    "combine": ("concat", "sum", "mean"),
    "precision": ("float32", "bfloat16", "float16", "auto"),
    "truncation": ("warn", "error"),
    "missing": ("error", "empty"),
}
AVAILABLE_PRECISIONS = ("float32", "auto")  # the readable path computes in the encoder's own dtype
DEVICES = ("cpu", "cuda", "mps")


# ---------------------------------------------------------------------------------------------------------------
# What is asked for


def check_choices(**settings: object) -> None:
    """Raise ValueError for a setting that is none of its choices, or a precision that cannot be computed."""
    for name, value in settings.items():
        if value not in CHOICES[name]:
            raise ValueError(f"{name} is {value!r}; choose from {', '.join(CHOICES[name])}")
    if settings.get("precision", "auto") not in AVAILABLE_PRECISIONS:
        available = ", ".join(AVAILABLE_PRECISIONS)
        raise ValueError(f"precision {settings['precision']!r} is not available here; available: {available}")


def choose_precision(precision: str) -> str:
    """The precision to compute in: "auto" is float32."""
    return "float32" if precision == "auto" else precision


def check_batch_tokens(batch_tokens: int) -> None:
    """Raise unless batch_tokens is a whole number of at least 1."""
    if not isinstance(batch_tokens, int | np.integer) or isinstance(batch_tokens, bool):
        raise TypeError(f"batch_tokens is of type {type(batch_tokens).__name__}; it must be an int")
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens is {batch_tokens}; it must be at least 1 (4096 is a good value)")


def choose_device(device: str | torch.device) -> str:
    """The device to compute on: "auto" is CUDA where torch sees it, else the CPU; MPS only when it is named."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if str(device).partition(":")[0] not in DEVICES:
        raise ValueError(f"device is {device!r}; choose from auto, {', '.join(DEVICES)}")
    check_device(device)
    return str(device)


def check_recipe(
    encoder: Encoder, *, pooling: str, layers: int | Sequence[int], combine: str
) -> tuple[tuple[int, ...], int]:
    """The layers counted from 0, and the width of a vector: D, or k D where k layers are concatenated.

    Raises ValueError for a name that is not known, a layer that the encoder does not have, and for the pooler where
    the checkpoint has none or another layer than the last is asked for.
    """
    check_choices(pooling=pooling, combine=combine)
    L, D = encoder.config.num_hidden_layers, encoder.config.hidden_size
    asked = [operator.index(layer) for layer in (layers if isinstance(layers, Sequence | np.ndarray) else [layers])]
    if not asked:
        raise ValueError(f"layers is empty; name at least one of {-L - 1} to {L}")
    for layer in asked:
        if not -L - 1 <= layer <= L:
            raise ValueError(f"layers has {layer}; the encoder has {L} layers, so it must be {-L - 1} to {L} "
                             "(0: the embeddings, -1: the last layer)")  # fmt: skip
    counted = tuple(layer % (L + 1) for layer in asked)
    if pooling == "pooler":
        if encoder.pooler is None:
            raise ValueError("pooling is 'pooler', and this checkpoint has no pooler; use pooling='cls'")
        if counted != (L,):
            raise ValueError(f"pooling is 'pooler' with layers {asked}; it reads the last layer alone, (-1,)")
    return counted, D * len(counted) if combine == "concat" else D


# ---------------------------------------------------------------------------------------------------------------
# Ids to matrix, the readable path


def readable_vectors(
    encoder: Encoder,
    ids: Sequence[Sequence[int]],
    *,
    pooling: str,
    layers: int | Sequence[int],
    combine: str,
    batch_tokens: int,
    progress: bool = True,
) -> Matrix:
    """One vector for each row of token ids, (N, width) float32, in the order of the rows.

    Computed by the encoder as it is, on its device, with its attention, in its dtype; in eval and inference mode,
    and the encoder's own modes are put back. A batch has at most batch_tokens tokens, padding included (one row at
    the least), and leaves only its pooled rows behind, so memory does not grow with N. Sums in another order make a
    row differ by about 1e-6 with the batch that it is in. A progress bar appears after 2 seconds.
    Raises ValueError as check_recipe does, and for ids that the encoder cannot take.
    """
    layers, width = check_recipe(encoder, pooling=pooling, layers=layers, combine=combine)
    check_batch_tokens(batch_tokens)
    device = next(encoder.parameters()).device
    vectors = np.empty((len(ids), width), dtype=np.float32)
    bar = tqdm(total=len(ids), unit="text", delay=2, disable=None if progress else True)
    with inference(encoder), bar:
        for rows in batches([len(row) for row in ids], batch_tokens):
            input_ids, keep = pad([ids[row] for row in rows], encoder.config.pad_token_id)
            try:
                out = encoder(input_ids.to(device), attention_mask=keep.to(device), output_hidden_states=True)
            except torch.OutOfMemoryError as error:
                raise torch.OutOfMemoryError(f"a batch of {tuple(keep.shape)} tokens does not fit on {device}; use a "
                                             f"smaller batch_tokens than {batch_tokens}") from error  # fmt: skip
            vectors[rows] = pool(out, keep.to(device), pooling, layers, combine).cpu().numpy()
            bar.update(len(rows))
    return vectors


@contextmanager
def inference(encoder: Encoder) -> Iterator[None]:
    """Dropout off and no gradients inside; afterwards each module is in the mode that it was in."""
    modes = [(module, module.training) for module in encoder.modules()]
    encoder.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, training in modes:
            module.training = training


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Row numbers by length, the longest first, so that little is padded and memory is at its peak at once."""
    if 0 in lengths:
        raise ValueError(f"row {list(lengths).index(0)} has no tokens; the shortest text is [CLS] [SEP], 2 tokens")
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    while order:
        count = max(1, batch_tokens // lengths[order[0]])
        yield order[:count]
        order = order[count:]


def pad(rows: list[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Rows of ids as one tensor (B, S), padded on the right, and where it holds tokens (B, S)."""
    lengths = torch.tensor([len(row) for row in rows])
    input_ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=pad_id)
    return input_ids, torch.arange(input_ids.shape[1]) < lengths[:, None]


def pool(out: EncoderOutput, keep: Tensor, pooling: str, layers: tuple[int, ...], combine: str) -> Tensor:
    """One float32 vector a row from the states of its tokens: each layer pooled, then combined, (B, width).

    cls: the state of [CLS]. mean and max: over all tokens of the row, [CLS] and [SEP] included, padding not, as in
    sentence-transformers. pooler: what next sentence prediction reads (Devlin et al. 2018, section 3.1, NSP).
    """
    if pooling == "pooler":
        assert out.pooler_output is not None  # check_recipe
        return out.pooler_output.float()
    assert out.hidden_states is not None
    pooled = [pool_tokens(out.hidden_states[layer].float(), keep[:, :, None], pooling) for layer in layers]
    if combine == "concat":
        return torch.cat(pooled, dim=-1)
    stacked = torch.stack(pooled)
    return stacked.sum(dim=0) if combine == "sum" else stacked.mean(dim=0)


def pool_tokens(states: Tensor, keep: Tensor, pooling: str) -> Tensor:
    """(B, S, D) to (B, D) by "cls", "mean" or "max"; keep, (B, S, 1), is False for padding."""
    if pooling == "cls":
        return states[:, 0]
    if pooling == "mean":
        return states.masked_fill(~keep, 0).sum(dim=1) / keep.sum(dim=1)
    return states.masked_fill(~keep, -torch.inf).amax(dim=1)


# ---------------------------------------------------------------------------------------------------------------
# The model, loaded once


@dataclass(frozen=True)
class Loaded:
    """A checkpoint ready for use."""

    encoder: Encoder
    tokenizer: Tokenizer
    compute: Compute
    weights: str  # sha256 of the weights


def computation(encoder: Encoder, precision: str) -> Compute:
    """How ids become vectors: the one place that chooses."""
    return functools.partial(readable_vectors, encoder)


def load_shared(model: str | os.PathLike[str], device: str, precision: str) -> Loaded:
    """The checkpoint, loaded once for all of the process; again where the files in its folder have changed."""
    folder = hub.locate(os.fspath(model)).folder
    files = tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(folder.iterdir()))
    return load_folder(folder, files, device, precision)


@functools.lru_cache(maxsize=2)  # two, so that a comparison of two models loads each once
def load_folder(folder: Path, files: tuple[tuple[str, int, int], ...], device: str, precision: str) -> Loaded:
    """What load_shared keeps; `files` are there to tell one state of the folder from the next."""
    encoder = load(folder, device=device, attention="sdpa")
    return Loaded(encoder, load_tokenizer(folder), computation(encoder, precision), weights_sha256(folder))


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
    precision: "float32"; "auto" is the same. device: "auto" is CUDA where there is one, else the CPU.
    batch_tokens: the most tokens in a batch, padding included; less takes less memory.
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
        encoder, compute = model, computation(model, choose_precision(precision))
    else:
        loaded = load_shared(model, choose_device(device), choose_precision(precision))
        encoder, compute = loaded.encoder, loaded.compute
        tokenizer = loaded.tokenizer if tokenizer is None else tokenizer
    layers, _ = check_recipe(encoder, pooling=pooling, layers=layers, combine=combine)
    ids = tokenizer.ids(rows, truncation=truncation)
    vectors = compute(ids, pooling=pooling, layers=layers, combine=combine, batch_tokens=batch_tokens, progress=True)
    return vectors[0] if isinstance(texts, str) else vectors


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
        _, self.n_features_out_ = check_recipe(loaded.encoder, **self._recipe())
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
        layers, width = check_recipe(loaded.encoder, **self._recipe())

        def compute(numbers: list[int]) -> Matrix:
            # All texts, so that what the tokenizer has to say counts the caller's rows.
            ids = loaded.tokenizer.ids(texts, truncation=self.truncation)
            new = [ids[number] for number in numbers]
            recipe = self._recipe() | {"layers": layers}
            return loaded.compute(new, **recipe, batch_tokens=self.batch_tokens, progress=True)

        # With truncation="error" a text must not be found that was cut with "warn".
        identity = [loaded.weights, loaded.tokenizer.fingerprint, loaded.tokenizer.max_length, self.pooling, layers,
                    self.combine, choose_precision(self.precision), self.truncation]  # fmt: skip
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
        return load_shared(self.model, choose_device(self.device), choose_precision(self.precision))

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
