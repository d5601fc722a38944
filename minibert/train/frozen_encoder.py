"""A frozen encoder says the same in every epoch: its states are computed once, and a step costs the task head alone.

Nothing below the task head is trained or has dropout then (loop.learn), so that what the encoder makes of an example
is a constant. Kept are the states that the task head reads: of a text its first token's and what the pooler makes of
it, of a sentence with tags those of all its tokens.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from minibert.heads import Head, TokenClassification
from minibert.inputs import unchecked
from minibert.model import EncoderOutput
from minibert.tasks.base import Encoded, Logits
from minibert.train.batches import Batch, collate
from minibert.train.outputs import by_length
from minibert.train.packed import Tokens, encode, first_states
from minibert.vectors.pooling import inference

MOST_BYTES = 2 * 2**30  # of states; beyond that they are computed again in each epoch


@dataclass(frozen=True)
class States:
    """What the encoder makes of each example, as far as the task head reads it."""

    hidden: list[Tensor]  # (1, D) of a first token, or (tokens, D)
    pooled: list[Tensor] | None  # (D) each; None: no pooler, or none that is read

    @classmethod
    def of(cls, model: Head, encoded: Encoded, precision: str = "float32") -> States:
        """Read each example once, in eval mode."""
        hidden: list[Tensor] = [torch.empty(0)] * len(encoded.examples)
        pooled: dict[int, Tensor] = {}
        bar = tqdm(total=len(hidden), desc="frozen encoder", unit="text", delay=2, disable=None, leave=False)
        lower = torch.autocast(model.device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()
        with inference(model), unchecked(), bar, lower:
            for numbers in by_length(encoded.examples):
                examples = [encoded.examples[number] for number in numbers]
                batch = collate(examples, numbers, model.config.pad_token_id).to(model.device)
                tokens = Tokens.of(batch, every_place=False)
                if "first" in model.reads:
                    states = first_states(model, tokens)  # (B,1,D), (B,D)
                    rows = states.last_hidden_state.float().unbind()
                    if states.pooler_output is not None:
                        pooled |= zip(numbers, states.pooler_output.float(), strict=True)
                else:
                    lengths = batch.attention_mask.sum(dim=1).tolist()
                    rows = torch.split(encode(model.encoder, tokens, None).float(), lengths)  # (tokens,D) each
                for number, row in zip(numbers, rows, strict=True):
                    hidden[number] = row.clone()
                bar.update(len(numbers))
        return cls(hidden, [pooled[number] for number in range(len(hidden))] if pooled else None)

    def output(self, model: Head, batch: Batch) -> Any:
        """The output of the model's task head, with its loss where the batch has labels; see packed.packed_output."""
        width = max(batch.choices, 1)
        numbers = [row * width + choice for row in batch.rows for choice in range(width)]
        more: dict[str, Any] = {"choices": batch.choices} if batch.choices else {}
        return model.read(self.encoded(numbers), **more, **batch.labels)

    def logits(self, model: Head) -> list[Logits]:
        """The logits of each example, in their order; see outputs.outputs."""
        with inference(model):
            found = (model.read(self.encoded([number])).logits[0] for number in range(len(self.hidden)))
            return [logits.float().cpu().numpy() for logits in found]

    def encoded(self, numbers: list[int]) -> EncoderOutput:
        """The states of these examples as an encoder returns them, (B,1,D) or (B,S,D), zeros for padding."""
        hidden = pad_sequence([self.hidden[number] for number in numbers], batch_first=True)
        pooled = None if self.pooled is None else torch.stack([self.pooled[number] for number in numbers])
        return EncoderOutput(hidden, pooled)


def can_be_kept(model: Head, encoded: Encoded) -> bool:
    """Whether the states of these examples are constants that fit into MOST_BYTES, the encoder being frozen.

    Not so of answers, whose loss upstream takes over padding too, so that it depends on the batch, nor of masked text,
    which differs in each epoch.
    """
    first = model.reads == ("first",)
    kept = 2 * len(encoded.examples) if first else sum(len(one.ids) for one in encoded.examples)
    return (first or isinstance(model, TokenClassification)) and kept * model.config.hidden_size * 4 <= MOST_BYTES
