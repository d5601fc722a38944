"""The output of the encoder, and the base class of all outputs, which read like those of transformers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

from torch import Tensor
from torch.export import register_dataclass


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


@output
class EncoderOutput(Fields):
    """The output of the encoder; fields are named as in transformers."""

    last_hidden_state: Tensor  # (B, S, D)
    pooler_output: Tensor | None = None  # (B, D); None: the checkpoint has no pooler
    hidden_states: tuple[Tensor, ...] | None = None  # L + 1 of (B, S, D), the embeddings first
    attentions: tuple[Tensor, ...] | None = None  # L of (B, H, S, S)
