"""The report on a GPU: its sections, those that fail, and the refusal without a GPU."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from words import write_words_checkpoint

from minibert.bench import gpu_report
from minibert.cli import main as cli

NAMES = [
    "parity --device cpu",
    "parity --dtype bfloat16 --device cpu",
    "bench --device cpu --quick --threads 1",
    "bench --train --device cpu --quick --threads 1",
    "bench --serve --device cpu --quick --threads 1 --infinity PROGRAM",
]


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
def test_without_a_gpu_it_is_refused_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        gpu_report.main(["--out", str(tmp_path / "report.txt")])
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert "device 'cuda' is not available to torch; this report needs a GPU" in printed.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failing", [None, "parity", "--train"])
def test_every_section_is_written_even_after_one_that_failed(
    failing: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, ran = tmp_path / "build" / "report.txt", []

    def run(argv: list[str], **_: Any) -> Any:
        ran.append(" ".join(argv[3:]))
        cli.parse(argv[3:])  # ends the test if the command does not know an option
        assert out.exists() == (len(ran) > 1), "what has been found is kept"
        return SimpleNamespace(stdout=f"output {len(ran)}\n", returncode=3 * (failing in argv))

    monkeypatch.setattr(gpu_report.subprocess, "run", run)
    options = ["--device", "cpu", "--infinity", "PROGRAM", "--quick", "--threads", "1"]
    assert gpu_report.main([*options, "--out", str(out)]) == (failing is not None)
    assert ran == NAMES
    failed = [3 * (failing in name.split()) for name in NAMES]
    expected = [
        f"$ minibert {name}\n\noutput {number}\n\nexit status {status}\n"
        for number, (name, status) in enumerate(zip(NAMES, failed, strict=True), start=1)
    ]
    assert out.read_text("utf-8") == "\n".join(expected)
    assert f"{sum(map(bool, failed))} of 5 sections failed; written: {out}" in capsys.readouterr().out


@pytest.mark.slow
def test_the_commands_run_on_a_tiny_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_words_checkpoint(tmp_path / "words", max_position_embeddings=64)
    monkeypatch.delenv("MINIBERT_DATA", raising=False)
    monkeypatch.setattr(gpu_report, "SECTIONS", (("parity", str(folder)), *gpu_report.SECTIONS[2:]))
    amount = ["--sentences", "40", "--rounds", "1", "--threads", "1", "--quick", "--model", str(folder)]
    status = gpu_report.main(["--device", "cpu", "--out", str(tmp_path / "report.txt"), *amount])
    text = (tmp_path / "report.txt").read_text("utf-8")
    assert (status, text.count("\nexit status 0\n")) == (0, 4), text
    for part in ("tensors bit-identical", "one sentence", "parameters equal the Trainer's", "minibert serve"):
        assert part in text
