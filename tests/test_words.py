"""The field's own words: names and phrases that minibert once had for things with a common name do not come back."""

import re
from pathlib import Path

import pytest
from notebooks import prose_of

ROOT = Path(__file__).parent.parent
SUFFIXES = (".py", ".html", ".js", ".md", ".ipynb")
FILES = [path for name in ("minibert", "tests", "tutorials", "weights") for path in (ROOT / name).rglob("*")]
FILES = [ROOT / "README.md", *(path for path in FILES if path.suffix in SUFFIXES)]
BANNED = re.compile(
    r"\bWorld\b(?!!)|\bALONE\b|\b(?:deals? out|dealt)\b|\bKeeper\b|asked\.json|Until all ranks"  # distributed training
    r"|\bTOGETHER\b|FILLED_FROM|\bunplaced\b|PermittedLinear|careful_layers|\bScratch\b|\bgive_back\b"  # kernels
    r"|WholeLinear|products of whole numbers|bears_int8|OneLabel|SeveralLabels|written_whole|without trust"
    r"|length of all gradients|how long Adam|\bto the bit\b|bits of the last place|\blast bits\b"
    r"|[Hh]idden (?:words|tokens)|[Cc]ommonest|\b[Ww]hoever\b|no whole number|such as it is"
)


def test_no_file_has_a_banned_word() -> None:
    assert len(FILES) > 200
    found = {path.relative_to(ROOT): BANNED.findall(prose_of(path)) for path in FILES if path != Path(__file__)}
    assert {path: words for path, words in found.items() if words} == {}


def test_plus_or_minus_is_a_standard_error_and_says_so() -> None:
    paths = sorted((ROOT / "minibert").rglob("*.py"))
    lines = [line.strip() for path in paths for line in path.read_text("utf-8").splitlines() if "±" in line]
    assert lines and [line for line in lines if "(standard error)" not in line] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The Keeper deals out rows to whoever asks; hidden words differ in the last bits.", 5),
        ("Hello, World! The world keeper gives back hidden states.", 0),
    ],
)
def test_a_banned_word_would_be_found(text: str, words: int) -> None:
    assert len(BANNED.findall(text)) == words
