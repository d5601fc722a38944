"""A journey as one self-contained HTML page: a stop for each step of the computation, in its order.

    page.html   the frame, with page.css and SCRIPTS      parts.html  macros for the stops
    stops.html  the stops                                 numbers.py  what the scripts draw
    live.html   what the page that computes has more      bert.js     its forward pass, which run.js calls

The templates escape all text. Each step links to the line of the source that computes it, which is part of the page.
The line is found by a piece of its code, such as the module that it calls; without it, the link leads to the function.
"""

import inspect
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment
from markupsafe import Markup, escape

import minibert
from minibert import heads as task_heads
from minibert import model
from minibert.families import electra, modernbert
from minibert.families.base import Architecture
from minibert.prediction.frozen import Classifier
from minibert.text import tokenizer
from minibert.tracing.journey import Decision, Journey
from minibert.tracing.live import Live
from minibert.tracing.numbers import PAIR_TOKENS, outline, page_data, reach, select, sizes
from minibert.utils.templates import asset, coloured, diagram, templates
from minibert.vectors import readable

FOLDER = Path(__file__).parent
PACKAGE = Path(minibert.__file__).parent
SCRIPTS = ("numbers", "vectors", "attention", "pair", "units", "ablation", "address")  # .js, in this order
INVISIBLE = ("Cc", "Cf", "Co", "Cn", "Zl", "Zp")  # Unicode categories that show nothing or steer the text around them
JOINERS = "\u200c\u200d"  # hold emoji and Arabic or Indic letters together, and are left in place
TOP = 12  # dimensions of a decision that are listed

# Step -> the class or module that computes it, its function, and code of the line. A relative may have a subclass.
STEPS: dict[str, tuple[Any, str, str]] = {
    "tokens": (tokenizer.Tokenizer, "encode_texts", "rows[field] += "),
    "ids": (model.Encoder, "forward", "as_inputs("),
    "token embeddings": (model.Embeddings, "add", "self.token("),
    "segment embeddings": (model.Embeddings, "add", "self.segment(segments)"),
    "position embeddings": (model.Embeddings, "add", "self.position("),
    "embeddings": (model.Embeddings, "forward", "self.norm("),
    "projected embeddings": (electra.ProjectedEmbeddings, "forward", "self.embedding_projection("),
    "layers": (model.Encoder, "through_layers", "self.layers[number]("),
    "query, key, value": (model.SelfAttention, "project", "self.query"),
    "rotation": (modernbert.RotaryAttention, "forward", "query = rotate("),
    "scores": (model, "eager_attention", "scores = query"),
    "softmax": (model, "eager_attention", "scores.softmax("),
    "context": (model, "eager_attention", "context = "),
    "output": (model.SelfAttention, "forward", "self.output("),
    "attention norm": (model.Layer, "forward", "self.attention_norm("),
    "feed-forward": (model.FeedForward, "forward", "self.contract("),
    "feed-forward norm": (model.Layer, "forward", "self.feed_forward_norm("),
    "final norm": (modernbert.PreNormEncoder, "through_layers", "self.final_norm("),
    "final": (model.Encoder, "forward", "EncoderOutput("),
    "pooler": (model.Pooler, "forward", "torch.tanh("),
    "pooling": (readable, "pool", "pooled = "),
    "masked-lm": (task_heads.TokenPrediction, "predict_tokens", "self.transform_norm("),
}


def page(
    journey: Journey,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    annotated: str = "",
    live: Live | None = None,
) -> str:
    """Return the whole page. layers, heads: which to offer (default: all, or fewer for a long text).

    annotated: the address, relative to the page, of the folder that `make annotated` writes; "" for no links to it.
    live: what the page needs to compute by itself, all layers and heads of it; it opens with the text of the journey.
    Raises ValueError for a layer or head that the model does not have.
    """
    everything = range(len(journey.layers)), range(journey.config.num_attention_heads)
    selection = select(journey, *(everything if live else (layers, heads)))
    guesses = live.has_head if live else bool(journey.predictions)
    steps = steps_of(journey, guesses)
    architecture = journey.config.architecture
    is_head = journey.decision is not None and journey.decision.is_head
    decider = task_heads.SequenceClassification if is_head else Classifier
    template = page_templates().get_template("page.html")
    return template.render(
        trace=journey,
        live=live,
        guesses=guesses,
        layers=selection.layers,
        notes=[] if live else [note for note in [*journey.notes, selection.message] if note],
        sizes=sizes(journey),
        tokens=tokens(journey),
        is_pair=1 in journey.sides,
        pair_tokens=PAIR_TOKENS,
        reach=reach(journey.config),
        lines={step: line_of(step, architecture) for step in steps},
        listings=listings(steps, architecture, live=live is not None),
        annotated=quote(annotated),
        sums=sums(journey.decision) if journey.decision else [],
        traced=tokens_of_decision(journey, journey.decision) if journey.decision else [],
        decider=f"{decider.__name__} in minibert/{Path(inspect.getfile(decider)).relative_to(PACKAGE).as_posix()}",
        data=outline(journey, selection) | opening(journey, live) if live else page_data(journey, selection),
        style=asset(FOLDER / "page.css"),
        script=scripts(*SCRIPTS, *(["live"] if live else []), "page"),
        computation=scripts("bert", "run"),
    )


def page_templates() -> Environment:
    """Return the templates of this folder, with the filters that they use."""
    environment = templates(FOLDER)
    environment.filters |= {
        "seen": seen,
        "diagram": diagram,
        "signed": lambda number: f"{number:+.4f}".replace("-", "−"),
        "plain": lambda number: f"{number:.3f}".replace("-", "−"),
    }
    return environment


def scripts(*names: str) -> Markup:
    """Return our own scripts, in this order."""
    return Markup("\n\n").join(asset(FOLDER / f"{name}.js") for name in names)


def opening(journey: Journey, live: Live) -> dict[str, Any]:
    """Return with what a page that computes starts: texts, nothing changed, and the most tokens it reads."""
    start = {"text": journey.text, "second": journey.text_b or "", "other": "", "changes": [], "lens": -1}
    return {"start": start, "max_length": live.settings["max_length"]}


def steps_of(journey: Journey, guesses: bool) -> list[str]:
    """Return the steps that this model has, in the order of STEPS; guesses: whether a masked LM's are on the page."""
    norm_first = journey.config.architecture.norm_first
    absent = {
        "segment embeddings": "segment" not in journey.embeddings,
        "position embeddings": "position" not in journey.embeddings,
        "embeddings": "sum" not in journey.embeddings,
        "rotation": not journey.config.architecture.rotary_thetas,
        "feed-forward norm": journey.is_parallel,
        "final norm": not norm_first,
        "projected embeddings": journey.embeddings["token"].shape == journey.hidden_states[0].shape,
        "pooler": journey.pooled is None,
        "masked-lm": not guesses,
    }
    return [step for step in STEPS if not absent.get(step)]


def seen(text: str) -> str:
    """Return a text with invisible characters written out: NUL as ␀, U+202E as ⟨U+202E⟩."""
    return "".join(
        character
        if character in JOINERS or unicodedata.category(character) not in INVISIBLE
        else chr(0x2400 + ord(character))
        if ord(character) < 0x20
        else f"⟨U+{ord(character):04X}⟩"
        for character in text
    )


def tokens(journey: Journey) -> list[dict[str, Any]]:
    """Return every token with its word, its kind (classes of the style sheet) and its characters in the text."""
    rows: list[dict[str, Any]] = []
    for place, (token, word, side) in enumerate(zip(journey.tokens, journey.words, journey.sides, strict=True)):
        continues = bool(rows) and rows[-1]["word"] == word
        kind = "ab"[side] + " goes-on" * continues + " special" * (journey.word_ids[place] is None)
        text = (journey.text_b or "") if side else journey.text
        rows.append(
            {"place": place, "text": token, "word": word, "kind": kind, "source": text[slice(*journey.offsets[place])]}
        )
    return rows


def tokens_of_decision(journey: Journey, decision: Decision) -> list[tuple[int, Any, float | None, float | None]]:
    """Return for every token its place, the decision without it, its part of the logit, and [CLS]'s attention to it."""
    masked = {without.place: without for without in journey.masked}
    logit = 0 if len(decision.logits) == 1 else decision.decided
    nothing = [None] * len(journey.tokens)
    adds = nothing if decision.by_token is None else decision.by_token[logit].tolist()
    reads_cls = decision.pooling in ("cls", "pooler") and max(decision.layers) > 0
    attended = journey.attention(max(decision.layers) - 1, "mean")[0].tolist() if reads_cls else nothing
    return [(place, masked.get(place), adds[place], attended[place]) for place in range(len(journey.tokens))]


def sums(decision: Decision) -> list[dict[str, Any]]:
    """Return for each logit of a decision the largest contributions, and all others together."""
    single = len(decision.logits) == 1
    rows = []
    for k, parts in enumerate(decision.contributions):
        top = sorted(range(len(parts)), key=lambda d: -abs(parts[d]))[:TOP]
        largest = [(decision.columns[d], decision.coefficients[k, d], decision.standardised[d], parts[d]) for d in top]
        rows.append(
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
    return rows


# ---------------------------------------------------------------------------------------------------------------
# The source


def function_of(step: str, architecture: Architecture) -> Callable[..., Any]:
    """Return the function that computes a step in this architecture: the one with its code, of the nearest class."""
    owner, name, code = STEPS[step]
    if not isinstance(owner, type):
        return getattr(owner, name)  # type: ignore[no-any-return]  # a function
    kinds = (kind for kind in vars(architecture).values() if isinstance(kind, type) and issubclass(kind, owner))
    functions: list[Callable[..., Any]] = [
        vars(kind)[name] for kind in next(kinds, owner).__mro__ if name in vars(kind)
    ]
    return next((function for function in functions if code in inspect.getsource(function)), functions[0])


def line_of(step: str, architecture: Architecture) -> tuple[str, int]:
    """Return the file and line of a step: the first line of its function with its code, or where it begins."""
    function = function_of(step, architecture)
    source, first = inspect.getsourcelines(function)
    below = next((place for place, line in enumerate(source) if STEPS[step][2] in line), 0)
    return Path(inspect.getfile(function)).name, first + below


def listings(steps: Iterable[str], architecture: Architecture, live: bool) -> list[tuple[str, int, list[Markup]]]:
    """Return the source of these steps, with path and first line: all of model.py, and functions of other modules.

    live: also what computes in the page.
    """
    shown_files = [("minibert/model.py", 1, coloured(Path(model.__file__).read_text(encoding="utf-8")))]
    if live:
        script = asset(FOLDER / "bert.js").splitlines()
        shown_files.insert(0, ("minibert/tracing/bert.js", 1, [escape(line) for line in script]))
    for function in dict.fromkeys(function_of(step, architecture) for step in steps):
        path = Path(inspect.getfile(function))
        shown = path.relative_to(PACKAGE.parent).as_posix() if path.is_relative_to(PACKAGE) else path.name
        if shown != "minibert/model.py":
            source, first = inspect.getsourcelines(function)
            shown_files.append((shown, first, coloured("".join(source))))
    return shown_files
