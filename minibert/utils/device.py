"""Devices, dtypes, and what the hardware computes fast."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from minibert.utils.printing import brief
from minibert.utils.wording import advice

PRECISIONS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": None,  # for vectors only; see kernels/int8.py
    "auto": None,
}
# Tokens in a batch. A GPU needs many: it computes 4,096 in less time than the host takes to launch the kernels.
BATCH_TOKENS = {"cpu": 4096, "mps": 16384, "cuda": 65536}


def check_device(device: str | torch.device) -> None:
    """Raise ValueError for a device that this machine or this build of torch does not have."""
    kind, _, number = str(device).partition(":")
    if (number and not number.isdecimal()) or int(number or 0) >= device_count(kind):
        found = ", ".join(f"{device_count(name)} {name}" for name in ("cpu", "cuda", "mps"))
        problem = f"device {brief(str(device))} is not available; torch has these: {found}"
        raise ValueError(problem + advice("; use {}", device="cpu"))


def device_count(kind: str) -> int:
    """Return how many devices of a kind there are, such as "cuda"; 0 for a kind that torch does not know."""
    try:
        return int(torch.get_device_module(kind).device_count())
    except RuntimeError:
        return 0


def choose_device(device: str | torch.device) -> str:
    """Return the device to compute on: "auto" is CUDA if torch finds it, else the CPU; MPS only if it is named."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    check_device(device)
    return str(device)


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype of the matrix products: float32, with a warning, where bfloat16 would be slow.

    bfloat16 is the first half of a float32: all of its range, two to three digits. "auto" chooses it where the hardware
    multiplies it: the vectors keep a cosine above 0.9999 to float32. Raises ValueError for what the device cannot do.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {brief(precision)}; choose from {', '.join(PRECISIONS)}")
    if precision == "int8" or (precision == "float16" and device.type != "cuda"):
        raise ValueError(
            f"precision {precision!r} is not possible on {device}: int8 is for vectors, not for training, and float16 "
            "needs a CUDA device; use 'float32', 'bfloat16' or 'auto'"
        )
    wanted = PRECISIONS[precision] or torch.bfloat16
    if wanted != torch.bfloat16 or has_bfloat16(device):
        return wanted
    if precision == "auto":
        return torch.float16 if device.type == "cuda" else torch.float32
    warnings.warn(
        f"{device} does not multiply bfloat16 in hardware (AVX512_BF16 or AMX, CUDA capability 8); "
        "computing in float32",
        stacklevel=3,
    )
    return torch.float32


def has_bfloat16(device: torch.device) -> bool:
    """Return whether the hardware multiplies bfloat16: AVX512_BF16 or AMX on a CPU, compute capability 8 on CUDA.

    Elsewhere torch still computes bfloat16 products, on a CPU about 100 times slower than float32.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    return device.type == "cpu" and bool(cpu_features() & {"avx512_bf16", "amx_bf16"})


def has_int8(device: torch.device) -> bool:
    """Return whether the hardware multiplies int8 and adds without overflow: VNNI or AMX on a CPU."""
    return device.type == "cpu" and bool(cpu_features() & {"avx512_vnni", "avx_vnni", "avxvnni", "amx_int8"})


def cpu_features() -> set[str]:
    """Return the instruction sets of this CPU, as torch names them."""
    return {name for name, present in torch.cpu.get_capabilities().items() if present is True}


def batch_tokens_on(device: torch.device) -> int:
    """Return the default number of tokens in a batch on this device."""
    return BATCH_TOKENS.get(device.type, BATCH_TOKENS["cuda"])


def without_cudnn() -> AbstractContextManager[None]:
    """Keep torch's fused attention off cuDNN within the block: it builds a plan for each new shape, about 30 ms."""
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


def copies_ahead(device: torch.device) -> bool:
    """Return whether the host can go on during a copy: CUDA. MPS does not signal the end of a copy."""
    return device.type not in ("cpu", "mps")


def move(value: Any, device: torch.device) -> Any:
    """Return a CPU tensor moved to a device, or a dataclass, dict, list or tuple with all its tensors moved.

    On CUDA all of them go in one copy, and the host does not wait for it.
    """
    if not copies_ahead(device):
        return map_tensors(lambda x: x.to(device), value)
    found: list[Tensor] = []
    map_tensors(found.append, value)
    # As bytes, each at a multiple of the largest dtype.
    parts = [F.pad(x.flatten().view(torch.uint8), (0, -x.nbytes % 8)) for x in found]
    whole = torch.cat(parts).pin_memory().to(device, non_blocking=True)
    moved = iter(torch.split(whole, [len(part) for part in parts]))
    return map_tensors(lambda x: next(moved)[: x.nbytes].view(x.dtype).view(x.shape), value)


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Return a dataclass, dict, list or tuple with function(x) in place of each tensor x."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(function, one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(function, one) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return replace(value, **map_tensors(function, parts))
    return value


class PendingCopy:
    """A tensor that is being copied to the CPU; `wait` waits for this copy only."""

    def __init__(self, x: Tensor) -> None:
        ahead = copies_ahead(x.device)
        self.x = x.to("cpu", non_blocking=ahead)  # from CUDA: into pinned memory
        self.copied = torch.get_device_module(x.device).current_stream(x.device).record_event() if ahead else None

    def wait(self) -> Tensor:
        """Return the tensor on the CPU."""
        if self.copied is not None:
            self.copied.synchronize()
        return self.x


def autocast(device: torch.device, precision: str) -> Any:
    """Return torch's autocast for bfloat16, and for any other precision a context that does nothing."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()
