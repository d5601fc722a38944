"""Losses of the task heads, with a check of their labels.

A label out of range fails deep in a loss kernel, and on a GPU it breaks the whole process. Here the error is one
sentence with the value, its position and the limit (inputs.unchecked switches the check off). In range, every loss
equals that of transformers 5.23.

    B texts     S tokens     V vocabulary     K labels of a classifier     M texts to choose from
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from minibert.inputs import IGNORED, INTEGERS, check_tensor, checking, refuse_where
from minibert.utils.habits import unknown_attribute

if not TYPE_CHECKING:  # else mypy would accept any name

    def __getattr__(name: str) -> object:
        raise unknown_attribute("module minibert.losses", name, ())


def as_classes(name: str, labels: Tensor, shape: torch.Size) -> Tensor:
    """Return the labels as int64 in this shape, without a last axis of length 1. Raises ValueError for other labels."""
    check_tensor(name, labels)
    if checking() and (labels.dtype not in INTEGERS or labels.shape not in (shape, (*shape, 1))):
        raise ValueError(
            f"{name} are {labels.dtype} with shape {tuple(labels.shape)}; cross entropy needs integers (torch.int64) "
            f"with shape {tuple(shape)}"
        )
    return labels.reshape(shape).long()


def cross_entropy(logits: Tensor, labels: Tensor, name: str = "labels", ignored: str = "") -> Tensor:
    """Return the mean of -log softmax(logits)[label], (B, K) and (B) -> (), or (B, S, K) and (B, S) -> ().

    ignored: if given, labels of -100 do not count, and the error message says so in these words. Raises ValueError for
    any other label outside 0 .. K-1.
    """
    labels = as_classes(name, labels, logits.shape[:-1])
    K = logits.shape[-1]
    outside = ((labels < 0) | (labels >= K)) & (labels != IGNORED if ignored else True)
    refuse_where(outside, name, labels, f"it must be from 0 to {K - 1}{ignored}")
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED)


def token_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy of the tokens with a label, (B, S, V) and (B, S) -> (); -100 means no label.

    The mean is NaN if no token has a label, as upstream.
    """
    return cross_entropy(logits, labels, ignored=f", or {IGNORED} for no label")


def detection_loss(logits: Tensor, labels: Tensor, real: Tensor | None) -> Tensor:
    """Return the binary cross entropy of labels 0 or 1 at the real tokens (None: all), (B, S) and (B, S) -> ()."""
    labels = as_classes("labels", labels, logits.shape)
    wrong = (labels < 0) | (labels > 1)
    refuse_where(wrong if real is None else wrong & real, "labels", labels, "it must be 0, or 1 for a replaced token")
    if real is not None:
        logits, labels = logits[real], labels[real]  # (B,S) -> (N)
    return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))


def position_cross_entropy(logits: Tensor, positions: Tensor, name: str) -> Tensor:
    """Return the mean of -log softmax(logits)[position], (B, S) and (B) -> ().

    As upstream, a negative position counts as 0, and a position of S or more is left out of the mean.
    """
    positions = as_classes(name, positions, logits.shape[:1])
    S = logits.shape[1]
    return F.cross_entropy(logits, positions.clamp(0, S), ignore_index=S)


def text_loss(logits: Tensor, labels: Tensor, problem_type: str | None) -> Tensor:
    """Return the loss of classifying whole texts, (B, K) -> (), by problem_type.

    regression: squared error to numbers (B, K), or (B) if K is 1; single_label_classification: cross entropy of classes
    (B); multi_label_classification: binary cross entropy of numbers from 0 to 1 (B, K). None chooses as upstream does:
    regression for one output, otherwise a single label for integers and multiple labels for floats.
    """
    check_tensor("labels", labels)
    cause = f"config.problem_type is {problem_type}"
    way_out = "; for another type of label set model.config = dataclasses.replace(model.config, problem_type=None)"
    if problem_type is None:
        classes = "single_label_classification" if labels.dtype in INTEGERS else "multi_label_classification"
        problem_type = "regression" if logits.shape[1] == 1 else classes
        cause = f"labels of {labels.dtype} mean {problem_type}"
        way_out = "; single labels are integers, several are floats"
    single = problem_type == "single_label_classification"
    rows = logits.shape[:1]
    if logits.shape[1] == 1 and labels.dim() == 1 and not single:
        labels = labels.unsqueeze(-1)  # (B) -> (B,1)
    fits = labels.dtype in INTEGERS and labels.shape in (rows, (*rows, 1)) if single else labels.shape == logits.shape
    if not fits:
        needed = f"integers with shape {tuple(rows)}" if single else f"numbers with shape {tuple(logits.shape)}"
        given = f"{labels.dtype} with shape {tuple(labels.shape)}"
        raise ValueError(f"{cause}, which needs labels that are {needed}, not {given}{way_out}")
    if single:
        return cross_entropy(logits, labels)
    labels = labels.to(logits.dtype)
    refuse_where(~labels.isfinite(), "labels", labels, "it must be finite")
    if problem_type == "regression":
        return F.mse_loss(logits, labels)
    refuse_where((labels < 0) | (labels > 1), "labels", labels, "it must be from 0 to 1 for multiple labels")
    return F.binary_cross_entropy_with_logits(logits, labels)


# ---------------------------------------------------------------------------------------------------------------
# Losses of sentence vectors, which compare the texts of a step with each other. cos is the cosine of two vectors.


def in_batch_negatives(anchors: Tensor, texts: Tensor, excluded: Tensor, scale: float) -> Tensor:
    """Return the mean of -log softmax_j(scale · cos(anchor i, text j))[i]: which of all texts belongs to each anchor.

    anchors: (B, D). texts: (M, D); text i belongs to anchor i, and the other M - 1 are its negatives, except where
    `excluded`, (B, M), is True. (B, D), (M, D), (B, M) -> (). Henderson et al. 2017, section 4; Oord et al. 2018;
    MultipleNegativesRankingLoss of sentence-transformers 6.2.
    """
    scores = F.normalize(anchors, dim=-1) @ F.normalize(texts, dim=-1).T * scale  # (B,D), (M,D) -> (B,M)
    return F.cross_entropy(scores.masked_fill(excluded, -torch.inf), torch.arange(len(scores), device=scores.device))


def cosent(cosines: Tensor, similarity: Tensor, scale: float) -> Tensor:
    """Return log(1 + Σ exp(scale · (cos_i - cos_j))), over all i, j where j is more similar: only order counts.

    (B), (B) -> (). CoSENTLoss of sentence-transformers 6.2.
    """
    difference = scale * (cosines[:, None] - cosines)  # (B,B)
    wrong_order = difference.masked_fill(similarity[:, None] >= similarity, -torch.inf)
    return torch.cat([wrong_order.new_zeros(1), wrong_order.flatten()]).logsumexp(dim=0)


def cosine_error(cosines: Tensor, similarity: Tensor) -> Tensor:
    """Return the mean squared error of the cosines, (B), (B) -> ().

    CosineSimilarityLoss of sentence-transformers 6.2.
    """
    return F.mse_loss(cosines, similarity)
