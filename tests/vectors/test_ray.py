"""Corpora by Ray: the vectors of `embed`, whatever is killed on the way. One Ray for all tests but the last ones."""

import importlib
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from support.emulated_device import emulated_device
from support.engine import round_products
from support.shards import TEXTS, matrix, write_shard

import minibert
from minibert.text.tokenized import TruncationWarning
from minibert.utils import device as device_module
from minibert.vectors import ray as module
from minibert.vectors import shards
from minibert.vectors.loading import load_checkpoint
from minibert.vectors.ray import ShardWorker, add_row, embed_shards
from minibert.vectors.shards import Columns, Shard, find_shards, finished

# Ray Data sets these settings of its own when it makes its context, and warns of them.
pytestmark = pytest.mark.filterwarnings("ignore:.use_\\w+. is deprecated:DeprecationWarning")
LONG = 40  # times TEXTS in a shard that takes a while


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    """Ray as embed_shards starts it, with which all these tests work."""
    usual = signal.getsignal(signal.SIGTERM)
    with module.session():
        import ray

        yield ray
    assert signal.getsignal(signal.SIGTERM) is usual  # not Ray's, which ends a process without a word
    assert [process for process in psutil.Process().children(recursive=True) if "ray" in process.name()] == []


def write_corpus(folder: Path, count: int = 3, times: int = 1) -> str:
    for number in range(count):
        write_shard(folder / "corpus" / f"{number}.parquet", TEXTS[number:] * times, rows=100)
    return f"{folder}/corpus/*.parquet"


def assert_whole(folder: Path, checkpoint: Path, count: int = 3, times: int = 1) -> None:
    """Every shard is there with all columns, rows and vectors, each once and in order, and nothing else."""
    names = [f"{number}.parquet" for number in range(count)]
    assert sorted(os.listdir(folder / "out")) == [*names, "_manifest.json"]
    whole = pandas.read_parquet(folder / "out")  # which skips the manifest
    assert len(whole) == sum(len(TEXTS[number:]) for number in range(count)) * times and "vector" in whole.columns
    vectors = minibert.embed(TEXTS, checkpoint)
    for number, name in enumerate(names):
        made = pq.read_table(folder / "out" / name)
        assert made.drop_columns("vector") == pq.read_table(folder / "corpus" / name)
        np.testing.assert_allclose(matrix(made), np.concatenate([vectors[number:]] * times), rtol=0, atol=1e-5)


# -- files


@pytest.mark.slow
@pytest.mark.usefixtures("running")
def test_where_workers_are_killed_nothing_is_lost_or_doubled_and_a_second_run_has_nothing_to_do(
    tmp_path, checkpoint, monkeypatch
):
    killed = set()

    def kill_two():
        """SIGKILL workers while they write a shard."""
        while len(killed) < 2:
            writing = {str(path) for path in tmp_path.glob("out/.*.parquet.*") if path.stat().st_size}
            for process in psutil.Process().children(recursive=True) if writing else []:
                with suppress(psutil.Error):  # it has ended since
                    if writing & {file.path for file in process.open_files()}:
                        process.kill()
                        killed.add(process.pid)
            time.sleep(0.01)

    pattern = write_corpus(tmp_path, 4, LONG)
    threading.Thread(target=kill_two, daemon=True).start()
    done = embed_shards(pattern, tmp_path / "out", checkpoint, text="body")
    assert len(killed) >= 2
    assert_whole(tmp_path, checkpoint, 4, LONG)
    assert (done.shards, done.rows, done.width, done.resumed_shards, done.truncated) == (4, 102 * LONG, 24, 0, 0)
    monkeypatch.setattr(module, "session", None)  # a call would fail
    again = embed_shards(pattern, tmp_path / "out", checkpoint, text="body")
    assert (again.rows, again.resumed_shards) == (102 * LONG, 4)


@pytest.mark.slow
@pytest.mark.usefixtures("running")
def test_what_only_a_worker_finds_is_one_clear_error_and_what_is_done_stays(tmp_path, checkpoint, request):
    pattern = write_corpus(tmp_path)
    pq.write_table(pa.table({"body": ["good", None]}), tmp_path / "corpus" / "bad.parquet", write_statistics=False)
    with pytest.raises(ValueError, match=r"bad\.parquet, row 2\b.*null.*'body'") as caught:
        embed_shards(pattern, tmp_path / "out", checkpoint, text="body", workers=1)
    assert "\n" not in str(caught.value)
    assert "0.parquet" in os.listdir(tmp_path / "out")  # the largest first
    write_shard(tmp_path / "corpus" / "bad.parquet", ["good " * 40, "bad"])
    request.getfixturevalue("here")
    with pytest.warns(TruncationWarning, match=r"^1 of 80 texts"):
        done = embed_shards(pattern, tmp_path / "out", checkpoint, text="body")
    assert 0 < done.resumed_shards < 4


def row_of(shard: Shard, embedder: minibert.Embedder, *given: Any) -> dict[str, str]:
    """What a worker returns, which gets the embedder as Ray sends it."""
    worker = ShardWorker(pickle.loads(pickle.dumps(embedder)), *given, torch.get_num_threads())
    return worker(asdict(shard))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Shards are embedded in this process, without Ray; the names of the shards of each run."""
    ran = []

    def run(shards, done, embedder, *given):
        left = [shard for shard in shards if shard not in done]
        ran.append([Path(shard.source).name for shard in left])
        embedder.device = "cpu" if embedder.device == "cuda" else embedder.device
        for shard in left:
            add_row(done, row_of(shard, embedder, *given[:2]))

    monkeypatch.setattr(module, "session", nullcontext)
    monkeypatch.setattr(module, "run", run)
    return ran


def test_only_missing_and_changed_shards_are_computed_and_other_settings_refused(tmp_path, checkpoint, here):
    pattern, out = write_corpus(tmp_path), tmp_path / "out"
    embed_shards(pattern, out, checkpoint, text="body")
    write_shard(tmp_path / "corpus" / "1.parquet", TEXTS[1:], rows=7)
    (out / "2.parquet").unlink()
    for name in (".2.parquet.123d0abc", ".2.parquet.0123abcd", ".notes.parquet.txt"):  # two of workers that were killed
        (out / name).write_bytes(b"x")
    done = embed_shards(pattern, out, checkpoint, text="body")
    assert (here[1], done.resumed_shards, done.rows) == (["1.parquet", "2.parquet"], 1, 78)
    (out / ".notes.parquet.txt").unlink()
    assert_whole(tmp_path, checkpoint)
    with pytest.raises(ValueError, match=r"pooling 'cls'.*'mean'.*restart=True"):
        embed_shards(pattern, out, checkpoint, text="body", pooling="mean")
    embed_shards(pattern, out, checkpoint, text="body", pooling="max", restart=True)
    assert len(here[-1]) == 3
    with pytest.raises(ValueError, match="words"):
        embed_shards(pattern, Path(checkpoint) / "out", checkpoint, text="body")


def test_the_precision_is_that_of_the_workers(tmp_path, checkpoint, here, monkeypatch):
    """The device of the workers is faked: a CPU that multiplies bfloat16. This machine identifies the model alone."""
    pattern, out = write_corpus(tmp_path), tmp_path / "out"
    monkeypatch.setattr(device_module, "has_bfloat16", lambda device: True)
    how = {"text": "body", "device": "cuda", "precision": "auto"}
    assert embed_shards(pattern, out, checkpoint, **how).description.endswith("computed in bfloat16")
    for path in out.glob("*.parquet"):
        footer = Shard("", str(path)).footer
        assert (footer["precision"], footer["settings"]["precision"]) == ("torch.bfloat16", "auto")
    (out / "2.parquet").unlink()
    monkeypatch.setattr(device_module, "has_bfloat16", lambda device: False)
    load_checkpoint.cache_clear()
    for _ in range(2):  # found when it arrives, and when it is there
        with pytest.raises(ValueError, match=r"0\.parquet .*torch\.bfloat16\b.*2\.parquet .*torch\.float32"):
            embed_shards(pattern, out, checkpoint, **how)
    assert here == [["0.parquet", "1.parquet", "2.parquet"], ["2.parquet"]]
    assert embed_shards(pattern, out, checkpoint, restart=True, **how).description.endswith("computed in float32")
    with pytest.raises(ValueError, match=r"float16 .*CUDA"):  # the worker's error, which has none here
        embed_shards(pattern, tmp_path / "other", checkpoint, **how | {"precision": "float16"})


@pytest.mark.parametrize("stated_by", ["worker", "caller"])
def test_shards_of_a_worker_that_rounds_further_are_not_alike(stated_by, tmp_path, checkpoint, monkeypatch):
    """TF32 on the emulated device. Negative control: with the precision of the machine that calls they seem alike."""
    write_corpus(tmp_path)
    found = find_shards(f"{tmp_path}/corpus/*.parquet", tmp_path / "out")
    embedder, columns, done = minibert.Embedder(checkpoint, device="cpu"), Columns("body"), dict[Shard, Any]()
    settings = identity = embedder.identity | {"precision": "float32"}
    embedder.device = "gpu"
    if stated_by == "caller":
        monkeypatch.setattr(minibert.Embedder, "identity", identity)
    with emulated_device():
        for shard in found[:2]:
            add_row(done, row_of(shard, embedder, columns, settings))
        round_products(monkeypatch)
        load_checkpoint.cache_clear()
        with pytest.warns(UserWarning, match="fewer digits"):
            row = row_of(found[2], embedder, columns, settings)
    refused = pytest.raises(ValueError, match=r"0\.parquet .*torch\.float32\b.*2\.parquet .*torch\.reduced")
    with refused if stated_by == "worker" else nullcontext():
        add_row(done, row)
    assert done.keys() == set(found)
    with refused if stated_by == "worker" else nullcontext():
        finished(found, settings)


@pytest.mark.slow
def test_a_dataset_is_mapped_by_an_embedder(running, checkpoint):
    dataset, embedder = running.data.from_arrow(pa.table({"body": TEXTS})), minibert.Embedder(checkpoint)
    made = dataset.map_batches(lambda batch: batch | {"vector": embedder(batch["body"])})
    found = {row["body"]: row["vector"] for row in made.iter_rows()}
    np.testing.assert_allclose([found[text] for text in TEXTS], embedder(TEXTS), rtol=0, atol=1e-5)


# -- Ray


@pytest.mark.slow
def test_workers_leave_a_core_for_those_that_read(running, monkeypatch):
    def share(nodes, device="cpu", *given):
        monkeypatch.setattr(running, "nodes", lambda: [{"Alive": True, "Resources": node} for node in nodes])
        workers, threads, resources = module.share_of_cluster(device, *given)
        return workers, threads, resources["num_cpus"], resources["num_gpus"]

    two_gpus = [{"CPU": 8, "GPU": 2}]
    for given, expected in (
        (([{"CPU": 1}],), (1, 1, 0.0, 0)),
        (([{"CPU": 2}], "auto"), (2, 1, 0.5, 0)),
        (([{"CPU": 2}], "cpu", None, 1), (1, 2, 1.0, 0)),
        (([{"CPU": 8}, {"CPU": 8}, {"CPU": 0}],), (16, 1, 0.875, 0)),
        (([{"CPU": 8}, {"CPU": 4}], "cpu", 3), (3, 4, 3.0, 0)),
        ((two_gpus, "auto"), (2, 4, 3.5, 1)),
        ((two_gpus, "auto", 3), (3, 2, 1.75, 0.5)),  # a fraction of a GPU each
    ):
        assert share(*given) == expected, given
    for cores in (1, 2, 3, 7, 64):  # negative control: with a core for each worker none is left
        workers, _, num_cpus, _ = share([{"CPU": cores}])
        assert cores - workers * num_cpus >= 0.99
    for device, wanted, message in (("cpu", 3, "3 on cpu, and Ray has 2 cores"), ("cuda", None, "None on cuda")):
        with pytest.raises(ValueError, match=rf"workers is {message}"):
            share([{"CPU": 2}], device, wanted)


@pytest.mark.slow
def test_ray_listens_to_this_machine_alone_and_asks_for_a_token(running):
    listening = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended since
            found = process.net_connections("inet")
            listening += [one.laddr for one in found if one.status == psutil.CONN_LISTEN]
    assert listening
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


@pytest.mark.parametrize("package", ["ray", "pyarrow"])
def test_without_the_extra_the_error_says_how_to_install_it(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{package}\b.*pip install"):
        importlib.reload(shards)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--dtype", "float16"], r"--dtype is float16\b.*--engine ray .*float32"),
        (["--engine", "local", "--keep-order"], r"--workers and --keep-order.*--engine"),
        (["--text", "title"], r"'title'.*'id', 'body'"),
        (["--pooling", "best"], "pooling is 'best'"),
        (["--out", "."], "--out"),
    ],
)
def test_the_command_refuses_what_is_wrong_before_ray_starts(tmp_path, checkpoint, monkeypatch, run, given, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "session", None)
    command = ["embed", write_corpus(tmp_path), "--engine", "ray", "--out", "out", "--model", checkpoint]
    assert re.search(message, run(*command, *(["--text", "body"] if "--text" not in given else []), *given, status=2))
    assert os.listdir(tmp_path) == ["corpus"]


@pytest.mark.slow
def test_the_command_works_on_a_cluster_that_runs(running, tmp_path, checkpoint):
    from ray._private import state

    jobs, pattern = len(state.jobs()), write_corpus(tmp_path)
    given = ["embed", pattern, "--text", "body", "--out", str(tmp_path / "out"), "--model", checkpoint, "--keep-order"]
    subprocess.run(
        [sys.executable, "-m", "minibert", *given, "--engine", "ray"],
        check=True,
        env=os.environ | {"RAY_ADDRESS": running.get_runtime_context().gcs_address},  # with its token
    )
    assert_whole(tmp_path, checkpoint)
    assert len(state.jobs()) == jobs + 1


@pytest.mark.filterwarnings("ignore:.* holds no texts")
def test_files_without_texts_are_refused_before_ray_starts(checkpoint, tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"\*\.txt"):
        embed_shards(tmp_path / "*.txt", tmp_path / "out", checkpoint)
    assert not (tmp_path / "out").exists()
