"""The numbers of the page: those of the chosen layers and heads, rounded and packed.

    attention   uint16, steps of 1/65535    (S,S) for each head, their mean and the rollout
    vectors     float16, 11 bits            (T,D), T the first tokens, at most VECTOR_TOKENS; embeddings (T,E)
    queries     float16, 11 bits            (heads,P,W), P the first tokens, at most PAIR_TOKENS; keys alike
    norms       decimal, 5 digits           (S) computed in the model's own precision; units of the feed-forward alike

Packed numbers are little-endian, row by row, in base64.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from minibert.tracing.journey import Journey, Units, quadrants, rollout

LIMIT = 12_000_000  # bytes of packed numbers in a page, unless more layers or heads are requested
VECTOR_TOKENS = 64  # a page has the vectors of the first tokens; norms and attention of all
PAIR_TOKENS = 24  # a page has the queries and keys of the first tokens
FEWEST_HEADS = 4  # for a long text, heads are left out down to these, then layers
PER_NUMBER = 2 * 4 / 3  # bytes of one packed number
DRAWN = {"attention": "attention output", "attention_norm": "attention norm", "feed_forward": "contract"}


class Choice(NamedTuple):
    """The layers and heads that the page offers."""

    layers: list[int]
    heads: list[int]
    message: str = ""  # what was left out and how to get it; "" if the page has everything


def choose(journey: Journey, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None) -> Choice:
    """The requested layers and heads, or as many as LIMIT allows: first fewer heads, then fewer layers.

    Raises ValueError for a layer or head that the model does not have.
    """
    L, H = len(journey.layers), journey.config.num_attention_heads
    for name, numbers, count in (("layers", layers, L), ("heads", heads, H)):
        if numbers is not None and not (numbers and set(numbers) <= set(range(count))):
            raise ValueError(f"{name} are {list(numbers)}; name at least one of the model's {name}, 0 to {count - 1}")
    chosen_layers = list(range(L)) if layers is None else sorted(set(layers))
    chosen_heads = list(range(H)) if heads is None else sorted(set(heads))

    def too_large() -> bool:
        return size(journey, len(chosen_layers), len(chosen_heads)) > LIMIT

    while heads is None and len(chosen_heads) > FEWEST_HEADS and too_large():
        chosen_heads.pop()
    while layers is None and len(chosen_layers) > 1 and too_large():
        fewer = len(chosen_layers) - 1
        chosen_layers = [int(layer) for layer in np.linspace(0 if fewer > 1 else L - 1, L - 1, fewer).round()]
    return Choice(chosen_layers, chosen_heads, left_out(journey, chosen_layers, chosen_heads))


def size(journey: Journey, layers: int, heads: int) -> float:
    """Bytes of packed numbers for so many layers and heads."""
    S, D = len(journey.tokens), journey.config.hidden_size
    vectors = (6 + 5 * layers) * min(S, VECTOR_TOKENS) * D
    pairs = 2 * layers * heads * min(S, PAIR_TOKENS) * D // journey.config.num_attention_heads
    return (vectors + pairs + layers * (heads + 2) * S * S) * PER_NUMBER


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


# ---------------------------------------------------------------------------------------------------------------
# Packing


def packed_probs(probs: Tensor) -> str:
    """Probabilities as uint16, 65535 for 1."""
    steps = (probs.double() * 65535).round().numpy()
    return base64.b64encode(steps.astype("<u2").tobytes()).decode()


def packed_vectors(vectors: Tensor) -> str:
    """Vectors as float16; values beyond its range become its largest number."""
    half = vectors.double().clamp(-65504, 65504).numpy().astype("<f2")
    return base64.b64encode(half.tobytes()).decode()


def rounded(values: Tensor) -> Any:
    """Numbers for reading, to 5 digits: a list, or lists of lists."""
    if values.dim() > 1:
        return [rounded(row) for row in values]
    return [float(f"{value:.5g}") for value in values.double().tolist()]


def page_data(journey: Journey, choice: Choice) -> dict[str, Any]:
    """Everything that the script of the page draws; each name is explained at the top of numbers.js."""
    config, S = journey.config, len(journey.tokens)
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
    }


def attention(journey: Journey, choice: Choice) -> dict[str, Any]:
    """For each layer: its heads one after the other, their mean, the rollout up to it, and the shares of a pair."""
    found: dict[str, Any] = {}
    rolled = rollout(journey.attentions)
    for layer in choice.layers:
        probs = journey.attentions[layer]
        means = {"mean": probs.mean(dim=0), "rollout": rolled[layer]}
        found[str(layer)] = {name: packed_probs(matrix) for name, matrix in means.items()}
        found[str(layer)]["heads"] = packed_probs(probs[choice.heads])
        if journey.text_b is not None:
            matrices = means | {str(head): probs[head] for head in choice.heads}
            found[str(layer)]["quadrants"] = {name: quadrants(m, journey.sides) for name, m in matrices.items()}
    return found


def vectors(journey: Journey, choice: Choice) -> dict[str, Tensor]:
    """The vectors that are drawn, (S,D) each, by name; hidden0 is the embeddings, hidden1 the output of layer 0."""
    found = dict(journey.embeddings)
    for state in sorted({0, len(journey.layers), *choice.layers, *(layer + 1 for layer in choice.layers)}):
        found[f"hidden{state}"] = journey.hidden_states[state]
    for layer in choice.layers:
        for name, stage in DRAWN.items():
            found[f"{name}{layer}"] = journey.layers[layer][stage]
    if journey.pooled is not None:
        found["pooled"] = journey.pooled[None]
    if journey.decision is not None:
        found["features"] = journey.decision.vector[None]
    return found


def queries_and_keys(journey: Journey, layer: int, heads: list[int]) -> dict[str, Any]:
    """The queries and keys of one layer; if keys are left out, also the logarithm of what softmax divides by."""
    one, H = journey.layers[layer], journey.config.num_attention_heads
    found: dict[str, Any] = {}
    for name, stage in (("queries", "query"), ("keys", "key")):
        x = (
            one[stage][:PAIR_TOKENS].reshape(-1, H, one[stage].shape[-1] // H).transpose(0, 1)
        )  # (P,D) -> (P,H,W) -> (H,P,W)
        found[name] = packed_vectors(x[heads])
    divisors = one["scores"][heads, :PAIR_TOKENS].double().logsumexp(dim=-1)
    return found | {"log_sums": rounded(divisors) if len(journey.tokens) > PAIR_TOKENS else None}


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
        before, after = journey.hidden_states[layer].double(), journey.hidden_states[layer + 1].double()
        middle = journey.layers[layer]["attention norm"].double()
        found[f"attention{layer}"] = rounded(torch.cosine_similarity(before, middle, dim=-1))
        found[f"feed_forward{layer}"] = rounded(torch.cosine_similarity(middle, after, dim=-1))
    return found
