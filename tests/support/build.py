"""minibert/reference.py without the content of its functions: python -m support.build writes the skeleton."""

import ast
from pathlib import Path

from minibert.checking.stages import STAGES

ROOT = Path(__file__).parents[2]
SKELETON = ROOT / "tutorials" / "build" / "my_bert.py"
SOLUTION = ROOT / "minibert" / "reference.py"
FUNCTIONS = {stage.function for stage in STAGES}


def skeleton(source: str) -> str:
    """The file with a line in place of the content of each stage's function, after the skeleton's own docstring."""
    lines = source.splitlines()
    docstring, *body = ast.parse(source).body
    for node in reversed(body):
        if isinstance(node, ast.FunctionDef) and node.name in FUNCTIONS:
            assert node.end_lineno is not None
            lines[node.body[1].lineno - 1 : node.end_lineno] = ["    raise NotImplementedError"]
    own = SKELETON.read_text("utf-8")
    first, *_ = ast.parse(own).body
    return "\n".join([*own.splitlines()[: first.end_lineno], *lines[docstring.end_lineno :]]) + "\n"


if __name__ == "__main__":
    SKELETON.write_text(skeleton(SOLUTION.read_text("utf-8")), "utf-8")
