"""Who takes part: each a server in a process of its own, with the same checkpoint, pooling and threads."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from minibert.bench.processes import LostError, environment

MODEL = "checkpoint"  # what all servers call it
PATIENCE = 180  # seconds for a server to be ready


@dataclass(frozen=True)
class Contestant:
    """A server as it is started: its arguments, in which {folder} and {port} stand for what they are."""

    name: str
    title: str
    command: Sequence[str]
    ours: bool = False


MINIBERT = Contestant(
    "minibert",
    "minibert serve",
    [
        *(sys.executable, "-m", "minibert", "serve", "--model", "{folder}", "--port", "{port}"),
        *("--pooling", "mean", "--name", MODEL),
    ],
    ours=True,
)


def infinity(program: Path) -> tuple[Contestant, ...]:
    """infinity-emb with each of its engines. Raises FileNotFoundError where its program is not there."""
    if not program.is_file():
        raise FileNotFoundError(f"--infinity is {program}, and there is no such program; install infinity-emb there")
    common = [str(program), "v2", "--model-id", ".", "--served-model-name", MODEL, "--device", "cpu"]
    common += ["--url-prefix", "/v1", "--host", "127.0.0.1", "--port", "{port}"]
    return tuple(
        Contestant(f"infinity-{engine}", f"infinity-emb, {title}", [*common, "--engine", engine, *more])
        for engine, title, more in (
            ("torch", "torch", []),
            ("optimum", "ONNX Runtime", ["--pooling-method", "mean"]),
        )
    )


class Running:
    """A contestant that runs. Raises LostError, with the end of what it printed, where it does not come to that."""

    def __init__(self, contestant: Contestant, folder: Path, threads: int, log: IO[bytes]) -> None:
        self.contestant, self.port, self.log = contestant, free_port(), log
        command = [part.format(folder=folder, port=self.port) for part in contestant.command]
        quiet = {"DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
        self.process = subprocess.Popen(
            command, cwd=folder, env=os.environ | environment(threads) | quiet, stdout=log, stderr=log
        )
        self.wait()

    def wait(self) -> None:
        """Until it answers."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise LostError(f"ended with status {self.process.returncode}: {self.last_words()}")
            try:
                self.vectors(["a"])
                return
            except (OSError, urllib.error.URLError):
                time.sleep(0.2)
        self.stop()
        raise LostError(f"was not ready after {PATIENCE} s: {self.last_words()}")

    def last_words(self) -> str:
        """The last line that it printed."""
        self.log.flush()
        lines = Path(self.log.name).read_text("utf-8", "replace").strip().splitlines()
        return lines[-1][:160] if lines else "it printed nothing"

    def vectors(self, texts: Sequence[str]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """The vectors of texts, (N, D), as numbers."""
        body = json.dumps({"model": MODEL, "input": list(texts), "encoding_format": "float"}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/embeddings", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            data = json.load(reply)["data"]
        return np.array([row["embedding"] for row in data], np.float32)

    @property
    def held(self) -> int:
        """Bytes of memory of its process."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return 0

    @property
    def cpu(self) -> float:
        """Seconds that processors have worked for it, in all of its threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime, see proc(5)

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_port() -> int:
    """A port that nobody listens to now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
