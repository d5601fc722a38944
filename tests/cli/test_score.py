"""`minibert score`: a line a text, or the better text of two first; what has no score is refused with status 2."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.words import write_words_checkpoint

import minibert

Run = Any
TEXTS = ["the good film", "the film very very dull"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("masked"), head="masked-lm")


def lines_of(output: str) -> list[list[str]]:
    return [line.split("\t") for line in output.splitlines()]


def test_a_line_has_the_score_the_number_of_tokens_and_the_text(run, model):
    expected = [
        [f"{score:.4f}", str(len(text.split())), text] for score, text in zip(scores(model), TEXTS, strict=True)
    ]
    assert lines_of(run("score", *TEXTS, "--model", model)) == expected
    assert lines_of(run("score", "--model", model, *TEXTS)) == expected
    assert lines_of(run("score", "--model", model, stdin="\n".join(TEXTS).encode())) == expected


def scores(model: Path) -> list[float]:
    return minibert.score(TEXTS, model)


def test_the_score_of_each_token_is_printed_on_request(run, model):
    out = run("score", TEXTS[0], "--model", model, "--tokens", "--json").splitlines()
    [one] = minibert.score(TEXTS[:1], model, tokens=True)
    each = list(zip(one.tokens, one.log_probabilities, strict=True))
    assert out[1:-1] == [f"  {value:.4f}  {token}" for token, value in each]
    tokens = [{"token": token, "log_probability": value} for token, value in each]
    assert json.loads(out[-1])["scores"] == [
        {"score": one.score, "tokens": 3, "token_scores": tokens, "text": TEXTS[0]}
    ]


def test_of_pairs_the_better_text_comes_first(run, model, tmp_path):
    one, other = scores(model)
    assert one > other  # it has fewer tokens
    argv = ["score", "--pairs", "--model", model]
    expected = ["text", f"{one:.4f}", f"{other:.4f}", *TEXTS]
    assert lines_of(run(*argv, "\t".join(TEXTS))) == [expected]
    assert lines_of(run(*argv, "\t".join(TEXTS[::-1]))) == [["pair", *expected[1:]]]
    assert run(*argv, "\t".join(TEXTS[:1] * 2)).startswith("equal\t")
    (tmp_path / "in.csv").write_text(f"id,right,wrong\n7,{TEXTS[0]},{TEXTS[1]}\n")
    columns = ["--file", tmp_path / "in.csv", "--text", "right", "--pair", "wrong"]
    assert lines_of(run(*argv, *columns)) == [expected]
    run(*argv, *columns, "--out", tmp_path / "out.jsonl")
    found = json.loads((tmp_path / "out.jsonl").read_text())
    rest = {"better": "text", "tokens": 3, "pair_tokens": 5, "id": "7", "right": TEXTS[0], "wrong": TEXTS[1]}
    assert found == {**rest, "score": pytest.approx(one, abs=1e-4), "pair_score": pytest.approx(other, abs=1e-4)}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["a film", "--pairs"], r"row 0\b"),
        (["--file", "{folder}/in.csv", "--pairs"], "--pairs"),
        (["a film", "--text", "body"], r"--text .*--file"),
    ],
)
def test_what_has_no_score_is_refused(argv, message, run, model, tmp_path):
    (tmp_path / "in.csv").write_text("right,wrong\na,b\n")
    given = [argument.format(folder=tmp_path) for argument in argv]
    assert re.search(message, run("score", "--model", model, *given, status=2))
