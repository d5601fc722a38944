"""Matrix products at hardware speed: which kernel computes a linear layer on this machine, and proof that it is right.

Nearly all of BERT's time is x Wᵀ + b. On a CPU torch sends float32 products to the library MKL, which is fast on Intel
and slower elsewhere; oneDNN, which torch carries too, is fast on every x86 CPU. Three kernels, best first:

    PackedLinear     oneDNN with the weights reordered once for its kernels, activation and residual fused in.
                     Operators that torch has for its own compiler: not public, so they may change or vanish.
    PermittedLinear  the public switch torch.backends.mkldnn.matmul.fp32_precision = "bf16", set around each product.
                     It permits bfloat16 and thereby chooses oneDNN; a CPU without AMX still computes in float32.
    Linear           F.linear as it is: on every other device, and as the last resort.

None is trusted by name: `choose_linear` compares each with a float64 product on the machine itself and takes the
first one that is right. No kernel changes a setting of torch beyond its own call.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minibert.model import ACTIVATION

# What oneDNN calls the activations: (name, algorithm).
ONEDNN_ACTIVATION = {
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "gelu_pytorch_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
}
# Largest error against float64, relative to the largest value. Measured: 1e-6 in float32; 4e-3 where bfloat16 is
# used. A "float32" product that really computes in bfloat16 therefore fails.
LARGEST_ERROR = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
PACKED_FOR = 1024  # tokens that the weights are reordered for; other numbers run as fast


class Linear:
    """activation(x Wᵀ + b), or x Wᵀ + b + residual; several layers with one input become one product.

    x, (T, in), must have the dtype of the weights. The result, (T, out), has it too, but with a residual it has the
    residual's: the stream stays float32 whatever enters the product.
    """

    words = "F.linear"

    def __init__(
        self, layers: Sequence[nn.Linear], dtype: torch.dtype, device: torch.device, activation: str | None = None
    ) -> None:
        self.weight = joined([layer.weight.detach() for layer in layers]).to(device, dtype)  # (out, in)
        self.bias = joined([layer.bias.detach() for layer in layers]).to(device, dtype)  # (out)
        self.activation = activation

    def enter(self, x: Tensor) -> Any:
        """x (T, in) as the product takes it: here in the dtype of the weights, in int8.py as bytes."""
        return x.to(self.bias.dtype)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """(T, in) -> (T, out)."""
        y = F.linear(x, self.weight, self.bias)
        if self.activation is not None:
            y = ACTIVATION[self.activation](y)
        return y if residual is None else residual + y


def joined(rows: list[Tensor]) -> Tensor:
    """All rows in one tensor; of one tensor itself, without a copy."""
    return rows[0] if len(rows) == 1 else torch.cat(rows)


class PermittedLinear(Linear):
    """The same with torch's public permission to use oneDNN; float32 only."""

    words = "F.linear by oneDNN"

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """(T, in) -> (T, out)."""
        with permission():
            return super().__call__(x, residual)


@contextmanager
def permission() -> Iterator[None]:
    """Let float32 products go to oneDNN inside, and leave the setting as it was found."""
    setting = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # torch puts an object in the module's place
    before = setting.fp32_precision
    setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = before


class PackedLinear(Linear):
    """The same by oneDNN with packed weights; the activation, or a residual of equal dtype, is added in its kernel."""

    words = "packed oneDNN"

    def __init__(
        self, layers: Sequence[nn.Linear], dtype: torch.dtype, device: torch.device, activation: str | None = None
    ) -> None:
        super().__init__(layers, dtype, device, activation)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight, PACKED_FOR)
        self.attribute, self.algorithm = ONEDNN_ACTIVATION[activation]

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """(T, in) -> (T, out)."""
        operator = torch.ops.mkldnn._linear_pointwise
        y: Tensor
        if residual is not None and residual.dtype == x.dtype:
            y = operator.binary(x, residual, self.weight, self.bias, "add")
            return y
        y = operator(x, self.weight, self.bias, self.attribute, [], self.algorithm)
        return y if residual is None else residual + y


def choose_linear(dtype: torch.dtype, device: torch.device) -> type[Linear]:
    """The fastest kernel that is right for products of this dtype on this device."""
    if device.type == "cpu" and platform.machine().lower() in ("x86_64", "amd64"):
        fast = (PackedLinear, PermittedLinear) if dtype == torch.float32 else (PackedLinear,)
        return next((kernel for kernel in fast if is_right(kernel, dtype)), Linear)
    return Linear


def is_right(kernel: type[Linear], dtype: torch.dtype) -> bool:
    """True where this build of torch has the kernel and it agrees with a float64 product within LARGEST_ERROR.

    Tried are a plain product, every activation and a residual, at a number of tokens that fills no block of oneDNN.
    """
    random = torch.Generator().manual_seed(0)  # a generator of its own: the caller's random numbers stay as they are
    x, residual = torch.randn(67, 256, generator=random), torch.randn(67, 320, generator=random)
    layer = nn.Linear(256, 320, device="meta")  # no memory, no random numbers; both tensors follow
    layer.weight = nn.Parameter(torch.randn(320, 256, generator=random) / 16)
    layer.bias = nn.Parameter(torch.randn(320, generator=random))
    with torch.inference_mode():
        exact = x.double() @ layer.weight.double().T + layer.bias.double()
        try:
            errors = [
                relative_error(
                    kernel([layer], dtype, x.device, name)(x.to(dtype)),
                    exact if name is None else ACTIVATION[name](exact),
                )
                for name in ONEDNN_ACTIVATION
            ]
            errors.append(relative_error(kernel([layer], dtype, x.device)(x.to(dtype), residual), exact + residual))
        except (AttributeError, RuntimeError, TypeError):  # no such operator or setting, or other arguments
            return False
    return max(errors) <= LARGEST_ERROR[dtype]


def relative_error(y: Tensor, exact: Tensor) -> float:
    """Largest difference relative to the largest value; infinite where the shapes differ or a value is not finite."""
    if y.shape != exact.shape or not bool(y.isfinite().all()):
        return float("inf")
    return float((y - exact).abs().max() / exact.abs().max())
