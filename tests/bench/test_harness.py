"""The harness and its reports: ratios by round, doubts about the machine, processes that fail, what is refused."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from minibert.bench import harness, report
from minibert.bench.plan import BenchSettings
from minibert.bench.results import Contestant, Equality, Spread


def test_the_ratio_is_the_median_of_the_ratios_of_the_rounds(row, result):
    ours, theirs = row("minibert-float32", 2.0, 3.0, 3.0), row("transformers-float32", 10.0, 30.0, 9.0)
    assert result(ours, theirs).ratio(theirs) == Spread(median=5.0, least=3.0, most=10.0)
    assert result(theirs).ratio(theirs) is None
    assert result(ours).ratio(row("transformers-float32", 5.0, reason="differs")) is None


def test_a_row_is_compared_with_ours_of_its_precision_else_with_our_fastest(row, result):
    slow, fast = row("minibert-float32", 2.0), row("minibert-bfloat16", 1.0)
    int8, theirs = row("onnxruntime-int8", 1.0), row("openvino-bfloat16", 1.5)
    found = result(slow, fast, int8, theirs)
    assert [found.ratio(one).median for one in (int8, theirs)] == [1.0, 1.5]
    assert result(slow, int8).ratio(int8).median == 0.5


def test_the_share_of_the_roofline_is_of_the_fastest_kernel_round_by_round(row, result):
    ours = row("minibert-float32", 1.0, 2.0, flops=100)
    found = result(ours, rates={"float32 slow": [1.0, 1.0], "float32 fast": [100.0, 200.0]})
    assert found.roofline(ours) == Spread(median=0.625, least=0.25, most=1.0)


def test_the_memory_of_a_row_is_the_most_of_loading_and_of_its_samples(row, result):
    assert [row("minibert-float32", 1.0, peak=peak, load_peak=14 - peak).peak for peak in (5, 9)] == [9, 9]


def test_a_job_on_a_gpu_is_waited_for_and_its_peak_is_the_gpus(cuda, monkeypatch):
    monkeypatch.setitem(harness.JOBS, "one", cuda.append)
    sample, _ = harness.do_job("one", "cuda", "job")
    assert cuda == ["reset_peak_memory_stats", "synchronize", "job", "synchronize"]
    assert sample.peak == 123
    assert harness.do_job("one", "cpu", "job")[0].peak > 10**6
    assert len(cuda) == 5, "the GPU is not asked for a job on the CPU"


@pytest.mark.slow
@pytest.mark.parametrize(("given", "seen"), [(None, "0"), ("2,3", "2"), ("", "")])
def test_a_contestant_sees_one_gpu(given, seen, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    with harness.new_process(1) as process:
        assert process.submit(os.getenv, "CUDA_VISIBLE_DEVICES").result() == seen


def test_a_busy_machine_is_reported_and_a_quiet_one_is_not(row, result):
    assert result(row("minibert-float32", 1.0, 1.1), row("transformers-float32", 1.0, 3.0)).doubts == []
    (slow,) = result(row("minibert-float32", 1.0, 2.0)).doubts
    assert "the slowest round of minibert took 2.00 times as long" in slow


def test_our_own_rows_that_differ_or_fail_are_wrong_and_those_of_others_are_not(row, result):
    for reason in ("differs from the reference", "failed: ValueError"):
        assert result(row("minibert-float32", reason=reason)).wrong
        assert not result(row("transformers-float32", reason=reason)).wrong
    assert not result(row("minibert-int8", reason="not run: no hardware")).wrong
    assert result(failures=["the soak"]).wrong == ["the soak"]


def test_a_contestant_that_cannot_run_here_has_an_obstacle(monkeypatch):
    def obstacle(precision, package="minibert"):
        return Contestant("a", "A", precision, lambda context, precision: (len, ""), package).obstacle("cpu")

    monkeypatch.setattr("minibert.bench.results.has_bfloat16", lambda device: False)
    monkeypatch.setattr("minibert.bench.results.has_int8", lambda device: False)
    assert obstacle("float32") == obstacle("int8", "transformers") == ""
    assert obstacle("float32", "no_such_package") == "not installed"
    for precision in ("bfloat16", "int8"):
        assert precision in obstacle(precision)


@pytest.mark.slow
def test_a_process_that_fails_or_ends_is_reported_in_one_line(row):
    for function, argument, reason in ((int, "a\nword", "ValueError: invalid literal"), (os._exit, 3, "Broken")):
        session = SimpleNamespace(processes={"one": harness.new_process(1)}, stop=list)
        one = row("minibert-float32")
        assert harness.Session.request(session, one, function, argument, process="one") is None
        assert one.reason.startswith(f"failed: {reason}")
        assert "\n" not in one.reason


@pytest.mark.slow
def test_a_terminated_run_leaves_no_folder_and_no_process(checkpoint, tmp_path):
    argv = [sys.executable, "-m", "minibert", "bench", "--quick", "--model", str(checkpoint), "--threads", "1"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        while not any(tmp_path.glob("minibert-bench-*")):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=300)  # which ends when no process holds its output any more
    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.glob("minibert-bench-*")) == []


@pytest.mark.slow
def test_a_process_that_is_terminated_unlinks_its_semaphores(tmp_path):
    """tqdm makes one in each process."""
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing\n"
        "from tqdm import tqdm\n"
        "from minibert.bench.harness import new_process\n"
        "if __name__ == '__main__':\n"
        "    new_process(1).submit(tqdm.get_lock).exception()\n"
        "    for process in multiprocessing.active_children():\n"
        "        process.terminate()\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_importing_the_benchmark_changes_no_setting_and_imports_no_peer():
    code = (
        "import torch; before = torch.get_num_threads(), torch.get_float32_matmul_precision();"
        "import sys; from minibert.bench import report, embed, serving;"
        "print(before == (torch.get_num_threads(), torch.get_float32_matmul_precision()),"
        "'transformers' in sys.modules, 'onnxruntime' in sys.modules, 'matplotlib' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["True", "False", "False", "False"]


# -- what is printed and drawn


def test_the_table_has_every_contestant_and_the_json_is_plain(row, result):
    equality = Equality(difference=0.5, cosine=0.9, equal=False)
    rows = [row("minibert-float32", 1.0, peak=10**6), row("transformers-float32", 5.0), row("onnxruntime-float32")]
    rows += [
        row("openvino-float32", equality=equality, reason="differs"),
        row("minibert-float32", 1.0, job="serving", at=8),
    ]
    found = result(*rows, notes={"equality": "all alike"}, flops=10**12)
    text = report.result_text(found)
    for part in (
        "transformers",
        "5.00-5.00",
        "openvino-float32 float32: differs",
        "5.0e-01",
        "all alike",
        "serving, 8",
    ):
        assert part in text
    figures = json.loads(
        json.dumps(report.figures(BenchSettings(quick=True), [found], 1.0), allow_nan=False, default=str)
    )
    assert [one["name"] for one in figures["models"][0]["rows"]] == [one.contestant.name for one in rows]
    assert figures["models"][0]["rows"][1]["ratio"]["median"] == 5.0
    assert figures["models"][0]["rows"][0]["speed"] == {"sentences": 2.0, "tokens": 20.0}
    assert figures["ok"]


def test_wrong_results_of_ours_and_a_busy_machine_are_printed(row, result):
    found = result(row("minibert-float32", 1.0, 2.0), failures=["3 of 10 parameters differ"])
    text = report.result_text(found)
    assert "WRONG          3 of 10 parameters differ" in text
    assert "TOO BUSY       the slowest round" in text
    assert not report.figures(BenchSettings(quick=True), [found], 1.0)["ok"]


def test_the_picture_is_drawn(row, result, tmp_path):
    pytest.importorskip("matplotlib")
    points = [row("minibert-float32", 1.0, job="one sentence")]
    found = result(row("minibert-float32", 1.0), row("transformers-float32", 5.0, 6.0), *points)
    report.draw([found, found], tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


# -- settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--rounds 0", r"rounds is 0.* 1\b"),
        ("--threads 0", "threads is 0"),
        ("--device mps", r"device is 'mps'.*cpu.*cuda"),
        ("--plot a.txt", r"a.txt.*\.png"),
        ("--plot no_such_folder/a.png", "no_such_folder"),
        ("--objective mlm", r"--objective.*--train"),
        ("--infinity nowhere", "--infinity needs --serve"),
        ("--serve --train", r"--serve.*--train"),
        ("--train --model no_such_folder/x", "no_such_folder/x"),
        ("--serve --infinity nowhere --model all-MiniLM-L6-v2", "nowhere"),
        pytest.param(
            "--device cuda", "0 cuda", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
        ),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_wrong_request_is_refused(options, message, run):
    pytest.importorskip("matplotlib")
    assert re.search(message, run("bench", *options.split(), status=2))
