"""A few words to draw with: boxes, arrows, labels, columns of tokens and of vectors, on a page for a phone.

A drawing is 400 units wide, its text 15 units high, so that on a page of 390 pixels no letter is below 13. It grows
downwards. Four colours have a meaning, the same in every drawing, and a legend names those that occur: tokens, vectors,
weights that are trained, weights that are frozen. Frozen ones have dashed borders too, for who sees no colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

WIDTH, MARGIN = 400, 16
SIZE, LINE = 15, 19  # of text: its height, and the distance of two lines
ROW = 26  # from one token to the next
HEAD = 9  # the length of an arrow's head
PALETTE = {  # each colour on a light page and on a dark one
    "page": ("#ffffff", "#14181d"),
    "ink": ("#1f2730", "#dfe5eb"),
    "soft": ("#55616e", "#a3afbc"),
    "token": ("#2f7d4a", "#7cc598"),
    "token-fill": ("#e3f1e6", "#183226"),
    "vector": ("#2f6db5", "#7db8ff"),
    "vector-fill": ("#dbe9f8", "#15304d"),
    "trained": ("#b4610a", "#f0a860"),
    "trained-fill": ("#fde8cf", "#40290f"),
    "frozen": ("#6d7985", "#8b98a5"),
    "frozen-fill": ("#eceef1", "#232a32"),
}
KINDS = ("token", "vector", "trained", "frozen")  # what has a colour; "trained" and "frozen" are weights
RULES = f"""
svg.diagram text {{ font: {SIZE}px system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: var(--ink);
  text-anchor: middle }}
svg.diagram text.start {{ text-anchor: start }}
svg.diagram text.end {{ text-anchor: end }}
svg.diagram text.mono {{ font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace }}
svg.diagram text.title {{ font-size: 17px; font-weight: 600 }}
svg.diagram text.strong {{ font-weight: 600 }}
svg.diagram text.soft {{ fill: var(--soft) }}
svg.diagram .paper {{ fill: var(--page) }}
svg.diagram .box > :first-child {{ fill: var(--page); stroke: var(--soft); stroke-width: 1.2 }}
svg.diagram .frame {{ fill: none; stroke: var(--soft); stroke-dasharray: 1 4; stroke-linecap: round }}
svg.diagram .arrow {{ fill: none; stroke: var(--soft); stroke-width: 1.5; stroke-linejoin: round }}
svg.diagram .arrow path {{ fill: var(--soft); stroke: none }}
svg.diagram .arrow.back {{ stroke: var(--trained); stroke-dasharray: 6 4 }}
svg.diagram .arrow.back path {{ fill: var(--trained) }}
svg.diagram .frozen > :first-child {{ stroke-dasharray: 4 3 }}
svg.diagram .cells {{ fill: none; stroke: var(--vector); stroke-width: .6; opacity: .55 }}
svg.diagram .empty > :first-child {{ stroke-opacity: .45 }}
svg.diagram .chosen > :first-child {{ stroke-width: 2.4 }}
""" + "\n".join(
    f"svg.diagram .{kind} > :first-child {{ fill: var(--{kind}-fill); stroke: var(--{kind}) }}" for kind in KINDS
)


def colours(scheme: int) -> str:
    """The palette as CSS variables; scheme: 0 light, 1 dark."""
    return " ".join(f"--{name}: {pair[scheme]};" for name, pair in PALETTE.items())


STYLE = f"""svg.diagram {{ {colours(0)} }}
@media (prefers-color-scheme: dark) {{ svg.diagram {{ {colours(1)} }} }}
{RULES.strip()}"""
# The same for a page that has a switch: its root element says data-theme="light" or "dark".
SWITCHED = f"""{STYLE}
[data-theme="light"] svg.diagram {{ {colours(0)} }}
[data-theme="dark"] svg.diagram {{ {colours(1)} }}"""


class Point(NamedTuple):
    """A place, from the upper left corner."""

    x: float
    y: float

    def moved(self, x: float = 0, y: float = 0) -> Point:
        """The place that lies this far to the right, and this far down."""
        return Point(self.x + x, self.y + y)


class Box(NamedTuple):
    """A rectangle, by its upper left corner and its size."""

    x: float
    y: float
    width: float
    height: float

    @property
    def centre(self) -> Point:
        """The middle."""
        return Point(self.x + self.width / 2, self.y + self.height / 2)

    @property
    def top(self) -> Point:
        """The middle of the upper side."""
        return Point(self.centre.x, self.y)

    @property
    def bottom(self) -> Point:
        """The middle of the lower side."""
        return Point(self.centre.x, self.y + self.height)

    @property
    def left(self) -> Point:
        """The middle of the left side."""
        return Point(self.x, self.centre.y)

    @property
    def right(self) -> Point:
        """The middle of the right side."""
        return Point(self.x + self.width, self.centre.y)


class Drawing:
    """What has been drawn so far."""

    def __init__(self, name: str, title: str, description: str) -> None:
        self.name, self.title, self.description = name, title, " ".join(description.split())
        self.parts: list[str] = []
        self.kinds: set[str] = set()
        self.end = 0.0  # the lowest place that was drawn on
        self.text(Point(MARGIN, 27), title, "title start")

    def reach(self, y: float) -> None:
        """The page is at least this long."""
        self.end = max(self.end, y)

    def text(self, at: Point, text: str, style: str = "") -> None:
        """Lines of text, centred on a place, or beginning ("start") or ending ("end") there."""
        self.parts.append(lines(at, text, style))
        self.reach(at.y + LINE * len(text.split("\n")) / 2)

    def box(self, box: Box, text: str = "", kind: str = "", style: str = "", radius: float = 6) -> Box:
        """A box with text in its middle."""
        self.kinds.update(kind.split())
        shape = f'<rect {place(box)} rx="{radius:g}"/>'
        self.parts.append(f'<g class="{" ".join(["box", *kind.split()])}">{shape}{lines(box.centre, text, style)}</g>')
        self.reach(box.bottom.y)
        return box

    def frame(self, box: Box) -> Box:
        """A dotted line around what belongs together."""
        self.parts.append(f'<rect class="frame" {place(box)} rx="10"/>')
        self.reach(box.bottom.y)
        return box

    def sign(self, at: Point, sign: str) -> Box:
        """A sign of arithmetic in a circle."""
        return self.box(Box(at.x - 12, at.y - 12, 24, 24), sign, radius=12)

    def arrow(self, *points: Point, kind: str = "") -> None:
        """A line through these places, with its head at the last. Its parts run along the page's sides."""
        (x, y), (before_x, before_y) = points[-1], points[-2]
        right, down = sign_of(x - before_x), sign_of(y - before_y)
        back = Point(x - HEAD * right, y - HEAD * down)
        sides = [back.moved(down * HEAD / 2, right * HEAD / 2), back.moved(-down * HEAD / 2, -right * HEAD / 2)]
        head = f'<path d="M{pair(points[-1])} L{pair(sides[0])} L{pair(sides[1])} Z"/>'
        line = f'<polyline points="{" ".join(pair(point) for point in [*points[:-1], back])}"/>'
        self.parts.append(f'<g class="{" ".join(["arrow", *kind.split()])}">{line}{head}</g>')

    def vector(self, box: Box, cells: int = 8, kind: str = "vector") -> Box:
        """A strip of numbers."""
        self.kinds.update(kind.split())
        between = (box.x + box.width * number / cells for number in range(1, cells))
        walls = " ".join(f"M{x:g} {box.y:g} v{box.height:g}" for x in between)
        self.parts.append(f'<g class="box {kind}"><rect {place(box)} rx="2"/><path class="cells" d="{walls}"/></g>')
        self.reach(box.bottom.y)
        return box

    def vectors(
        self, x: float, y: float, width: float, rows: int, step: float = ROW, cells: int = 8, chosen: int = -1
    ) -> list[Box]:
        """A vector for each of these rows, each `step` below the one before; one may be chosen, its border thick."""
        height = min(14, step - 3)
        top = y + (step - height) / 2
        return [
            self.vector(Box(x, top + step * row, width, height), cells, "vector chosen" if row == chosen else "vector")
            for row in range(rows)
        ]

    def grid(self, corner: Point, cell: float, seen: Sequence[Sequence[bool]], chosen: int = -1) -> Box:
        """A square of cells, those that are `seen` filled; one row may be chosen, its border thick."""
        size = len(seen)
        for row, column in ((row, column) for row in range(size) for column in range(size)):
            at = Box(corner.x + cell * column + 1, corner.y + cell * row + 1, cell - 2, cell - 2)
            kind = f"box {'vector' if seen[row][column] else 'empty'}{' chosen' if row == chosen else ''}"
            self.parts.append(f'<g class="{kind}"><rect {place(at)} rx="2"/></g>')
        self.reach(corner.y + cell * size)
        return Box(*corner, cell * size, cell * size)

    def upright(self, at: Point, text: str) -> None:
        """A token that is read from below to above, and begins there."""
        self.parts.append(
            f'<text class="start mono" transform="translate({at.x + SIZE * 0.35:g} {at.y:g}) rotate(-90)">'
            f"{escape(text)}</text>"
        )

    def tokens(self, x: float, y: float, tokens: Sequence[str], width: float = 100, chosen: int = -1) -> list[Box]:
        """A column of tokens, one in each row; one may be chosen, its border thick."""
        return [
            self.box(
                Box(x, y + ROW * row + 2, width, ROW - 4),
                token,
                "token chosen" if row == chosen else "token",
                "mono",
                radius=4,
            )
            for row, token in enumerate(tokens)
        ]

    def legend(self) -> Drawing:
        """What the colours mean, those that occur, in one row below all else."""
        y, step = self.end + 30, (WIDTH - 2 * MARGIN) / len(KINDS)
        for number, kind in enumerate(kind for kind in KINDS if kind in self.kinds):
            left = MARGIN + step * number
            self.box(Box(left, y - 7, 14, 14), kind=kind, radius=3)
            self.text(Point(left + 20, y), kind, "start soft")
        return self

    def svg(self, style: bool = True) -> Markup:
        """The whole as SVG; style: with the style sheet in it, as a file of its own needs."""
        name, height = f"diagram-{self.name}", self.end + MARGIN
        sheet = f"<style>\n{STYLE}\n</style>\n" if style else ""
        body = "\n".join(self.parts)
        return Markup(
            f'<svg xmlns="http://www.w3.org/2000/svg" class="diagram" role="img" viewBox="0 0 {WIDTH} {height:g}" '
            f'width="{WIDTH}" height="{height:g}" aria-labelledby="{name}-title {name}-desc">\n'
            f'<title id="{name}-title">{escape(self.title)}</title>\n'
            f'<desc id="{name}-desc">{escape(self.description)}</desc>\n'
            f'{sheet}<rect class="paper" width="{WIDTH}" height="{height:g}" rx="10"/>\n{body}\n</svg>\n'
        )


def across(count: int, gap: float, left: float = MARGIN, right: float = WIDTH - MARGIN) -> list[tuple[float, float]]:
    """Where columns of one width begin, and that width, with this gap between them."""
    width = (right - left - gap * (count - 1)) / count
    return [(left + (width + gap) * number, width) for number in range(count)]


def lines(at: Point, text: str, style: str) -> str:
    """SVG of one text element a line; the middle of all lines is at the height of `at`."""
    rows = text.split("\n") if text else []
    middle = at.y + SIZE * 0.35 - LINE * (len(rows) - 1) / 2
    kind = f' class="{style}"' if style else ""
    return "".join(
        f'<text x="{at.x:g}" y="{middle + LINE * number:g}"{kind}>{escape(row)}</text>'
        for number, row in enumerate(rows)
    )


def place(box: Box) -> str:
    """The attributes of a rectangle."""
    return f'x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}"'


def pair(point: Point) -> str:
    """A place as SVG has it."""
    return f"{point.x:g},{point.y:g}"


def sign_of(number: float) -> int:
    """-1, 0 or 1."""
    return (number > 0) - (number < 0)


def shape(*sizes: int) -> str:
    """A shape, (9, 384)."""
    return f"({', '.join(map(str, sizes))})"
