"""Pretraining against the possible: the whole way on a small scale, with its goals, picture and guesses."""

from __future__ import annotations

import json
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


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run of seconds: what it printed and wrote."""
    folder = tmp_path_factory.mktemp("possible")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(possible, "DOCUMENTS", 300)
        patch.setattr(possible, "HELD_OUT", 30)
        patch.setattr(possible, "CONFIG", SMALL)
        printed: list[str] = []
        patch.setattr("builtins.print", lambda *words, **how: printed.append(" ".join(map(str, words))))
        args = ["--out", str(folder / "out"), "--steps", "10", "--student-steps", "5", "--json"]
        status = possible.main([*args, "--plot", str(folder / "curve.svg")])
    return SimpleNamespace(status=status, printed="\n".join(printed), folder=folder)


@pytest.mark.slow
def test_a_model_after_ten_steps_misses_its_goals(ran: SimpleNamespace) -> None:
    assert ran.status == 1
    figures = json.loads(ran.printed.splitlines()[-1])
    assert 1.0 < figures["bounds"]["loss"] < 1.6
    assert figures[possible.LOSS] > 2
    assert 0.5 < figures["bounds"]["next"] <= 1
    assert "missed" in ran.printed


@pytest.mark.slow
def test_teacher_and_student_are_ordinary_checkpoints(ran: SimpleNamespace) -> None:
    import transformers

    teacher = transformers.AutoModelForPreTraining.from_pretrained(ran.folder / "out" / "bert")
    student = transformers.AutoModelForMaskedLM.from_pretrained(ran.folder / "out" / "distilbert")
    assert teacher.config.num_hidden_layers == 2 * student.config.n_layers
    tokenizer = transformers.AutoTokenizer.from_pretrained(ran.folder / "out" / "bert")
    assert "<svg" in (ran.folder / "curve.svg").read_text()
    assert tokenizer.tokenize("these boats drift .") == ["these", "boats", "drift", "."]


@pytest.mark.parametrize(
    ("goal", "value", "reached"),
    [(possible.LOSS, 1.04, True), (possible.LOSS, 1.06, False), ("accuracy", 1.06, True), ("accuracy", 1.04, False)],
)
def test_a_goal_is_reached_from_its_side(goal: str, value: float, reached: bool) -> None:
    assert possible.is_reached(goal, value, 1.05) == reached


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
