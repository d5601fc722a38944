"""A model with other parts: the fast paths change what computes a step of model.py, but not the order of the steps."""

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

from minibert.kernels.matmul import joined

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def with_parts(module: AnyModule, parts: Mapping[Any, Any]) -> AnyModule:
    """Return a copy that shares all parameters, in which a module of each class of `parts` computes as another class.

    The other class is a subclass that overrides a method and has the same attributes. What it overrides, it overrides
    for the subclasses too that a relative has. The copy has its own mode, hooks and submodules; the values of all other
    attributes are shared. Raises TypeError for a subclass that itself overrides what would be exchanged.
    """
    attributes = (value for part in module.modules() for value in vars(part).values() if not isinstance(value, dict))
    shared = {id(value): value for value in (*module.parameters(), *attributes)}
    twin = copy.deepcopy(module, shared)
    for part in twin.modules():
        base = next((base for base in type(part).__mro__ if base in parts), None)
        if base is not None:
            part.__class__ = combined(type(part), base, parts[base])  # type: ignore[arg-type]  # classes are hashable
    return twin


@cache
def combined(own: type[Any], base: type[Any], other: type[Any]) -> type[Any]:
    """Return the class that computes in the order of `own`, a subclass of `base`, with the methods of `other`.

    Raises TypeError if `own` has such a method of its own, unless it states by `leaves` that it has the same products.
    """
    if own is base:
        return other
    between = own.__mro__[: own.__mro__.index(base)]
    stated = [kind for kind in between if "leaves" in vars(kind) and vars(kind)["leaves"] == base.leaves]
    for name, method in vars(other).items():
        if callable(method) and name in vars(base):
            for kind in between:
                if name in vars(kind) and not any(issubclass(one, kind) for one in stated):
                    raise TypeError(
                        f"{kind.__name__} has its own {name}, which {other.__name__} would replace; give it a fast "
                        f"counterpart, or state by `leaves` that it has the products of {base.__name__}"
                    )
    return type(f"{other.__name__}Of{own.__name__}", (other, own), {"__module__": own.__module__})


class Products(nn.Module):
    """Linear layers with the same input, one product each."""

    def forward(self, x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
        """(B,S,D) -> (B,S,out) for each layer."""
        return tuple(layer(x) for layer in layers)


class OneProduct(Products):
    """The same as one product, as in ModernBERT: the gradient of x is rounded once, not once for each layer."""

    def forward(self, x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
        """(B,S,D) -> (B,S,out) for each layer; all are equally wide."""
        return F.linear(x, *joined(layers)).chunk(len(layers), dim=-1)
