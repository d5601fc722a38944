"""A path that begins with ~ is in the home folder, in Python, on the command line and in environment variables."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.training import QUICK, write_home

import minibert
from minibert.storage import hub
from minibert.train.vocabulary import learn_vocabulary

TEXTS = ["the good film", "a dull film"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_home(tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True)
def home(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The home folder, with links to some files; nothing is written in the current one, where a folder ~ would be."""
    for path in files.iterdir():
        (tmp_path / path.name).symlink_to(path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(elsewhere)
    yield tmp_path
    assert not list(elsewhere.iterdir())


def test_python_reads_and_writes_in_the_home_folder(home, monkeypatch):
    model, tokenizer = minibert.load("~/classifier", head="sequence-classification"), minibert.load_tokenizer("~/words")
    assert minibert.predict("~/classifier", TEXTS) == model.predict(TEXTS)
    assert minibert.embed(TEXTS, model=Path("~/words")).shape == (2, 24)
    minibert.save(model, "~/copy", tokenizer)
    minibert.train.finetune("classify", "~/train.tsv", model="~/words", out="~/tuned", **QUICK, epochs=1)
    files = {"config": "~/small.json", "tokenizer": "~/words", "out": "~/pretrained"}
    minibert.train.pretrain("~/corpus.txt", **files, **QUICK, steps=2)
    learn_vocabulary(["~/corpus.txt"], 60).save("~/vocabulary")
    assert {"copy", "tuned", "pretrained", "vocabulary"} <= {path.name for path in home.iterdir()}
    monkeypatch.setenv("MINIBERT_WEIGHTS", "~")
    assert hub.locate("copy").folder == home / "copy"


def test_commands_read_and_write_in_the_home_folder(home, run):
    run("embed", "~/train.tsv", "--column", 1, "--model", "~/words", "--out=~/vectors.npy")
    run("classify", "train", "~/train.tsv", "--model", "~/words", "--out=~/frozen", "--folds", 0)
    run("predict", "~/frozen", "--file", "~/train.tsv", "--text", 1, "--out=~/found.jsonl")
    run("trace", TEXTS[0], "--model", "~/words", "--out=~/page.html")
    written = {"vectors.npy", "frozen", "frozen.features", "found.jsonl", "page.html"}
    assert written <= {path.name for path in home.iterdir()}
    assert json.loads((home / "found.jsonl").read_text().splitlines()[0])["label"]
