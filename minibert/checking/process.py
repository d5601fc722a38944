"""A process of its own for a file that is checked, with limits, and its answers as numbers that are compared here.

Whatever the file does, it can only end or delay that process, or return wrong numbers. It is no protection against a
file that means harm: it may read and write what the user may.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import torch
from safetensors.torch import load
from torch import Tensor

START = 120.0  # seconds until Python and torch are loaded
LOADING = 60.0  # seconds for the import of the file
MEMORY = 8 << 30  # bytes of addresses
OUTPUT = 1 << 28  # bytes of an answer, and of what it prints
KEPT = ("inputs.safetensors", "five_tensors.safetensors")
MESSAGE = 500  # characters of a message
PRINTED = 10_000  # characters of what it prints that are shown


@dataclass
class Answer:
    """What the process said about a case, an import or a model."""

    state: str  # done, raised, refused, unwritten, missing, or ended: it said nothing
    message: str = ""
    outputs: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)  # by "found NAME" and "given NAME"


def opened(path: Path, flags: int) -> BinaryIO:
    """Open a file that the process may have replaced; for anything but a regular file, open an empty one."""
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # a pipe must not wait for its other end
    mode = "rb" if flags & (os.O_WRONLY | os.O_RDWR) == os.O_RDONLY else "ab"
    try:
        file: BinaryIO = os.fdopen(os.open(path, flags, 0o600), mode)  # type: ignore[assignment]  # by its mode
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
    except OSError:
        pass
    return open(os.devnull, mode)  # type: ignore[return-value]  # by its mode


def content(path: Path) -> bytes:
    """Return the content of a file that the process may have replaced, at most OUTPUT bytes."""
    with opened(path, os.O_RDONLY) as file:
        return file.read(OUTPUT)


class Process:
    """A running process, and the answers that it gives."""

    def __init__(self, folder: Path, task: dict[str, Any]) -> None:
        self.folder = folder
        for old in (*folder.glob("*.json"), *folder.glob("*.safetensors")):
            if old.name not in KEPT:
                old.unlink()
        limits = {"memory": MEMORY, "output": OUTPUT, "threads": torch.get_num_threads()}
        (folder / "task.json").write_text(json.dumps(limits | task), "utf-8")
        self.running = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        """Start Python with the task."""
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))))
        with opened(self.folder / "printed", os.O_WRONLY | os.O_APPEND | os.O_CREAT) as printed:
            return subprocess.Popen(
                [sys.executable, "-m", "minibert.checking.child", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                env=os.environ | {"PYTHONPATH": path},
                start_new_session=True,
            )

    def answer(self, name: str, seconds: float) -> Answer:
        """Wait for an answer. One that does not come, or cannot be read, is of state "ended"."""
        path = self.folder / f"{name}.json"
        until = time.monotonic() + seconds
        pause = threading.Event()
        while not path.exists():
            ended = self.running.poll()
            if ended is not None and not path.exists():
                how = f"signal {signal.Signals(-ended).name}" if ended < 0 else f"exit status {ended}"
                return Answer("ended", f"it ended Python ({how})")
            if time.monotonic() > until:
                return Answer("ended", f"stopped after {seconds:.1f} s, perhaps by an endless loop")
            pause.wait(0.002)
        try:
            given = json.loads(content(path))
            tensors = load(content(path.with_suffix(".safetensors")))
            message = "".join(c if c.isprintable() else " " for c in str(given.get("message", ""))[:MESSAGE])
            return Answer(str(given.get("state")), message, dict(given.get("outputs", {})), tensors)
        except Exception as error:  # the file may have written anything there
            return Answer("ended", f"its answer cannot be read: {type(error).__name__}")

    def stop(self) -> None:
        """End the process and all that it started."""
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.running.pid, signal.SIGKILL)
        self.running.kill()
        self.running.wait()


@contextmanager
def working_folder() -> Iterator[Path]:
    """Give a folder for tasks and answers, and print at the end what the processes printed."""
    with TemporaryDirectory(prefix="minibert-check-", ignore_cleanup_errors=True) as folder:
        try:
            yield Path(folder)
        finally:
            path = Path(folder) / "printed"
            if path.exists():
                with opened(path, os.O_RDONLY) as file:
                    text = file.read(PRINTED + 1).decode("utf-8", "replace")
                if text:
                    more = " ... (more is left out)" * (len(text) > PRINTED)
                    sys.stdout.write("".join(c if c.isprintable() or c == "\n" else "?" for c in text[:PRINTED]))
                    sys.stdout.write(more + "\n" * (not text.endswith("\n")))
