"""Checks of what enters a model: ids, masks and labels.

An id out of range fails deep inside an embedding table, and on a GPU it breaks the whole process; here the error
is one sentence with the value, its position and the limit. The checks read values, which makes a GPU synchronise: code
that knows its batches, such as a training loop, switches them off with `unchecked`. A graph that torch compiles or
exports contains no checks.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from minibert.config import Config
from minibert.utils.printing import brief

IGNORED = -100  # the label of a token at which there is nothing to predict
KINDS = ("token_type_ids", "task_type_ids")  # ids besides those of tokens
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
CHECKED = ContextVar("checked", default=True)  # whether this thread checks inputs and labels; see `unchecked`


def checking() -> bool:
    """Return whether inputs and labels are checked now: not in `unchecked`, never in compiled or exported code."""
    return not torch.compiler.is_compiling() and CHECKED.get()


@contextmanager
def unchecked() -> Iterator[None]:
    """Switch the checks of this thread off within the block: a wrong id then fails inside torch."""
    before = CHECKED.set(False)
    try:
        yield
    finally:
        CHECKED.reset(before)


def as_inputs(
    config: Config, input_ids: Tensor, attention_mask: Tensor | None, kinds: Mapping[str, Tensor | None]
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return token ids, mask (True: a real token), and the other ids that the model embeds, each (B, S).

    kinds: token_type_ids (segments), and the other ids of a relative, by name. Without a mask, every position whose id
    is pad_token_id counts as padding; ids that are None are all 0. A model without a table for them ignores them.
    Raises TypeError for ids of another name, and what check_inputs raises.
    """
    for name in kinds.keys() - set(KINDS):
        raise TypeError(f"the encoder has no argument {name}; it has input_ids, attention_mask, {', '.join(KINDS)}")
    if checking():
        check_inputs(config, input_ids, attention_mask, kinds)
    ids = input_ids.long()
    keep = attended(config, input_ids, attention_mask)
    given = {name: kinds.get(name) for name in config.architecture.tables}
    return ids, keep, {name: torch.zeros_like(ids) if x is None else x.long() for name, x in given.items()}


def attended(config: Config, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return (B, S): True for a token that is not padding, by the mask or, without one, by its id."""
    return input_ids != config.pad_token_id if attention_mask is None else attention_mask != 0


def check_inputs(
    config: Config, input_ids: Tensor, attention_mask: Tensor | None, kinds: Mapping[str, Tensor | None]
) -> None:
    """Raise ValueError or TypeError for a batch that the encoder cannot compute with."""
    check_tensor("input_ids", input_ids)
    shape = tuple(input_ids.shape)
    limit = config.max_tokens
    if len(shape) != 2 or not 0 < shape[1] <= limit:
        raise ValueError(
            f"input_ids have shape {shape}; expected (batch, tokens), with 1 to {limit} tokens because the checkpoint "
            f"has {limit} positions; truncate longer texts"
        )
    for name, values, field in (
        ("input_ids", input_ids, "vocab_size"),
        ("attention_mask", attention_mask, ""),
        *((name, kinds.get(name), field) for name, field in config.architecture.tables.items()),
    ):
        if values is None:
            continue
        check_tensor(name, values)
        if values.shape != shape:
            raise ValueError(f"{name} has shape {tuple(values.shape)}; input_ids have {shape}")
        if values is attention_mask:
            reason = "it must be 1 for a token and 0 for padding; an additive mask is not supported"
            refuse_where((values != 0) & (values != 1), name, values, reason)
        elif values.dtype not in INTEGERS:
            raise TypeError(f"{name} are {values.dtype}; expected integers (torch.int64)")
        else:
            limit = getattr(config, field)
            reason = f"the checkpoint has {field} {limit}: 0 to {limit - 1}"
            refuse_where((values < 0) | (values.long() >= limit), name, values, reason)
    keep = attended(config, input_ids, attention_mask)
    starts = sorted(set(keep[keep.any(dim=1)].int().argmax(dim=1).tolist()))  # of rows that have a token
    if len(starts) > 1:  # the shorter rows would get wrong positions
        raise ValueError(f"the batch is padded on the left (its rows begin at positions {starts}); pad on the right")


def check_tensor(name: str, values: Any) -> None:
    """Raise TypeError, saying how to make one, for an input that is no tensor, unless checks are off."""
    if checking() and not isinstance(values, Tensor):
        ways = f"torch.tensor({name}), or of texts model(**batch) with batch = tokenizer(texts)"
        ways = "model(**batch)" if hasattr(values, "keys") else ways
        raise TypeError(f"{name} is {brief(values)}; it must be a tensor: {ways}")


def refuse_where(wrong: Tensor, name: str, values: Tensor, reason: str) -> None:
    """Raise ValueError with the first wrong value, its position and the reason, unless checks are off."""
    if checking() and wrong.any():
        place = wrong.nonzero()[0].tolist()
        raise ValueError(f"{name}{place} is {values[tuple(place)].item()}; {reason}")
