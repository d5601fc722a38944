"""The source as pages, the explanation beside the code that it explains: `python -m minibert.lab.annotated FOLDER`.

Docstrings, and comments that have a line to themselves, become prose on the left; all other lines stand on the right.
Nothing is written twice: the pages are made of the source alone, and each of its lines is the text of one element of
the page, #L1, #L2, ... in order; marks that a reader of prose does not need (quotes, #, indentation) are hidden in it.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from minibert.extras import install_hint
from minibert.files import write_whole
from minibert.lab.templates import asset, templates

PACKAGE = Path(__file__).parents[1]
# The rooms in reading order, and the notebook that walks through each.
ROOMS = {
    "config": "",
    "model": "2_through_the_encoder",
    "objectives": "",
    "heads": "6_what_is_in_a_vector",
    "families/bert": "",
    "checkpoints/fill": "4_official_weights",
    "text/wordpiece": "3_wordpiece",
    "vectors/matmul": "",
    "vectors/engine": "8_making_it_fast",
}
NAMES = {room.rpartition("/")[2]: room for room in ROOMS}  # as prose calls them: wordpiece.pieces, engine.py
AXIS = r"(?:(?:[2-9]|k )?[BSEDHWFVLTKCN](?:·C)?(?: \+ 1)?|[0-9]|in|out|outputs)"
SHAPE = rf"\((?=[^)]*[A-Z]){AXIS}(?:, ?(?:{AXIS}|\.\.\.))*\)"
SHAPES = re.compile(rf"{SHAPE}(?: (?:->|@|\+) {SHAPE})*")
ROOM = rf"\b(?:\w+/)?(?P<room>{'|'.join(NAMES)})\.(?P<name>[A-Za-z]\w+)"
INLINE = re.compile(rf"`(?P<code>[^`]+)`|(?P<shapes>{SHAPES.pattern})|{ROOM}")
LETTER = re.compile(r"\b[2-9]?([A-Z])\b")
SOURCE = re.compile(r" \((?:section|figure|Devlin|Vaswani)")
DASHES = re.compile(r"\s*# -{20,}")
COLUMNS = re.compile(r"# \S+ {3,}\S")  # a comment with columns is the head of a table: it stays above its table
COLOURS = {"Keyword": "k", "Operator.Word": "k", "Literal.String": "s", "Literal.Number": "n"}  # Pygments' kinds, ours
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
        self.notebook = ROOMS[room]
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


# ---------------------------------------------------------------------------------------------------------------
# HTML


def marked(pattern: re.Pattern[str], mark: Callable[[re.Match[str]], str], text: str) -> Markup:
    """Text as HTML: escaped, and in place of each match what `mark` makes of it."""
    parts, done = [], 0
    for found in pattern.finditer(text):
        parts += [escape(text[done : found.start()]), mark(found)]
        done = found.end()
    return Markup().join([*parts, text[done:]])


def hidden(marks: str) -> Markup:
    """Characters of the source that the page does not show."""
    return Markup("<i hidden>{}</i>").format(marks) if marks else Markup()


def end_of_equation(text: str) -> int:
    """Where the equation at the start of a docstring ends: before the comma, full stop or source that follows it."""
    if ";" in text.split(" = ")[0]:
        return 0
    depth = 0
    for i, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if depth == 0 and (character in ",:" or text[i:].startswith(". ") or text[i:] == "." or SOURCE.match(text, i)):
            return i if " = " in text[:i] else 0
    return 0


class Book:
    """All rooms, and what is written of one with the help of the others."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources

    @cached_property
    def letters(self) -> dict[str, str]:
        """Each letter for shapes and its meaning, model.py's first."""
        rooms = sorted(self.sources, key=lambda source: source.room != "model")
        return {letter: meaning for source in rooms for letter, meaning in source.letters.items()}

    def link(self, room: str, name: str) -> str:
        """The address of a definition, or of a room for "py"; "" where there is none."""
        source = next((source for source in self.sources if source.room == room), None)
        if source is None or (name != "py" and name not in source.definitions):
            return ""
        return source.page if name == "py" else f"{source.page}#{name}"

    def shapes(self, text: str) -> Markup:
        """(B,S,D) -> (B,D) with the meaning of each letter."""

        def explained(found: re.Match[str]) -> str:
            meaning = self.letters.get(found[1])
            title = f"{found[1]}: {meaning}"
            return Markup('<abbr title="{}">{}</abbr>').format(title, found[0]) if meaning else found[0]

        return Markup('<code class="shape">{}</code>').format(marked(LETTER, explained, text))

    def inline(self, text: str) -> Markup:
        """A line of prose: `code`, shapes and names of definitions are marked."""

        def mark(found: re.Match[str]) -> str:
            if found["code"]:
                return hidden("`") + Markup("<code>{}</code>").format(found["code"]) + hidden("`")
            if found["shapes"]:
                return self.shapes(found["shapes"])
            address = self.link(NAMES[found["room"]], found["name"])
            return Markup('<a href="{}"><code>{}</code></a>').format(address, found[0]) if address else found[0]

        return marked(INLINE, mark, text)

    def prose(self, source: Source, numbers: Sequence[int]) -> Markup:
        """Docstring or comment lines as paragraphs; what is indented further stays as it is, in fixed width."""
        blocks: list[tuple[str, list[Markup]]] = [("p", [])]
        base = len(source.lines[numbers[0] - 1]) - len(source.lines[numbers[0] - 1].lstrip())
        open_block = ""
        for number in numbers:
            line = source.lines[number - 1]
            found = re.fullmatch(rf'(\s{{0,{base}}}(?:"""|# ?)?)(.*?)((?:""")?)', line)
            assert found is not None, line
            before, text, after = found.groups() if not DASHES.match(line) else (line, "", "")
            kind = "" if not text.strip() else "pre" if text.startswith("  ") else "p"
            if kind and kind != open_block:
                blocks.append((kind, []))
            end = end_of_equation(text) if '"""' in before else 0
            equation = Markup('<code class="equation">{}</code>').format(text[:end]) if end else Markup()
            shown = escape(text) if kind == "pre" else equation + self.inline(text[end:])
            element = Markup('<span id="L{}">{}{}{}</span>').format(number, hidden(before), shown, hidden(after))
            blocks[-1][1].append(element)
            open_block = kind
        paragraphs = [Markup("<{0}>{1}</{0}>").format(tag, Markup("\n").join(spans)) for tag, spans in blocks if spans]
        return Markup().join(paragraphs)

    def code(self, source: Source) -> list[Markup]:
        """Every line as code: what has a colour, is linked or is a target of links stands in an element of its own."""
        lines = [Markup() for _ in source.lines]
        names = self.imported(source) | {name: f"#{name}" for name in source.definitions if "." not in name}
        targets = {(line, name.split(".")[-1]): name for name, line in source.definitions.items()}
        before = ["", ""]
        for token, after in zip(source.tokens, [*source.tokens[1:], source.tokens[-1]], strict=True):
            if token.kind.startswith("Comment"):
                html = self.comment(token.text)
            elif token.kind.startswith("Name"):
                target = targets.pop((token.line, token.text), "")
                html = self.name(token.text, before, after.text, names, target)
            else:
                colour = next((COLOURS[kind] for kind in COLOURS if token.kind.startswith(kind)), "")
                html = Markup('<span class="{}">{}</span>').format(colour, token.text) if colour else escape(token.text)
            lines[token.line - 1] += html
            before = [before[1], token.text]
        return lines

    def imported(self, source: Source) -> dict[str, str]:
        """The names that come from other rooms, and their addresses there."""
        addresses = {
            alias.name: self.link((node.module or "").removeprefix("minibert.").replace(".", "/"), alias.name)
            for node in source.tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        return {name: address for name, address in addresses.items() if address}

    def name(self, name: str, before: list[str], after: str, names: dict[str, str], target: str) -> Markup:
        """A definition, or a use of one; a function is linked where it is called."""
        if target:
            return Markup('<a class="d" id="{0}" href="#{0}">{1}</a>').format(target, name)
        if before[1] == ".":
            address = self.link(NAMES.get(before[0], ""), name)
        else:
            address = names.get(name, "") if name[0].isupper() or after.startswith("(") else ""
        return Markup('<a href="{}">{}</a>').format(address, name) if address else escape(name)

    def comment(self, text: str) -> Markup:
        """A comment at the end of a line: its shapes stand out, what it says to tools does not."""
        if text.startswith(("# type:", "# noqa", "# ruff:")):
            return Markup('<span class="tool">{}</span>').format(text)
        shown = marked(SHAPES, lambda found: self.shapes(found[0]), text)
        return Markup('<span class="c">{}</span>').format(shown)


# ---------------------------------------------------------------------------------------------------------------
# Pages


def page(book: Book, source: Source | None = None) -> str:
    """The page of one room, or the table of contents."""
    return (
        templates(Path(__file__).parent)
        .get_template("annotated.html")
        .render(
            book=book,
            source=source,
            sections=sections(source, book) if source else [],
            rooms=[(room, f"{name}.html") for name, room in NAMES.items()],
            place=list(ROOMS).index(source.room) if source else -1,
            style=asset(Path(__file__).with_suffix(".css")),
        )
    )


def sections(source: Source, book: Book) -> Iterable[dict[str, Any]]:
    """Row by row: the lines before the prose (those that define), the prose, and the code that it explains."""
    lines = book.code(source)
    for first, after in pairwise([*sorted(source.starts), len(lines) + 1]):
        numbers = range(first, after)
        filled = max((number for number in numbers if lines[number - 1].strip()), default=0)
        code = [(number, lines[number - 1], number > filled) for number in numbers]  # blank lines at the end: a gap
        told = [number for number in numbers if number in source.prose]
        name = source.starts[first]
        yield {
            "kind": "bare" if not told else "banner" if first in source.banners else "intro" if first == 1 else "told",
            "level": 3 if "." in name else 2,
            "title": name.rpartition(".")[2],
            "head": code[: told[0] - first] if told else [],
            "prose": book.prose(source, told) if told else "",
            "body": code[told[-1] + 1 - first :] if told else code,
        }


def build(folder: Path) -> Path:
    """Write all pages into `folder`; returns the table of contents. Raises ImportError where Pygments is missing."""
    book = Book([Source(room, (PACKAGE / f"{room}.py").read_text(encoding="utf-8")) for room in ROOMS])
    folder.mkdir(parents=True, exist_ok=True)
    for source in book.sources:
        write_whole(folder / source.page, page(book, source))
    write_whole(folder / "index.html", page(book))
    return folder / "index.html"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, and say where."""
    parser = argparse.ArgumentParser(description="Write the annotated source as HTML pages.")
    parser.add_argument("folder", type=Path, help="where the pages go, build/annotated for example")
    folder = parser.parse_args(arguments).folder
    try:
        print(build(folder))
    except (OSError, ImportError) as error:
        print(f"cannot write the pages: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
