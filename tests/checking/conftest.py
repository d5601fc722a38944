"""For the tests of minibert check."""

import pytest


@pytest.fixture(autouse=True)
def short_search_for_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no mistake fits, pairs are tried for half a second only."""
    monkeypatch.setattr("minibert.checking.diagnosis.PAIRS", 0.5)
