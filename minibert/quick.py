"""Faster parts for a training step, which differ from those of model.py only in rounding: with_parts(model, QUICK).

The readable step, which equals that of transformers bit for bit, does not use them.
"""

from torch import Tensor, nn

from minibert.families.modernbert import GatedFeedForward
from minibert.kernels.matmul import joined
from minibert.kernels.training import dropout, drops, product
from minibert.model import SelfAttention
from minibert.pretraining_heads import Decoder


class QuickLinear(nn.Linear):
    """x Wᵀ + b by `product`."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return product(x, self.weight, self.bias)


class QuickDecoder(Decoder):
    """x Eᵀ + b by `product`."""

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """(..., D), (V,D) -> (..., V)."""
        return product(x, embedding if self.weight is None else self.weight, self.bias)


class QuickAttention(SelfAttention):
    """Queries, keys and values as one product, or keys and values if fewer queries are needed."""

    def project(self, x: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries of the wanted tokens, and the keys and values of all, (T,D) each."""
        if wanted is x:
            query, key, value = product(x, *joined((self.query, self.key, self.value))).chunk(3, dim=-1)
            return query, key, value
        return self.query(wanted), *product(x, *joined((self.key, self.value))).chunk(2, dim=-1)


class QuickGatedFeedForward(GatedFeedForward):
    """Both matrices with the same input as one product."""

    def inner(self, x: Tensor) -> Tensor:
        """Return activation(x W₁) * (x V), (T,D) -> (T,F)."""
        y, gate = product(x, *joined((self.expand, self.gate))).chunk(2, dim=-1)
        return self.activation(y) * gate


class QuickDropout(nn.Dropout):
    """Dropout from 16 random bits per number, where that is possible and worthwhile."""

    def forward(self, x: Tensor) -> Tensor:
        """(...) -> (...)."""
        return dropout(x, self.p) if self.training and drops(x, self.p) else super().forward(x)


QUICK: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: QuickLinear,
    nn.Dropout: QuickDropout,
    Decoder: QuickDecoder,
    SelfAttention: QuickAttention,
    GatedFeedForward: QuickGatedFeedForward,
}
