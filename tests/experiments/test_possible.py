"""Pretraining against the possible: the whole way on a small scale, with its goals, picture and guesses."""

from __future__ import annotations

import json
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


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run of seconds, told by what it printed and wrote."""
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


def test_a_model_that_has_hardly_begun_misses_its_goals_and_says_so(ran: SimpleNamespace) -> None:
    assert ran.status == 1
    figures = json.loads(ran.printed.splitlines()[-1])
    assert 1.0 < figures["bounds"]["loss"] < 1.6
    assert figures["masked-LM loss, times the best possible"] > 2
    assert "missed" in ran.printed


def test_teacher_and_student_are_ordinary_checkpoints(ran: SimpleNamespace) -> None:
    import transformers

    teacher = transformers.AutoModelForPreTraining.from_pretrained(ran.folder / "out" / "bert")
    student = transformers.AutoModelForMaskedLM.from_pretrained(ran.folder / "out" / "distilbert")
    assert teacher.config.num_hidden_layers == 2 * student.config.n_layers
    tokenizer = transformers.AutoTokenizer.from_pretrained(ran.folder / "out" / "bert")
    assert "<svg" in (ran.folder / "curve.svg").read_text()
    assert tokenizer.tokenize("these boats drift .") == ["these", "boats", "drift", "."]


def test_no_training_beats_what_is_possible(ran: SimpleNamespace) -> None:
    """The bound of the held-out rows, against the best that any of the guesses printed could be."""
    figures = json.loads(ran.printed.splitlines()[-1])
    assert figures["masked-LM loss, times the best possible"] > 1
    assert 0.5 < figures["bounds"]["next"] <= 1


@pytest.mark.parametrize(
    ("found", "at_most", "reached"),
    [(1.04, True, True), (1.06, True, False), (1.06, False, True), (1.04, False, False)],
)
def test_a_goal_is_reached_from_its_side(found: float, at_most: bool, reached: bool) -> None:
    assert possible.Goal("something", found, 1.05, at_most).reached == reached


def test_a_model_twice_as_deep_is_slower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock that is asked, not by this machine's: each layer takes a second."""
    now = [0.0]

    def packed_states(model: Any, batch: Any) -> None:
        now[0] += model.layers

    monkeypatch.setattr(possible, "packed_states", packed_states)
    monkeypatch.setattr(possible.time, "perf_counter", lambda: now[0])
    rows = [possible.Example([1, 2], [0, 0])] * 70

    class Model(torch.nn.Module):
        def __init__(self, layers: int) -> None:
            super().__init__()
            self.layers, self.config = layers, SimpleNamespace(pad_token_id=0)

    teacher, student = Model(4), Model(2)
    assert possible.speed_ratio(teacher, student, rows) == 2.0  # type: ignore[arg-type]  # what is asked of a Head
