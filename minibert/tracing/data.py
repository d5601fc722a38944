"""What of a journey goes into the page, and in what form: chosen layers and heads, rounded and packed.

    attention   uint16, steps of 1/65535    (S,S) for each head, their mean and the rollout
    vectors     float16, 11 bits            (T,D), T the first tokens, at most VECTOR_TOKENS; embeddings (T,E)
    queries     float16, 11 bits            (heads,P,W), P the first tokens, at most PAIR_TOKENS; keys alike
    norms       decimal, 5 digits           (S) computed in the model's own precision; units of the feed-forward alike

Packed numbers are little-endian, row by row, in base64.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minibert.tracing.journey import Journey, quadrants, rollout
from minibert.tracing.units import Units

LIMIT = 12_000_000  # bytes of packed numbers that a page may take unless more is asked for
VECTOR_TOKENS = 64  # of a longer text, vectors are kept of the first ones, norms and attention of all
PAIR_TOKENS = 24  # of a longer text, queries and keys are kept of the first ones
FEWEST_HEADS = 4  # are offered of a long text before layers are left out
PER_NUMBER = 2 * 4 / 3  # bytes of one packed number


@dataclass(frozen=True)
class Choice:
    """The layers and heads that the page offers."""

    layers: list[int]
    heads: list[int]
    message: str = ""  # what was left out and how to get it; "" where the page has everything


def choose(journey: Journey, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None) -> Choice:
    """All layers and heads, those asked for, or as many as LIMIT allows: first fewer heads, then fewer layers.

    Raises ValueError for a layer or head that the model does not have.
    """
    L, H = len(journey.config.shared_layers), journey.config.num_attention_heads
    chosen_layers = checked("layers", range(L) if layers is None else layers, L)
    chosen_heads = checked("heads", range(H) if heads is None else heads, H)

    def too_large() -> bool:
        return size(journey, len(chosen_layers), len(chosen_heads)) > LIMIT

    while heads is None and len(chosen_heads) > FEWEST_HEADS and too_large():
        chosen_heads.pop()
    while layers is None and len(chosen_layers) > 1 and too_large():
        fewer = len(chosen_layers) - 1
        chosen_layers = [int(layer) for layer in np.linspace(0 if fewer > 1 else L - 1, L - 1, fewer).round()]
    return Choice(chosen_layers, chosen_heads, left_out(journey, chosen_layers, chosen_heads))


def checked(name: str, numbers: Sequence[int], count: int) -> list[int]:
    """Each number once, in order. Raises ValueError for one that the model does not have, or for none at all."""
    if not numbers:
        raise ValueError(f"{name} is empty; name at least one of 0 to {count - 1}")
    for number in numbers:
        if not 0 <= number < count:
            raise ValueError(f"{name} has {number}; the model has {count} {name}: 0 to {count - 1}")
    return sorted(set(numbers))


def size(journey: Journey, layers: int, heads: int) -> float:
    """Bytes of packed numbers for so many layers and heads."""
    S, D = len(journey.tokens), journey.config.hidden_size
    vectors = (6 + 5 * layers) * min(S, VECTOR_TOKENS) * D
    pairs = 2 * layers * heads * min(S, PAIR_TOKENS) * D // journey.config.num_attention_heads
    return (vectors + pairs + layers * (heads + 2) * S * S) * PER_NUMBER


def left_out(journey: Journey, layers: list[int], heads: list[int]) -> str:
    """What the page lacks, in one sentence."""
    L, H, S = len(journey.config.shared_layers), journey.config.num_attention_heads, len(journey.tokens)
    lacks = []
    if len(layers) < L:
        lacks.append(f"layers {numbered(layers)} of 0 to {L - 1} (--layers chooses others)")
    if len(heads) < H:
        lacks.append(f"heads {numbered(heads)} of 0 to {H - 1} (--heads chooses others)")
    if S > VECTOR_TOKENS:
        lacks.append(f"the vectors of the first {VECTOR_TOKENS} tokens")
    if S > PAIR_TOKENS:
        lacks.append(f"the queries and keys of the first {PAIR_TOKENS}")
    return f"Of the {S} tokens this page has {'; '.join(lacks)}. Norms, mean and rollout are of all." if lacks else ""


def numbered(numbers: list[int]) -> str:
    """[0, 1, 2, 5] as "0 to 2, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


# ---------------------------------------------------------------------------------------------------------------
# Packing


def packed_probs(probs: Tensor) -> str:
    """Probabilities as uint16, 65535 for 1."""
    steps = (probs.double() * 65535).round().to(torch.int64).numpy()
    return base64.b64encode(steps.astype("<u2").tobytes()).decode()


def packed_vectors(vectors: Tensor) -> str:
    """Vectors as float16; what is beyond its range becomes its largest number."""
    half = vectors.double().clamp(-65504, 65504).numpy().astype("<f2")
    return base64.b64encode(half.tobytes()).decode()


def rounded(values: Tensor) -> list[float]:
    """Numbers for reading, to 5 digits."""
    return [float(f"{value:.5g}") for value in values.double().tolist()]


def page_data(journey: Journey, choice: Choice) -> dict[str, Any]:
    """Everything that the script of the page draws; each name is explained at the top of numbers.js."""
    config = journey.config
    S, kept = len(journey.tokens), vectors(journey, choice)
    return {
        "S": S,
        "D": config.hidden_size,
        "E": journey.token_embeddings.shape[-1],
        "H": config.num_attention_heads,
        "L": len(config.shared_layers),
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
        "units": {str(layer): units(journey.layers[layer].units) for layer in choice.layers},
        "norms": norms(journey, kept),
        "cosines": cosines(journey, choice),
    }


def attention(journey: Journey, choice: Choice) -> dict[str, Any]:
    """For each layer: its heads one after the other, their mean, the rollout up to it, and the shares of a pair."""
    rolled = rollout(journey.attentions)
    found: dict[str, Any] = {}
    for layer in choice.layers:
        probs = journey.layers[layer].probs
        found[str(layer)] = {
            "heads": packed_probs(probs[choice.heads]),
            "mean": packed_probs(probs.mean(dim=0)),
            "rollout": packed_probs(rolled[layer]),
        }
        if journey.text_b is not None:
            matrices = {"mean": probs.mean(dim=0), "rollout": rolled[layer]} | {str(h): probs[h] for h in choice.heads}
            found[str(layer)]["quadrants"] = {name: quadrants(m, journey.sides) for name, m in matrices.items()}
    return found


def vectors(journey: Journey, choice: Choice) -> dict[str, Tensor]:
    """The vectors that are drawn, (S,D) each, by name; hidden0 is the embeddings, hidden1 what layer 0 returns."""
    found = {"token": journey.token_embeddings, "position": journey.position_embeddings, "sum": journey.embedding_sum}
    if journey.segment_embeddings is not None:
        found["segment"] = journey.segment_embeddings
    L = len(journey.config.shared_layers)
    for state in sorted({0, L, *choice.layers, *(layer + 1 for layer in choice.layers)}):
        found[f"hidden{state}"] = journey.hidden_states[state]
    for layer in choice.layers:
        one = journey.layers[layer]
        found[f"attention{layer}"] = one.attention_output
        found[f"attention_norm{layer}"] = one.attention_norm
        found[f"feed_forward{layer}"] = one.feed_forward
    if journey.pooled is not None:
        found["pooled"] = journey.pooled[None]
    if journey.decision is not None:
        found["features"] = journey.decision.vector[None]
    return found


def queries_and_keys(journey: Journey, layer: int, heads: list[int]) -> dict[str, Any]:
    """What one layer compares, head by head; and, where keys are left out, the logarithm of what softmax divides by."""
    one, H = journey.layers[layer], journey.config.num_attention_heads

    def of_heads(x: Tensor) -> Tensor:
        return (
            x[:PAIR_TOKENS].reshape(-1, H, x.shape[-1] // H).transpose(0, 1)[heads]
        )  # (P,D) -> (P,H,W) -> (heads,P,W)

    divisors = one.scores[heads, :PAIR_TOKENS].double().logsumexp(dim=-1)
    return {
        "queries": packed_vectors(of_heads(one.query)),
        "keys": packed_vectors(of_heads(one.key)),
        "log_sums": [rounded(row) for row in divisors] if len(journey.tokens) > PAIR_TOKENS else None,
    }


def units(strongest: Units) -> list[dict[str, Any]]:
    """The strongest units for each of the first tokens, and what the rest and the bias add."""
    return [
        {
            "unit": strongest.unit[token].tolist(),
            "activation": rounded(strongest.activation[token]),
            "share": rounded(strongest.share[token]),
            "rest": float(f"{strongest.rest[token]:.5g}"),
            "bias": float(f"{strongest.bias[token]:.5g}"),
        }
        for token in range(min(len(strongest.unit), VECTOR_TOKENS))
    ]


def norms(journey: Journey, kept: dict[str, Tensor]) -> dict[str, list[float]]:
    """The Euclidean length of every vector, (S) each, and of the two sums of each layer, which are not drawn whole."""
    sums = {f"attention_sum{i}": layer.attention_sum for i, layer in enumerate(journey.layers)}
    sums |= {f"feed_forward_sum{i}": layer.feed_forward_sum for i, layer in enumerate(journey.layers)}
    drawn = {name: v for name, v in sums.items() if name.replace("_sum", "") in kept}
    return {name: rounded(vector.double().norm(dim=-1)) for name, vector in (kept | drawn).items()}


def cosines(journey: Journey, choice: Choice) -> dict[str, list[float]]:
    """How much a step turns each vector: the cosine of before and after, (S)."""
    found = {}
    for layer in choice.layers:
        one, before = journey.layers[layer], journey.hidden_states[layer].double()
        middle, after = one.attention_norm.double(), one.output.double()
        found[f"attention{layer}"] = rounded(torch.cosine_similarity(before, middle, dim=-1))
        found[f"feed_forward{layer}"] = rounded(torch.cosine_similarity(middle, after, dim=-1))
    return found
