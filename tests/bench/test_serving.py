"""The benchmark of the server: clients, and whole measurements."""

import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from minibert.bench import harness, serving
from minibert.bench.plan import BenchSettings
from minibert.bench.results import Context, Sample
from minibert.cli import main as cli


def test_a_sample_becomes_that_of_one_request_and_an_error_fails_the_run(row, result):
    one = row("minibert-float32", job="serving", at=64)
    for errors in (0, 1):
        one.samples.append(Sample(8.0, 100))
        serving.summarize(one, [(0.1, 200), (0.2, 200), (0.3, 200), (0.4, 500 if errors else 200)])
        assert one.samples[-1].seconds == 8.0 / (4 - errors)
        assert one.samples[-1].details["p50"] == pytest.approx(0.2 if errors else 0.25)
        assert bool(result(one).wrong) == bool(errors)


@pytest.mark.parametrize(("device", "precision"), [("cpu", "float32"), ("cuda", "bfloat16")])
def test_the_device_and_its_precision_reach_every_server(device, precision):
    ours, torch_engine, onnx = serving.contestants_for("/somewhere/infinity_emb", device)
    commands = [" ".join(one.load.keywords["command"]) for one in (ours, torch_engine, onnx)]
    assert all(command.endswith(f" --device {device}") for command in commands)
    assert f" --precision {precision} " in commands[0]
    assert commands[1].startswith("/somewhere/infinity_emb v2 ")
    assert f" --engine torch --dtype {precision} " in commands[1]
    assert [one.precision for one in (ours, torch_engine, onnx)] == [precision, precision, "float32"]
    assert [one.package for one in serving.contestants_for("", device)] == ["minibert"]
    known = commands[0].partition(" minibert ")[2].format(folder="a", port=1)
    assert cli.parse(known.split()).device == device


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In place of that of all other tests: the clients find their server on this machine."""
    yield


def test_clients_count_answers_and_errors(no_network):
    seen = []

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            seen.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(500 if len(seen) % 4 == 0 else 200)
            self.send_header("content-length", "5")
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        answers = serving.all_clients(server.server_port, ["a", "b", "c"], 3, 0.3)
        server.shutdown()
    assert len(answers) == len(seen) > 3
    assert sum(status == 500 for _, status in answers) == pytest.approx(len(seen) / 4, abs=3)
    assert all(seconds > 0 for seconds, _ in answers)
    assert {json.loads(body)["input"] for body in seen} == {"a", "b", "c"}


@pytest.mark.slow
def test_the_checkpoint_of_the_servers_has_an_onnx_file_for_infinity(checkpoint, tmp_path):
    settings = BenchSettings(serve=True, infinity=sys.executable)  # any program
    folder = serving.prepare(checkpoint, tmp_path, settings)
    assert (folder / "model.onnx").stat().st_size > (folder / "model.safetensors").stat().st_size


@pytest.mark.slow
def test_a_whole_measurement(no_network, minilm, monkeypatch):
    monkeypatch.delenv("MINIBERT_DATA", raising=False)
    settings = BenchSettings(serve=True, quick=True, sentences=500, threads=1)
    found = harness.measure(minilm, settings, serving.BENCHMARK)
    assert found.wrong == []
    assert [row.at for row in found.rows if row.ranked] == [1, 8, 64]


@pytest.mark.slow
def test_under_full_load_for_minutes_there_is_no_error_and_the_memory_of_the_server_is_flat(
    no_network, minilm, tmp_path
):
    """The peak memory in the last tenth of the time is within 5 % of the peak in the first. MINIBERT_SOAK: seconds."""
    seconds = float(os.environ.get("MINIBERT_SOAK", "300"))
    (ours,) = serving.contestants_for("", "cpu")
    harness.load_contestant(ours, Context(minilm, tmp_path, 1, "cpu", 512))
    job = partial(harness.do_job, "minibert", "cpu", ["a fine film", "a mess"])
    try:
        for clients in range(4, 68, 4):  # oneDNN keeps kernels for each number of tokens in a batch
            job(clients=clients, seconds=1.0)
        peaks = []
        for _ in range(10):
            sample, answers = job(clients=64, seconds=seconds / 10)
            peaks.append(sample.peak)
            assert {status for _, status in answers} == {200}
        assert abs(peaks[-1] / peaks[0] - 1) <= 0.05
    finally:
        server = harness.JOBS.pop("minibert")
        server.process.kill()
        server.process.wait()


@pytest.mark.slow
def test_a_server_that_does_not_start_is_reported_with_its_last_line(no_network, checkpoint, monkeypatch):
    monkeypatch.setattr(serving, "MINIBERT", serving.MINIBERT.replace("mean", "best"))
    monkeypatch.delenv("MINIBERT_DATA", raising=False)  # its sentences are too long for this vocabulary
    found = harness.measure(checkpoint, BenchSettings(serve=True, quick=True, sentences=8), serving.BENCHMARK)
    assert "pooling is 'best'" in found.wrong[0]
