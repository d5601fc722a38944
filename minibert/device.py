"""Devices, dtypes, and what the hardware computes fast."""

import warnings
from pathlib import Path

import torch

from minibert.printing import brief

PRECISIONS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": None,  # for vectors only; see kernels/int8.py
    "auto": None,
}


def check_device(device: str | torch.device) -> None:
    """Raise ValueError for a device that this machine or this build of torch does not have."""
    kind, _, number = str(device).partition(":")
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if int(number or 0) >= counts.get(kind, 0):
        found = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ValueError(f"device {brief(str(device))} is not available; torch has these: {found}; use device='cpu'")


def choose_device(device: str | torch.device) -> str:
    """The device to compute on: "auto" is CUDA if torch finds it, else the CPU; MPS only if it is named."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    check_device(device)
    return str(device)


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """The dtype of the matrix products. Raises ValueError; warns where bfloat16 would be slow and returns float32.

    bfloat16 is the first half of a float32: all of its range, two to three digits. "auto" chooses it where the hardware
    multiplies it: the vectors keep a cosine above 0.9999 to float32.
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
    """True where the hardware multiplies bfloat16: AVX512_BF16 or AMX on a CPU, compute capability 8 on CUDA.

    Elsewhere torch still computes bfloat16 products, on a CPU about 100 times slower than float32.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    return device.type == "cpu" and bool(cpu_features() & {"avx512_bf16", "amx_bf16"})


def has_int8(device: torch.device) -> bool:
    """True where the hardware multiplies int8 and adds without overflow: VNNI or AMX on a CPU."""
    return device.type == "cpu" and bool(cpu_features() & {"avx512_vnni", "avx_vnni", "avxvnni", "amx_int8"})


def cpu_features() -> set[str]:
    """The instruction sets of this CPU, as named by torch or else by Linux; empty if neither names them."""
    if hasattr(torch.cpu, "get_capabilities"):
        return {name for name, present in torch.cpu.get_capabilities().items() if present is True}
    path = Path("/proc/cpuinfo")
    return set(path.read_text(encoding="utf-8").split()) if path.exists() else set()
