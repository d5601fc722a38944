"""A journey as one self-contained HTML page: a stop for each step of the computation, in its order.

    page.html   the frame, with page.css and SCRIPTS      parts.html  what the stops are put together from
    stops.html  the stops                                 data.py     the numbers that the scripts draw

The templates escape what they are given, so a text is escaped once, where it enters the page.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from minibert.tasks.frozen import Classifier
from minibert.templates import asset, diagram, templates
from minibert.tracing.data import PAIR_TOKENS, choose, page_data
from minibert.tracing.decision import Decision, Masked
from minibert.tracing.journey import Journey
from minibert.tracing.source import PACKAGE, STEPS, file_of, line_of, listings

FOLDER = Path(__file__).parent
SCRIPTS = ("numbers", "vectors", "attention", "pair", "units", "address", "page")  # .js, one function in this order
INVISIBLE = ("Cc", "Cf", "Co", "Cn", "Zl", "Zp")  # Unicode categories that show nothing or steer the text around them
JOINERS = "\u200c\u200d"  # hold emoji and Arabic or Indic letters together, and are left in place
TOP = 12  # dimensions of a decision that are listed


class Token(NamedTuple):
    """One token as the page writes it."""

    place: int
    text: str
    word: int  # counted through the row
    kind: str  # classes: a or b for its text, whether it goes on a word, whether it is special
    source: str  # the characters of the text that it stands for


class Part(NamedTuple):
    """What one column of the vector adds to a logit: part = coefficient · standardised."""

    column: str
    coefficient: float
    standardised: float
    part: float


class Sum(NamedTuple):
    """What makes one logit of a decision."""

    label: str
    is_open: bool  # shown at once
    largest: list[Part]
    others: int  # columns that are not in `largest`
    rest: float  # their contribution
    intercept: float
    logit: float


def page(
    journey: Journey, *, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None, annotated: str = ""
) -> str:
    """The whole page. layers, heads: which to offer (default: all, or what a long text leaves room for).

    annotated: the address, seen from the page, of the folder that `make annotated` writes; "" links to none.
    Raises ValueError for a layer or head that the model does not have.
    """
    choice = choose(journey, layers, heads)
    steps = steps_of(journey)
    environment = templates(FOLDER)
    environment.filters |= {"seen": seen, "signed": signed, "plain": plain, "diagram": diagram}
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
        chances=chances(journey.decision) if journey.decision else [],
        sums=sums(journey.decision) if journey.decision else [],
        traced=tokens_of_decision(journey),
        classifier_file=file_of(Classifier).relative_to(PACKAGE),
        data=page_data(journey, choice),
        style=asset(FOLDER / "page.css"),
        script=Markup("\n\n").join(asset(FOLDER / f"{name}.js") for name in SCRIPTS),
    )


def seen(text: str) -> str:
    """Text with the characters that cannot be seen written out: NUL as ␀, U+202E as ⟨U+202E⟩."""
    return "".join(character if visible(character) else stand_in(character) for character in text)


def visible(character: str) -> bool:
    """Whether a character can stand in the page as it is."""
    return character in JOINERS or unicodedata.category(character) not in INVISIBLE


def stand_in(character: str) -> str:
    """What is written in place of an invisible character: the control pictures of Unicode, else the code."""
    code = ord(character)
    return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"


def signed(number: float) -> str:
    """A number with its sign, to four places."""
    return f"{number:+.4f}".replace("-", "−")


def plain(number: float) -> str:
    """A number to three places, without a plus."""
    return f"{number:.3f}".replace("-", "−")


def frame(html: str, height: int = 820) -> str:
    """The page in a frame of its own, for a notebook."""
    return Markup(
        '<iframe title="minibert trace" srcdoc="{}" width="100%" height="{}" '
        'style="border: 1px solid #8886; border-radius: 8px"></iframe>'
    ).format(html, height)


# ---------------------------------------------------------------------------------------------------------------
# What the templates write


def steps_of(journey: Journey) -> list[str]:
    """The steps of STEPS that this model takes."""
    absent = {
        "segment embeddings": journey.segment_embeddings is None,
        "wider embeddings": journey.token_embeddings.shape == journey.hidden_states[0].shape,
        "pooler": journey.pooled is None,
        "masked-lm": not journey.predictions,
    }
    return [step for step in STEPS if not absent.get(step)]


def sizes(journey: Journey) -> dict[str, int]:
    """The letters of shapes and what they are here."""
    config = journey.config
    return {
        "B": 1,
        "S": len(journey.tokens),
        "E": journey.token_embeddings.shape[-1],
        "D": config.hidden_size,
        "H": config.num_attention_heads,
        "W": config.hidden_size // config.num_attention_heads,
        "F": config.intermediate_size,
        "V": config.vocab_size,
        "L": len(config.shared_layers),
    }


def tokens(journey: Journey) -> list[Token]:
    """Every token with its word, its kind and its characters."""
    found: list[Token] = []
    for place, (token, word, side) in enumerate(zip(journey.tokens, journey.words, journey.sides, strict=True)):
        goes_on = bool(found) and found[-1].word == word
        special = journey.word_ids[place] is None
        kind = "ab"[side] + " goes-on" * goes_on + " special" * special
        text = journey.text_b or "" if side else journey.text
        found.append(Token(place, token, word, kind, text[slice(*journey.offsets[place])]))
    return found


def chances(decision: Decision) -> list[tuple[str, float]]:
    """Each label and its probability, the likeliest first."""
    pairs = zip(decision.labels, decision.probabilities.tolist(), strict=True)
    return sorted(pairs, key=lambda pair: -pair[1])


class Traced(NamedTuple):
    """A token's part in a decision."""

    place: int
    masked: Masked | None  # None where it was not tried
    adds: float | None  # to the logit; None where the vector is no mean of the tokens
    attended: (
        float | None
    )  # attention of [CLS] to it, the mean of the heads; None where the vector is not that of [CLS]


def tokens_of_decision(journey: Journey) -> list[Traced]:
    """Every token's part in the decision, in the order of the text."""
    decision, masked = journey.decision, {one.place: one for one in journey.masked}
    if decision is None:
        return []
    logit = 0 if len(decision.logits) == 1 else decision.decided
    adds = [None] * len(journey.tokens) if decision.by_token is None else decision.by_token[logit].tolist()
    attended = [None] * len(journey.tokens)
    if decision.pooling in ("cls", "pooler") and max(decision.layers):
        attended = journey.attention(max(decision.layers) - 1, "mean")[0].tolist()
    return [Traced(i, masked.get(i), adds[i], attended[i]) for i in range(len(journey.tokens))]


def sums(decision: Decision) -> list[Sum]:
    """For each logit of a decision the largest contributions, and all others together."""
    single = len(decision.logits) == 1
    found = []
    for k, parts in enumerate(decision.contributions):
        top = sorted(range(len(parts)), key=lambda d: -abs(parts[d]))[:TOP]
        found.append(
            Sum(
                label=decision.labels[1] if single else decision.labels[k],
                is_open=single or decision.probabilities.argmax() == k,
                largest=[
                    Part(
                        decision.columns[d],
                        float(decision.coefficients[k, d]),
                        float(decision.standardised[d]),
                        float(parts[d]),
                    )
                    for d in top
                ],
                others=len(parts) - len(top),
                rest=float(parts.sum() - parts[top].sum()),
                intercept=float(decision.intercepts[k]),
                logit=float(decision.logits[k]),
            )
        )
    return found
