"""Processes of the benchmark, seen from outside: contestants that stay, and programs that run once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Answer = dict[str, Any]


class LostError(RuntimeError):
    """A process ended before it answered; the message is the last line of what it said."""


def surroundings(threads: int) -> dict[str, str]:
    """The environment of every process: so many threads for each library, no network, no chatter."""
    quiet = {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
        "TOKENIZERS_PARALLELISM": "true",
    }
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), str(threads))
    return os.environ | quiet | counts


class Process:
    """A worker: `send` and `receive`, or `ask` for both."""

    def __init__(self, threads: int) -> None:
        self.said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  # `close` closes it
        self.process = subprocess.Popen(
            [sys.executable, "-m", "minibert.lab.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
            encoding="utf-8",
            env=surroundings(threads),
        )
        self.idle_wall = self.idle_cpu = 0.0

    def send(self, do: str, **arguments: Any) -> None:
        """Ask for something and do not wait."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return  # receive says why

    def receive(self) -> Answer:
        """The answer. Raises LostError where there will be none."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise LostError(self.reason())
        answer: Answer = json.loads(line)
        self.idle_wall += answer["idle_wall"]
        self.idle_cpu += answer["idle_cpu"]
        return answer

    def ask(self, do: str, **arguments: Any) -> Answer:
        """Ask and wait."""
        self.send(do, **arguments)
        return self.receive()

    def reason(self) -> str:
        """Why it ended, in one line."""
        status = self.process.wait()
        self.said.seek(0)
        lines = [line.strip() for line in self.said.read().splitlines() if line.strip()]
        said = next((line for line in reversed(lines) if "Error" in line or "Exception" in line), "")
        return (said or (lines[-1] if lines else f"ended with status {status}"))[:160]

    def close(self) -> None:
        """End it."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue  # it has gone already
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.said.close()


@contextmanager
def running(threads: int) -> Iterator[Process]:
    """A process for as long as the block lasts."""
    process = Process(threads)
    try:
        yield process
    finally:
        process.close()


def seconds_to_first_line(program: str, arguments: list[str], threads: int) -> float:
    """Wall seconds from the start of `python -c program` to its first line. Raises LostError where it prints none."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        begin = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            encoding="utf-8",
            env=surroundings(threads),
        )
        assert process.stdout is not None
        with process.stdout:
            line = process.stdout.readline()
            seconds = time.perf_counter() - begin
        process.wait()
        if not line:
            said.seek(0)
            raise LostError((said.read().strip().splitlines() or ["it printed nothing"])[-1][:160])
    return seconds


def available_bytes() -> int:
    """The memory that can still be had: of the machine, or of the control group that this process is confined to."""
    meminfo, limit = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
    if not meminfo.exists():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
    available = int(line.split()[1]) * 1024
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        used = int(limit.with_name("memory.current").read_text())
        available = min(available, int(text) - used)
    return available
