"""For the tests of the benchmark: contestants in threads of this process, a tiny checkpoint, and invented results."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.words import write_words_checkpoint

import minibert
from minibert.bench import embed, harness, results

BASE = minibert.Config(model_type="distilbert", num_hidden_layers=6)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of this process in place of processes."""
    monkeypatch.setattr(
        harness, "new_process", partial(ThreadPoolExecutor, initializer=torch.set_num_threads, initargs=(1,))
    )
    monkeypatch.setattr(embed, "PRODUCT_SECONDS", 0.0)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_words_checkpoint(tmp_path_factory.mktemp("words"), max_position_embeddings=64)
    minibert.load_tokenizer(folder).save(folder)  # the form that transformers reads
    return folder


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A "cuda" whose peak memory is 123 bytes; what jobs ask of it, in order."""
    asked = []
    calls = {name: partial(asked.append, name) for name in ("synchronize", "reset_peak_memory_stats")}
    modules, real = (
        {"cuda": SimpleNamespace(**calls, device_count=lambda: 1, max_memory_allocated=lambda: 123)},
        torch.get_device_module,
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: modules.get(device) or real(device))
    return asked


@pytest.fixture
def row() -> Callable[..., results.BenchRow]:
    """A row of a contestant "NAME-PRECISION" in the main job, with samples of these seconds."""

    def row(name, *seconds, peak=0, **changes):
        package = "minibert" if name.startswith("minibert") else "transformers"
        one = results.Contestant(name, name, name.rpartition("-")[2], lambda context, precision: (len, ""), package)
        samples = [results.Sample(each, peak, {"p50": 0.01, "p99": 0.02}) for each in seconds]
        return results.BenchRow(
            one, **{"job": "embedding", "size": {"sentences": 2, "tokens": 20}, "samples": samples} | changes
        )

    return row


@pytest.fixture
def result() -> Callable[..., results.BenchResult]:
    """A result of these rows."""
    return lambda *rows, **changes: results.BenchResult(
        "a model", rows=list(rows), **{"config": BASE, "lengths": [8, 12]} | changes
    )
