"""Memory that is used again and again, and memory that is given back.

To get new memory from the system can take as long as a product into it.
"""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress

import torch
from torch import Tensor


class Scratch(threading.local):
    """Tensors by their name, of each thread its own; what is in one is valid until its name is taken again."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, rows: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """(rows, width) of whatever was there; the same memory at the next call of this name."""
        kept = self.kept.get((name, dtype))
        if kept is None or len(kept) < rows * width:
            kept = self.kept[name, dtype] = torch.empty(rows * width, dtype=dtype)
        return kept[: rows * width].view(rows, width)


def give_back() -> None:
    """Return freed memory to the system at once: the C library of Linux keeps much of it for later."""
    with suppress(AttributeError, OSError, TypeError):  # another system, another C library
        ctypes.CDLL(None).malloc_trim(0)
