"""Pretraining against the possible: the whole way on a small scale, with its goals, picture and guesses."""

import re
from pathlib import Path

import pytest

from minibert.experiments import possible

pytestmark = [
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
    assert possible.main(args) == 1
    printed = capsys.readouterr().out
    loss, _, following = map(float, re.findall(r"[\d.]+(?=,|%)", printed.partition("best possible")[2])[:3])
    assert 1.0 < loss < 1.6 and 50 < following <= 100
    assert float(re.findall(r"share of ours +([\d.]+)", printed)[0]) < 0.5
    assert "missed" in printed
    teacher = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "out" / "bert")
    student = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out" / "distilbert")
    assert teacher.config.num_hidden_layers == 2 * student.config.n_layers
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out" / "bert")
    assert tokenizer.tokenize("these boats drift .") == ["these", "boats", "drift", "."]
