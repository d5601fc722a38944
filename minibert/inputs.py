"""What enters and leaves a model: checks of the ids, the layout of the tokens, and the base class of outputs.

An id out of range fails deep inside an embedding table, and on a GPU it breaks the whole process; here the error
is one sentence with the value, its position and the limit. The checks read values, which makes a GPU synchronise: code
that knows its batches, such as a training loop, switches them off with `unchecked`. A graph that torch compiles or
exports contains no checks.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypeVar, dataclass_transform
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.export import register_dataclass

from minibert.config import Config
from minibert.utils.printing import brief

IGNORED = -100  # the label of a token at which there is nothing to predict
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
CHECKED = ContextVar("checked", default=True)  # whether this thread checks inputs and labels; see `unchecked`
# Modules that `inference` has put in eval mode: how many blocks use each, and the mode to which it returns.
IN_USE: WeakKeyDictionary[nn.Module, tuple[int, bool]] = WeakKeyDictionary()
IN_USE_LOCK = threading.Lock()


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


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Use eval mode and no gradients within the block; afterwards each module is back in its own mode.

    Several threads may use a model at a time: a module returns to its mode when the last block that uses it ends.
    """
    modules = list(model.modules())
    with IN_USE_LOCK:
        for module in modules:
            blocks, training = IN_USE.get(module, (0, module.training))
            IN_USE[module] = blocks + 1, training
            module.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        with IN_USE_LOCK:
            for module in modules:
                blocks, training = IN_USE.pop(module)
                if blocks > 1:
                    IN_USE[module] = blocks - 1, training
                else:
                    module.training = training


class Layout(Protocol):
    """Where the tokens of a batch are, and which of them form a text."""

    @property
    def positions(self) -> Tensor | None:
        """The position of each token in its text."""

    def last(self) -> Self:
        """Return the layout for the last layer, whose output may be needed for some tokens only."""

    def within(self, window: int | None) -> Self:
        """Return the layout for a layer in which a token attends to those at most window // 2 away; None: to all."""

    def wanted(self, x: Tensor) -> Tensor:
        """Return the rows of x whose output is needed."""


# How to compute attention: from query, key, value, layout and dropout to the context and, if stored, the probabilities.
Attend = Callable[[Tensor, Tensor, Tensor, Any, Any], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class Padded:
    """Rows of S tokens, filled with [PAD]: the layout of the readable path."""

    keep: Tensor  # (B,1,1,S), the mask: False for padding; the same for every head and, without window, every query
    positions: Tensor | None = None  # (S), or (B,S)

    def last(self) -> Self:
        """Return the same layout."""
        return self

    def within(self, window: int | None) -> Self:
        """Return the layout whose mask, (B,1,S,S), excludes distant tokens too."""
        if window is None:
            return self
        places = torch.arange(self.keep.shape[-1], device=self.keep.device)
        return replace(self, keep=self.keep & ((places[:, None] - places).abs() <= window // 2))

    def wanted(self, x: Tensor) -> Tensor:
        """Return all of x."""
        return x

    def bias(self, dtype: torch.dtype) -> Tensor:
        """Return what is added to the scores, as wide as the mask: 0, or the lowest number where it is False."""
        zeros = torch.zeros_like(self.keep, dtype=dtype)
        return zeros.masked_fill(~self.keep, torch.finfo(dtype).min)


def as_inputs(
    config: Config,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    task_type_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return token ids, mask (True: a real token), segments and tasks as the encoder uses them, each (B, S).

    Without a mask, every position whose id is pad_token_id counts as padding; without segments or tasks, all are 0. A
    model that has no segments or tasks ignores them. Raises what check_inputs raises.
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
    """Return (B, S): True for a token that is not padding, by the mask or, without one, by its id."""
    return input_ids != config.pad_token_id if attention_mask is None else attention_mask != 0


def check_inputs(
    config: Config,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    task_type_ids: Tensor | None = None,
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
    for name, values, limit, limit_name in (
        ("input_ids", input_ids, config.vocab_size, "vocab_size"),
        ("attention_mask", attention_mask, 2, ""),
        ("token_type_ids", token_type_ids, config.type_vocab_size, "type_vocab_size"),
        ("task_type_ids", task_type_ids, config.task_vocab_size, "task_type_vocab_size"),
    ):
        if values is None or not limit:
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
            reason = f"the checkpoint has {limit_name} {limit}: 0 to {limit - 1}"
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


class Fields:
    """A dataclass that reads like the outputs of transformers: by name, out["logits"], and by index, out[0].

    Only fields that are not None count, the loss first where there is one. Iterating gives their names, as of a dict.
    """

    def keys(self) -> list[str]:
        """Return the names of the fields."""
        names = [name for name, value in vars(self).items() if value is not None]
        return sorted(names, key=lambda name: name != "loss")

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the values of the fields."""
        return tuple(getattr(self, name) for name in self.keys())

    def items(self) -> list[tuple[str, Any]]:
        """Return the names and the values of the fields."""
        return list(zip(self.keys(), self.to_tuple(), strict=True))

    values = to_tuple

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a field, or the default."""
        return getattr(self, name) if name in self else default

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __getitem__(self, key: str | int | slice) -> Any:
        if not isinstance(key, str):
            return self.to_tuple()[key]
        if key not in self:
            raise KeyError(f"{key!r} is not a field of {type(self).__name__}; it has {', '.join(self.keys())}")
        return getattr(self, key)


AnyFields = TypeVar("AnyFields", bound=Fields)


@dataclass_transform()
def output(cls: type[AnyFields]) -> type[AnyFields]:
    """Make a dataclass that an exported model may return."""
    made = dataclass(cls)
    register_dataclass(made)
    return made
