"""What a trained model says of many examples: logits, without padding and without gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from minibert.heads import Head, MaskedLM, QuestionAnswering
from minibert.inputs import unchecked
from minibert.losses import IGNORED
from minibert.model import EncoderOutput
from minibert.tasks.base import Encoded, Example, Logits
from minibert.train.batches import Batch, collate
from minibert.train.packed import Tokens, encode, first_states, packed_output
from minibert.vectors.pooling import inference

BATCH_TOKENS = 4096


def outputs(
    model: Head,
    encoded: Encoded,
    precision: str = "float32",
    keep: Callable[[Tensor, Example], Tensor] = lambda logits, example: logits,
) -> list[Logits]:
    """The logits of each example, in their order: (K), or of a task head that reads tokens (tokens, K), (2, tokens).

    Of a masked LM they are those of the tokens that have labels alone, (N, V), a million numbers of a long text: `keep`
    takes what is wanted of them while no more than a batch is held.
    In eval mode, on the device where the model is; the model's own mode is put back.
    """
    found: list[Logits] = [torch.empty(0).numpy()] * len(encoded.examples)
    device = model.device
    bar = tqdm(total=len(found), unit="text", delay=2, disable=None, leave=False)
    with inference(model), unchecked(), bar:
        for numbers in by_length(encoded.examples):
            examples = [encoded.examples[number] for number in numbers]
            batch = collate(examples, numbers, model.config.pad_token_id).to(device)
            lower = torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()
            with lower:
                rows = logits_of(model, batch)
            for number, row in zip(numbers, rows, strict=True):
                found[number] = keep(row.float(), encoded.examples[number]).cpu().numpy()
            bar.update(len(numbers))
    return found


def by_length(examples: Sequence[Example]) -> Iterator[list[int]]:
    """Numbers of examples of similar length, the longest first, in batches of up to BATCH_TOKENS places."""
    left = sorted(range(len(examples)), key=lambda number: len(examples[number].ids), reverse=True)
    while left:
        count = max(1, BATCH_TOKENS // len(examples[left[0]].ids))
        yield left[:count]
        left = left[count:]


def logits_of(model: Head, batch: Batch) -> list[Tensor]:
    """The logits of each row of the batch."""
    if isinstance(model, MaskedLM):
        counts = (batch.labels["labels"] != IGNORED).sum(dim=1).tolist()
        return list(torch.split(packed_output(model, batch).logits[0], counts))  # (1,N,V)
    tokens = Tokens.of(batch, every_place=False)
    if "first" in model.reads:
        read: Any = model.read(first_states(model, tokens))
        rows: Tensor = read.logits  # (B,K); of multiple choice (B,1)
        return list(rows)
    out: Any = model.read(EncoderOutput(encode(model.encoder, tokens, None)[None]))  # (1,T,D)
    lengths = batch.attention_mask.sum(dim=1).tolist()
    if isinstance(model, QuestionAnswering):
        both = torch.stack([out.start_logits[0], out.end_logits[0]])  # (2,T)
        return list(torch.split(both, lengths, dim=1))
    return list(torch.split(out.logits[0], lengths))
