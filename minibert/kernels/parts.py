"""A model with other parts: the fast paths change what computes a step of model.py, but not the order of the steps."""

import copy
from collections.abc import Mapping
from typing import TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

from minibert.kernels.matmul import joined

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def with_parts(module: AnyModule, parts: Mapping[type[nn.Module], type[nn.Module]]) -> AnyModule:
    """Return a copy that shares all parameters, in which a module of each class of `parts` computes as another.

    The other class is a subclass that overrides a method and has the same attributes. The copy has its own
    mode, hooks and submodules; the values of all other attributes are shared.
    """
    attributes = (value for one in module.modules() for value in vars(one).values() if not isinstance(value, dict))
    shared = {id(value): value for value in (*module.parameters(), *attributes)}
    twin = copy.deepcopy(module, shared)
    for one in twin.modules():
        one.__class__ = parts.get(type(one), type(one))
    return twin


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
