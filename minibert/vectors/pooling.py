"""How the vectors of a text's tokens become one: a table of poolings, and how several layers are combined.

A new pooling is one line of POOLINGS: recipe, readable.py, engine.py and the help text follow from it. Nothing here
imports torch, so that the command line can read the names at once. B batch, S tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Pooling:
    """How the states of a text's tokens become one vector."""

    # States (B,S,D) and a mask (B,S,1), False for padding; None: there is none. Returns (B,D).
    pool: Callable[[Tensor, Tensor | None], Tensor]
    first_only: bool = False  # it reads only the first token of each text
    through_pooler: bool = False  # the checkpoint's pooler comes after it
    reduction: str = ""  # name for torch.segment_reduce (one GPU kernel); "" if there is none


def mean(states: Tensor, keep: Tensor | None) -> Tensor:
    """Return the mean over all tokens, including [CLS] and [SEP] but not padding, as in sentence-transformers."""
    return states.mean(dim=1) if keep is None else states.masked_fill(~keep, 0).sum(dim=1) / keep.sum(dim=1)


def maximum(states: Tensor, keep: Tensor | None) -> Tensor:
    """Return the maximum over the same tokens."""
    return (states if keep is None else states.masked_fill(~keep, -float("inf"))).amax(dim=1)


def first(states: Tensor, keep: Tensor | None) -> Tensor:
    """Return the state of the first token, [CLS]."""
    return states[:, 0]


POOLINGS = {
    "cls": Pooling(first, first_only=True),
    "mean": Pooling(mean, reduction="mean"),
    "max": Pooling(maximum, reduction="max"),
    "pooler": Pooling(first, first_only=True, through_pooler=True),  # Devlin et al. 2018, section 3.1, NSP
}
# Vectors of k layers, (k,B,D), to (B, k D) or (B,D).
COMBINATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "concat": lambda layers: layers.transpose(0, 1).flatten(1),
    "sum": lambda layers: layers.sum(dim=0),
    "mean": lambda layers: layers.mean(dim=0),
}
