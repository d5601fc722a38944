"""The small tokenizers of every family, written once."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.models import minilm_folder
from support.tokenizers import WORDS, write_config, write_saved
from transformers import AutoTokenizer

from minibert.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A family's folder as transformers saves it, for reading only."""

    @cache
    def folder(family):
        path = tmp_path_factory.mktemp("tokenizers") / family
        return minilm_folder() if family == "bert" or write_saved(path, family) is None else path

    return folder


@pytest.fixture(scope="session")
def both(folders: Callable[[str], Path]) -> Callable[[str], tuple[Tokenizer, Any]]:
    """Our tokenizer and transformers', from the same folder."""
    return cache(lambda family: (load_tokenizer(folders(family)), AutoTokenizer.from_pretrained(folders(family))))


@pytest.fixture
def copied(folders: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A family's folder to be changed, in a model with room for more tokens; "words": BERT's with vocab.txt alone."""

    def copy(family):
        folder = tmp_path / family
        if family != "words":
            shutil.copytree(folders(family), folder)
        write_config(folder, "bert" if family == "words" else family, 1000)
        if family == "words":
            (folder / "vocab.txt").write_text("\n".join(WORDS))
        return folder

    return copy
