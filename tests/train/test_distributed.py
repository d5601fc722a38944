"""Who a process is, what is refused before it meets others, and which rows and windows are whose.

Two processes train what one does: the same weights, one output, and after a kill the same bits. support/ranks.py runs
in the processes; torchrun starts them here as its users do.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from support import ranks
from support.models import assert_equal
from support.ranks import CASES, Ended
from support.training import CHOICES, batches_of, to_the_end
from support.words import write_tsv, write_words_checkpoint
from torch import Tensor

from minibert.prediction.collate import ExampleBatch
from minibert.train import distributed, finetune, pretrain
from minibert.train.corpus import CorpusFile
from minibert.train.distributed import DistributedContext
from minibert.train.loop import new_optimizer, train
from minibert.train.pretraining import PretrainRun


def as_rank(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    """The environment of a process of torchrun; no process group is started."""
    variables = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


# ---------------------------------------------------------------------------------------------------------------
# Who this process is


def test_the_context_follows_the_environment_of_torchrun(monkeypatch):
    assert distributed.context() is distributed.SINGLE_PROCESS and distributed.SINGLE_PROCESS.is_main
    as_rank(monkeypatch, 3, 8)
    assert (distributed.context().rank, distributed.context().size, distributed.context().is_main) == (3, 8, False)
    as_rank(monkeypatch, 0, 1)
    assert distributed.context() is distributed.SINGLE_PROCESS
    as_rank(monkeypatch, 0, 2)
    monkeypatch.delenv("MASTER_PORT")
    assert (
        distributed.context() is distributed.SINGLE_PROCESS
    )  # a number of processes alone, which other programs set too, says nothing


def test_ranks_draw_numbers_of_their_own():
    drawn = set[float]()
    for rank in range(3):
        distributed.DistributedContext(rank, 3, rank).seed(5)
        drawn.add(float(torch.rand(())))
    assert len(drawn) == 3


def test_only_the_main_process_prints(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # restored at the end
    with warnings.catch_warnings():
        for rank in (0, 1):
            as_rank(monkeypatch, rank, 2)
            distributed.silence_other_ranks()
            print(f"figure of rank {rank}")
            print(f"error of rank {rank}", file=sys.stderr)
        warnings.warn("not shown", stacklevel=1)
    sys.stdout.close()
    assert capsys.readouterr() == ("figure of rank 0\n", "error of rank 0\nerror of rank 1\n")


# ---------------------------------------------------------------------------------------------------------------
# What is refused


def test_what_ranks_cannot_share_is_refused_before_anything_is_computed(monkeypatch, tmp_path):
    out, texts = tmp_path / "out", ["good", "bad"]
    as_rank(monkeypatch, 0, 4)
    with pytest.raises(ValueError, match=r"batch_size is 33\b.*4 processes.* 32$"):
        finetune("classify", texts, texts, model="missing", out=out, batch_size=33)
    with pytest.raises(ValueError, match="batch_size is 7"):
        pretrain("missing", out=out, init="missing", batch_size=7)
    assert not out.exists()


class Gathered(DistributedContext):
    """A rank that has the configurations of all ranks; the last of them is of a rank that has ended."""

    def __init__(self, rank: int, *configs: Any) -> None:
        super().__init__(rank, len(configs))
        self.configs = configs

    def gather(self, own: Any) -> list[Any]:
        assert own == self.configs[self.rank]
        return list(self.configs)


EPOCHS = ({"epochs": 3, "labels": ["a", "b"]}, {"epochs": 3, "labels": ["a", "b"]}, {"epochs": 2, "rows": 7})


def test_a_rank_with_another_configuration_says_what_differs():
    with pytest.raises(ValueError, match=r"^rank 2\b.* rank 0: epochs is 2\b.* 3, labels is None\b.*'b'.*rows is 7"):
        Gathered(2, *EPOCHS).compare(EPOCHS[2])
    hashed = ({"train_sha256": "1"}, {"train_sha256": "2"})
    with pytest.raises(ValueError, match="rank 0: the training data; "):
        Gathered(1, *hashed).compare(hashed[1])
    Gathered(1, *EPOCHS[:2]).compare(EPOCHS[1])
    distributed.SINGLE_PROCESS.compare(EPOCHS[0])


@pytest.mark.parametrize("rank", [0, 1])
def test_the_other_ranks_end_too_once_it_has(rank, monkeypatch):
    class Broken:
        def wait(self, most: timedelta) -> None:
            assert most <= timedelta(minutes=1)
            raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr("torch.distributed.all_reduce", lambda *_, **__: Broken())
    with pytest.raises(SystemExit, match=r"^1$"):
        Gathered(rank, *EPOCHS).compare(EPOCHS[rank])


@pytest.mark.parametrize("differs", ["data", "seed", "learning_rate", "precision", "epochs", "save_every", "out"])
def test_all_that_determines_a_run_is_compared_before_its_folder_is_made(differs, words, tmp_path, monkeypatch):
    compared = []

    def compare(self, config):
        compared.append(config)
        raise SystemExit

    monkeypatch.setattr(DistributedContext, "compare", compare)
    other = {"seed": 1, "learning_rate": 1e-3, "precision": "bfloat16", "epochs": 2, "save_every": 9}
    for changed in (False, True):
        own = {differs: other[differs]} if changed and differs in other else {}
        texts = ["good film", "bad film"] + ["dull book"] * (changed and differs == "data")
        out = tmp_path / ("there" if changed and differs == "out" else "here")
        with pytest.raises(SystemExit):
            finetune("classify", texts, ["a", "b", "b"][: len(texts)], model=words, out=out, **own)
    before, now = compared
    assert distributed.differing(before, now) == ["train_sha256" if differs == "data" else differs]
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------------------------------------------
# Whose rows


@given(st.integers(1, 9), st.integers(1, 5), st.sampled_from(["token-classification", "multiple-choice"]))
def test_each_row_of_a_batch_is_given_to_one_rank(rows, ranks, head):
    batch = batches_of(head, rows, rows).of_rows(range(rows))
    shards = [batch.shard(rank, ranks) for rank in range(ranks)]
    busy = [shard for shard in shards if not shard.idle]
    assert sorted(row for shard in busy for row in shard.rows) == list(range(rows))
    assert sum(shard.tokens for shard in shards) == batch.tokens
    each = CHOICES if head == "multiple-choice" else 1
    for shard in shards:
        assert len(shard.rows) == len(shard.labels["labels"]) >= 1  # nobody stands idle without a row to compute
        for number, row in enumerate(shard.rows):
            for name in ("input_ids", "attention_mask", "token_type_ids"):
                ours, whole = getattr(shard, name), getattr(batch, name)
                assert torch.equal(ours[number * each : (number + 1) * each], whole[row * each : (row + 1) * each])
            assert torch.equal(shard.labels["labels"][number], batch.labels["labels"][row])


# ---------------------------------------------------------------------------------------------------------------
# Whose windows


@given(st.integers(1, 2000), st.integers(1, 7))
def test_ranks_have_as_many_windows_of_a_corpus(size, ranks):
    corpus = CorpusFile(Path("corpus.txt"), end=size, window=100).for_ranks(ranks)
    assert corpus.window <= 100
    if ranks == 1:
        assert corpus.window == 100
    elif size >= 100 * ranks:  # a few bytes make no windows
        assert corpus.windows % ranks == 0


# ---------------------------------------------------------------------------------------------------------------
# In two processes

TESTS = Path(__file__).parents[1]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
QUIET = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
CLOSE, CLOSE_DOUBLE = 1e-6, 1e-12
FAR = 1e-4  # what a mistake makes


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the trainings of support/ranks.py, in two processes; one start of torchrun for all of them."""
    folder = tmp_path_factory.mktemp("launched")
    ranks.write_corpus(folder)
    done = subprocess.run(
        [*TORCHRUN, "-m", "support.ranks", str(folder)], cwd=TESTS, env=QUIET, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert not done.stderr, "a warning that concerns no user"
    return folder


def weights(folder: Path, name: str, rank: int = 0) -> dict[str, Tensor]:
    return load_file(folder / f"{name}-{rank}.safetensors")


def curve(folder: Path, name: str, rank: int = 0) -> Any:
    return json.loads((folder / f"{name}-{rank}.json").read_text())


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference of two models."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def assert_trained_alike(launched: Path, name: str, alone: Ended) -> None:
    close = CLOSE_DOUBLE if "double" in name else CLOSE
    assert len(alone.progress.curve) >= 20 or name == "corpus"
    assert_equal(weights(launched, name, 0), weights(launched, name, 1))
    assert curve(launched, name, 0) == curve(launched, name, 1)
    assert apart(weights(launched, name), alone.weights) < close
    # The losses beside them: each is a sum over many weights, so that it differs by more than any of them.
    torch.testing.assert_close(curve(launched, name), alone.progress.curve, rtol=10 * close, atol=10 * close)


# ---------------------------------------------------------------------------------------------------------------
# The same weights


def alone(name: str, folder: Path) -> Ended:
    return CASES[name].run(distributed.SINGLE_PROCESS, folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_processes_end_with_the_weights_of_one(name, launched, tmp_path):
    """Uneven last batches, steps of two batches, rows without a label, several objectives, weighted labels."""
    assert_trained_alike(launched, name, alone(name, tmp_path))


@pytest.mark.slow
def test_a_step_in_which_no_rank_has_a_label_is_left_out(launched):
    assert 0.0 in curve(launched, "mlm") and sum(loss > 0 for loss in curve(launched, "mlm")) > 15


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "ranks_differ"), [("mean of means", False), ("never summed", True), ("left out", True)]
)
def test_a_mistake_in_summing_is_caught(mistake, ranks_differ, launched, tmp_path):
    assert apart(weights(launched, mistake), alone(ranks.MISTAKES[mistake][0], tmp_path).weights) > FAR
    assert (apart(weights(launched, mistake, 0), weights(launched, mistake, 1)) > FAR) == ranks_differ


@pytest.mark.slow
def test_texts_that_are_compared_only_with_those_of_their_rank_end_elsewhere(launched, tmp_path):
    assert apart(weights(launched, "own texts"), alone("vectors", tmp_path).weights) > FAR


@pytest.mark.slow
def test_weights_cast_together_change_no_bit(launched):
    one, other = (weights(launched, f"mlm+nsp, {ending}") for ending in ("one by one", "together"))
    assert_equal(one, other)
    assert apart(one, weights(launched, "mlm+nsp")) > FAR  # it has learned for longer, and in float32


class Interleaved:
    """The batches of two ranks in turn, for one process."""

    def __init__(self, run: PretrainRun, folder: Path) -> None:
        self.batches_per_epoch = 2 * run.settings.steps * run.settings.accumulate
        stream = replace(run.batches(folder), journal=None)
        self.streams = [replace(stream, rank=rank, ranks=2) for rank in (0, 1)]

    def epoch_batches(self, epoch: int, first: int = 0) -> Iterator[ExampleBatch]:
        for both in zip(*(stream.epoch_batches(epoch) for stream in self.streams), strict=True):
            yield from both


@pytest.mark.slow
def test_two_processes_learn_a_corpus_as_one_that_reads_for_both(launched, tmp_path):
    run = ranks.corpus_run(launched)
    torch.manual_seed(run.settings.seed)
    model = run.new_model()
    settings = replace(run.settings, accumulate=2 * run.settings.accumulate)
    batches = Interleaved(run, tmp_path)
    windows = [set(stream.windows) for stream in batches.streams]
    assert windows[0] | windows[1] == set(range(run.corpus.windows)) and not windows[0] & windows[1]
    optimizer = new_optimizer(model, settings)
    progress = to_the_end(train(model, batches, settings, loss_of=run.objective, optimizer=optimizer))
    assert_trained_alike(
        launched, "corpus", Ended(progress, {name: value.detach() for name, value in model.named_parameters()})
    )
    assert sorted(path.name for path in (launched / "run").glob("windows*")) == ["windows-0.txt", "windows-1.txt"]


# ---------------------------------------------------------------------------------------------------------------
# Resumed


@pytest.mark.slow
def test_two_processes_resume_bit_for_bit(launched):
    name = "classify"
    assert_equal(weights(launched, f"{name}, resumed"), weights(launched, f"{name}, whole"))
    assert curve(launched, f"{name}, resumed") == curve(launched, f"{name}, whole")
    assert apart(weights(launched, f"{name}, resumed wrongly"), weights(launched, f"{name}, whole")) > FAR
    saved = load_file(max((launched / f"{name}, saved").glob("state-*")))
    for parameter, value in CASES[name].new_model().named_parameters():
        assert saved[f"exp_avg {parameter}"].shape == value.shape  # whole, on every rank


# ---------------------------------------------------------------------------------------------------------------
# The commands


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with its tokenizer and a table of labelled texts."""
    folder = write_words_checkpoint(tmp_path_factory.mktemp("words"), num_hidden_layers=1)
    write_tsv(folder / "train.tsv", 96)
    return folder


def finetune_command(words: Path, out: Path) -> list[str]:
    data, how = str(words / "train.tsv"), ["--batch-size", "4", "--epochs", "2", "--precision", "float32"]
    how += ["--save-every", "2", "--text", "1", "--label", "2", "--dev", data, "--json"]
    return [*TORCHRUN, "-m", "minibert", "finetune", "classify", data, "--model", str(words), "--out", str(out), *how]


def run_to_its_end(words: Path, out: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(finetune_command(words, out), env=QUIET, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.mark.slow
def test_ranks_that_differ_end_before_the_first_step(words, tmp_path):
    """One more epoch at rank 1, for which rank 0 would wait."""
    script, out = tmp_path / "script.py", tmp_path / "model"
    script.write_text(
        "import os, sys\nfrom minibert.cli.main import main\n"
        "sys.exit(main([*sys.argv[1:], '--epochs', str(2 + int(os.environ['RANK']))]))\n"
    )
    command = [str(script) if part == "minibert" else part for part in finetune_command(words, out) if part != "-m"]
    command.insert(1, "-m")  # of torchrun itself
    done = subprocess.run(command, env=QUIET, capture_output=True, text=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if line.startswith("minibert: ")]
    assert done.returncode == 1 and len(said) == 1 and re.search(r"rank 1 .*epochs is 3 and there 2", said[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["script.py"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="SIGKILL, and the processes of torchrun are found in /proc")
def test_a_rank_that_is_killed_ends_all_and_the_same_command_resumes_bit_for_bit(words, tmp_path):
    """A run that is not killed prints once and writes one folder."""
    whole, out = tmp_path / "whole", tmp_path / "model"
    done = run_to_its_end(words, whole)
    assert [done.stdout.count(word) for word in ("epoch 1 ", "epoch 2 ", "saved in")] == [1, 1, 1]
    report, figures = json.loads((whole / "training.json").read_text()), json.loads(done.stdout.splitlines()[-1])
    assert report["asked"]["processes"] == 2
    assert report["asked"]["batch_size"] == 4 and report["steps"] == 2 * 24
    assert figures["tokens"] == report["tokens"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole"]
    with subprocess.Popen(
        finetune_command(words, out), env=QUIET, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as torchrun:
        while not any(tmp_path.glob("model.training/state-*")):
            assert torchrun.poll() is None
            time.sleep(0.02)
        children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
        os.kill(int(children[1]), signal.SIGKILL)
        assert torchrun.wait() != 0
    assert not out.exists()
    run_to_its_end(words, out)
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    curves = [json.loads((folder / "training.json").read_text())["curve"] for folder in (whole, out)]
    assert curves[0] == curves[1]
