"""The size of the code, which `make check` prints: tokens of Python without comments, docstrings and white space.

Tokens, unlike lines, do not depend on how densely code is written.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

SPACE = {"COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENCODING", "ENDMARKER"}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def size(source: str) -> int:
    """Return the number of tokens of a module."""
    documented = [node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED)]
    docstrings = {node.body[0].lineno for node in documented if ast.get_docstring(node) is not None}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    kinds = [(tokenize.tok_name[token.type], token.start[0] in docstrings) for token in tokens]
    return sum(kind not in SPACE and (kind, documents) != ("STRING", True) for kind, documents in kinds)


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]):
        print(f"{folder}: {sum(size(path.read_text('utf-8')) for path in folder.rglob('*.py')):,} tokens")
