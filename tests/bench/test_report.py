"""What is printed and drawn, and the requests that are refused before anything runs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from minibert.bench import report
from minibert.bench.settings import Settings


def test_the_table_has_every_contestant_and_the_json_is_plain(row: Any, result: Any) -> None:
    equality = {"difference": 0.5, "cosine": 0.9}
    rows = [row("minibert-float32", 1.0, peak=10**6), row("transformers-float32", 5.0), row("onnxruntime-float32")]
    rows += [
        row("openvino-float32", equality=equality, reason="differs"),
        row("minibert-float32", 1.0, job="threads", at=2),
    ]
    found = result(*rows, notes={"equality": "all alike"}, flops=10**12)
    text = report.result_text(found)
    for part in (
        "transformers",
        "5.00-5.00",
        "openvino-float32 float32: differs",
        "5.0e-01",
        "all alike",
        "threads, 2",
    ):
        assert part in text
    figures = json.loads(json.dumps(report.figures(Settings(quick=True), [found], 1.0), allow_nan=False, default=str))
    assert [one["name"] for one in figures["models"][0]["rows"]] == [one.contestant.name for one in rows]
    assert figures["models"][0]["rows"][1]["ratio"]["median"] == 5.0
    assert figures["models"][0]["rows"][0]["speed"] == {"sentences": 2.0, "tokens": 20.0}
    assert figures["ok"]


def test_wrong_results_of_ours_and_a_busy_machine_are_printed(row: Any, result: Any) -> None:
    found = result(row("minibert-float32", 1.0, 2.0), failures=["3 of 10 parameters differ"])
    text = report.result_text(found)
    assert "WRONG          3 of 10 parameters differ" in text
    assert "TOO BUSY       the slowest round" in text
    assert not report.figures(Settings(quick=True), [found], 1.0)["ok"]


def test_the_picture_is_drawn(row: Any, result: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    points = [row("minibert-float32", 1.0, job="sentences", at=at) for at in (8, 80)]
    found = result(row("minibert-float32", 1.0), row("transformers-float32", 5.0, 6.0), *points)
    report.draw([found, found], tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


# -- settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rounds", "0"], "rounds is 0; it must be at least 1"),
        (["--threads", "0"], "threads is 0"),
        (["--device", "mps"], "device is 'mps'; choose from cpu, cuda"),
        (["--plot", "a.txt"], "a.txt must be a file that ends in .png"),
        (["--plot", "no_such_folder/a.png"], "no_such_folder"),
        (["--objective", "mlm"], "--objective needs --train"),
        (["--soak", "5"], "--soak needs --serve"),
        (["--serve", "--soak", "-1"], "soak is -1"),
        (["--serve", "--train"], "--serve excludes --train"),
        (["--quick", "--full"], "--quick excludes --full"),
        (["--train", "--model", "no_such_folder/x"], "no_such_folder/x"),
        (["--serve", "--infinity", "nowhere", "--model", "all-MiniLM-L6-v2"], "nowhere"),
        pytest.param(
            ["--device", "cuda"],
            "0 cuda",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here"),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.usefixtures("here")
def test_a_wrong_request_is_refused(options: list[str], message: str, run: Any) -> None:
    pytest.importorskip("matplotlib")
    assert message in run("bench", *options, status=2)
