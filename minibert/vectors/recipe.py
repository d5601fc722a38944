"""What vectors are asked for: pooling, layers and their combination, checked before anything is computed."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minibert.config import Config

POOLINGS = ("cls", "mean", "max", "pooler")
COMBINATIONS = ("concat", "sum", "mean")


def check_recipe(
    config: Config, *, pooling: str, layers: int | Sequence[int], combine: str, has_pooler: bool
) -> tuple[tuple[int, ...], int]:
    """The layers counted from 0, the embeddings, to L, and the width of a vector: D, or k D for k concatenated layers.

    Raises ValueError for a name that is not known, a layer that the encoder does not have, and for the pooler where
    the checkpoint has none or another layer than the last is asked for.
    """
    for name, value, choices in (("pooling", pooling, POOLINGS), ("combine", combine, COMBINATIONS)):
        if value not in choices:
            raise ValueError(f"{name} is {value!r}; choose from {', '.join(choices)}")
    L, D = config.num_hidden_layers, config.hidden_size
    asked = [operator.index(layer) for layer in (layers if isinstance(layers, Sequence | np.ndarray) else [layers])]
    if not asked:
        raise ValueError(f"layers is empty; name at least one of {-L - 1} to {L}")
    for layer in asked:
        if not -L - 1 <= layer <= L:
            raise ValueError(
                f"layers has {layer}; the encoder has {L} layers, so it must be {-L - 1} to {L} "
                "(0: the embeddings, -1: the last layer)"
            )
    counted = tuple(layer % (L + 1) for layer in asked)
    if pooling == "pooler":
        if not has_pooler:
            raise ValueError("pooling is 'pooler', and this checkpoint has no pooler; use pooling='cls'")
        if counted != (L,):
            raise ValueError(f"pooling is 'pooler' with layers {asked}; it reads the last layer alone, (-1,)")
    return counted, D * len(counted) if combine == "concat" else D


def check_batch_tokens(batch_tokens: int) -> None:
    """Raise unless batch_tokens is a whole number of at least 1."""
    if not isinstance(batch_tokens, int | np.integer) or isinstance(batch_tokens, bool):
        raise TypeError(f"batch_tokens is of type {type(batch_tokens).__name__}; it must be an int")
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens is {batch_tokens}; it must be at least 1 (4096 is a good value)")


def check_rows(config: Config, ids: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """The number of tokens of each row of ids, (N), or ValueError with the first row that the encoder cannot take."""
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    limit = config.max_position_embeddings
    for row in np.flatnonzero((lengths < 1) | (lengths > limit)):
        if lengths[row] == 0:
            raise ValueError(f"row {row} has no tokens; the shortest text is [CLS] [SEP], 2 tokens")
        raise ValueError(f"row {row} has {lengths[row]} tokens and the checkpoint has {limit} positions; truncate")
    flat = np.fromiter(chain.from_iterable(ids), np.int64, lengths.sum())
    for place in np.flatnonzero((flat < 0) | (flat >= config.vocab_size)):
        row = np.searchsorted(lengths.cumsum(), place, side="right")
        raise ValueError(
            f"row {row} holds the id {flat[place]}; the checkpoint has vocab_size "
            f"{config.vocab_size}: 0 to {config.vocab_size - 1}"
        )
    return lengths


def combine_layers(pooled: Sequence[Tensor], combine: str) -> Tensor:
    """One vector of each text from those of several layers, each (B, D): (B, k D) or (B, D)."""
    if combine == "concat":
        return torch.cat(list(pooled), dim=-1)
    stacked = torch.stack(list(pooled))
    return stacked.sum(dim=0) if combine == "sum" else stacked.mean(dim=0)
