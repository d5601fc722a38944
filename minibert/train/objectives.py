"""Pretraining objectives: what a model predicts of a row, its losses, and its score on held-out text.

    mlm        masked tokens                                       Devlin et al. 2018, section 3.1
    mlm+nsp    and whether the second text follows the first       the same
    mlm+sop    and whether the two texts are in order              Lan et al. 2019, section 3.1
    electra    which tokens a small generator has replaced         Clark et al. 2020, section 3

An objective is a loss function for loop.train with a model, masking and a score of its own. A new one is a class here,
in OBJECTIVES, with its name in settings.OBJECTIVES.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minibert.checkpoints.checkpoint import Checkpoint
from minibert.checkpoints.load import load
from minibert.config import Config
from minibert.heads import HEAD_CLASSES, Head, HeadInput, MaskedLM, ReplacedTokenDetection
from minibert.inputs import IGNORED, unchecked
from minibert.losses import token_cross_entropy
from minibert.prediction.collate import ExampleBatch
from minibert.prediction.logits import batches_by_length
from minibert.prediction.packed import encode, pack_batch, packed_states
from minibert.tasks.base import Example
from minibert.train.batches import NextSentencePairs, Pairing, SentenceOrder
from minibert.train.loop import Loss, Term, readable_output
from minibert.utils.device import autocast, move
from minibert.utils.inference import inference

DISCRIMINATOR_SCALE = 50.0  # of ELECTRA's discriminator loss, which is small: section 3.2
GENERATOR = 4  # ELECTRA's generator has 1/4 of the width and of the attention heads


class MaskedLanguageModel(Loss):
    """Masked tokens are predicted, and with a `pairing` also how the two texts of a row belong together.

    step: "packed", without padding, or "readable", the model's own forward pass. pairing: see batches.Pairing.
    """

    masking: Mapping[str, Any] = {}  # fields of text.masking.Masking that differ from BERT's

    def __init__(self, step: str = "packed", pairing: Pairing | None = None) -> None:
        self.step = step
        self.pairing = pairing
        self.head = "masked-lm" if pairing is None else "pretraining"

    def new_model(self, config: Config, checkpoint: Checkpoint | None = None) -> Any:
        """Return a checkpoint with this task head, a fresh one if it has none; or a model of random weights."""
        if checkpoint is None:
            return HEAD_CLASSES[self.head](config)
        return load(checkpoint, head=self.head, new_head=not checkpoint.has_head(self.head))

    def finished(self, model: Any) -> dict[str, Head]:
        """Return the trained models by their folders within the result."""
        return {"": model}

    def predict(self, model: Head, batch: ExampleBatch, step: str) -> dict[str, tuple[Tensor, Tensor]]:
        """Return logits and labels by the name of the loss.

        Of masked tokens they are (1, N, V) and (1, N), or of all tokens in the readable step (B, S, V) and (B, S); of
        pairs (B, 2) and (B).
        """
        if step == "packed":
            encoded, labels = packed_states(model, batch)
            out: Any = model.read(encoded)
        else:
            out = readable_output(model, replace(batch, labels={}))
            labels = move(batch.labels, model.device)
        if self.pairing is None:
            return {"masked-lm": (out.logits, labels["labels"])}
        pairs = out.seq_relationship_logits if out.sop_logits is None else out.sop_logits
        tokens = (out.prediction_logits, labels["labels"])
        return {"masked-lm": tokens, self.pairing.name: (pairs, labels[self.pairing.label])}

    def terms(self, model: Any, batch: ExampleBatch) -> dict[str, Term]:
        """Return the masked tokens, and the pairs."""
        pairs = {} if self.pairing is None else {self.pairing.name: Term(batch.texts)}
        return {"masked-lm": Term(batch.labelled_tokens)} | pairs

    def means(self, model: Any, batch: ExampleBatch) -> dict[str, Tensor]:
        """Return the losses of a batch by name, whose sum is the loss of transformers."""
        predictions = self.predict(model, batch, self.step)
        return {name: token_cross_entropy(*prediction) for name, prediction in predictions.items()}

    def score(self, model: Any, rows: Sequence[Example], precision: str = "float32") -> dict[str, Any]:
        """Return loss, accuracy and perplexity of masked tokens, and loss and accuracy of pairs or replaced tokens."""
        sums: dict[str, Tensor] = {}
        with inference(model), unchecked(), autocast(next(model.parameters()).device, precision):
            for batch in batches_by_length(model, rows):
                for name, (logits, labels) in self.predict(model, batch, "packed").items():
                    sums[name] = sums.get(name, 0) + summed(logits.flatten(0, -2), labels.flatten())
        count, loss, correct = sums.pop("masked-lm").tolist()
        scores = {"perplexity": math.exp(min(700.0, loss / count)), "masked_lm_loss": loss / count}
        scores |= {"masked_accuracy": correct / count, "masked_tokens": int(count)}
        for name, total in sums.items():
            key = name.replace("-", "_")
            count, loss, correct = total.tolist()
            scores |= {f"{key}_loss": loss / count, f"{key}_accuracy": correct / count}
        return scores


def summed(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the number of predictions, (N,K) and (N), the sum of their losses, and the number of correct ones: (3)."""
    loss = F.cross_entropy(logits.float(), labels, reduction="sum")
    correct = (logits.argmax(dim=-1) == labels).sum()
    loss, correct = torch.stack([loss, correct.float()]).tolist()  # one wait for a GPU
    return torch.tensor([len(labels), loss, correct], dtype=torch.float64)


# ---------------------------------------------------------------------------------------------------------------
# ELECTRA


class Electra(nn.Module):
    """A generator and a discriminator, which share the tables of tokens, positions and segments, and their norm.

    Raises ValueError for a config of another family than ELECTRA.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.discriminator = ReplacedTokenDetection(config)
        widths = ("hidden_size", "num_attention_heads", "intermediate_size")
        smaller: dict[str, Any] = {name: getattr(config, name) // GENERATOR for name in widths}
        self.generator = MaskedLM(replace(config, **smaller))
        for name in ("token", "position", "segment", "norm"):
            setattr(self.generator.encoder.embeddings, name, getattr(self.discriminator.encoder.embeddings, name))


class ReplacedTokens(MaskedLanguageModel):
    """ELECTRA: a generator predicts masked tokens, and the discriminator tells which tokens it has replaced.

        the man [MASK] to the [MASK]   -> generator ->   the man ran to the store     sampled from its prediction
        the man  ran   to the  store   -> discriminator -> 0 0 1 0 0 0                1: not the original ("went")

        loss = masked LM of the generator + 50 · binary cross entropy of the discriminator, over all tokens

    No gradient flows through the sampling: the generator learns to predict, not to deceive. A sampled token that equals
    the original counts as original.
    """

    masking: Mapping[str, Any] = {"masked": 0.85, "replaced": 0.0}  # the other chosen tokens stay

    def new_model(self, config: Config, checkpoint: Checkpoint | None = None) -> Electra:
        """Return both models, with random weights."""
        return Electra(config)

    def finished(self, model: Electra) -> dict[str, Head]:
        """Return the discriminator, and the generator in a folder of its own."""
        model.discriminator.head_is_trained = model.generator.head_is_trained = True
        return {"": model.discriminator, "generator": model.generator}

    def predict(self, model: Any, batch: ExampleBatch, step: str) -> dict[str, tuple[Tensor, Tensor]]:
        """Return logits and labels of chosen tokens, (N,V) and (N), and of detection, (T,2) and (T).

        The softmax over (0, x) is the sigmoid of x. The generator's likeliest tokens are filled in, so that the score
        is deterministic.
        """
        logits, labels = self.generate(model, batch)
        suspicion, replaced = self.detect(model, batch, logits.argmax(dim=-1))
        return {
            "masked-lm": (logits, labels),
            "replaced-token-detection": (F.pad(suspicion[:, None], (1, 0)), replaced),
        }

    def terms(self, model: Electra, batch: ExampleBatch) -> dict[str, Term]:
        """Return the chosen tokens of the generator, and all tokens of the discriminator."""
        return {
            "masked-lm": Term(batch.labelled_tokens),
            "replaced-token-detection": Term(batch.tokens, DISCRIMINATOR_SCALE),
        }

    def means(self, model: Electra, batch: ExampleBatch) -> dict[str, Tensor]:
        """Return the generator's loss over the chosen tokens, and the discriminator's over all."""
        logits, labels = self.generate(model, batch)  # (N,V), (N)
        sampled = torch.multinomial(logits.detach().float().softmax(dim=-1), 1).squeeze(1)  # (N)
        suspicion, replaced = self.detect(model, batch, sampled)  # (T), (T)
        return {
            "masked-lm": token_cross_entropy(logits[None], labels[None]),
            "replaced-token-detection": F.binary_cross_entropy_with_logits(suspicion.float(), replaced.float()),
        }

    def generate(self, model: Electra, batch: ExampleBatch) -> tuple[Tensor, Tensor]:
        """Return the generator's logits of the chosen tokens, (N,V), and the original tokens, (N)."""
        encoded, labels = packed_states(model.generator, batch)
        return model.generator.read(encoded).logits[0], labels["labels"][0]

    def detect(self, model: Electra, batch: ExampleBatch, sampled: Tensor) -> tuple[Tensor, Tensor]:
        """Return the discriminator's logits of all tokens, (T), and whether each was replaced, (T)."""
        encoder = model.discriminator.encoder
        real = batch.attention_mask.bool()
        ids, labels = batch.input_ids[real], batch.labels["labels"][real]  # (T)
        chosen = labels != IGNORED
        parts = pack_batch(encoder.embeddings, batch), ids, torch.where(chosen, labels, ids), chosen.nonzero()[:, 0]
        packed, ids, original, places = move(parts, encoder.device)
        ids = ids.index_copy(0, places, sampled)  # in the order of the batch
        states = encode(encoder, replace(packed, ids=ids.index_copy(0, packed.order, ids)))  # (T,D)
        return model.discriminator.read(HeadInput(states[None])).logits[0], (ids != original).long()


OBJECTIVES: dict[str, Callable[..., MaskedLanguageModel]] = {
    "mlm": MaskedLanguageModel,
    "mlm+nsp": partial(MaskedLanguageModel, pairing=NextSentencePairs()),
    "mlm+sop": partial(MaskedLanguageModel, pairing=SentenceOrder()),
    "electra": ReplacedTokens,
}
