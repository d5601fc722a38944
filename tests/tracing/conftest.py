"""Pages in a real browser, and the small checkpoint that most of them are of."""

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


@pytest.fixture(scope="module")
def mlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of a few words with a masked language model's head, for up to 80 tokens."""
    return write_words_checkpoint(tmp_path_factory.mktemp("mlm"), head="masked-lm", max_position_embeddings=80)


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """Open a page; at the end of the test nothing went wrong on it, and nothing but the file was requested."""
    pages, troubles = [], []

    def call(address, before="", **settings):
        pages.append(opened := browser.new_page(**settings))
        own = (address.partition("#")[0], "blob:")
        opened.on("console", lambda message: troubles.append(message.text))
        opened.on("pageerror", lambda error: troubles.append(str(error)))
        opened.on("request", lambda request: request.url.startswith(own) or troubles.append(request.url))
        if before:
            opened.add_init_script(before)
        opened.goto(address)
        return opened

    yield call
    for opened in pages:
        opened.close()
    assert troubles == []


@pytest.fixture(scope="module")
def live_models(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> dict[str, str | Path]:
    """The checkpoints of the pages that compute, by name."""
    folder = tmp_path_factory.mktemp("live")
    write_words_checkpoint(folder / "words", head="masked-lm", max_position_embeddings=512, initializer_range=0.3)
    write_words_checkpoint(folder / "distil", "distilbert", max_position_embeddings=24, initializer_range=0.3)
    return {"words": folder / "words", "distil": folder / "distil", "novels": "minibert-novels", "minilm": minilm}


@pytest.fixture(scope="module")
def live_address(live_models: dict[str, str | Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The address of a page that computes by the name of its checkpoint, written once."""
    folder = tmp_path_factory.mktemp("pages")

    def call(name):
        file = folder / f"{name}.html"
        if not file.exists():
            model, tokenizer = model_for(Checkpoint.open(live_models[name])), minibert.load_tokenizer(live_models[name])
            traced = replace(minibert.trace(model, tokenizer, "the film very good"), ablation=None)
            file.write_text(page(traced, live=live(model, tokenizer, traced, "float32")), encoding="utf-8")
        return file.as_uri()

    return call


@pytest.fixture
def open_live(open_page: Any, live_address: Callable[[str], str]) -> Any:
    """Open a page that computes, and wait until it has."""

    def call(name="words", where="", before="", **settings):
        opened = open_page(live_address(name) + where, before, **settings or DESK)
        opened.wait_for_function(READY)
        return opened

    return call
