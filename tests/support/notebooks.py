"""The notebooks of tutorials/, read as JSON: nbformat takes seconds to import, and only running them needs it."""

import json
from pathlib import Path
from typing import Any

TUTORIALS = Path(__file__).parents[2] / "tutorials"
NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"), key=lambda path: int(path.name.partition("_")[0]))  # 2 before 10

WORDS, LINES = 180, 12  # that a reader takes in per minute: words of prose, lines of code or of output

Cell = dict[str, Any]


def cells_of(path: Path) -> list[Cell]:
    """The cells; the file has their sources as lists of lines."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return [cell | {"source": "".join(cell["source"])} for cell in cells]


def prose_of(path: Path) -> str:
    """What a file says; of a notebook, what its prose says."""
    if path.suffix != ".ipynb":
        return path.read_text("utf-8")
    return "\n\n".join(cell["source"] for cell in cells_of(path) if cell["cell_type"] == "markdown")


def printed(cell: Cell) -> str:
    """What a cell says in words; pictures say nothing here."""
    text = "".join("".join(output.get("text", "")) + "\n" for output in cell["outputs"])
    shown = [output.get("data", {}) for output in cell["outputs"]]
    words = [data.get("text/markdown", data.get("text/plain", "")) for data in shown if len(data) < 3]
    return text + "\n".join("".join(lines) for lines in words)


def reading_minutes(cells: list[Cell]) -> float:
    """How long the cells take to read, their exercises not solved."""
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    words = sum(len(cell["source"].split()) for cell in cells if cell["cell_type"] == "markdown")
    lines = sum(len(text.split("\n")) for cell in code for text in (cell["source"], printed(cell).strip()) if text)
    return words / WORDS + lines / LINES
