"""Embedding: texts, floating-point operations, equality of vectors, and whole runs on a tiny checkpoint."""

import json
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from support.emulated_device import emulated_device
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import minibert
from minibert.bench import embed, harness, peers
from minibert.bench.plan import BenchSettings
from minibert.bench.results import Contestant, Context
from minibert.kernels import matmul
from minibert.vectors import engine

BASE = minibert.Config(model_type="distilbert", num_hidden_layers=6)
SMALL = minibert.Config(hidden_size=24, num_hidden_layers=3, num_attention_heads=3, intermediate_size=40, vocab_size=50)
NAMED = {one.name: one for one in peers.ON_CPU}
MAIN = embed.BENCHMARK.stages[:3]  # without single sentences and cold starts
PAIR = (NAMED["minibert-float32"], NAMED["transformers-sorted"])


def test_drawn_texts_have_the_lengths_of_sst2(minilm):
    tokenizer = minibert.load_tokenizer(minilm)
    texts = embed.draw_texts(2000, tokenizer)
    share = Counter(len(ids) // 10 for ids in tokenizer.ids(texts))
    for tens in range(6):
        wanted = sum(count for tokens, count in embed.SST2_LENGTHS.items() if tokens // 10 == tens) / 2000
        assert abs(share[tens] / 2000 - wanted) < 0.03
    assert {len(ids) for ids in tokenizer.ids(embed.draw_texts(3, tokenizer, {512: 1}))} == {512}


@pytest.mark.parametrize(("objective", "origin"), [("classify", "SST-2"), ("mlm", "novels")])
def test_the_work_is_text_of_the_objective(tmp_path, monkeypatch, minilm, objective, origin):
    monkeypatch.setenv("MINIBERT_DATA", str(tmp_path))
    files = {"novels/heldout.txt": "An old town.\n\nIt slept.\n", "sst2/train.tsv": "a fine film\t1\na dull film\t0\n"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    session = SimpleNamespace(
        settings=BenchSettings(train=True, objective=objective, sentences=2),
        tokenizer=minibert.load_tokenizer(minilm),
        result=SimpleNamespace(),
    )
    embed.find_texts(session)
    expected = {"classify": ["a fine film", "a dull film"], "mlm": ["An old town.", "It slept."]}
    assert session.work == expected[objective] and origin in session.result.origin
    session.settings = BenchSettings(train=True, objective=objective, sentences=3)  # more than the file has
    embed.find_texts(session)
    assert len(session.work) == 3 and "random words" in session.result.origin


def test_the_stored_lengths_are_those_of_the_tutorial_whose_work_is_three_and_a_half_teraflops():
    lengths = [tokens for tokens, count in embed.SST2_LENGTHS.items() for _ in range(count)]
    assert (len(lengths), sum(lengths), max(embed.SST2_LENGTHS)) == (2000, 47_646, 59)
    assert sum(embed.text_flops(S, BASE) for S in lengths) == pytest.approx(3.54e12, rel=0.01)
    assert 5e9 < embed.padded_bytes([59] * 2000, BASE) < 12e9  # one padded batch needs about 10 GB


@pytest.mark.usefixtures("here")
def test_texts_of_a_given_length_are_read_whole_by_both_sides(checkpoint, monkeypatch):
    limit = minibert.Config.from_file(checkpoint / "config.json").max_position_embeddings
    found = measure(monkeypatch, checkpoint, *PAIR, tokens=limit, sentences=4)
    assert found.lengths == [limit] * 4 and f"{limit} tokens per text" in found.origin
    assert found.wrong == [] and all(row.size["tokens"] == 4 * limit for row in found.rows)
    with pytest.raises(ValueError, match=rf"--tokens is {limit + 1}; .* reads at most {limit}"):
        measure(monkeypatch, checkpoint, *PAIR, tokens=limit + 1)


def test_fewer_longer_texts_are_as_much_work():
    assert [BenchSettings(tokens=tokens).sentences for tokens in (24, 512, 100_000)] == [2000, 93, 1]
    assert (
        BenchSettings(tokens=512, sentences=7).sentences == 7 and BenchSettings(quick=True, tokens=512).sentences == 11
    )
    with pytest.raises(ValueError, match="--tokens excludes"):
        BenchSettings(tokens=512, serve=True)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_flops_are_those_that_torch_counts_in_the_engine(monkeypatch, pooling):
    monkeypatch.setattr(engine, "choose_linear", lambda dtype, device: matmul.Linear)  # which torch knows to count
    monkeypatch.setattr(engine, "padding_texts", lambda *sizes: [])  # padding of a batch is work that could be avoided
    ready = engine.Engine(minibert.Encoder(SMALL).eval())
    ids = [[1] * S for S in (5, 5, 9, 1)]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        ready.vectors(ids, minibert.Recipe(pooling))
    expected = sum(embed.text_flops(len(row), SMALL, pooling == "cls") for row in ids)
    assert counter.get_total_flops() == expected


def test_rates_are_of_torchs_kernel_and_of_the_one_that_the_engine_chooses(monkeypatch):
    monkeypatch.setattr(embed, "PRODUCT_SECONDS", 0.0)
    rates = embed.product_rates(SMALL, ["float32"], "cpu")
    kernels = {matmul.Linear, matmul.choose_linear(torch.float32, torch.device("cpu"))}
    assert set(rates) == {f"float32 {kernel.description}" for kernel in kernels} and min(rates.values()) > 0


def test_equal_vectors_are_equal_and_a_wrong_row_order_is_caught_in_every_precision():
    reference = np.random.default_rng(0).normal(size=(50, 16)).astype(np.float32)
    alike = (reference * 0.01 + np.linspace(1, 2, 16)).astype(np.float32)
    for precision in ("float32", "bfloat16", "int8"):
        assert embed.equality(reference + np.float32(1e-6), reference, precision).equal
        assert embed.equality(reference * 1.001, reference, precision).equal == (precision != "float32")
        assert not embed.equality(np.roll(alike, 1, axis=0), alike, precision).equal, "cosines are above 0.99"
        nonsense = [reference * np.float32(value) for value in ("nan", "inf")]
        for other in (np.roll(reference, 1, axis=0), *nonsense, reference[:2]):
            assert not embed.equality(other, reference, precision).equal


def test_every_runtime_takes_part_and_a_quick_run_has_minibert_and_transformers_alone():
    for device, least in (("cpu", 13), ("cuda", 8)):
        names = [one.name for one in peers.contestants_for(device)]
        assert len(names) == len(set(names)) >= least and {"minibert-float32", "transformers-sorted"} <= set(names)
    precisions = {(one.package, one.precision) for one in peers.contestants_for("cuda")}
    assert {(name, "bfloat16") for name in ("transformers", "sentence_transformers", "flash_attn")} < precisions
    assert {one.package for one in peers.contestants_for("cpu", quick=True)} == {"minibert", "transformers"}


@pytest.mark.parametrize(("sort", "one_batch"), [(True, False), (False, False), (False, True)])
def test_batches_come_back_in_the_order_of_the_texts(sort, one_batch, checkpoint):
    texts = ["the film is very good"[: 3 + n % 19] for n in range(100)]
    context = Context(checkpoint, checkpoint, 1, "cpu", 512)
    encode = peers.batched(context, lambda ids, mask: (ids * mask).astype(np.float32).sum(axis=1), sort, one_batch)
    assert encode(texts).tolist() == [sum(ids) for ids in minibert.load_tokenizer(checkpoint).ids(texts)]


# -- whole runs


def measure(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path, *contestants: Contestant, stages: Any = MAIN, **changes: Any
) -> Any:
    monkeypatch.setattr(peers, "contestants_for", lambda device, quick: list(contestants))
    settings = BenchSettings(**{"quick": True, "sentences": 40, "rounds": 2, "threads": 1} | changes)
    return harness.measure(checkpoint, settings, replace(embed.BENCHMARK, stages=stages))


@pytest.mark.slow
def test_a_quick_run_in_processes_leaves_nothing_behind(checkpoint, tmp_path, monkeypatch, run):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(peers, "contestants_for", lambda device, quick: list(PAIR))
    argv = ["bench", "--quick", "--model", checkpoint, "--sentences", "40", "--threads", "1", "--json"]
    figures = json.loads(run(*argv, "--plot", tmp_path / "bench.png").splitlines()[-1])
    ours, theirs, *others = figures["models"][0]["rows"]
    assert len(ours["samples"]) == 3 and ours["equality"]["difference"] < 1e-4
    assert min(ours["peak"], theirs["ratio"]["median"], ours["roofline"]["median"]) > 0
    assert [row["job"] for row in others] == 2 * ["one sentence"] + 2 * ["cold start"]
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.usefixtures("here")
def test_every_row_is_there_and_those_that_cannot_run_have_a_reason(checkpoint, monkeypatch):
    fail = Mock(side_effect=ValueError("no such precision"))
    broken = Contestant("broken", "Broken", "float32", fail)
    needy = Contestant("needy", "Needy", "float32", fail, "torch", fail)
    absent = Contestant("absent", "Absent", "float32", fail, "no_such_package")
    found = measure(monkeypatch, checkpoint, *PAIR, NAMED["transformers"], NAMED["tutorial"], broken, needy, absent)
    reasons = [*[""] * 4, *["failed: ValueError: no such precision"] * 2, "not installed"]
    assert ([row.reason for row in found.rows], found.wrong) == (reasons, [])
    assert [len(row.samples) for row in found.rows] == [2, 2, 2, 1, 0, 0, 0]
    assert all(row.equality.difference < 1e-4 for row in found.rows[:4])
    monkeypatch.setattr(embed, "total_memory", lambda: 1000)
    assert "it needs" in measure(monkeypatch, checkpoint, *PAIR, NAMED["tutorial"], rounds=1).rows[2].reason


def wrong_order(context: Any, precision: str) -> Any:
    encode, route = peers.load_ours(context, precision)
    return lambda texts: np.roll(encode(texts), 1, axis=0), route


def wrong_later(context: Any, precision: str) -> Any:
    """Right for the texts that are compared at first, wrong for all of them."""
    encode, route = peers.load_ours(context, precision)
    return lambda texts: encode(texts) + np.float32(0.01 * (len(texts) > 20)), route


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("load", [wrong_order, wrong_later])
def test_a_contestant_with_wrong_vectors_is_not_ranked(checkpoint, monkeypatch, load):
    monkeypatch.setattr(embed, "CHECKED", 20)
    found = measure(monkeypatch, checkpoint, PAIR[0], Contestant("wrong", "Wrong", "float32", load, "minibert"))
    assert [row.ranked for row in found.rows] == [True, False]
    assert found.wrong == ["wrong: differs from the reference"]


@pytest.mark.usefixtures("here")
def test_one_sentence_and_cold_starts_of_minibert_and_transformers(checkpoint, monkeypatch):
    monkeypatch.setattr(embed.subprocess, "run", lambda *_, **how: SimpleNamespace(stdout=str(time.time() + 100)))
    found = measure(monkeypatch, checkpoint, *PAIR, stages=embed.BENCHMARK.stages, rounds=1)
    rows = found.rows[2:]
    expected = [(job, ours) for job in ("one sentence", "cold start") for ours in (True, False)]
    assert [(row.job, row.contestant.ours) for row in rows] == expected
    assert [len(row.samples) for row in rows] == [6, 6, 1, 1]
    assert all(row.seconds > 99 for row in rows[-2:])


# -- on a GPU


@pytest.mark.slow
def test_on_a_gpu_every_pooling_is_compared_with_the_cpu(checkpoint, result, monkeypatch):
    monkeypatch.setattr("minibert.utils.device.has_bfloat16", lambda device: True)
    config = minibert.Config.from_file(checkpoint / "config.json")
    session = SimpleNamespace(
        context=SimpleNamespace(device="gpu", folder=checkpoint),
        work=["the film is very good", "good"] * 9,
        result=result(config=config),
        call=lambda function: function(),  # the helper is this process
    )
    with emulated_device() as gpu:
        embed.beside_the_cpu(session)
    note = session.result.notes["beside the CPU"]
    assert gpu.launches
    assert session.result.failures == []
    assert [one.rsplit(" ", 2)[0] for one in note.split("; ")] == [
        f"{pooling} {precision}"
        for pooling in ("cls", "mean", "max", "pooler")
        for precision in ("float32", "bfloat16")
    ]
    monkeypatch.setattr(embed, "LARGEST_DIFFERENCE", -1.0)
    with emulated_device():
        embed.beside_the_cpu(session)
    assert session.result.failures[0].startswith("differs from the CPU: cls float32 ")
    assert len(session.result.failures) == 4, "float32 alone has a largest difference"
