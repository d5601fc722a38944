"""All rooms together, and what is written of one with the help of the others: prose, code and links as HTML."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from functools import cached_property

from markupsafe import Markup, escape

from minibert.annotated.rooms import NAMES
from minibert.annotated.source import DASHES, Source

AXIS = r"(?:(?:[2-9]|k )?[BSEDHWFVLTKCN](?:·C)?(?: \+ 1)?|[0-9]|in|out|outputs)"
SHAPE = rf"\((?=[^)]*[A-Z]){AXIS}(?:, ?(?:{AXIS}|\.\.\.))*\)"
SHAPES = re.compile(rf"{SHAPE}(?: (?:->|@|\+) {SHAPE})*")
ROOM = rf"\b(?:\w+/)?(?P<room>{'|'.join(NAMES)})\.(?P<name>[A-Za-z]\w+)"
INLINE = re.compile(rf"`(?P<code>[^`]+)`|(?P<shapes>{SHAPES.pattern})|{ROOM}")
LETTER = re.compile(r"\b[2-9]?([A-Z])\b")
SOURCE = re.compile(r" \((?:section|figure|Devlin|Vaswani)")
COLOURS = {"Keyword": "k", "Operator.Word": "k", "Literal.String": "s", "Literal.Number": "n"}  # Pygments' kinds, ours


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
