"""The one picture of the tutorials that is no heat map: the cube of hidden states, with the slice of [CLS]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Matrix = NDArray[np.float32]
Vector = NDArray[np.float64]  # a point or a direction of the picture: x, y
DEPTH = np.array([-3.4, 2.4])  # the way to the back
ORANGE = "darkorange"


def draw_cube(cube: Matrix, mask: NDArray[np.int64], tokens: Sequence[str], hidden: int) -> None:
    """Draw hidden states (B,S,D) as a cube, and its slice of [CLS] beside it, turned to the front.

    In front hidden unit 0 with padding in grey (mask (B,S), 0 for padding), on top the first text, whose tokens are
    named, on the left [CLS] of every text. hidden: how many of the D units are drawn.
    """
    (B, S, D), numbers = cube.shape, cube[:, :, :hidden]
    limit = float(np.quantile(np.abs(numbers), 0.98))
    corner, along, below = np.array([0.0, B]), np.array([float(S), 0.0]), np.array([0.0, -float(B)])
    back, token = corner + DEPTH, along / S
    axes = plt.subplots(figsize=(9.6, 4.0), layout="constrained")[1]

    face(axes, np.ma.masked_array(numbers[:, :, 0], mask == 0), corner, along, below, limit)
    face(axes, numbers[0, :, ::-1].T, back, along, -DEPTH, limit)
    face(axes, numbers[:, 0, ::-1], back, -DEPTH, below, limit)
    outline(axes, back, corner, corner + below, back + below)
    outline(axes, back, back + token, corner + token, corner)
    outline(axes, corner, corner + token, corner + token + below, corner + below)

    left, wide = np.array([S + 4.4, B]), np.array([7.0, 0.0])  # the slice, pulled out
    face(axes, numbers[:, 0], left, wide, below, limit)
    outline(axes, left, left + wide, left + wide + below, left + below)
    axes.annotate("", (S + 4.1, B / 2), (S + 2.5, B / 2), arrowprops={"arrowstyle": "->", "color": ORANGE})

    for b in range(B):
        axes.text(S + 0.3, B - 0.5 - b, f"text {b}", ha="left", va="center", fontsize=8)  # level with both its rows
    for s, name in enumerate(tokens):
        axes.text(back[0] + s + 0.5, back[1] + 0.15, name, ha="left", va="bottom", fontsize=7, rotation=45)
    axes.text(S / 2, -0.3, f"last_hidden_state {cube.shape}", ha="center", va="top")
    axes.text(left[0] + 3.5, -0.3, f"last_hidden_state[:, 0] {(B, D)}", ha="center", va="top")
    axes.text(DEPTH[0] / 2 - 0.2, 0.8, f"hidden\n(first {hidden} of {D})", ha="right", va="center", fontsize=8)
    axes.text(left[0] + 3.5, B + 0.2, f"hidden (first {hidden} of {D})", ha="center", fontsize=8)
    axes.set(xlim=(-5.6, S + 12.0), ylim=(-0.9, B + 4.6), aspect="equal")
    axes.axis("off")


def face(axes: Axes, numbers: Matrix, corner: Vector, right: Vector, down: Vector, limit: float) -> None:
    """A matrix (m, n) as a slanted sheet: `right` leads along its columns, `down` along its rows."""
    m, n = numbers.shape
    i, j = np.mgrid[0 : m + 1, 0 : n + 1]
    x, y = (corner[k] + j / n * right[k] + i / m * down[k] for k in (0, 1))
    axes.pcolormesh(x, y, numbers, cmap=plt.get_cmap("RdBu_r").with_extremes(bad="lightgrey"), vmin=-limit, vmax=limit)


def outline(axes: Axes, *corners: Vector) -> None:
    """Mark a sheet with an orange line around it."""
    axes.add_patch(plt.Polygon(corners, fill=False, edgecolor=ORANGE, linewidth=2.5, joinstyle="round"))
