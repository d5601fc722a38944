"""The tutorials: each notebook and its solutions run top to bottom without a network, and are kept as they ran."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

TUTORIALS = Path(__file__).parent.parent / "tutorials"
NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))
ALL = NOTEBOOKS + sorted((TUTORIALS / "solutions").glob("*.ipynb"))
NAMES = [str(path.relative_to(TUTORIALS)) for path in ALL]
# Runs before the first cell: whoever opens a connection from the notebook fails, loudly.
NO_NETWORK = """
import socket
def refuse(self, address):
    raise AssertionError(f"the notebook connects to {address}")
socket.socket.connect = socket.socket.connect_ex = refuse
"""


def run(book: NotebookNode, folder: Path) -> None:
    """Execute all cells in a kernel of its own that cannot reach the network."""
    book = new_notebook(cells=[new_code_cell(NO_NETWORK), *book.cells])
    client = NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.execute()


def read(path: Path) -> NotebookNode:
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    return book


def links(path: Path) -> list[str]:
    """The targets in a page's or notebook's prose that are files."""
    prose = (
        path.read_text("utf-8")
        if path.suffix == ".md"
        else "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    )
    targets = re.findall(r"\]\(([^)\s]+)\)", prose)
    return [target.partition("#")[0] for target in targets if not target.startswith(("http", "#"))]


def test_there_are_eight_notebooks_each_with_its_solutions() -> None:
    assert [path.name[0] for path in NOTEBOOKS] == list("12345678")
    assert [path.name for path in ALL[8:]] == [path.name for path in NOTEBOOKS]


@pytest.mark.parametrize("path", ALL, ids=NAMES)
def test_a_notebook_runs_from_top_to_bottom_without_a_network(path: Path) -> None:
    run(read(path), path.parent)


@pytest.mark.parametrize("code", ["1 / 0", "import urllib.request as r; r.urlopen('http://127.0.0.1:9')"])
def test_a_cell_that_fails_or_connects_would_be_caught(code: str, tmp_path: Path) -> None:
    with pytest.raises(CellExecutionError, match=r"ZeroDivisionError|the notebook connects"):
        run(new_notebook(cells=[new_code_cell(code)]), tmp_path)


@pytest.mark.parametrize("path", ALL, ids=NAMES)
def test_a_notebook_is_kept_with_the_outputs_of_one_run_in_order(path: Path) -> None:
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output.output_type for cell in cells for output in cell.outputs}
    assert "stream" in kinds
    assert "error" not in kinds


@pytest.mark.parametrize("path", ALL, ids=NAMES)
def test_a_notebook_is_small_and_names_no_folder_of_the_machine_it_ran_on(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text) < 1e6
    assert not re.search(r"/(work|tmp|root|home|Users)/", text)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES[:8])
def test_a_notebook_ends_with_three_exercises_and_opens_with_versions(path: Path) -> None:
    cells = read(path).cells
    first = next(cell for cell in cells if cell.cell_type == "code")
    assert "__version__" in first.source
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert "## Exercises" in prose
    exercises = prose.partition("## Exercises")[2]
    assert all(re.search(rf"(?m)^\W*(Exercise )?{number}\b", exercises) for number in (1, 2, 3))


@pytest.mark.parametrize("path", [*ALL, TUTORIALS / "README.md"], ids=[*NAMES, "README.md"])
def test_links_lead_to_files_that_exist(path: Path) -> None:
    built = ("build/",)  # pages that `make annotated` makes
    missing = [one for one in links(path) if not (path.parent / one).exists() and not any(b in one for b in built)]
    assert not missing


def test_the_map_names_every_notebook() -> None:
    assert {path.name for path in NOTEBOOKS} <= set(links(TUTORIALS / "README.md"))
