"""A Recipe: which vector a text gets. Its settings are written and checked here only; that loads no model.

Every function that makes vectors takes a Recipe; the public ones also take its settings as keyword arguments.
L layers, D hidden size.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minibert.utils.printing import brief
from minibert.utils.settings import Settings, check, integers, setting
from minibert.utils.wording import advice
from minibert.vectors.pooling import COMBINATIONS, POOLINGS

if TYPE_CHECKING:
    from minibert.config import Config


@dataclass(frozen=True)
class Recipe(Settings):
    """Which vector a text gets, and how it is computed.

    pooling: how the vectors of a text's tokens become one. "cls" uses the vector of [CLS]; "mean" and "max" pool all
    tokens, including [CLS] and [SEP], never padding; "pooler" reads [CLS] of the last layer. "auto" follows the
    sentence-transformers files beside the checkpoint (modules.json and the files it names), which state pooling,
    normalize and max_length; an explicit normalize or max_length counts first. Without these files it is "cls".
    layers: one or several of -L-1 to L, as in hidden_states: 0 is the embeddings, -1 the last layer. Each is pooled.
    combine: several layers by "concat" (width k D for k layers), "sum" or "mean" (width D).
    precision: "float32"; "bfloat16" if the hardware multiplies it (else a warning, and float32); "float16" on CUDA;
    "auto", the fastest of these that keeps a cosine above 0.9999 to float32; "int8" on a CPU with VNNI or AMX (else a
    warning, and bfloat16): twice as fast, at a cosine of about 0.999. On a GPU use "auto": its bfloat16 products are
    about ten times as fast as float32.
    long: a text longer than the tokenizer's max_length is "cut" with one warning, refused ("error"), or read in
    "windows" of max_length tokens, whose vectors are averaged, weighted by their number of text tokens.
    stride: text tokens from the start of one window to the next; None: half a window.
    missing: None and NaN are refused ("error") or read as empty texts ("empty").
    batch_tokens: the maximum number of tokens in a batch, at least one text; fewer need less memory. None: 4,096 on a
    CPU, 16,384 on MPS, 65,536 on CUDA.
    normalize: True scales vectors to length 1, False leaves them as they are, None does what pooling "auto" finds.
    dimensions: how many numbers of a vector are kept, the first ones, after it was scaled by normalize, as
    sentence-transformers does; None: all, or what pooling "auto" finds.
    max_length: the maximum number of tokens in a text, including special tokens; None: 512, or fewer if the tokenizer
    or the model has fewer.
    Raises ValueError for a value out of range and for settings that contradict each other, TypeError for layers,
    stride, batch_tokens or max_length that are not integers and for normalize that is not a bool.
    """

    pooling: str = setting(
        "auto", "{choices}; auto: as the checkpoint's files state, else cls", choices=(*POOLINGS, "auto"), metavar="HOW"
    )
    layers: int | Sequence[int] = setting(  # kept as a tuple
        (-1,), "0: embeddings, -1: last; several: -4,-3,-2,-1", metavar="N,N", parse=integers
    )
    combine: str = setting("concat", "of several layers: {choices}", choices=tuple(COMBINATIONS), metavar="HOW")
    precision: str = setting(
        "float32",
        "on a GPU use auto; {choices}",
        choices=("float32", "bfloat16", "float16", "int8", "auto"),
        metavar="TYPE",
    )
    long: str = setting(
        "cut",
        "for a text with more tokens than fit: {choices}",
        choices=("cut", "error", "windows"),
        metavar="HOW",
    )
    stride: int | None = setting(None, "tokens from one window to the next (half a window)", minimum=1)
    missing: str = setting("error", "missing texts: {choices}", choices=("error", "empty"), metavar="HOW")
    batch_tokens: int | None = setting(None, "tokens in a batch (4096; MPS 16384, CUDA 65536)", minimum=1)
    normalize: bool | None = setting(None, "scale vectors to length 1 (no; with --pooling auto as stated)")
    dimensions: int | None = setting(None, "numbers of a vector that are kept (all; or as stated)", minimum=1)
    max_length: int | None = setting(
        None, "tokens of a text (512, or fewer by the tokenizer; with --pooling auto as stated)", minimum=1
    )

    def __post_init__(self) -> None:
        if self.missing == "drop":
            raise ValueError(
                "missing is 'drop', and there is a vector for each row; choose 'empty', or drop rows before"
            )
        check(self)
        object.__setattr__(self, "layers", as_layers(self.layers))
        if self.stride is not None and self.long != "windows":
            needs = advice("; it needs {}", long="windows")
            raise ValueError(f"stride is {self.stride} and long is {self.long!r}" + needs)

    @property
    def how(self) -> str:
        """The pooling, whether vectors have length 1, and whether they are cut, such as "mean, normalized"."""
        cut = f", the first {self.dimensions} numbers" if self.dimensions else ""
        return self.pooling + ", normalized" * bool(self.normalize) + cut

    def fit_to(self, config: Config, has_pooler: bool) -> tuple[tuple[int, ...], int]:
        """Return the layers counted from 0, the embeddings, to L, and the width before any cut: D, or k D for k layers.

        Raises ValueError for a layer that this model does not have; for the pooler of another layer than the last, or
        of a model without one; and for pooling "auto", which an Embedder replaces by what the files state.
        """
        if self.pooling == "auto":
            raise ValueError(
                "pooling is 'auto', and only an Embedder reads a checkpoint's files; choose another pooling"
            )
        L = len(config.architecture.order)
        D = config.hidden_size
        requested = as_layers(self.layers)
        wrong = [layer for layer in requested if not -L - 1 <= layer <= L]
        if wrong or not requested:
            raise ValueError(
                f"layers has {brief(wrong[0]) if wrong else 'none'}; the encoder has {L} layers, so it must be "
                f"{-L - 1} to {L} (0: the embeddings, -1: the last layer)"
            )
        layers = tuple(layer % (L + 1) for layer in requested)
        if self.pooling == "pooler" and (not has_pooler or layers != (L,)):
            raise ValueError(
                f"pooling is 'pooler' with layers {list(requested)}; it reads only the last layer, (-1,), and this "
                f"checkpoint has {'a' if has_pooler else 'no'} pooler"
            )
        return layers, D * len(layers) if self.combine == "concat" else D


def as_layers(layers: object) -> tuple[int, ...]:
    """Return one layer or several as a tuple. Raises TypeError for anything but integers in an order."""
    several = layers if isinstance(layers, Iterable) and not isinstance(layers, Set) else [layers]
    try:
        return tuple(map(operator.index, several))
    except TypeError:
        raise TypeError(f"layers is {brief(layers)}; it must be an integer or a list of them, as [-2, -1]") from None


DEFAULT = Recipe()
CLS = Recipe("cls")
