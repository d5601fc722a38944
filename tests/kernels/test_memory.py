"""Memory that is freed: kept while a model is trained, given back afterwards; no matter where that is impossible."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from minibert.kernels import memory
from minibert.kernels.memory import freed_memory_kept, give_back


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """What the C library is told."""
    calls: list[tuple[int, ...]] = []
    library = SimpleNamespace(mallopt=lambda *given: calls.append(given), malloc_trim=lambda pad: calls.append((pad,)))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    return calls


USUAL = [memory.TRIM, memory.APART, (0,)]
NEVER = [(-1, memory.NEVER), (-3, memory.NEVER)]


def test_inside_freed_memory_is_never_given_back_and_afterwards_as_ever(told: list[tuple[int, ...]]) -> None:
    with freed_memory_kept():
        assert told == NEVER
    assert told == NEVER + USUAL


def test_so_it_is_after_an_error(told: list[tuple[int, ...]]) -> None:
    with pytest.raises(KeyboardInterrupt), freed_memory_kept():
        raise KeyboardInterrupt
    assert told == NEVER + USUAL


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_another_c_library_is_left_alone(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: None) -> SimpleNamespace:
        if error is AttributeError:
            return SimpleNamespace()
        raise error

    monkeypatch.setattr(ctypes, "CDLL", load)
    give_back()
    with freed_memory_kept():
        pass
