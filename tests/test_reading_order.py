"""The reading order: README names every module once, each folder's docstring its files, and imports go upwards only."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
DOWNWARDS = {"config": {"families"}}  # when it is used, Config looks up the class of a relative, which subclasses it
FOLDERS = sorted(path.parent for path in (ROOT / "minibert").rglob("__init__.py"))


def order_of(folder: Path) -> list[str]:
    """The files and folders of a folder in reading order: the whole package's in README, others in their docstring."""
    if folder.name == "minibert":
        page = README.partition("## Reading order")[2].partition("```")[2].partition("```")[0]
        names = re.findall(r"(?m)^minibert/(\S+?,?(?: \S+(?:\.py|/),?)*)(?:  |$)", page)
        return [name.strip("/,").removesuffix(".py") for line in names for name in line.split()]
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8"))) or ""
    return re.findall(r"(?m)^    (\w+)  ", docstring)


def imported(source: str, package: str) -> set[str]:
    """The names inside a package that a module imports, wherever the import stands, except for type checkers."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = [f"{getattr(node, 'module', '')}.{alias.name}".lstrip(".") for node in imports for alias in node.names]
    return {name.removeprefix(f"{package}.").split(".")[0] for name in names if name.startswith(f"{package}.")}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_reading_order_has_everything_once(folder):
    content = {path.stem for path in folder.glob("[!_]*.py")} | {
        path.parent.name for path in folder.glob("*/__init__.py")
    }
    assert sorted(order_of(folder)) == sorted(content)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_imports_go_upwards_only_so_that_there_is_no_circle(folder):
    order, package = order_of(folder), ".".join(folder.relative_to(ROOT).parts)
    for place, name in enumerate(order):
        files = [folder / f"{name}.py"] if (folder / f"{name}.py").exists() else sorted((folder / name).rglob("*.py"))
        below = set(order[place + 1 :])
        for file in files:
            found = imported(file.read_text("utf-8"), package) & below - DOWNWARDS.get(name, set())
            assert not found, f"{file.relative_to(ROOT)} imports {sorted(found)}, which come after it"


def test_an_import_from_below_would_be_seen():
    source = """
def f():
    from minibert.cli.main import main
    from minibert import model
    import minibert.bench.run
"""
    assert imported(source, "minibert") == {"cli", "model", "bench"}
    assert imported("from minibert.tracing.trace import trace", "minibert.tracing") == {"trace"}
