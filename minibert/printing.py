"""How results are printed: a name in the first column, values in aligned, short lines beside it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

MARGIN = 15  # columns for the name
WIDTH = 96
LONGEST = 80  # characters of a value in an error message


def brief(value: object) -> str:
    """A value for an error message: as Python writes it where that is short, else by its type."""
    text = repr(value)
    return text if len(text) <= LONGEST and "\n" not in text else f"of type {type(value).__name__}"


def block(name: str, *paragraphs: str) -> str:
    """A name and what there is to say; each paragraph begins a line, and long ones are wrapped."""
    lines = [line for text in paragraphs for line in wrap(text)]
    return textwrap.indent("\n".join(lines), " " * MARGIN).replace(" " * MARGIN, f"{name:<{MARGIN}}", 1)


def wrap(text: str) -> list[str]:
    """Lines that fit beside the margin; a path is never broken."""
    return textwrap.wrap(text, WIDTH - MARGIN, break_long_words=False, break_on_hyphens=False)


def table(rows: Sequence[Sequence[object]], left: int = 1) -> str:
    """Rows with aligned columns: the first `left` to the left, the others to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def line(row: list[str]) -> str:
        return "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()

    return "\n".join(line(row) for row in cells)


def folded(columns: Sequence[Sequence[object]]) -> str:
    """Columns aligned to the right, in as many tables one below the other as the width needs."""
    parts: list[list[Sequence[object]]] = [[]]
    room = WIDTH - MARGIN
    for column in columns:
        width = max(len(str(cell)) for cell in column) + 2
        if width > room and parts[-1]:
            parts.append([])
            room = WIDTH - MARGIN
        parts[-1].append(column)
        room -= width
    return "\n".join(table(list(zip(*part, strict=True)), left=0) for part in parts)


def beside(name: str, lines: str) -> str:
    """A name with a table beside it, which is not wrapped."""
    first, *others = lines.splitlines()
    return "\n".join([f"{name:<{MARGIN}}{first}", *(" " * MARGIN + line for line in others)])


def named(labels: Iterable[str], meaning: Mapping[str, str]) -> list[str]:
    """The labels, each with its meaning where there is one: "1 positive"."""
    return [f"{label} {meaning[label]}" if label in meaning else label for label in labels]
