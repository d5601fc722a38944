"""The tokenizer of the checkpoint of a few words, and files of a few lines."""

from collections.abc import Callable
from pathlib import Path

import pytest

from minibert.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return load_tokenizer(checkpoint)


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a file: its path."""

    def write(name: str, content: str) -> Path:
        (tmp_path / name).write_text(content, encoding="utf-8")
        return tmp_path / name

    return write
