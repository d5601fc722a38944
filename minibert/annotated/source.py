"""A room of the source, taken apart: what is prose, what is code, and where the rows of its page begin."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import NamedTuple

from minibert.annotated.rooms import ROOMS
from minibert.extras import install_hint

DASHES = re.compile(r"\s*# -{20,}")
COLUMNS = re.compile(r"# \S+ {3,}\S")  # a comment with columns is the head of a table: it stays above its table
Definition = ast.ClassDef | ast.FunctionDef


class Token(NamedTuple):
    """A piece of the source that lies within one line."""

    line: int  # from 1, as everywhere
    kind: str  # as Pygments calls it: Comment.Single, Name.Class, ...
    text: str


class Source:
    """One room, taken apart."""

    def __init__(self, room: str, text: str) -> None:
        self.room = room
        self.page = f"{room.rpartition('/')[2]}.html"
        self.tutorials = ROOMS[room]
        self.lines = text.removesuffix("\n").split("\n")
        self.tokens = list(tokens(text))
        self.tree = ast.parse(text)
        self.docstring = ast.get_docstring(self.tree) or ""
        self.contents = [node.name for node in self.tree.body if isinstance(node, Definition)]
        self.prose: set[int] = set()  # lines of docstrings, and comments with lines to themselves
        self.banners: set[int] = set()  # comments between lines of dashes: the titles of what follows
        # The line where each row of the page begins -> the definition with a docstring that begins there, or "".
        self.starts: dict[int, str] = {}
        self.definitions: dict[str, int] = {}  # Encoder.forward -> its line
        self.find_definitions(self.tree, "")
        self.find_comments()
        self.starts = {1: "", (self.tree.body[0].end_lineno or 0) + 1: "", **self.starts}

    def find_definitions(self, parent: ast.Module | Definition, prefix: str) -> None:
        """Docstrings, and where rows begin: at each definition that has one, and at what follows it."""
        if ast.get_docstring(parent):
            self.prose.update(range(parent.body[0].lineno, (parent.body[0].end_lineno or 0) + 1))
        follows_definition = False
        for node in parent.body:
            documented = isinstance(node, Definition) and ast.get_docstring(node) is not None
            name = ""
            if isinstance(node, Definition):
                name = f"{prefix}{node.name}"
                self.definitions[name] = node.lineno
                self.find_definitions(node, f"{name}.")
            elif not prefix and isinstance(node, ast.Assign | ast.AnnAssign):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                self.definitions[ast.unparse(target)] = node.lineno
            if documented or follows_definition:
                decorators = node.decorator_list if isinstance(node, Definition) else []
                self.starts[min([node.lineno, *(d.lineno for d in decorators)])] = name if documented else ""
            follows_definition = isinstance(node, Definition) and (documented or not prefix)

    def find_comments(self) -> None:
        """Comments that have a line to themselves; a row begins with each block of them."""
        for token in self.tokens:
            line = self.lines[token.line - 1]
            if token.kind == "Comment.Single" and line.strip() == token.text and not COLUMNS.match(token.text):
                self.prose.add(token.line)
                if token.line - 1 not in self.prose:
                    self.starts.setdefault(token.line, "")
                if DASHES.match(line):
                    self.banners.update((token.line, token.line + 1))
        beside_comment = {line for line in self.prose if self.starts.get(line + 1) == "" and line + 1 not in self.prose}
        self.starts = {line: name for line, name in self.starts.items() if line - 1 not in beside_comment}

    @property
    def summary(self) -> str:
        """The first paragraph of the module's docstring."""
        return " ".join(self.docstring.split("\n\n")[0].split())

    @property
    def letters(self) -> dict[str, str]:
        """The letters for shapes that the module's docstring explains."""
        lines = self.docstring.splitlines()
        found = [match for line in lines for match in re.finditer(r"(?<=  )([A-Z]) {2,}(\S.*?)(?= {2,}|$)", line)]
        return {match[1]: match[2] for match in sorted(found, key=re.Match.start)}  # column by column


def tokens(text: str) -> Iterable[Token]:
    """The source in pieces. Raises ImportError, with the way to get it, where Pygments is missing."""
    try:
        from pygments.lexers import PythonLexer
    except ImportError:
        raise ImportError(f"the annotated source needs Pygments: {install_hint('tutorials')}") from None
    line = 1
    for _, kind, token in PythonLexer().get_tokens_unprocessed(text):
        for number, piece in enumerate(token.split("\n")):
            line += number > 0
            if piece:
                yield Token(line, str(kind).removeprefix("Token."), piece)
