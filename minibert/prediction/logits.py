"""Many examples through a model without padding and gradients: its logits, or the states of a frozen encoder.

An encoder that is not trained has no dropout (loop.set_train_mode), so that its states of an example are constant: they
are computed once, and each step costs only the task head. The states that the task head reads are kept: for a
text, the first token's and the pooler's output; for a sentence with tags, those of all its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minibert.fields import EncoderOutput
from minibert.heads import Head, MaskedLM, QuestionAnswering, TokenClassification
from minibert.inputs import IGNORED, unchecked
from minibert.kernels.packing import batches
from minibert.prediction.collate import ExampleBatch, collate
from minibert.prediction.packed import PackedBatch, encode, first_tokens, mean_of_texts, packed_output, pooled
from minibert.tasks.base import Encoded, Example, Logits
from minibert.utils.device import autocast, batch_tokens_on, move
from minibert.utils.inference import inference
from minibert.utils.printing import progress_bar

MAX_BYTES = 2 * 2**30  # of states; more are computed again in each epoch


def predict_logits(
    model: Head,
    encoded: Encoded,
    precision: str = "float32",
    keep: Callable[[Tensor, Example], Tensor] = lambda logits, example: logits,
    batch_tokens: int | None = None,
) -> list[Logits]:
    """Return the logits of each example, in order: (K), or for a head that reads tokens (tokens, K) or (2, tokens).

    For a masked LM they are those of the labelled tokens, (N, V), a million numbers for a long text: `keep` reduces
    them while only one batch is in memory. Runs in eval mode on the model's device; the model's own mode is restored.
    """
    found: list[Any] = [None] * len(encoded.examples)
    with inference(model), unchecked(), autocast(model.device, precision):
        for batch in batches_by_length(model, encoded.examples, most=batch_tokens):
            rows = zip(batch.rows, logits_of(model, batch), strict=True)
            kept = [keep(row.float(), encoded.examples[number]) for number, row in rows]
            for number, values in zip(batch.rows, as_arrays(kept), strict=True):
                found[number] = values
    return found


def as_arrays(tensors: Sequence[Tensor]) -> list[Logits]:
    """Return tensors of any shapes as arrays, waiting only once for a GPU."""
    parts = torch.split(torch.cat([x.flatten() for x in tensors]).cpu(), [x.numel() for x in tensors])
    return [part.view(x.shape).numpy() for part, x in zip(parts, tensors, strict=True)]


def batches_by_length(
    model: Any, examples: Sequence[Example], title: str = "predicting", most: int | None = None
) -> Iterator[ExampleBatch]:
    """Yield the examples in batches of similar length, with a progress bar."""
    device = next(model.parameters()).device
    with progress_bar(name=title, total=len(examples), unit="text") as bar:
        for numbers in batches([len(one.ids) for one in examples], most or batch_tokens_on(device)):
            yield collate([examples[number] for number in numbers], numbers, model.config.pad_token_id)
            bar.update(len(numbers))


def logits_of(model: Head, batch: ExampleBatch) -> Sequence[Tensor]:
    """Return the logits of each row of the batch."""
    if isinstance(model, MaskedLM):
        counts = (batch.labels["labels"] != IGNORED).sum(dim=1).tolist()
        return torch.split(packed_output(model, batch).logits[0], counts)  # (1,N,V)
    encoded, lengths = states_of(model, batch)
    out: Any = model.read(encoded)
    if isinstance(model, QuestionAnswering):
        return torch.split(torch.cat([out.start_logits, out.end_logits]), lengths, dim=1)  # (2,T)
    return torch.split(out.logits[0], lengths) if lengths else out.logits.unbind()  # (tokens,K), (K)


def states_of(model: Head, batch: ExampleBatch) -> tuple[EncoderOutput, list[int]]:
    """Return what the head reads: (B,1,D) and (B,D) of first tokens or means; (1,T,D) of all, and rows' lengths."""
    first = "first" in model.reads
    packed = PackedBatch.of(model.encoder.embeddings, batch, first_tokens(batch) if first else None)
    states = encode(model.encoder, move(packed, model.device))
    if first:
        return EncoderOutput(states[:, None], pooled(model, states[:, None])), []
    if "mean" in model.reads:
        mean = mean_of_texts(states, batch)  # (T,D) -> (B,D)
        return EncoderOutput(mean[:, None], mean), []
    return EncoderOutput(states[None]), batch.attention_mask.sum(dim=1).tolist()


@dataclass(frozen=True)
class States:
    """The encoder's states of each example, as far as the task head reads them."""

    hidden: dict[int, Tensor]  # by the number of the example: (1, D) of a first token, or (tokens, D)
    pooled: dict[int, Tensor]  # (D); empty: no pooler, or one that is not read

    @classmethod
    def of(cls, model: Head, encoded: Encoded, precision: str = "float32") -> States:
        """Read each example once, in eval mode."""
        found = cls({}, {})
        with inference(model), unchecked(), autocast(model.device, precision):
            for batch in batches_by_length(model, encoded.examples, "frozen encoder"):
                states, lengths = states_of(model, batch)
                hidden = states.last_hidden_state.float()
                rows = torch.split(hidden[0], lengths) if lengths else hidden.unbind()  # (tokens,D) or (1,D) each
                found.hidden.update(zip(batch.rows, (row.clone() for row in rows), strict=True))
                if states.pooler_output is not None:
                    found.pooled.update(zip(batch.rows, states.pooler_output.float().unbind(), strict=True))
        return found

    def output(self, model: Head, batch: ExampleBatch) -> Any:
        """Return the output of the task head, with its loss if the batch has labels; see packed.packed_output."""
        width = max(batch.choices, 1)
        numbers = [row * width + choice for row in batch.rows for choice in range(width)]
        more: dict[str, Any] = move(batch.labels, model.device) | ({"choices": batch.choices} if batch.choices else {})
        return model.read(self.encoded(numbers), **more)

    def logits(self, model: Head) -> list[Logits]:
        """Return the logits of each example, in order; see `predict_logits`."""
        with inference(model):
            found = (model.read(self.encoded([number])).logits[0] for number in range(len(self.hidden)))
            return as_arrays([logits.float() for logits in found])

    def encoded(self, numbers: Sequence[int]) -> EncoderOutput:
        """Return the states of these examples as an encoder returns them, (B,1,D) or (B,S,D), zeros for padding."""
        pooled = [self.pooled[number] for number in numbers if number in self.pooled]
        hidden = pad_sequence([self.hidden[number] for number in numbers], batch_first=True)
        return EncoderOutput(hidden, torch.stack(pooled) if pooled else None)


def can_be_kept(model: Head, encoded: Encoded) -> bool:
    """Return whether the states of these examples are constant and fit into MAX_BYTES, given a frozen encoder.

    The loss of question answering depends on the padding of the batch, and masked text differs in each epoch.
    """
    first = model.reads in (("first",), ("mean",))
    rows = 2 * len(encoded.examples) if first else sum(len(one.ids) for one in encoded.examples)
    return (first or isinstance(model, TokenClassification)) and rows * model.config.hidden_size * 4 <= MAX_BYTES
