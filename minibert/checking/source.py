"""A file of functions as text: which functions call which, and what of libraries they use. Nothing of it runs."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

from minibert.utils.printing import FILES

# What a function is to do itself; one that calls any of these is right by a library.
LIBRARY = {
    *("layer_norm", "LayerNorm", "gelu", "GELU", "cross_entropy", "CrossEntropyLoss", "nll_loss", "linear", "Linear"),
    *("scaled_dot_product_attention", "MultiheadAttention", "TransformerEncoderLayer", "TransformerEncoder"),
    *("embedding", "Embedding", "AdamW", "Adam", "load_file", "safe_open"),
}
MODULES = ("minibert", "transformers", "safetensors", "tokenizers", "sentence_transformers")


class SolutionError(ValueError):
    """The file cannot be read as Python."""


def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file, as Python reads it. Raises SolutionError with the line, FileNotFoundError."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file; {FILES / 'tutorials/build/my_bert.py'} is where to begin")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise SolutionError(f"{path}, line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise SolutionError(f"{path} cannot be read as Python: {error}") from None


class SourceText:
    """The functions of a file, and the names in each. tree: see parsed."""

    def __init__(self, tree: ast.Module) -> None:
        nodes = list(ast.walk(tree))
        self.functions = {one.name: list(ast.walk(one)) for one in nodes if isinstance(one, ast.FunctionDef)}
        self.names = {
            name: {node.id for node in own if isinstance(node, ast.Name)} for name, own in self.functions.items()
        }
        self.imported = {
            alias.asname or alias.name: (getattr(node, "module", None) or alias.name).split(".")[0]
            for node in nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }

    def reached(self, function: str, without: frozenset[str] = frozenset()) -> tuple[str, ...]:
        """Return a function and those that it calls, directly or not, in their order; not through those `without`."""
        found: set[str] = set()
        left = [function]
        while left:
            if (one := left.pop()) in self.names and one not in found:
                found.add(one)
                left += self.names[one] - without
        return tuple(one for one in self.names if one in found)

    def by_library(self, function: str, others: frozenset[str]) -> tuple[str, ...]:
        """Return what a function calls of libraries that do its work, itself or through any but the others."""
        calls = []
        for name in self.reached(function, others - {function}):
            for node in self.functions[name]:
                theirs = False
                if isinstance(node, ast.Attribute):
                    theirs = node.attr in LIBRARY and isinstance(node.value, ast.Name | ast.Attribute)
                    theirs = theirs or (node.attr in ("backward", "grad") and function.endswith("_backward"))
                elif isinstance(node, ast.Name):
                    module = self.imported.get(node.id)
                    theirs = module in MODULES or (node.id in LIBRARY and module == "torch")
                if theirs:
                    calls.append(ast.unparse(node))
        return tuple(dict.fromkeys(calls))
