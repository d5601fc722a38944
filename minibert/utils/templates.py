"""HTML pages from Jinja2 templates: values are escaped once, where the template writes them; source in colours."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

DIAGRAMS = Path(__file__).parents[1] / "data" / "diagrams"


def templates(folder: Path) -> Environment:
    """Return the templates of a folder. An undefined name is an error, and so is NaN in JSON."""
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # tojson writes ASCII without <, > and &, which is safe inside HTML.
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def diagram(name: str) -> Markup:
    """Return a diagram of data/diagrams as part of a page; data-theme on the root element overrides its colours."""
    return Markup((DIAGRAMS / f"{name}.svg").read_text(encoding="utf-8"))


def asset(path: Path) -> Markup:
    """Return one of our own style sheets or scripts, which a page contains without escaping."""
    return Markup(path.read_text(encoding="utf-8").strip())


def coloured(source: str) -> list[Markup]:
    """Return Python source as HTML, one string per line, with words in colours; without Pygments it is plain."""
    try:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer
    except ImportError:
        return [escape(line) for line in source.splitlines()]
    shown = highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return [Markup(line) for line in shown.removesuffix("\n").split("\n")]
