"""ELECTRA's pretraining: a small model fills the masks, and the one that is kept tells what was filled in.

    the man [MASK] to the [MASK]   -> generator ->   the man ran to the store     drawn from what it finds likely
    the man  ran   to the  store   -> discriminator -> 0 0 1 0 0 0                1: not what stood there ("went")

    loss = masked LM of the generator + 50 · binary cross entropy of the discriminator, over all tokens

Clark et al. 2020, section 3. No gradient goes through the drawing: the generator learns to guess, not to deceive. The
two share their embeddings. A token that is drawn as it was counts as original.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minibert.config import Config
from minibert.heads import MaskedLM, ReplacedTokenDetection
from minibert.losses import IGNORED, token_cross_entropy
from minibert.train.batches import Batch
from minibert.train.packed import packed_states

SCALE = 50.0  # of the discriminator's loss, which is small: section 3.2
MASKED, REPLACED = 0.85, 0.0  # of the chosen tokens; the others stay
SMALLER = 4  # times: the generator's width, feed-forward and heads


class Electra(nn.Module):
    """Generator and discriminator, which share the tables of tokens, positions and segments, and their norm.

    Raises ValueError for a config that is not ELECTRA's, or too narrow for a generator of a quarter of its width.
    """

    def __init__(self, config: Config, generator: Config | None = None) -> None:
        super().__init__()
        self.config = config
        self.head_is_trained = False
        self.discriminator = ReplacedTokenDetection(config)  # first: what is no ELECTRA has none
        self.generator = MaskedLM(generator or smaller(config))
        for name in ("token", "position", "segment", "norm"):
            setattr(self.generator.encoder.embeddings, name, getattr(self.discriminator.encoder.embeddings, name))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.discriminator.device


def smaller(config: Config) -> Config:
    """The generator's config: a quarter of the width, all layers (section 3.2)."""
    if config.num_attention_heads % SMALLER:
        raise ValueError(
            f"num_attention_heads is {config.num_attention_heads}; the generator has a quarter of them, so that it "
            f"must be a multiple of {SMALLER}"
        )
    return replace(
        config,
        hidden_size=config.hidden_size // SMALLER,
        num_attention_heads=config.num_attention_heads // SMALLER,
        intermediate_size=config.intermediate_size // SMALLER,
    )


def losses(model: Electra, batch: Batch) -> dict[str, Tensor]:
    """The generator's loss over the chosen tokens, and the discriminator's over all."""
    logits, wanted = guesses(model, batch)  # (N,V), (N)
    drawn = torch.multinomial(logits.detach().float().softmax(dim=-1), 1).squeeze(1)  # (N)
    found, truth = scores(model, batch, drawn)  # (T), (T)
    return {
        "masked-lm": token_cross_entropy(logits[None], wanted[None]),
        "replaced-token-detection": F.binary_cross_entropy_with_logits(found.float(), truth.float()),
    }


def guesses(model: Electra, batch: Batch) -> tuple[Tensor, Tensor]:
    """What the generator says at the chosen places, (N,V), and what stood there, (N)."""
    encoded, labels = packed_states(model.generator, batch)
    return model.generator.read(encoded).logits[0], labels["labels"][0]


def scores(model: Electra, batch: Batch, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """What the discriminator says of every token, (T), and whether it was replaced, (T)."""
    labels = batch.labels["labels"]
    chosen = labels != IGNORED  # (B,S)
    filled = batch.input_ids.masked_scatter(chosen, drawn)
    replaced = filled != torch.where(chosen, labels, batch.input_ids)
    asked = replace(batch, input_ids=filled, labels={"labels": replaced.long()})
    encoded, truth = packed_states(model.discriminator, asked)
    return model.discriminator.read(encoded).logits[0], truth["labels"][0]


def figures(model: Electra, batches: Iterable[Batch]) -> dict[str, Any]:
    """On held-out text: loss and accuracy of the generator, and how well replaced tokens are told from others.

    The generator's best guess is filled in, so that the figures are the same each time.
    """
    loss = right = masked = 0.0
    hits = {True: 0, False: 0}
    counts = {True: 0, False: 0}
    for batch in batches:
        logits, wanted = guesses(model, batch)
        best = logits.argmax(dim=-1)
        loss += float(F.cross_entropy(logits.float(), wanted, reduction="sum"))
        right, masked = right + int((best == wanted).sum()), masked + len(wanted)
        found, truth = scores(model, batch, best)
        for kind in (True, False):
            of_kind = truth.bool() == kind
            counts[kind] += int(of_kind.sum())
            hits[kind] += int(((found > 0) == kind)[of_kind].sum())
    return {
        "masked_lm_loss": loss / max(1.0, masked),
        "masked_accuracy": right / max(1.0, masked),
        "masked_tokens": int(masked),
        "replaced_found": hits[True] / max(1, counts[True]),
        "originals_left_alone": hits[False] / max(1, counts[False]),
        "replaced_share": counts[True] / max(1, counts[True] + counts[False]),
    }
