"""What a tokenizer's call returns: texts as rows of tokens, padded. B batch, S tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minibert.files import shown
from minibert.text.tokenized import Account

MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True, eq=False)
class Batch:
    """The tokens of B texts or pairs, padded on the right to the longest of them, S.

    Tensors are long, (B, S). Lists have a row per text and S entries in it: offsets are (start, end) into the
    original text, in characters as Python counts them, (0, 0) for special tokens and padding; word_ids count the
    words of each text from 0, None for special tokens and padding.
    As a mapping it holds what a model takes: `encoder(**batch)`, batch["input_ids"]; its length is B.
    """

    input_ids: Tensor
    attention_mask: Tensor  # 1 token, 0 padding
    token_type_ids: Tensor  # 0 first text, 1 second text where the relative tells them apart
    special_tokens_mask: Tensor  # 1 for [CLS], [SEP], [PAD], [MASK], also where they were typed in the text
    tokens: list[list[str]]
    offsets: list[list[tuple[int, int]]]
    word_ids: list[list[int | None]]
    truncated: int  # how many rows lost tokens
    longest: int  # tokens of the longest row before truncation, special tokens included

    def __len__(self) -> int:
        return len(self.tokens)

    def keys(self) -> tuple[str, ...]:
        """The names of what a model takes."""
        return MODEL_INPUTS

    def items(self) -> list[tuple[str, Tensor]]:
        """What a model takes, by name."""
        return [(name, self[name]) for name in MODEL_INPUTS]

    def __iter__(self) -> Iterator[str]:
        return iter(MODEL_INPUTS)

    def __getitem__(self, name: str) -> Any:
        names = [field.name for field in fields(self)]
        if name not in names:
            raise KeyError(f"a Batch has no {shown(name)}; it has {', '.join(names)}")
        return getattr(self, name)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with its tensors on another device."""
        names = ("input_ids", "attention_mask", "token_type_ids", "special_tokens_mask")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


class BatchRow(NamedTuple):
    """One text or pair with its special tokens, not yet padded: a value of each for each token."""

    ids: list[int]
    segments: list[int]
    special: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    word_ids: list[int | None]


def padded(rows: Sequence[BatchRow], pad_id: int, pad_token: str, account: Account) -> Batch:
    """The rows as one batch, filled up with padding to the longest."""
    width = max((len(row.ids) for row in rows), default=0)

    def filled(values: Sequence[list[Any]], filler: Any) -> list[list[Any]]:
        return [row + [filler] * (width - len(row)) for row in values]

    def tensor(values: list[list[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.long).reshape(len(rows), width)

    return Batch(
        input_ids=tensor(filled([row.ids for row in rows], pad_id)),
        attention_mask=tensor(filled([[1] * len(row.ids) for row in rows], 0)),
        token_type_ids=tensor(filled([row.segments for row in rows], 0)),
        special_tokens_mask=tensor(filled([row.special for row in rows], 1)),
        tokens=filled([row.tokens for row in rows], pad_token),
        offsets=filled([row.offsets for row in rows], (0, 0)),
        word_ids=filled([row.word_ids for row in rows], None),
        truncated=account.truncated,
        longest=account.longest,
    )
