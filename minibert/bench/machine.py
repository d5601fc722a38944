"""The machine that a figure was measured on: what it is called, what it has, and what it is doing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from minibert import __version__
from minibert.device import cpu_features

STATUS, STATISTICS = Path("/proc/self/status"), Path("/proc/stat")


def machine(threads: int, device: str = "cpu") -> dict[str, Any]:
    """What it is measured on."""
    figures: dict[str, Any] = {
        "cpu": cpu_name(),
        "machine": platform.machine(),
        "system": platform.system(),
        "threads": threads,
        "available GB": round(available_bytes() / 1e9, 1),
        "instructions": sorted(cpu_features()),
    }
    return figures | ({"gpu": torch.cuda.get_device_name()} if device == "cuda" else {})


def cpu_name() -> str:
    """As the system calls it."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8").splitlines() if listing.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Package -> version, or "not installed"; Python, minibert and numpy too."""
    found = {"python": platform.python_version(), "minibert": __version__}
    for name in (*packages, "numpy"):
        try:
            found[name] = __version__ if name == "minibert" else importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def busy_seconds() -> float:
    """Seconds that the processors which this process may use have worked, for anybody; 0 where no system tells."""
    if not STATISTICS.exists():
        return 0.0
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    rows = [line.split() for line in STATISTICS.read_text().splitlines() if line.split()[0] in mine]
    columns = (1, 2, 3, 6, 7, 8)  # user nice system irq softirq steal; not idle, iowait
    return sum(int(row[column]) for row in rows for column in columns) / os.sysconf("SC_CLK_TCK")


def held_bytes(most: bool = False) -> int:
    """The memory that this process holds, or has held at most, which is all that macOS tells."""
    if not STATUS.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    field = "VmHWM:" if most else "VmRSS:"
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def available_bytes() -> int:
    """The memory that can still be had: of the machine, or of the control group that this process is confined to."""
    meminfo, limit = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
    if not meminfo.exists():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
    available = int(line.split()[1]) * 1024
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        available = min(available, int(text) - int(limit.with_name("memory.current").read_text()))
    return available
