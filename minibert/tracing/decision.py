"""How a classifier decides on one text, taken apart: by the dimensions of its vector, and by the text's tokens.

logit = Σ_d coefficient_d · standardised_d + intercept             exact, for every recipe
      = Σ_t what token t adds + intercept                          exact, for a mean over the tokens
probability with [MASK] in a token's place − probability           measured, a run of the model for each token
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minibert.config import Config
from minibert.model import Encoder, EncoderOutput
from minibert.tasks.frozen import Classifier
from minibert.vectors.readable import pool, readable_vectors


@dataclass(frozen=True, eq=False)
class Decision:
    """The decision on one text: for each class, or for one of two, what each column of the vector adds to the logit."""

    labels: list[str]
    probabilities: NDArray[np.float64]  # (labels)
    logits: NDArray[np.float64]  # (labels), or (1) for two labels: that of the second
    intercepts: NDArray[np.float64]  # as logits
    coefficients: NDArray[np.float64]  # (logits, width)
    standardised: NDArray[np.float64]  # (width): mean 0 and variance 1 over the training texts
    by_token: NDArray[np.float64] | None  # (logits, S): what each token adds; None for what is no mean of the tokens
    columns: list[str]  # what each column of the width is
    pooling: str  # cls, mean, max or pooler
    layers: tuple[int, ...]  # the hidden states that are read, 0 for the embeddings
    recipe: str  # how the vector was made
    vector: Tensor  # (width) before the scaler

    @property
    def contributions(self) -> NDArray[np.float64]:
        """(logits, width): what each column adds to each logit."""
        return self.coefficients * self.standardised

    @property
    def decided(self) -> int:
        """The number of the likeliest label."""
        return int(self.probabilities.argmax())


@dataclass(frozen=True)
class Masked:
    """The decision with [MASK] in the place of one token."""

    place: int  # of the token
    probability: float  # of the label that the whole text gets
    change: float  # of that probability, from the whole text to this


def decide(classifier: Classifier, config: Config, states: tuple[Tensor, ...], pooled: Tensor | None) -> Decision:
    """The classifier's decision on these states, by the recipe it was trained with, dimension by dimension.

    states: L + 1 of (S,D). pooled: (D), or None. Raises ValueError for a classifier of another width or recipe.
    """
    recipe = classifier.features.recipe
    layers, width = recipe.fit_to(config, has_pooler=pooled is not None)
    scaler, regression = classifier.head[0], classifier.head[-1]
    if width != scaler.n_features_in_:
        raise ValueError(
            f"the classifier reads {scaler.n_features_in_} columns, and this encoder gives {width}; "
            f"it was trained on {classifier.features.model}"
        )
    S = len(states[0])
    out = EncoderOutput(states[-1], None if pooled is None else pooled[None], tuple(state[None] for state in states))
    vector = pool(out, torch.ones(1, S, dtype=torch.bool), recipe, layers)[0]  # (width)
    standardised = (vector.double().numpy() - scaler.mean_) / scaler.scale_
    by_token = None
    if recipe.pooling == "mean":  # of S vectors, each that of a text of one token
        alone = EncoderOutput(states[-1], None, tuple(state[:, None] for state in states))  # S texts of 1 token
        vectors = pool(alone, torch.ones(S, 1, dtype=torch.bool), recipe, layers)  # (S, width)
        by_token = regression.coef_ @ ((vectors.double().numpy() - scaler.mean_) / scaler.scale_ / S).T
    logits = regression.coef_ @ standardised + regression.intercept_
    D = config.hidden_size
    of_state = [f" of hidden state {layer}" for layer in layers] if width > D else [""]
    return Decision(
        labels=classifier.labels,
        probabilities=probabilities(logits),
        logits=logits,
        intercepts=np.asarray(regression.intercept_, dtype=np.float64),
        coefficients=regression.coef_,
        standardised=standardised,
        by_token=by_token,
        columns=[f"dimension {d % D}{of_state[d // D]}" for d in range(width)],
        pooling=recipe.pooling,
        layers=layers,
        recipe=described(recipe.pooling, layers, recipe.combine),
        vector=vector,
    )


def masked_in_turn(
    classifier: Classifier, encoder: Encoder, ids: Sequence[int], places: Sequence[int], mask_id: int
) -> list[Masked]:
    """The decision on a text, (S) ids, with [MASK] in each of these places in turn: one run of the model a place."""
    rows = [list(ids), *([*ids[:place], mask_id, *ids[place + 1 :]] for place in places)]
    vectors = readable_vectors(encoder, rows, classifier.features.recipe)  # (1 + places, width)
    found = classifier.head.predict_proba(vectors)  # (1 + places, labels)
    whole, *without = found[:, found[0].argmax()].tolist()
    return [Masked(place, p, p - whole) for place, p in zip(places, without, strict=True)]


def described(pooling: str, layers: tuple[int, ...], combine: str) -> str:
    """How the vector is made, in words."""
    if pooling == "pooler":
        return "the pooler's output"
    how = "the vector of [CLS]" if pooling == "cls" else f"{pooling} over the tokens"
    if len(layers) == 1:
        return f"{how}, hidden state {layers[0]}"
    return f"{how}, hidden states {', '.join(map(str, layers))}, put together by {combine}"


def probabilities(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """One logit, that of the second of two labels, by the sigmoid; several by softmax."""
    scores = np.array([0.0, logits[0]]) if len(logits) == 1 else logits
    odds = np.exp(scores - scores.max())
    return np.asarray(odds / odds.sum())
