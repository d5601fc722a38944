"""What a step that need not be exact to the bit does in another way: the same numbers but for rounding, sooner.

    x Wᵀ + b    products.py    by oneDNN, where that computes in float32
    E[ids]      table.py       with a gradient that keeps its memory from step to step

Both are done inside of torch's own functions, so that model.py and packed.py stay as they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from minibert.train.products import linear, permitted
from minibert.train.table import look_up, worth_it


class Quick(TorchFunctionMode):
    """Inside, linear layers in float32 and large tables on the CPU are computed in the quick way; others as ever."""

    inside = 0  # how many of them one is in

    def __enter__(self) -> Self:
        """One more."""
        Quick.inside += 1
        super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    def __exit__(self, *error: Any) -> None:
        """One less."""
        Quick.inside -= 1
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called by torch in place of each of its functions; in here it is off."""
        if func is F.linear and args[0].is_cpu and not torch.is_autocast_enabled("cpu") and permitted():
            return linear(*args, **(kwargs or {}))
        if func is F.embedding and worth_it(args[1]):
            return look_up(*args[:3])  # input, weight, padding_idx; nn.Embedding gives them in this order
        return func(*args, **(kwargs or {}))


def twice() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """For torch's checkpoint(context_fn=): what is computed once more on the way back is so in the same way.

    Torch is in no mode on the way back.
    """
    return nullcontext(), Quick() if Quick.inside else nullcontext()
