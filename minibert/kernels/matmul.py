"""Matrix products at hardware speed: which kernel computes a linear layer on this machine, and proof that it is right.

Nearly all of BERT's time is x Wᵀ + b. On a CPU torch sends float32 products to the library MKL, which is fast on Intel
and slower elsewhere; oneDNN, which torch includes too, is fast on every x86 CPU. Two kernels, the better first:

    PackedLinear   oneDNN with the weights reordered once for its kernels, and the activation fused in.
                   These operators exist for torch's compiler; they are not public, so they may change or vanish.
    Linear         F.linear: on every other device, and as the last resort.

`choose_linear` compares each with a float64 product on the machine itself and takes the first that is right.

Memory is reused (Workspace): the system provides new memory page by page, each filled with zeros, and to get it can
take as long as to compute into it. Whether the C library of Linux returns freed memory or keeps it is a heuristic that
suits small programs.
"""

import copy
import ctypes
import platform
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minibert.activations import ACTIVATION

# oneDNN's names of the activations: (name, algorithm).
ONEDNN_ACTIVATION = {
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "gelu_pytorch_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
}
# Largest error against float64, relative to the largest value. Measured: 1e-6 in float32, 4e-3 in bfloat16. A "float32"
# product that really computes in bfloat16 therefore fails.
MAX_ERROR = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 2e-2}
REORDERED_FOR = 1024  # tokens; other numbers run as fast
# Parameters of mallopt(3) of glibc and the largest values that its own heuristic sets: how many free bytes at the end
# of the heap are returned, and from what size on an allocation is mapped, and therefore returned, by itself.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
USUAL = {M_TRIM_THRESHOLD: 64 << 20, M_MMAP_THRESHOLD: 32 << 20}
NEVER = 1 << 30  # bytes


class Linear(nn.Module):
    """activation(x Wᵀ + b); several layers with the same input become one product.

    It takes the place of nn.Linear. `forward` is `prepare`, which casts x (T, in), and `multiply`, whose result
    (T, out) has the dtype of the weights.
    """

    description = "F.linear"

    def __init__(
        self, layers: Sequence[nn.Linear], dtype: torch.dtype, device: torch.device, activation: str | None = None
    ) -> None:
        super().__init__()
        weight, bias = joined(layers)
        self.weight = weight.detach().to(device, dtype)  # (out, in)
        self.bias = None if bias is None else bias.detach().to(device, dtype)  # (out)
        self.dtype = dtype
        self.activation = activation

    def prepare(self, x: Tensor) -> Any:
        """Return x (T, in) in the form that `multiply` takes: here in the dtype of the weights, in int8.py as int8."""
        return x.to(self.dtype)

    def multiply(self, x: Any) -> Tensor:
        """(T, in) -> (T, out)."""
        y = F.linear(x, self.weight, self.bias)
        return y if self.activation is None else ACTIVATION[self.activation](y)

    def forward(self, x: Tensor) -> Tensor:
        """(T, in) -> (T, out)."""
        return self.multiply(self.prepare(x))

    def part(self, first: int, last: int) -> Self:
        """Return the outputs from `first` to `last` as a layer that shares the weights."""
        layer = copy.copy(self)
        layer.weight = self.weight[first:last]
        layer.bias = None if self.bias is None else self.bias[first:last]
        return layer


def joined(layers: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Return the weights of layers with the same input as one matrix, and their biases; one layer's are not copied.

    Either all layers have a bias or none has.
    """
    if len(layers) == 1:
        return layers[0].weight, layers[0].bias
    weights: list[Tensor] = [layer.weight for layer in layers]
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    return torch.cat(weights), torch.cat(biases) if biases else None


def linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear layer with these weights; it allocates no memory and draws no random numbers."""
    layer: Any = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    layer.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
    return cast(nn.Linear, layer)


BEFORE: list[str] = []  # torch's setting before the first `onednn_allowed`, once for each block that is active
BEFORE_LOCK = threading.Lock()


@contextmanager
def onednn_allowed() -> Iterator[None]:
    """Let float32 products go to oneDNN within the block, and restore the setting afterwards.

    The setting allows bfloat16 and thereby selects oneDNN; a CPU without AMX still computes in float32. It is one for
    all threads: the last of several blocks restores it.
    """
    setting = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # torch replaces the module by an object
    with BEFORE_LOCK:
        BEFORE.append(BEFORE[0] if BEFORE else setting.fp32_precision)
        setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        with BEFORE_LOCK:
            before = BEFORE.pop()
            if not BEFORE:
                setting.fp32_precision = before


class PackedLinear(Linear):
    """The same by oneDNN with packed weights; its kernel applies the activation."""

    description = "packed oneDNN"

    def __init__(
        self, layers: Sequence[nn.Linear], dtype: torch.dtype, device: torch.device, activation: str | None = None
    ) -> None:
        super().__init__(layers, dtype, device, activation)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight, REORDERED_FOR)
        self.attribute, self.algorithm = ONEDNN_ACTIVATION.get(activation) or ONEDNN_ACTIVATION[None]

    def multiply(self, x: Any) -> Tensor:
        """(T, in) -> (T, out)."""
        operator = torch.ops.mkldnn._linear_pointwise
        y: Tensor = operator(x, self.weight, self.bias, self.attribute, [], self.algorithm)
        if self.activation is None or self.activation in ONEDNN_ACTIVATION:  # the kernel has applied it
            return y
        return ACTIVATION[self.activation](y)


class GeluLinear(Linear):
    """The same with GELU computed by the kernel of the product, on CUDA in bfloat16 or float16.

    It is the approximation by tanh: up to 5e-4 from GELU, an eighth of what bfloat16 rounds a value of 1 by.
    """

    description = "F.linear with GELU"

    def multiply(self, x: Any) -> Tensor:
        """(T, in) -> (T, out)."""
        if self.bias is None or ONEDNN_ACTIVATION.get(self.activation, ("", ""))[0] != "gelu":
            return super().multiply(x)
        return torch._addmm_activation(self.bias, x, self.weight.T, use_gelu=True)


def is_x86() -> bool:
    """Return whether this is a 64-bit x86 CPU, for which torch includes oneDNN and MKL."""
    return platform.machine().lower() in ("x86_64", "amd64")


def choose_linear(dtype: torch.dtype, device: torch.device) -> type[Linear]:
    """Return the fastest kernel that is right for products of this dtype on this device."""
    if device.type != "cpu" and is_right(GeluLinear, dtype, device):
        return GeluLinear
    if device.type != "cpu" or not is_x86():
        return Linear
    return PackedLinear if is_right(PackedLinear, dtype, device) else Linear


def is_right(kernel: type[Linear], dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether this build of torch has the kernel, and it agrees with a float64 product within MAX_ERROR.

    It tries a plain product, one without bias, and every activation, with a number of tokens that is not a multiple of
    a block.
    """
    random = torch.Generator().manual_seed(0)  # leaves the caller's random state alone
    x = torch.randn(67, 256, generator=random)
    layer = linear_of(torch.randn(320, 256, generator=random) / 16, torch.randn(320, generator=random))
    with torch.inference_mode():
        exact = x.double() @ layer.weight.double().T + layer.bias.double()
        try:
            errors = [
                relative_error(
                    kernel([layer], dtype, device, name)(x.to(device, dtype)).cpu(),
                    exact if name is None else ACTIVATION[name](exact),
                )
                for name in ONEDNN_ACTIVATION
            ]
            y = kernel([linear_of(layer.weight, None)], dtype, device)(x.to(device, dtype))
            errors.append(relative_error(y.cpu(), exact - layer.bias.double()))
        except (AttributeError, RuntimeError, TypeError):  # no such operator or setting, or with other arguments
            return False
    return max(errors) <= MAX_ERROR[dtype]


def reduced_float32(device: torch.device) -> str:
    """Return why float32 products on this device have fewer digits than float32, and what to do; "" if they do not."""
    if is_right(Linear, torch.float32, device):
        return ""
    return (
        f"float32 products on {device} are computed in fewer digits (TF32, bfloat16), because a setting of torch "
        "allows it: results differ by about 1e-3; torch.set_float32_matmul_precision('highest') and no "
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE forbid it"
    )


def relative_error(y: Tensor, exact: Tensor) -> float:
    """Return the largest difference relative to the largest value; inf if shapes differ or a value is not finite."""
    if y.shape != exact.shape or not bool(y.isfinite().all()):
        return float("inf")
    return float((y - exact).abs().max() / exact.abs().max())


# ---------------------------------------------------------------------------------------------------------------
# Memory


class Workspace(threading.local):
    """Tensors by name, separate for each thread; the content of one is valid until its name is requested again."""

    def __init__(self) -> None:
        self.buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def buffer(self, name: str, rows: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return an uninitialised tensor (rows, width); the next call with this name gets the same memory."""
        buffer = self.buffers.get((name, dtype))
        if buffer is None or len(buffer) < rows * width:
            buffer = self.buffers[name, dtype] = torch.empty(rows * width, dtype=dtype)
        return buffer[: rows * width].view(rows, width)


def call_libc(function: str, *arguments: int) -> None:
    """Call a function of the C library; do nothing on a system that does not have it."""
    with suppress(AttributeError, OSError, TypeError):
        getattr(ctypes.CDLL(None), function)(*arguments)


def release_memory() -> None:
    """Return freed memory to the system at once."""
    call_libc("malloc_trim", 0)


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Keep freed memory for the next allocation within the block: training steps need the same memory again and again.

    This shortens a bfloat16 step of a model of DistilBERT's size by an eighth.
    """
    for parameter in USUAL:
        call_libc("mallopt", parameter, NEVER)
    try:
        yield
    finally:
        for parameter, value in USUAL.items():
            call_libc("mallopt", parameter, value)
        release_memory()
