"""A trace as one self-contained HTML page: a stop for each step of the computation, in its order.

    page = page.html with: style (page.css), script (page.js), data (data.py), stops (stops.py)

Text is escaped once, where it enters the page: by `shown` as HTML, by `as_json` in the data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from minibert.lab.trace.data import choose, page_data
from minibert.lab.trace.markup import bdi, shown
from minibert.lab.trace.run import Trace
from minibert.lab.trace.stops import follow, map_of, stops

ASSETS = files("minibert.lab.trace")


def page(
    trace: Trace,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    annotated: str = "",
) -> str:
    """The whole page. layers, heads: which to offer (default: all, or what a long text leaves room for).

    annotated: the address, seen from the page, of the folder that `make annotated` writes; "" links to none.
    Raises ValueError for a layer or head that the model does not have.
    """
    choice = choose(trace, layers, heads)
    drawn = stops(trace, choice, annotated)
    texts = [bdi(text) if text else "(empty)" for text in (trace.text, trace.text_b) if text is not None]
    parts = {
        "title": f"{shown(trace.text[:60].strip()) or 'empty text'} · minibert trace",
        "style": asset("page.css"),
        "script": asset("page.js"),
        "data": as_json(page_data(trace, choice)),
        "model": shown(trace.model),
        "sentence": '<span class="soft"> + </span>'.join(texts),
        "summary": summary(trace),
        "notes": "".join(f'<p class="note">{escape(note)}</p>' for note in [*trace.notes, choice.message] if note),
        "map": map_of(drawn),
        "follow": follow(trace),
        "stops": "".join(stop.html for stop in drawn),
    }
    # In one pass: a text may hold {{data}}, and that is then no place to fill.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], asset("page.html"))


def asset(name: str) -> str:
    """A file beside this one."""
    return (ASSETS / name).read_text(encoding="utf-8").strip()


def as_json(data: dict[str, Any]) -> str:
    """JSON that no HTML parser can mistake: without <, > and &, and in ASCII, control characters and all."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def summary(trace: Trace) -> str:
    """What the reader is about to see, with the sizes of this model."""
    config, S = trace.config, len(trace.tokens)
    L, H, D = config.num_hidden_layers, config.num_attention_heads, config.hidden_size
    family = "DistilBERT" if config.model_type == "distilbert" else "BERT"
    return (
        f"{'Two texts become' if trace.text_b is not None else 'The text becomes'} {S} tokens, each a vector of {D} "
        f"numbers, and these vectors pass through {L} layer{'s' * (L > 1)} with {H} attention head{'s' * (H > 1)} "
        f"each. Everything below was computed by minibert/model.py for this text; the model is of the family {family}. "
        'Letters: <span class="shape">B</span> texts, <span class="shape">S</span> tokens, '
        '<span class="shape">D</span> hidden size, <span class="shape">H</span> heads, '
        '<span class="shape">W</span> width of a head, <span class="shape">F</span> feed-forward size, '
        '<span class="shape">V</span> vocabulary.'
    )


def frame(html: str, height: int = 820) -> str:
    """The page in a frame of its own, for a notebook."""
    return (
        f'<iframe title="minibert trace" srcdoc="{escape(html, quote=True)}" width="100%" height="{height}" '
        'style="border: 1px solid #8886; border-radius: 8px"></iframe>'
    )
