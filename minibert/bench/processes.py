"""Processes of the benchmark: workers that load one backend and answer requests, and programs that run once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from minibert.bench.backends import Backend, Setting, Vectors
from minibert.bench.machine import busy_seconds, held_bytes
from minibert.bench.results import Sample
from minibert.bench.roofline import synchronize

REFERENCES = Path("/proc/self/clear_refs")


class LostError(RuntimeError):
    """A process has no answer; the message is the reason, in one line."""


def environment(threads: int) -> dict[str, str]:
    """What every process has in its environment: so many threads for each library, no network, no chatter."""
    quiet = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), str(threads))
    return quiet | counts | {"TRANSFORMERS_NO_ADVISORY_WARNINGS": "1", "TOKENIZERS_PARALLELISM": "true"}


class Worker:
    """What a process does: its methods are the requests; arguments and answers are pickled on their way."""

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function returns."""
        return function(*arguments)

    def load(self, backend: Backend, setting: Setting) -> tuple[str, float, int, int]:
        """Load a backend, with the libraries that it imports: its kernels in words, seconds, bytes held and at most."""
        self.device = torch.device(setting.device)
        began = time.perf_counter()
        self.encoder, kernels = backend.load(setting, backend.precision)
        return kernels, time.perf_counter() - began, held_bytes(), held_bytes(most=True)

    def encode(self, texts: list[str], keep: bool = False, **options: Any) -> tuple[Sample, Vectors | None]:
        """Encode texts: what it took, and where they are to be kept, the vectors."""
        with suppress(OSError):  # Linux begins to measure the peak anew, where it lets this process
            REFERENCES.write_text("5")
        synchronize(self.device)
        began, cpu, machine = time.perf_counter(), time.process_time(), busy_seconds()
        vectors = self.encoder(texts, **options)
        synchronize(self.device)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        sample = Sample(seconds, cpu, max(0.0, busy_seconds() - machine - cpu), held_bytes(most=True))
        return sample, vectors if keep else None

    def repeat(self, texts: list[str], times: int) -> list[float]:
        """Wall seconds of each of many calls."""
        return [self.encode(texts)[0].seconds for _ in range(times)]


def serve(connection: Connection, threads: int) -> None:
    """The life of a process: (error, answer) for each request, until the other end is closed."""
    os.environ.update(environment(threads))
    torch.set_num_threads(threads)
    for stream in (1, 2):  # what libraries print is for nobody
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    worker = Worker()
    with suppress(EOFError, OSError):  # the benchmark has ended
        while True:
            request, arguments, options = connection.recv()
            try:
                answer = "", getattr(worker, request)(*arguments, **options)
            except Exception as error:  # whatever a foreign runtime raises is the answer, and is shown in its row
                answer = f"{type(error).__name__}: {error}", None
            connection.send(answer)


class Process:
    """A worker seen from outside; importing its libraries has begun."""

    def __init__(self, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, threads), daemon=True)
        before = signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # Ctrl-C is for the benchmark, which then ends its workers
        self.process.start()
        signal.signal(signal.SIGINT, before)
        other.close()

    def ask(self, request: str, *arguments: Any, **options: Any) -> Any:
        """What this method of Worker returns. Raises LostError where it fails."""
        try:
            self.connection.send((request, arguments, options))
            error, answer = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            raise LostError(f"ended with status {self.process.exitcode}") from None
        if error:
            raise LostError(" ".join(error.split())[:160])
        return answer

    def close(self) -> None:
        """End it: where it waits, it goes by itself."""
        self.connection.close()
        self.process.join(5)  # seconds
        self.process.kill()
        self.process.join()


def seconds_to_end(program: str, arguments: list[str], threads: int) -> float:
    """Seconds from the start of Python to the time that the program prints at its end. Raises LostError if it fails."""
    began, command = time.time(), [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment(threads))
    if done.returncode:
        raise LostError((done.stderr.strip() or f"ended with status {done.returncode}").splitlines()[-1][:160])
    return float(done.stdout) - began
