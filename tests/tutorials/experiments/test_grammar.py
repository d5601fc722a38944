"""Grammar: each paradigm is measured by itself, a tie is wrong, and published losses are made in another way."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grammar
import pytest
import transformers
from grammar import Accuracy
from support.words import write_words_checkpoint

import minibert
from minibert.tasks.scoring import Scorer

PARADIGMS = {
    "first": [("the film film", "the good film"), ("good", "good"), ("a dull play very", "a dull play")],
    "second": [("very the", "the very the")],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_words_checkpoint(tmp_path_factory.mktemp("masked"), head="masked-lm")
    transformers.BertTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    (tmp_path / "pairs").mkdir()
    for name, each in PARADIGMS.items():
        lines = [f"{wrong}\n{right}\n" for wrong, right in each]
        (tmp_path / "pairs" / f"{name}.txt").write_text("".join(lines))
    return tmp_path / "pairs"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[str, Any]:
    assert grammar.main([*map(str, arguments), "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    return "\n".join(lines), json.loads(last)


def test_accuracy_and_standard_error_of_each_paradigm_and_of_their_mean_where_a_tie_is_wrong() -> None:
    scores = {"a": -3.0, "b": -2.0, "c": -2.0, "d": -1.0}
    paradigms = {"one": [("a", "b"), ("b", "c"), ("d", "a"), ("c", "d")], "two": [("a", "d")] * 4}
    found = grammar.measure(paradigms, scores)
    assert found["one"] == Accuracy(0.5, standard_error=0.25, pairs=4)
    assert found["two"] == Accuracy(1.0, standard_error=0.0, pairs=4)
    assert found["mean"] == Accuracy(0.75, standard_error=0.125, pairs=8)
    reversed_pairs = {name: [pair[::-1] for pair in each] for name, each in paradigms.items()}
    assert grammar.measure(reversed_pairs, scores)["mean"].accuracy == 0.125  # the tie is wrong in both


@pytest.mark.slow
def test_the_command_prints_what_the_scores_say_beside_a_plain_loop_with_transformers(
    model: Path, pairs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, figures = run(capsys, pairs, "--model", model, "--plain")
    for name, each in PARADIGMS.items():
        right = [b > a for a, b in (minibert.score(pair, model) for pair in each)]
        assert figures["accuracy"][name]["accuracy"] == pytest.approx(sum(right) / len(right))
    assert "mean" in text and "8 sentences in" in text and figures["sentences"] == 8
    assert figures["plain_difference"] < 1e-4 and figures["plain_seconds"] > 0 and 0 < figures["roofline"] < 1

    class Unmasked(Scorer):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings | {"masked": False})

    monkeypatch.setattr(grammar, "Scorer", Unmasked)
    assert run(capsys, pairs, "--model", model, "--plain")[1]["plain_difference"] > 1e-2


def test_a_sample_of_the_pairs_is_always_the_same(pairs: Path) -> None:
    whole, first, same = (grammar.read_pairs(pairs, count) for count in (None, 2, 2))
    assert first == same
    assert [len(first[name]) for name in PARADIGMS] == [2, 1]
    assert {name: sorted(each) for name, each in whole.items()} == {n: sorted(each) for n, each in PARADIGMS.items()}
    assert all(set(first[name]) <= set(whole[name]) for name in PARADIGMS)


def write_published(folder: Path, model: Path, sentences: Sequence[str], more: float = 0.0) -> Path:
    """Losses as phueb/Zorro keeps them: the mean over all tokens, none of them masked, with four digits."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(model).eval()
    lines = []
    for sentence in sentences:
        ids = tokenizer(sentence, return_tensors="pt").input_ids
        lines.append(f"{sentence} {theirs(ids, labels=ids).loss.item() + more:.4f}\n")
    (folder / "saves").mkdir(parents=True)
    (folder / "saves" / "probing_first_results_260000.txt").write_text("".join(lines))
    return folder


@pytest.mark.slow
def test_published_losses_are_compared_with_those_made_without_masks(
    model: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentences = [sentence for each in PARADIGMS.values() for pair in each for sentence in pair]
    published = write_published(tmp_path / "published", model, sentences)
    text, figures = run(capsys, pairs, "--model", model, "--published", published)
    assert figures["published_difference"] < 2e-4
    assert f"mean accuracy {figures['published']['mean']['accuracy']:.4f}" in " ".join(text.split())
    other = write_published(tmp_path / "other", model, sentences, more=0.5)
    assert run(capsys, pairs, "--model", model, "--published", other)[1]["published_difference"] > 0.49


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({"first.txt": "a\nb\nc\n"}, [], r"first.txt .*3 lines"),
        ({"first.txt": "a\n\n"}, [], "no line may be empty"),
        ({"first.txt": ""}, [], r"first.txt .*0 lines"),
        ({"first.txt": "a\n[MASK]\n"}, [], r"row 1\b"),
        ({}, ["--pairs", "0"], r"--pairs is 0.* 1\b"),
        ({}, ["--published", "{folder}"], "published"),
        ({"x_results_1.txt": "good 1.0\nfilm 2.0\n"}, ["--published", "{folder}"], "published"),
        ({}, ["--model", "{folder}"], "config.json"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    change: dict[str, str],
    arguments: list[str],
    message: str,
    model: Path,
    pairs: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, content in change.items():
        (pairs / name).write_text(content)
    with pytest.raises(SystemExit, match="2"):
        grammar.main([str(pairs), "--model", str(model), *(one.format(folder=pairs) for one in arguments)])
    assert re.search(message, " ".join(capsys.readouterr().err.split()))
