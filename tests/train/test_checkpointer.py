"""The checkpoints of a run: killed at any moment and resumed, it ends with the bits of one that never stopped."""

import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file
from support.damage import copies_of, flip
from support.models import assert_equal
from support.training import Changed
from support.words import labelled

import minibert
from minibert.tasks.classification import Classification
from minibert.train import checkpointer, loop
from minibert.train.checkpointer import (
    BEST,
    LOCK,
    Checkpointer,
    crc32,
    read_checked,
    read_progress,
    remove_run,
)
from minibert.train.finetuning import FinetuneRun
from minibert.train.settings import FinetuneSettings, TrainSettings

CONFIG = {"seed": 0, "learning_rate": 1e-2, "labels": ("a", "b"), "processes": 1, "tokenizer": "hash"}
TASK = Classification()
Act = Callable[[list[Any]], object]
pytestmark = pytest.mark.filterwarnings("ignore:all .* texts were predicted", "ignore:degenerate")


class Killed(BaseException):
    """The process ends here."""


kill: Act = Mock(side_effect=Killed)


def make_loss_nan(given: list[Any]) -> None:
    given[3] = Changed(given[3], lambda mean: mean * float("nan"))


def run(checkpoint: Path, folder: Path, every: int = 2, step: int = 0, act: Act = kill) -> list[int]:
    """Nine steps of fine-tuning with dropout, three an epoch: the numbers of those that were done by this call.

    act: called before that step, with what one_step is given, which it may change.
    """
    right, done = loop.one_step, list[int]()

    def one_step(*given):
        changed = list(given)
        if given[5] == step:
            act(changed)
        done.append(given[5])
        return right(*changed)

    how = {"epochs": 3, "batch_size": 4, "learning_rate": 1e-2, "accumulate": 2, "precision": "float32"}
    settings = FinetuneSettings(model=str(checkpoint), save_every=every, **how)
    data = TASK.from_labels(*labelled(18))
    second_is_best = patch("minibert.train.run.is_best", lambda progress, main: progress.epoch <= 2)
    with patch.object(loop, "one_step", one_step), second_is_best:
        trained = FinetuneRun.of(TASK, data, data, settings).train(folder)
    assert_equal(trained.model.state_dict(), load_file(folder / BEST))
    return done


@pytest.fixture(scope="module")
def whole(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    assert run(checkpoint, folder, every=1) == list(range(1, 10))
    return folder


@pytest.fixture(scope="module")
def killed(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was killed after its fifth step."""
    folder = tmp_path_factory.mktemp("killed")
    with pytest.raises(Killed):
        run(checkpoint, folder, every=1, step=6)
    return folder


def states(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("state-*"))


def metadata_of(path: Path) -> Any:
    with safe_open(path, framework="pt") as file:
        return file.metadata() or {}


def progress_of(folder: Path) -> loop.Progress:
    """The progress of the last state."""
    tensors, metadata = read_checked(folder / states(folder)[-1])
    return read_progress(tensors, json.loads(metadata["progress"]))


def assert_ended_alike(folder: Path, whole: Path) -> None:
    """The same weights, optimizer, random state and progress after the last step, and the same best weights."""
    for name in (states(whole)[-1], BEST):
        assert_equal(load_file(folder / name), load_file(whole / name))
    assert progress_of(folder) == progress_of(whole)
    assert metadata_of(folder / BEST) == metadata_of(whole / BEST)


# ---------------------------------------------------------------------------------------------------------------
# Killed


@pytest.mark.parametrize(("step", "every", "act"), [(1, 2, kill), (4, 2, kill), (7, 100, kill), (5, 1, make_loss_nan)])
def test_a_run_that_was_killed_in_any_step_or_whose_loss_is_not_finite_is_resumed_bit_for_bit(
    step, every, act, checkpoint, whole, tmp_path
):
    with pytest.raises(Killed if act is kill else loop.NotFiniteError):
        run(checkpoint, tmp_path / "run", every, step, act)
    assert step - every <= run(checkpoint, tmp_path / "run", every)[0] <= step
    assert_ended_alike(tmp_path / "run", whole)


@pytest.mark.slow
def test_a_run_that_was_killed_at_any_write_is_resumed_bit_for_bit(checkpoint, whole, tmp_path):
    folder, first_steps = tmp_path / "run", []
    for copy in copies_of(folder, tmp_path, lambda: run(checkpoint, folder, every=2)):
        (copy / ".state-00000004.safetensors.0123abcd").write_bytes(b"half")  # another process was writing
        first_steps.append([*run(checkpoint, copy, every=2), 10][0])
        assert_ended_alike(copy, whole)
        remove_run(copy)
        assert not copy.exists()  # half-written files are removed too
    assert first_steps == sorted(first_steps)  # no write loses a state
    assert set(first_steps) == {1, 3, 4, 5, 7, 9, 10}


TENSORS = ["random", *(f"{kind} classifier.weight" for kind in ("weight", "exp_avg", "exp_avg_sq", "step"))]
COUNTS = [("step", 4), ("batch", 2), ("epoch", 0)]


@pytest.mark.parametrize(("part", "value"), [*((name, 0) for name in TENSORS), *COUNTS])
def test_a_state_in_which_one_part_differs_ends_with_other_bits(part, value, checkpoint, whole, killed, tmp_path):
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    last = tmp_path / states(tmp_path)[-1]
    progress, tensors = json.loads(metadata_of(last)["progress"]), load_file(last)
    assert (progress["step"], progress["epoch"], progress["batch"]) == (5, 1, 4)
    if part in progress:
        progress[part] = value
    else:
        tensors[part].copy_(torch.Generator().get_state() if part == "random" else torch.tensor(value))
    stored = json.dumps(progress)
    save_file(tensors, last, metadata={"progress": stored, "crc32": crc32(tensors, stored)})
    run(checkpoint, tmp_path, every=1)
    ended, expected = (load_file(folder / states(folder)[-1]) for folder in (tmp_path, whole))
    assert not all(torch.equal(ended[name], expected[name]) for name in expected if name.startswith("weight "))


# ---------------------------------------------------------------------------------------------------------------
# What is kept


def test_a_finished_run_keeps_two_states_and_the_best_weights_and_trains_nothing_when_it_is_started_again(
    checkpoint, whole, tmp_path
):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    assert states(tmp_path) == ["state-00000008.safetensors", "state-00000009.safetensors"]
    names = [LOCK, BEST, "run_config.json", *states(tmp_path)]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert run(checkpoint, tmp_path) == []
    assert_ended_alike(tmp_path, whole)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1000]),
    "empty": lambda path: path.write_bytes(b""),
    "junk": lambda path: path.write_bytes(b"junk" * 999),
    "a bit of a weight": lambda path: flip(path, -1000),
    "of something else": lambda path: path.write_bytes(save({"x": torch.zeros(2)}, {"progress": "{}"})),
    "without progress": lambda path: path.write_bytes(save({"weight classifier.weight": torch.zeros(2, 24)})),
}


@pytest.mark.parametrize("damage", [*DAMAGE, "a digit of the progress"])
def test_of_a_last_state_that_is_damaged_a_warning_tells_and_the_one_before_it_is_used(
    damage, checkpoint, whole, tmp_path
):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    last = tmp_path / states(tmp_path)[-1]
    if damage in DAMAGE:
        DAMAGE[damage](last)
    else:
        flip(last, last.read_bytes().index(b"tokens") + 10)
    with pytest.warns(UserWarning, match=rf"{last.name}"):
        assert run(checkpoint, tmp_path, every=1) == [9]
    assert_ended_alike(tmp_path, whole)


def test_where_no_state_can_be_read_the_error_says_so_and_nothing_is_deleted(checkpoint, whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    for name in states(folder):
        flip(folder / name, -1000)
    before = sorted(folder.iterdir())
    with (
        pytest.warns(UserWarning, match=rf"{folder}/state-0000000[89].*checksum"),
        pytest.raises(ValueError, match=rf"{folder} .*restart=True"),
    ):
        run(checkpoint, folder)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("damage", ["a bit of a weight", "of something else", "missing"])
def test_damaged_best_weights_are_found_before_the_run_continues_and_nothing_is_deleted(
    damage, checkpoint, whole, tmp_path
):
    """The best epoch was the second of three, and its weights are nowhere else."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    DAMAGE.get(damage, Path.unlink)(tmp_path / BEST)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match=rf"{tmp_path / BEST}\b.*restart=True"):
        run(checkpoint, tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_the_progress_of_a_million_steps_is_kept_exactly(tmp_path):
    model, progress = torch.nn.Linear(2, 2), loop.Progress(step=1_000_000)
    optimizer = loop.new_optimizer(model, TrainSettings())
    progress.curve, progress.terms = [0.1, 1 / 3] * 500_000, {"masked-lm": [0.7] * 7}
    progress.scores = [{"accuracy": 0.1}] * 900
    with Checkpointer(tmp_path, CONFIG) as kept:
        kept.save(progress, model, optimizer)
    with Checkpointer(tmp_path, CONFIG) as kept:
        assert kept.resume(model, optimizer) == progress


def test_neither_frozen_weights_nor_a_state_after_a_loss_that_is_not_finite_are_saved(checkpoint, tmp_path):
    """The loss is not yet flushed: on a GPU that happens every twenty steps."""
    model = minibert.load(checkpoint, head="sequence-classification", new_head=True)
    model.encoder.requires_grad_(False)
    bad = loop.Progress(step=2, pending=[((), loop.StepResult(torch.tensor(float("inf")), torch.tensor(1.0), {}))])
    with Checkpointer(tmp_path, CONFIG) as checkpointer, pytest.raises(loop.NotFiniteError):
        for progress in (loop.Progress(step=1), bad):
            checkpointer.save(progress, model, loop.new_optimizer(model, TrainSettings()))
    assert states(tmp_path) == ["state-00000001.safetensors"]
    assert sorted(load_file(tmp_path / states(tmp_path)[0])) == [
        "curve",
        "random",
        "weight classifier.bias",
        "weight classifier.weight",
    ]


# ---------------------------------------------------------------------------------------------------------------
# Refused


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    "files",
    [
        {"lock": "yarn"},
        {LOCK: "", "state-00000001.safetensors": "of someone else"},
        {"run_config.json": ""},
        {"run_config.json": "[]", "windows.txt": "broken"},
        {"run_config.json": '{"minibert": "0.1.0"}', "best.safetensors": "x", LOCK: ""},
        {"run_config.json": json.dumps(CONFIG | {"minibert": "0.1.0"}), "state-00000001.safetensors": "x"},
        {"run_config.json": json.dumps(CONFIG), "state-00000001.safetensors": "x", LOCK: ""},
    ],
)
def test_a_folder_that_is_no_run_of_minibert_is_refused_and_stays_as_it_is(files, restart, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with (
        pytest.raises(ValueError, match=f"{tmp_path} holds .*{max(files)}.*run_config.json"),
        Checkpointer(tmp_path, CONFIG, restart),
    ):
        pass
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


@pytest.mark.parametrize("name", [LOCK, BEST, "state-00000005.safetensors", "run_config.json"])
def test_a_pipe_in_the_folder_of_a_run_is_refused_at_once(name, begun):
    (begun / name).unlink(missing_ok=True)
    os.mkfifo(begun / name)
    with pytest.raises(ValueError, match=rf"{name}\b"), Checkpointer(begun, CONFIG):
        pass


def test_the_folder_of_a_run_that_was_killed_before_it_wrote_its_config_is_used_and_removed(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / LOCK).touch()
    (folder / ".run_config.json.0123abcd").write_text("half")
    for _ in range(2):  # begun, and resumed
        with Checkpointer(folder, CONFIG):
            pass
    remove_run(folder)
    assert not folder.exists()


def test_only_files_with_exactly_the_names_of_a_run_are_removed(tmp_path):
    names = ["state-of-the-art.safetensors", "windows.md", ".my.own.notes", "best.safetensors.bak", "lock"]
    with Checkpointer(tmp_path, CONFIG):
        for name in (*names, "state-00000005.safetensors", BEST, "windows-1.txt", f".{BEST}.0123abcd"):
            (tmp_path / name).touch()
    with Checkpointer(tmp_path, CONFIG, restart=True):
        pass
    remove_run(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_a_folder_that_another_run_uses_is_refused_and_free_when_that_one_ends(tmp_path):
    refused = pytest.raises(RuntimeError, match=rf"{tmp_path}")
    with Checkpointer(tmp_path, CONFIG), refused, Checkpointer(tmp_path, CONFIG):
        pass
    with pytest.raises(Killed), Checkpointer(tmp_path, CONFIG):
        raise Killed
    with Checkpointer(tmp_path, CONFIG):
        pass


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """The folder of a run with a state and best weights."""
    with Checkpointer(tmp_path, CONFIG):
        for name in ("state-00000005.safetensors", BEST):
            (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": ["a", "c"]}, r"labels .*\['a', 'b'\].*\['a', 'c'\]"),
        ({"seed": 1, "dev": "x"}, r"seed .*0 .* 1\b.*dev .*None.*'x'"),
    ],
)
def test_a_run_with_another_config_is_not_resumed_and_the_differences_are_named(change, words, begun):
    before = {path.name: path.read_bytes() for path in begun.iterdir()}
    with pytest.raises(ValueError, match=words + ".*restart=True"), Checkpointer(begun, CONFIG | change):
        pass
    assert {path.name: path.read_bytes() for path in begun.iterdir()} == before
    with Checkpointer(begun, CONFIG | change, restart=True):
        assert states(begun) == [] and not (begun / BEST).exists()


def test_a_restart_that_is_killed_leaves_no_state_of_the_earlier_run(begun):
    killed = patch.object(checkpointer, "write_text_atomically", kill)
    with killed, pytest.raises(Killed), Checkpointer(begun, CONFIG | {"seed": 1}, restart=True):
        pass
    assert sorted(path.name for path in begun.iterdir()) == [LOCK, "run_config.json"]
    with Checkpointer(begun, CONFIG | {"seed": 1}):  # so any config may follow
        pass


def test_a_full_disk_is_reported_with_the_file_and_the_last_state_stays(checkpoint, whole, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(given):
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))  # the system refuses longer files

    try:
        with pytest.raises(OSError, match=r"state-00000005\.safetensors") as told:
            run(checkpoint, tmp_path, every=1, step=5, act=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "state-00000005.safetensors." not in str(told.value)  # not that of the temporary file
    assert states(tmp_path) == ["state-00000003.safetensors", "state-00000004.safetensors"]
    assert [path.name for path in tmp_path.glob(".*")] == [LOCK]
    assert run(checkpoint, tmp_path)[0] == 5
    assert_ended_alike(tmp_path, whole)


def test_a_state_is_due_after_so_many_steps_or_after_some_minutes(tmp_path, monkeypatch):
    with Checkpointer(tmp_path / "run", CONFIG) as kept:
        assert [step for step in range(1, 7) if kept.due(step, 3)] == [3, 6]
        assert not kept.due(3, None)
        monkeypatch.setattr(checkpointer, "SAVE_MINUTES", 0.0)
        assert kept.due(3, None)
