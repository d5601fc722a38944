"""The certificate of a finished file, and what is shown of right functions."""

from pathlib import Path
from typing import Any

import pytest

import minibert
from minibert.checking.mistakes import GELU
from minibert.checking.shows import SHOWS, WIDTH
from minibert.checking.solution import RIGHT, WRONG, check_file
from minibert.utils.files import sha256


@pytest.fixture(autouse=True)
def weights(tmp_path: Path) -> None:
    """Where load_model of a written file looks for them."""
    (tmp_path / "weights").symlink_to(Path(__file__).parents[2] / "weights")


def test_each_right_function_that_has_something_to_show_shows_it_in_one_line(write: Any) -> None:
    found = {one.stage.function: one for one in check_file(write(), text="She closed the [MASK].")}
    assert {name for name, one in found.items() if one.shows} == SHOWS.keys()
    assert all(len(one.shows) <= WIDTH and one.shows.isprintable() for one in found.values())
    assert found["tokenize"].shows == "she · closed · the · [MASK] · ."
    assert "door 0." in found["predict_tokens"].shows
    assert found["word_pieces"].shows.endswith("unhappily → unhapp ##ily")
    assert "1.00" in found["layer_norm"].shows and "█" in found["gelu"].shows
    difference, gradient = found["layer_norm_backward"].shows.rpartition("difference ")[2].split(", by your gradient ")
    assert difference == gradient


def test_the_encoder_is_shown_at_work_before_the_tokenizer_is_written(write: Any) -> None:
    name = "def tokenize(text: str, vocabulary: dict[str, int]) -> list[str]:\n"
    path = write(name, f"{name}    raise NotImplementedError\n")
    assert "he reads " in check_file(path, "attention", "He opened the door.")[-1].shows


def test_what_is_shown_comes_from_the_functions_of_the_file(write: Any) -> None:
    right = check_file(write(), "gelu")[0].shows
    assert check_file(write(GELU, GELU.replace("x * (1", "(x + 0 * x) * (1")), "gelu")[0].shows == right
    wrong = check_file(write(GELU, "return x.clamp(min=0)"), "gelu")[0]
    assert (wrong.state, wrong.shows) == (WRONG, "")


@pytest.mark.parametrize(
    ("value", "shown"),
    [("raise SystemExit(3)", ""), ("return 10**7 * 'a'", "a" * WIDTH), (r"return '\x1b[2J\nx'", " [2J x")],
)
def test_a_text_that_is_shown_can_neither_fail_nor_fill_nor_steer_the_terminal(
    value: str, shown: str, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(*_: Any) -> str:
        names: dict[str, Any] = {}
        exec(f"def f():\n    {value}", names)
        return str(names["f"]())

    monkeypatch.setattr("minibert.checking.child.show", show)
    (verdict,) = check_file(write(), "gelu")
    assert (verdict.state, verdict.shows) == (RIGHT, shown)


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["import os; os._exit(0)", "while True: pass"])
def test_a_function_that_ends_or_never_ends_when_it_is_shown_keeps_its_verdict(
    ends: str, write: Any, own_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibert.checking.solution.LIMIT", 4.0)
    shown = f"if x.shape == (41,):\n        {ends}\n    {GELU}"  # as the numbers from -4 to 4
    found = {one.stage.function: one for one in check_file(write(GELU, shown), "feed_forward")}
    assert {one.state for one in found.values()} == {RIGHT}
    assert found["gelu"].shows == ""


@pytest.mark.slow
def test_a_finished_file_has_a_certificate_with_its_hash_and_its_numbers(write: Any, tmp_path: Path, run: Any) -> None:
    path = write("import json\n", "import json\nNAME = '<script>'\n", "{tokens[number]} {p:.2f}", "{NAME}{p:.2f}")
    out = run("check", path, "--certificate", tmp_path / "mine.html")
    page = (tmp_path / "mine.html").read_text("utf-8")
    assert "24 of 24 functions are right, 24 of them by hand" in page
    assert sha256(path) in page and sha256(path) in out
    assert "guess: &lt;script&gt;0.67" in page and "<script>" not in page
    assert "accuracy on 120 other texts 0." in page
    assert "train: loss of each step: " in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ((GELU, "raise NotImplementedError"), "not right yet: gelu, feed_forward"),
        (('print(f"loss', 'sys.exit("nothing today")\n    print(f"loss'), "classify failed: nothing today"),
        (('print("loss of each step:"', '("loss of each step:"'), "train failed: it prints nothing"),
    ],
)
def test_without_all_that_it_says_there_is_no_certificate_and_an_older_one_stays(
    edits: tuple[str, ...], said: str, write: Any, tmp_path: Path, run: Any
) -> None:
    out = tmp_path / "mine.html"
    out.write_text("older")
    assert "--overwrite" in run("check", write(), "--certificate", out, status=2)
    assert said in run("check", write(*edits), "--certificate", out, "--overwrite", status=2)
    assert out.read_text() == "older"


def test_a_text_without_a_mask_is_guessed_at_its_end(write: Any) -> None:
    report = minibert.check(write(), stage="predict_tokens", text="He closed the")
    assert "[MASK] is " in str(report)
