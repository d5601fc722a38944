"""For the tests of the experiments."""

import gzip
from pathlib import Path

import pytest

SENTENCES = ["The old boat was slow.", "She never saw the harbour again.", "No one spoke of the storm.", ""] * 400


@pytest.fixture
def data(tmp_path):
    """A corpus of a few sentences, where the novels would be."""
    folder: Path = tmp_path / "novels"
    folder.mkdir()
    text = "\n".join(SENTENCES).encode()
    (folder / "train.txt.gz").write_bytes(gzip.compress(text))
    (folder / "heldout.txt").write_bytes(text[:2000])
    return folder
