"""Memory that is reused, and memory that is returned to the system.

The system provides new memory page by page, each filled with zeros: to get it can take as long as to compute into it.
Whether the C library of Linux returns freed memory or keeps it is a heuristic that suits small programs.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

# Parameters of mallopt(3) of glibc and the largest values that its own heuristic sets: how many free bytes at the end
# of the heap are returned, and from what size on an allocation is mapped, and therefore returned, by itself.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
USUAL = {M_TRIM_THRESHOLD: 64 << 20, M_MMAP_THRESHOLD: 32 << 20}
NEVER = 1 << 30  # bytes


class Workspace(threading.local):
    """Tensors by name, separate for each thread; the content of one is valid until its name is requested again."""

    def __init__(self) -> None:
        self.buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def buffer(self, name: str, rows: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """An uninitialised tensor (rows, width); the next call with this name gets the same memory."""
        buffer = self.buffers.get((name, dtype))
        if buffer is None or len(buffer) < rows * width:
            buffer = self.buffers[name, dtype] = torch.empty(rows * width, dtype=dtype)
        return buffer[: rows * width].view(rows, width)


def call_libc(function: str, *arguments: int) -> None:
    """Call a function of the C library; do nothing on a system that does not have it."""
    with suppress(AttributeError, OSError, TypeError):
        getattr(ctypes.CDLL(None), function)(*arguments)


def release_memory() -> None:
    """Return freed memory to the system at once."""
    call_libc("malloc_trim", 0)


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Inside, freed memory is kept for the next allocation: training steps need the same memory again and again.

    This shortens a bfloat16 step of a model of DistilBERT's size by an eighth.
    """
    for parameter in USUAL:
        call_libc("mallopt", parameter, NEVER)
    try:
        yield
    finally:
        for parameter, value in USUAL.items():
            call_libc("mallopt", parameter, value)
        release_memory()
