"""A whole run of the benchmark on a tiny random checkpoint, and a contestant that returns wrong vectors."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from words import write_words_checkpoint

import minibert
from minibert import cli
from minibert.lab.bench import command, contestants, growth, run
from minibert.lab.bench.contestants import NAMED, Contestant, Ready, Setting, load_ours
from minibert.lab.bench.process import LostError
from minibert.lab.bench.worker import Worker

TINY = dataclasses.replace(command.PLANS["quick"], rounds=2, short=10, starts=0, threads=1)


class Here:
    """A worker in this process, in place of one of its own: quick, with the same answers."""

    def __init__(self, threads: int) -> None:
        self.worker = Worker()
        self.answers: list[Any] = []
        self.idle_wall = self.idle_cpu = 0.0

    def send(self, do: str, **arguments: Any) -> None:
        try:
            self.answers.append(self.worker.answer({"do": do, **json.loads(json.dumps(arguments))}))
        except (RuntimeError, ValueError, KeyError) as error:
            self.answers.append(LostError(f"{type(error).__name__}: {error}"))

    def receive(self) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, LostError):
            raise answer
        return answer

    def ask(self, do: str, **arguments: Any) -> Any:
        self.send(do, **arguments)
        return self.receive()

    def close(self) -> None:
        """Nothing to end."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_words_checkpoint(tmp_path_factory.mktemp("words"), max_position_embeddings=64)
    minibert.load_tokenizer(folder).save(folder)  # the form that transformers reads
    return folder


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    @contextmanager
    def running_here(threads: int) -> Iterator[Here]:
        yield Here(threads)

    threads = torch.get_num_threads()
    for room in (run, growth, command):
        monkeypatch.setattr(room, "running", running_here)
    monkeypatch.delenv("MINIBERT_DATA", raising=False)
    monkeypatch.setattr(run.Session, "start", start_here)
    yield
    torch.set_num_threads(threads)


def start_here(self: Any, name: str) -> Here:
    self.processes[name] = Here(1)
    return self.processes[name]


def take_part(monkeypatch: pytest.MonkeyPatch, *contestants: Contestant) -> None:
    for contestant in contestants:
        monkeypatch.setitem(NAMED, contestant.name, contestant)
    monkeypatch.setattr(run, "contestants_for", lambda device, quick: list(contestants))


def measure(checkpoint: Path, **changes: Any) -> Any:
    plan = dataclasses.replace(TINY, models=(str(checkpoint),), sentences=40, **changes)
    return command.measure(str(checkpoint), plan)


def test_a_quick_run_in_processes_of_their_own(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MINIBERT_DATA", raising=False)
    take_part(monkeypatch, NAMED["minibert-float32"])  # transformers runs as the reference
    monkeypatch.setitem(command.PLANS, "quick", TINY)
    argv = ["bench", "--quick", "--model", str(checkpoint), "--sentences", "40", "--threads", "1", "--json"]
    status = cli.main(argv)
    out = capsys.readouterr().out
    assert status == 0, out
    figures = json.loads(out.splitlines()[-1])
    rows = figures["models"][0]["rows"]
    assert [row["ranked"] for row in rows] == [True], rows
    assert len(rows[0]["samples"]) == 2
    assert rows[0]["peak_bytes"] > 0
    assert rows[0]["equality"]["difference"] < 1e-4
    assert "F.linear" in rows[0]["route"] or "oneDNN" in rows[0]["route"]
    assert figures["models"][0]["latency"]["minibert-float32"]["median"] > 0
    assert figures["goals"]


@pytest.mark.usefixtures("here")
def test_every_row_is_there_those_that_cannot_run_with_a_reason(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Contestant("broken", "Broken", "float32", lambda setting: load_ours(setting, "float3"), "minibert")
    take_part(monkeypatch, *contestants.ON_CPU, broken)
    everyone = [*contestants.ON_CPU, broken]
    monkeypatch.setattr(Contestant, "installed", property(lambda self: self.package in ("minibert", "transformers")))
    found = measure(checkpoint)
    assert [row.contestant for row in found.rows] == everyone
    reasons = {row.contestant.name: row.reason for row in found.rows}
    assert reasons["onnxruntime"] == "not installed"
    assert reasons["broken"].startswith("failed: ValueError")
    ran = [row for row in found.rows if not row.reason]
    names = {"minibert-float32", "transformers", "transformers-sorted", "tutorial"}
    assert names <= {row.contestant.name for row in ran}
    assert all(row.equality.difference < 1e-4 for row in ran if row.contestant.precision == "float32")
    assert all(len(row.samples) == (1 if row.contestant.alone else 2) for row in ran)
    assert found.latency_ratio.median > 0
    assert found.equal


def wrong_order(setting: Setting) -> Ready:
    ready = load_ours(setting, "float32")
    return Ready(lambda texts: np.roll(ready.encode(texts), 1, axis=0))


def wrong_later(setting: Setting) -> Ready:
    """Right for the texts that are checked at first, wrong for all of them."""
    ready = load_ours(setting, "float32")
    return Ready(lambda texts: ready.encode(texts) + np.float32(0.01 * (len(texts) > 20)))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("load", [wrong_order, wrong_later])
def test_a_contestant_with_wrong_vectors_is_not_ranked(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, load: Any
) -> None:
    take_part(monkeypatch, NAMED["minibert-float32"], Contestant("wrong", "Wrong", "float32", load, "minibert"))
    monkeypatch.setattr(run, "CHECKED", 15)
    found = measure(checkpoint)
    assert found.row("minibert-float32").ranked
    assert found.row("wrong").reason == "differs"
    assert not found.equal


@pytest.mark.usefixtures("here")
def test_the_tutorials_way_is_not_run_where_memory_is_short(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take_part(monkeypatch, NAMED["minibert-float32"], NAMED["tutorial"])
    monkeypatch.setattr(run, "available_bytes", lambda: 1000)
    assert "it needs" in measure(checkpoint).row("tutorial").reason


@pytest.mark.usefixtures("here")
def test_growth_and_the_gpus_path_on_the_cpu(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take_part(monkeypatch, NAMED["minibert-float32"], NAMED["transformers-sorted"])
    monkeypatch.setattr(growth, "TOKENS", {"cpu": 64})
    grow = growth.grow

    def more(session: Any) -> None:
        grow(session)
        growth.fixed_and_varying(session)

    monkeypatch.setattr(growth, "grow", more)
    monkeypatch.setattr(growth, "cores", lambda: 1)
    found = measure(checkpoint, lengths=(8, 64, 512), counts=(10, 20), batch_tokens=(64,), by_threads=True)
    points = {(growth.what, growth.contestant): [point["at"] for point in growth.points] for growth in found.growth}
    assert points["tokens in a text", "transformers-sorted"] == [8, 64]  # the checkpoint has 64 positions
    assert points["sentences", "minibert-float32"] == [10, 20]
    assert points["tokens in a batch", "minibert-float32"] == [64]
    assert points["threads", "minibert-float32"] == [1]
    assert points["fixed lengths", "minibert-float32"] == [64]
