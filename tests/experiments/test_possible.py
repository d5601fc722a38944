"""Pretraining against the possible: the whole way on a small scale, with its goals, picture and guesses."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from minibert.experiments import possible

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.* words of the corpus"),
]
SMALL = possible.CONFIG | {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}


@pytest.mark.slow
def test_ten_steps_miss_the_goals_and_teacher_and_student_are_ordinary_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import transformers

    for name, value in (("DOCUMENTS", 300), ("HELD_OUT", 30), ("CONFIG", SMALL)):
        monkeypatch.setattr(possible, name, value)
    args = ["--out", str(tmp_path / "out"), "--steps", "10", "--student-steps", "5"]
    assert possible.main([*args, "--plot", str(tmp_path / "curve.svg")]) == 1
    printed = capsys.readouterr().out
    loss, _, following = map(float, re.findall(r"[\d.]+(?=,|%)", printed.partition("best possible")[2])[:3])
    assert 1.0 < loss < 1.6 and 50 < following <= 100
    assert float(re.findall(r"share of ours +([\d.]+)", printed)[0]) < 0.5
    assert "missed" in printed
    assert "<svg" in (tmp_path / "curve.svg").read_text()
    teacher = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "out" / "bert")
    student = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out" / "distilbert")
    assert teacher.config.num_hidden_layers == 2 * student.config.n_layers
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out" / "bert")
    assert tokenizer.tokenize("these boats drift .") == ["these", "boats", "drift", "."]


def test_a_model_twice_as_deep_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """By an invented clock: each layer takes a second."""
    now = [0.0]

    def packed_states(model: Any, batch: Any) -> None:
        now[0] += model.layers

    monkeypatch.setattr(possible, "packed_states", packed_states)
    monkeypatch.setattr(possible.time, "perf_counter", lambda: now[0])
    teacher, student = torch.nn.Module(), torch.nn.Module()
    for model, layers in ((teacher, 4), (student, 2)):
        model.layers, model.config = layers, SimpleNamespace(pad_token_id=0)  # type: ignore[assignment]
    rows = [possible.Example([1, 2], [0, 0])] * 70
    assert possible.speed_ratio(teacher, student, rows) == 2.0  # type: ignore[arg-type]  # not a Head
