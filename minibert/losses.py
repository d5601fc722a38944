"""The losses of the task heads, and what labels must look like before a loss is computed with them.

A label out of range ends deep in a loss kernel, and on a GPU it poisons the whole process; here it is one sentence
with the value, its place and the limit (inputs.unchecked switches that off, as for inputs). In range, every loss is
computed as transformers 5.23 computes it.

    B texts     S tokens     V vocabulary     K labels that a classifier tells apart
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from minibert.inputs import WHOLE_NUMBERS, checking

IGNORED = -100  # the label of a token at which there is nothing to predict
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")


def check_tensor(name: str, labels: Tensor) -> None:
    """Raise TypeError for anything but a tensor."""
    if not isinstance(labels, Tensor):
        raise TypeError(f"{name} must be a tensor, not {type(labels).__name__}")


def as_classes(name: str, labels: Tensor, shape: torch.Size) -> Tensor:
    """The labels as int64 in this shape (one more axis of length 1 is dropped); otherwise ValueError."""
    if checking():
        check_tensor(name, labels)
        if labels.dtype not in WHOLE_NUMBERS:
            raise ValueError(f"{name} are {labels.dtype}; cross entropy needs whole numbers (torch.int64)")
        if labels.shape not in (shape, (*shape, 1)):
            raise ValueError(f"{name} have shape {tuple(labels.shape)}; these logits need {tuple(shape)}")
    return labels.reshape(shape).long()


def refuse_where(wrong: Tensor, name: str, values: Tensor, limit: str) -> None:
    """Raise ValueError with the first wrong value, its position and the limit."""
    if checking() and wrong.any():
        place = wrong.nonzero()[0].tolist()
        raise ValueError(f"{name}{place} is {values[tuple(place)].item()}; it must be {limit}")


def cross_entropy(logits: Tensor, labels: Tensor, name: str = "labels") -> Tensor:
    """Mean of -log softmax(logits)[label], (B, K) and (B) -> (). Raises ValueError for a label outside 0 .. K-1."""
    labels = as_classes(name, labels, logits.shape[:-1])
    K = logits.shape[-1]
    refuse_where((labels < 0) | (labels >= K), name, labels, f"from 0 to {K - 1}")
    return F.cross_entropy(logits, labels)


def token_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The same at every token that has a label, (B, S, V) and (B, S) -> (); a label of -100 does not count.

    Where no token has a label the mean of nothing is NaN, as upstream.
    """
    labels = as_classes("labels", labels, logits.shape[:-1])
    V = logits.shape[-1]
    outside = ((labels < 0) | (labels >= V)) & (labels != IGNORED)
    refuse_where(outside, "labels", labels, f"from 0 to {V - 1}, or {IGNORED} where there is nothing to predict")
    return F.cross_entropy(logits.view(-1, V), labels.view(-1), ignore_index=IGNORED)


def detection_loss(logits: Tensor, labels: Tensor, real: Tensor | None) -> Tensor:
    """Binary cross entropy of a label of 0 or 1 at every token that is real (None: all), (B, S) and (B, S) -> ()."""
    labels = as_classes("labels", labels, logits.shape)
    wrong = (labels < 0) | (labels > 1)
    refuse_where(wrong if real is None else wrong & real, "labels", labels, "0 or 1, for a token that was replaced")
    if real is not None:
        logits, labels = logits[real], labels[real]  # (B,S) -> (N)
    return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))


def position_cross_entropy(logits: Tensor, positions: Tensor, name: str) -> Tensor:
    """Mean of -log softmax(logits)[position], (B, S) and (B) -> ().

    As upstream, a negative position counts as 0, and one of S or more is left out of the mean.
    """
    positions = as_classes(name, positions, logits.shape[:1])
    S = logits.shape[1]
    return F.cross_entropy(logits, positions.clamp(0, S), ignore_index=S)


def text_loss(logits: Tensor, labels: Tensor, problem_type: str | None) -> Tensor:
    """The loss of a classification of whole texts, (B, K) -> (), by problem_type.

    regression: squared error to numbers (B, K), or (B) where K is 1; single_label_classification: cross entropy of
    classes (B); multi_label_classification: binary cross entropy of numbers between 0 and 1 (B, K). None chooses
    as upstream does: one output is a regression, whole numbers are single labels, floats are multiple labels.
    """
    if checking():
        check_tensor("labels", labels)
    if problem_type is None:
        classes = "single_label_classification" if labels.dtype in WHOLE_NUMBERS else "multi_label_classification"
        problem_type = "regression" if logits.shape[1] == 1 else classes
    if problem_type == "single_label_classification":
        return cross_entropy(logits, labels)
    if logits.shape[1] == 1 and labels.dim() == 1:
        labels = labels.unsqueeze(-1)  # (B) -> (B,1)
    if labels.shape != logits.shape:
        raise ValueError(
            f"labels of {labels.dtype} are read as {problem_type}, which needs shape "
            f"{tuple(logits.shape)}, not {tuple(labels.shape)}; classes are whole numbers"
        )
    labels = labels.to(logits.dtype)
    refuse_where(~labels.isfinite(), "labels", labels, "finite")
    if problem_type == "regression":
        return F.mse_loss(logits, labels)
    refuse_where((labels < 0) | (labels > 1), "labels", labels, "from 0 to 1, as one of several labels of a text")
    return F.binary_cross_entropy_with_logits(logits, labels)
