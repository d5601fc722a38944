"""Corpora by Ray Data, on many processes and machines; each worker has a model of its own.

    shards that are not done -> one row of a job each -> a worker embeds it whole (shards.py)

embed_shards: files in, Parquet out, and a run that was stopped resumes. One shard is one row of the job, because that
survives everything: if a worker is killed, Ray gives its shard to another, and since a shard appears by a rename,
nothing is lost or doubled; if the whole run is killed, the finished shards are there.
embed_dataset: a ray.data.Dataset in, one with a vector column out, for pipelines that use Ray already.

Ray is that of this process if it runs, the cluster of RAY_ADDRESS, or one of this machine, started and stopped here.
That one listens to this machine alone, under a token of its own, sends no usage statistics and keeps no logs. On a
cluster, all machines see the same files under the same names, and have minibert and the checkpoint.

The cost of 100 million lines, computed and not measured:

    seconds = lines x tokens a line / (tokens a second of one machine x machines)

Two cores (AMD EPYC, Zen 4) encode 8,940 tokens a second with all-MiniLM-L6-v2 in float32: 47,646 tokens in 5.33 s, of
2,000 sentences of SST-2, with 23.8 tokens each (`minibert demo`). So 100 million of them take

    machines of two cores    1      10      100
    time                     74 h   7.4 h   44 min

and their vectors 154 GB. On one machine of two cores Ray with two workers was as fast as `minibert embed`: 614 and 621
rows a second after the start against 608 and 580, in turns, of 20,000 sentences of SST-2 in 12 files.
More machines help as long as there are several shards for each worker: at the end, all wait for the last shards.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from minibert.device import choose_device
from minibert.text.texts import TEXTS
from minibert.text.tokenized import TokenStats
from minibert.vectors.embedder import Embedder
from minibert.vectors.parts import LOCK, MANIFEST, work_folder
from minibert.vectors.recipe import Recipe, with_settings
from minibert.vectors.shards import (
    Columns,
    Shard,
    check_installed,
    embed_shard,
    embedded,
    find_shards,
    in_chunks,
    read_shard,
    text_columns,
    with_vectors,
)

STORE_BYTES = 2**28  # of memory shared by Ray's processes: shard numbers pass through it, texts do not
ENVIRONMENT = {  # of a Ray that is started here
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # so that its servers listen to this machine alone there too
    "RAY_AUTH_MODE": "token",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's next default; it warns until then
}
ATTEMPTS = 3  # to start Ray, which gives its parts 15 seconds: too little on a busy machine


@dataclass(frozen=True)
class Embedded:
    """A folder of shards that embed_shards wrote, in numbers."""

    out: str
    shards: int
    rows: int
    width: int
    resumed_shards: int  # done by an earlier run
    tokens: int  # of all rows, special tokens included
    truncated: int  # texts that were too long and lost their ends
    windowed: int  # texts that were too long and were read in several windows
    windows: int  # these windows
    workers: int
    rows_per_second: float  # of this run, with the start of Ray and of its workers


# ---------------------------------------------------------------------------------------------------------------
# Files


@with_settings
def embed_shards(
    pattern: str | os.PathLike[str],
    out: str | os.PathLike[str],
    model: str | os.PathLike[str] = "distilbert-base-uncased",
    *,
    text: str | int | None = None,
    pair: str | int | None = None,
    format: str | None = None,
    device: str | torch.device = "auto",
    workers: int | None = None,
    keep_order: bool = False,
    restart: bool = False,
    **settings: Any,
) -> Embedded:
    """The shards of a pattern such as "corpus/*.parquet", each with a vector beside its columns, in the folder `out`.

    out: new, empty, or of an earlier run, whose finished shards are not computed again unless their source has changed.
    Other settings are refused; restart=True discards finished shards. A shard keeps its name, and its rows their
    order: float32 vectors, FixedSizeList, in the column `vector`.
    text, pair, format: the columns of texts and of second texts, and how the files are read, see text.tables.
    workers: models at work at once; None: one for each core, or for each GPU. keep_order: shards are computed in the
    order of their names, else the largest first, so that the workers finish together.
    model is a Hub name or a folder, device as for `embed`, on the machine that calls; settings: those of a Recipe.
    Raises ImportError without the extra `ray`; FileNotFoundError if the pattern matches nothing; ValueError, with
    the file, the row or the column, for what is wrong with a shard, most of it before a worker starts; RuntimeError
    if Ray fails, or another process writes to `out`; and what `embed` raises.
    """
    check_installed("pyarrow", "ray")
    folder = Path(out)
    if folder.suffix == ".npy":
        raise ValueError(f"out is {out}; shards go to a folder")
    columns = Columns(None if text is None else str(text), None if pair is None else str(pair), format)
    shards = find_shards(os.fspath(pattern), folder)
    embedder = embedder_of(model, Recipe(**settings), device)
    for shard in tqdm(shards, desc="check", unit="shard", delay=2, disable=None):
        next(read_shard(shard.source, columns, embedder.recipe.missing))
    identity = embedder.identity | {"text": columns.text, "pair": columns.pair}
    with work_folder(folder, identity, restart):
        remove_temporary_files(folder)
        for shard in shards if restart else ():
            Path(shard.out).unlink(missing_ok=True)
        ours = {Path(shard.out) for shard in shards} | {folder.absolute() / name for name in (MANIFEST, LOCK)}
        if others := sorted(set(filter(Path.is_file, folder.absolute().rglob("*"))) - ours):
            raise ValueError(f"{others[0]} is not the output of any input now; move it away, or put its source back")
        found = {shard: shard.stats(identity) for shard in shards}
        stats = {shard: count for shard, count in found.items() if count is not None}
        resumed, used, began = len(stats), 0, time.perf_counter()
        if left := [shard for shard in shards if shard not in stats]:
            job = {"embedder": embedder, "columns": columns, "settings": identity}
            with session():
                used = run(left, stats, job, workers, keep_order)
            remove_temporary_files(folder)
    total, before = sum(stats.values(), TokenStats()), sum(count.texts for count in found.values() if count)
    embedder.warn(total)
    return Embedded(
        out=str(out),
        shards=len(shards),
        rows=total.texts,
        width=embedder.width,
        resumed_shards=resumed,
        tokens=total.tokens,
        truncated=total.truncated,
        windowed=total.windowed,
        windows=total.windows,
        workers=used,
        rows_per_second=round((total.texts - before) / (time.perf_counter() - began), 1),
    )


def remove_temporary_files(folder: Path) -> None:
    """Remove what killed workers left of shards that they were writing."""
    for path in folder.rglob(".*.parquet.*"):
        path.unlink(missing_ok=True)


def run(
    shards: list[Shard], stats: dict[Shard, TokenStats], job: dict[str, Any], workers: int | None, keep_order: bool
) -> int:
    """Let Ray's workers embed the shards, adding to the stats of those that are done. Returns how many workers."""
    from ray import data, exceptions

    number_of_workers, threads, resources = share_of_cluster(job["embedder"].device, workers, len(shards))
    order = shards if keep_order else sorted(shards, key=lambda shard: -os.path.getsize(shard.source))
    rows = data.from_items([asdict(shard) for shard in order], override_num_blocks=len(order)).map_batches(
        ShardWorker,
        batch_size=1,
        fn_constructor_kwargs=job | {"threads": threads},
        compute=data.ActorPoolStrategy(size=number_of_workers, max_tasks_in_flight_per_actor=1),
        **resources,
    )
    rows.context.execution_options.preserve_order = keep_order
    rows.context.enable_progress_bars = False
    total = len(shards) + len(stats)
    bar = tqdm(total=total, initial=len(stats), desc="embed", unit="shard", delay=2, disable=None)
    try:
        with bar:
            for row in rows.iter_rows():
                if row["error"]:
                    raise ValueError(row["error"])
                stats[Shard(row["source"], row["out"])] = TokenStats(**json.loads(row["stats"]))
                bar.update()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{bar.n:,} of {total:,} shards are kept; the same command continues") from None
    except exceptions.RayError as error:
        raise RuntimeError(f"Ray failed: {error}; finished shards are kept, the same command continues") from error
    return number_of_workers


class ShardWorker:
    """A process with a model of its own, called with one shard at a time."""

    def __init__(self, embedder: Embedder, columns: Columns, settings: dict[str, Any], threads: int) -> None:
        use_threads(threads)
        self.embedder, self.columns, self.settings = embedder, columns, settings

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """Embed a shard and add its stats, or the error: raised, it would be pages of Ray's text."""
        shard, stats, error = Shard(str(batch["source"][0]), str(batch["out"][0])), TokenStats(), ""
        try:
            stats = embed_shard(shard, self.columns, self.embedder, self.settings)
        except (ValueError, TypeError, OSError) as caught:
            error = str(caught)
        return {
            "source": [shard.source],
            "out": [shard.out],
            "stats": [json.dumps(asdict(stats))],
            "error": [error],
        }


# ---------------------------------------------------------------------------------------------------------------
# Datasets


@with_settings
def embed_dataset(
    dataset: Any,
    text: str | None = None,
    model: str | os.PathLike[str] = "distilbert-base-uncased",
    *,
    pair: str | None = None,
    device: str | torch.device = "auto",
    workers: int | None = None,
    keep_order: bool = False,
    **settings: Any,
) -> Any:
    """A ray.data.Dataset with the column `vector` added: float32, width D, each the vector of the text in its row.

    Nothing is computed until the dataset that is returned is read or written; within a block, rows keep their order.
    text, pair: the columns of texts and of second texts; None: sentence, text, or the only one. workers: models at
    work at once; None: one for each core, or for each GPU. keep_order: blocks come out in the order of the input
    (preserve_order of Ray's execution options), else as they are done.
    model is a Hub name or a folder that all machines have, device as for `embed`; settings: those of a Recipe.
    Raises ImportError without the extra `ray`, ValueError for a dataset without such columns, and what `embed` raises;
    when it is computed, Ray's error with the ValueError in it for a null. What is cut off is warned of in Ray's logs.
    """
    check_installed("pyarrow", "ray")
    from pyarrow import Schema
    from ray.data import ActorPoolStrategy

    columns, embedder = Columns(text, pair), embedder_of(model, Recipe(**settings), device)
    embedder.engine.check(embedder.recipe)
    schema = getattr(dataset.schema(), "base_schema", None)
    if isinstance(schema, Schema):  # else of pandas, whose types do not tell what they hold
        text_columns(schema, columns, "the dataset")
    count, threads, resources = share_of_cluster(embedder.device, workers)
    result = dataset.map_batches(
        TableWorker,
        batch_size=TEXTS,
        batch_format="pyarrow",
        fn_constructor_kwargs={"embedder": embedder, "columns": columns, "threads": threads},
        compute=ActorPoolStrategy(size=count),
        **resources,
    )
    result.context.execution_options.preserve_order |= keep_order
    return result


class TableWorker:
    """A process with a model of its own, called with tables."""

    def __init__(self, embedder: Embedder, columns: Columns, threads: int) -> None:
        use_threads(threads)
        self.embedder, self.columns = embedder, columns

    def __call__(self, table: Any) -> Any:
        """The table with a vector in each row, (n, D)."""
        import pyarrow

        where, width = "a block of the dataset", self.embedder.width
        names = text_columns(table.schema, self.columns, where)
        chunks = in_chunks(table, names, self.embedder.recipe.missing, where)
        made = list(embedded(chunks, self.embedder, where))
        self.embedder.warn(sum((stats for _, _, stats in made), TokenStats()))
        empty = with_vectors(table.schema.empty_table(), None, width)
        return pyarrow.concat_tables([empty, *(with_vectors(part, vectors, width) for part, vectors, _ in made)])


# ---------------------------------------------------------------------------------------------------------------
# Ray


@contextmanager
def session() -> Iterator[None]:
    """Ray while it is needed: one that runs in this process, the cluster of RAY_ADDRESS, or one of its own."""
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        yield
        return
    own: dict[str, Any] = {}
    if not os.environ.get("RAY_ADDRESS"):
        own = {"address": "local", "include_dashboard": False, "object_store_memory": STORE_BYTES}
    variables = ENVIRONMENT | {"RAY_AUTH_TOKEN": secrets.token_hex(32)} if own else {}
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    # Ray opens its folder to all users, so it lies in one for this user alone; names of sockets must be short.
    short = "/tmp" if os.path.isdir("/tmp") else None
    with tempfile.TemporaryDirectory(prefix="ray", dir=short, ignore_cleanup_errors=True) as private:
        import ray

        where: dict[str, Any] = {"_temp_dir": f"{private}/r"} if own else {}
        try:
            for attempt in range(ATTEMPTS):
                try:
                    with silent():  # Ray reports even that its log level was set
                        ray.init(**own, **where, log_to_driver=False, logging_level=logging.ERROR)
                    break
                except Exception as error:  # Ray has no class for this
                    if attempt + 1 == ATTEMPTS:
                        raise RuntimeError(f"Ray did not start: {error}; if the machine is busy, try later") from error
            import ray.data  # which sets up its logger

            logging.getLogger("ray.data").setLevel(logging.ERROR)
            yield
        finally:
            ray.shutdown()
            for name in added:
                os.environ.pop(name, None)


@contextmanager
def silent() -> Iterator[None]:
    """Discard what this process writes to standard error, that of its C++ libraries included."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def share_of_cluster(
    device: str | torch.device, workers: int | None = None, most: int | None = None
) -> tuple[int, int, dict[str, Any]]:
    """How many workers there are, how many threads each computes with, and the resources it requests from Ray.

    One worker for each core or GPU of the cluster, at most `most`, which then have more threads. Together they request
    one core less than each machine has: if actors reserve all, nothing is left for the tasks that read, and Ray waits
    forever. Raises ValueError for more workers than cores or GPUs.
    """
    import ray

    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    cores = [int(machine["CPU"]) for machine in machines if machine.get("CPU", 0) >= 1]
    on_gpu = str(device).startswith("cuda")
    available = sum(int(machine.get("GPU", 0)) for machine in machines) if on_gpu else sum(cores)
    if not available or not cores or (workers is not None and not 1 <= workers <= available):
        raise ValueError(
            f"workers is {workers} on {device}, and Ray has {available} {'GPUs' if on_gpu else 'cores'}, one for each"
        )
    count = min(workers or available, most or available)
    threads = max(1, min(min(cores), sum(cores) // count))
    requested = threads * (min(cores) - 1) / min(cores)
    return count, threads, {"num_cpus": math.floor(requested * 1000) / 1000, "num_gpus": int(on_gpu)}


def use_threads(threads: int) -> None:
    """Compute with so many threads; OMP_NUM_THREADS, which Ray sets, does not limit torch."""
    torch.set_num_threads(threads)
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))  # those of the tokenizers library


def embedder_of(model: str | os.PathLike[str], recipe: Recipe, device: str | torch.device) -> Embedder:
    """The embedder for all workers: each finds the checkpoint by its name, and checks its hashes."""
    name = os.fspath(model)
    return Embedder(os.path.abspath(name) if os.path.isdir(name) else name, recipe, choose_device(device))
