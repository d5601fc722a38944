"""Which line of the source computes what, and that source as HTML: the links of the trace page lead to its own end.

A step is found by a name that stands in its line: a module that the line calls, or what it assigns. Such names carry
over when a line is rewritten or laid out anew, and where one is gone the link leads to the function.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

import minibert
from minibert import heads, model
from minibert.text import tokenizer
from minibert.vectors import pooling

# Step -> the function that computes it, and the name whose first mention there is the line.
STEPS: dict[str, tuple[Callable[..., Any], str]] = {
    "tokens": (tokenizer.Tokenizer._row, "ids"),
    "ids": (model.Encoder.forward, "as_inputs"),
    "token embeddings": (model.Embeddings.forward, "token"),
    "segment embeddings": (model.Embeddings.forward, "segments"),
    "position embeddings": (model.Embeddings.forward, "position"),
    "embeddings": (model.Embeddings.forward, "norm"),
    "wider embeddings": (model.Embeddings.forward, "embedding_projection"),
    "layers": (model.Encoder.forward, "probs"),
    "query, key, value": (model.SelfAttention.forward, "query"),
    "scores": (model.eager_attention, "scores"),
    "softmax": (model.eager_attention, "softmax"),
    "context": (model.eager_attention, "context"),
    "output": (model.SelfAttention.forward, "output"),
    "attention norm": (model.Layer.forward, "attention_norm"),
    "feed-forward": (model.FeedForward.forward, "contract"),
    "feed-forward norm": (model.Layer.forward, "feed_forward_norm"),
    "final": (model.Encoder.forward, "EncoderOutput"),
    "pooler": (model.Pooler.forward, "tanh"),
    "pooling": (pooling.pool_tokens, "states"),
    "masked-lm": (heads.TokenPrediction.predict_tokens, "transform_norm"),
}
PACKAGE = Path(minibert.__file__).parent


@dataclass(frozen=True)
class Line:
    """One line of the source."""

    file: str
    number: int  # from 1

    @property
    def anchor(self) -> str:
        """The id of the line in the page."""
        return f"{self.file}-L{self.number}"


@dataclass(frozen=True)
class Listing:
    """A stretch of the source, as the page shows it."""

    path: str  # from the package
    first: int  # the number of its first line
    lines: list[Markup]

    @property
    def file(self) -> str:
        """The name of the file."""
        return Path(self.path).name


def line_of(step: str) -> Line:
    """Where a step is computed: the first line that mentions its name, or else the line where its function begins."""
    function, name = STEPS[step]
    first, mentions = inspect.getsourcelines(function)[1], lines_that_mention(name, function)
    return Line(file_of(function).name, first - 1 + min(mentions, default=1))


def lines_that_mention(name: str, function: Callable[..., Any]) -> list[int]:
    """The lines of a function's body, from 1 for its `def`, with a variable, an attribute or a keyword of this name."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(definition, ast.FunctionDef)
    found = []
    for node in (inner for statement in definition.body for inner in ast.walk(statement)):
        match node:
            case ast.Name(id=mentioned) | ast.Attribute(attr=mentioned) | ast.keyword(arg=mentioned):
                if mentioned == name:
                    found.append(node.end_lineno or node.lineno)  # of a chain over many lines, where the name stands
    return found


def file_of(function: Callable[..., Any]) -> Path:
    """The file of a function."""
    return Path(inspect.getsourcefile(function) or "")


def listings(steps: Iterable[str]) -> list[Listing]:
    """The source behind these steps: model.py whole, of the other rooms the functions."""
    whole = coloured(Path(model.__file__).read_text(encoding="utf-8"))
    found = [Listing("model.py", 1, whole)]
    for function in dict.fromkeys(STEPS[step][0] for step in steps):
        path = file_of(function).relative_to(PACKAGE).as_posix()
        if path != "model.py":
            source, first = inspect.getsourcelines(function)
            found.append(Listing(path, first, coloured("".join(source))))
    return found


def coloured(source: str) -> list[Markup]:
    """Python as HTML, a string a line, with a span around each word that has a colour; plain without Pygments."""
    try:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer
    except ImportError:
        return [escape(line) for line in source.splitlines()]
    shown = highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return [Markup(line) for line in shown.removesuffix("\n").split("\n")]
