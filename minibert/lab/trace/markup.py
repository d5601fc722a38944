"""Pieces of HTML that the stops of a trace are put together from, and the escaping of what others wrote."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from html import escape

INVISIBLE = ("Cc", "Cf", "Co", "Cn", "Zl", "Zp")  # Unicode categories that show nothing or steer the text around them
JOINERS = "\u200c\u200d"  # hold emoji and Arabic or Indic letters together, and are left in place


def shown(text: str) -> str:
    """Text as HTML, with characters that cannot be seen written out: NUL as ␀, U+202E as ⟨U+202E⟩."""
    return "".join(escape(character, quote=True) if visible(character) else name(character) for character in text)


def visible(character: str) -> bool:
    """Whether a character can stand in the page as it is."""
    return character in JOINERS or unicodedata.category(character) not in INVISIBLE


def name(character: str) -> str:
    """A visible stand-in: the control pictures of Unicode, else the code."""
    code = ord(character)
    return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"


def bdi(text: str) -> str:
    """A text of any direction, that leaves the direction of what is around it alone."""
    return f'<bdi dir="auto">{shown(text)}</bdi>'


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, kind: str = "") -> str:
    """A table of HTML cells whose first column names the row; it scrolls by itself where it is wider than the page."""
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>' for first, *rest in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption, quote=True)}">'
        f'<table class="{kind}"><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def bar(share: float, kind: str = "") -> str:
    """A bar of this share of its place, 0 to 1; what it says stands in words beside it."""
    return f'<span class="bar {kind}" aria-hidden="true"><i style="width:{100 * min(abs(share), 1):.1f}%"></i></span>'


def shape(letters: str, **sizes: int) -> str:
    """A shape in letters and in numbers: (S, D) = (9, 384)."""
    numbers = ", ".join(f"{sizes[letter]:,}" for letter in letters.split(", "))
    return f'<span class="shape">({letters}) = ({numbers})</span>'
