"""The picture of a training: its average is right, and all that a run has is drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minibert.train import curve

RUN = {"curve": [3.0, 2.0, 1.0, 2.0], "epochs": [{"f1": 0.5}, {"f1": 0.7}, {"f1": 0.6}], "best_epoch": 2}


def test_the_average_keeps_a_constant_and_a_line() -> None:
    assert np.allclose(curve.averaged(np.full(50, 3.0)), 3.0)
    line = np.arange(100.0)
    assert np.allclose(curve.averaged(line)[10:-10], line[10:-10])
    assert len(curve.averaged(np.array([1.0]))) == 1


def test_an_average_evens_out_what_jumps() -> None:
    jumping = np.tile([0.0, 2.0], 100)
    assert np.abs(curve.averaged(jumping)[20:-20] - 1).max() < 0.1


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_runs_are_drawn_with_and_without_scores(kind: str, tmp_path: Path) -> None:
    for name, run in {"scored": RUN, "blind": RUN | {"epochs": []}}.items():
        curve.draw([run, run], "f1", tmp_path / f"{name}.{kind}")
        assert (tmp_path / f"{name}.{kind}").stat().st_size > 1000
    assert len(list(tmp_path.iterdir())) == 2


def test_a_name_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in \.png, \.svg or \.pdf"):
        curve.draw([RUN], "f1", tmp_path / "curve.txt")
