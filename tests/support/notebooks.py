"""The notebooks of tutorials/, read as JSON: nbformat takes seconds to import, and only running them needs it."""

import json
from pathlib import Path
from typing import Any

TUTORIALS = Path(__file__).parents[2] / "tutorials"
NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"), key=lambda path: int(path.name.partition("_")[0]))  # 2 before 10

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
