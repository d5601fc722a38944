"""The process of one contestant: it loads, then answers requests, and sleeps in between.

    python -m minibert.lab.bench.worker

Requests are JSON objects, one a line of standard input, and so are the answers on standard output. What libraries
print goes to standard error. An error ends the process: its last line there is the reason.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minibert.lab.bench import convert, wall
from minibert.lab.bench.contestants import NAMED, Ready, Setting

STATUS, REFERENCES = Path("/proc/self/status"), Path("/proc/self/clear_refs")
Answer = dict[str, Any]


def peak_bytes() -> int:
    """The most memory that this process has held since the last forget_peak (Linux), or since it began."""
    if STATUS.exists():
        return status_bytes("VmHWM")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def held_bytes() -> int:
    """The memory that it holds now; where the system does not say, the most it has held."""
    return status_bytes("VmRSS") if STATUS.exists() else peak_bytes()


def status_bytes(field: str) -> int:
    """A field of /proc/self/status."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    """Begin to measure the peak anew, where Linux lets this process."""
    try:
        REFERENCES.write_text("5")
    except OSError:
        return


class Worker:
    """Answers requests: each is a method, by its name under "do"."""

    def __init__(self) -> None:
        self.ready: Ready | None = None
        self.device = torch.device("cpu")
        self.idle_bytes = self.most_bytes = 0
        self.last = (time.perf_counter(), time.process_time())

    def answer(self, request: dict[str, Any]) -> Answer:
        """What the request asks for, and what this process did since the one before."""
        idle_wall, idle_cpu = time.perf_counter() - self.last[0], time.process_time() - self.last[1]
        arguments = {name: value for name, value in request.items() if name != "do"}
        result: Answer = getattr(self, request["do"])(**arguments)
        self.last = (time.perf_counter(), time.process_time())
        return result | {"idle_wall": idle_wall, "idle_cpu": idle_cpu}

    def hello(self) -> Answer:
        """That the process runs."""
        return {}

    def load(self, contestant: str, folder: str, converted: str, threads: int, device: str) -> Answer:
        """Load a contestant; seconds and memory, with the libraries that it imports."""
        torch.set_num_threads(threads)
        self.device = torch.device(device)
        begin = time.perf_counter()
        self.ready = NAMED[contestant].load(Setting(Path(folder), Path(converted), threads, device))
        seconds = time.perf_counter() - begin
        self.most_bytes = peak_bytes()
        self.idle_bytes = held_bytes()
        return {"seconds": seconds, "route": self.ready.route}

    def encode(self, texts: list[Any], save: str = "", tokenized: bool = False, **options: Any) -> Answer:
        """Encode texts, or rows of ids: wall and CPU seconds of all threads, memory; save: where the vectors go."""
        assert self.ready is not None
        run = self.ready.from_ids if tokenized else self.ready.encode
        assert run is not None
        forget_peak()
        wall.synchronize(self.device)
        began, cpu = time.perf_counter(), time.process_time()
        vectors = run(texts, **options)
        wall.synchronize(self.device)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        peak = peak_bytes()
        self.most_bytes = max(self.most_bytes, peak)
        if save:
            np.save(save, vectors)
        memory = {"peak": self.most_bytes, "call_peak": peak, "above_idle": max(0, peak - self.idle_bytes)}
        return {"wall": seconds, "cpu": cpu} | memory

    def repeat(self, texts: list[str], times: int) -> Answer:
        """Wall seconds of each of many calls."""
        return {"walls": [self.encode(texts)["wall"] for _ in range(times)]}

    def rates(self, D: int, F: int, precisions: list[str], device: str, threads: int) -> Answer:
        """precision -> way -> floating-point operations a second."""
        torch.set_num_threads(threads)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {"rates": {name: wall.rates(D, F, name, torch.device(device)) for name in precisions}}

    def convert(self, what: str, folder: str, out: str) -> Answer:
        """One conversion."""
        convert.CONVERSIONS[what](Path(folder), Path(out))
        return {}

    def write_distilbert(self, folder: str, vocabulary_from: str) -> Answer:
        """The checkpoint of random weights."""
        convert.write_distilbert(Path(folder), Path(vocabulary_from))
        return {}


def main() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    worker = Worker()
    for line in sys.stdin:
        answers.write(json.dumps(worker.answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
