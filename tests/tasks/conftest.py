"""The tokenizer of the checkpoint of a few words."""

from pathlib import Path

import pytest

from minibert.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return load_tokenizer(checkpoint)
