"""A run on the disk: killed at any moment and started again, it ends with the bits of one that never stopped."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_equal, write_checkpoint
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from training import WIDTH, batches_of

import minibert
from minibert import files
from minibert.heads import Head
from minibert.train import checkpointer as module
from minibert.train.checkpointer import BEST, Checkpointer
from minibert.train.loop import NotFiniteError, Progress, new_optimizer, packed_loss, train
from minibert.train.settings import TrainSettings

HEAD = "sequence-classification"
SETTINGS = TrainSettings(epochs=3, batch_size=4, learning_rate=1e-2, accumulate=2)  # of 18 rows: 3 steps an epoch
CONFIG = {"seed": 0, "learning_rate": 1e-2, "labels": ("a", "b")}
SCORES = [0.5, 0.9, 0.7]  # the second epoch is the best
Written = Callable[..., tuple[Path, Any]]
pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass
class Ended:
    """What a run came to: the weights that were trained last and those that are the best."""

    progress: Progress
    last: dict[str, Tensor]
    best: dict[str, Tensor]
    first_step: int  # where it began


def weights_of(model: Head) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def run(checkpoint: Path, folder: Path, every: int = 2, restart: bool = False, loss_of: Any = packed_loss) -> Ended:
    """A run as fine-tuning makes it: seeded, resumed, scored and kept after each epoch."""
    with Checkpointer(folder, CONFIG, every, restart) as checkpointer:
        torch.manual_seed(SETTINGS.seed)
        model = minibert.load(checkpoint, head=HEAD)
        optimizer = new_optimizer(model, SETTINGS)
        progress = checkpointer.resume(model, optimizer)
        first_step = progress.step

        def after_epoch(progress: Progress) -> None:
            scores = [score["accuracy"] for score in progress.scores]
            if scores[-1] > max(scores[:-1], default=-1):
                progress.best = progress.epoch - 1
                checkpointer.save_best(model)
            checkpointer.save(progress, model, optimizer)

        train(
            model,
            batches_of(HEAD, 18, 4),
            SETTINGS,
            loss_of=loss_of,
            score=lambda model: {"accuracy": SCORES[progress.epoch - 1]},
            progress=progress,
            optimizer=optimizer,
            after_step=lambda progress: checkpointer.after_step(progress, model, optimizer),
            after_epoch=after_epoch,
        )
        last = weights_of(model)
        checkpointer.load_best(model)
    return Ended(progress, last, weights_of(model), first_step)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(folder, head=HEAD, num_labels=3, num_hidden_layers=1, max_position_embeddings=WIDTH)
    return folder


@pytest.fixture(scope="module")
def whole(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The run that was not interrupted."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ended = run(checkpoint, tmp_path_factory.mktemp("whole") / "run")
    torch.set_num_threads(threads)
    assert ended.progress.best == 1
    return ended


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
    calls: list[int] = []

    def loss_of(model: Head, batch: Any) -> Tensor:
        calls.append(1)
        if len(calls) == call and factor is None:
            raise error
        return packed_loss(model, batch) * (factor if factor and len(calls) == call else 1)

    return loss_of


@pytest.mark.parametrize(("step", "every"), [(1, 2), (3, 2), (4, 2), (9, 2), (5, 100), (7, 100)])
def test_a_run_that_was_killed_in_any_step_is_resumed_bit_for_bit(
    step: int, every: int, checkpoint: Path, whole: Ended, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        run(checkpoint, tmp_path / "run", every, loss_of=killing(-(-step * 5 // 3), Killed()))  # 5 batches: 3 steps
    ended = run(checkpoint, tmp_path / "run", every)
    assert step - 1 - every <= ended.first_step < step
    assert_ended_alike(ended, whole)


@contextmanager
def photographed(folder: Path, album: Path, patch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """A copy of the folder before and after each time that a file is written, renamed or removed, and half-way.

    A copy that shows what the one before it does is left out.
    """
    pictures: list[Path] = []
    seen: list[dict[str, bytes]] = [{}]

    def take() -> None:
        shows = {path.name: path.read_bytes() for path in folder.glob("*")}
        if shows != seen[0]:
            seen[0] = shows
            pictures.append(album / f"{len(pictures):03d}")
            shutil.copytree(folder, pictures[-1])

    def around(function: Any) -> Any:
        def watched(*given: Any, **more: Any) -> Any:
            take()
            result = function(*given, **more)
            take()
            return result

        return watched

    def half_written(tensors: Any, path: Path, **more: Any) -> None:
        save_file(tensors, path, **more)
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        take()
        path.write_bytes(content)

    save_file = module.save_file
    with patch.context() as changed:
        changed.setattr(module, "save_file", around(half_written))
        changed.setattr(files.os, "replace", around(os.replace))
        changed.setattr(Path, "unlink", around(Path.unlink))
        changed.setattr(Path, "write_text", around(Path.write_text))
        yield pictures


@pytest.mark.slow
def test_a_run_that_was_killed_at_any_write_is_resumed_bit_for_bit(
    checkpoint: Path, whole: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with photographed(tmp_path / "run", tmp_path, monkeypatch) as pictures:
        run(checkpoint, tmp_path / "run", every=2)
    assert len(pictures) > 30
    begins = []
    for picture in pictures:
        for path in picture.glob(".*"):
            path.rename(path.with_suffix(".1"))  # another process wrote it
        ended = run(checkpoint, picture, every=2)
        assert_ended_alike(ended, whole)
        begins.append(ended.first_step)
        assert not [path for path in picture.iterdir() if path.name.startswith(".")]  # what was half written is gone
    assert begins == sorted(begins)  # no write loses a state
    assert set(begins) == {0, 2, 3, 4, 6, 8, 9}


def test_a_restarted_run_that_was_killed_at_any_write_resumes_as_its_config_says(
    checkpoint: Path, whole: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No state of the run that was dropped may be taken for one of the new run."""
    other = {**CONFIG, "seed": 1}
    with Checkpointer(tmp_path / "run", other, every=1) as checkpointer:
        model = minibert.load(checkpoint, head=HEAD)
        optimizer = new_optimizer(model, SETTINGS)
        torch.nn.init.ones_(model.classifier.weight)
        for step in (1, 2):
            checkpointer.save(Progress(step=step), model, optimizer)
        checkpointer.save_best(model)
    with (
        photographed(tmp_path / "run", tmp_path, monkeypatch) as pictures,
        Checkpointer(tmp_path / "run", CONFIG, every=1, restart=True),
    ):
        pass
    assert len(pictures) >= 5
    for picture in pictures:
        if json.loads((picture / "run_config.json").read_text())["seed"] == 1:
            with pytest.raises(ValueError, match="seed was 1 and is 0"):
                run(checkpoint, picture)
            continue
        ended = run(checkpoint, picture)
        assert ended.first_step == 0
        assert_ended_alike(ended, whole)


KILLS = """
import os, random, signal, sys, time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from train.test_checkpointer import run, assert_ended_alike

checkpoint, folder = Path(sys.argv[2]), Path(sys.argv[3])
for name in ("first", "whole"):  # the first loads what is loaded when it is needed
    begin = time.perf_counter()
    whole = run(checkpoint, folder / name, every=1)
length = time.perf_counter() - begin
random.seed(1)
killed = finished = 0
while killed < 30:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ended = run(checkpoint, folder / str(finished), every=1)
            assert_ended_alike(ended, whole)
            status = 0
        finally:
            os._exit(status)
    time.sleep(random.uniform(0, length))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        killed += 1
    else:
        assert status == 0, status
        finished += 1
ended = run(checkpoint, folder / str(finished), every=1)
assert_ended_alike(ended, whole)
print(killed)
"""


@pytest.mark.slow
def test_thirty_sigkills_at_random_moments_change_no_bit(checkpoint: Path, tmp_path: Path) -> None:
    """In processes of their own, forked from one that has loaded torch already."""
    done = subprocess.run(
        [sys.executable, "-c", KILLS, str(Path(__file__).parents[1]), str(checkpoint), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "30\n"


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
def test_a_state_in_which_any_part_is_another_ends_elsewhere(
    part: str, checkpoint: Path, whole: Ended, tmp_path: Path
) -> None:
    """What the comparison above would not see, it would not prove."""
    with pytest.raises(Killed):
        run(checkpoint, tmp_path, every=1, loss_of=killing(10, Killed()))
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


def test_the_last_two_states_and_the_best_weights_are_kept(checkpoint: Path, tmp_path: Path) -> None:
    run(checkpoint, tmp_path, every=2)
    assert states(tmp_path) == ["state-00000008.safetensors", "state-00000009.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [BEST, "lock", "run_config.json", *states(tmp_path)]


@pytest.mark.parametrize("damage", ["cut", "empty", "of something else", "without progress"])
def test_a_last_state_that_cannot_be_read_is_told_and_the_one_before_it_counts(
    damage: str, checkpoint: Path, whole: Ended, tmp_path: Path
) -> None:
    run(checkpoint, tmp_path, every=1)
    last = tmp_path / states(tmp_path)[-1]
    content = last.read_bytes()
    if damage in ("cut", "empty"):
        last.write_bytes(content[: len(content) * 9 // 10] if damage == "cut" else b"")
    else:
        metadata = {"progress": "{}"} if damage == "of something else" else {}
        save_file({"weight classifier.weight": torch.zeros(3, 24)}, last, metadata=metadata)
    with pytest.warns(UserWarning, match=f"{last.name} cannot be read .*using the state before it"):
        ended = run(checkpoint, tmp_path, every=1)
    assert ended.first_step == 8
    assert_ended_alike(ended, whole)


def test_a_finished_run_that_is_started_again_trains_nothing(checkpoint: Path, whole: Ended, tmp_path: Path) -> None:
    run(checkpoint, tmp_path)
    ended = run(checkpoint, tmp_path, loss_of=None)  # which would fail if it was called
    assert ended.first_step == 9
    assert_ended_alike(ended, whole)


def test_a_loss_that_is_not_finite_leaves_the_last_good_state(checkpoint: Path, whole: Ended, tmp_path: Path) -> None:
    with pytest.raises(NotFiniteError, match="step 5"):
        run(checkpoint, tmp_path, every=1, loss_of=killing(8, Killed(), float("nan")))
    assert states(tmp_path)[-1] == "state-00000004.safetensors"
    assert_ended_alike(run(checkpoint, tmp_path), whole)


def test_a_state_is_not_written_while_a_loss_that_nobody_looked_at_is_not_finite(
    checkpoint: Path, tmp_path: Path
) -> None:
    """As on a GPU, where losses are flushed every twenty steps."""
    model = minibert.load(checkpoint, head=HEAD)
    progress = Progress(step=1, pending=[((), {"loss": torch.tensor(float("inf"))})])
    with Checkpointer(tmp_path, CONFIG, every=1) as checkpointer, pytest.raises(NotFiniteError):
        checkpointer.after_step(progress, model, new_optimizer(model, SETTINGS))
    assert states(tmp_path) == []


def test_what_is_frozen_is_not_written(checkpoint: Path, tmp_path: Path) -> None:
    model = minibert.load(checkpoint, head=HEAD)
    model.encoder.requires_grad_(False)
    with Checkpointer(tmp_path, CONFIG, every=1) as checkpointer:
        checkpointer.save(Progress(step=1), model, new_optimizer(model, SETTINGS))
    with safe_open(tmp_path / states(tmp_path)[0], framework="pt") as file:
        assert sorted(file.keys()) == ["random", "weight classifier.bias", "weight classifier.weight"]


# ---------------------------------------------------------------------------------------------------------------
# Refused


def test_a_folder_that_another_run_uses_is_refused_and_free_when_that_one_ends(tmp_path: Path) -> None:
    refused = pytest.raises(RuntimeError, match=f"another process is writing {tmp_path}")
    with Checkpointer(tmp_path, CONFIG, every=1), refused, Checkpointer(tmp_path, CONFIG, every=1):
        pass
    with pytest.raises(ValueError, match="with other settings"), Checkpointer(tmp_path, {}, every=1):
        pass
    with pytest.raises(Killed), Checkpointer(tmp_path, CONFIG, every=1):
        raise Killed
    with Checkpointer(tmp_path, CONFIG, every=1):
        pass


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, "seed was 0 and is 1"),
        ({"learning_rate": 1e-3}, "learning_rate was 0.01 and is 0.001"),
        ({"labels": ["a", "c"]}, r"labels was \['a', 'b'\] and is \['a', 'c'\]"),
        ({"dev": "x"}, "dev was None and is 'x'"),
        ({"seed": 1, "dev": "x"}, "seed was 0 and is 1; dev was None and is 'x'"),
    ],
)
def test_a_run_that_was_begun_otherwise_is_not_resumed_and_what_differs_is_named(
    change: dict[str, Any], words: str, checkpoint: Path, whole: Ended, tmp_path: Path
) -> None:
    run(checkpoint, tmp_path, every=4)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=words + ".*--restart"), Checkpointer(tmp_path, CONFIG | change, every=4):
        pass
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with Checkpointer(tmp_path, CONFIG | change, every=4, restart=True):
        assert states(tmp_path) == [] and not (tmp_path / BEST).exists()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The system refuses to write more to a file, as it does where the disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_told_with_the_file_and_the_last_state_stays(
    checkpoint: Path, whole: Ended, tmp_path: Path
) -> None:
    calls: list[int] = []
    small = ExitStack()

    def loss_of(model: Head, batch: Any) -> Tensor:
        calls.append(1)
        if len(calls) == 8:
            small.enter_context(files_of_at_most(10_000))
        return packed_loss(model, batch)

    with pytest.raises(OSError, match=r"state-00000005\.safetensors") as told, small:
        run(checkpoint, tmp_path, every=1, loss_of=loss_of)
    assert "state-00000005.safetensors." not in str(told.value)  # not that of the temporary file
    assert states(tmp_path) == ["state-00000003.safetensors", "state-00000004.safetensors"]
    assert not list(tmp_path.glob(".*"))
    ended = run(checkpoint, tmp_path)
    assert ended.first_step == 4
    assert_ended_alike(ended, whole)
