"""The strongest units of a feed-forward: which of its F activations make what it adds to a token.

    FFN(x) = Σ_u a_u w_u + b₂        a_u the activation of unit u, w_u its column of W₂
    share of u = (a_u w_u · FFN(x)) / ‖FFN(x)‖²

A share is how much of FFN(x) lies in what the unit adds, in the direction of FFN(x); it is negative for a unit that
pulls the other way. The shares of all units and that of b₂ add up to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

LISTED = 6  # units of each token


@dataclass(frozen=True, eq=False)
class Units:
    """For each token the units with the largest shares, of either sign, K of them, and what is left of the sum."""

    unit: Tensor  # (S,K) their numbers, 0 to F - 1
    activation: Tensor  # (S,K)
    share: Tensor  # (S,K)
    rest: Tensor  # (S) the share of all other units together
    bias: Tensor  # (S) the share of b₂


def strongest_units(activation: Tensor, contract: nn.Linear) -> Units:
    """The strongest units by their activations, (S,F), and the matrix that makes them narrow again, W₂ (D,F) with b₂.

    A token for which the feed-forward adds nothing has shares of 0.
    """
    with torch.no_grad():
        a, weight, bias = (x.detach().double().cpu() for x in (activation, contract.weight, contract.bias))
        added = a @ weight.T + bias  # (S,D)
        square = added.square().sum(dim=-1, keepdim=True).clamp(min=torch.finfo(added.dtype).tiny)  # (S,1)
        share = a * (added @ weight) / square  # (S,F): a_u w_u · FFN(x), without ever forming a_u w_u
        unit = share.abs().topk(min(LISTED, a.shape[-1]), dim=-1).indices
        listed = share.gather(-1, unit)
        return Units(
            unit=unit,
            activation=a.gather(-1, unit),
            share=listed,
            rest=share.sum(dim=-1) - listed.sum(dim=-1),
            bias=(added @ bias) / square[:, 0],
        )
