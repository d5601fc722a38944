"""Self-attention on paper: scores, weights and the weighted sum of tokens in two dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from minibert.utils.plotting import heat_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Matrix = NDArray[np.float32]
ORANGE = "darkorange"


def draw_attention(tokens: Sequence[str], vectors: Matrix, scores: Matrix, weights: Matrix, shown: int) -> None:
    """Draw scores (S,S) and weights (S,S) as tables, and the weighted sum of the vectors (S,2) for one token.

    shown: the number of that token; its row is framed in both tables.
    """
    panels = plt.subplots(1, 3, figsize=(11.5, 3.3), layout="constrained", width_ratios=(1, 1, 2.6))[1]
    draw_table(panels[0], tokens, scores, "1. scores: query · key", shown)
    draw_table(panels[1], tokens, weights, "2. softmax: weights of a row", shown)
    draw_sum(panels[2], tokens, vectors, weights[shown], tokens[shown])


def draw_table(axes: Axes, tokens: Sequence[str], numbers: Matrix, title: str, shown: int) -> None:
    """Draw a matrix with its numbers; a frame marks one row."""
    limit = float(numbers.max())
    heat_map(numbers, tokens, tokens, axes=axes, limit=limit)
    axes.set_title(title, fontsize=10)
    axes.set(xlabel="key", ylabel="query")
    axes.tick_params(axis="x", rotation=0)
    for (row, column), number in np.ndenumerate(numbers):
        colour = "white" if number > 0.6 * limit else "black"
        axes.text(column, row, f"{number:.2f}", ha="center", va="center", color=colour)
    axes.add_patch(plt.Rectangle((-0.48, shown - 0.48), len(tokens) - 0.04, 0.96, fill=False, color=ORANGE, lw=2.5))


def draw_sum(axes: Axes, tokens: Sequence[str], vectors: Matrix, weights: Matrix, name: str) -> None:
    """Draw the vectors as grey arrows, their weighted parts tip to tail in blue, and the sum in orange."""
    start = np.zeros(2)
    for token, vector in zip(tokens, vectors, strict=True):
        draw_arrow(axes, start, vector, "silver", 1.5)
        label(axes, f"{token} ({vector[0]:g}, {vector[1]:g})", vector, (-6, 5), "right", "dimgrey")
    parts = list(zip(tokens, weights, weights[:, None] * vectors, strict=True))
    for (token, weight, part), offset in zip(reversed(parts), ((-6, 1), (0, 5), (9, -11)), strict=True):
        draw_arrow(axes, start, start + part, "steelblue", 2)
        side = "right" if offset[0] < 0 else "left" if offset[0] else "center"
        label(axes, f"{weight:.2f} · {token}", start + part / 2, offset, side, "steelblue")
        start = start + part
    draw_arrow(axes, np.zeros(2), start, ORANGE, 3)
    label(axes, f"new {name} ({start[0]:.2f}, {start[1]:.2f})", start, (5, 4), "left", "chocolate")
    axes.set_title(f"3. weighted sum for “{name}”", fontsize=10)
    axes.set(
        xlabel="number 0 of the vector",
        ylabel="number 1 of the vector",
        xlim=(-0.6, 2.6),
        ylim=(-0.15, 1.2),
        aspect="equal",
    )
    axes.grid(alpha=0.3)


def label(axes: Axes, text: str, place: Matrix, offset: tuple[int, int], side: str, colour: str) -> None:
    """Write beside a point, with an offset in points."""
    axes.annotate(text, place, offset, textcoords="offset points", ha=side, color=colour, fontsize=9)


def draw_arrow(axes: Axes, start: Matrix, end: Matrix, colour: str, width: float) -> None:
    """Draw one arrow from start to end."""
    shape = {"arrowstyle": "-|>", "color": colour, "lw": width, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 12}
    axes.annotate("", end, start, arrowprops=shape)
