"""Faster parts for a training step, which differ from those of model.py only in rounding: with_parts(model, QUICK).

The readable step, which equals that of transformers bit for bit, does not use them.
"""

from torch import Tensor, nn

from minibert.kernels.matmul import joined
from minibert.kernels.parts import OneProduct, Products
from minibert.kernels.training import dropout, drops, product
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


class QuickProducts(Products):
    """Linear layers with the same input as one product."""

    def forward(self, x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
        """(T,D) -> (T,out) for each layer; all are equally wide."""
        return product(x, *joined(layers)).chunk(len(layers), dim=-1)


class QuickDropout(nn.Dropout):
    """Dropout from 16 random bits per number, where that is possible and worthwhile."""

    def forward(self, x: Tensor) -> Tensor:
        """(...) -> (...)."""
        return dropout(x, self.p) if self.training and drops(x, self.p) else super().forward(x)


QUICK: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: QuickLinear,
    nn.Dropout: QuickDropout,
    Decoder: QuickDecoder,
    Products: QuickProducts,
    OneProduct: QuickProducts,
}
