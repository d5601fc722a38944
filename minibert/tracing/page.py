"""A journey as one self-contained HTML page: a stop for each step of the computation, in its order.

    page.html   the frame, with page.css and SCRIPTS      parts.html  macros for the stops
    stops.html  the stops

The templates escape all text. Each step links to the line of the source that computes it, which is part of the page.
The line is found by a piece of its code, such as the module that it calls; without it, the link leads to the function.

The scripts draw the numbers of the chosen layers and heads, rounded and packed:

    attention   uint16, steps of 1/65535    (S,S) for each head, their mean and the rollout
    vectors     float16, 11 bits            (T,D), T the first tokens, at most VECTOR_TOKENS; embeddings (T,E)
    queries     float16, 11 bits            (heads,P,W), P the first tokens, at most PAIR_TOKENS; keys alike
    norms       decimal, 5 digits           (S) computed in the model's own precision; units of the feed-forward alike
    ablation    decimal, 6 decimals         the effects of a head switched off and of a token masked, see journey.py

Packed numbers are little-endian, row by row, in base64.
"""

import base64
import inspect
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import torch
from markupsafe import Markup
from torch import Tensor

import minibert
from minibert import heads as task_heads
from minibert import model
from minibert.prediction.frozen import Classifier
from minibert.text import tokenizer
from minibert.tracing.ablation import as_data
from minibert.tracing.journey import Decision, Journey, Units, quadrants, rollout
from minibert.utils.templates import asset, coloured, diagram, templates
from minibert.vectors import readable

FOLDER = Path(__file__).parent
PACKAGE = Path(minibert.__file__).parent
SCRIPTS = ("numbers", "vectors", "attention", "pair", "units", "ablation", "address", "page")  # .js, in this order
INVISIBLE = ("Cc", "Cf", "Co", "Cn", "Zl", "Zp")  # Unicode categories that show nothing or steer the text around them
JOINERS = "\u200c\u200d"  # hold emoji and Arabic or Indic letters together, and are left in place
TOP = 12  # dimensions of a decision that are listed
LIMIT = 12_000_000  # bytes of packed numbers in a page, unless more layers or heads are requested
VECTOR_TOKENS = 64  # a page has the vectors of the first tokens; norms and attention of all
PAIR_TOKENS = 24  # a page has the queries and keys of the first tokens
DRAWN = {"attention": "attention output", "attention_norm": "attention norm", "feed_forward": "contract"}

# Step -> the function that computes it, and code of the line.
STEPS: dict[str, tuple[Callable[..., Any], str]] = {
    "tokens": (tokenizer.Tokenizer._row, "ids = around("),
    "ids": (model.Encoder.forward, "as_inputs("),
    "token embeddings": (model.Embeddings.forward, "self.token("),
    "segment embeddings": (model.Embeddings.forward, "self.segment(segments)"),
    "position embeddings": (model.Embeddings.forward, "self.position("),
    "embeddings": (model.Embeddings.forward, "self.norm("),
    "projected embeddings": (model.Embeddings.forward, "self.embedding_projection("),
    "layers": (model.Encoder.through_layers, "self.layers[number]("),
    "query, key, value": (model.SelfAttention.project, "self.query"),
    "scores": (model.eager_attention, "scores = query"),
    "softmax": (model.eager_attention, "scores.softmax("),
    "context": (model.eager_attention, "context = "),
    "output": (model.SelfAttention.forward, "self.output("),
    "attention norm": (model.Layer.forward, "self.attention_norm("),
    "feed-forward": (model.FeedForward.forward, "self.contract("),
    "feed-forward norm": (model.Layer.forward, "self.feed_forward_norm("),
    "final": (model.Encoder.forward, "EncoderOutput("),
    "pooler": (model.Pooler.forward, "torch.tanh("),
    "pooling": (readable.pool, "pooled = "),
    "masked-lm": (task_heads.TokenPrediction.predict_tokens, "self.transform_norm("),
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
        "projected embeddings": journey.embeddings["token"].shape == journey.hidden_states[0].shape,
        "pooler": journey.pooled is None,
        "masked-lm": not journey.predictions,
    }
    steps = [step for step in STEPS if not absent.get(step)]
    environment = templates(FOLDER)
    environment.filters |= {
        "seen": seen,
        "diagram": diagram,
        "signed": lambda number: f"{number:+.4f}".replace("-", "−"),
        "plain": lambda number: f"{number:.3f}".replace("-", "−"),
    }
    is_head = journey.decision is not None and journey.decision.is_head
    decider = task_heads.SequenceClassification if is_head else Classifier
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
        decider=f"{decider.__name__} in minibert/{Path(inspect.getfile(decider)).relative_to(PACKAGE).as_posix()}",
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
        found.append(
            {"place": place, "text": token, "word": word, "kind": kind, "source": text[slice(*journey.offsets[place])]}
        )
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
    """The file and line of a step: the first line of its function with its code, or else that where it begins."""
    function, code = STEPS[step]
    source, first = inspect.getsourcelines(function)
    found = next((place for place, line in enumerate(source) if code in line), 0)
    return Path(inspect.getfile(function)).name, first + found


def listings(steps: Iterable[str]) -> list[tuple[str, int, list[Markup]]]:
    """The source of these steps, each with its path and first line: model.py whole, of other modules the functions."""
    found = [("model.py", 1, coloured(Path(model.__file__).read_text(encoding="utf-8")))]
    for function in dict.fromkeys(STEPS[step][0] for step in steps):
        path = Path(inspect.getfile(function)).relative_to(PACKAGE).as_posix()
        if path != "model.py":
            source, first = inspect.getsourcelines(function)
            found.append((path, first, coloured("".join(source))))
    return found


# ---------------------------------------------------------------------------------------------------------------
# The numbers


class Choice(NamedTuple):
    """The layers and heads that the page offers."""

    layers: list[int]
    heads: list[int]
    message: str = ""  # what was left out and how to get it; "" if the page has everything


def choose(journey: Journey, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None) -> Choice:
    """The requested layers and heads, or as many as LIMIT allows: first fewer heads, down to 4, then fewer layers.

    Raises ValueError for a layer or head that the model does not have.
    """
    L = len(journey.layers)
    H = journey.config.num_attention_heads
    for name, numbers, count in (("layers", layers, L), ("heads", heads, H)):
        if numbers is not None and not (numbers and set(numbers) <= set(range(count))):
            raise ValueError(f"{name} are {list(numbers)}; name at least one of the model's {name}, 0 to {count - 1}")
    chosen_layers = list(range(L)) if layers is None else sorted(set(layers))
    chosen_heads = list(range(H)) if heads is None else sorted(set(heads))

    def too_large() -> bool:
        return size(journey, len(chosen_layers), len(chosen_heads)) > LIMIT

    while heads is None and len(chosen_heads) > 4 and too_large():
        chosen_heads.pop()
    while layers is None and len(chosen_layers) > 1 and too_large():
        fewer = len(chosen_layers) - 1
        chosen_layers = [int(layer) for layer in np.linspace(0 if fewer > 1 else L - 1, L - 1, fewer).round()]
    return Choice(chosen_layers, chosen_heads, left_out(journey, chosen_layers, chosen_heads))


def size(journey: Journey, layers: int, heads: int) -> float:
    """Bytes of packed numbers for so many layers and heads."""
    S = len(journey.tokens)
    D = journey.config.hidden_size
    vectors = (6 + 5 * layers) * min(S, VECTOR_TOKENS) * D
    pairs = 2 * layers * heads * min(S, PAIR_TOKENS) * D // journey.config.num_attention_heads
    return (vectors + pairs + layers * (heads + 2) * S * S) * 2 * 4 / 3  # two bytes each, in base64


def left_out(journey: Journey, layers: list[int], heads: list[int]) -> str:
    """What the page lacks, in one sentence."""
    S = len(journey.tokens)
    kept = [
        f"{name} {', '.join(map(str, numbers))} of 0 to {count - 1} (--{name} chooses others)"
        for name, numbers, count in (
            ("layers", layers, len(journey.layers)),
            ("heads", heads, journey.config.num_attention_heads),
        )
        if len(numbers) < count
    ]
    if S > VECTOR_TOKENS:
        kept.append(f"the vectors of the first {VECTOR_TOKENS} tokens")
    if S > PAIR_TOKENS:
        kept.append(f"the queries and keys of the first {PAIR_TOKENS}")
    return f"Of the {S} tokens this page has {'; '.join(kept)}. Norms, mean and rollout are of all." if kept else ""


def packed_probs(probs: Tensor) -> str:
    """Probabilities as uint16, 65535 for 1."""
    return base64.b64encode((probs.double() * 65535).round().numpy().astype("<u2").tobytes()).decode()


def packed_vectors(vectors: Tensor) -> str:
    """Vectors as float16; values beyond its range become its largest number."""
    return base64.b64encode(vectors.double().clamp(-65504, 65504).numpy().astype("<f2").tobytes()).decode()


def rounded(values: Tensor) -> Any:
    """Numbers for reading, to 5 digits: a list, or lists of lists."""
    if values.dim() > 1:
        return [rounded(row) for row in values]
    return [float(f"{value:.5g}") for value in values.double().tolist()]


def page_data(journey: Journey, choice: Choice) -> dict[str, Any]:
    """Everything that the script of the page draws; each name is explained at the top of numbers.js."""
    config = journey.config
    S = len(journey.tokens)
    decision = journey.decision
    kept = vectors(journey, choice)
    return {
        "S": S,
        "D": config.hidden_size,
        "E": journey.embeddings["token"].shape[-1],
        "H": config.num_attention_heads,
        "L": len(journey.layers),
        "tokens": journey.tokens,
        "ids": journey.ids,
        "sides": journey.sides,
        "words": journey.words,
        "names": journey.word_names,
        "layers": choice.layers,
        "heads": choice.heads,
        "vector_tokens": min(S, VECTOR_TOKENS),
        "attention": attention(journey, choice),
        "vectors": {name: packed_vectors(vector[:VECTOR_TOKENS]) for name, vector in kept.items()},
        "pair_tokens": min(S, PAIR_TOKENS),
        "pairs": {str(layer): queries_and_keys(journey, layer, choice.heads) for layer in choice.layers},
        "units": {str(layer): units(journey.units[layer]) for layer in choice.layers},
        "norms": norms(journey, choice, kept),
        "cosines": cosines(journey, choice),
        "decided": decision and [decision.labels[decision.decided], round(float(decision.probabilities.max()), 6)],
        "ablation": as_data(journey.ablation and journey.ablation._asdict()),
    }


def attention(journey: Journey, choice: Choice) -> dict[str, Any]:
    """For each layer: its heads one after the other, their mean, the rollout up to it, and the shares of a pair."""
    found: dict[str, Any] = {}
    rolled = rollout(journey.attentions)
    for layer in choice.layers:
        probs = journey.attentions[layer]
        means = {"mean": probs.mean(dim=0), "rollout": rolled[layer]}
        matrices = means | {str(head): probs[head] for head in choice.heads}
        found[str(layer)] = {name: packed_probs(matrix) for name, matrix in means.items()} | {
            "heads": packed_probs(probs[choice.heads]),
            "quadrants": {name: quadrants(matrix, journey.sides) for name, matrix in matrices.items()},
        }
    return found


def vectors(journey: Journey, choice: Choice) -> dict[str, Tensor]:
    """The vectors that are drawn, (S,D) each, by name; hidden0 is the embeddings, hidden1 the output of layer 0."""
    states = sorted({0, len(journey.layers), *choice.layers, *(layer + 1 for layer in choice.layers)})
    found = journey.embeddings | {f"hidden{state}": journey.hidden_states[state] for state in states}
    for layer in choice.layers:
        found |= {f"{name}{layer}": journey.layers[layer][stage] for name, stage in DRAWN.items()}
    if journey.pooled is not None:
        found["pooled"] = journey.pooled[None]
    if journey.decision is not None:
        found["features"] = journey.decision.vector[None]
    return found


def queries_and_keys(journey: Journey, layer: int, heads: list[int]) -> dict[str, Any]:
    """The queries and keys of one layer; if keys are left out, also the logarithm of what softmax divides by."""
    stages = journey.layers[layer]
    H = journey.config.num_attention_heads
    found: dict[str, Any] = {"log_sums": None}
    for name, stage in (("queries", "query"), ("keys", "key")):
        split = stages[stage][:PAIR_TOKENS].chunk(H, dim=-1)  # (P,D) -> H of (P,W)
        found[name] = packed_vectors(torch.stack([split[head] for head in heads]))
    if len(journey.tokens) > PAIR_TOKENS:
        found["log_sums"] = rounded(stages["scores"][heads, :PAIR_TOKENS].double().logsumexp(dim=-1))
    return found


def units(strongest: Units) -> list[dict[str, Any]]:
    """The strongest units for each of the first tokens, and what the rest and the bias add."""
    columns = {name: rounded(x[:VECTOR_TOKENS]) for name, x in strongest._asdict().items() if name != "unit"}
    columns["unit"] = strongest.unit[:VECTOR_TOKENS].tolist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def norms(journey: Journey, choice: Choice, kept: dict[str, Tensor]) -> dict[str, list[float]]:
    """The Euclidean length of every vector, (S) each, and of the two sums of each layer, which are not drawn."""
    sums = {
        f"{name}_sum{layer}": journey.layers[layer][f"{stage} sum"]
        for layer in choice.layers
        for name, stage in (("attention", "attention"), ("feed_forward", "feed-forward"))
    }
    return {name: rounded(vector.double().norm(dim=-1)) for name, vector in (kept | sums).items()}


def cosines(journey: Journey, choice: Choice) -> dict[str, list[float]]:
    """How much each half of a layer turns each vector: the cosine of before and after, (S)."""
    found = {}
    for layer in choice.layers:
        before = journey.hidden_states[layer].double()
        after = journey.hidden_states[layer + 1].double()
        middle = journey.layers[layer]["attention norm"].double()
        found[f"attention{layer}"] = rounded(torch.cosine_similarity(before, middle, dim=-1))
        found[f"feed_forward{layer}"] = rounded(torch.cosine_similarity(middle, after, dim=-1))
    return found
