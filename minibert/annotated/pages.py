"""The pages: row by row the prose, the code that it explains, and what the code cannot say."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from markupsafe import Markup

from minibert.annotated.book import Book, marked
from minibert.annotated.flow import flow, weights
from minibert.annotated.notes import NOTES
from minibert.annotated.rooms import NAMES, ROOMS
from minibert.annotated.source import Source
from minibert.diagrams.example import SENTENCE, TOKENS
from minibert.files import write_text_atomically
from minibert.templates import asset, diagram, templates

FOLDER = Path(__file__).parent
PACKAGE = FOLDER.parents[1]
VARIABLE = re.compile(r"[A-Za-zα-ω]\u0302?")  # U+0302: the hat of x̂
VARIABLE_OR_LEVEL = re.compile(r"([_^](?:\{[^}]*\}|\w)|(?<![A-Za-z])[A-Za-zα-ω]\u0302?(?![A-Za-z]))")
LEVELS = re.compile(r"`(?P<code>[^`]+)`|(?P<side>[_^])(?:\{(?P<several>[^}]*)\}|(?P<one>\w))")


def build(folder: Path) -> Path:
    """Write all pages into `folder`; returns the table of contents. Raises ImportError where Pygments is missing."""
    book = Book([Source(room, (PACKAGE / f"{room}.py").read_text(encoding="utf-8")) for room in ROOMS])
    folder.mkdir(parents=True, exist_ok=True)
    for source in book.sources:
        write_text_atomically(folder / source.page, page(book, source))
    write_text_atomically(folder / "index.html", page(book))
    return folder / "index.html"


def page(book: Book, source: Source | None = None) -> str:
    """The page of one room, or the table of contents."""
    environment = templates(FOLDER)
    environment.filters |= {"formula": formula, "equation": equation, "diagram": diagram}
    return environment.get_template("page.html").render(
        book=book,
        source=source,
        sections=sections(source, book) if source else [],
        rooms=[(room, f"{name}.html") for name, room in NAMES.items()],
        place=list(ROOMS).index(source.room) if source else -1,
        sentence=SENTENCE,
        tokens=TOKENS,
        style=asset(FOLDER / "page.css"),
    )


def sections(source: Source, book: Book) -> Iterable[dict[str, Any]]:
    """Row by row: the lines before the prose (those that define), the prose, the code, and the note that follows."""
    lines = book.code(source)
    notes = NOTES.get(source.room, {})
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
            "note": notes.get(name) if name or first == 1 else None,
            "flow": flow().get(name, []) if source.room == "model" else [],
            "weights": counted(name) if source.room == "model" else None,
        }


def counted(name: str) -> dict[str, Any] | None:
    """The weights of a class of model.py: each of them, how many numbers they are, and the share of all."""
    if name not in weights():
        return None
    sizes = {kind: sum(part.size for part in parts) for kind, parts in weights().items()}
    return {"rows": weights()[name], "size": sizes[name], "share": sizes[name] / sizes["Encoder"]}


def formula(text: str) -> Markup:
    """Text with what stands low, x_s, and high, x^{l+1}, set so, and `code` as code."""

    def mark(found: re.Match[str]) -> str:
        if found["code"]:
            return Markup("<code>{}</code>").format(found["code"])
        tag = "sub" if found["side"] == "_" else "sup"
        return Markup("<{0}>{1}</{0}>").format(Markup(tag), found["several"] or found["one"])

    return marked(LEVELS, mark, text)


def equation(text: str) -> Markup:
    """The same where letters that stand alone are variables, and slanted."""
    return Markup("").join(
        Markup("<var>{}</var>").format(part) if VARIABLE.fullmatch(part) else formula(part)
        for part in VARIABLE_OR_LEVEL.split(text)
        if part
    )
