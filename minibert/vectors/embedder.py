"""Texts to vectors, by the name of a checkpoint: the function `embed`.

    texts -> ids (tokenizer) -> packed batches of similar length (engine) -> one vector a text, in the texts' order

B batch, S tokens, D hidden, L layers; N texts.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from minibert.checkpoints import hub
from minibert.checkpoints.load import load
from minibert.checkpoints.tensor_files import weights_sha256
from minibert.device import PRECISIONS, choose_device
from minibert.model import Encoder
from minibert.text.texts import as_texts
from minibert.text.tokenizer import Account, Tokenizer, load_tokenizer
from minibert.vectors.cache import Matrix
from minibert.vectors.engine import Engine
from minibert.vectors.prefetch import portions, tokenized
from minibert.vectors.recipe import COMBINATIONS, POOLINGS, check_batch_tokens, check_recipe

CHOICES = {
    "pooling": POOLINGS,
    "combine": COMBINATIONS,
    "precision": PRECISIONS,
    "truncation": ("warn", "error"),
    "missing": ("error", "empty"),
}


# ---------------------------------------------------------------------------------------------------------------
# What is asked for


def check_choices(**settings: object) -> None:
    """Raise ValueError for a setting that is none of its choices."""
    for name, value in settings.items():
        if value not in CHOICES[name]:
            raise ValueError(f"{name} is {value!r}; choose from {', '.join(CHOICES[name])}")


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
    engine = Engine(load(folder, device=device), precision, keep_encoder=False)
    return Loaded(engine, load_tokenizer(folder), weights_sha256(folder))


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
