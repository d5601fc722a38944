"""How a training went, as a picture: the loss of every step, and what was scored on dev after each epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minibert.files import atomic_write
from minibert.plotting import pyplot

LOSS, SCORE = "#0072B2", "#D55E00"  # blue and orange stay apart for every kind of colour blindness
STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
WINDOW = 0.05  # the share of the steps over which the thick line averages


def draw(runs: Sequence[Mapping[str, Any]], main: str, path: Path) -> None:
    """Draw runs of one task, each as training.json has it, into `path`; `main` names the score.

    Raises ImportError where matplotlib is missing, and ValueError for a file name that names no kind of picture.
    """
    plt = pyplot()
    check_kind(path)
    scored = any(run["epochs"] for run in runs)
    with plt.rc_context(STYLE), atomic_write(path) as temporary:
        figure, panels = plt.subplots(1, 2 if scored else 1, figsize=(8.5 if scored else 5, 3.2), layout="constrained")
        loss, *scores = np.atleast_1d(panels)
        for run in runs:
            curve = np.array(run["curve"])
            steps = np.arange(1, len(curve) + 1)
            loss.plot(steps, curve, color=LOSS, alpha=0.2, linewidth=0.7)
            loss.plot(steps, averaged(curve), color=LOSS, linewidth=1.6)
        loss.set(xlabel="step", title="loss of each step, and its average", ylim=(0, None))
        for axes in scores:
            for run in runs:
                points = [epoch[main] for epoch in run["epochs"]]
                axes.plot(range(1, len(points) + 1), points, color=SCORE, marker="o", markersize=4)
                best = run["best_epoch"]
                axes.plot(best, points[best - 1], color=SCORE, marker="o", markersize=9, fillstyle="none")
            axes.set_xticks(range(1, max(len(run["epochs"]) for run in runs) + 1))
            axes.set(xlabel="epoch", title=f"{main} on dev; the ring is kept")
        figure.savefig(temporary, dpi=140, format=path.suffix[1:], facecolor="white")
        plt.close(figure)


def check_kind(path: Path) -> None:
    """Raise ValueError for a picture whose name does not end in .png, .svg or .pdf."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"the picture is {path}; its name must end in .png, .svg or .pdf")


def averaged(curve: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Each value as the mean of those around it, fewer at the ends."""
    width = max(1, round(WINDOW * len(curve)))
    ones = np.ones(2 * width + 1)
    around, counts = (np.convolve(values, ones)[width:-width] for values in (curve, np.ones_like(curve)))
    mean: np.ndarray[Any, Any] = around / counts
    return mean
