"""A checkpoint of a few words, written once, and its tokenizer."""

from pathlib import Path

import pytest
from words import write_words_checkpoint

from minibert.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="session")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return load_tokenizer(checkpoint)
