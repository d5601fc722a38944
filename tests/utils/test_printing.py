"""Hints of what to install name what pip finds, from the folder where the user is; progress is a bar or lines."""

import importlib.metadata
import sys
from typing import Any

import numpy as np
import pytest
import tqdm

from minibert.utils import printing

REQUIRES = ["torch>=2.10", 'alpha<3,>=2; extra == "test"', 'numpy; extra == "test"', 'beta; extra == "bench"']
PIP = f"{sys.executable} -m pip install"


def test_in_a_checkout_the_hint_installs_the_extra_of_the_checkout():
    assert f'name = "{printing.DISTRIBUTION}"' in (printing.CHECKOUT / "pyproject.toml").read_text("utf-8")
    assert printing.install_hint("test") == f'{PIP} -e "{printing.CHECKOUT}[test]"'


def test_elsewhere_the_hint_names_the_packages_of_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(printing, "CHECKOUT", tmp_path)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: REQUIRES)
    assert printing.install_hint("test") == f'{PIP} "alpha<3,>=2" numpy'


def test_a_count_has_its_noun():
    found = [printing.counted(number, noun) for noun in ("row", "class", "query") for number in (0, 1, 2000)]
    assert found == [
        "0 rows",
        "1 row",
        "2,000 rows",
        "0 classes",
        "1 class",
        "2,000 classes",
        "0 queries",
        "1 query",
        "2,000 queries",
    ]


# ---------------------------------------------------------------------------------------------------------------
# Text that anyone may have written


def test_control_characters_are_escaped_as_in_python_and_letters_of_all_languages_stay():
    codes = [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
    for one in (*map(chr, codes), "\u2028", "\u2029", "\ud800"):
        assert printing.printable(f"a{one}b") == f"a{repr(one)[1:-1]}b"
    text = "café 中文 العربية हिन्दी 👨‍👩‍👧 נ\u200f a\u00adb \\x1b"
    assert printing.printable(text) == text
    assert printing.printable("a\tb\nc\r", keep="\t\n") == "a\tb\nc\\r"


def test_tables_and_reports_escape_and_cut_their_cells():
    lines = printing.table([["name", "n"], ["\x1b[2J\n", "1"], ["x" * 100_000, "2"]]).splitlines()
    assert len(lines) == 3 and lines[1].startswith("\\x1b[2J\\n")
    assert max(map(len, lines)) < printing.MOST
    block = printing.block("name", "\x9b" + "x" * 100_000)
    assert "\x9b" not in block and len(block) < printing.MOST


def test_a_value_in_an_error_shows_its_beginning_and_its_length():
    assert printing.brief("short") == "'short'"
    assert printing.brief("\x1b" * 100) == repr("\x1b" * 40) + "... (100 characters)"
    assert printing.brief(10**5000) == "a number of more than 80 digits"
    assert printing.brief([0] * 100) == "of type list"
    assert printing.brief(np.float64("nan")) == "nan"


# ---------------------------------------------------------------------------------------------------------------
# Progress


def show_progress(monkeypatch: pytest.MonkeyPatch, seconds: int, terminal: bool = False, **how: Any) -> None:
    """Five rows, each of which takes so many seconds of a clock."""
    clock = [0.0]
    monkeypatch.setattr(tqdm.std, "time", lambda: clock[0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    for _ in printing.progress_bar(range(5), "embed", unit="text", **how):
        clock[0] += seconds


def test_without_a_terminal_there_is_a_line_of_progress_a_minute(monkeypatch, capsys):
    show_progress(monkeypatch, 30)
    lines = capsys.readouterr().err.splitlines()
    assert [line[:35] for line in lines] == [
        "minibert: embed:  40% 2/5 [01:00<01",
        "minibert: embed:  80% 4/5 [02:00<00",
    ]
    show_progress(monkeypatch, 10)
    with tqdm.tqdm.external_write_mode():
        assert capsys.readouterr() == ("", "")


def test_on_a_terminal_there_is_a_bar_which_goes_at_the_end(monkeypatch, capsys):
    show_progress(monkeypatch, 3, terminal=True)
    text = capsys.readouterr().err
    assert "embed:  20%|" in text
    assert "\n" not in text
    assert text.endswith("\r")


def test_there_is_no_progress_where_none_is_wanted_and_in_other_processes_of_torchrun(monkeypatch, capsys):
    show_progress(monkeypatch, 100, show=False)
    monkeypatch.setenv("RANK", "1")
    show_progress(monkeypatch, 100)
    assert capsys.readouterr() == ("", "")
