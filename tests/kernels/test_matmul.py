"""Memory: reused by name, kept while a model is trained and returned afterwards; harmless where that is impossible."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from minibert.kernels import matmul
from minibert.kernels.matmul import Workspace, keep_freed_memory


def test_inside_freed_memory_is_kept_and_afterwards_returned_even_after_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[int, ...]] = []
    library = SimpleNamespace(mallopt=lambda *given: calls.append(given), malloc_trim=lambda pad: calls.append((pad,)))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    never = [(-1, matmul.NEVER), (-3, matmul.NEVER)]
    with pytest.raises(KeyboardInterrupt), keep_freed_memory():
        assert calls == never
        raise KeyboardInterrupt
    assert calls == [*never, *matmul.USUAL.items(), (0,)]


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_another_c_library_is_left_alone(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: None) -> None:
        raise error

    monkeypatch.setattr(ctypes, "CDLL", load)
    with keep_freed_memory():  # returns memory at the end
        pass


def test_a_workspace_reuses_memory_and_grows() -> None:
    workspace = Workspace()
    first = workspace.buffer("a", 4, 8)
    assert workspace.buffer("a", 2, 8).data_ptr() == first.data_ptr()
    assert workspace.buffer("a", 8, 8).shape == (8, 8)
    assert workspace.buffer("b", 4, 8).data_ptr() != workspace.buffer("a", 4, 8).data_ptr()
