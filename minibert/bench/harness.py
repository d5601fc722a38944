"""The harness: contestants in processes of their own, the jobs that they do in turn, and the results.

A process sleeps while the others work, so all contestants take turns within a round: A B C A B C. Ratios are taken
round by round, then their median: a disturbance of a minute slows all of them alike.
"""

import importlib.util
import multiprocessing
import os
import resource
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from minibert.bench.settings import Settings
from minibert.config import Config
from minibert.text.tokenizer import load_tokenizer
from minibert.utils.device import has_bfloat16, has_int8
from minibert.utils.printing import progress_bar

# The machine is too busy when the rounds of minibert differ by a larger factor: ratios then move by more than they are
# meant to show.
UNSTEADY = 1.4
WIDE = 768  # hidden size; in a narrower model, matrix products are a smaller share of the work
JOBS: dict[str, Callable[..., Any]] = {}  # in the process of a contestant: its name -> the function that does the job
PROC = Path("/proc")  # on Linux


@dataclass(frozen=True)
class Context:
    """What a contestant is loaded with."""

    folder: Path  # the checkpoint
    scratch: Path  # for conversions and logs
    threads: int
    device: str
    max_tokens: int


@dataclass(frozen=True)
class Contestant:
    """One program in one precision. load: (context, precision) -> the function that does the job, and its route."""

    name: str
    title: str
    precision: str
    load: Callable[[Context, str], tuple[Callable[..., Any], str]]
    package: str = "transformers"
    convert: Callable[[Path, Path], None] | None = None  # writes what it reads: (checkpoint, scratch folder)
    large: bool = False  # takes one turn only, and only if there is enough memory

    @property
    def ours(self) -> bool:
        """Whether it is minibert."""
        return self.package == "minibert"

    def obstacle(self, device: str) -> str:
        """Why it cannot run here, or "". Its package is not imported."""
        where, missing = torch.device(device), "not run: this hardware does not multiply"
        obstacles = {
            "not installed": importlib.util.find_spec(self.package) is None,
            f"{missing} bfloat16": self.precision == "bfloat16" and not has_bfloat16(where),
            f"{missing} int8": self.precision == "int8" and self.ours and not has_int8(where),
            "not run: float16 needs CUDA": self.precision == "float16" and device == "cpu",
        }
        return next((obstacle for obstacle, present in obstacles.items() if present), "")


@dataclass(frozen=True)
class Sample:
    """One turn of a contestant."""

    seconds: float  # wall time of the job or (serving) of one request
    peak: int = 0  # bytes that its process held at most; on a GPU, bytes of the GPU
    details: dict[str, float] = field(default_factory=dict)  # serving: p50, p99, errors


@dataclass
class Row:
    """One contestant in one job. A row with a reason (why it failed or does not count) is not ranked."""

    contestant: Contestant
    job: str  # the main job; one sentence, cold start; or what grows, such as "tokens in a text"
    size: Mapping[str, float] = field(default_factory=dict)  # of one sample: {"sentences": 2000, "tokens": 47646}
    at: int = 0  # the number of clients, or the value of what grows
    reason: str = ""
    route: str = ""
    load_peak: int = 0  # bytes that its process held at most while loading
    equality: dict[str, float] = field(default_factory=dict)  # largest difference, smallest cosine to the reference
    flops: int = 0  # operations that the job cannot avoid; 0: not counted
    launches: int = 0  # kernels that our job launches on a GPU
    samples: list[Sample] = field(default_factory=list)

    @property
    def ranked(self) -> bool:
        """Whether its samples count."""
        return bool(self.samples) and not self.reason

    @property
    def seconds(self) -> float:
        """The median."""
        return statistics.median(sample.seconds for sample in self.samples)

    @property
    def peak(self) -> int:
        """Bytes that its process held at most, loading included."""
        return max([self.load_peak, *(sample.peak for sample in self.samples)])


def spread(values: Iterable[float]) -> dict[str, float]:
    """The median, the least and the most; {} of no values."""
    found = list(values)
    return {"median": statistics.median(found), "least": min(found), "most": max(found)} if found else {}


@dataclass
class BenchResult:
    """All that was measured of one checkpoint."""

    name: str
    config: Config
    job: str = "embedding"  # the main one
    origin: str = ""  # of the texts
    lengths: list[int] = field(default_factory=list)  # tokens of each text
    rows: list[Row] = field(default_factory=list)
    flops: int = 0  # operations that the job cannot avoid
    rates: dict[str, list[float]] = field(default_factory=dict)  # "precision kernel" -> FLOP/s by round
    notes: dict[str, str] = field(default_factory=dict)  # printed below the table
    failures: list[str] = field(default_factory=list)  # what is wrong with our own results
    goals: list[dict[str, Any]] = field(default_factory=list)

    def ranked(self, job: str, at: int = 0, precision: str | None = None, ours: bool | None = None) -> list[Row]:
        """The rows that count, the fastest first. None: of any precision; ours and others'."""
        rows = [row for row in self.rows if row.ranked and (row.job, row.at) == (job, at)]
        rows = [row for row in rows if precision in (None, row.contestant.precision)]
        return sorted((row for row in rows if ours in (None, row.contestant.ours)), key=lambda row: row.seconds)

    def row(self, name: str, job: str = "", at: int = 0) -> Row | None:
        """The row of a contestant that counts, by default in the main job."""
        return next((row for row in self.ranked(job or self.job, at) if row.contestant.name == name), None)

    def ratio(self, row: Row | None, ours: Row | None = None) -> dict[str, float]:
        """How many times as fast as a row ours is, round by round; {} if one of them does not count.

        By default ours has the same precision or, if we do not run in it, is our fastest.
        """
        if row is None or not row.ranked:
            return {}
        same, all_of_ours = (self.ranked(row.job, row.at, each, True) for each in (row.contestant.precision, None))
        rows = [ours] if ours else same or all_of_ours
        # A large contestant takes one turn only.
        pairs = zip(row.samples, rows[0].samples if rows else [], strict=False)
        return spread(their.seconds / our.seconds for their, our in pairs)

    def speedup(self, ours: str, theirs: str = "", job: str = "", at: int = 0) -> float | None:
        """How many times as fast ours is as theirs, by default as the fastest other one in the same precision."""
        row = self.row(ours, job, at)
        others = self.ranked(row.job, at, row.contestant.precision, False) if row else []
        rival = self.row(theirs, job, at) if theirs else next(iter(others), None)
        return self.ratio(rival, row).get("median") if row else None

    def memory(self, ours: str, theirs: str) -> float | None:
        """The peak memory of theirs as a multiple of ours."""
        peaks = [row.peak for row in map(self.row, (ours, theirs)) if row]
        return peaks[1] / peaks[0] if len(peaks) == 2 and all(peaks) else None

    def roofline(self, row: Row | None) -> dict[str, float]:
        """The seconds that matrix products alone need, as a share of those that the row took, round by round."""
        if row is None or not row.flops:
            return {}
        kernels = (rates for name, rates in self.rates.items() if name.startswith(f"{row.contestant.precision} "))
        rates = max(kernels, key=statistics.median, default=[])
        pairs = zip(rates, row.samples, strict=False)  # a large contestant takes one turn only
        return spread(row.flops / rate / sample.seconds for rate, sample in pairs)

    @property
    def wrong(self) -> list[str]:
        """Why our own results are not those of the reference; empty if they are."""
        ours = [row for row in self.rows if row.contestant.ours and row.reason.startswith(("differs", "failed"))]
        return [f"{row.contestant.name}: {row.reason}" for row in ours] + self.failures

    @property
    def doubts(self) -> list[str]:
        """Why the machine is too busy for these figures; empty if it is quiet."""
        rows = [row for row in self.rows if row.job == self.job and row.samples and row.contestant.ours]
        times = [[sample.seconds for sample in row.samples] for row in rows]
        factor = max((max(seconds) / min(seconds) for seconds in times), default=1.0)
        slow = f"the slowest round of minibert took {factor:.2f} times as long as the fastest"
        return [slow] * (factor > UNSTEADY)


# ---------------------------------------------------------------------------------------------------------------
# In the process of a contestant


def start_process(threads: int) -> None:
    """Set up a process: threads, no network, no output. Programs that it starts inherit its environment."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the benchmark, which ends its processes
    libraries = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
    # One GPU for each: the Trainer and infinity would share their work between all that they see.
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
    """Do the job once, or several times and take the median of the times. Returns the output too."""
    job, times, where = JOBS[name], [], torch.get_device_module(device)
    with suppress(OSError):  # Linux starts to record the peak anew
        (process_files(name) / "clear_refs").write_text("5")
    if device != "cpu":
        where.reset_peak_memory_stats()
    for _ in range(calls):
        where.synchronize()  # a CPU is not waited for
        began = time.perf_counter()
        output = job(work, **options)
        where.synchronize()
        times.append(time.perf_counter() - began)
    return Sample(statistics.median(times), peak_memory(name, device)), output


def count_launches(name: str, work: Any) -> int:
    """The kernels that a job launches on the GPU; copies are none."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        JOBS[name](work)
    copies = ("Memcpy", "Memset")
    return sum(one.device_type.name == "CUDA" and not one.name.startswith(copies) for one in profiler.events())


def peak_memory(name: str, device: str) -> int:
    """Bytes that were held at most: of the GPU, or of the process that works (a server that this one started)."""
    if device != "cpu":
        return int(torch.get_device_module(device).max_memory_allocated())
    peak = read_field(process_files(name) / "status", "VmHWM")
    return int(peak.removesuffix("kB")) * 1024 if peak else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def process_files(name: str) -> Path:
    """Where Linux describes the process that does a job: this one, or the server that it started."""
    return PROC / str(getattr(JOBS[name], "pid", "self"))


def total_memory() -> int:
    """The bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read_field(file: Path, name: str) -> str:
    """The value of the first line "name: value" of a file of /proc; "" where there is none."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


# ---------------------------------------------------------------------------------------------------------------
# The measurement


def new_process(threads: int) -> ProcessPoolExecutor:
    """A process that answers one request after the other."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), start_process, (threads,))


class Session:
    """One checkpoint under measurement: its contestants' processes, and a helper for conversions and the reference."""

    work: Any  # texts or examples of the main job
    reference: Any  # vectors of some texts

    def __init__(self, model: str, settings: Settings, scratch: Path, prepare: Callable[..., Path]) -> None:
        self.settings, self.processes = settings, {"helper": new_process(settings.threads)}
        folder = self.call(prepare, model, scratch, settings)
        self.tokenizer, config = load_tokenizer(folder), Config.from_file(folder / "config.json")
        self.result = BenchResult(Path(model).name, config, settings.kind)
        self.context = Context(folder, scratch, settings.threads, settings.device, config.max_tokens)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function returns in the helper. Raises what it raises."""
        return self.processes["helper"].submit(function, *arguments).result()

    def request(self, row: Row, function: Callable[..., Any], *arguments: Any, process: str = "", **how: Any) -> Any:
        """What the function returns in a process, by default the row's; None if it fails: the row gets the reason."""
        name = process or row.contestant.name
        try:
            ready = not row.reason and name in self.processes
            return self.processes[name].submit(function, *arguments, **how).result() if ready else None
        except Exception as error:  # another runtime may raise anything
            row.reason = " ".join(f"failed: {type(error).__name__}: {error}".split())[:160]
            self.stop(row.contestant.name)
            return None

    def load(self, rows: Iterable[Row], threads: int | None = None) -> None:
        """Start a process for each row that can run, and load its contestant."""
        able = [row for row in rows if not row.reason]
        for row in able:  # they import their libraries at the same time
            self.stop(row.contestant.name)
            self.processes[row.contestant.name] = new_process(threads or self.context.threads)
            self.processes[row.contestant.name].submit(int)
        for row in progress_bar(able, "loading"):
            row.route, row.load_peak = self.request(row, load_contestant, row.contestant, self.context) or ("", 0)

    def turn(
        self,
        rows: Iterable[Row],
        work: Any,
        check: Callable[[Row, Any], None] | None = None,
        counts: bool = True,
        **how: Any,
    ) -> None:
        """A turn of each row: a sample, or (counts: False) a warm-up. check: judges the output."""
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


def measure(model: str, settings: Settings, benchmark: Any) -> BenchResult:
    """Everything about one checkpoint; its processes and files are removed. benchmark: the module with the stages."""
    with tempfile.TemporaryDirectory(prefix="minibert-bench-") as scratch:
        try:
            session = Session(model, settings, Path(scratch), benchmark.prepare)
            for stage in benchmark.STAGES[: 3 if settings.job else None]:
                stage(session)
            session.stop(*session.processes)
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            raise
    result = session.result
    for goal, wide, narrow, value_of in benchmark.goals(settings):
        value, bound = value_of(result), wide if result.config.hidden_size >= WIDE else narrow
        reached = None if value is None else value >= bound
        result.goals.append({"model": result.name, "goal": goal, "bound": bound, "value": value, "reached": reached})
    return result
