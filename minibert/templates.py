"""Pages from Jinja2 templates, which torch brings: what a template is given is escaped, once, where it is written."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

DIAGRAMS = Path(__file__).parent / "data" / "diagrams"


def templates(folder: Path) -> Environment:
    """The templates of a folder. A name that they do not have is an error, and so is NaN in their JSON."""
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # tojson writes ASCII without <, > and &, which no HTML parser can mistake.
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def diagram(name: str) -> Markup:
    """A diagram of data/diagrams as part of a page; data-theme on the page's root element overrides its colours."""
    return Markup((DIAGRAMS / f"{name}.svg").read_text(encoding="utf-8"))


def asset(path: Path) -> Markup:
    """A style sheet or script of ours, which goes into a page as it is."""
    return Markup(path.read_text(encoding="utf-8").strip())
