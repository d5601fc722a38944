"""Corpora by Ray Data, on many processes and machines; each worker has its own model.

    unfinished shards -> one row of a Ray job each -> a worker embeds the whole shard (shards.py)

One shard is one row of the job, because that survives everything. If a worker is killed, Ray gives its shard to
another, and since a shard appears by a rename, nothing is lost or doubled. If the whole run is killed, the finished
shards are there, and the same call resumes. A pipeline that already uses Ray, for instance to read from s3://, needs
only an Embedder, whose pickle is a name and hashes:

    embedder = minibert.Embedder("all-MiniLM-L6-v2")
    dataset.map_batches(lambda batch: batch | {"vector": embedder(batch["text"])})

Ray is the one that runs in this process, the cluster of RAY_ADDRESS, or one on this machine, started and stopped here.
The last listens only to this machine, under its own token, sends no usage statistics and keeps no logs. On a cluster,
all machines see the same files under the same names, and have minibert and the checkpoint.

The cost of 100 million lines, computed and not measured:

    seconds = lines x tokens per line / (tokens per second of one machine x machines)

Two cores (AMD EPYC, Zen 4) encode 8,940 tokens per second with all-MiniLM-L6-v2 in float32: 47,646 tokens in 5.33 s,
from 2,000 sentences of SST-2 with 23.8 tokens each (`minibert demo`). So 100 million of them take

    machines of two cores    1      10      100
    time                     74 h   7.4 h   44 min

and their vectors 154 GB. On one machine of two cores Ray with two workers was as fast as `minibert embed`: 614 and 621
rows per second after the start against 608 and 580, in turns, on 20,000 sentences of SST-2 in 12 files.
More machines help as long as there are several shards per worker: at the end, all wait for the last shards.
"""

import json
import logging
import math
import os
import secrets
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from minibert.text.tokenized import TokenStats
from minibert.utils.files import AnyPath, final_name, user_path
from minibert.utils.outputs import check_place
from minibert.utils.printing import progress_bar
from minibert.utils.settings import with_settings
from minibert.vectors.embedder import Embedder
from minibert.vectors.parts import work_folder
from minibert.vectors.recipe import DEFAULT, Recipe
from minibert.vectors.shards import Columns, Shard, check_alike, embed_shard, find_shards, finished, read_shard
from minibert.vectors.stream import Summary, counts

ENVIRONMENT = {  # of a Ray started here
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # so that its servers listen only to this machine there too
    "RAY_AUTH_MODE": "token",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's next default; it warns until then
}


@dataclass(frozen=True, kw_only=True)
class Embedded(Summary):
    """A folder of shards that embed_shards wrote."""

    shards: int
    width: int
    resumed_shards: int  # by an earlier run


# ---------------------------------------------------------------------------------------------------------------
# Files


@with_settings(Recipe)
def embed_shards(
    pattern: AnyPath,
    out: AnyPath,
    model: AnyPath = "distilbert-base-uncased",
    *,
    text: str | int | None = None,
    pair: str | int | None = None,
    format: str | None = None,
    delimiter: str | None = None,
    encoding: str = "utf-8",
    recipe: Recipe = DEFAULT,
    device: str | torch.device = "auto",
    workers: int | None = None,
    keep_order: bool = False,
    restart: bool = False,
    **settings: Any,
) -> Embedded:
    """Write the shards of a pattern such as "corpus/*.parquet", each with a vector beside its columns, to `out`.

    out: a folder that is new, empty, or of an earlier run with the same settings, whose finished shards are kept unless
    their source changed; restart=True discards them. Names and order stay; `vector` is a FixedSizeList of float32.
    text, pair: the columns of texts and of second texts. format, delimiter, encoding: see tables.formats.FileSettings.
    workers: models at work at once; None: one per core or GPU; more workers than GPUs share them. keep_order: compute
    shards in the order of their names, not the largest first, which ends sooner. model, recipe, settings: as for
    embed_stream; each worker chooses precision "auto". device: "auto" is CUDA if the cluster has GPUs.
    Raises what `embed` raises, and FileNotFoundError if no file matches; ValueError, with the file, the row or the
    column, for an invalid shard, mostly before a worker starts; RuntimeError if Ray fails or `out` is in use.
    """
    folder = user_path(out)
    recipe = replace(recipe, **settings)
    columns = Columns(text, pair, format=format, delimiter=delimiter, encoding=encoding, missing=recipe.missing)
    check_place(folder, [model])
    shards = find_shards(os.fspath(pattern), folder)
    embedder = identified(model, recipe, device)
    check_shards(shards, columns, os.fspath(pattern))
    identity = embedder.identity | {"precision": recipe.precision} | asdict(columns)  # precision: as requested
    embedder.device = "cuda" if str(device).startswith("cuda") else device  # Ray shows a worker only its GPU
    outputs = [Path(shard.out) for shard in shards]
    with work_folder(folder.absolute(), identity, restart, outputs):
        done = finished(progress_bar(shards, "verify", unit="shard"), identity)
        if (resumed := len(done)) < len(shards):
            with session():
                run(shards, done, embedder, columns, identity, workers, keep_order)
        remove_unfinished(folder.absolute(), outputs)
    return summary(out, shards, done, resumed, embedder)


def identified(model: AnyPath, recipe: Recipe, device: str | torch.device) -> Embedder:
    """Return an embedder that each worker loads and whose hashes it checks; here it needs no GPU."""
    name = os.path.abspath(model) if os.path.isdir(model) else model
    if str(device).startswith("cuda"):
        return Embedder(name, replace(recipe, precision="float32"), "cpu")
    return Embedder(name, recipe, device)


def remove_unfinished(folder: Path, outputs: Sequence[Path]) -> None:
    """Remove what killed workers were writing."""
    for path in {*folder.rglob(".*")}.difference(outputs):
        if path.with_name(final_name(path)) in outputs:
            path.unlink()


def summary(
    out: AnyPath, shards: list[Shard], done: dict[Shard, TokenStats], resumed: int, embedder: Embedder
) -> Embedded:
    """Return what was written, after a warning if texts were cut."""
    stats = sum(done.values(), TokenStats())
    embedder.warn(stats)
    precision = shards[0].footer["precision"].removeprefix("torch.")
    return Embedded(
        out=str(out),
        **counts(stats),
        description=f"{embedder.method}, computed in {precision}",
        shards=len(shards),
        width=embedder.width,
        resumed_shards=resumed,
    )


def check_shards(shards: Sequence[Shard], columns: Columns, pattern: str) -> None:
    """Raise ValueError for a shard that cannot be read (see read_shard), and if none has a text."""
    any_text = False
    for shard in progress_bar(shards, "check", unit="shard"):
        chunks = read_shard(shard.source, columns)
        next(chunks)
        any_text = any_text or next(chunks, None) is not None
    if not any_text:
        raise ValueError(f"{pattern} holds no texts, so there is nothing to compute")


def run(
    shards: list[Shard],
    done: dict[Shard, TokenStats],
    embedder: Embedder,
    columns: Columns,
    settings: dict[str, Any],
    workers: int | None,
    keep_order: bool,
) -> None:
    """Let Ray's workers embed the shards that are not done, and add their stats to `done`."""
    from ray import data, exceptions

    left = [shard for shard in shards if shard not in done]
    order = left if keep_order else sorted(left, key=lambda shard: -os.path.getsize(shard.source))
    count, threads, resources = share_of_cluster(embedder.device, workers, len(left))
    rows = data.from_items([asdict(shard) for shard in order], override_num_blocks=len(order)).map(
        ShardWorker,
        fn_constructor_args=(embedder, columns, settings, threads),
        compute=data.ActorPoolStrategy(size=count, max_tasks_in_flight_per_actor=1),
        **resources,
    )
    rows.context.execution_options.preserve_order = keep_order
    rows.context.enable_progress_bars = False
    bar = progress_bar(name="embed", total=len(shards), initial=len(done), unit="shard")
    try:
        with bar:
            for row in rows.iter_rows():
                add_row(done, row)
                bar.update()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{bar.n:,} of {bar.total:,} shards are kept; the same command continues") from None
    except exceptions.RayError as error:
        raise RuntimeError(f"Ray failed: {error}; finished shards are kept, the same command continues") from error


def add_row(done: dict[Shard, TokenStats], row: dict[str, str]) -> None:
    """Add a shard that a worker has finished. Raises ValueError for its error, and what check_alike raises."""
    if row["error"]:
        raise ValueError(row["error"])
    shard = Shard(row["source"], row["out"])
    done[shard] = TokenStats(**json.loads(row["stats"]))
    check_alike([next(iter(done)), shard])


class ShardWorker:
    """A process with its own model, called with one shard at a time."""

    def __init__(self, embedder: Embedder, columns: Columns, settings: dict[str, Any], threads: int) -> None:
        torch.set_num_threads(threads)  # OMP_NUM_THREADS, which Ray sets, does not limit them
        os.environ.setdefault("RAYON_NUM_THREADS", str(threads))  # of the tokenizers library
        # The requested precision: the calling machine may have identified the model in another one.
        embedder.recipe = replace(embedder.recipe, precision=settings["precision"])
        self.embedder = embedder
        self.columns = columns
        self.settings = settings

    def __call__(self, row: dict[str, str]) -> dict[str, str]:
        """Embed a shard and add its stats, or the error: Ray would turn a raised one into pages of text."""
        stats = TokenStats()
        error = ""
        try:
            stats = embed_shard(Shard(**row), self.columns, self.embedder, self.settings)
        except (ValueError, TypeError, OSError) as caught:
            error = str(caught)
        return row | {"stats": json.dumps(asdict(stats)), "error": error}


# ---------------------------------------------------------------------------------------------------------------
# Ray


@contextmanager
def session() -> Iterator[None]:
    """Provide Ray: the one that runs in this process, the cluster of RAY_ADDRESS, or a new one on this machine."""
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        yield
        return
    local = not os.environ.get("RAY_ADDRESS")
    variables = ENVIRONMENT | {"RAY_AUTH_TOKEN": secrets.token_hex(32)} if local else {}
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    # Ray opens its folder to all users, so it gets one in a private folder; names of sockets must be short.
    short = "/tmp" if os.path.isdir("/tmp") else None
    terminate = signal.getsignal(signal.SIGTERM)
    with tempfile.TemporaryDirectory(prefix="ray", dir=short, ignore_cleanup_errors=True) as private:
        import ray

        own: dict[str, Any] = {
            "address": "local",
            "include_dashboard": False,
            "object_store_memory": 2**28,  # bytes, shared by Ray's processes: only names pass through it, no texts
            "_temp_dir": f"{private}/r",
        }
        try:
            for last in (False, False, True):  # its parts have 15 seconds, too little on a busy machine
                try:
                    with silent():  # Ray reports even that its log level was set
                        ray.init(**own if local else {}, log_to_driver=False, logging_level=logging.ERROR)
                    break
                except Exception as error:  # Ray has no class of its own for this
                    if last:
                        raise RuntimeError(f"Ray did not start: {error}; if the machine is busy, try later") from error
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, terminate)  # Ray's handler ends the process silently
            import ray.data  # which sets up its logger

            logging.getLogger("ray.data").setLevel(logging.ERROR)
            yield
        finally:
            ray.shutdown()
            for name in added:
                os.environ.pop(name, None)


@contextmanager
def silent() -> Iterator[None]:
    """Discard what this process and its C++ libraries write to standard error."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def share_of_cluster(
    device: str | torch.device, workers: int | None = None, most: int | None = None
) -> tuple[int, int, dict[str, Any]]:
    """Return the number of workers, the threads of each, and the resources that each requests from Ray.

    There is one worker per core or GPU of the cluster, or `most` workers with more threads; more workers than GPUs
    share them. Together they request one core less than each machine has: if actors reserved all, no core would be left
    for the tasks that read, and Ray would wait forever. Raises ValueError for more workers than cores, and for no GPU.
    """
    import ray

    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cores = [int(machine["CPU"]) for machine in machines if machine.get("CPU", 0) >= 1]
    gpus = sum(int(machine.get("GPU", 0)) for machine in machines)
    on_gpu = str(device).startswith("cuda") or (device == "auto" and gpus > 0)
    available = gpus if on_gpu else sum(cores)
    if not available or not cores or (workers is not None and not 1 <= workers <= sum(cores)):
        raise ValueError(f"workers is {workers} on {device}, and Ray has {sum(cores)} cores and {gpus} GPUs")
    count = min(workers or available, most or sum(cores))
    num_gpus = 1 / math.ceil(count / gpus) if on_gpu else 0
    threads = max(1, min(min(cores), sum(cores) // count))
    requested = threads * (min(cores) - 1) / min(cores)
    return count, threads, {"num_cpus": math.floor(requested * 1000) / 1000, "num_gpus": num_gpus}
