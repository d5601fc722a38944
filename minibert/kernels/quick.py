"""What a step that need not be exact to the bit does in another way: the same numbers but for rounding, sooner.

    x Wᵀ + b       products.py    by oneDNN, where that computes in float32
    E[ids]         table.py       with a gradient that keeps its memory from step to step
    dropout(x)     dropout.py     with 16 random bits for a number; also that of attention

All are done inside of torch's own functions, so that model.py and packed.py stay as they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from minibert.kernels.dropout import attention, dropout, drops
from minibert.kernels.products import linear, permitted
from minibert.kernels.table import look_up, worth_it


class Quick(TorchFunctionMode):
    """Inside, linear layers in float32, large tables and dropout on the CPU are computed in the quick way."""

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
        named = kwargs or {}
        if func is F.linear and args[0].is_cpu and not torch.is_autocast_enabled("cpu") and permitted():
            return linear(*args, **named)
        if func is F.embedding and worth_it(args[1]):
            return look_up(*args[:3])  # input, weight, padding_idx; nn.Embedding gives them in this order
        if func is F.dropout and named["training"] and drops(args[0], named["p"]):  # torch names all but the first
            return dropout(args[0], named["p"])
        if func is F.scaled_dot_product_attention and drops(args[0], named.get("dropout_p", 0.0)):
            query, key, value = args
            return attention(query, key, value, named.get("attn_mask"), named["dropout_p"])
        return func(*args, **named)


def twice() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """For torch's checkpoint(context_fn=): what is computed once more on the way back is so in the same way.

    Torch is in no mode on the way back.
    """
    return nullcontext(), Quick() if Quick.inside else nullcontext()
