"""`minibert trace` as a command: pages and pictures, figures, and requests that cannot be met."""

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from words import labelled, write_words_checkpoint

import minibert
from minibert.cli import main as cli
from minibert.tasks.frozen import Classifier, train
from minibert.tracing import command

TEXT = "the film very lovely it good"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `minibert trace` in an empty folder: status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    return lambda *argv: (cli.main(["trace", *map(str, argv)]), *capsys.readouterr())


def figures(out: str) -> Any:
    return json.loads(out.splitlines()[-1])


def test_the_page_of_a_text_is_written_and_its_figures_printed(run, checkpoint):
    options = ("--model", checkpoint, "--out", "page.html", "--layers", "1", "--heads", "0,2")
    status, out, error = run(TEXT, *options, "--json")
    assert (status, error) == (0, "")
    found, page = figures(out), Path("page.html").read_text(encoding="utf-8")
    assert found["bytes"] == len(page.encode()) and found["out"] == "page.html"
    assert found["tokens"] == ["[CLS]", "the", "film", "very", "lovely", "i", "##t", "good", "[SEP]"]
    assert (found["page_layers"], found["page_heads"]) == ([1], [0, 2])
    assert "this page has layers 1 of 0 to 1 (--layers chooses others); heads 0, 2 of 0 to 2" in " ".join(out.split())
    assert str(checkpoint) not in page and list(Path().iterdir()) == [Path("page.html")]  # the folder's name is enough
    assert figures(run("the film", "a book", "--model", checkpoint, "--json")[1])["segments"] == [0, 0, 0, 0, 1, 1, 1]


def test_a_masked_language_model_is_recognised_and_guesses(run, tmp_path):
    model = write_words_checkpoint(tmp_path / "model", "distilbert", head="masked-lm")
    (mask,) = figures(run("the [MASK] is", "--model", model, "--json")[1])["masks"]
    assert mask["place"] == 2 and len(mask["guesses"]) == 10


def test_the_pooler_stays_where_a_checkpoint_has_it_beside_the_head(tmp_path):
    write_words_checkpoint(tmp_path, head="pretraining")
    model = command.model_for(str(tmp_path))
    traced = minibert.trace(model, minibert.load_tokenizer(tmp_path), "the [MASK]")
    assert traced.pooled is not None and len(traced.predictions) == 1


def test_a_classifier_brings_its_own_model_and_decides(run, checkpoint, tmp_path):
    train(*labelled(), model=str(checkpoint), folds=0, pooling="mean").save(tmp_path / "saved")
    found = figures(run("the film very good", "--classifier", tmp_path / "saved", "--json")[1])
    (expected,) = Classifier.load(tmp_path / "saved").predict_proba(["the film very good"])
    assert found["model"] == str(checkpoint) and list(found["probabilities"]) == ["neg", "pos"]
    assert list(found["probabilities"].values()) == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("head", ["0", "mean", "rollout"])
def test_pictures_show_the_attention_of_the_layer_and_head(head, run, checkpoint, monkeypatch):
    pytest.importorskip("matplotlib", reason="needs matplotlib, of the extra tutorials")
    drawn = Mock(wraps=command.heat_map)
    monkeypatch.setattr(command, "heat_map", drawn)
    options = ("--png", "a.png", "--svg", "a.svg", "--layer", 0, "--head", head, "--words", "--json")
    status, out, error = run(f"{TEXT} $ $", "--model", checkpoint, *options)  # matplotlib must read no formula
    assert (status, error, figures(out)["pictures"]) == (0, "", ["a.png", "a.svg"])
    assert Path("a.png").read_bytes().startswith(b"\x89PNG") and "<svg" in Path("a.svg").read_text(encoding="utf-8")
    traced = minibert.trace(minibert.load(checkpoint), minibert.load_tokenizer(checkpoint), f"{TEXT} $ $")
    (matrix, rows, columns), more = drawn.call_args
    assert np.array_equal(matrix, traced.attention(0, head, merge=True).numpy())
    assert rows == columns == ["[CLS]", "the", "film", "very", "lovely", "it", "good", r"\$", r"\$", "[SEP]"]
    assert more["title"] == f"layer 0, {'head 0' if head == '0' else head}"


def test_annotated_pages_are_linked_where_make_annotated_put_them(run, checkpoint, tmp_path):
    def linked(page: str, *options: str) -> list[str]:
        run(TEXT, "--model", checkpoint, "--out", page, *options)
        return re.findall(r'href="([^"]*model.html)#L', Path(page).read_text(encoding="utf-8"))[:1]

    assert linked("plain.html") == []
    (tmp_path / "build/annotated").mkdir(parents=True)
    Path("build/annotated/model.html").touch()
    assert linked("build/page.html") == ["annotated/model.html"]
    assert linked("page.html", "--annotated", "build/annotated") == ["build/annotated/model.html"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "there is nothing to write; add --out FILE.html, --png FILE.png or --svg FILE.svg"),
        (["--out", "page.txt"], "page.txt must be a file that ends in .html"),
        (["--png", "page.svg"], "page.svg must be a file that ends in .png"),
        (["--out", "none/page.html"], "none/page.html cannot be written: there is no folder none"),
        (["--out", "a.html", "--layers", "2"], "layers are [2]; name at least one of the model's layers, 0 to 1"),
        (["--svg", "a.svg", "--layer", "2"], "layer is 2 and head is mean; there are layers 0 to 1, -1 for the last"),
        (["--out", "a.html", "--annotated", "none"], "--annotated is none, which has no model.html"),
        (["--out", "a.html", "--truncation", "cut"], "truncation is 'cut'"),
        (["--out", "a.html", "--classifier", "none"], "checkpoint none is no folder"),
    ],
)
def test_a_request_that_cannot_be_met_is_answered_in_one_line(options, message, run, checkpoint):
    status, _, error = run(TEXT, "--model", checkpoint, *options)
    assert status == 2
    assert message in error and error.count("\n") == 1
    assert not list(Path().iterdir())
