"""The small tokenizers of every family, written once."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers import minilm_folder
from small_tokenizers import write_saved
from transformers import AutoTokenizer

from minibert.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A family's folder as transformers saves it, for reading only."""

    @cache
    def folder(family: str) -> Path:
        path = tmp_path_factory.mktemp("tokenizers") / family
        return minilm_folder() if family == "bert" or write_saved(path, family) is None else path

    return folder


@pytest.fixture(scope="session")
def both(folders: Callable[[str], Path]) -> Callable[[str], tuple[Tokenizer, Any]]:
    """Our tokenizer and transformers', from the same folder."""
    return cache(lambda family: (load_tokenizer(folders(family)), AutoTokenizer.from_pretrained(folders(family))))
