"""Pretraining objectives: what a model predicts of a row, its losses, and its score on held-out text.

    mlm        masked tokens                                       Devlin et al. 2018, section 3.1
    mlm+nsp    and whether the second text follows the first       the same
    mlm+sop    and whether the two texts are in order              Lan et al. 2019, section 3.1
    electra    which tokens a small generator has replaced         Clark et al. 2020, section 3

An objective is a loss function for loop.train with a name, a model, rows and a score of its own. A new one is a class
here, in OBJECTIVES, with its name in settings.OBJECTIVES.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minibert.checkpoints.load import has_head, load
from minibert.config import Config
from minibert.heads import HEAD_CLASSES, Head, MaskedLM, ReplacedTokenDetection
from minibert.inputs import inference, unchecked
from minibert.losses import IGNORED, cross_entropy, token_cross_entropy
from minibert.tasks.base import Example
from minibert.text.masking import Masking
from minibert.train.batches import Batch, collate
from minibert.train.packed import packed_states
from minibert.train.settings import PretrainSettings

SCORED_ROWS = 32  # in a batch of held-out rows
DISCRIMINATOR_SCALE = 50.0  # of ELECTRA's discriminator loss, which is small: section 3.2
GENERATOR = 4  # times: ELECTRA's generator is so much narrower, with fewer heads


class MaskedLanguageModel:
    """Masked tokens are predicted; a subclass with a `pairing` also classifies pairs of texts.

    step: "packed", without padding, or "readable", the model's own forward pass.
    """

    head = "masked-lm"
    pairing: str | None = None  # of the two texts of a row: see stream.Packing
    over: Mapping[str, str] = {"next-sentence": "texts", "sentence-order": "texts"}  # see loop.Loss
    scales: Mapping[str, float] = {}

    def __init__(self, step: str = "packed") -> None:
        self.step = step

    def check(self, settings: PretrainSettings) -> None:
        """Raise ValueError for settings with which this objective cannot be learned."""

    def masking(self, masking: Masking) -> Masking:
        """How the chosen tokens are masked."""
        return masking

    def new_model(self, config: Config, checkpoint: Path | None = None) -> Any:
        """A checkpoint with this task head, a fresh one if it has none; or a model of random weights."""
        if checkpoint is None:
            return HEAD_CLASSES[self.head](config)
        return load(checkpoint, head=self.head, new_head=not has_head(checkpoint, self.head))

    def models(self, model: Any) -> dict[str, Head]:
        """The models that are saved, by their folder in that of the result; "" is the main one."""
        return {"": model}

    def predict(self, model: Head, batch: Batch, step: str) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        """Logits of tokens, (1, N, V) of masked ones or (B, S, V), logits of pairs (B, 2) or None, and the labels."""
        if step == "packed":
            encoded, labels = packed_states(model, batch)
            out: Any = model.read(encoded)
        else:
            inputs = {"attention_mask": batch.attention_mask, "token_type_ids": batch.token_type_ids}
            out, labels = model(batch.input_ids, **inputs), batch.labels
        if self.pairing is None:
            return out.logits, None, labels
        pairs = out.seq_relationship_logits if out.sop_logits is None else out.sop_logits
        return out.prediction_logits, pairs, labels | {"pairs": labels[f"{self.pairing.replace('-', '_')}_label"]}

    def __call__(self, model: Any, batch: Batch) -> dict[str, Tensor]:
        """The losses of a batch by name, whose sum is the loss of transformers."""
        tokens, pairs, labels = self.predict(model, batch, self.step)
        losses = {"masked-lm": token_cross_entropy(tokens, labels["labels"])}
        return losses if pairs is None else losses | {str(self.pairing): cross_entropy(pairs, labels["pairs"])}

    def score(self, model: Any, rows: Sequence[Example], precision: str = "float32") -> dict[str, Any]:
        """Mean loss, perplexity and accuracy of masked tokens and of pairs."""
        lower = torch.autocast(model.device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()
        with inference(model), unchecked(), lower:
            found = self.figures(model, batches_of(rows, model))
        return {"perplexity": math.exp(min(700.0, found["masked_lm_loss"]))} | found

    def figures(self, model: Any, batches: Iterable[Batch]) -> dict[str, Any]:
        """The figures of `score`, without perplexity."""
        sums = torch.zeros(2, 3, dtype=torch.float64)  # of tokens and of pairs
        for batch in batches:
            tokens, pairs, labels = self.predict(model, batch, "packed")
            sums[0] += summed(tokens[0], labels["labels"][0])  # (N,V), (N)
            sums[1] += 0 if pairs is None else summed(pairs, labels["pairs"])  # (B,2), (B)
        (count, loss, correct), second = sums[0].tolist(), (sums[1, 1:] / sums[1, 0]).tolist()
        found = {"masked_lm_loss": loss / count, "masked_accuracy": correct / count, "masked_tokens": int(count)}
        name = str(self.pairing).replace("-", "_")
        return found | ({} if self.pairing is None else {f"{name}_loss": second[0], f"{name}_accuracy": second[1]})


class NextSentence(MaskedLanguageModel):
    """Masked tokens, and whether the second text of a row follows the first."""

    head = "pretraining"
    pairing = "next-sentence"


class SentenceOrder(MaskedLanguageModel):
    """Masked tokens, and whether the two texts of a row are in order."""

    head = "pretraining"
    pairing = "sentence-order"


def batches_of(rows: Sequence[Example], model: Any) -> Iterator[Batch]:
    """The rows in batches of similar length, on the device of the model."""
    in_order = sorted(range(len(rows)), key=lambda row: len(rows[row].ids))
    for start in range(0, len(rows), SCORED_ROWS):
        numbers = in_order[start : start + SCORED_ROWS]
        yield collate([rows[row] for row in numbers], numbers, model.config.pad_token_id).to(model.device)


def summed(logits: Tensor, labels: Tensor) -> Tensor:
    """The number of predictions, (N,K) and (N), the sum of their losses, and the number of correct ones: (3)."""
    loss = F.cross_entropy(logits.float(), labels, reduction="sum")
    return torch.tensor([len(labels), float(loss), int((logits.argmax(dim=-1) == labels).sum())], dtype=torch.float64)


# ---------------------------------------------------------------------------------------------------------------
# ELECTRA


class Electra(nn.Module):
    """A generator and a discriminator, which share the tables of tokens, positions and segments, and their norm.

    Raises ValueError for a config that is not ELECTRA's, or whose heads cannot be divided by 4.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        if config.num_attention_heads % GENERATOR:
            raise ValueError(
                f"num_attention_heads is {config.num_attention_heads}; the generator has a quarter of them, so it must "
                f"be a multiple of {GENERATOR}"
            )
        self.config = config
        self.head_is_trained = False
        self.discriminator = ReplacedTokenDetection(config)
        widths = ("hidden_size", "num_attention_heads", "intermediate_size")
        self.generator = MaskedLM(replace(config, **{name: getattr(config, name) // GENERATOR for name in widths}))
        for name in ("token", "position", "segment", "norm"):
            setattr(self.generator.encoder.embeddings, name, getattr(self.discriminator.encoder.embeddings, name))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.discriminator.device


class ReplacedTokens(MaskedLanguageModel):
    """ELECTRA: a generator predicts masked tokens, and the discriminator tells which tokens it has replaced.

        the man [MASK] to the [MASK]   -> generator ->   the man ran to the store     sampled from its prediction
        the man  ran   to the  store   -> discriminator -> 0 0 1 0 0 0                1: not the original ("went")

        loss = masked LM of the generator + 50 · binary cross entropy of the discriminator, over all tokens

    No gradient flows through the sampling: the generator learns to predict, not to deceive. A sampled token that equals
    the original counts as original.
    """

    head = "replaced-token-detection"
    over: Mapping[str, str] = {"replaced-token-detection": "tokens"}
    scales: Mapping[str, float] = {"replaced-token-detection": DISCRIMINATOR_SCALE}

    def check(self, settings: PretrainSettings) -> None:
        """ELECTRA starts from random weights, and has a packed step alone."""
        if settings.step == "readable" or settings.init:
            raise ValueError("objective electra needs a config, for a new generator and discriminator, and step packed")

    def masking(self, masking: Masking) -> Masking:
        """85 % of the chosen tokens are masked, and the others stay."""
        return replace(masking, masked=0.85, replaced=0.0)

    def new_model(self, config: Config, checkpoint: Path | None = None) -> Electra:
        """Both models, of random weights."""
        return Electra(config)

    def models(self, model: Electra) -> dict[str, Head]:
        """The discriminator, and the generator in its folder."""
        return {"": model.discriminator, "generator": model.generator}

    def __call__(self, model: Electra, batch: Batch) -> dict[str, Tensor]:
        """The generator's loss over the chosen tokens, and the discriminator's over all."""
        logits, labels = self.generate(model, batch)  # (N,V), (N)
        sampled = torch.multinomial(logits.detach().float().softmax(dim=-1), 1).squeeze(1)  # (N)
        found, replaced = self.detect(model, batch, sampled)  # (T), (T)
        return {
            "masked-lm": token_cross_entropy(logits[None], labels[None]),
            "replaced-token-detection": F.binary_cross_entropy_with_logits(found.float(), replaced.float()),
        }

    def generate(self, model: Electra, batch: Batch) -> tuple[Tensor, Tensor]:
        """The generator's logits of the chosen tokens, (N,V), and the original tokens, (N)."""
        encoded, labels = packed_states(model.generator, batch)
        return model.generator.read(encoded).logits[0], labels["labels"][0]

    def detect(self, model: Electra, batch: Batch, sampled: Tensor) -> tuple[Tensor, Tensor]:
        """The discriminator's logits of all tokens, (T), and whether each was replaced, (T)."""
        labels = batch.labels["labels"]
        chosen = labels != IGNORED  # (B,S)
        ids = batch.input_ids.masked_scatter(chosen, sampled)
        replaced = ids != torch.where(chosen, labels, batch.input_ids)
        encoded, packed = packed_states(
            model.discriminator, replace(batch, input_ids=ids, labels={"labels": replaced.long()})
        )
        return model.discriminator.read(encoded).logits[0], packed["labels"][0]

    def figures(self, model: Electra, batches: Iterable[Batch]) -> dict[str, Any]:
        """Loss and accuracy of the generator, and how many replaced and original tokens the discriminator recognises.

        The generator's likeliest tokens are filled in, so that the figures are deterministic.
        """
        sums, detected = (
            torch.zeros(3, dtype=torch.float64),
            torch.zeros(2, 2, dtype=torch.float64),
        )  # (original or replaced, all or found)
        for batch in batches:
            logits, labels = self.generate(model, batch)
            sums += summed(logits, labels)
            found, replaced = self.detect(model, batch, logits.argmax(dim=-1))
            for kind in (0, 1):
                of_kind = replaced == kind
                detected[kind] += torch.tensor([int(of_kind.sum()), int(((found > 0) == kind)[of_kind].sum())])
        (count, loss, correct), (originals, replacements) = sums.tolist(), detected.tolist()
        return {
            "masked_lm_loss": loss / max(1.0, count),
            "masked_accuracy": correct / max(1.0, count),
            "masked_tokens": int(count),
            "replaced_found": replacements[1] / max(1, replacements[0]),
            "originals_left_alone": originals[1] / max(1, originals[0]),
            "replaced_share": replacements[0] / max(1, originals[0] + replacements[0]),
        }


OBJECTIVES: dict[str, type[MaskedLanguageModel]] = {
    "mlm": MaskedLanguageModel,
    "mlm+nsp": NextSentence,
    "mlm+sop": SentenceOrder,
    "electra": ReplacedTokens,
}
