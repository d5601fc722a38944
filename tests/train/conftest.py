"""What the tests of training share: the files of runs of every kind, and models to train."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.training import write_home

import minibert
from minibert.families.bert import BERT
from minibert.heads import Head


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of write_home, for reading only."""
    return write_home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def made(written: Callable[..., tuple[Path, Any]]) -> Callable[..., Head]:
    """A random model by family, task head and sizes, the same each time, in eval mode, for the test to change."""
    return lambda family=BERT, head="sequence-classification", **sizes: minibert.load(
        written(family, head, **sizes)[0], head=head
    )
