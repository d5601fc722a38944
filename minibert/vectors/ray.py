"""Corpora by Ray Data, which hands the work to many processes and machines; each worker has a model of its own.

    shards that are not done -> one row of a job each -> a worker embeds it whole (shards.py) -> the manifest

embed_shards: files in, Parquet out, and a run that was stopped goes on. One shard is one row of the job, because that
is what survives everything: where a worker is killed, Ray gives its shard to another, and since a shard appears by a
rename, nothing is lost or doubled; where the whole run is killed, the shards say what is done.
embed_dataset: a ray.data.Dataset in, one with a vector column out, for pipelines that are Ray's already.

Ray is that of this process if it runs, the cluster that RAY_ADDRESS names, or one of this machine, started and ended
here. That one listens to this machine alone, under a token of its own, sends nothing home and keeps no logs. On a
cluster, all machines see the same files under the same names, and have minibert and the checkpoint.

What 100 million lines cost, computed and not measured:

    seconds = lines x tokens a line / (tokens a second of one machine x machines)

Two cores (AMD EPYC, Zen 4) encode 8,940 tokens a second with all-MiniLM-L6-v2 in float32: 47,646 tokens in 5.33 s, of
2,000 sentences of SST-2, with 23.8 tokens each (`minibert demo`). So 100 million of them take

    machines of two cores    1      10      100
    time                     74 h   7.4 h   44 min

and their vectors 154 GB. On one machine of two cores Ray with two workers was as quick as `minibert embed`: 614 and 621
rows a second after the start against 608 and 580, in turns, of 20,000 sentences of SST-2 in 12 files.
More machines help as long as there are several shards for each worker: the last ones to end are waited for, a shard
each at the most.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Unpack

import torch
from tqdm import tqdm

from minibert.device import choose_device
from minibert.text.texts import TEXTS
from minibert.text.tokenized import TokenStats
from minibert.vectors.embedder import Embedder
from minibert.vectors.recipe import Recipe, Settings, spelled
from minibert.vectors.shard_folder import ShardFolder
from minibert.vectors.shards import (
    Columns,
    Record,
    Shard,
    check_installed,
    check_shard,
    embed_shard,
    embedded,
    find_shards,
    in_portions,
    needed,
    text_names,
    texts_of,
    with_vectors,
)

STORE_BYTES = 2**28  # of memory that Ray's processes share: through it go the numbers of shards, not their texts
PRIVATE = {  # of a Ray that is started here
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # as on these two, its servers listen to this machine alone
    "RAY_AUTH_MODE": "token",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what Ray is going to do, and warns of until then
}
ATTEMPTS = 3  # to start it
REFUSED = (ValueError, TypeError, OSError)  # what a worker says of a shard; all else is a mistake of ours, or of Ray


@dataclass(frozen=True)
class Embedded:
    """What stands in a folder of shards that embed_shards wrote, and how it came about."""

    out: str
    shards: int
    rows: int
    width: int
    resumed_shards: int  # that an earlier run had done
    changed_shards: int  # that it had done from other texts, and that were computed again
    tokens: int  # of all rows, special tokens included
    truncated: int  # texts that were too long and lost their ends
    windowed: int  # texts that were too long and were read in several windows
    windows: int  # these windows
    workers: int
    rows_per_second: float  # of this run, from the first worker's first text on: without the start


# ---------------------------------------------------------------------------------------------------------------
# Files


@spelled
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
    **settings: Unpack[Settings],
) -> Embedded:
    """The shards that a pattern such as "corpus/*.parquet" means, each with a vector beside its columns, in `out`.

    out: a folder, new, empty, or of an earlier run, of which what is done is not done again: where a shard has
    changed since, it is computed anew, with a warning; other settings are refused; restart=True begins again. A shard
    keeps its name, and its rows their order: float32 vectors, FixedSizeList, in the column `vector`.
    text, pair, format: the columns of texts and of second texts, and how the files are read, see text.tables.
    workers: models at work at once; None: one for each core, or for each GPU. keep_order: shards are computed in the
    order of their names, else the largest first, so that the workers end together.
    model is a Hub name or a folder, device as for `embed`, on the machine that calls; settings: those of a Recipe.
    Raises ImportError without the extra `ray`; FileNotFoundError where the pattern means nothing; ValueError, with
    the file, the row or the column, for what is wrong with a shard, most of it before a worker starts; RuntimeError
    where Ray fails, or another process writes to `out`; and what `embed` raises.
    """
    for package in ("pyarrow", "ray"):
        check_installed(package)
    columns = Columns(None if text is None else str(text), None if pair is None else str(pair), format)
    if Path(out).suffix == ".npy":
        raise ValueError(f"out is {out}; shards go to a folder")
    shards = find_shards(os.fspath(pattern), Path(out))
    embedder = embedder_of(model, Recipe(**settings), device)
    for shard in tqdm(shards, desc="check", unit="shard", delay=2, disable=None):
        check_shard(shard, columns, embedder.recipe.missing)
    identity = embedder.identity | {"text": columns.text, "pair": columns.pair}
    facts = {"model": os.fspath(model), "width": embedder.width}
    used = 0
    with ShardFolder(Path(out), shards, identity, facts, restart) as folder:
        if folder.changed:
            first = shards[folder.changed[0]].source
            warnings.warn(
                f"shards that have changed are computed again: {len(folder.changed)}, the first is {first}",
                stacklevel=2,
            )
        todo = list(folder.todo)
        if todo:
            with session():
                used = run(folder, embedder, columns, workers, keep_order)
    embedder.warn(folder.account)
    return summary(folder, todo, embedder.width, used)


def run(folder: ShardFolder, embedder: Embedder, columns: Columns, workers: int | None, keep_order: bool) -> int:
    """Let Ray's workers do what is to do in a folder; returns how many workers there were."""
    data = needed("ray.data")
    order = folder.todo if keep_order else sorted(folder.todo, key=lambda n: -os.path.getsize(folder.shards[n].source))
    share = Share.of(embedder.device, workers, len(order))
    given = {"embedder": embedder, "shards": folder.shards, "columns": columns, "settings": folder.settings}
    with quiet_data():
        numbers = data.from_items([{"number": number} for number in order], override_num_blocks=len(order))
        replies = numbers.map_batches(
            ShardWorker,
            batch_size=1,
            fn_constructor_kwargs=given | {"threads": share.threads},
            compute=data.ActorPoolStrategy(size=share.workers, max_tasks_in_flight_per_actor=1),
            **share.resources,
        )
        replies.context.execution_options.preserve_order = keep_order
        done = len(folder.shards) - len(order)
        bar = tqdm(total=len(folder.shards), initial=done, desc="embed", unit="shard", delay=2, disable=None)
        try:
            with bar:
                for reply in replies.iter_rows():
                    folder.add(*read_reply(reply["reply"]))
                    bar.update()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"{bar.n:,} of {len(folder.shards):,} shards are kept; the same command goes on"
            ) from None
        except needed("ray.exceptions").RayError as error:
            raise RuntimeError(f"Ray failed: {error}; what is done is kept, and the same command goes on") from error
    return share.workers


class ShardWorker:
    """A process with a model of its own, called with numbers of shards."""

    def __init__(
        self,
        embedder: Embedder,
        shards: Sequence[Shard],
        columns: Columns,
        settings: dict[str, Any],
        threads: int,
    ) -> None:
        use_threads(threads)
        self.embedder, self.shards, self.columns, self.settings = embedder, shards, columns, settings
        with suppress(*REFUSED):  # which the first shard meets again, and then replies
            embedder.engine.check(embedder.recipe)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """The replies, as JSON."""
        return {"reply": [json.dumps(self.reply(int(number))) for number in batch["number"]]}

    def reply(self, number: int) -> dict[str, Any]:
        """Embed a shard; its Record, or what is wrong with it, which as an exception would end in pages of Ray's."""
        try:
            record = embed_shard(self.shards[number], self.columns, self.embedder, self.settings)
        except REFUSED as error:
            return {"number": number, "refused": str(error)}
        return {"number": number, "record": asdict(record)}


def read_reply(reply: str) -> tuple[int, Record]:
    """The number of a shard, and its Record. Raises ValueError for what its worker refused."""
    content = json.loads(reply)
    if "refused" in content:
        raise ValueError(content["refused"])
    return content["number"], Record.read(content["record"])


def summary(folder: ShardFolder, todo: list[int], width: int, workers: int) -> Embedded:
    """What is in the folder, in numbers."""
    account, records = folder.account, folder.records
    new = [record for number in todo if (record := records[number]) is not None]
    seconds = max((r.began + r.seconds for r in new), default=0) - min((r.began for r in new), default=0)
    return Embedded(
        str(folder.out),
        len(records),
        account.texts,
        width,
        len(records) - len(todo),
        len(folder.changed),
        account.tokens,
        account.truncated,
        account.windowed,
        account.windows,
        workers,
        round(sum(record.account.texts for record in new) / seconds, 1) if new else 0.0,
    )


# ---------------------------------------------------------------------------------------------------------------
# Datasets


@spelled
def embed_dataset(
    dataset: Any,
    text: str | None = None,
    model: str | os.PathLike[str] = "distilbert-base-uncased",
    *,
    pair: str | None = None,
    device: str | torch.device = "auto",
    workers: int | None = None,
    keep_order: bool = False,
    **settings: Unpack[Settings],
) -> Any:
    """A ray.data.Dataset with the column `vector` added: float32, width D, each the vector of the text in its row.

    Nothing is computed until the dataset that is returned is read or written; within a block, rows keep their order.
    text, pair: the columns of texts and of second texts; None: sentence, text, or the only one. workers: models at
    work at once; None: one for each core, or for each GPU. keep_order: blocks come out in the order in which they went
    in (preserve_order of Ray's execution options); else as they are done.
    model is a Hub name or a folder that all machines have, device as for `embed`; settings: those of a Recipe.
    Raises ImportError without the extra `ray`, ValueError for a dataset without such columns, and what `embed` raises;
    when it is computed, Ray's error with the ValueError in it for a null. What is cut off is warned of in Ray's logs.
    """
    for package in ("pyarrow", "ray"):
        check_installed(package)
    columns = Columns(text, pair)
    embedder = embedder_of(model, Recipe(**settings), device)
    embedder.engine.check(embedder.recipe)
    schema = getattr(dataset.schema(), "base_schema", None)
    if isinstance(schema, needed("pyarrow").Schema):  # else of pandas, whose types tell nothing of what is in them
        text_names(schema, columns, "the dataset")
    share = Share.of(embedder.device, workers)
    made = dataset.map_batches(
        TableWorker,
        batch_size=TEXTS,
        batch_format="pyarrow",
        fn_constructor_kwargs={"embedder": embedder, "columns": columns, "threads": share.threads},
        compute=needed("ray.data").ActorPoolStrategy(size=share.workers),
        **share.resources,
    )
    if keep_order:
        made.context.execution_options.preserve_order = True
    return made


class TableWorker:
    """A process with a model of its own, called with tables."""

    def __init__(self, embedder: Embedder, columns: Columns, threads: int) -> None:
        use_threads(threads)
        self.embedder, self.columns = embedder, columns

    def __call__(self, table: Any) -> Any:
        """The table with a vector in each row, (n, D)."""
        where = "a block of the dataset"
        rows = texts_of(table, text_names(table.schema, self.columns, where), self.embedder.recipe.missing, where)
        made = list(embedded(in_portions(table, rows), self.embedder, where))
        self.embedder.warn(sum((account for _, _, account in made), TokenStats()))
        parts = [with_vectors(part, vectors, self.embedder.width) for part, vectors, _ in made]
        empty = with_vectors(table.schema.empty_table(), None, self.embedder.width)
        return needed("pyarrow").concat_tables([empty, *parts])


# ---------------------------------------------------------------------------------------------------------------
# Ray


@contextmanager
def session() -> Iterator[None]:
    """Ray while it is needed: what runs in this process already, the cluster of RAY_ADDRESS, or one of its own."""
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if "ray" in sys.modules and needed("ray").is_initialized():
        yield
    elif os.environ.get("RAY_ADDRESS"):
        ray = needed("ray")
        ray.init(**quiet)
        try:
            yield
        finally:
            ray.shutdown()
    else:
        with environment(PRIVATE | {"RAY_AUTH_TOKEN": secrets.token_hex(32)}), short_folder() as folder:
            ray = needed("ray")
            try:
                start(ray, _temp_dir=folder, include_dashboard=False, object_store_memory=STORE_BYTES, **quiet)
                yield
            finally:
                ray.shutdown()


def start(ray: Any, **settings: Any) -> None:
    """Start a Ray of our own. It gives its parts 15 seconds to come up, which a busy machine may not have: so thrice.

    Raises RuntimeError where that does not help.
    """
    for attempt in range(ATTEMPTS):
        try:
            with silent():  # that it will be silent is the first thing that it says
                ray.init("local", **settings)
            return
        except Exception as error:  # of no class of its own
            if attempt + 1 == ATTEMPTS:
                raise RuntimeError(f"Ray did not start: {error}; on a machine that is busy, try again later") from error


@contextmanager
def short_folder() -> Iterator[str]:
    """A folder for Ray's files, which Ray opens to all, in one that only this user can enter, and that is removed.

    Not in TMPDIR, which may be long: the names of its sockets have to be short.
    """
    with tempfile.TemporaryDirectory(
        prefix="ray", dir="/tmp" if os.path.isdir("/tmp") else None, ignore_cleanup_errors=True
    ) as folder:
        yield os.path.join(folder, "r")


@contextmanager
def silent() -> Iterator[None]:
    """Let nothing of this process reach standard error, not from libraries in C++ either."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Variables that are set for a while, but for those that the user has set."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def quiet_data() -> Iterator[None]:
    """Without Ray Data's own progress bars and reports."""
    context, log = needed("ray.data").DataContext.get_current(), logging.getLogger("ray.data")
    before = context.enable_progress_bars, log.level
    context.enable_progress_bars = False
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        context.enable_progress_bars, level = before
        log.setLevel(level)


@dataclass(frozen=True)
class Share:
    """How many workers there are, how many threads each computes with, and what it asks of Ray."""

    workers: int
    threads: int
    resources: dict[str, float]

    @classmethod
    def of(cls, device: str | torch.device, workers: int | None = None, most: int | None = None) -> Share:
        """One worker for each core or GPU of the cluster, and no more than `most`, who then have more threads.

        Together they ask for one core less than each machine has: where actors ask for all, nothing is left for the
        tasks that read, and Ray waits for ever. Raises ValueError for a number of workers for which there is no room.
        """
        machines = [node["Resources"] for node in needed("ray").nodes() if node["Alive"]]
        cores = [int(machine["CPU"]) for machine in machines if machine.get("CPU", 0) >= 1]
        on_gpu = str(device).startswith("cuda")
        room = sum(int(machine.get("GPU", 0)) for machine in machines) if on_gpu else sum(cores)
        if workers is not None and not 1 <= workers <= room:
            raise ValueError(f"workers is {workers}, and Ray has {room} {'GPUs' if on_gpu else 'cores'}, one for each")
        if not room or not cores:
            raise ValueError(f"device is {device}, and Ray has {room} {'GPUs' if on_gpu else 'cores'}")
        count = min(workers or room, most or room)
        threads = max(1, min(min(cores), sum(cores) // count))
        asked = threads * (min(cores) - 1) / min(cores)
        return cls(count, threads, {"num_cpus": math.floor(asked * 1000) / 1000, "num_gpus": int(on_gpu)})


def use_threads(threads: int) -> None:
    """Compute with so many threads; OMP_NUM_THREADS, which Ray sets, does not hold torch back."""
    torch.set_num_threads(threads)
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))  # those of the tokenizers library


def embedder_of(model: str | os.PathLike[str], recipe: Recipe, device: str | torch.device) -> Embedder:
    """What every worker gets: it finds the checkpoint by its name, and takes it only with the same hashes."""
    name = os.fspath(model)
    return Embedder(os.path.abspath(name) if os.path.isdir(name) else name, recipe, choose_device(device))
