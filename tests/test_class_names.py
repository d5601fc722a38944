"""A class name means one thing: no two modules of minibert define a class of the same name."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "minibert"


def test_no_class_name_is_defined_in_two_modules():
    modules = defaultdict[str, list[str]](list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(str(path.relative_to(PACKAGE)))
    assert modules["Encoder"] == ["model.py"]
    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}
