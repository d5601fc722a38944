"""Examples as one padded batch. B batch, S tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minibert.inputs import IGNORED
from minibert.tasks.base import Example


@dataclass(frozen=True)
class ExampleBatch:
    """The input of the model, (B, S) each; for multiple choice (B·C, S), the choices of a question in a row."""

    input_ids: Tensor
    attention_mask: Tensor
    token_type_ids: Tensor
    labels: dict[str, Tensor]
    rows: tuple[int, ...]  # the numbers of its examples
    choices: int = 0  # C; 0: not multiple choice
    idle: bool = False  # this rank has no row of the batch: it computes another rank's, which is not counted

    @property
    def texts(self) -> int:
        """The number of texts, or of questions."""
        return 0 if self.idle else len(self.rows)

    @property
    def tokens(self) -> int:
        """The number of tokens, without padding."""
        return 0 if self.idle else int(self.attention_mask.sum())

    @property
    def labelled_tokens(self) -> int:
        """The number of tokens that have a label; the labels are (B,S)."""
        return 0 if self.idle else int((self.labels["labels"] != IGNORED).sum())

    def shard(self, rank: int, ranks: int) -> ExampleBatch:
        """Return rows rank, rank + ranks, ...; the width is kept because some losses average over padding."""
        if ranks == 1:
            return self
        idle = rank >= len(self.rows)
        kept = torch.arange(0 if idle else rank, len(self.rows), len(self.rows) if idle else ranks)
        width = max(self.choices, 1)
        index = (kept[:, None] * width + torch.arange(width)).flatten()
        return ExampleBatch(
            input_ids=self.input_ids[index],
            attention_mask=self.attention_mask[index],
            token_type_ids=self.token_type_ids[index],
            labels={name: values[kept] for name, values in self.labels.items()},
            rows=tuple(self.rows[row] for row in kept.tolist()),
            choices=self.choices,
            idle=idle,
        )


def collate(examples: Sequence[Example], rows: Sequence[int], pad_id: int, choices: int = 0) -> ExampleBatch:
    """Pad on the right to the longest row; labels of tokens are padded with -100."""
    ids = [torch.tensor(example.ids, dtype=torch.long) for example in examples]
    segments = [torch.tensor(example.segments, dtype=torch.long) for example in examples]
    lengths = torch.tensor([len(row) for row in ids])
    input_ids = pad_sequence(ids, batch_first=True, padding_value=pad_id)
    questions = examples[::choices] if choices else examples
    return ExampleBatch(
        input_ids=input_ids,
        attention_mask=(torch.arange(input_ids.shape[1]) < lengths[:, None]).long(),
        token_type_ids=pad_sequence(segments, batch_first=True),
        labels={name: labels_of(name, questions) for name in examples[0].labels},
        rows=tuple(rows),
        choices=choices,
    )


def labels_of(name: str, examples: Sequence[Example]) -> Tensor:
    """Return (B) integers or floats, (B, K) floats for several labels of a text, or (B, S) with -100 as padding."""
    values = [torch.tensor(example.labels[name]) for example in examples]
    of_tokens = values[0].dim() == 1 and not values[0].is_floating_point()
    return pad_sequence(values, batch_first=True, padding_value=IGNORED) if of_tokens else torch.stack(values)
