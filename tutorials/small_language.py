"""The small language of notebook 12 as rows with masked words, and what notebooks 13 and 15 train on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from own_functions import own
from torch import Tensor
from toy_language import Language

from minibert.config import Config
from minibert.families import FAMILIES
from minibert.families.base import Family
from minibert.families.bert import BERT
from minibert.heads import HEAD_CLASSES
from minibert.inputs import unchecked

LANGUAGE = Language(topics=("sea", "kitchen"))
ID_OF = {token: id for id, token in enumerate(LANGUAGE.vocabulary)}
WORDS = [ID_OF[word] for word in LANGUAGE.words]
SHORT, LONG = 16, 32  # tokens of a row
ROWS = 32  # of a batch

Rows = tuple[Tensor, Tensor]  # token ids and labels, (count, S) each


def one_sentence(random: np.random.Generator, most: int) -> list[str]:
    """Return the words of a sentence with at most so many words."""
    words = LANGUAGE.sentence(int(random.integers(2)), random)
    while len(words) > most:
        words = LANGUAGE.sentence(int(random.integers(2)), random)
    return words


def running_text(random: np.random.Generator, most: int) -> list[str]:
    """Return the first words of a text about one topic."""
    topic, words = int(random.integers(2)), []
    while len(words) < most:
        words += LANGUAGE.sentence(topic, random)
    return words[:most]


def rows_of(
    text: Callable[[np.random.Generator, int], list[str]], count: int, seed: int, S: int = SHORT, rate: float = 0.3
) -> Rows:
    """Return rows [CLS] text [SEP], in which a share `rate` of the words became [MASK], and their labels."""
    random = np.random.default_rng(seed)
    ids = np.full((count, S), ID_OF["[PAD]"])
    for row in ids:
        words = text(random, S - 2)
        row[: len(words) + 2] = [ID_OF[word] for word in ("[CLS]", *words, "[SEP]")]
    chosen = (random.random(ids.shape) < rate) & np.isin(ids, WORDS)
    return torch.from_numpy(np.where(chosen, ID_OF["[MASK]"], ids)), torch.from_numpy(np.where(chosen, ids, -100))


def small_config(**changes: Any) -> Config:
    """Return the sizes of a model that learns this language in seconds: two layers, 32 wide, four heads."""
    sizes = {
        "model_type": "bert",
        "vocab_size": len(ID_OF),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": SHORT,
        "initializer_range": 0.1,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return Config.from_dict(sizes | changes)


class Variant:
    """BERT, or another family, with some parts exchanged: Variant(attention=LocalAttention, windows=(8, 8)).

    The parts are fields of minibert's Architecture, which lists the classes and settings of a model.
    """

    def __init__(self, family: Family = BERT, **parts: Any) -> None:
        self.name = f"{family.name}, variant {len(FAMILIES)}"
        FAMILIES[self.name] = replace(
            family, name=self.name, architecture=lambda config: replace(family.architecture(config), **parts)
        )

    def config(self, **sizes: Any) -> Config:
        """Return the config of a small model; see `small_config`."""
        return small_config(model_type=self.name, **sizes)

    def model(self, seed: int, **sizes: Any) -> Any:
        """Return a small masked language model with random weights, which computes with $MY_BERT if it is set."""
        torch.manual_seed(seed)
        return own(HEAD_CLASSES["masked-lm"](self.config(**sizes)))


def learn(model: Any, rows: Rows, seed: int, steps: int = 120, warmup: float = 0.1, highest: float = 1e-2) -> None:
    """Train a masked language model. The learning rate rises to `highest` for a share of the steps, then falls to 0."""
    generator = torch.Generator().manual_seed(seed)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, betas=(0.9, 0.98), fused=True)
    ids, labels = rows
    with unchecked():  # the rows are our own
        for step in range(steps):
            rising = (step + 1) / (warmup * steps) if warmup else 1
            optimizer.param_groups[0]["lr"] = highest * min(rising, (1 - step / steps) / (1 - warmup))
            of_batch = torch.randint(len(ids), (ROWS,), generator=generator)
            optimizer.zero_grad()
            model(ids[of_batch], labels=labels[of_batch]).loss.backward()
            optimizer.step()


@torch.no_grad()
def loss_of(model: Any, rows: Rows) -> float:
    """Return the mean loss of the masked words of these rows, in nats."""
    ids, labels = rows
    return float(model(ids, labels=labels).loss)


def unigram_loss(train: Rows, held_out: Rows) -> float:
    """Return the loss of a model that knows only how frequent each word is."""
    counts = torch.bincount(train[1][train[1] != -100], minlength=len(ID_OF)).float()
    return float(-(counts / counts.sum()).log()[held_out[1][held_out[1] != -100]].mean())


def verdict(differences: Sequence[float]) -> str:
    """Say what three differences show: "cannot tell" unless their mean exceeds 4.3 standard errors (notebook 13)."""
    mean, error = np.mean(differences), np.std(differences, ddof=1) / math.sqrt(len(differences))
    said = "cannot tell" if abs(mean) < 4.3 * error else "worse" if mean > 0 else "better"
    return f"{mean:+.3f} ± {error:.3f}  {said}"
