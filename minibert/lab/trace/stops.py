"""The stops of the trace page, in the order of the computation: each says what happens, with shape, equation and link.

Tables and texts are written here and need no script; where a stop has a `<div class="draw" ...>`, page.js draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minibert.lab.trace.data import Choice
from minibert.lab.trace.markup import bar, bdi, shape, shown, table
from minibert.lab.trace.run import Decision, Prediction, Trace
from minibert.lab.trace.source import links, listings

TOP = 12  # dimensions of a decision that are listed


@dataclass(frozen=True)
class Stop:
    """One stop of the journey."""

    id: str
    title: str
    html: str
    inner: Sequence[tuple[str, str]] = ()  # id and title of the stops inside it


def stops(trace: Trace, choice: Choice, annotated: str) -> list[Stop]:
    """Every stop of this trace."""
    config = trace.config
    sizes = {
        "B": 1,
        "S": len(trace.tokens),
        "D": config.hidden_size,
        "H": config.num_attention_heads,
        "W": config.hidden_size // config.num_attention_heads,
        "F": config.intermediate_size,
        "V": config.vocab_size,
    }
    used: list[str] = []

    def computed(*steps: str) -> str:
        """Links to the lines of these steps, whose source the page must have at its end."""
        used.extend(steps)
        return links(steps, annotated)

    journey = [
        text_stop(trace),
        tokens_stop(trace, sizes, computed),
        ids_stop(trace, sizes, computed),
        embeddings_stop(trace, sizes, computed),
        layers_stop(trace, choice, sizes, computed),
        final_stop(trace, sizes, computed),
        cls_stop(trace, sizes, computed),
    ]
    if trace.decision is not None:
        journey.append(decision_stop(trace.decision, computed))
    if trace.predictions:
        journey.append(mask_stop(trace.predictions, sizes, computed))
    return [*journey, source_stop(used)]


Computed = Callable[..., str]
Sizes = dict[str, int]


def stop(id: str, title: str, lead: str, body: str = "", *, facts: str = "", level: int = 2) -> str:
    """The frame that all stops share."""
    heading = f'<h{level} id="{id}-title">{title}</h{level}>'
    return (
        f'<section id="{id}" class="stop level{level}" aria-labelledby="{id}-title">{heading}<p>{lead}</p>'
        f"{facts}{body}</section>\n"
    )


def facts(shapes: str, equation: str, where: str = "") -> str:
    """Shape, equation and where it is computed."""
    rows = [("shape", shapes), ("equation", f'<span class="equation">{equation}</span>'), ("computed at", where)]
    cells = "".join(f"<div><dt>{term}</dt><dd>{said}</dd></div>" for term, said in rows if said)
    return f'<dl class="facts">{cells}</dl>'


def draw(name: str, **settings: str) -> str:
    """A place that the script fills."""
    more = "".join(f' data-{key}="{value}"' for key, value in settings.items())
    return f'<div class="draw {name}"{more}></div>'


def map_of(journey: Sequence[Stop]) -> str:
    """The journey as a line with a point for each stop."""

    def point(id: str, title: str, more: str = "") -> str:
        return f'<li><a href="#{id}">{title}</a>{more}</li>'

    def points(one: Stop) -> str:
        inner = "".join(point(id, title) for id, title in one.inner)
        return point(one.id, one.title, f"<ol>{inner}</ol>" if inner else "")

    return f"<ol>{''.join(points(one) for one in journey)}</ol>"


def follow(trace: Trace) -> str:
    """The tokens as a group of radio buttons: the chosen one is followed through the whole page."""

    def choice(value: int, face: str, kind: str = "") -> str:
        checked = " checked" if value < 0 else ""
        return (
            f'<label class="token {kind}"><input type="radio" name="token" value="{value}"{checked}>'
            f"<span>{face}</span></label>"
        )

    tokens = "".join(choice(i, bdi(token), kind(trace, i)) for i, token in enumerate(trace.tokens))
    return (
        '<fieldset class="follow"><legend class="unseen">Token to follow through the page (arrow keys)</legend>'
        f'<div class="row">{choice(-1, "all tokens", "all")}{tokens}</div></fieldset>'
    )


def kind(trace: Trace, i: int) -> str:
    """The classes of a token: which text it belongs to, whether it goes on a word, whether it is special."""
    classes = ["b" if trace.segments[i] else "a"]
    if i > 0 and trace.words[i] == trace.words[i - 1]:
        classes.append("goes-on")
    if trace.word_ids[i] is None:
        classes.append("special")
    return " ".join(classes)


# ---------------------------------------------------------------------------------------------------------------
# Into the encoder


def text_stop(trace: Trace) -> Stop:
    """What was given."""
    texts = [trace.text] if trace.text_b is None else [trace.text, trace.text_b]
    lines = "".join(
        f'<p class="given">{f"<b>{name}</b> " if len(texts) > 1 else ""}{bdi(text) if text else "(empty)"} '
        f'<span class="soft">{len(text):,} characters</span></p>'
        for name, text in zip("AB"[: len(texts)], texts, strict=True)
    )
    lead = "A model computes with numbers. The way from characters to numbers begins with a cut into known pieces."
    return Stop("text", "Text", stop("text", "Text", lead, lines))


def tokens_stop(trace: Trace, sizes: Sizes, computed: Computed) -> Stop:
    """Pieces, joined to the words that they come from."""
    lead = (
        "WordPiece cuts each word into the longest pieces that the vocabulary has; ## marks a piece that goes on a "
        "word. Pieces of one word stand in one frame. [CLS] is put in front, [SEP] after each text."
    )
    groups: dict[int, list[str]] = {}
    for i, token in enumerate(trace.tokens):
        groups.setdefault(trace.words[i], []).append(f'<span class="token {kind(trace, i)}">{bdi(token)}</span>')
    words = "".join(f'<span class="word">{"".join(pieces)}</span>' for pieces in groups.values())
    equation = "[CLS] a [SEP]" if trace.text_b is None else "[CLS] a [SEP] b [SEP]"
    said = facts(shape("B, S", **sizes), equation, computed("tokens"))
    return Stop("tokens", "Tokens", stop("tokens", "Tokens", lead, f'<p class="words">{words}</p>', facts=said))


def ids_stop(trace: Trace, sizes: Sizes, computed: Computed) -> Stop:
    """The table of tokens."""
    lead = (
        "Each token is replaced by its line in the vocabulary, its id. From here on the model sees nothing of the "
        "characters. The last columns say where in the text the token comes from."
    )
    with_segments = trace.segment_embeddings is not None
    header = ["position", "token", "id", *(["segment"] if with_segments else []), "word", "characters", "in the text"]
    rows = []
    for i, token in enumerate(trace.tokens):
        start, end = trace.offsets[i]
        source = trace.text_b if trace.segments[i] and trace.text_b is not None else trace.text
        special = trace.word_ids[i] is None
        segment = [f"{trace.segments[i]} ({'AB'[trace.segments[i]]})"] if with_segments else []
        place = ["–", "–", "–"] if special else [str(trace.word_ids[i]), f"{start}–{end}", bdi(source[start:end])]
        code = f'<code class="{kind(trace, i)}">{bdi(token)}</code>'
        rows.append([str(i), code, f"{trace.ids[i]:,}", *segment, *place])
    body = table(header, rows, caption="Tokens, ids and places in the text", kind="ids")
    said = facts(shape("B, S", **sizes), f"id ∈ 0 … V − 1, V = {sizes['V']:,}", computed("ids"))
    return Stop("ids", "Ids", stop("ids", "Ids", lead, body, facts=said))


def embeddings_stop(trace: Trace, sizes: Sizes, computed: Computed) -> Stop:
    """Three vectors, their sum, and LayerNorm."""
    segments = trace.segment_embeddings is not None
    lead = (
        "Three vectors are looked up for each token: what it is, which text it belongs to, where it stands. "
        if segments
        else "Two vectors are looked up for each token: what it is, and where it stands (DistilBERT has no segments). "
    ) + "They are added, and LayerNorm brings the sum to a common scale. A strip is one vector, a cell one number."
    equation = f"x = LayerNorm(token + {'segment + ' if segments else ''}position)"
    steps = ["token embeddings", *(["segment embeddings"] if segments else []), "position embeddings", "embeddings"]
    said = facts(shape("B, S, D", **sizes), equation, computed(*steps))
    body = draw("strips", stage="embeddings") + draw("field", vectors="hidden0", caption="x of every token")
    return Stop("embeddings", "Embeddings", stop("embeddings", "Embeddings", lead, body, facts=said))


# ---------------------------------------------------------------------------------------------------------------
# The layers


def layers_stop(trace: Trace, choice: Choice, sizes: Sizes, computed: Computed) -> Stop:
    """The layer that is chosen, with its four steps inside."""
    lead = (
        "Each layer lets every token gather from the others (attention), adds that to what was there, then changes "
        "each token by itself (feed-forward) and adds that. All layers have the same form and weights of their own."
    )
    radios = "".join(
        f'<label><input type="radio" name="layer" value="{layer}"{" checked" if layer == choice.layers[0] else ""}>'
        f"<span>{layer}</span></label>"
        for layer in choice.layers
    )
    picker = f'<fieldset class="pick layers"><legend>Layer</legend><div class="row">{radios}</div></fieldset>'
    parts = [
        attention_part(trace, sizes, computed),
        residual_part(sizes, computed),
        feed_forward_part(sizes, computed),
        second_residual_part(sizes, computed),
    ]
    body = picker + "".join(part.html for part in parts)
    said = facts(
        shape("B, S, D", **sizes), "x = LayerNorm(x + Attention(x)); x = LayerNorm(x + FFN(x))", computed("layers")
    )
    inner = [(part.id, part.title) for part in parts]
    return Stop("layers", "Layers", stop("layers", "Layers", lead, body, facts=said), inner)


def attention_part(trace: Trace, sizes: Sizes, computed: Computed) -> Stop:
    """Who looks at whom."""
    lead = (
        "Each head compares the query of each token with the keys of all tokens; softmax makes a row of "
        "probabilities out of the scores, and the values are summed with these weights. "
        "A line or a cell is one such weight: how much the token on the left looks at the token on the right."
    )
    caution = (
        '<p class="caution">Attention is not an explanation: it says where a head gathers from, not what the '
        "gathered vectors do to the result.</p>"
    )
    parts = [("all", "all")] + [(q + k, f"{q} → {k}") for q in "AB" for k in "AB"]
    radios = "".join(
        f'<label><input type="radio" name="part" value="{value}"{" checked" if value == "all" else ""}>'
        f"<span>{face}</span></label>"
        for value, face in parts
    )
    pair = f'<fieldset class="pick parts"><legend>Part of the pair</legend><div class="row">{radios}</div></fieldset>'
    controls = (
        f'{draw("heads")}<div class="controls">{pair if trace.text_b is not None else ""}'
        '<label class="check"><input type="checkbox" id="merge"> <span>join pieces to words</span></label></div>'
    )
    body = (
        f'{controls}<p id="looks" class="looks"></p><div class="views">'
        f"<figure><figcaption>Arcs: left looks at right</figcaption>{draw('arcs')}</figure>"
        f"<figure><figcaption>Matrix: rows look at columns</figcaption>{draw('matrix')}</figure></div>"
        f"{draw('quadrants') if trace.text_b is not None else ''}{draw('weights')}{caution}"
    )
    equation = "Attention(Q, K, V) = softmax(Q Kᵀ / √W) V; Concat(heads) Wᴼ"
    shapes = f"Q, K, V {shape('B, H, S, W', **sizes)}; probabilities {shape('B, H, S, S', **sizes)}"
    said = facts(shapes, equation, computed("query, key, value", "scores", "softmax", "context", "output"))
    return Stop("attention", "Attention", stop("attention", "Attention", lead, body, facts=said, level=3))


def residual_part(sizes: Sizes, computed: Computed) -> Stop:
    """What attention adds to each token."""
    lead = "What was gathered is added to the token's own vector (the residual), and LayerNorm scales the sum."
    body = draw("strips", stage="attention") + draw("norms", stage="attention")
    said = facts(shape("B, S, D", **sizes), "x = LayerNorm(x + Attention(x))", computed("attention norm"))
    title = "Residual and norm"
    return Stop("residual", title, stop("residual", title, lead, body, facts=said, level=3))


def feed_forward_part(sizes: Sizes, computed: Computed) -> Stop:
    """What the feed-forward makes of each token."""
    lead = (
        "Each token by itself is made wide, passed through the activation, and made narrow again; here are the "
        "vectors that come out of it, before they are added."
    )
    said = facts(
        f"{shape('B, S, F', **sizes)} → {shape('B, S, D', **sizes)}",
        "FFN(x) = activation(x W₁ + b₁) W₂ + b₂",
        computed("feed-forward"),
    )
    body = draw("field", vectors="feed_forward", caption="FFN(x) of every token")
    return Stop("feed-forward", "Feed-forward", stop("feed-forward", "Feed-forward", lead, body, facts=said, level=3))


def second_residual_part(sizes: Sizes, computed: Computed) -> Stop:
    """What leaves the layer."""
    lead = "The same again: the residual, then LayerNorm. The result goes into the next layer."
    body = (
        draw("strips", stage="feed_forward")
        + draw("norms", stage="feed_forward")
        + draw("field", vectors="output", caption="x of every token after this layer")
    )
    said = facts(shape("B, S, D", **sizes), "x = LayerNorm(x + FFN(x))", computed("feed-forward norm"))
    title = "Residual and norm again"
    return Stop("out", title, stop("out", title, lead, body, facts=said, level=3))


# ---------------------------------------------------------------------------------------------------------------
# Out of the encoder


def final_stop(trace: Trace, sizes: Sizes, computed: Computed) -> Stop:
    """The last hidden state, and one token's way there."""
    L = trace.config.num_hidden_layers
    lead = (
        f"After layer {L - 1} each token has its final vector, last_hidden_state. The strips show the way of one "
        "token: the embeddings on top, then what each layer returns."
    )
    body = draw("strips", stage="way") + draw("field", vectors=f"hidden{L}", caption="final vector of every token")
    said = facts(shape("B, S, D", **sizes), f"x after layer {L - 1}", computed("final"))
    return Stop("final", "Final vectors", stop("final", "Final vectors", lead, body, facts=said))


def cls_stop(trace: Trace, sizes: Sizes, computed: Computed) -> Stop:
    """The slice of the cube that stands for the whole text."""
    lead = (
        "The result is a cube: B texts, S tokens, D numbers each. What stands for the whole text is the slice at the "
        "first token, [CLS], which has gathered from all tokens."
    )
    steps, equation = ["pooling"], "x[:, 0]"
    body = draw("cube")
    if trace.pooled is not None:
        steps.append("pooler")
        equation += "; pooled = tanh(x[:, 0] Wᵀ + b)"
        lead += " BERT's pooler, trained to tell whether a second text follows the first, makes one more vector of it."
        body += draw("strips", stage="pooled")
    said = facts(f"{shape('B, S, D', **sizes)} → {shape('B, D', **sizes)}", equation, computed(*steps))
    return Stop("cls", "[CLS]", stop("cls", "The [CLS] slice", lead, body, facts=said))


def decision_stop(decision: Decision, computed: Computed) -> Stop:
    """The classifier's logit, dimension by dimension, and its probability."""
    single = len(decision.logits) == 1
    ranked = sorted(zip(decision.labels, decision.probabilities.tolist(), strict=True), key=lambda pair: -pair[1])
    winner = ranked[0][0]
    lead = (
        f"Logistic regression reads a vector of {len(decision.columns):,} numbers ({shown(decision.recipe)}), brings "
        "each to mean 0 and variance 1 over its training texts, multiplies it by a coefficient and adds up. "
        f"Here it says <b>{bdi(winner)}</b>."
    )
    chances = [[bdi(label), f"{p:.4f}", bar(p)] for label, p in ranked]
    body = table(["class", "probability", ""], chances, caption="Probability of each class", kind="bars")
    for k in range(len(decision.logits)):
        label = decision.labels[1] if single else decision.labels[k]
        sums = contribution_table(decision, k, label)
        opened = " open" if single or label == winner else ""
        body += f"<details{opened}><summary>What makes the logit of {bdi(label)}</summary>{sums}</details>"
    equation = "logit = Σ<sub>d</sub> coefficient<sub>d</sub> · (x<sub>d</sub> − mean<sub>d</sub>) / scale<sub>d</sub>"
    equation += f" + intercept; p = {'1 / (1 + e<sup>−logit</sup>)' if single else 'softmax(logits)'}"
    where = computed("pooling") + '<span class="soft small">then by Classifier in minibert/classify.py</span>'
    shapes = f'<span class="shape">({len(decision.columns):,}) → ({len(decision.logits)})</span>'
    return Stop(
        "classifier",
        "Classifier",
        stop("classifier", "The classifier", lead, body, facts=facts(shapes, equation, where)),
    )


def contribution_table(decision: Decision, k: int, label: str) -> str:
    """The sum that makes one logit: the largest contributions, then all others together, the intercept, the logit."""
    parts = decision.contributions[k]
    top = sorted(range(len(parts)), key=lambda d: -abs(parts[d]))[:TOP]
    largest = max(abs(parts[top[0]]), 1e-12)
    rest = parts.sum() - sum(parts[d] for d in top)

    def row(name: str, value: float, scale: float = 0.0) -> list[str]:
        sign = "minus" if value < 0 else "plus"
        return [name, f"{value:+.4f}".replace("-", "−"), bar(value / scale, sign) if scale else ""]

    rows = [row(decision.columns[d], parts[d], largest) for d in top]
    if len(parts) > len(top):
        rows.append(row(f"the other {len(parts) - len(top):,} dimensions together", rest))
    rows += [row("intercept", decision.intercepts[k]), row("<b>logit</b>, their sum", decision.logits[k])]
    caption = f"The {len(top)} largest contributions to the logit of {label}, and their sum with the others"
    return table(["", "contribution", ""], rows, caption=caption, kind="bars")


def mask_stop(predictions: Sequence[Prediction], sizes: Sizes, computed: Computed) -> Stop:
    """What may stand at each [MASK]."""
    lead = "The masked language model scores every token of the vocabulary at each [MASK]; softmax makes probabilities."
    body = "".join(
        table(
            ["token", "probability", ""],
            [
                [f"<code>{bdi(guess.token)}</code>", f"{guess.probability:.4f}", bar(guess.probability)]
                for guess in one.guesses
            ],
            caption=f"[MASK] at position {one.place}",
            kind="bars",
        )
        for one in predictions
    )
    equation = "p = softmax(LayerNorm(activation(x W + a)) Eᵀ + b)"
    said = facts(f"{shape('B, S, D', **sizes)} → {shape('B, S, V', **sizes)}", equation, computed("masked-lm"))
    return Stop("mask", "[MASK]", stop("mask", "Words at [MASK]", lead, body, facts=said))


def source_stop(used: Sequence[str]) -> Stop:
    """How the numbers were rounded, and the code."""
    rounding = (
        "<p>Attention is kept in steps of 1/65535, vectors in float16 (11 bits, about 3 digits), norms and cosines in "
        "5 digits; sums of vectors in the strips are of the rounded ones. What was computed had the full precision of "
        "the model. A strip's colours end at the number named beside it.</p>"
    )
    lead = "Links above lead to these lines: the code as it ran."
    return Stop("source", "Source", stop("source", "Rounding and source", lead, rounding + listings(used)))
