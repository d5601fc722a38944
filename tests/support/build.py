"""The solution of tutorials/build without the content of its functions: python -m support.build writes the skeleton."""

import ast
from pathlib import Path

from minibert.checking.stages import STAGES

TUTORIALS = Path(__file__).parents[2] / "tutorials"
SKELETON = TUTORIALS / "build" / "my_bert.py"
SOLUTION = TUTORIALS / "solutions" / "build" / "my_bert.py"
FUNCTIONS = {stage.function for stage in STAGES}


def functions_of(source: str) -> dict[str, str]:
    """The text of each stage's function."""
    nodes = [one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef) and one.name in FUNCTIONS]
    return {one.name: ast.get_source_segment(source, one) or "" for one in nodes}


def skeleton(source: str) -> str:
    """The file with a line in place of the content of each stage's function."""
    lines = source.splitlines()
    for one in reversed(ast.parse(source).body):
        if isinstance(one, ast.FunctionDef) and one.name in FUNCTIONS:
            assert one.end_lineno is not None
            lines[one.body[1].lineno - 1 : one.end_lineno] = ["    raise NotImplementedError"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    SKELETON.write_text(skeleton(SOLUTION.read_text("utf-8")), "utf-8")
