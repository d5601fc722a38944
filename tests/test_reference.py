"""BERT in one file: it runs by itself, with no other file of minibert, and README shows what it prints."""

import ast
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from minibert import reference

FILE = Path(reference.__file__)
README = (FILE.parents[1] / "README.md").read_text("utf-8")
DOOR = ("guess", "He opened the [MASK] and went in.")
TRAIN = "text\tlabel\n" + "".join(f"a {word} film\t{word}\n" for word in ("good", "bad") * 6)

Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the file as a program, and return what it prints."""

    def run(*arguments: str, file: Path = FILE) -> str:
        monkeypatch.setattr(sys, "argv", [str(file), *arguments])
        runpy.run_path(str(file), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_it_imports_nothing_but_torch_and_the_standard_library() -> None:
    nodes = list(ast.walk(ast.parse(FILE.read_text("utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"torch"}


def test_readme_shows_what_it_guesses(run: Run) -> None:
    printed = run(*DOOR).strip()
    assert printed.startswith("door 0.67, ") and printed.count(",") == 4
    readme = " ".join(README.split())
    assert f'python -m minibert.reference {DOOR[0]} "{DOOR[1]}"' in readme and f"`{printed}`" in readme


def test_each_mask_is_guessed(run: Run) -> None:
    assert len(run("guess", "[MASK] opened the [MASK].").splitlines()) == 2


def test_it_classifies(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(TRAIN)
    assert "accuracy on 12 other texts 1.000" in run("classify", *[str(tmp_path / "train.tsv")] * 2)


def test_it_trains(run: Run) -> None:
    printed = run("train", "He opened the door and went in.", "She closed the window and went to the door.")
    losses = [float(loss) for loss in printed.split(":")[1].split()]
    assert len(losses) == 8 and losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "usage: guess"),
        (("guess",), "usage: guess"),
        (("train",), "usage: guess"),
        (("guess", "no gap"), r"no \[MASK\]"),
        (("guess", "word " * 200 + "[MASK]"), r"no \[MASK\] in its first 126 tokens"),
        (("train", ""), "no token was chosen"),
        (("classify", "none.tsv", "train.tsv"), "none.tsv"),
        (("classify", "train.tsv", "other.tsv"), r"other\.tsv some of them"),
        (("classify", "other.tsv", "train.tsv"), r"other\.tsv needs two labels"),
    ],
)
def test_what_it_cannot_run_it_says_in_one_line(
    arguments: tuple[str, ...], said: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.tsv").write_text(TRAIN)
    (tmp_path / "other.tsv").write_text("text\tlabel\na fine film\tfine\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=said) as ended:
        run(*arguments)
    assert str(ended.value).count("\n") == 0


def test_away_from_a_checkout_it_says_which_folder_it_needs(run: Run, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="weights/minibert-novels"):
        run(*DOOR, file=Path(shutil.copy(FILE, tmp_path / "my_bert.py")))
