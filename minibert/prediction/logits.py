"""Many examples through a model without padding and gradients: its logits, or the states of a frozen encoder.

An encoder that is not trained has no dropout (loop.set_train_mode), so that its states of an example are constant: they
are computed once, and each step costs only the task head. What the task head reads is kept: of a text one vector, of a
sentence with tags the states of all its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minibert.heads import Head, HeadInput, MaskedLM, QuestionAnswering, Reads, TokenClassification
from minibert.inputs import IGNORED, unchecked
from minibert.kernels.packing import batches
from minibert.prediction.collate import ExampleBatch, collate
from minibert.prediction.packed import encode, first_tokens, mean_of_texts, pack_batch, packed_output, text_of_first
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
    of_examples: list[Any] = [None] * len(encoded.examples)
    with inference(model), unchecked(), autocast(model.device, precision):
        for batch in batches_by_length(model, encoded.examples, most=batch_tokens):
            rows = zip(batch.rows, logits_of(model, batch), strict=True)
            kept = [keep(row.float(), encoded.examples[number]) for number, row in rows]
            for number, values in zip(batch.rows, as_arrays(kept), strict=True):
                of_examples[number] = values
    return of_examples


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
        for numbers in batches([len(example.ids) for example in examples], most or batch_tokens_on(device)):
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


def states_of(model: Head, batch: ExampleBatch) -> tuple[HeadInput, list[int]]:
    """Return what the head reads: text (B,D), and no lengths; or tokens (1,T,D) of all rows, and the rows' lengths."""
    first = Reads.FIRST in model.reads
    packed = pack_batch(model.encoder.embeddings, batch, first_tokens(batch) if first else None)
    states = encode(model.encoder, move(packed, model.device))
    if first:
        return HeadInput(states[:, None], text_of_first(model, states)), []
    if Reads.MEAN in model.reads:
        return HeadInput(states[None], mean_of_texts(states, batch)), []
    return HeadInput(states[None]), batch.attention_mask.sum(dim=1).tolist()


@dataclass(frozen=True)
class States:
    """What the task head reads of each example, by its number: a text (D), or tokens (S,D)."""

    read: dict[int, Tensor]

    @classmethod
    def of(cls, model: Head, encoded: Encoded, precision: str = "float32") -> States:
        """Read each example once, in eval mode."""
        stored = cls({})
        with inference(model), unchecked(), autocast(model.device, precision):
            for batch in batches_by_length(model, encoded.examples, "frozen encoder"):
                states, lengths = states_of(model, batch)
                rows = torch.split(states.tokens[0], lengths) if states.text is None else states.text.unbind()
                stored.read.update(zip(batch.rows, (row.float().clone() for row in rows), strict=True))
        return stored

    def output(self, model: Head, batch: ExampleBatch) -> Any:
        """Return the output of the task head, with its loss if the batch has labels; see packed.packed_output."""
        width = max(batch.choices, 1)
        numbers = [row * width + choice for row in batch.rows for choice in range(width)]
        more: dict[str, Any] = move(batch.labels, model.device) | ({"choices": batch.choices} if batch.choices else {})
        return model.read(self.encoded(numbers), **more)

    def logits(self, model: Head) -> list[Logits]:
        """Return the logits of each example, in order; see `predict_logits`."""
        with inference(model):
            of_rows = (model.read(self.encoded([number])).logits[0] for number in range(len(self.read)))
            return as_arrays([logits.float() for logits in of_rows])

    def encoded(self, numbers: Sequence[int]) -> HeadInput:
        """Return what the head reads of these examples: texts (B,D), or tokens (B,S,D) with zeros for padding."""
        read = pad_sequence([self.read[number] for number in numbers], batch_first=True)
        return HeadInput(read[:, None], read) if read.dim() == 2 else HeadInput(read)


def can_be_kept(model: Head, encoded: Encoded) -> bool:
    """Return whether the states of these examples are constant and fit into MAX_BYTES, given a frozen encoder.

    The loss of question answering depends on the padding of the batch, and masked text differs in each epoch.
    """
    of_texts = model.reads in (Reads.FIRST, Reads.MEAN)
    rows = len(encoded.examples) if of_texts else sum(len(example.ids) for example in encoded.examples)
    return (of_texts or isinstance(model, TokenClassification)) and rows * model.config.hidden_size * 4 <= MAX_BYTES
