"""`minibert parity` says how long it will take, and when it is interrupted what it has found until then."""

from __future__ import annotations

from pathlib import Path

import pytest

from minibert.cli import main as cli
from minibert.parity import command
from minibert.parity.checkpoints import BERT_BASE, DISTILBERT_BASE, RELATIVES, TINY
from minibert.parity.command import Climb, Report, expected, in_words_of_time, ladders, probe
from minibert.parity.ladder import climb_random


def test_the_estimate_grows_with_the_parameters_and_with_the_slowness_of_the_machine() -> None:
    small, large = (Climb(millions, lambda: None) for millions in (1, 100))  # type: ignore[arg-type, return-value]  # never run
    assert expected([small], 0.03) < expected([large], 0.03)
    assert expected([small, large], 0.06) == pytest.approx(2 * expected([small, large], 0.03))


def test_sizes_are_counted_in_millions_of_parameters() -> None:
    assert BERT_BASE.millions == pytest.approx(109.5, abs=0.1)
    assert DISTILBERT_BASE.millions == pytest.approx(66.4, abs=0.1)
    assert all(0 < size.millions < 0.1 for size in TINY)
    assert len(ladders(None, full=False)) == len(TINY) + 3
    assert len(ladders(None, full=True)) == len(TINY) + 3 + len(RELATIVES) + 1


def test_the_probe_takes_a_moment_and_the_words_have_no_false_digits() -> None:
    assert 0 < probe() < 60
    assert [in_words_of_time(seconds) for seconds in (3, 68, 200)] == ["10 s", "70 s", "3 minutes"]


def test_an_interrupt_shows_what_was_compared_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    climbs = [Climb(0.01, lambda: climb_random(TINY[1])), Climb(0.01, interrupted)]  # type: ignore[arg-type]  # never returns
    monkeypatch.setattr(command, "ladders", lambda model, full: climbs)
    assert cli.main(["parity"]) == 130
    printed = capsys.readouterr().out
    assert "on this machine" in printed
    assert "compared until then, 1 checkpoints" in printed
    assert "tensors bit-identical" in printed


def test_an_interrupt_before_the_first_checkpoint_says_that_nothing_was_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(report: Report, climbs: list[Climb]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "show", interrupted)
    assert cli.main(["parity"]) == 130
    assert "nothing compared" in capsys.readouterr().out
