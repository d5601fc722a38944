"""Pictures of tensors for the tutorials and `minibert trace --png`; matplotlib draws them (the extra "tutorials")."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from minibert.utils.files import atomic_write
from minibert.utils.outputs import check_file
from minibert.utils.printing import require

SEQUENTIAL, DIVERGING = "Blues", "RdBu_r"  # for numbers from 0 up, and for numbers of both signs


def pyplot() -> Any:
    """Return matplotlib.pyplot. Raises ImportError with the command that installs it."""
    require("tutorials", "matplotlib")
    from matplotlib import pyplot

    return pyplot


def check_picture(path: Path, overwrite: bool) -> None:
    """Raise ImportError without matplotlib, and what check_file raises for a picture that cannot be written."""
    pyplot()
    check_file(path, overwrite, endings=(".png", ".svg", ".pdf"))


def heat_map(
    matrix: ArrayLike,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    *,
    title: str = "",
    axes: Any = None,
    limit: float | None = None,
) -> Any:
    """Draw a matrix as colours: blue for numbers from 0 up, blue to red around a white 0 for both signs.

    rows, columns: labels, such as tokens. limit: the number of the strongest colour (default: the largest).
    axes: where to draw; by default a new figure sized by the matrix. matplotlib refuses other shapes and labels.
    """
    numbers = np.asarray(matrix, dtype=float)
    if axes is None:
        height, width = (min(12.0, 1.2 + 0.28 * size) for size in numbers.shape)
        axes = pyplot().subplots(figsize=(max(width, 3.0), max(height, 1.6)), layout="constrained")[1]
    largest = limit or float(np.abs(numbers).max(initial=0.0)) or 1.0
    signed = bool((numbers < 0).any())
    axes.imshow(
        numbers,
        aspect="auto",
        cmap=DIVERGING if signed else SEQUENTIAL,
        vmin=-largest if signed else 0.0,
        vmax=largest,
        interpolation="nearest",
    )
    axes.set_xticks(range(numbers.shape[1]) if columns else [], columns or [], rotation=90)
    axes.set_yticks(range(numbers.shape[0]) if rows else [], rows or [])
    axes.set_title(title)
    return axes


def head_grid(probs: ArrayLike, tokens: Sequence[str], *, across: int = 4) -> Any:
    """Draw the attention of each head, (H,S,S), as a grid of heat maps, `across` in a row.

    A row of a heat map is a query, a column a key.
    """
    maps = np.asarray(probs, dtype=float)
    across = min(across, len(maps))
    down = -(-len(maps) // across)
    figure = pyplot().figure(figsize=(2.6 * across, 2.6 * down), layout="constrained")
    for number, probabilities in enumerate(maps):
        axes = figure.add_subplot(down, across, number + 1)
        rows = tokens if number % across == 0 else None
        columns = tokens if number + across >= len(maps) else None
        heat_map(probabilities, rows, columns, title=f"head {number}", axes=axes, limit=1.0)
    return figure


def save_figure(figure: Any, path: Path, dpi: int = 140) -> None:
    """Write a figure and close it. The ending of `path` is the format."""
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=dpi, facecolor="white")
    pyplot().close(figure)
