"""The source as pages, the explanation beside the code that it explains: `python -m minibert.lab.annotated FOLDER`.

Docstrings, and comments that have a line to themselves, become prose on the left; all other lines stand on the right.
Nothing is written twice: the pages are made of the source alone, and each of its lines is the text of one element of
the page, #L1, #L2, ... in order; marks that a reader of prose does not need (quotes, #, indentation) are hidden in it.
"""

from __future__ import annotations

import argparse
import ast
import io
import keyword
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path

from minibert.files import write_whole

PACKAGE = Path(__file__).parents[1]
TUTORIALS = "../../tutorials"  # from build/annotated, where `make annotated` puts the pages
# The rooms in reading order, and the notebook that walks through each.
ROOMS = {
    "config": "",
    "model": "2_through_the_encoder",
    "heads": "6_what_is_in_a_vector",
    "weights": "4_official_weights",
    "wordpiece": "3_wordpiece",
    "matmul": "",
    "engine": "8_making_it_fast",
}
AXIS = r"(?:(?:[2-9]|k )?[BSDHWFVLTKCN](?:·C)?(?: \+ 1)?|[0-9]|in|out|outputs)"
SHAPE = rf"\((?=[^)]*[A-Z]){AXIS}(?:, ?(?:{AXIS}|\.\.\.))*\)"
SHAPES = rf"{SHAPE}(?: (?:-&gt;|->|@|\+) {SHAPE})*"
INLINE = re.compile(rf"`(?P<code>[^`]+)`|(?P<shapes>{SHAPES})|(?P<room>{'|'.join(ROOMS)})\.(?P<name>[A-Za-z]\w+)")
SOURCE = re.compile(r" \((?:section|figure|Devlin|Vaswani)")
DASHES = re.compile(r"\s*# -{20,}")
COLUMNS = re.compile(r"# \S+ {3,}\S")  # a comment with columns is the head of a table: it stays above its table
COLOUR = {"STRING": "s", "FSTRING_START": "s", "FSTRING_MIDDLE": "s", "FSTRING_END": "s", "NUMBER": "n"}
Definition = ast.ClassDef | ast.FunctionDef


@dataclass
class Row:
    """A stretch of the source that stands side by side: lines `first` to `last`, and what it defines."""

    first: int
    last: int
    name: str = ""  # Encoder.forward; "": no definition with a docstring
    banner: bool = False  # a comment between lines of dashes: the title of what follows


@dataclass
class Source:
    """One room, taken apart. Lines are counted from 1, as everywhere."""

    room: str
    text: str
    prose: set[int] = field(default_factory=set)  # lines of docstrings, and comments with lines to themselves
    banners: set[int] = field(default_factory=set)
    starts: dict[int, str] = field(default_factory=dict)  # line where a row begins -> the definition, or ""
    definitions: dict[str, int] = field(default_factory=dict)  # Encoder.forward -> its line

    def __post_init__(self) -> None:
        self.lines = self.text.splitlines()
        self.tokens = list(tokenize.generate_tokens(io.StringIO(self.text).readline))
        self.tree = ast.parse(self.text)
        self.find_definitions(self.tree, "")
        self.find_comments()

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
            row, column = token.start
            if token.type == tokenize.COMMENT and not token.line[:column].strip() and not COLUMNS.match(token.string):
                self.prose.add(row)
                if row - 1 not in self.prose:
                    self.starts.setdefault(row, "")
                if DASHES.match(token.line):
                    self.banners.update((row, row + 1))
        beside_comment = {line for line in self.prose if self.starts.get(line + 1) == "" and line + 1 not in self.prose}
        self.starts = {line: name for line, name in self.starts.items() if line - 1 not in beside_comment}

    @cached_property
    def rows(self) -> list[Row]:
        """The whole source, row by row; the module's docstring is a row by itself."""
        end_of_docstring = self.tree.body[0].end_lineno or 0
        firsts = sorted({1, end_of_docstring + 1, *self.starts})
        lasts = [first - 1 for first in firsts[1:]] + [len(self.lines)]
        return [
            Row(first, last, self.starts.get(first, ""), first in self.banners)
            for first, last in zip(firsts, lasts, strict=True)
        ]

    @cached_property
    def summary(self) -> str:
        """The first paragraph of the module's docstring."""
        return " ".join((ast.get_docstring(self.tree) or "").split("\n\n")[0].split())

    @cached_property
    def letters(self) -> dict[str, str]:
        """The letters for shapes that the module's docstring explains."""
        lines = (ast.get_docstring(self.tree) or "").splitlines()
        found = [match for line in lines for match in re.finditer(r"(?<=  )([A-Z]) {2,}(\S.*?)(?= {2,}|$)", line)]
        return {match[1]: match[2] for match in sorted(found, key=re.Match.start)}  # column by column


@dataclass
class Book:
    """All rooms, and what links and letters need to know of the others."""

    sources: Sequence[Source]

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
        return f"{room}.html" if name == "py" else f"{room}.html#{name}"

    def shapes(self, text: str) -> str:
        """(B,S,D) -> (B,D), already escaped, with the meaning of each letter."""
        named = re.sub(r"\b[2-9]?[A-Z]\b", lambda found: self.letter(found[0]), text)
        return f'<code class="shape">{named}</code>'

    def letter(self, letter: str) -> str:
        """One letter of a shape; 2D is D."""
        meaning = self.letters.get(letter[-1])
        return f'<abbr title="{escape(letter[-1])}: {escape(meaning)}">{letter}</abbr>' if meaning else letter

    def inline(self, text: str) -> str:
        """A line of prose: `code`, shapes and names of definitions are marked."""

        def mark(found: re.Match[str]) -> str:
            if found["code"]:
                return f"<i hidden>`</i><code>{found['code']}</code><i hidden>`</i>"
            if found["shapes"]:
                return self.shapes(found["shapes"])
            address = self.link(found["room"], found["name"])
            return f'<a href="{address}"><code>{found[0]}</code></a>' if address else found[0]

        return INLINE.sub(mark, escape(text, quote=False))


# ---------------------------------------------------------------------------------------------------------------
# Prose


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


def prose(source: Source, numbers: Sequence[int], book: Book) -> str:
    """Docstring or comment lines as paragraphs; what is indented further stays as it is, in fixed width."""
    blocks: list[tuple[str, list[str]]] = [("p", [])]
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
        if kind == "pre":
            shown = escape(text, quote=False)
        else:
            end = end_of_equation(text) if '"""' in before else 0
            equation = f'<code class="equation">{escape(text[:end], quote=False)}</code>' if end else ""
            shown = equation + book.inline(text[end:])
        blocks[-1][1].append(f'<span id="L{number}">{hidden(before)}{shown}{hidden(after)}</span>')
        open_block = kind
    return "".join(f"<{tag}>{chr(10).join(spans)}</{tag}>" for tag, spans in blocks if spans)


def hidden(marks: str) -> str:
    """Characters of the source that the page does not show."""
    return f"<i hidden>{escape(marks, quote=False)}</i>" if marks else ""


# ---------------------------------------------------------------------------------------------------------------
# Code


def code(source: Source, numbers: Sequence[int], marked: dict[int, list[tuple[int, int, str]]]) -> str:
    """Lines of code; blank lines at the end of a row take no room."""
    filled = max((number for number in numbers if source.lines[number - 1].strip()), default=0)
    spans = []
    for number in numbers:
        line, shown, done = source.lines[number - 1], "", 0
        for start, end, html in marked.get(number, []):
            if start >= done:
                shown += escape(line[done:start], quote=False) + html
                done = end
        shown += escape(line[done:], quote=False)
        gap = ' class="gap"' if number > filled else ""
        to_line = f'<a href="#L{number}" data-line="{number}" tabindex="-1" aria-hidden="true"></a>'
        spans.append(f'<span id="L{number}"{gap}>{to_line}{shown}</span>')
    return f"<pre>{''.join(spans)}</pre>"


def marks(source: Source, book: Book) -> dict[int, list[tuple[int, int, str]]]:
    """For each line what is coloured, linked or a target of links: first column, last column, HTML."""
    found: dict[int, list[tuple[int, int, str]]] = {}
    names = imported(source, book) | {name: f"#{name}" for name in source.definitions if "." not in name}
    targets = {(line, name.split(".")[-1]): name for name, line in source.definitions.items()}
    before = ["", ""]
    for token, after in zip(source.tokens, [*source.tokens[1:], source.tokens[-1]], strict=True):
        (first, start), (last, end) = token.start, token.end
        if token.type == tokenize.COMMENT:
            html = comment_html(token.string, book)
        elif token.type == tokenize.NAME:
            target = targets.pop((first, token.string), "")
            html = name_html(token.string, before, after.string, names, target, book)
        else:
            html = ""
        colour = COLOUR.get(tokenize.tok_name[token.type])
        if html:
            found.setdefault(first, []).append((start, end, html))
        elif colour:
            for number in range(first, last + 1):
                line = source.lines[number - 1]
                left, right = start if number == first else 0, end if number == last else len(line)
                span = f'<span class="{colour}">{escape(line[left:right], quote=False)}</span>'
                found.setdefault(number, []).append((left, right, span))
        before = [before[1], token.string]
    return found


def imported(source: Source, book: Book) -> dict[str, str]:
    """The names that come from other rooms, and their addresses there."""
    froms = [node for node in source.tree.body if isinstance(node, ast.ImportFrom) and node.module]
    addresses = {
        alias.name: book.link(str(node.module).removeprefix("minibert."), alias.name)
        for node in froms
        for alias in node.names
    }
    return {name: address for name, address in addresses.items() if address}


def name_html(name: str, before: list[str], after: str, names: dict[str, str], target: str, book: Book) -> str:
    """A keyword, a definition, or a use of a definition; a function is linked where it is called."""
    if target:
        return f'<a class="d" id="{target}" href="#{target}">{name}</a>'
    if keyword.iskeyword(name):
        return f'<span class="k">{name}</span>'
    if before[1] == ".":
        address = book.link(before[0], name)
    else:
        address = names.get(name, "") if name[0].isupper() or after == "(" else ""
    return f'<a href="{address}">{name}</a>' if address else ""


def comment_html(text: str, book: Book) -> str:
    """A comment at the end of a line: its shapes stand out, what it says to tools does not."""
    if text.startswith(("# fmt:", "# type:", "# noqa")):
        return f'<span class="tool">{escape(text, quote=False)}</span>'
    shown = re.sub(SHAPES, lambda found: book.shapes(found[0]), escape(text, quote=False))
    return f'<span class="c">{shown}</span>'


# ---------------------------------------------------------------------------------------------------------------
# Pages


def row_html(source: Source, row: Row, marked: dict[int, list[tuple[int, int, str]]], book: Book) -> str:
    """One row: what stands before the prose (the line that defines), the prose, and the code that it explains."""
    numbers = range(row.first, row.last + 1)
    told = [number for number in numbers if number in source.prose]
    if not told:
        return f'<section class="bare">{code(source, numbers, marked)}</section>'
    head, body = range(row.first, told[0]), range(told[-1] + 1, row.last + 1)
    level = 2 if "." not in row.name else 3
    title = f"<h{level}>{row.name.split('.')[-1]}</h{level}>" if row.name else ""
    kind = "banner" if row.banner else "intro" if row.first == 1 else "told"
    parts = (
        code(source, head, marked) if head else "",
        f'<div class="prose">{title}{prose(source, told, book)}</div>',
        code(source, body, marked) if body else "",
    )
    return f'<section class="{kind}{" defines" if head else ""}">{"".join(parts)}</section>'


def room_page(source: Source, book: Book) -> str:
    """The page of one room."""
    marked = marks(source, book)
    rows = "\n".join(row_html(source, row, marked, book) for row in source.rows)
    notebook = ROOMS[source.room]
    link = f' · step by step in the notebook <a href="{TUTORIALS}/{notebook}.ipynb">{notebook}</a>' if notebook else ""
    top = (
        f'<header class="title"><h1>{source.room}.py</h1><p>Room {list(ROOMS).index(source.room) + 1} of '
        f"{len(ROOMS)} · {len(source.lines)} lines{link}</p>{contents(source)}</header>"
    )
    return page(f"{source.room}.py", source.room, f"{top}<main>{rows}</main>", book)


def contents(source: Source, page: str = "") -> str:
    """Links to the classes and functions of a room."""
    kinds = {node.name for node in source.tree.body if isinstance(node, Definition)}
    links = "".join(f'<li><a href="{page}#{name}">{name}</a></li>' for name in source.definitions if name in kinds)
    return f'<ul class="contents">{links}</ul>'


def index_page(book: Book) -> str:
    """The table of contents, in reading order."""
    entries = "".join(
        f'<li><h2><a href="{source.room}.html">{source.room}.py</a></h2><p>{book.inline(source.summary)}</p>'
        f"{contents(source, f'{source.room}.html')}</li>"
        for source in book.sources
    )
    top = (
        '<header class="title"><h1>minibert, annotated</h1><p>BERT and DistilBERT written by hand in PyTorch: the '
        "source, and beside it what it says about itself. Read the rooms in this order, or begin with "
        '<a href="model.html">model.py</a>, where BERT is. A shape such as '
        f"{book.shapes('(B,S,D)')} stands at the end of every line that changes one.</p></header>"
    )
    return page("minibert, annotated", "", f'{top}<main class="index"><ol>{entries}</ol></main>', book)


def page(title: str, room: str, content: str, book: Book) -> str:
    """A whole page: the bar with the way on and the letters at the top, the way on again at the foot."""
    letters = "".join(f"<dt>{letter}</dt><dd>{escape(said)}</dd>" for letter, said in book.letters.items())
    legend = f"<details><summary>Letters</summary><dl>{letters}</dl></details>"
    style = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body>"
        f'<nav class="bar" aria-label="Rooms">{"".join(way(room))}{legend}</nav>{content}'
        f'<nav class="foot" aria-label="Rooms, once more">{"".join(way(room))}</nav></body></html>\n'
    )


def way(room: str) -> Iterator[str]:
    """Links to the table of contents, the room before and the room after."""
    order = ["", *ROOMS, ""]
    place = order.index(room)
    yield '<a href="index.html">Contents</a>' if room else "<b>Contents</b>"
    if place > 1:
        yield f'<a rel="prev" href="{order[place - 1]}.html">← {order[place - 1]}.py</a>'
    if room:
        yield f"<b>{room}.py</b>"
    if order[place + 1]:
        yield f'<a rel="next" href="{order[place + 1]}.html">{order[place + 1]}.py →</a>'


def build(folder: Path) -> Path:
    """Write all pages into `folder`; returns the table of contents."""
    folder.mkdir(parents=True, exist_ok=True)
    book = Book([Source(room, (PACKAGE / f"{room}.py").read_text(encoding="utf-8")) for room in ROOMS])
    for source in book.sources:
        write_whole(folder / f"{source.room}.html", room_page(source, book))
    write_whole(folder / "index.html", index_page(book))
    return folder / "index.html"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, and say where."""
    parser = argparse.ArgumentParser(description="Write the annotated source as HTML pages.")
    parser.add_argument("folder", type=Path, help="where the pages go, build/annotated for example")
    folder = parser.parse_args(arguments).folder
    try:
        print(build(folder))
    except OSError as error:
        print(f"cannot write the pages: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
