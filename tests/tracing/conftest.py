"""Pages that compute, in a real browser."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.words import write_words_checkpoint

import minibert
from minibert.checkpoints.checkpoint import Checkpoint
from minibert.tracing.live import live
from minibert.tracing.page import page
from minibert.tracing.trace import model_for

READY = "document.querySelector('#status').textContent.includes('computed in')"
DESK = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}


def write_page(model: str | Path, file: Path, text: str = "the film very good", format: str = "bfloat16") -> str:
    """Write the page of a checkpoint; its address."""
    checkpoint = Checkpoint.open(model)
    loaded, tokenizer = model_for(checkpoint), minibert.load_tokenizer(model)
    traced = replace(minibert.trace(loaded, tokenizer, text), ablation=None)
    file.write_text(page(traced, live=live(loaded, tokenizer, traced, format)), encoding="utf-8")
    return file.as_uri()


@pytest.fixture(scope="module")
def live_address(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Callable[[str], str]:
    """The address of a page by the name of its checkpoint, written once."""
    folder, found = tmp_path_factory.mktemp("live"), {}
    write_words_checkpoint(folder / "words", head="masked-lm", max_position_embeddings=512, initializer_range=0.3)
    write_words_checkpoint(folder / "distil", "distilbert", max_position_embeddings=24, initializer_range=0.3)
    models = {"words": folder / "words", "distil": folder / "distil", "novels": "minibert-novels", "minilm": minilm}

    def call(name):
        if name not in found:
            found[name] = write_page(models[name], folder / f"{name}.html", format="float32")
        return found[name]

    return call


@pytest.fixture
def open_live(browser: Any, live_address: Callable[[str], str]) -> Iterator[Any]:
    """Open a page; at the end of the test nothing went wrong on it, and nothing but the file was requested."""
    pages, troubles = [], []

    def call(name="words", where="", before="", **settings):
        pages.append(opened := browser.new_page(**settings or DESK))
        url = live_address(name)
        opened.on("console", lambda message: troubles.append(message.text))
        opened.on("pageerror", lambda error: troubles.append(str(error)))
        own = (url, "blob:")
        opened.on("request", lambda request: request.url.startswith(own) or troubles.append(request.url))
        if before:
            opened.add_init_script(before)
        opened.goto(url + where)
        opened.wait_for_function(READY)
        return opened

    yield call
    for opened in pages:
        opened.close()
    assert troubles == []
