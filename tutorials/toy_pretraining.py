"""The tools of notebook 12: a training loop, the loss of counts, sentences whose verb must agree, and silent heads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from toy_language import SAME_FOR_ALL, TOPICS, Grammar, bounds

from minibert.config import Config
from minibert.heads import HEAD_CLASSES
from minibert.inputs import IGNORED, unchecked
from minibert.prediction.collate import ExampleBatch
from minibert.train.batches import Batches
from minibert.train.loop import learning_rate_at, new_optimizer, one_step
from minibert.train.objectives import OBJECTIVES
from minibert.train.settings import TrainSettings

Sentences = dict[str, list[list[str]]]


# -- training and scores


def pretrain(
    config: Config, settings: TrainSettings, batches: Iterable[ExampleBatch], total: int
) -> Iterator[tuple[Any, float]]:
    """Yield the model after each step, with the loss of its masked words. The rate falls to 0 at step `total`."""
    torch.manual_seed(0)
    model, objective = HEAD_CLASSES["pretraining"](config), OBJECTIVES["mlm+nsp"]()
    optimizer = new_optimizer(model, settings)
    for step, batch in enumerate(batches):
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step, total, settings)
        with unchecked():  # the batches are our own
            losses = one_step(model, [batch], optimizer, objective, settings, step + 1)
        yield model.eval(), float(losses.terms["masked-lm"])


@torch.no_grad()
def guesses_right(model: Any, rows: Sequence[Any], mask_id: int, pad_id: int, words: Tensor) -> dict[str, Tensor]:
    """Return which guesses are right: at each [MASK], and at each word of the same rows when nothing is masked."""
    batch = Batches(rows, len(rows), 0, pad_id).of_rows(range(len(rows)))
    labels, at_mask = batch.labels["labels"], batch.input_ids == mask_id
    text = torch.where(labels == IGNORED, batch.input_ids, labels)
    masked_guess, seen_guess = (
        model(ids, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids).prediction_logits.argmax(
            dim=-1
        )
        for ids in (batch.input_ids, text)
    )
    return {"at_mask": (masked_guess == labels)[at_mask], "seen": (seen_guess == text)[torch.isin(text, words)]}


def loss_of_counts(
    predicted: Callable[[int, int], NDArray[np.float64]],
    hidden: Sequence[Sequence[int]],
    labels: Sequence[Sequence[int]],
    mask_id: int,
    ordinary: int,
) -> float:
    """Return the mean loss of the asked words, if predicted(left id, right id) gives each word's share, (V).

    A visible word changes the shares: one in ten of the chosen words stays, and one in ten becomes any of the
    `ordinary` tokens.
    """
    losses = []
    for ids, asked in zip(hidden, labels, strict=True):
        for place in (place for place, label in enumerate(asked) if label != IGNORED):
            p = predicted(ids[place - 1], ids[place + 1]).copy()
            if ids[place] != mask_id:
                seen = np.full(len(p), 0.1 / ordinary)
                seen[ids[place]] += 0.1
                p *= seen
            losses.append(-math.log(p[asked[place]] / p.sum()))
    return float(np.mean(losses))


# -- sentences whose verb must agree with the subject, and not with the noun beside it

_KINDS = [TOPICS[topic] for topic in ("sea", "kitchen", "garden", "music")]
NOUNS = [noun for kinds in _KINDS for noun in kinds[0].split()]
VERBS_PLURAL = [verb for kinds in _KINDS for verb in (kinds[1] + " " + kinds[2]).split()]
VERBS_SINGULAR = [verb + "s" for verb in VERBS_PLURAL]
COMMON = (
    "boy girl king queen doctor teacher soldier sailor servant brother sister friend lawyer horse dog bird ship boat "
    "house tree table chair window door picture letter book flower garden road"
)  # nouns, of which the vocabulary should have both numbers


def toy_sentence(random: Random, many: bool, nearest: bool | None = None) -> list[str]:
    """Return [CLS] these boats near every oven [MASK] . [SEP].

    nearest: is the second noun plural? None: there is none.
    """

    def phrase(many: bool) -> list[str]:
        return [random.choice(("these", "many") if many else ("this", "every")), random.choice(NOUNS) + "s" * many]

    between = [] if nearest is None else [random.choice(SAME_FOR_ALL["preposition"].split()), *phrase(nearest)]
    return ["[CLS]", *phrase(many), *between, "[MASK]", ".", "[SEP]"]


def english_sentence(
    random: Random, nouns: Sequence[str], many: bool, nearest: bool | None = None, adverb: str = ""
) -> list[str]:
    """Return [CLS] the boys near the ship [MASK] very old . [SEP]; adverb: a word in front of [MASK]."""
    first, second = random.sample(nouns, 2)
    between = [] if nearest is None else [random.choice(("near", "behind", "beside")), "the", second + "s" * nearest]
    before = [adverb] if adverb else []
    return ["[CLS]", "the", first + "s" * many, *between, *before, "[MASK]", "very", "old", ".", "[SEP]"]


def three_kinds(sentence: Callable[..., list[str]], count: int = 400) -> Sentences:
    """Return sentences by what is between subject and verb. Every second one has a plural subject."""
    plural = [number % 2 == 1 for number in range(count)]
    return {
        "nothing between": [sentence(many) for many in plural],
        "the same number": [sentence(many, many) for many in plural],
        "the other number": [sentence(many, not many) for many in plural],
    }


@torch.no_grad()
def log_odds(model: Any, ids: Tensor, place: int, singular: list[int], plural: list[int]) -> Tensor:
    """Return log p(a plural verb) / p(a singular verb) at this place of each row, (B,S) -> (B)."""
    states = model.encoder(ids).last_hidden_state[:, place : place + 1]
    logits = model.predict_tokens(states)[:, 0]  # (B,V)
    odds: Tensor = logits[:, plural].logsumexp(-1) - logits[:, singular].logsumexp(-1)
    return odds


def best_log_odds(language: Grammar, vocab: dict[str, int], ids: Tensor, place: int) -> Tensor:
    """Return the log odds of the best possible model, (B)."""
    asked = torch.full_like(ids, IGNORED)
    asked[:, place] = vocab[VERBS_PLURAL[0]]  # `bounds` needs a label; which word it is does not matter
    p = bounds(language, ids.tolist(), asked.tolist(), vocab=vocab).words
    of_number = [
        p[:, [language.words.index(verb) for verb in verbs]].sum(1) for verbs in (VERBS_SINGULAR, VERBS_PLURAL)
    ]
    with np.errstate(divide="ignore"):
        return torch.from_numpy(np.log(of_number[1]) - np.log(of_number[0]))


@contextmanager
def silent(
    model: Any, layer: int, head: int, by_mean: bool = True, at: list[int] | slice = slice(None)
) -> Iterator[None]:
    """Replace a head's output with its mean over the rows of the batch, or with zeros; at: only at these places."""
    width = model.config.hidden_size // model.config.num_attention_heads
    columns = slice(head * width, (head + 1) * width)

    def replaced(module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        context = given[0].clone()  # (B,S,D), the outputs of all heads side by side
        context[:, at, columns] = context[:, at, columns].mean(dim=0) if by_mean else 0
        return (context,)

    hook = model.encoder.layers[layer].attention.output.register_forward_pre_hook(replaced)
    try:
        yield
    finally:
        hook.remove()
