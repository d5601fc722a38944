"""Memory that is used again and again, and memory that is given back.

New memory comes from the system page by page, each filled with zeros: to get it can take as long as a product into it.
What is freed the C library of Linux gives back, or keeps for later, by a guess that suits small programs.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

# What mallopt(3) of glibc calls them: from how many free bytes at its end memory is given back, and from how many
# bytes a piece of memory is the system's own. The second numbers are the most that glibc's guess comes to.
TRIM, APART = (-1, 64 << 20), (-3, 32 << 20)
NEVER = 1 << 30  # bytes
ELSEWHERE = (AttributeError, OSError, TypeError)  # another system, or another C library


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
    """Return freed memory to the system at once."""
    with suppress(*ELSEWHERE):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Inside, what is freed is kept for what comes next: the steps of a training need the same memory again and again.

    Of a model of DistilBERT's size a step in bfloat16 takes an eighth less time so.
    """
    set_limits(NEVER, NEVER)
    try:
        yield
    finally:
        set_limits(TRIM[1], APART[1])
        give_back()


def set_limits(trim: int, apart: int) -> None:
    """Tell the C library, where it can be told."""
    with suppress(*ELSEWHERE):
        library = ctypes.CDLL(None)
        library.mallopt(TRIM[0], trim)
        library.mallopt(APART[0], apart)
