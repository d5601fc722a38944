"""Where the tokens of a batch are, and which of them form a text: what attention must know and nothing else does."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor


class Layout(Protocol):
    """Where the tokens of a batch are, and which of them form a text."""

    @property
    def positions(self) -> Tensor | None:
        """The position of each token in its text."""

    def last(self) -> Self:
        """Return the layout for the last layer, whose output may be needed for some tokens only."""

    def within(self, window: int | None) -> Self:
        """Return the layout for a layer in which a token attends to those at most window // 2 away; None: to all."""

    def wanted(self, x: Tensor) -> Tensor:
        """Return the rows of x whose output is needed."""


# How to compute attention: from query, key, value, layout and dropout to the context and, if stored, the probabilities.
Attend = Callable[[Tensor, Tensor, Tensor, Any, Any], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class Padded:
    """Rows of S tokens, filled with [PAD]: the layout of the readable path."""

    keep: Tensor  # (B,1,1,S), the mask: False for padding; the same for every head and, without window, every query
    positions: Tensor | None = None  # (S), or (B,S)

    def last(self) -> Self:
        """Return the same layout."""
        return self

    def within(self, window: int | None) -> Self:
        """Return the layout whose mask, (B,1,S,S), excludes distant tokens too."""
        if window is None:
            return self
        places = torch.arange(self.keep.shape[-1], device=self.keep.device)
        return replace(self, keep=self.keep & ((places[:, None] - places).abs() <= window // 2))

    def wanted(self, x: Tensor) -> Tensor:
        """Return all of x."""
        return x
