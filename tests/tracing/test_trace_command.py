"""`minibert trace` as a command: pages and pictures, figures, and requests that cannot be met."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from words import labelled, write_words_checkpoint

import minibert
from minibert.cli import main as cli
from minibert.printing import install_hint
from minibert.tasks.frozen import Classifier, train
from minibert.tracing import command

TEXT = "the film very lovely it good"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("masked")
    return write_words_checkpoint(folder, "distilbert", head="masked-lm")


@pytest.fixture(scope="module")
def classifier(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts, labels = labelled()
    folder = tmp_path_factory.mktemp("classifier")
    train(texts, labels, model=str(checkpoint), folds=0, pooling="mean").save(folder)
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `minibert trace` in an empty folder: status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*argv: object) -> tuple[int, str, str]:
        try:
            status = cli.main(["trace", *map(str, argv)])
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capsys.readouterr()

    return call


def figures(out: str) -> Any:
    return json.loads(out.splitlines()[-1])


def test_the_page_of_a_text_is_written_and_its_figures_printed(run, checkpoint):
    status, out, error = run(TEXT, "--model", checkpoint, "--out", "page.html", "--json")
    assert (status, error) == (0, "")
    found = figures(out)
    page = Path("page.html").read_text(encoding="utf-8")
    assert found["bytes"] == len(page.encode()) and found["out"] == "page.html"
    assert found["tokens"] == ["[CLS]", "the", "film", "very", "lovely", "i", "##t", "good", "[SEP]"]
    assert found["page_layers"] == [0, 1] and found["page_heads"] == [0, 1, 2]
    assert str(checkpoint) not in page  # the folder's name is enough
    assert list(Path().iterdir()) == [Path("page.html")]


def test_a_pair_is_traced(run, checkpoint):
    status, out, _ = run("the film", "a book", "--model", checkpoint, "--out", "page.html", "--json")
    assert status == 0
    assert figures(out)["segments"] == [0, 0, 0, 0, 1, 1, 1]


def test_a_masked_language_model_is_recognised_and_guesses(run, masked):
    status, out, _ = run("the [MASK] is", "--model", masked, "--out", "page.html", "--json")
    assert status == 0
    (mask,) = figures(out)["masks"]
    assert mask["place"] == 2 and len(mask["guesses"]) == 10
    assert 'id="mask"' in Path("page.html").read_text(encoding="utf-8")


def test_the_pooler_stays_where_a_checkpoint_has_it_beside_the_head(tmp_path):
    write_words_checkpoint(tmp_path, head="pretraining")
    model = command.model_for(str(tmp_path))
    traced = minibert.trace(model, minibert.load_tokenizer(tmp_path), "the [MASK]")
    assert traced.pooled is not None and len(traced.predictions) == 1


def test_a_classifier_brings_its_own_model_and_decides(run, classifier, checkpoint):
    status, out, _ = run("the film very good", "--classifier", classifier, "--out", "page.html", "--json")
    assert status == 0
    found = figures(out)
    assert found["model"] == str(checkpoint)
    saved = Classifier.load(classifier)
    predicted = dict(zip(saved.labels, saved.predict_proba(["the film very good"])[0].tolist(), strict=True))
    assert found["probabilities"] == pytest.approx(predicted, abs=1e-5)
    assert 'id="classifier"' in Path("page.html").read_text(encoding="utf-8")


def test_layers_and_heads_of_the_page_can_be_chosen(run, checkpoint):
    status, out, _ = run(TEXT, "--model", checkpoint, "--out", "page.html", "--layers", "1", "--heads", "0,2", "--json")
    assert status == 0
    assert (figures(out)["page_layers"], figures(out)["page_heads"]) == ([1], [0, 2])
    assert "this page has layers 1 of 0 to 1 (--layers chooses others); heads 0, 2 of 0 to 2" in " ".join(out.split())


@pytest.mark.parametrize("head", ["0", "mean", "rollout"])
def test_pictures_show_the_attention_of_the_layer_and_head(head, run, checkpoint, monkeypatch):
    pytest.importorskip("matplotlib", reason="needs matplotlib, of the extra tutorials")
    drawn: list[Any] = []
    heat_map = command.heat_map
    monkeypatch.setattr(
        command, "heat_map", lambda *args, **more: drawn.append((args, more)) or heat_map(*args, **more)
    )
    status, out, error = run(
        TEXT,
        "--model",
        checkpoint,
        "--png",
        "a.png",
        "--svg",
        "a.svg",
        "--layer",
        "0",
        "--head",
        head,
        "--words",
        "--json",
    )
    assert (status, error) == (0, "")
    assert Path("a.png").read_bytes().startswith(b"\x89PNG") and "<svg" in Path("a.svg").read_text(encoding="utf-8")
    assert figures(out)["pictures"] == ["a.png", "a.svg"]
    traced = minibert.trace(minibert.load(checkpoint), minibert.load_tokenizer(checkpoint), TEXT)
    (matrix, rows, columns), more = drawn[0]
    expected = traced.attention(0, head if head in ("mean", "rollout") else int(head), merge=True)
    assert np.array_equal(matrix, expected.numpy())
    assert rows == columns == ["[CLS]", "the", "film", "very", "lovely", "it", "good", "[SEP]"]
    assert more["title"] == f"layer 0, {'head 0' if head == '0' else head}"


def test_a_dollar_in_the_text_is_no_formula(run, tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib, of the extra tutorials")
    write_words_checkpoint(tmp_path / "model", vocab_size=100)
    with (tmp_path / "model" / "vocab.txt").open("a", encoding="utf-8") as vocabulary:
        vocabulary.write("$\n")
    assert run("$ a $", "--model", tmp_path / "model", "--svg", tmp_path / "a.svg")[0] == 0


def test_pictures_without_matplotlib_name_the_way_to_get_it(run, checkpoint, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, _, error = run(TEXT, "--model", checkpoint, "--png", "a.png")
    assert status == 1
    assert f"pictures need matplotlib: {install_hint('tutorials')}" in error


def test_annotated_pages_are_linked_where_make_annotated_put_them(run, checkpoint):
    run(TEXT, "--model", checkpoint, "--out", "page.html")
    assert "annotated/model.html" not in Path("page.html").read_text(encoding="utf-8")
    Path("build/annotated").mkdir(parents=True)
    Path("build/annotated/model.html").touch()
    Path("pages").mkdir()
    run(TEXT, "--model", checkpoint, "--out", "pages/page.html")
    assert 'href="../build/annotated/model.html#L' in Path("pages/page.html").read_text(encoding="utf-8")
    run(TEXT, "--model", checkpoint, "--out", "page.html", "--annotated", "build/annotated", "--overwrite")
    assert 'href="build/annotated/model.html#L' in Path("page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "options, said",
    [
        ([], "there is nothing to write; add --out FILE.html, --png FILE.png or --svg FILE.svg"),
        (["--out", "page.txt"], "page.txt must be a file that ends in .html"),
        (["--png", "page.svg"], "page.svg must be a file that ends in .png"),
        (["--out", "none/page.html"], "none/page.html cannot be written: there is no folder none"),
        (["--out", "a.html", "--layers", "2"], "layers are [2]; name at least one of the model's layers, 0 to 1"),
        (["--out", "a.html", "--heads", "3"], "heads are [3]; name at least one of the model's heads, 0 to 2"),
        (["--out", "a.html", "--heads", "x"], "argument --heads: invalid integers value: 'x'"),
        (["--svg", "a.svg", "--layer", "2"], "layer is 2 and head is mean; there are layers 0 to 1, -1 for the last"),
        (["--svg", "a.svg", "--head", "best"], "head is best"),
        (["--out", "a.html", "--annotated", "none"], "--annotated is none, which has no model.html"),
        (["--out", "a.html", "--truncation", "cut"], "truncation is 'cut'"),
        (["--out", "a.html", "--classifier", "none"], "none holds no classifier"),
    ],
)
def test_a_request_that_cannot_be_met_is_answered_in_one_line(options, said, run, checkpoint):
    status, _, error = run(TEXT, "--model", checkpoint, *options)
    assert status == 2
    assert said in error and error.count("\n") == 1
    assert not list(Path().iterdir())
