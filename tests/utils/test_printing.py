"""Hints of what to install name what pip finds, from the folder where the user is; progress is a bar or lines."""

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import pytest
import tqdm

from minibert.utils import printing

REQUIRES = ["torch>=2.10", 'alpha<3,>=2; extra == "test"', 'numpy; extra == "test"', 'beta; extra == "bench"']
PIP = f"{sys.executable} -m pip install"


def test_in_a_checkout_the_hint_installs_the_extra_of_the_checkout() -> None:
    assert f'name = "{printing.DISTRIBUTION}"' in (printing.CHECKOUT / "pyproject.toml").read_text("utf-8")
    assert printing.install_hint("test") == f'{PIP} -e "{printing.CHECKOUT}[test]"'


def test_elsewhere_the_hint_names_the_packages_of_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "CHECKOUT", tmp_path)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: REQUIRES)
    assert printing.install_hint("test") == f'{PIP} "alpha<3,>=2" numpy'


# ---------------------------------------------------------------------------------------------------------------
# Progress


def show_progress(monkeypatch: pytest.MonkeyPatch, seconds: int, terminal: bool = False, **how: Any) -> None:
    """Five rows, each of which takes so many seconds of a clock."""
    clock = [0.0]
    monkeypatch.setattr(tqdm.std, "time", lambda: clock[0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    for _ in printing.progress_bar(range(5), "embed", unit="text", **how):
        clock[0] += seconds


def test_without_a_terminal_there_is_a_line_of_progress_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show_progress(monkeypatch, 30)
    lines = capsys.readouterr().err.splitlines()
    assert [line[:35] for line in lines] == [
        "minibert: embed:  40% 2/5 [01:00<01",
        "minibert: embed:  80% 4/5 [02:00<00",
    ]
    show_progress(monkeypatch, 10)
    with tqdm.tqdm.external_write_mode():
        assert capsys.readouterr() == ("", "")


def test_on_a_terminal_there_is_a_bar_which_goes_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show_progress(monkeypatch, 3, terminal=True)
    text = capsys.readouterr().err
    assert "embed:  20%|" in text
    assert "\n" not in text
    assert text.endswith("\r")


def test_there_is_no_progress_where_none_is_wanted_and_in_other_processes_of_torchrun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show_progress(monkeypatch, 100, show=False)
    monkeypatch.setenv("RANK", "1")
    show_progress(monkeypatch, 100)
    assert capsys.readouterr() == ("", "")
