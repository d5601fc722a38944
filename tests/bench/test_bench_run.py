"""A whole run of the benchmark on a tiny random checkpoint, and backends that return wrong vectors."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from words import write_words_checkpoint

import minibert
from minibert.bench import growth, run, session
from minibert.bench.backends import ON_CPU, Backend, Loaded, Setting, load_ours
from minibert.bench.processes import LostError, Worker
from minibert.cli import main as cli

TINY = dataclasses.replace(session.QUICK, rounds=2, short=1, starts=0, threads=1)
NAMED = {backend.name: backend for backend in ON_CPU}
PAIR = (NAMED["minibert-float32"], NAMED["transformers-sorted"])


class Here:
    """A worker in this process, in place of one of its own: quick, with the same answers."""

    def __init__(self, threads: int) -> None:
        self.worker = Worker()

    def ask(self, request: str, *arguments: Any, **options: Any) -> Any:
        try:
            return getattr(self.worker, request)(*arguments, **options)
        except (RuntimeError, ValueError, KeyError) as error:
            raise LostError(f"{type(error).__name__}: {error}") from None

    def close(self) -> None:
        """Nothing to end."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_words_checkpoint(tmp_path_factory.mktemp("words"), max_position_embeddings=64)
    minibert.load_tokenizer(folder).save(folder)  # the form that transformers reads
    return folder


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    for room in (run, growth):
        monkeypatch.setattr(room, "Process", Here)
    monkeypatch.delenv("MINIBERT_DATA", raising=False)


def take_part(monkeypatch: pytest.MonkeyPatch, *backends: Backend) -> None:
    monkeypatch.setattr(run, "backends_for", lambda device, quick: list(backends))


def measure(checkpoint: Path, **changes: Any) -> Any:
    plan = dataclasses.replace(TINY, models=(str(checkpoint),), sentences=40, **changes)
    return run.measure(str(checkpoint), plan)


def test_a_quick_run_in_processes_of_their_own(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MINIBERT_DATA", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    take_part(monkeypatch, *PAIR)
    monkeypatch.setattr(session, "QUICK", TINY)
    argv = ["bench", "--quick", "--model", str(checkpoint), "--sentences", "40", "--threads", "1", "--json"]
    status = cli.main(argv)
    out = capsys.readouterr().out
    assert status == 0, out
    figures = json.loads(out.splitlines()[-1])
    rows = figures["models"][0]["rows"]
    assert [row["ranked"] for row in rows] == [True, True], rows
    assert len(rows[0]["samples"]) == 2
    assert rows[0]["peak_bytes"] > 0
    assert rows[0]["equality"]["difference"] < 1e-4
    assert "F.linear" in rows[0]["kernels"] or "oneDNN" in rows[0]["kernels"]
    assert rows[1]["ratio"]["median"] > 0
    assert rows[0]["share_of_roofline"]["median"] > 0
    assert len(figures["models"][0]["one_sentence"]) == 1
    assert figures["goals"]
    assert list(tmp_path.iterdir()) == []


def test_a_terminated_run_leaves_no_folder_and_no_process(checkpoint: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "minibert", "bench", "--quick", "--model", str(checkpoint), "--threads", "1"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        while not any(tmp_path.iterdir()):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)  # which ends when no process holds its output any more
    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("here")
def test_every_row_is_there_those_that_cannot_run_with_a_reason(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Backend("broken", "Broken", "float32", lambda setting, _: load_ours(setting, "float3"), "minibert")
    everyone = [*ON_CPU, broken]
    take_part(monkeypatch, *everyone)
    obstacle = Backend.obstacle

    def installed(self: Backend, device: str) -> str:
        return obstacle(self, device) if self.package in ("minibert", "transformers") else "not installed"

    monkeypatch.setattr(Backend, "obstacle", installed)
    found = measure(checkpoint)
    assert [row.backend for row in found.rows] == everyone
    reasons = {row.backend.name: row.reason for row in found.rows}
    assert reasons["onnxruntime"] == "not installed"
    assert reasons["broken"].startswith("failed: ValueError")
    ran = [row for row in found.rows if not row.reason]
    names = {"minibert-float32", "transformers", "transformers-sorted", "tutorial"}
    assert names <= {row.backend.name for row in ran}
    assert all(row.equality.difference < 1e-4 for row in ran if row.backend.precision == "float32")
    assert all(len(row.samples) == (1 if row.backend.large else 2) for row in ran)
    assert len(found.one_sentence) == 1
    assert found.equal


def wrong_order(setting: Setting, precision: str) -> Loaded:
    encode, kernels = load_ours(setting, precision)
    return lambda texts: np.roll(encode(texts), 1, axis=0), kernels


def wrong_later(setting: Setting, precision: str) -> Loaded:
    """Right for the texts that are checked at first, wrong for all of them."""
    encode, kernels = load_ours(setting, precision)
    return lambda texts: encode(texts) + np.float32(0.01 * (len(texts) > 20)), kernels


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("load", [wrong_order, wrong_later])
def test_a_backend_with_wrong_vectors_is_not_ranked(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, load: Any
) -> None:
    take_part(monkeypatch, NAMED["minibert-float32"], Backend("wrong", "Wrong", "float32", load, "minibert"))
    monkeypatch.setattr(session, "CHECKED", 15)
    found = measure(checkpoint)
    right, wrong = found.rows
    assert right.ranked
    assert wrong.reason == "differs"
    assert not found.equal


@pytest.mark.usefixtures("here")
def test_a_conversion_that_fails_is_the_reason_of_whoever_reads_it(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path, out: Path) -> None:
        raise ValueError("no such operator")

    needy = Backend("needy", "Needy", "float32", load_ours, "minibert", "onnx")
    take_part(monkeypatch, NAMED["minibert-float32"], needy)
    monkeypatch.setitem(run.CONVERSIONS, "onnx", fail)
    ours, other = measure(checkpoint).rows
    assert ours.ranked
    assert other.reason == "not converted: ValueError: no such operator"


@pytest.mark.usefixtures("here")
def test_one_padded_batch_is_not_run_where_memory_is_short(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take_part(monkeypatch, NAMED["minibert-float32"], NAMED["tutorial"])
    monkeypatch.setattr(run, "available_bytes", lambda: 1000)
    assert "it needs" in measure(checkpoint).rows[1].reason


@pytest.mark.usefixtures("here")
def test_growth_with_each_thing(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take_part(monkeypatch, *PAIR)
    monkeypatch.setattr(growth, "TOKENS", {"cpu": 64})
    kinds = {"tokens in a text": (8, 64, 512), "sentences": (10, 20), "tokens in a batch": (64,), "threads": (1,)}
    found = measure(checkpoint, growth=kinds)
    points = {(one.what, one.backend.name): [point["at"] for point in one.points] for one in found.growth}
    assert points["tokens in a text", "transformers-sorted"] == [8, 64]  # the checkpoint has 64 positions
    assert points["sentences", "minibert-float32"] == [10, 20]
    assert points["tokens in a batch", "minibert-float32"] == [64]
    assert points["threads", "minibert-float32"] == points["threads", "transformers-sorted"] == [1]


@pytest.mark.usefixtures("here")
def test_what_cannot_grow_here_has_no_table(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take_part(monkeypatch, *PAIR)
    assert measure(checkpoint, growth={"tokens in a text": (512,)}).growth == []
