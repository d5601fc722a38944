"""The numbers that a page draws, of the chosen layers and heads, rounded and packed.

    attention   uint16, steps of 1/65535    (S,S) for each head, their mean and the rollout
    vectors     float16, 11 bits            (T,D), T the first tokens, at most VECTOR_TOKENS; embeddings (T,E)
    queries     float16, 11 bits            (heads,P,W), P the first tokens, at most PAIR_TOKENS; keys alike
    norms       decimal, 5 digits           (S) computed in the model's own precision; units of the feed-forward alike
    ablation    decimal, 6 decimals         the effects of a head switched off and of a token masked, see journey.py

Packed numbers are little-endian, row by row, in base64.
"""

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from minibert.config import Config
from minibert.families.modernbert import rotate
from minibert.tracing.ablation import as_data
from minibert.tracing.journey import Journey, Units, quadrants, rollout

LIMIT = 12_000_000  # bytes of packed numbers in a page, unless more layers or heads are requested
VECTOR_TOKENS = 64  # a page has the vectors of the first tokens; norms and attention of all
PAIR_TOKENS = 24  # a page has the queries and keys of the first tokens
DRAWN = {"attention": "attention output", "feed_forward": "contract"}


class Selection(NamedTuple):
    """The layers and heads that the page offers."""

    layers: list[int]
    heads: list[int]
    message: str = ""  # what was left out and how to get it; "" if the page has everything


def select(journey: Journey, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None) -> Selection:
    """Return the requested layers and heads, or as many as LIMIT allows: fewer heads first, to 4, then fewer layers.

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
    return Selection(chosen_layers, chosen_heads, left_out(journey, chosen_layers, chosen_heads))


def size(journey: Journey, layers: int, heads: int) -> float:
    """Return the bytes of packed numbers for this many layers and heads."""
    S = len(journey.tokens)
    D = journey.config.hidden_size
    vectors = (6 + 5 * layers) * min(S, VECTOR_TOKENS) * D
    pairs = 2 * layers * heads * min(S, PAIR_TOKENS) * D // journey.config.num_attention_heads
    return (vectors + pairs + layers * (heads + 2) * S * S) * 2 * 4 / 3  # two bytes each, in base64


def left_out(journey: Journey, layers: list[int], heads: list[int]) -> str:
    """Return what the page lacks, in one sentence."""
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
    """Return probabilities as uint16, 65535 for 1."""
    return base64.b64encode((probs.double() * 65535).round().numpy().astype("<u2").tobytes()).decode()


def packed_vectors(vectors: Tensor) -> str:
    """Return vectors as float16; values beyond its range become its largest number."""
    return base64.b64encode(vectors.double().clamp(-65504, 65504).numpy().astype("<f2").tobytes()).decode()


def rounded(values: Tensor) -> Any:
    """Return numbers for reading, to 5 digits: a list, or lists of lists."""
    if values.dim() > 1:
        return [rounded(row) for row in values]
    return [float(f"{value:.5g}") for value in values.double().tolist()]


def sizes(journey: Journey) -> dict[str, int]:
    """Return the letters of shapes and their values."""
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


def outline(journey: Journey, selection: Selection) -> dict[str, Any]:
    """Return what does not depend on the text: sizes, the kind of model, and the layers and heads of the page."""
    architecture = journey.config.architecture
    return {
        **sizes(journey),
        "norm_first": architecture.norm_first,
        "norm": journey.norm,
        "normed": "sum" in journey.embeddings,
        "ffn_bias": architecture.feed_forward_bias,
        "reach": reach(journey.config),
        "layers": selection.layers,
        "heads": selection.heads,
    }


def page_data(journey: Journey, selection: Selection) -> dict[str, Any]:
    """Return everything that the script of the page draws; each name is explained at the top of numbers.js."""
    S = len(journey.tokens)
    decision = journey.decision
    kept = vectors(journey, selection)
    return outline(journey, selection) | {
        "tokens": journey.tokens,
        "ids": journey.ids,
        "sides": journey.sides,
        "words": journey.words,
        "names": journey.word_names,
        "vector_tokens": min(S, VECTOR_TOKENS),
        "attention": attention(journey, selection),
        "vectors": {name: packed_vectors(vector[:VECTOR_TOKENS]) for name, vector in kept.items()},
        "pair_tokens": min(S, PAIR_TOKENS),
        "pairs": {str(layer): queries_and_keys(journey, layer, selection.heads) for layer in selection.layers},
        "units": {str(layer): units(journey.units[layer]) for layer in selection.layers},
        "norms": norms(journey, selection, kept),
        "cosines": cosines(journey, selection),
        "decided": decision and [decision.labels[decision.decided], round(float(decision.probabilities.max()), 6)],
        "ablation": as_data(journey.ablation and journey.ablation._asdict()),
    }


def attention(journey: Journey, selection: Selection) -> dict[str, Any]:
    """Return for each layer its heads in order, their mean, the rollout up to it, and the shares of a pair."""
    of_layers: dict[str, Any] = {}
    rolled = rollout(journey.attentions)
    for layer in selection.layers:
        probs = journey.attentions[layer]
        means = {"mean": probs.mean(dim=0), "rollout": rolled[layer]}
        matrices = means | {str(head): probs[head] for head in selection.heads}
        of_layers[str(layer)] = {name: packed_probs(matrix) for name, matrix in means.items()} | {
            "heads": packed_probs(probs[selection.heads]),
            "quadrants": {name: quadrants(matrix, journey.sides) for name, matrix in matrices.items()},
        }
    return of_layers


def vectors(journey: Journey, selection: Selection) -> dict[str, Tensor]:
    """Return the vectors that are drawn, (S,D) each, by name; hidden0: the embeddings, hidden1: after layer 0."""
    states = sorted({0, len(journey.layers), *selection.layers, *(layer + 1 for layer in selection.layers)})
    drawn = journey.embeddings | {f"hidden{state}": journey.hidden_states[state] for state in states}
    for layer in selection.layers:
        drawn |= {f"{name}{layer}": journey.layers[layer][stage] for name, stage in DRAWN.items()}
        drawn[f"middle{layer}"] = middle(journey, layer)
    if journey.pooled is not None:
        drawn["pooled"] = journey.pooled[None]
    if journey.decision is not None:
        drawn["features"] = journey.decision.vector[None]
    return drawn


def middle(journey: Journey, layer: int) -> Tensor:
    """Return the vectors between the two halves of a layer, (S,D)."""
    if journey.config.architecture.norm_first:
        return journey.hidden_states[layer] + journey.layers[layer]["attention output"]
    return journey.layers[layer]["attention norm"]


def feed_forward_sum(journey: Journey, layer: int) -> Tensor:
    """Return the vectors after the second residual connection of a layer, (S,D)."""
    return middle(journey, layer) + journey.layers[layer]["contract"]


def reach(config: Config) -> dict[str, int]:
    """Return how many tokens to each side a token attends to, by layer; a global layer is absent."""
    return {str(layer): window // 2 for layer, window in enumerate(config.architecture.windows) if window is not None}


def queries_and_keys(journey: Journey, layer: int, heads: list[int]) -> dict[str, Any]:
    """Return the queries and keys of one layer, turned by their positions if it turns them.

    If keys are left out, also the logarithm of what softmax divides by.
    """
    stages = journey.layers[layer]
    config = journey.config
    positions = torch.arange(min(len(journey.tokens), PAIR_TOKENS))
    pair: dict[str, Any] = {"log_sums": None}
    for name, stage in (("queries", "query"), ("keys", "key")):
        split = (
            stages[stage][:PAIR_TOKENS].reshape(len(positions), config.num_attention_heads, -1).transpose(0, 1)
        )  # (H,P,W)
        if config.architecture.rotary_thetas:
            split = rotate(split, positions, config.architecture.rotary_thetas[layer])
        pair[name] = packed_vectors(split[heads])
    if len(journey.tokens) > PAIR_TOKENS:
        pair["log_sums"] = rounded(stages["scores"][heads, :PAIR_TOKENS].double().logsumexp(dim=-1))
    return pair


def units(strongest: Units) -> list[dict[str, Any]]:
    """Return the strongest units for each of the first tokens, and what the rest and the bias add."""
    columns = {name: rounded(x[:VECTOR_TOKENS]) for name, x in strongest._asdict().items() if name != "unit"}
    columns["unit"] = strongest.unit[:VECTOR_TOKENS].tolist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def norms(journey: Journey, selection: Selection, kept: dict[str, Tensor]) -> dict[str, list[float]]:
    """Return the Euclidean length of every vector, (S) each, and of the two sums of each layer, which are not drawn."""
    sums = {}
    for layer in selection.layers:
        sums[f"attention_sum{layer}"] = journey.hidden_states[layer] + journey.layers[layer]["attention output"]
        sums[f"feed_forward_sum{layer}"] = feed_forward_sum(journey, layer)
    return {name: rounded(vector.double().norm(dim=-1)) for name, vector in (kept | sums).items()}


def cosines(journey: Journey, selection: Selection) -> dict[str, list[float]]:
    """Return how much each half of a layer turns each vector: the cosine of before and after, (S)."""
    turns = {}
    for layer in selection.layers:
        before = journey.hidden_states[layer].double()
        between = middle(journey, layer).double()
        norm_first = journey.config.architecture.norm_first  # the last state of such a model has passed its final norm
        after = (feed_forward_sum(journey, layer) if norm_first else journey.hidden_states[layer + 1]).double()
        turns[f"attention{layer}"] = rounded(torch.cosine_similarity(before, between, dim=-1))
        turns[f"feed_forward{layer}"] = rounded(torch.cosine_similarity(between, after, dim=-1))
    return turns
