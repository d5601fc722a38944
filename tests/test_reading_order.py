"""README's reading order: every room is in it, and imports only from the rooms above it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
ROOMS = re.findall(r"(?m)^minibert/(\w+)\.py  ", README.partition("## Reading order")[2])
FREE = {"cli"}  # may import all


def imported(source: str) -> set[str]:
    """The rooms that a module imports, wherever in it the import stands, except for type checkers alone."""
    rooms: set[str] = set()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "minibert":
            rooms.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("minibert."):
            rooms.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.Import):
            rooms.update(name.name.split(".")[1] for name in node.names if name.name.startswith("minibert."))
    return rooms & {*ROOMS, "lab", "cli"}


def test_every_room_is_in_the_reading_order_once() -> None:
    files = {path.stem for path in (ROOT / "minibert").glob("[!_]*.py")}
    assert sorted(ROOMS) == sorted(files)


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in FREE])
def test_a_room_imports_only_from_the_rooms_above_it(room: str) -> None:
    above = set(ROOMS[: ROOMS.index(room)])
    assert imported((ROOT / "minibert" / f"{room}.py").read_text("utf-8")) <= above


def test_an_import_from_below_would_be_seen() -> None:
    assert imported("def f():\n    from minibert.cli import main\n    from minibert import model\n") == {"cli", "model"}
