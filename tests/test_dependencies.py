"""Every package that minibert imports is declared in pyproject.toml, and one of an extra is never imported unasked."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FILES = sorted((ROOT / "minibert").rglob("*.py"))
DISTRIBUTIONS = {"sklearn": "scikit-learn"}  # where the name for pip is another one
OPTIONAL = {  # files that need an extra as a whole; what imports them checks that it is installed
    "serving/app.py": "serve",
    "serving/models.py": "serve",
    "vectors/ray.py": "ray",
    "vectors/shards.py": "ray",
}


def names(requirements: list[str]) -> set[str]:
    """The packages of requirements such as ray[data]>=2.60."""
    return {re.split(r"[^\w-]", requirement)[0] for requirement in requirements}


def imported(source: str, always: bool) -> set[str]:
    """The packages that a module imports; always: only those without which it cannot be imported."""
    tree = ast.parse(source)
    found = []
    for node in tree.body if always else ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(str(node.module))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found += [one.value for one in node.args if isinstance(one, ast.Constant)]
    packages = {name.split(".")[0] for name in found} - sys.stdlib_module_names - {"minibert"}
    return {DISTRIBUTIONS.get(package, package.replace("_", "-")) for package in packages}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT / "minibert").as_posix())
def test_every_import_is_declared(file):
    needed, extras = names(PROJECT["dependencies"]), PROJECT["optional-dependencies"]
    extra = OPTIONAL.get(file.relative_to(ROOT / "minibert").as_posix())
    source = file.read_text("utf-8")
    assert imported(source, always=True) <= needed | names(extras[extra] if extra else [])
    assert imported(source, always=False) <= needed.union(*map(names, extras.values()))


def test_an_import_that_is_not_declared_would_be_seen():
    source = "import scipy.special\ndef f():\n    from yaml import x\n    import_module('sklearn.svm')\n"
    assert imported(source, always=True) == {"scipy"}
    assert imported(source, always=False) == {"scipy", "yaml", "scikit-learn"}
