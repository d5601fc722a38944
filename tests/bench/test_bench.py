"""The benchmark's arithmetic: texts, floating-point operations, ratios, equality, goals, and who takes part."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import minibert
from minibert.bench import backends, machine, report, roofline, session, texts
from minibert.bench.backends import ON_CPU, ON_CUDA, Backend, backends_for
from minibert.bench.goals import goals_of
from minibert.bench.processes import LostError, Process, seconds_to_end
from minibert.bench.results import NOTHING_ALIKE, Equality, Growth, Middle, Result, Row, Sample, compare, ratio
from minibert.cli import bench
from minibert.config import Config
from minibert.kernels import matmul
from minibert.model import Encoder
from minibert.vectors import engine
from minibert.vectors.recipe import Recipe

SMALL = Config(hidden_size=24, num_hidden_layers=3, num_attention_heads=3, intermediate_size=40, vocab_size=50)
BASE = Config(model_type="distilbert", num_hidden_layers=6)
NAMED = {backend.name: backend for backend in (*ON_CUDA, *ON_CPU)}


# -- texts


def test_drawn_texts_have_the_lengths_of_sst2(minilm: Path) -> None:
    tokenizer = minibert.load_tokenizer(minilm)
    lengths = [len(ids) for ids in tokenizer.ids(texts.drawn_texts(4000, tokenizer))]
    assert set(lengths) <= {tokens for tokens, count in texts.SST2_LENGTHS.items() if count}
    assert abs(np.mean(lengths) - 47_646 / 2000) < 0.6
    share = Counter(length // 10 for length in lengths)
    for tens in range(6):
        wanted = sum(count for tokens, count in texts.SST2_LENGTHS.items() if tokens // 10 == tens) / 2000
        assert abs(share[tens] / 4000 - wanted) < 0.03


def test_the_stored_lengths_are_those_of_the_tutorial() -> None:
    lengths = texts.SST2_LENGTHS
    assert sum(lengths.values()) == 2000
    assert sum(tokens * count for tokens, count in lengths.items()) == 47_646
    assert max(lengths) == 59


def test_drawn_texts_are_the_same_every_time_and_without_sst2_they_are_the_work(
    minilm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MINIBERT_DATA", raising=False)
    tokenizer = minibert.load_tokenizer(minilm)
    found, origin = texts.find_texts(20, tokenizer)
    assert found == texts.drawn_texts(20, tokenizer)
    assert "drawn" in origin


def test_texts_of_a_length_have_it(minilm: Path) -> None:
    tokenizer = minibert.load_tokenizer(minilm)
    for tokens in (3, 17, 512):
        assert {len(ids) for ids in tokenizer.ids(texts.drawn_texts(3, tokenizer, {tokens: 1}))} == {tokens}


# -- floating-point operations


def test_flops_of_one_text_as_counted_by_hand() -> None:
    # D 2, F 3, one layer, S 4: keys and values 4 tokens x 2 x (2 x 2) x 2; then one query token:
    # query and output 2 x (2 x 2) x 2, feed-forward 2 x (2 x 3) x 2, scores and context 2 x (4 x 2) x 2.
    config = Config(hidden_size=2, num_hidden_layers=1, num_attention_heads=1, intermediate_size=3)
    assert roofline.text_flops(4, config) == 64 + 16 + 24 + 32
    assert roofline.text_flops(4, config, first_only=False) == 64 + 4 * (16 + 24 + 32)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_flops_are_those_that_torch_counts_in_the_engine(monkeypatch: pytest.MonkeyPatch, pooling: str) -> None:
    monkeypatch.setattr(engine, "choose_linear", lambda dtype, device: matmul.Linear)  # which torch knows to count
    monkeypatch.setattr(engine, "filler", lambda *sizes: [])  # what fills a batch up is no work that must be done
    ready = engine.Engine(Encoder(SMALL).eval())
    ids = [[1] * S for S in (5, 5, 9, 1)]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        ready.vectors(ids, Recipe(pooling))
    first_only = pooling == "cls"
    assert counter.get_total_flops() == sum(roofline.text_flops(len(row), SMALL, first_only) for row in ids)


def test_the_work_of_the_tutorial_takes_three_and_a_half_teraflops() -> None:
    lengths = [tokens for tokens, count in texts.SST2_LENGTHS.items() for _ in range(count)]
    assert roofline.job_flops(lengths, BASE) == pytest.approx(3.54e12, rel=0.01)


def test_the_padded_batch_of_the_tutorial_is_known_to_need_about_ten_gigabytes() -> None:
    assert 5e9 < roofline.padded_bytes([59] * 2000, BASE) < 12e9


@pytest.mark.usefixtures("one_thread")
def test_rates_are_of_torchs_kernel_and_of_the_one_that_the_engine_chooses() -> None:
    cpu = torch.device("cpu")
    rates = roofline.rates(24, 40, ["float32"], cpu)["float32"]
    assert set(rates) == {matmul.Linear.words, matmul.choose_linear(torch.float32, cpu).words}
    assert all(rate > 0 for rate in rates.values())


# -- equality


def test_equal_vectors_are_equal_and_a_wrong_row_order_is_caught_in_every_precision() -> None:
    reference = np.random.default_rng(0).normal(size=(50, 16)).astype(np.float32)
    right = compare(reference + np.float32(1e-6), reference)
    wrong = compare(np.roll(reference, 1, axis=0), reference)
    for precision in ("float32", "bfloat16", "float16", "int8"):
        assert right.holds(precision)
        assert not wrong.holds(precision)


def test_a_wrong_order_of_vectors_that_are_alike_is_caught() -> None:
    alike = np.random.default_rng(0).normal(size=(50, 16)) * 0.01 + np.linspace(1, 2, 16)
    wrong = compare(np.roll(alike, 1, axis=0).astype(np.float32), alike.astype(np.float32))
    assert wrong.cosine > 0.99
    assert not wrong.holds("int8")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_no_numbers_and_other_shapes_are_nothing_alike(value: float) -> None:
    reference = np.ones((3, 4), np.float32)
    assert compare(reference * value, reference) == NOTHING_ALIKE
    assert compare(reference[:2], reference) == NOTHING_ALIKE


def test_a_float32_backend_off_by_a_thousandth_differs() -> None:
    reference = np.random.default_rng(0).normal(size=(50, 16)).astype(np.float32)
    assert not compare(reference * 1.001, reference).holds("float32")
    assert compare(reference * 1.001, reference).holds("bfloat16")


# -- ratios and goals

FINE = Equality(1e-6, 1.0, 1.0)


def row(name: str, *seconds: float, equality: Equality = FINE, peak: int = 0, **changes: Any) -> Row:
    samples = [Sample(one, 2 * one, 0.0, peak) for one in seconds]
    return Row(NAMED[name], samples=samples, equality=equality, **changes)


def result(*rows: Row, **changes: Any) -> Result:
    return dataclasses.replace(Result("a model", BASE, [8, 12], "drawn", rows=list(rows)), **changes)


def test_the_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    measured = ratio(row("transformers", 10.0, 30.0, 9.0), row("minibert-float32", 2.0, 3.0, 3.0))
    assert measured == Middle(5.0, 3.0, 10.0)


def test_what_differs_or_was_not_measured_has_no_ratio() -> None:
    ours = row("minibert-float32", 1.0)
    assert ratio(row("transformers"), ours) is None
    assert ratio(row("transformers", 5.0, reason="differs"), ours) is None
    assert ratio(None, ours) is None


def test_the_share_of_the_roofline_is_of_the_fastest_kernel_round_by_round() -> None:
    ours = row("minibert-float32", 1.0, 2.0)
    flops = result().flops
    found = result(ours, rates={"float32": {"slow": [1.0, 1.0], "fast": [flops, 2 * flops]}}).share(ours)
    assert found == Middle(0.625, 0.25, 1.0)


def test_int8_is_compared_with_our_fastest_and_bfloat16_with_bfloat16() -> None:
    ours, quicker = row("minibert-float32", 2.0), row("minibert-bfloat16", 1.0)
    int8, theirs = row("onnxruntime-int8", 1.0), row("openvino-bfloat16", 1.5)
    found = result(ours, quicker, int8, theirs)
    assert found.rival(int8) is quicker
    assert found.rival(theirs) is quicker
    assert result(ours, int8).rival(int8) is ours


def test_the_memory_of_a_row_is_the_most_of_loading_and_of_its_samples() -> None:
    assert row("minibert-float32", 1.0, peak=5, load_peak=9).peak == 9
    assert row("minibert-float32", 1.0, peak=9, load_peak=5).peak == 9


def test_goals_are_reached_or_not_and_those_that_were_not_measured_say_so() -> None:
    found = result(
        row("minibert-float32", 1.0, peak=10),
        row("transformers", 5.0),
        row("transformers-sorted", 2.0, peak=9),
        row("onnxruntime", 1.5),
        row("openvino", 1.05),
        one_sentence=[(1.0, 1.9), (1.0, 2.1)],
        rates={"float32": {"F.linear": [0.8 * result().flops]}},
    )
    reached = {goal.what: goal.reached for goal in goals_of(found)}
    assert reached == {
        "float32, share of the roofline": True,
        "bfloat16, share of the roofline": None,
        "float32, against the best other runtime": False,
        "bfloat16, against the best other runtime": None,
        "int8, against the best other runtime": None,
        "int8, smallest cosine": None,
        "int8, peak memory of bfloat16 by it": None,
        "peak memory of transformers, sorted, by ours": False,
        "one short sentence, against transformers": True,
        "first vector from a cold start, against transformers": None,
    }
    printed = report.goals_text(goals_of(found))
    assert printed.count("NOT REACHED") == 2
    assert printed.count("not measured") == 6


def test_the_goals_of_int8_are_its_speed_its_cosine_and_its_memory() -> None:
    found = result(
        row("minibert-bfloat16", 1.0, peak=12), row("minibert-int8", 0.8, peak=10), row("onnxruntime-int8", 0.9)
    )
    found.rows[1].equality = Equality(0.1, 0.9985, 1.0)
    values = {goal.what: goal.value for goal in goals_of(found)}
    assert values["int8, against the best other runtime"] == pytest.approx(0.9 / 0.8)
    assert values["int8, smallest cosine"] == 0.9985
    assert values["int8, peak memory of bfloat16 by it"] == pytest.approx(1.2)


def test_a_runtime_is_compared_at_the_same_precision_only() -> None:
    ours = row("minibert-bfloat16", 1.0)
    found = result(ours, row("onnxruntime-int8", 0.5), row("onnxruntime", 0.7), row("openvino-bfloat16", 1.2))
    values = {goal.what: goal.value for goal in goals_of(found)}
    assert values["bfloat16, against the best other runtime"] == 1.2


def test_a_narrow_model_is_asked_for_less_of_the_roofline() -> None:
    wide, narrow = (goals_of(result(config=config))[0].bound for config in (BASE, SMALL))
    assert narrow < wide


# -- a machine that is too busy


def test_a_quiet_machine_is_not_said_to_be_busy() -> None:
    found = result(row("minibert-float32", 1.0, 1.1), cores=2)
    assert found.doubts == []
    assert "TOO BUSY" not in report.result_text(found)


def test_what_other_programs_take_is_said() -> None:
    busy = Row(NAMED["minibert-float32"], samples=[Sample(1.0, 1.2, 0.8, 0)] * 3, equality=FINE)
    found = result(busy, cores=2)
    assert found.foreign == pytest.approx(0.4)
    assert "other programs took 40 % of the processors" in report.result_text(found)


def test_rounds_that_do_not_agree_are_said() -> None:
    found = result(row("minibert-float32", 1.0, 2.0))
    assert "the slowest round of minibert took 2.00 times as long" in report.result_text(found)


def test_a_peer_whose_rounds_do_not_agree_says_nothing_of_the_machine() -> None:
    assert result(row("minibert-float32", 1.0), row("transformers", 1.0, 3.0)).doubts == []


def test_processor_seconds_of_the_machine_only_grow() -> None:
    assert 0 <= machine.busy_seconds() <= machine.busy_seconds()


def test_a_quick_run_that_takes_more_than_a_minute_says_why() -> None:
    found = [result(stages={"load": 50.2, "take turns": 20.0, "grow": 0.0})]
    assert report.time_text(session.QUICK, found, 59.0) == "59 s"
    said = " ".join(report.time_text(session.QUICK, found, 70.0).split())
    assert "more than the minute of --quick: load 50 s, take turns 20 s" in said
    assert report.time_text(session.DEFAULT, found, 70.0) == "70 s"


# -- who takes part


def test_every_runtime_takes_part_and_names_are_unique() -> None:
    for device, least in (("cpu", 13), ("cuda", 11)):
        names = [one.name for one in backends_for(device)]
        assert len(names) == len(set(names)) >= least


def test_a_quick_run_takes_minibert_and_transformers_alone() -> None:
    assert {one.package for one in backends_for("cpu", quick=True)} == {"minibert", "transformers"}


def test_a_runtime_that_is_missing_is_listed_as_not_installed() -> None:
    absent = Backend("absent", "Absent", "float32", backends.load_transformers, "no_such_package")
    assert absent.obstacle("cpu") == "not installed"
    assert "Absent float32: not installed" in report.result_text(result(Row(absent, "not installed")))


def test_half_precision_is_not_run_where_the_hardware_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "has_bfloat16", lambda device: False)
    assert "bfloat16" in NAMED["minibert-bfloat16"].obstacle("cpu")
    assert "CUDA" in NAMED["minibert-float16"].obstacle("cpu")


def test_batches_come_back_in_the_order_of_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    def tokenize(texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[int(text)] * (1 + int(text) % 5) for text in texts]}

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda folder: tokenize)
    for sort, one_batch in ((True, False), (False, False), (False, True)):
        setting = backends.Setting(Path("nowhere"), Path("nowhere"), 1, "cpu", 512)
        encode = backends.batched(setting, lambda ids, mask: ids[:, :1].astype(np.float32), sort, one_batch)
        assert encode([str(n) for n in range(100)])[:, 0].tolist() == list(range(100))


# -- the report


def test_the_report_has_a_row_for_everyone_and_the_json_is_plain() -> None:
    rows = [row(one.name, 2.0, 3.0) for one in backends_for("cpu")]
    rows[-1] = Row(rows[-1].backend, "not installed")
    found = result(*rows)
    text = report.result_text(found)
    assert all(one.backend.title in text for one in rows)
    figures = json.loads(json.dumps(report.figures(session.QUICK, [found], 1.0), allow_nan=False))
    assert [one["backend"]["name"] for one in figures["models"][0]["rows"]] == [one.backend.name for one in rows]
    assert figures["ok"]


def test_what_differs_is_printed_without_seconds_and_ours_fails_the_run() -> None:
    wrong = Equality(0.5, 0.9, 0.5)
    found = result(row("minibert-float32", 1.0, equality=wrong, reason="differs"), row("transformers", 5.0))
    assert "differs" in report.rows_text(found)
    assert not found.equal
    peer = result(row("minibert-float32", 1.0), row("transformers", 5.0, equality=wrong, reason="differs"))
    assert peer.equal


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from minibert.bench import plot

    found = result(row("minibert-float32", 1.0), row("transformers", 5.0, 6.0))
    point = {"at": 8, "seconds": 1.0, "tokens": 100, "sentences": 9, "speed": 100.0, "peak": 1000000}
    found.growth = [Growth("sentences", NAMED["minibert-float32"], [point, point | {"at": 80}])]
    assert "tokens/s" in report.result_text(found)
    plot.draw([found, found], tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in tmp_path.iterdir()] == ["bench.png"]


# -- requests


def request(**changes: Any) -> argparse.Namespace:
    nothing = dict.fromkeys(("model", "sentences", "rounds", "threads", "plot", "overwrite", "objective"))
    return argparse.Namespace(
        **{"quick": True, "full": False, "device": "cpu", "train": False, "job": False} | nothing | changes
    )


def test_wrong_requests_are_refused_before_anything_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for wrong in ({"rounds": 0}, {"threads": 0}, {"device": "mps"}, {"plot": tmp_path / "a.txt"}):
        with pytest.raises(ValueError, match="is"):
            bench.plan_of(request(**wrong))
    with pytest.raises(FileNotFoundError, match="no folder"):
        bench.plan_of(request(plot=tmp_path / "no" / "a.png"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
def test_without_cuda_its_benchmark_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="torch sees no CUDA device"):
        bench.plan_of(request(device="cuda"))


def test_importing_the_benchmark_changes_no_setting_and_imports_no_peer() -> None:
    code = (
        "import torch; before = torch.get_num_threads(), torch.get_float32_matmul_precision();"
        "import sys; from minibert.bench import run, report;"
        "print(before == (torch.get_num_threads(), torch.get_float32_matmul_precision()),"
        "'transformers' in sys.modules, 'onnxruntime' in sys.modules, 'matplotlib' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["True", "False", "False", "False"]


# -- processes


def test_a_process_that_fails_says_why_in_one_line_and_goes_on() -> None:
    with closing(Process(1)) as process:
        with pytest.raises(LostError, match="ValueError: invalid literal"):
            process.ask("run", int, "a word")
        assert process.ask("run", int, "3") == 3


def test_a_process_that_ends_says_so() -> None:
    with closing(Process(1)) as process, pytest.raises(LostError, match="ended with status 3"):
        process.ask("run", os._exit, 3)


def test_a_program_that_fails_has_no_time() -> None:
    assert seconds_to_end("import time; print(time.time())", [], 1) > 0
    with pytest.raises(LostError, match="ValueError: no"):
        seconds_to_end("raise ValueError('no')", [], 1)
