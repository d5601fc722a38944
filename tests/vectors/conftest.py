"""What the tests of vectors share: a checkpoint of a few words, to be read or to be changed, and a count of work."""

from pathlib import Path
from typing import Any

import pytest
from words import write_words_checkpoint

from minibert.vectors import features
from minibert.vectors.engine import Engine


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_words_checkpoint(tmp_path_factory.mktemp("words")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same checkpoint, for the test to change."""
    return write_words_checkpoint(tmp_path / "words")


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each call of the engine computes; TextFeatures begins with an empty cache."""
    counts: list[int] = []
    vectors = Engine.vectors

    def counting(self: Engine, ids: Any, *given: Any, **more: Any) -> Any:
        counts.append(len(ids))
        return vectors(self, ids, *given, **more)

    monkeypatch.setattr(Engine, "vectors", counting)
    monkeypatch.setattr(features, "MEMORY", features.MemoryRows())
    return counts
