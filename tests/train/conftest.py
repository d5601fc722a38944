"""What the tests of training share: the files of runs of every kind."""

from pathlib import Path

import pytest
from support.training import write_home


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of write_home, for reading only."""
    return write_home(tmp_path_factory.mktemp("home"))
