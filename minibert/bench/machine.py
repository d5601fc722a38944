"""The machine that a figure was measured on: its hardware, its versions, its memory and its load."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from minibert import __version__
from minibert.device import cpu_features

PROC = Path("/proc")  # on Linux


def machine(threads: int, device: str = "cpu") -> dict[str, Any]:
    """The hardware and the threads that a figure was measured with."""
    return {
        "cpu": field(PROC / "cpuinfo", "model name") or platform.processor() or "unknown",
        "machine": platform.machine(),
        "system": platform.system(),
        "threads": threads,
        "available GB": round(available_bytes() / 1e9, 1),
        "instructions": sorted(cpu_features()),
    } | ({"gpu": torch.cuda.get_device_name()} if device == "cuda" else {})


def field(file: Path, name: str) -> str:
    """The value of the first line "name: value" of a file of /proc; "" where there is none."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Package -> version, or "not installed"; Python and minibert too."""
    installed = {one.name.lower(): one.version for one in importlib.metadata.distributions()}
    found = {name: installed.get(name, "not installed") for name in packages}
    return {"python": platform.python_version(), "minibert": __version__} | found


def busy_seconds() -> float:
    """Seconds that the processors available to this process have worked for any program; 0 where it is unknown."""
    stat = (PROC / "stat").read_text() if (PROC / "stat").exists() else ""
    rows = [line.split() for line in stat.splitlines() if re.match(r"cpu\d", line)]
    mine = [row for row in rows if int(row[0][3:]) in os.sched_getaffinity(0)]
    columns = (1, 2, 3, 6, 7, 8)  # user nice system irq softirq steal; not idle, iowait
    return sum(int(row[column]) for row in mine for column in columns) / os.sysconf("SC_CLK_TCK")


def cpu_seconds(process: int | None = None) -> float:
    """CPU time of all threads of a process, by default of this one."""
    if process is None:
        return time.process_time()
    fields = (PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime, see proc(5)


def resident_bytes(process: int | None = None, peak: bool = False) -> int:
    """The memory that a process, by default this one, holds now or has held at most (macOS reports only the peak)."""
    if not (status := PROC / str(process or "self") / "status").exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(field(status, "VmHWM" if peak else "VmRSS").removesuffix("kB")) * 1024


def available_bytes() -> int:
    """The memory that is still available."""
    available = field(PROC / "meminfo", "MemAvailable").removesuffix("kB")
    return 1024 * int(available) if available else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
