"""How a classifier decides on one text, taken apart: logit = sum of contributions + intercept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minibert.config import Config
from minibert.model import EncoderOutput
from minibert.tasks.frozen import Classifier
from minibert.vectors.pooling import pool


@dataclass(frozen=True, eq=False)
class Decision:
    """The decision on one text: for each class, or for one of two, what each column of the vector adds to the logit."""

    labels: list[str]
    probabilities: NDArray[np.float64]  # (labels)
    logits: NDArray[np.float64]  # (labels), or (1) for two labels: that of the second
    intercepts: NDArray[np.float64]  # as logits
    contributions: NDArray[np.float64]  # (logits, width): coefficient times standardised feature
    columns: list[str]  # what each column of the width is
    recipe: str  # how the vector was made
    vector: Tensor  # (width) before the scaler


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
    out = EncoderOutput(states[-1], None if pooled is None else pooled[None], tuple(state[None] for state in states))
    keep = torch.ones(1, len(states[0]), dtype=torch.bool)
    vector = pool(out, keep, recipe, layers)[0]  # (width)
    contributions = regression.coef_ * (vector.double().numpy() - scaler.mean_) / scaler.scale_  # (logits, width)
    logits = contributions.sum(axis=1) + regression.intercept_
    D = config.hidden_size
    of_state = [f" of hidden state {layer}" for layer in layers] if width > D else [""]
    return Decision(
        labels=classifier.labels,
        probabilities=probabilities(logits),
        logits=logits,
        intercepts=np.asarray(regression.intercept_, dtype=np.float64),
        contributions=contributions,
        columns=[f"dimension {d % D}{of_state[d // D]}" for d in range(width)],
        recipe=described(recipe.pooling, layers, recipe.combine),
        vector=vector,
    )


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
