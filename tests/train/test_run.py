"""Runs of every kind: killed and resumed bit for bit, seeded, refused with other settings, written as a folder."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from subprocess import PIPE
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from support.models import assert_equal
from support.training import EPOCHS, KINDS, OF_STEPS, QUICK, STEPS

from minibert.tasks.base import Measure
from minibert.train import checkpointer, loop, run
from minibert.train.run import DegenerateWarning, plot_runs
from minibert.train.settings import (
    DistillClassifierSettings,
    DistillSettings,
    FinetuneSettings,
    PretrainSettings,
    TrainSettings,
    VocabularySettings,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:all .* texts were predicted", "ignore:degenerate"),  # models that barely learned
]


DEFAULT = [("classify", 3, True), ("mlm+nsp", 6, False)]  # the other cases are slow


@pytest.fixture(scope="module")
def whole(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, dict[str, Any]]]:
    """The model and training.json of a run of each kind that was not interrupted."""

    @cache
    def whole(kind):
        out = tmp_path_factory.mktemp("whole") / "out"
        model = KINDS[kind](home, out=out, **(STEPS if kind in OF_STEPS else EPOCHS))
        return model, json.loads((out / "training.json").read_text())

    return whole


@pytest.mark.parametrize(
    ("kind", "step", "signalled"),  # step: of 12; in epochs of 6 the last
    [
        case if case in DEFAULT else pytest.param(*case, marks=pytest.mark.slow)
        for case in [(kind, *how) for kind in KINDS for how in ((3, True), (6, False))]
    ],
)
def test_an_interrupted_run_is_resumed_by_the_same_call_bit_for_bit(
    kind, step, signalled, whole, home, tmp_path, monkeypatch, capsys
):
    """A signal saves the run after the step; a kill loses what was done since the last state."""
    train, how = KINDS[kind], STEPS if kind in OF_STEPS else EPOCHS
    model, one = whole(kind)
    calls, right = list[int](), loop.one_step

    def interrupted(*args):
        calls.append(len(calls) + 1)
        if len(calls) == step and signalled:
            signal.raise_signal(signal.SIGINT)
        elif len(calls) == step:
            raise KeyboardInterrupt
        return right(*args)

    monkeypatch.setattr(loop, "one_step", interrupted)
    kept = step if signalled else (step - 1) // how["save_every"] * how["save_every"]
    message = rf"up to step {kept}, in .*out\.training; the same command continues" if kept else "^$"
    with pytest.raises(KeyboardInterrupt, match=message):
        train(home, out=tmp_path / "out", **how)
    assert len(calls) == step
    resumed = train(home, out=tmp_path / "out", **how)
    notes = [line for line in capsys.readouterr().err.splitlines() if "resumed in" in line]
    assert notes == [f"minibert: resumed in {tmp_path}/out.training, after {kept} steps"] * (kept > 0)
    other = json.loads((tmp_path / "out" / "training.json").read_text())
    assert len(calls) == other["steps"] or not signalled  # after a signal no step is done twice
    assert_equal(dict(resumed.named_parameters()), dict(model.named_parameters()))
    for name in ("curve", "epochs", "dev", "tokens"):
        assert one[name] == other[name], name
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_second_signal_stops_a_run_at_once_and_a_run_without_a_state_leaves_nothing(
    home, tmp_path, monkeypatch, capfd
):
    def signalled(*args):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "one_step", signalled)
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        KINDS["classify"](home, out=tmp_path / "out", **EPOCHS)
    assert capfd.readouterr().err == "minibert: stopping after this step; a second signal stops at once\n"
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_without_a_step_does_not_block_the_corrected_one(home, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(loop, "one_step", Mock(side_effect=loop.NotFiniteError("the loss of step 1")))
        patch.setattr(checkpointer, "remove_run", lambda folder: None)  # a killed process cannot remove the folder
        with pytest.raises(loop.NotFiniteError):
            KINDS["classify"](home, out=tmp_path / "out", **EPOCHS)
    assert (tmp_path / "out.training").exists()
    KINDS["classify"](home, out=tmp_path / "out", **EPOCHS | {"epochs": 1, "learning_rate": 1e-4})
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_stops_after_a_signal_and_the_same_command_goes_on(number, home, tmp_path):
    command = [sys.executable, "-m", "minibert", "finetune", "classify", home / "train.tsv", "--out", tmp_path / "out"]
    command += ["--model", home / "words", "--max-length", "16", "--epochs", "2000"]
    interruptible = partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # a background job ignores Ctrl-C
    how = {"text": True, "preexec_fn": interruptible, "stdout": PIPE, "stderr": PIPE}
    with subprocess.Popen(command, **how) as process:
        while not any(tmp_path.glob("out.training/state-*")) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(number)
        said = process.communicate()[1]
    assert process.returncode == 128 + number, said
    steps = max(tmp_path.glob("out.training/state-*")).stem.removeprefix("state-").lstrip("0")
    where = f"{tmp_path}/out.training; the same command continues"
    assert f"interrupted: the run is kept up to step {int(steps):,}, in {where}\n" in said
    assert "Traceback" not in said


def test_training_in_another_thread_leaves_signals_alone(home):
    with ThreadPoolExecutor(1) as pool:
        usual = signal.getsignal(signal.SIGTERM)
        model = pool.submit(KINDS["classify"], home, **EPOCHS | {"epochs": 1}).result()
    assert model.head_is_trained
    assert signal.getsignal(signal.SIGTERM) is usual


def test_restart_forgets_an_unfinished_run_with_other_settings(home, tmp_path):
    (tmp_path / "out.training").mkdir()
    (tmp_path / "out.training" / checkpointer.LOCK).touch()
    (tmp_path / "out.training" / "run_config.json").write_text(
        '{"minibert": "1", "seed": 7, "processes": 1, "tokenizer": "other"}'
    )
    KINDS["mlm+nsp"](home, restart=True, out=tmp_path / "out", **STEPS | {"steps": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_score_of_the_majority_class_is_called_degenerate(home, tmp_path, monkeypatch):
    measure = Measure({"accuracy": 0.5, "degenerate": True}, "accuracy", "")
    monkeypatch.setattr("minibert.train.finetuning.FinetuneRun.measure", lambda *args, **more: measure)
    with pytest.warns(DegenerateWarning, match=r"dev.* 0\.500"):
        KINDS["classify"](home, **EPOCHS | {"epochs": 1})


# ---------------------------------------------------------------------------------------------------------------
# Settings

HUGE = 10**30
LOOP: dict[str, list[Any]] = {
    "epochs": [0, HUGE],
    "batch_size": [0, HUGE],
    "accumulate": [0, HUGE],
    "save_every": [0],
    "warmup": [-0.1, 1.0],
    "beta2": [1],
    "clip": [-1, 0.0],
    "learning_rate": [float("nan"), 0, 5],
    "weight_decay": [-0.1, 1e300],
    "seed": [-1, HUGE],
    "step": ["fast"],
    "precision": ["int8"],
}
BEYOND: dict[type, dict[str, list[Any]]] = {  # values just out of the limits of each setting
    TrainSettings: LOOP,
    FinetuneSettings: {"max_length": [0]},
    PretrainSettings: {"steps": [0, HUGE], "max_length": [7], "objective": ["clm"], "mask_rate": [0.0, 1.0]},
    DistillSettings: LOOP | {"temperature": [0.0], "layers": [0, HUGE], "places": ["some"]},
    VocabularySettings: {"size": [5, HUGE], "min_frequency": [0, HUGE]},
}
WEIGHTS = [
    (DistillSettings, (5.0, 2.0), "weights are 5.0,2.0; give 3 of at least 0"),
    (DistillSettings, (0.0, 0.0, 0.0), "whose sum is above 0"),
    (DistillSettings, (1e300, 0.0, 0.0), "whose sum is above 0 and at most 1000000"),
    (DistillClassifierSettings, (5.0, 2.0, 1.0), "give 2 of at least 0"),
    (DistillClassifierSettings, (5.0, -1.0), "give 2 of at least 0"),
]


@pytest.mark.parametrize(
    ("kind", "name", "value", "message"),
    [
        *(
            (kind, name, value, f"{name} is ")
            for kind in BEYOND
            for name in BEYOND[kind]
            for value in BEYOND[kind][name]
        ),
        *((kind, "weights", *rest) for kind, *rest in WEIGHTS),
    ],
)
def test_a_setting_out_of_its_limits_is_refused(kind, name, value, message):
    with pytest.raises(ValueError, match=message):
        kind(**{name: value})


# ---------------------------------------------------------------------------------------------------------------
# The curve


def test_training_json_of_millions_of_steps_has_means_of_consecutive_steps(monkeypatch):
    monkeypatch.setattr(run, "MOST_VALUES", 4)
    assert run.thinned([1.0, 2.0, 3.0, 4.0]) == [1, 2, 3, 4]
    assert run.thinned([1.0, 3.0, 5.0, 7.0, 9.0]) == [2, 6, 9]


@pytest.mark.parametrize("scores", [[], [{"f1": 0.5}, {"f1": 0.7}, {"f1": 0.6}]], ids=["no scores", "scores"])
def test_runs_are_plotted_with_and_without_scores(scores, tmp_path):
    run = {"steps": 8, "curve": [3.0, 2.0, 1.0, 2.0], "epochs": scores, "best_epoch": 2}
    plot_runs([run, run], "f1", tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000


# ---------------------------------------------------------------------------------------------------------------
# Random numbers


@pytest.mark.parametrize("kind", ["classify", "mlm+nsp", "distill classify"])
def test_training_leaves_the_random_numbers_of_its_user_alone(kind, home, tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    KINDS[kind](home, out=tmp_path / "out", **QUICK, **({"steps": 2} if kind in OF_STEPS else {"epochs": 1}))
    assert torch.equal(torch.get_rng_state(), before)


def test_two_trainings_with_one_seed_in_two_threads_give_the_same_bits(home, monkeypatch):
    """In the middle of the first, the second has as much time as it wants to take a step, which it must not take."""
    one_step, main, stepped = loop.one_step, threading.current_thread(), threading.Event()
    train = partial(KINDS["frozen"], home, **QUICK, epochs=2, step="readable")
    with ThreadPoolExecutor(1) as pool:
        second = []

        def watched(*args):
            if threading.current_thread() is not main:
                stepped.set()
            elif not second:
                second.append(pool.submit(train))
                stepped.wait(0.5)
            return one_step(*args)

        monkeypatch.setattr(loop, "one_step", watched)
        first = train()
        assert_equal(second[0].result().state_dict(), first.state_dict())
    assert_equal(train().state_dict(), first.state_dict())
