"""The harness: contestants in processes of their own that do their jobs in turn.

A process sleeps while the others work, so all contestants take turns within a round: A B C A B C.
"""

import multiprocessing
import os
import resource
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from minibert.bench.plan import BenchSettings
from minibert.bench.results import BenchResult, BenchRow, Contestant, Context, Sample
from minibert.config import Config
from minibert.text.tokenizer import load_tokenizer
from minibert.utils.printing import progress_bar

JOBS: dict[str, Callable[..., Any]] = {}  # in the process of a contestant: its name -> the function that does the job
PROC = Path("/proc")  # on Linux


# ---------------------------------------------------------------------------------------------------------------
# In the process of a contestant


def start_process(threads: int) -> None:
    """Set up a process: threads, no network, no output. Programs that it starts inherit its environment."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the benchmark, which ends its processes
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with its semaphores, files and the server that it started
    libraries = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
    # One GPU each: the Trainer and infinity would share their work among all GPUs that they see.
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    os.environ.update(
        {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true", "CUDA_VISIBLE_DEVICES": gpu}
        | dict.fromkeys(libraries, str(threads))
    )
    torch.set_num_threads(threads)
    for stream in (1, 2):  # discard what libraries print
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def load_contestant(contestant: Contestant, context: Context) -> tuple[str, int]:
    """Load a contestant and the libraries that it imports. Returns its route and the peak memory."""
    JOBS[contestant.name], route = contestant.load(context, contestant.precision)
    return route, peak_memory(contestant.name, context.device)


def do_job(name: str, device: str, work: Any, calls: int = 1, **options: Any) -> tuple[Sample, Any]:
    """Do the job once, or several times and keep the median of the times. Returns the output too."""
    job = JOBS[name]
    gpu = torch.get_device_module(device)
    times = []
    with suppress(OSError):  # Linux starts to record the peak anew
        (process_files(name) / "clear_refs").write_text("5")
    if device != "cpu":
        gpu.reset_peak_memory_stats()
    for _ in range(calls):
        gpu.synchronize()  # does nothing on a CPU
        began = time.perf_counter()
        output = job(work, **options)
        gpu.synchronize()
        times.append(time.perf_counter() - began)
    return Sample(statistics.median(times), peak_memory(name, device)), output


def peak_memory(name: str, device: str) -> int:
    """Return the peak memory in bytes: of the GPU, or of the process that works (a server that this one started)."""
    if device != "cpu":
        return int(torch.get_device_module(device).max_memory_allocated())
    peak = read_field(process_files(name) / "status", "VmHWM")
    return int(peak.removesuffix("kB")) * 1024 if peak else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def process_files(name: str) -> Path:
    """Return where Linux describes the process that does a job: this one, or the server that it started."""
    return PROC / str(getattr(JOBS[name], "pid", "self"))


def total_memory() -> int:
    """Return the memory of this machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read_field(file: Path, name: str) -> str:
    """Return the value of the first line "name: value" of a file of /proc; "" if there is none."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


# ---------------------------------------------------------------------------------------------------------------
# The measurement


def new_process(threads: int) -> ProcessPoolExecutor:
    """Return a process that answers one request after the other."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), start_process, (threads,))


class Session:
    """One checkpoint under measurement: its contestants' processes, and a helper for conversions and the reference."""

    work: Any  # texts or examples of the main job
    reference: Any  # vectors of some texts

    def __init__(self, model: str, settings: BenchSettings, scratch: Path, prepare: Callable[..., Path]) -> None:
        self.settings = settings
        self.processes = {"helper": new_process(settings.threads)}
        folder = self.call(prepare, model, scratch, settings)
        config = Config.from_file(folder / "config.json")
        self.tokenizer = load_tokenizer(folder)
        self.result = BenchResult(Path(model).name, config, settings.kind)
        tokens = settings.tokens or config.max_tokens
        if tokens > config.max_tokens:
            raise ValueError(f"--tokens is {tokens:,}; {model} reads at most {config.max_tokens:,}")
        self.context = Context(folder, scratch, settings.threads, settings.device, tokens)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what the function returns in the helper. Raises what it raises."""
        return self.processes["helper"].submit(function, *arguments).result()

    def request(
        self, row: BenchRow, function: Callable[..., Any], *arguments: Any, process: str = "", **how: Any
    ) -> Any:
        """Return what the function returns in a process, by default the row's.

        Returns None for a row that cannot run. A function that fails gives its row the reason.
        """
        name = process or row.contestant.name
        if row.reason or name not in self.processes:
            return None
        try:
            return self.processes[name].submit(function, *arguments, **how).result()
        except Exception as error:  # another runtime may raise anything
            row.reason = " ".join(f"failed: {type(error).__name__}: {error}".split())[:160]
            self.stop(row.contestant.name)
            return None

    def enter(self, contestants: Iterable[Contestant], size: Mapping[str, float], flops: int = 0) -> list[BenchRow]:
        """Add a row of the main job for each contestant, with the reason of those that cannot run here."""
        result = self.result
        device = self.context.device
        result.rows = [
            BenchRow(contestant, result.job, size, reason=contestant.obstacle(device), flops=flops)
            for contestant in contestants
        ]
        return result.rows

    def load(self, rows: Iterable[BenchRow]) -> None:
        """Start a process for each row that can run, and load its contestant."""
        able = [row for row in rows if not row.reason]
        for row in able:  # they import their libraries at the same time
            self.processes[row.contestant.name] = new_process(self.context.threads)
            self.processes[row.contestant.name].submit(int)
        for row in progress_bar(able, "loading"):
            row.route, row.load_peak = self.request(row, load_contestant, row.contestant, self.context) or ("", 0)

    def turn(
        self,
        rows: Iterable[BenchRow],
        work: Any,
        check: Callable[[BenchRow, Any], None] | None = None,
        counts: bool = True,
        **how: Any,
    ) -> None:
        """Give each row a turn: a sample, or (counts: False) a warm-up. check: judges the output."""
        for row in [row for row in rows if not (row.contestant.large and row.samples)]:
            arguments = row.contestant.name, self.context.device, work
            if answer := self.request(row, do_job, *arguments, **how):
                row.samples += [answer[0]] * counts
                if check:
                    check(row, answer[1])

    def stop(self, *names: str) -> None:
        """End these processes, if they run."""
        for name in self.processes.keys() & set(names):
            self.processes.pop(name).shutdown()


@dataclass(frozen=True)
class Benchmark:
    """What is measured with a checkpoint. prepare: (model, scratch folder, settings) -> the checkpoint's folder."""

    prepare: Callable[[str, Path, BenchSettings], Path]
    stages: tuple[Callable[[Session], None], ...]


def measure(model: str, settings: BenchSettings, benchmark: Benchmark) -> BenchResult:
    """Measure everything with one checkpoint. Its processes and files are removed."""
    with tempfile.TemporaryDirectory(prefix="minibert-bench-") as scratch:
        try:
            session = Session(model, settings, Path(scratch), benchmark.prepare)
            for stage in benchmark.stages:
                stage(session)
            session.stop(*session.processes)
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            raise
    return session.result
