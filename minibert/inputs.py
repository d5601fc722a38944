"""What a batch of token ids must look like, checked where it enters, before any device computes with it.

An id out of range is a segmentation-like failure deep in an embedding table, and on a GPU it poisons the whole
process; here it is one sentence with the value, its place and the limit. The checks look at values, so a GPU must be
waited for: code that knows its batches, such as a training loop, switches them off with `unchecked`. In a graph that
torch compiles or exports there are none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

import torch
from torch import Tensor, nn
from torch.export import register_dataclass

from minibert.config import Config

WHOLE_NUMBERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

# ---------------------------------------------------------------------------------------------------------------
# The switch

switched_on = True


def checking() -> bool:
    """Whether inputs and labels are checked here: not inside `unchecked`, and never in compiled or exported code."""
    return switched_on and not torch.compiler.is_compiling()


@contextmanager
def unchecked() -> Iterator[None]:
    """No checks inside, in no thread of the process: a wrong id then fails as torch fails."""
    global switched_on
    before, switched_on = switched_on, False
    try:
        yield
    finally:
        switched_on = before


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Eval mode and no gradients inside; afterwards each module has its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, training in modes:
            module.training = training


# ---------------------------------------------------------------------------------------------------------------
# The batch


def as_inputs(
    config: Config,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    task_type_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Token ids, mask (True: a real token), segments and tasks as the encoder computes with them, each (B, S).

    Without a mask, every position whose id is pad_token_id counts as padding; without segments or tasks, all are 0. A
    model that has none ignores whatever is given for them. Raises ValueError or TypeError as check_inputs does.
    """
    if checking():
        check_inputs(config, input_ids, attention_mask, token_type_ids, task_type_ids)
    ids = input_ids.long()
    keep = attended(config, input_ids, attention_mask)
    zeros = torch.zeros_like(ids)
    segments = zeros if token_type_ids is None or not config.type_vocab_size else token_type_ids.long()
    tasks = zeros if task_type_ids is None or not config.task_vocab_size else task_type_ids.long()
    return ids, keep, segments, tasks


def attended(config: Config, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """(B, S): True for a token that is no padding, by the mask or, where there is none, by its id."""
    return input_ids != config.pad_token_id if attention_mask is None else attention_mask != 0


def check_inputs(
    config: Config,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    task_type_ids: Tensor | None = None,
) -> None:
    """Raise ValueError or TypeError for a batch that the checkpoint cannot take."""
    check_ids(config, input_ids)
    if attention_mask is not None:
        check_mask(attention_mask, input_ids)
    check_padding_side(attended(config, input_ids, attention_mask))
    kinds = (
        ("token_type_ids", token_type_ids, config.type_vocab_size, "type_vocab_size"),
        ("task_type_ids", task_type_ids, config.task_vocab_size, "task_type_vocab_size"),
    )
    for name, given, limit, limit_name in kinds:
        if given is not None and limit:
            check_shape(name, given, input_ids)
            check_integers(name, given, limit, limit_name)


def check_ids(config: Config, input_ids: Tensor) -> None:
    """Two axes, at least one token and at most max_tokens, every id in the vocabulary."""
    if not isinstance(input_ids, Tensor):
        raise TypeError(f"input_ids must be a tensor (batch, tokens), not {type(input_ids).__name__}")
    if input_ids.dim() != 2:
        raise ValueError(f"input_ids have shape {tuple(input_ids.shape)}; expected (batch, tokens)")
    tokens, limit = input_ids.shape[1], config.max_tokens
    if tokens == 0:
        raise ValueError("input_ids have 0 tokens a row; the shortest text is [CLS] [SEP], 2 tokens")
    if tokens > limit:
        raise ValueError(f"input_ids have {tokens} tokens a row and the checkpoint has {limit} positions; truncate")
    check_integers("input_ids", input_ids, config.vocab_size, "vocab_size")


def check_integers(name: str, values: Tensor, limit: int, limit_name: str) -> None:
    """Whole numbers, each in 0 .. limit - 1; otherwise ValueError with the first one that is not."""
    if values.dtype not in WHOLE_NUMBERS:
        raise TypeError(f"{name} are {values.dtype}; expected whole numbers (torch.int64)")
    values = values.long()
    outside = (values < 0) | (values >= limit)
    if outside.any():
        place = outside.nonzero()[0].tolist()
        raise ValueError(
            f"{name}{place} is {int(values[tuple(place)])}; the checkpoint has {limit_name} {limit}: 0 to {limit - 1}"
        )


def check_shape(name: str, values: Tensor, ids: Tensor) -> None:
    """One value for each token id; otherwise TypeError or ValueError."""
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a tensor (batch, tokens), not {type(values).__name__}")
    if values.shape != ids.shape:
        raise ValueError(f"{name} has shape {tuple(values.shape)}; input_ids have {tuple(ids.shape)}")


def check_mask(attention_mask: Tensor, ids: Tensor) -> None:
    """1 for real tokens and 0 for padding, of any dtype, (B, S)."""
    check_shape("attention_mask", attention_mask, ids)
    wrong = (attention_mask != 0) & (attention_mask != 1)
    if wrong.any():
        raise ValueError(
            f"attention_mask holds {attention_mask[wrong][0].item()}; it must hold 1 for a token and 0 for padding; "
            "an additive mask is not taken"
        )


def check_padding_side(keep: Tensor) -> None:
    """Raise ValueError where rows begin at different places.

    They were padded on the left to equal length, and the shorter ones would be read at the wrong positions. Rows
    without any token have no beginning and are let through.
    """
    starts = keep[keep.any(dim=1)].int().argmax(dim=1)
    if len(starts) and bool((starts != starts[0]).any()):
        raise ValueError(
            "the batch is padded on the left (its rows begin at positions "
            f"{sorted(set(starts.tolist()))}); pad on the right, so that all begin at 0"
        )


# ---------------------------------------------------------------------------------------------------------------
# What comes back


class Fields:
    """A dataclass whose fields can be read as transformers' outputs are: by name, out["logits"], and by place, out[0].

    Places count the fields that are not None, the loss first where there is one.
    """

    def keys(self) -> list[str]:
        """The names of the fields that are there, the loss first."""
        there = [name for name, value in vars(self).items() if value is not None]
        return sorted(there, key=lambda name: name != "loss")

    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, str):
            if key not in vars(self):
                raise KeyError(f"{key!r} is no field of {type(self).__name__}; it has {', '.join(self.keys())}")
            return getattr(self, key)
        return tuple(getattr(self, name) for name in self.keys())[key]


AnyFields = TypeVar("AnyFields", bound=Fields)


@dataclass_transform()
def output(cls: type[AnyFields]) -> type[AnyFields]:
    """A dataclass that torch.export knows as something a model may return."""
    made = dataclass(cls)
    register_dataclass(made)
    return made
