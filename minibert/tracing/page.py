"""A journey as one self-contained HTML page: a stop for each step of the computation, in its order.

    page.html   the frame, with page.css and SCRIPTS      parts.html  macros for the stops
    stops.html  the stops                                 data.py     the numbers that the scripts draw

The templates escape all text. Each step links to the line of the source that computes it, which is part of the page.
The line is found by a name that occurs in it: a module that the line calls, or a variable that it assigns. Such names
survive when a line is rewritten; if one is gone, the link leads to the function.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

import minibert
from minibert import heads as task_heads
from minibert import model
from minibert.tasks.frozen import Classifier
from minibert.templates import asset, diagram, templates
from minibert.text import tokenizer
from minibert.tracing.data import PAIR_TOKENS, choose, page_data
from minibert.tracing.journey import Decision, Journey
from minibert.vectors import readable

FOLDER, PACKAGE = Path(__file__).parent, Path(minibert.__file__).parent
SCRIPTS = ("numbers", "vectors", "attention", "pair", "units", "address", "page")  # .js, one function in this order
INVISIBLE = ("Cc", "Cf", "Co", "Cn", "Zl", "Zp")  # Unicode categories that show nothing or steer the text around them
JOINERS = "\u200c\u200d"  # hold emoji and Arabic or Indic letters together, and are left in place
TOP = 12  # dimensions of a decision that are listed

# Step -> the function that computes it, and a name in the line.
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
    "pooling": (readable.pool, "pooled"),
    "masked-lm": (task_heads.TokenPrediction.predict_tokens, "transform_norm"),
}


def page(
    journey: Journey, *, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None, annotated: str = ""
) -> str:
    """The whole page. layers, heads: which to offer (default: all, or fewer of a long text).

    annotated: the address, relative to the page, of the folder that `make annotated` writes; "" for no links to it.
    Raises ValueError for a layer or head that the model does not have.
    """
    choice = choose(journey, layers, heads)
    absent = {
        "segment embeddings": "segment" not in journey.embeddings,
        "wider embeddings": journey.embeddings["token"].shape == journey.hidden_states[0].shape,
        "pooler": journey.pooled is None,
        "masked-lm": not journey.predictions,
    }
    steps = [step for step in STEPS if not absent.get(step)]
    environment = templates(FOLDER)
    environment.filters |= {"seen": seen, "diagram": diagram}
    environment.filters["signed"] = lambda number: f"{number:+.4f}".replace("-", "−")
    environment.filters["plain"] = lambda number: f"{number:.3f}".replace("-", "−")
    return environment.get_template("page.html").render(
        trace=journey,
        layers=choice.layers,
        notes=[note for note in [*journey.notes, choice.message] if note],
        sizes=sizes(journey),
        tokens=tokens(journey),
        is_pair=1 in journey.sides,
        pair_tokens=PAIR_TOKENS,
        lines={step: line_of(step) for step in steps},
        listings=listings(steps),
        annotated=quote(annotated),
        sums=sums(journey.decision) if journey.decision else [],
        traced=tokens_of_decision(journey, journey.decision) if journey.decision else [],
        classifier_file=file_of(Classifier).relative_to(PACKAGE).as_posix(),
        data=page_data(journey, choice),
        style=asset(FOLDER / "page.css"),
        script=Markup("\n\n").join(asset(FOLDER / f"{name}.js") for name in SCRIPTS),
    )


def seen(text: str) -> str:
    """Text with invisible characters written out: NUL as ␀, U+202E as ⟨U+202E⟩."""
    return "".join(
        character
        if character in JOINERS or unicodedata.category(character) not in INVISIBLE
        else chr(0x2400 + ord(character))
        if ord(character) < 0x20
        else f"⟨U+{ord(character):04X}⟩"
        for character in text
    )


def sizes(journey: Journey) -> dict[str, int]:
    """The letters of shapes and their values."""
    config = journey.config
    return {
        "B": 1,
        "S": len(journey.tokens),
        "E": journey.embeddings["token"].shape[-1],
        "D": config.hidden_size,
        "H": config.num_attention_heads,
        "W": config.hidden_size // config.num_attention_heads,
        "F": config.intermediate_size,
        "V": config.vocab_size,
        "L": len(journey.layers),
    }


def tokens(journey: Journey) -> list[dict[str, Any]]:
    """Every token with its word, its kind (classes of the style sheet) and its characters in the text."""
    found: list[dict[str, Any]] = []
    for place, (token, word, side) in enumerate(zip(journey.tokens, journey.words, journey.sides, strict=True)):
        continues = bool(found) and found[-1]["word"] == word
        kind = "ab"[side] + " goes-on" * continues + " special" * (journey.word_ids[place] is None)
        text = (journey.text_b or "") if side else journey.text
        source = text[slice(*journey.offsets[place])]
        found.append({"place": place, "text": token, "word": word, "kind": kind, "source": source})
    return found


def tokens_of_decision(journey: Journey, decision: Decision) -> list[tuple[int, Any, float | None, float | None]]:
    """For every token its place, the decision without it, its part of the logit, and the attention of [CLS] to it."""
    masked = {one.place: one for one in journey.masked}
    logit = 0 if len(decision.logits) == 1 else decision.decided
    nothing = [None] * len(journey.tokens)
    adds = nothing if decision.by_token is None else decision.by_token[logit].tolist()
    reads_cls = decision.pooling in ("cls", "pooler") and max(decision.layers) > 0
    attended = journey.attention(max(decision.layers) - 1, "mean")[0].tolist() if reads_cls else nothing
    return [(place, masked.get(place), adds[place], attended[place]) for place in range(len(journey.tokens))]


def sums(decision: Decision) -> list[dict[str, Any]]:
    """For each logit of a decision the largest contributions, and all others together."""
    single = len(decision.logits) == 1
    found = []
    for k, parts in enumerate(decision.contributions):
        top = sorted(range(len(parts)), key=lambda d: -abs(parts[d]))[:TOP]
        largest = [(decision.columns[d], decision.coefficients[k, d], decision.standardised[d], parts[d]) for d in top]
        found.append(
            {
                "label": decision.labels[1] if single else decision.labels[k],
                "is_open": single or decision.decided == k,
                "largest": largest,
                "others": len(parts) - len(top),
                "rest": parts.sum() - parts[top].sum(),
                "intercept": decision.intercepts[k],
                "logit": decision.logits[k],
            }
        )
    return found


# ---------------------------------------------------------------------------------------------------------------
# The source


def line_of(step: str) -> tuple[str, int]:
    """The file and line of a step: the first line with its name, or else the line where its function begins."""
    function, name = STEPS[step]
    first = inspect.getsourcelines(function)[1]
    return file_of(function).name, first - 1 + min(lines_with(name, function), default=1)


def lines_with(name: str, function: Callable[..., Any]) -> list[int]:
    """The lines of a function's body, from 1 for its `def`, with a variable, attribute or argument of this name."""
    definition: Any = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    nodes: list[Any] = [node for statement in definition.body for node in ast.walk(statement)]
    named = [node for node in nodes if name in (getattr(node, part, None) for part in ("id", "attr", "arg"))]
    return [node.end_lineno for node in named]  # of a chain over several lines, the one with the name


def file_of(function: Callable[..., Any]) -> Path:
    """The file of a function."""
    return Path(inspect.getsourcefile(function) or "")


def listings(steps: Iterable[str]) -> list[tuple[str, int, list[Markup]]]:
    """The source of these steps, each with its path and first line: model.py whole, of other modules the functions."""
    found = [("model.py", 1, coloured(Path(model.__file__).read_text(encoding="utf-8")))]
    for function in dict.fromkeys(STEPS[step][0] for step in steps):
        path = file_of(function).relative_to(PACKAGE).as_posix()
        if path != "model.py":
            source, first = inspect.getsourcelines(function)
            found.append((path, first, coloured("".join(source))))
    return found


def coloured(source: str) -> list[Markup]:
    """Python as HTML, a string for each line, with a span around each coloured word; plain without Pygments."""
    try:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer
    except ImportError:
        return [escape(line) for line in source.splitlines()]
    shown = highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return [Markup(line) for line in shown.removesuffix("\n").split("\n")]
