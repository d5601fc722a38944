"""What the tests of vectors share: a count of what is computed."""

import pytest

from minibert.vectors import features
from minibert.vectors.engine import Engine


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each call of the engine computes; TextFeatures begins with an empty cache."""
    counts = []
    vectors = Engine.vectors

    def counting(self, ids, *given, **more):
        counts.append(len(ids))
        return vectors(self, ids, *given, **more)

    monkeypatch.setattr(Engine, "vectors", counting)
    monkeypatch.setattr(features, "MEMORY", features.MemoryRows())
    return counts
