"""A fast encoder: the encoder of model.py with other parts, in the same order; inference only.

Linear layers become products at hardware speed, queries, keys and values one or two larger products. In bfloat16 and
float16 only the inputs and results of matrix products are rounded: the residual stream, LayerNorm and softmax stay
float32. So they do in int8, see kernels/int8.py.

    T  tokens of all texts in a packed batch
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from minibert import model
from minibert.families.modernbert import GatedFeedForward
from minibert.kernels.attention import BatchedAttention, PackedAttend, padded_attention, varlen_attention
from minibert.kernels.int8 import Int8Linear, Quantization
from minibert.kernels.matmul import Linear, Workspace, choose_linear, linear_of
from minibert.kernels.parts import with_parts

INT8_TOKENS = 512  # at once through an int8 feed-forward: the values between its products stay in the caches


@dataclass
class Kernels:
    """How this machine computes: chosen once; `Engine.kernels` describes it."""

    device: torch.device
    dtype: torch.dtype  # of the inputs of matrix products
    product: type[Linear]
    packed_attend: PackedAttend
    activation: str
    workspace: Workspace
    int8: bool = False
    quantizations: Mapping[str, Quantization] = field(default_factory=dict)  # of the products in int8, by name

    def linear(self, layers: Sequence[nn.Linear], product: str = "", activation: str | None = None) -> Linear:
        """Return layers with the same input as one product. Raises TypeError for a layer that computes otherwise."""
        check_linear(*layers)
        if product in self.quantizations:
            return Int8Linear(layers, self.quantizations[product], activation, self.workspace)
        return self.product(layers, self.dtype, self.device, activation)

    def in_float32(self, layer: nn.Linear) -> Linear:
        """Return a layer that is always computed in float32: it has few tokens or a narrow input."""
        check_linear(layer)
        return choose_linear(torch.float32, self.device)([layer], torch.float32, self.device)

    def __str__(self) -> str:
        names: dict[Any, str] = {varlen_attention: "one kernel for all lengths", padded_attention: "one padded kernel"}
        attention = names.get(self.packed_attend, "groups of equal length")
        attention += ", two products each" if isinstance(self.packed_attend, BatchedAttention) else ""
        return f"on {self.device}; products: {self.product.description}; attention: {attention}"


def check_linear(*layers: nn.Linear) -> None:
    """Raise TypeError for a linear layer that computes otherwise than nn.Linear."""
    for layer in layers:
        if type(layer).forward is not nn.Linear.forward:
            raise TypeError(f"{type(layer).__name__} has its own forward, for which no fast path has a product")


def float32(weight: Tensor, device: torch.device) -> nn.Parameter:
    """Return the weight in float32 on the device; it is copied only if it is not already there."""
    return nn.Parameter(weight.detach().to(device, torch.float32), requires_grad=False)


def norm_of(source: nn.Module, device: torch.device) -> nn.Module:
    """Return a module without linear layers, such as a norm, in float32. Raises what put_vectors raises."""
    norm = with_parts(source, {})
    for path, module in source.named_modules():
        put_vectors(norm.get_submodule(path), module, f"{type(source).__name__}.{path}".rstrip("."), device)
    return norm


def put_vectors(fast: nn.Module, source: nn.Module, name: str, device: torch.device) -> None:
    """Put the parameters of this module alone, in float32, into its copy. Raises TypeError for a matrix."""
    for kind, weight in source.named_parameters(recurse=False):
        if weight.dim() > 1:
            raise TypeError(f"{name} has the matrix {kind}, for which no fast path has a product; list it in `leaves`")
        fast.register_parameter(kind, float32(weight, device))


class JoinedAttention(model.SelfAttention):
    """Multi-head attention whose queries, keys and values are fewer, larger products."""

    joined: Linear | None  # all three in one launch; None on a CPU
    queries: Linear
    key_value: Linear

    def put(self, source: model.SelfAttention, kernels: Kernels) -> None:
        """Replace the linear layers query, key and value by fused products, and output by a product."""
        value = source.value
        output = kernels.quantizations.get("output", Quantization())
        if output.folded and output.smoothing is not None:  # the value layer is divided by it instead of its result
            c = output.smoothing.to(kernels.device)
            weight = value.weight.detach().to(kernels.device)
            bias = value.bias
            value = linear_of(weight / c[:, None], None if bias is None else bias.detach().to(kernels.device) / c)
        self.joined = None
        if kernels.device.type == "cpu":
            self.queries = kernels.linear([source.query], "attention")
            self.key_value = kernels.linear([source.key, value], "attention")
        else:
            D = source.query.out_features
            self.joined = kernels.linear([source.query, source.key, value])
            self.queries = self.joined.part(0, D)
            self.key_value = self.joined.part(D, 3 * D)
        self.set_submodule("output", kernels.linear([source.output], "output"))
        del self.query, self.key, self.value

    def project(self, x: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries of the wanted tokens, (T,D) or (B,D), and the keys and values of all, (T,D) each."""
        prepared = self.key_value.prepare(x)
        if self.joined is not None and wanted is x:
            query, key, value = self.joined.multiply(prepared).chunk(3, dim=-1)  # (T,D) -> (T,3D) -> (T,D) each
        else:
            key, value = self.key_value.multiply(prepared).chunk(2, dim=-1)  # (T,D) -> (T,2D) -> (T,D) each
            query = self.queries.multiply(prepared if wanted is x else self.queries.prepare(wanted))
        return query, key, value


class ResidualInPlace(model.Residual):
    """x + change, without dropout, in the memory of the change."""

    def forward(self, change: Tensor, x: Tensor) -> Tensor:
        """(T,D), (T,D) -> (T,D), in the dtype of x."""
        return change.add_(x) if change.dtype == x.dtype else change + x


class FastFeedForward(model.FeedForward):
    """The same with the activation within the product, for some tokens at a time."""

    tokens_at_once: int

    def put(self, source: model.FeedForward, kernels: Kernels) -> None:
        """Replace the linear layers by products; the one whose result the activation reads ends with it."""
        # In int8 the values between the products then stay in the caches.
        self.tokens_at_once = INT8_TOKENS if kernels.quantizations else sys.maxsize
        for product, (name,) in source.leaves.items():
            activation = kernels.activation if name == "expand" else None
            self.set_submodule(name, kernels.linear([getattr(source, name)], product, activation))

    def inner(self, x: Tensor) -> Tensor:
        """Return activation(x W₁ + b₁), (T,D) -> (T,F)."""
        return self.expand(x)  # type: ignore[no-any-return]  # a Tensor

    def forward(self, x: Tensor) -> Tensor:
        """(T,D) -> (T,D)."""
        done = [super(FastFeedForward, self).forward(part) for part in torch.split(x, self.tokens_at_once)]
        return torch.cat(done) if len(done) > 1 else done[0]


class FastGatedFeedForward(FastFeedForward, GatedFeedForward):
    """The same with a gate."""

    def inner(self, x: Tensor) -> Tensor:
        """Return activation(x W₁) * (x V), (T,D) -> (T,F)."""
        return self.expand(x) * self.gate(x)  # type: ignore[no-any-return]  # a Tensor


FAST = {
    model.SelfAttention: JoinedAttention,
    model.FeedForward: FastFeedForward,
    GatedFeedForward: FastGatedFeedForward,
    model.Residual: ResidualInPlace,
}


def fast_layer(source: nn.Module, kernels: Kernels) -> Any:
    """Return the layer with the products of `kernels`, and its norms in float32.

    Raises TypeError for a module that no fast path knows.
    """
    layer: Any = with_parts(source, FAST)
    for path, module in source.named_modules():
        parent, _, name = path.rpartition(".")
        above = source.get_submodule(parent)
        leaves: Mapping[str, Sequence[str]] = getattr(above, "leaves", {})
        if isinstance(module, nn.Dropout):
            layer.set_submodule(path, nn.Identity())  # torch copies its input, even in eval mode
        elif not path or name not in chain(*leaves.values()):
            whole = f"{type(above).__name__}.{name}".rstrip(".")
            put_vectors(layer.get_submodule(path), module, whole, kernels.device)
            if hasattr(module, "leaves"):
                layer.get_submodule(path).put(module, kernels)
    return layer


def fast_embeddings(source: model.Embeddings, kernels: Kernels) -> Any:
    """Return the embeddings in float32; with int8 the token table is bfloat16, which is far finer than int8."""
    embeddings: Any = with_parts(source, {})
    for name, module in source.named_children():
        if isinstance(module, nn.Embedding):
            rows, width = module.weight.shape
            table = nn.Embedding(rows, width, padding_idx=module.padding_idx, device="meta")
            table.weight = float32(module.weight, kernels.device)
            embeddings.set_submodule(name, table)
        elif isinstance(module, nn.Linear):
            embeddings.set_submodule(name, kernels.in_float32(module))
        elif isinstance(module, nn.Dropout):
            embeddings.set_submodule(name, nn.Identity())
        else:
            embeddings.set_submodule(name, norm_of(module, kernels.device))
    tables = [module for module in source.modules() if isinstance(module, nn.Embedding)]
    if kernels.int8 and len(tables) > 1:  # the sum with a position is float32
        embeddings.token.weight = nn.Parameter(embeddings.token.weight.bfloat16(), requires_grad=False)
    return embeddings
