"""The benchmark's arithmetic: work, floating-point operations, ratios, equality, goals, and who takes part."""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import minibert
from minibert.config import Config
from minibert.lab.bench import command, contestants, report, wall, work
from minibert.lab.bench.contestants import NAMED, Contestant
from minibert.lab.bench.process import LostError, running, seconds_to_first_line
from minibert.lab.bench.results import (
    NOTHING_ALIKE,
    Equality,
    Goal,
    Growth,
    Middle,
    Result,
    Row,
    Sample,
    compare,
    goals_of,
    ratio,
)
from minibert.model import Encoder
from minibert.vectors import engine, matmul
from minibert.vectors.recipe import Recipe

SMALL = Config(hidden_size=24, num_hidden_layers=3, num_attention_heads=3, intermediate_size=40, vocab_size=50)
BASE = Config(model_type="distilbert", num_hidden_layers=6)


# -- the work


def test_drawn_texts_have_the_lengths_of_sst2(minilm: Path) -> None:
    tokenizer = minibert.load_tokenizer(minilm)
    lengths = [len(ids) for ids in tokenizer.ids(work.drawn_texts(4000, tokenizer))]
    assert set(lengths) <= {tokens for tokens, count in work.SST2_LENGTHS.items() if count}
    assert abs(np.mean(lengths) - 47_646 / 2000) < 0.6
    share = Counter(length // 10 for length in lengths)
    for tens in range(6):
        wanted = sum(count for tokens, count in work.SST2_LENGTHS.items() if tokens // 10 == tens) / 2000
        assert abs(share[tens] / 4000 - wanted) < 0.03


def test_the_stored_lengths_are_those_of_the_tutorial() -> None:
    lengths = work.SST2_LENGTHS
    assert sum(lengths.values()) == 2000
    assert sum(tokens * count for tokens, count in lengths.items()) == 47_646
    assert max(lengths) == 59


def test_drawn_texts_are_the_same_every_time_and_without_sst2_they_are_the_work(
    minilm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MINIBERT_DATA", raising=False)
    tokenizer = minibert.load_tokenizer(minilm)
    found = work.find_work(20, tokenizer)
    assert found.texts == work.drawn_texts(20, tokenizer)
    assert "drawn" in found.origin


def test_texts_of_a_length_have_it(minilm: Path) -> None:
    tokenizer = minibert.load_tokenizer(minilm)
    for tokens in (3, 17, 512):
        assert {len(ids) for ids in tokenizer.ids(work.texts_of(tokens, 3, tokenizer))} == {tokens}


# -- floating-point operations


def test_flops_of_one_text_as_counted_by_hand() -> None:
    # D 2, F 3, one layer, S 4: keys and values 4 tokens x 2 x (2 x 2) x 2; then one token asks:
    # query and output 2 x (2 x 2) x 2, feed-forward 2 x (2 x 3) x 2, scores and context 2 x (4 x 2) x 2.
    config = Config(hidden_size=2, num_hidden_layers=1, num_attention_heads=1, intermediate_size=3)
    assert work.text_flops(4, config) == 64 + 16 + 24 + 32
    assert work.text_flops(4, config, first_only=False) == 64 + 4 * (16 + 24 + 32)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_flops_are_those_that_torch_counts_in_the_engine(monkeypatch: pytest.MonkeyPatch, pooling: str) -> None:
    monkeypatch.setattr(engine, "choose_linear", lambda dtype, device: matmul.Linear)  # which torch knows to count
    monkeypatch.setattr(engine, "TOKEN_STEP", 1)  # what fills a batch up is no work that must be done
    ready = engine.Engine(Encoder(SMALL).eval())
    ids = [[1] * S for S in (5, 5, 9, 1)]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        ready.vectors(ids, Recipe(pooling))
    first_only = pooling == "cls"
    assert counter.get_total_flops() == sum(work.text_flops(len(row), SMALL, first_only) for row in ids)


def test_the_work_of_the_tutorial_takes_three_and_a_half_teraflops() -> None:
    lengths = [tokens for tokens, count in work.SST2_LENGTHS.items() for _ in range(count)]
    assert work.job_flops(lengths, BASE) == pytest.approx(3.54e12, rel=0.01)


def test_the_padded_batch_of_the_tutorial_is_known_to_need_about_ten_gigabytes() -> None:
    assert 5e9 < work.padded_bytes([59] * 2000, BASE) < 12e9


def test_rates_are_measured_in_every_way_that_is_right() -> None:
    rates = wall.rates(24, 40, "float32", torch.device("cpu"))
    assert matmul.Linear.words in rates
    assert matmul.choose_linear(torch.float32, torch.device("cpu")).words in rates
    assert all(rate > 0 for rate in rates.values())
    assert wall.rates(24, 40, "float16", torch.device("cpu")) == {}


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


def test_a_float32_contestant_off_by_a_thousandth_differs() -> None:
    reference = np.random.default_rng(0).normal(size=(50, 16)).astype(np.float32)
    assert not compare(reference * 1.001, reference).holds("float32")
    assert compare(reference * 1.001, reference).holds("bfloat16")


# -- ratios and goals

FINE = Equality(1e-6, 1.0, 1.0)


def row(name: str, *walls: float, equality: Equality = FINE, **changes: Any) -> Row:
    return Row(NAMED[name], samples=[Sample(wall, 2 * wall) for wall in walls], equality=equality, **changes)


def result(*rows: Row, **changes: Any) -> Result:
    whole = Result("a model", "distilbert", BASE, 10, 100, 20, 8 * 10**9, "drawn", rows=list(rows))
    return dataclasses.replace(whole, **changes)


def test_the_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    measured = ratio(row("transformers", 10.0, 30.0, 9.0), row("minibert-float32", 2.0, 3.0, 3.0))
    assert measured == Middle(5.0, 3.0, 10.0)


def test_what_differs_or_was_not_measured_has_no_ratio() -> None:
    ours = row("minibert-float32", 1.0)
    assert ratio(row("transformers"), ours) is None
    assert ratio(row("transformers", 5.0, reason="differs"), ours) is None


def test_the_share_of_the_wall_is_of_the_fastest_way_round_by_round() -> None:
    ours = row("minibert-float32", 1.0, 2.0)
    found = result(ours, rates={"float32": {"slow": [1e9, 1e9], "fast": [8e9, 16e9]}}).share(ours)
    assert found == Middle(0.625, 0.25, 1.0)


def test_int8_is_compared_with_our_fastest_and_bfloat16_with_bfloat16() -> None:
    ours, quicker = row("minibert-float32", 2.0), row("minibert-bfloat16", 1.0)
    int8, theirs = row("onnxruntime-int8", 1.0), row("openvino-bfloat16", 1.5)
    found = result(ours, quicker, int8, theirs)
    assert found.rival(int8) is quicker
    assert found.rival(theirs) is quicker
    assert result(ours, int8).rival(int8) is ours


def test_goals_are_reached_or_not_and_those_that_were_not_measured_say_so() -> None:
    found = result(
        row("minibert-float32", 1.0, peak=10),
        row("transformers", 5.0),
        row("transformers-sorted", 2.0, peak=9),
        row("onnxruntime", 1.5),
        row("openvino", 1.2),
        latency_ratio=Middle(2.0, 1.9, 2.1),
        rates={"float32": {"F.linear": [9e9]}},
    )
    reached = {goal.what: goal.reached for goal in goals_of(found)}
    assert reached == {
        "float32 against transformers, as they come": True,
        "float32 against transformers, sorted": False,
        "float32 against the best float32 peer (OpenVINO)": False,
        "float32, share of the wall": True,
        "bfloat16 against OpenVINO bfloat16": None,
        "bfloat16, smallest cosine": None,
        "bfloat16, largest difference": None,
        "one short sentence, against transformers": True,
        "peak memory of transformers, sorted, by ours": False,
        "first vector from a cold start, against transformers": None,
    }
    printed = report.goals_text(goals_of(found))
    assert printed.count("NOT REACHED") == 3
    assert printed.count("not measured") == 4


def test_a_gpu_has_goals_of_its_own() -> None:
    def growth(what: str, tokens: float) -> Growth:
        return Growth(what, "minibert-bfloat16", [{"at": 128.0, "seconds": 0.5, "tokens": tokens}])

    found = result(
        row("minibert-bfloat16", 1.0),
        row("transformers-sdpa-bfloat16", 3.0),
        device="cuda",
        growth=[growth("fixed lengths", 4e6), growth("varying lengths", 3e6)],
    )
    assert [(goal.value, goal.reached) for goal in goals_of(found)] == [(3.0, True), (0.75, False), (8.0, True)]


def test_a_bound_from_above_is_met_from_below() -> None:
    assert Goal("", "", 2e-2, 9e-3, least=False).reached
    assert not Goal("", "", 2e-2, 3e-2, least=False).reached


# -- who takes part


def test_everyone_of_the_issue_takes_part_and_names_are_unique() -> None:
    for device, least in (("cpu", 13), ("cuda", 11)):
        names = [one.name for one in contestants.contestants_for(device)]
        assert len(names) == len(set(names)) >= least
        assert all(name in NAMED for name in names)


def test_on_a_gpu_every_name_leads_to_what_runs_there() -> None:
    for one in contestants.contestants_for("cuda"):
        assert NAMED[one.name].precision == one.precision


def test_a_peer_that_is_missing_is_listed_as_not_installed() -> None:
    absent = Contestant("absent", "Absent", "float32", contestants.load_transformers, "no_such_package")
    assert contestants.obstacle(absent, "cpu") == "not installed"
    assert "Absent float32: not installed" in "".join(report.absent(result(Row(absent, "not installed"))))


def test_half_precision_is_not_run_where_the_hardware_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contestants, "has_bfloat16", lambda device: False)
    assert "bfloat16" in contestants.obstacle(NAMED["minibert-bfloat16"], "cpu")
    assert "CUDA" in contestants.obstacle(NAMED["minibert-float16"], "cpu")


def test_batches_come_back_in_the_order_of_the_texts() -> None:
    def tokenize(texts: Any) -> list[list[int]]:
        return [[int(text)] * (1 + int(text) % 5) for text in texts]

    for sort in (True, False):
        encode = contestants.batched(tokenize, lambda ids, mask: ids[:, :1].astype(np.float32), 3, sort)
        assert encode([str(n) for n in range(10)])[:, 0].tolist() == list(range(10))


# -- the report


def test_the_report_has_a_row_for_everyone_and_the_json_is_plain() -> None:
    rows = [row(one.name, 2.0, 3.0) for one in contestants.contestants_for("cpu")]
    rows[-1] = Row(rows[-1].contestant, "not installed")
    found = result(*rows)
    text = report.result_text(found)
    assert all(one.contestant.title in text for one in rows)
    plan = command.PLANS["quick"]
    figures = json.loads(json.dumps(report.figures(plan, [found], 1.0), allow_nan=False))
    assert [one["name"] for one in figures["models"][0]["rows"]] == [one.contestant.name for one in rows]
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
    from minibert.lab.bench import plot

    found = result(row("minibert-float32", 1.0), row("transformers", 5.0, 6.0))
    point = {"at": 8.0, "seconds": 1.0, "tokens": 100.0, "sentences": 9.0, "peak": 1e6, "flops": 1e9}
    found.growth = [Growth("sentences", "minibert-float32", [point, point | {"at": 80.0}])]
    plot.draw([found, found], tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in tmp_path.iterdir()] == ["bench.png"]


# -- requests


def request(**changes: Any) -> argparse.Namespace:
    nothing = dict.fromkeys(("model", "sentences", "rounds", "threads", "plot"))
    return argparse.Namespace(**{"quick": True, "full": False, "device": "cpu"} | nothing | changes)


def test_wrong_requests_are_refused_before_anything_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for wrong in ({"rounds": 0}, {"threads": 0}, {"device": "mps"}, {"plot": tmp_path / "a.txt"}):
        with pytest.raises(ValueError, match="is"):
            command.plan_of(request(**wrong))
    with pytest.raises(FileNotFoundError, match="no folder"):
        command.plan_of(request(plot=tmp_path / "no" / "a.png"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
def test_without_cuda_its_benchmark_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="torch sees no CUDA device"):
        command.plan_of(request(device="cuda"))


def test_importing_the_benchmark_changes_no_setting_and_imports_no_peer() -> None:
    code = (
        "import torch; before = torch.get_num_threads(), torch.get_float32_matmul_precision();"
        "import sys; from minibert.lab.bench import command, growth, worker;"
        "print(before == (torch.get_num_threads(), torch.get_float32_matmul_precision()),"
        "'transformers' in sys.modules, 'onnxruntime' in sys.modules, 'matplotlib' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["True", "False", "False", "False"]


# -- processes


def test_a_process_that_fails_says_why_in_one_line() -> None:
    with running(1) as process, pytest.raises(LostError, match="KeyError: 'nobody'"):
        process.ask("load", contestant="nobody", folder=".", converted=".", threads=1, device="cpu")


def test_a_program_that_prints_nothing_has_no_time() -> None:
    assert seconds_to_first_line("print('here')", [], 1) > 0
    with pytest.raises(LostError, match="ValueError: no"):
        seconds_to_first_line("raise ValueError('no')", [], 1)
