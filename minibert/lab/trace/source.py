"""Which line of the source computes what, and that source as HTML: the links of the trace page lead to its own end.

The lines are found in the source as it is installed, so a link cannot point to where the code once was.
"""

from __future__ import annotations

import inspect
import io
import keyword
import tokenize
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from minibert import heads, model
from minibert.text import tokenizer
from minibert.vectors import pooling

# Step -> the function that computes it, and what stands in the line.
STEPS: dict[str, tuple[Callable[..., Any], str]] = {
    "tokens": (tokenizer.Tokenizer._row, "ids = frame(self.cls_id"),
    "ids": (model.Encoder.forward, "check_inputs(self.config"),
    "token embeddings": (model.Embeddings.forward, "self.token(input_ids)"),
    "segment embeddings": (model.Embeddings.forward, "self.segment(segments)"),
    "position embeddings": (model.Embeddings.forward, "self.position(positions)"),
    "embeddings": (model.Embeddings.forward, "self.norm(x)"),
    "layers": (model.Encoder.forward, "x, probs = layer("),
    "query, key, value": (model.SelfAttention.forward, "query, key, value = "),
    "scores": (model.eager_attention, "scores = query @ key"),
    "softmax": (model.eager_attention, "scores.softmax"),
    "context": (model.eager_attention, "context = probs @ value"),
    "output": (model.SelfAttention.forward, "return self.output(context)"),
    "attention norm": (model.Layer.forward, "x = self.attention_norm("),
    "feed-forward": (model.FeedForward.forward, "self.contract(self.activation("),
    "feed-forward norm": (model.Layer.forward, "x = self.feed_forward_norm("),
    "final": (model.Encoder.forward, "last_hidden_state=x"),
    "pooler": (model.Pooler.forward, "torch.tanh(self.dense(x[:, 0]))"),
    "pooling": (pooling.pool_tokens, "return states[:, 0]"),
    "masked-lm": (heads.TokenPrediction.predict_tokens, "self.transform_norm("),
}
WHOLE = "model.py"  # is shown from its first line to its last; of other rooms only the function


@dataclass(frozen=True)
class Line:
    """One line of the source."""

    file: str
    number: int  # from 1

    @property
    def anchor(self) -> str:
        """The id of the line in the page."""
        return f"{self.file}-L{self.number}"


def line_of(step: str) -> Line:
    """Where a step is computed. Raises LookupError where the source no longer has that line."""
    function, code = STEPS[step]
    lines, first = inspect.getsourcelines(function)
    for number, line in enumerate(lines, first):
        if code in line:
            return Line(file_of(function).name, number)
    raise LookupError(f"{function.__qualname__} has no line with {code!r}, which STEPS names for {step!r}")


def file_of(function: Callable[..., Any]) -> Path:
    """The file of a function."""
    return Path(inspect.getsourcefile(function) or "")


def links(steps: Iterable[str], annotated: str = "") -> str:
    """Links to the lines of these steps; with `annotated`, an address, to the annotated model.html as well."""
    found = []
    for step in steps:
        line = line_of(step)
        text = f'<a href="#{line.anchor}">{escape(step)} <span class="line">{line.file}:{line.number}</span></a>'
        if annotated and line.file == WHOLE:
            address = f"{quote(annotated)}/model.html#L{line.number}"
            text += f' <a class="more" href="{address}" aria-label="{escape(step)}, annotated">annotated</a>'
        found.append(f"<li>{text}</li>")
    return f'<ul class="links" aria-label="computed at">{"".join(found)}</ul>'


def listings(steps: Iterable[str]) -> str:
    """The source behind these steps: model.py whole, of the other rooms the functions."""
    parts = [listing(WHOLE, 1, coloured(Path(model.__file__).read_text(encoding="utf-8")))]
    for function in dict.fromkeys(STEPS[step][0] for step in steps):
        file = file_of(function)
        if file.name != WHOLE:
            lines, first = inspect.getsourcelines(function)
            whole = coloured(file.read_text(encoding="utf-8"))
            parts.append(listing(file.name, first, whole[first - 1 : first - 1 + len(lines)]))
    return "".join(parts)


def listing(file: str, first: int, lines: list[str]) -> str:
    """Lines of HTML with their numbers and anchors."""
    rows = "".join(
        f'<span id="{file}-L{number}" class="row"><i>{number}</i>{line or " "}\n</span>'
        for number, line in enumerate(lines, first)
    )
    return f'<h3>minibert/{file}</h3><pre class="source" tabindex="0" aria-label="{file}"><code>{rows}</code></pre>'


def coloured(source: str) -> list[str]:
    """Python as HTML, a string a line: comments, strings and keywords in spans; nothing else is changed."""
    lines = source.splitlines()
    pieces: list[list[str]] = [[] for _ in lines]
    done = [0] * len(lines)  # how many characters of each line are written

    def write(row: int, end: int, kind: str) -> None:
        text = escape(lines[row][done[row] : end])
        pieces[row].append(f'<span class="{kind}">{text}</span>' if kind and text else text)
        done[row] = end

    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = {tokenize.COMMENT: "comment", tokenize.STRING: "string"}.get(token.type, "")
        if token.type == tokenize.NAME and keyword.iskeyword(token.string):
            kind = "keyword"
        if kind:
            (first, start), (last, end) = token.start, token.end
            write(first - 1, start, "")
            for row in range(first - 1, last):
                write(row, end if row == last - 1 else len(lines[row]), kind)
    for row, line in enumerate(lines):
        write(row, len(line), "")
    return ["".join(parts) for parts in pieces]
