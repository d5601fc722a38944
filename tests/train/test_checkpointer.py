"""The checkpoints of a run: killed at any moment and resumed, it ends with the bits of one that never stopped."""

from __future__ import annotations

import itertools
import json
import os
import resource
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_equal, write_checkpoint
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file
from torch import Tensor
from training import WIDTH, batches_of

import minibert
from minibert import files
from minibert.heads import Head
from minibert.train import checkpointer
from minibert.train.checkpointer import BEST, Checkpointer
from minibert.train.loop import NotFiniteError, Progress, new_optimizer, packed_loss, train
from minibert.train.settings import TrainSettings

HEAD = "sequence-classification"
SETTINGS = TrainSettings(epochs=3, batch_size=4, learning_rate=1e-2, accumulate=2)  # of 18 rows: 3 steps an epoch
CONFIG = {"seed": 0, "learning_rate": 1e-2, "labels": ("a", "b")}
SCORES = [0.5, 0.9, 0.7]  # by epoch: the second is the best


@dataclass
class Ended:
    """The result of a run: the weights of the last step and the best ones."""

    progress: Progress
    last: dict[str, Tensor]
    best: dict[str, Tensor]
    first_step: int  # where it began


def run(checkpoint: Path, folder: Path, every: int = 2, restart: bool = False, loss_of: Any = packed_loss) -> Ended:
    """A run as fine-tuning makes it: seeded, resumed, saved every few steps, and scored after each epoch."""
    with Checkpointer(folder, CONFIG, restart) as checkpointer:
        torch.manual_seed(SETTINGS.seed)
        model = minibert.load(checkpoint, head=HEAD)
        optimizer = new_optimizer(model, SETTINGS)
        progress = checkpointer.resume(model, optimizer)
        first_step = progress.step

        def after_step(progress: Progress) -> None:
            if progress.step % every == 0:
                checkpointer.save(progress, model, optimizer)

        def after_epoch(progress: Progress) -> None:
            progress.scores.append({"accuracy": SCORES[progress.epoch - 1]})
            if progress.epoch <= 2:
                progress.best = progress.epoch - 1
                checkpointer.save_best(model)
            checkpointer.save(progress, model, optimizer)

        train(
            model,
            batches_of(HEAD, 18, 4),
            SETTINGS,
            loss_of=loss_of,
            progress=progress,
            optimizer=optimizer,
            after_step=after_step,
            after_epoch=after_epoch,
        )
        last = {name: value.clone() for name, value in model.state_dict().items()}
        checkpointer.load_best(model)
    return Ended(progress, last, model.state_dict(), first_step)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(folder, head=HEAD, num_labels=3, num_hidden_layers=1, max_position_embeddings=WIDTH)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs are that several tests copy."""
    return tmp_path_factory.mktemp("folders")


@pytest.fixture(scope="module")
def whole(checkpoint: Path, folders: Path) -> Ended:
    """The run that was not interrupted."""
    return run(checkpoint, folders / "whole", every=1)


@pytest.fixture(scope="module")
def killed(checkpoint: Path, folders: Path) -> Path:
    """The folder of a run that was killed after its fifth step."""
    with pytest.raises(Killed):
        run(checkpoint, folders / "killed", every=1, loss_of=killing(10, Killed()))
    return folders / "killed"


def assert_ended_alike(ended: Ended, whole: Ended) -> None:
    assert vars(ended.progress) == vars(whole.progress)
    assert_equal(ended.last, whole.last)
    assert_equal(ended.best, whole.best)


class Killed(BaseException):
    """The process ends here."""


# ---------------------------------------------------------------------------------------------------------------
# Killed


def killing(call: int, error: BaseException, factor: float | None = None) -> Any:
    """A loss function that raises, or multiplies its loss by a factor, at its n-th call."""
    calls = itertools.count(1)

    def loss_of(model: Head, batch: Any) -> Tensor:
        now = next(calls) == call
        if now and factor is None:
            raise error
        return packed_loss(model, batch) * (factor if now and factor else 1)

    return loss_of


@pytest.mark.parametrize(
    ("step", "every", "factor"),
    [(1, 2, None), (4, 2, None), (7, 100, None), (5, 1, float("nan"))],
)
def test_a_run_that_was_killed_in_any_step_or_whose_loss_is_not_finite_is_resumed_bit_for_bit(
    step: int, every: int, factor: float | None, checkpoint: Path, whole: Ended, tmp_path: Path
) -> None:
    with pytest.raises(Killed if factor is None else NotFiniteError):  # 5 batches: 3 steps
        run(checkpoint, tmp_path / "run", every, loss_of=killing(-(-step * 5 // 3), Killed(), factor))
    ended = run(checkpoint, tmp_path / "run", every)
    assert step - 1 - every <= ended.first_step < step
    assert_ended_alike(ended, whole)


@pytest.mark.slow
def test_a_run_that_was_killed_at_any_write_is_resumed_bit_for_bit(
    checkpoint: Path, whole: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the folder before each time that a file appears or is removed is what a kill would leave."""
    folder, copies = tmp_path / "run", list[Path]()

    def copy_before(function: Any) -> Any:
        def watched(*given: Any, **more: Any) -> Any:
            copies.append(tmp_path / f"{len(copies):03d}")
            shutil.copytree(folder, copies[-1])
            return function(*given, **more)

        return watched

    with monkeypatch.context() as changed:
        changed.setattr(files.os, "replace", copy_before(os.replace))
        changed.setattr(Path, "unlink", copy_before(Path.unlink))
        run(checkpoint, folder, every=2)
    first_steps = []
    for copy in copies:
        (copy / ".state-00000004.safetensors.1").write_bytes(b"half")  # another process was writing
        ended = run(checkpoint, copy, every=2)
        assert_ended_alike(ended, whole)
        first_steps.append(ended.first_step)
        assert not list(copy.glob(".*"))  # half-written files are removed
    assert first_steps == sorted(first_steps)  # no write loses a state
    assert set(first_steps) == {0, 2, 3, 4, 6, 8, 9}


def test_a_restart_that_is_killed_leaves_no_state_of_the_earlier_run(
    killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(checkpointer, "write_text_atomically", killing(1, Killed()))
    with pytest.raises(Killed), Checkpointer(tmp_path, CONFIG | {"seed": 1}, restart=True):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "run_config.json"]
    monkeypatch.undo()
    with Checkpointer(tmp_path, CONFIG | {"seed": 1}):  # so any config may follow
        pass


LEFT_OUT: dict[str, Callable[[dict[str, Tensor], dict[str, Any]], Any]] = {
    "the random state": lambda tensors, progress: tensors.update(random=torch.Generator().manual_seed(7).get_state()),
    "the weights": lambda tensors, progress: tensors["weight classifier.weight"].mul_(1.0001),
    "the first moment": lambda tensors, progress: tensors["exp_avg classifier.weight"].zero_(),
    "the second moment": lambda tensors, progress: tensors["exp_avg_sq classifier.weight"].zero_(),
    "the steps of the optimizer": lambda tensors, progress: tensors["step classifier.weight"].zero_(),
    "the step, which decides the rate": lambda tensors, progress: progress.update(step=4),
    "the place in the epoch": lambda tensors, progress: progress.update(batch=2),
    "the epoch": lambda tensors, progress: progress.update(epoch=0),
}


@pytest.mark.parametrize("part", LEFT_OUT)
def test_a_state_in_which_one_part_differs_ends_with_other_bits(
    part: str, checkpoint: Path, whole: Ended, killed: Path, tmp_path: Path
) -> None:
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    last = tmp_path / states(tmp_path)[-1]
    with safe_open(last, framework="pt") as file:
        progress = json.loads(file.metadata()["progress"])
    assert (progress["step"], progress["epoch"], progress["batch"]) == (5, 1, 4)
    tensors = load_file(last)
    LEFT_OUT[part](tensors, progress)
    save_file(tensors, last, metadata={"progress": json.dumps(progress)})
    ended = run(checkpoint, tmp_path, every=1)
    assert not all(torch.equal(ended.last[name], whole.last[name]) for name in whole.last)


# ---------------------------------------------------------------------------------------------------------------
# What is kept


def states(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("state-*"))


def test_a_finished_run_keeps_two_states_and_the_best_weights_and_trains_nothing_when_it_is_started_again(
    checkpoint: Path, whole: Ended, folders: Path, tmp_path: Path
) -> None:
    shutil.copytree(folders / "whole", tmp_path, dirs_exist_ok=True)
    assert states(tmp_path) == ["state-00000008.safetensors", "state-00000009.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [BEST, "lock", "run_config.json", *states(tmp_path)]
    ended = run(checkpoint, tmp_path, loss_of=None)  # which would fail if it was called
    assert ended.first_step == 9
    assert_ended_alike(ended, whole)


@pytest.mark.parametrize("damage", ["cut", "empty", "of something else", "without progress"])
def test_of_a_last_state_that_cannot_be_read_a_warning_tells_and_the_one_before_it_is_used(
    damage: str, checkpoint: Path, whole: Ended, folders: Path, tmp_path: Path
) -> None:
    shutil.copytree(folders / "whole", tmp_path, dirs_exist_ok=True)
    last = tmp_path / states(tmp_path)[-1]
    zeros = {"weight classifier.weight": torch.zeros(3, 24)}
    damaged = {
        "cut": last.read_bytes()[:-1000],
        "empty": b"",
        "of something else": save(zeros, {"progress": "{}"}),
        "without progress": save(zeros),
    }
    last.write_bytes(damaged[damage])
    with pytest.warns(UserWarning, match=f"{last.name} cannot be read .*using the state before it"):
        ended = run(checkpoint, tmp_path, every=1)
    assert ended.first_step == 8
    assert_ended_alike(ended, whole)


def test_neither_frozen_weights_nor_a_state_after_a_loss_that_is_not_finite_are_saved(
    checkpoint: Path, tmp_path: Path
) -> None:
    """The loss is not yet flushed: on a GPU that happens every twenty steps."""
    model = minibert.load(checkpoint, head=HEAD)
    model.encoder.requires_grad_(False)
    bad = Progress(step=2, pending=[((), {"loss": torch.tensor(float("inf"))})])
    with Checkpointer(tmp_path, CONFIG) as checkpointer, pytest.raises(NotFiniteError):
        for progress in (Progress(step=1), bad):
            checkpointer.save(progress, model, new_optimizer(model, SETTINGS))
    assert states(tmp_path) == ["state-00000001.safetensors"]
    assert sorted(load_file(tmp_path / states(tmp_path)[0])) == [
        "random",
        "weight classifier.bias",
        "weight classifier.weight",
    ]


# ---------------------------------------------------------------------------------------------------------------
# Refused


def test_a_folder_that_another_run_uses_is_refused_and_free_when_that_one_ends(tmp_path: Path) -> None:
    refused = pytest.raises(RuntimeError, match=f"another process is writing {tmp_path}")
    with Checkpointer(tmp_path, CONFIG), refused, Checkpointer(tmp_path, CONFIG):
        pass
    with pytest.raises(Killed), Checkpointer(tmp_path, CONFIG):
        raise Killed
    with Checkpointer(tmp_path, CONFIG):
        pass


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": ["a", "c"]}, r"labels was \['a', 'b'\] and is \['a', 'c'\]"),
        ({"seed": 1, "dev": "x"}, "seed was 0 and is 1; dev was None and is 'x'"),
    ],
)
def test_a_run_with_another_config_is_not_resumed_and_the_differences_are_named(
    change: dict[str, Any], words: str, killed: Path, tmp_path: Path
) -> None:
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=words + ".*--restart"), Checkpointer(tmp_path, CONFIG | change):
        pass
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with Checkpointer(tmp_path, CONFIG | change, restart=True):
        assert states(tmp_path) == [] and not (tmp_path / BEST).exists()


def test_a_full_disk_is_reported_with_the_file_and_the_last_state_stays(
    checkpoint: Path, whole: Ended, tmp_path: Path
) -> None:
    calls, limits = itertools.count(1), resource.getrlimit(resource.RLIMIT_FSIZE)

    def loss_of(model: Head, batch: Any) -> Tensor:
        if next(calls) == 8:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))  # the system refuses longer files
        return packed_loss(model, batch)

    try:
        with pytest.raises(OSError, match=r"state-00000005\.safetensors") as told:
            run(checkpoint, tmp_path, every=1, loss_of=loss_of)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "state-00000005.safetensors." not in str(told.value)  # not that of the temporary file
    assert states(tmp_path) == ["state-00000003.safetensors", "state-00000004.safetensors"]
    assert not list(tmp_path.glob(".*"))
    ended = run(checkpoint, tmp_path)
    assert ended.first_step == 4
    assert_ended_alike(ended, whole)


def test_a_state_is_due_after_so_many_steps_or_after_some_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Checkpointer(tmp_path / "run", CONFIG) as kept:
        assert [step for step in range(1, 7) if kept.due(step, 3)] == [3, 6]
        assert not kept.due(3, None)
        monkeypatch.setattr(checkpointer, "SAVE_MINUTES", 0.0)
        assert kept.due(3, None)
