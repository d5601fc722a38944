"""What is asked for: which vector a text gets. Said once and checked once, before anything is loaded.

Whatever makes vectors is given a Recipe, or its settings as keyword arguments. L layers, D hidden.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from minibert.printing import brief
from minibert.vectors.pooling import COMBINATIONS, POOLINGS

if TYPE_CHECKING:
    from minibert.config import Config

Function = TypeVar("Function", bound=Callable[..., object])


def one_of(*choices: str) -> Any:
    """A field for one of these names; the first is the default."""
    return field(default=choices[0], metadata={"choices": choices})


@dataclass(frozen=True)
class Recipe:
    """Which vector a text gets, and how it is computed.

    pooling: the vectors of a text's tokens become one: that of [CLS] ("cls"), their "mean" or "max" (over all tokens,
    the special ones too, never padding), or the "pooler", which reads [CLS] of the last layer.
    layers: one or several of -L-1 to L, as in hidden_states: 0 is the embeddings, -1 the last layer. Each is pooled.
    combine: of several layers "concat" (width k D for k of them), "sum" or "mean" (width D).
    precision: "float32"; "bfloat16" where the hardware multiplies it (else a warning, and float32); "float16" on CUDA;
    "auto", the fastest of these that keeps a cosine above 0.9999 to float32; "int8" on a CPU with VNNI or AMX (else a
    warning, and bfloat16): twice as fast, at a cosine of about 0.999.
    long: a text over the tokenizer's max_length is "cut" with one warning, refused ("error"), or read in "windows" of
    max_length tokens, whose vectors are averaged, each by the number of its tokens of text.
    stride: windows begin so many tokens of text apart; None: half a window.
    truncation: the older name of `long`: "error" is long="error", "warn" leaves it to `long`.
    missing: None and NaN are refused ("error") or taken as empty texts ("empty").
    batch_tokens: the most tokens in a batch, one text at the least; fewer take less memory.
    Raises ValueError for what no model can give or contradicts itself, TypeError for what is no whole number.
    """

    pooling: str = one_of(*POOLINGS)
    layers: int | Sequence[int] = (-1,)  # kept as a tuple
    combine: str = one_of(*COMBINATIONS)
    precision: str = one_of("float32", "bfloat16", "float16", "int8", "auto")
    long: str = one_of("cut", "error", "windows")
    stride: int | None = None
    truncation: str = one_of("warn", "error")
    missing: str = one_of("error", "empty")
    batch_tokens: int = 4096

    def __post_init__(self) -> None:
        for setting in fields(self):
            value, choices = getattr(self, setting.name), setting.metadata.get("choices")
            if choices and value not in choices:
                raise ValueError(f"{setting.name} is {brief(value)}; choose from {', '.join(choices)}")
        object.__setattr__(self, "layers", as_layers(self.layers))
        object.__setattr__(self, "batch_tokens", as_count("batch_tokens", self.batch_tokens, Recipe.batch_tokens))
        if self.truncation == "error":
            if self.long == "windows":
                raise ValueError("long is 'windows' and truncation is 'error', which refuses long texts; leave one out")
            object.__setattr__(self, "long", "error")
        if self.stride is not None:
            object.__setattr__(self, "stride", as_count("stride", self.stride, 128))
            if self.long != "windows":
                raise ValueError(f"stride is {self.stride} and long is {self.long!r}; it is about long='windows'")

    def fit_to(self, config: Config, has_pooler: bool) -> tuple[tuple[int, ...], int]:
        """The layers counted from 0, the embeddings, to L, and the width of a vector: D, or k D for k concatenated.

        Raises ValueError for a layer that this model does not have, and for the pooler where it has none or another
        layer than the last is asked for.
        """
        L, D, asked = len(config.shared_layers), config.hidden_size, as_layers(self.layers)
        if not asked:
            raise ValueError(f"layers is empty; name at least one of {-L - 1} to {L}")
        for layer in asked:
            if not -L - 1 <= layer <= L:
                raise ValueError(
                    f"layers has {layer}; the encoder has {L} layers, so it must be {-L - 1} to {L} "
                    "(0: the embeddings, -1: the last layer)"
                )
        layers = tuple(layer % (L + 1) for layer in asked)
        if self.pooling == "pooler":
            if not has_pooler:
                raise ValueError("pooling is 'pooler', and this checkpoint has no pooler; use pooling='cls'")
            if layers != (L,):
                raise ValueError(f"pooling is 'pooler' with layers {list(asked)}; it reads the last layer alone, (-1,)")
        return layers, D * len(layers) if self.combine == "concat" else D


def as_layers(layers: object) -> tuple[int, ...]:
    """One layer or several as a tuple; TypeError for what is no whole number."""
    several = layers if isinstance(layers, Iterable) and not isinstance(layers, Set) else [layers]
    try:
        return tuple(map(operator.index, several))
    except TypeError:
        raise TypeError(
            f"layers is {brief(layers)}; it must be a whole number or a list of them, as [-2, -1]"
        ) from None


def as_count(name: str, count: object, good: int) -> int:
    """A whole number of at least 1, or TypeError or ValueError, which names a good value."""
    if not isinstance(count, Integral) or isinstance(count, bool):
        raise TypeError(f"{name} is of type {type(count).__name__}; it must be an int")
    if count < 1:
        raise ValueError(f"{name} is {count}; it must be at least 1 ({good} is a good value)")
    return int(count)


DEFAULT = Recipe()

# ---------------------------------------------------------------------------------------------------------------
# The settings as keyword arguments


class Settings(TypedDict, total=False):
    """The types of a Recipe's settings, for functions that take them as **settings: Unpack[Settings]."""

    pooling: str
    layers: int | Sequence[int]
    combine: str
    precision: str
    long: str
    stride: int | None
    truncation: str
    missing: str
    batch_tokens: int


def spelled(function: Function) -> Function:
    """Where help() and notebooks show a function's **settings, name each setting with its default."""
    signature = inspect.signature(function)
    named = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    settings = [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type)
        for one in fields(Recipe)
    ]
    function.__signature__ = signature.replace(parameters=[*named, *settings])  # type: ignore[attr-defined]
    return function
