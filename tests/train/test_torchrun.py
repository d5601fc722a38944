"""Two processes train what one does: the same weights, one voice, and after a kill the same bits.

ranks.py runs in the processes; torchrun starts them here as its users do.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import ranks
import torch
from helpers import assert_equal
from ranks import CASES, DOUBLE, SHARDED, Ended
from safetensors.torch import load_file
from torch import Tensor
from words import write_tsv, write_words_checkpoint

from minibert.train.batches import Batch
from minibert.train.distributed import SINGLE_PROCESS
from minibert.train.loop import new_optimizer, train
from minibert.train.pretraining import PretrainRun

TESTS = Path(__file__).parents[1]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
QUIET = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
CLOSE, CLOSE_DOUBLE = 1e-6, 1e-12
FAR = 1e-4  # what a mistake makes
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@dataclass(frozen=True)
class Launched:
    """What two processes left behind."""

    folder: Path

    def weights(self, name: str, rank: int = 0) -> dict[str, Tensor]:
        return load_file(self.folder / f"{name}-{rank}.safetensors")

    def curve(self, name: str, rank: int = 0) -> list[float]:
        found: list[float] = json.loads((self.folder / f"{name}-{rank}.json").read_text())
        return found


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the trainings of ranks.py, in two processes; one start of torchrun for all of them."""
    folder = tmp_path_factory.mktemp("launched")
    for group in ranks.GROUPS:
        (folder / group).mkdir()
        ranks.write_corpus(folder / group)
    done = subprocess.run([*TORCHRUN, str(TESTS / "ranks.py"), str(folder)], env=QUIET, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert not done.stderr, "a warning that concerns no user"
    return folder


@pytest.fixture(scope="module")
def equal(launched: Path) -> Launched:
    """The trainings in which each process has the whole model."""
    return Launched(launched / "equal")


@pytest.fixture(scope="module")
def sharded(launched: Path) -> Launched:
    """Those with a sharded model."""
    return Launched(launched / "sharded")


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference of two models."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def assert_trained_alike(launched: Launched, name: str, alone: Ended, close: float = CLOSE) -> None:
    assert len(alone.progress.curve) >= 20 or name == "corpus"
    assert_equal(launched.weights(name, 0), launched.weights(name, 1))
    assert launched.curve(name, 0) == launched.curve(name, 1)
    assert apart(launched.weights(name), alone.weights) < close
    # The losses beside them: each is a sum over many weights, so that it differs by more than any of them.
    torch.testing.assert_close(launched.curve(name), alone.progress.curve, rtol=10 * close, atol=10 * close)


# ---------------------------------------------------------------------------------------------------------------
# The same weights


@pytest.mark.parametrize("name", CASES)
def test_two_processes_end_with_the_weights_of_one(name: str, equal: Launched) -> None:
    """Uneven last batches, steps of two batches, rows without a label, several objectives, labels that count more."""
    assert_trained_alike(equal, name, CASES[name].run(SINGLE_PROCESS))


@pytest.mark.parametrize("name", DOUBLE)
def test_what_differs_in_float32_is_rounding(name: str, equal: Launched) -> None:
    assert_trained_alike(equal, f"{name}, double", DOUBLE[name].run(SINGLE_PROCESS), CLOSE_DOUBLE)


def test_a_step_in_which_no_rank_has_a_label_is_left_out(equal: Launched) -> None:
    assert 0.0 in equal.curve("mlm") and sum(loss > 0 for loss in equal.curve("mlm")) > 15


def test_the_mean_of_the_ranks_means_would_be_seen(equal: Launched) -> None:
    alone = CASES["classify"].run(SINGLE_PROCESS)
    assert apart(equal.weights("mean of means"), alone.weights) > FAR
    assert apart(equal.weights("mean of means", 0), equal.weights("mean of means", 1)) == 0


def test_a_rank_whose_gradients_are_not_summed_would_be_seen(equal: Launched) -> None:
    alone = CASES["classify"].run(SINGLE_PROCESS)
    assert apart(equal.weights("never summed"), alone.weights) > FAR
    assert apart(equal.weights("never summed", 0), equal.weights("never summed", 1)) > FAR


@pytest.mark.parametrize("name", SHARDED)
def test_a_model_that_is_sharded_learns_the_same(name: str, sharded: Launched) -> None:
    case = SHARDED[name]
    alone = replace(case, settings=replace(case.settings, shard="none"))
    assert_trained_alike(sharded, name, alone.run(SINGLE_PROCESS))


# ---------------------------------------------------------------------------------------------------------------
# A corpus


class Joined:
    """The batches of two ranks in turn, for one process."""

    def __init__(self, run: PretrainRun, folder: Path) -> None:
        self.batches_per_epoch = 2 * run.settings.steps * run.settings.accumulate
        stream = replace(run.batches(folder), journal=None)
        self.streams = [replace(stream, rank=rank, ranks=2, counts=[]) for rank in (0, 1)]

    def epoch_batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        for both in zip(*(stream.epoch_batches(epoch) for stream in self.streams), strict=True):
            yield from both


def test_two_processes_learn_a_corpus_as_one_that_reads_for_both(equal: Launched, tmp_path: Path) -> None:
    run = ranks.corpus_run(equal.folder)
    torch.manual_seed(run.settings.seed)
    model = run.new_model()
    settings = replace(run.settings, accumulate=2 * run.settings.accumulate)
    how = {"loss_of": run.objective, "optimizer": new_optimizer(model, settings)}
    progress = train(model, Joined(run, tmp_path), settings, **how)
    assert_trained_alike(equal, "corpus", Ended(progress, {name: p.detach() for name, p in model.named_parameters()}))


def test_each_rank_reads_its_own_windows_alone(equal: Launched) -> None:
    windows = ranks.corpus_run(equal.folder).corpus.windows
    read = [json.loads((equal.folder / f"read-{rank}.json").read_text()) for rank in (0, 1)]
    assert windows > 8 and min(map(len, read)) > 2
    assert {window % 2 for window in read[0]} == {0}
    assert {window % 2 for window in read[1]} == {1}
    assert sorted(path.name for path in (equal.folder / "run").glob("windows*")) == ["windows-0.txt", "windows-1.txt"]


# ---------------------------------------------------------------------------------------------------------------
# Kept and resumed


def assert_resumed(launched: Launched) -> None:
    assert_equal(launched.weights("resumed"), launched.weights("whole"))
    assert launched.curve("resumed") == launched.curve("whole")
    assert apart(launched.weights("resumed wrongly"), launched.weights("whole")) > FAR


def test_two_processes_resume_bit_for_bit(equal: Launched) -> None:
    assert_resumed(equal)


def test_a_model_that_is_sharded_is_resumed_bit_for_bit(sharded: Launched) -> None:
    assert_resumed(sharded)
    kept = load_file(max((sharded.folder / "kept").glob("state-*")))
    whole = dict(ranks.new_model("sequence-classification").named_parameters())
    assert {name: kept[f"exp_avg {name}"].shape for name in whole} == {name: p.shape for name, p in whole.items()}


# ---------------------------------------------------------------------------------------------------------------
# The commands


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with its tokenizer and a table of labelled texts."""
    folder = write_words_checkpoint(tmp_path_factory.mktemp("words"), num_hidden_layers=1)
    write_tsv(folder / "train.tsv", 96)
    return folder


def finetune(words: Path, out: Path, *more: str) -> list[str]:
    """The command, as typed."""
    data, how = str(words / "train.tsv"), ["--batch-size", "4", "--precision", "float32", "--save-every", "2"]
    columns = ["--text", "1", "--label", "2"]
    command = [*TORCHRUN, "-m", "minibert", "finetune", "classify", data, "--model", str(words), "--out", str(out)]
    return [*command, *columns, *how, *more]


def test_the_command_speaks_once_and_writes_one_folder(words: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    command = finetune(words, out, "--epochs", "2", "--dev", str(words / "train.tsv"), "--json")
    done = subprocess.run(command, env=QUIET, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [done.stdout.count(word) for word in ("epoch 1 ", "epoch 2 ", "saved in")] == [1, 1, 1]
    report, figures = json.loads((out / "training.json").read_text()), json.loads(done.stdout.splitlines()[-1])
    assert report["asked"]["processes"] == 2 and report["asked"]["shard"] == "none"
    assert report["asked"]["batch_size"] == 4 and report["steps"] == 2 * 24
    assert figures["tokens"] == report["tokens"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def rank_of(process: int) -> str | None:
    """The rank that torchrun gave a process."""
    told = dict(part.split("=", 1) for part in Path(f"/proc/{process}/environ").read_text().split("\0") if "=" in part)
    return told.get("RANK")


def kill_rank(torchrun: subprocess.Popen[bytes], rank: int) -> None:
    """SIGKILL one of the processes that torchrun started."""
    children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
    (victim,) = [int(child) for child in children if rank_of(int(child)) == str(rank)]
    os.kill(victim, signal.SIGKILL)


def wait_for(folder: Path, states: int) -> None:
    """Until the run has gone so many steps."""
    for _ in range(1200):
        if any(path.name >= f"state-{states:08d}" for path in folder.glob("state-*")):
            return
        time.sleep(0.05)
    raise AssertionError(f"no state in {folder}")


def pretrain(words: Path, out: Path, *more: str) -> list[str]:
    """Another command; it reads a corpus as it goes."""
    read = out.parent / "read"
    read.mkdir(exist_ok=True)
    ranks.write_corpus(read)
    corpus, config = (str(read / name) for name in ("corpus.txt", "config.json"))
    command = [*TORCHRUN, "-m", "minibert", "pretrain", corpus, "--config", config, "--tokenizer", str(read)]
    how = ["--steps", "40", "--batch-size", "4", "--max-length", "11", "--precision", "float32", "--save-every", "2"]
    return [*command, "--out", str(out), *how, *more]


@pytest.mark.skipif(sys.platform != "linux", reason="SIGKILL, and the processes of torchrun are found in /proc")
@pytest.mark.parametrize(("command", "rank", "shard"), [(finetune, 1, "none"), (pretrain, 0, "full")])
def test_a_rank_that_is_killed_ends_all_and_the_same_command_resumes_bit_for_bit(
    command: Callable[..., list[str]], rank: int, shard: str, words: Path, tmp_path: Path
) -> None:
    more = ["--accumulate", "2", "--shard", shard]
    whole, out = tmp_path / "whole", tmp_path / "model"
    subprocess.run(command(words, whole, *more), env=QUIET, check=True, stdout=subprocess.DEVNULL)
    with subprocess.Popen(
        command(words, out, *more), env=QUIET, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as torchrun:
        wait_for(tmp_path / "model.training", 6)
        kill_rank(torchrun, rank)
        assert torchrun.wait(60) != 0
    assert not out.exists()
    done = subprocess.run(command(words, out, *more), env=QUIET, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    curves = [json.loads((folder / "training.json").read_text())["curve"] for folder in (whole, out)]
    assert curves[0] == curves[1]
