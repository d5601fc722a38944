"""Who a process is, what is refused before it meets others, and which rows and windows are whose."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training import CHOICES, batches_of

from minibert.train import distributed, finetune, pretrain
from minibert.train.corpus import Corpus
from minibert.train.distributed import SINGLE_PROCESS, DistributedContext, context


def as_rank(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    """The environment of a process of torchrun; no process group is started."""
    variables = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


# ---------------------------------------------------------------------------------------------------------------
# Who this process is


def test_the_context_follows_the_environment_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    assert context() is SINGLE_PROCESS and SINGLE_PROCESS.is_main
    as_rank(monkeypatch, 3, 8)
    assert (context().rank, context().size, context().is_main) == (3, 8, False)
    as_rank(monkeypatch, 0, 1)
    assert context() is SINGLE_PROCESS
    as_rank(monkeypatch, 0, 2)
    monkeypatch.delenv("MASTER_PORT")
    assert context() is SINGLE_PROCESS  # a number of processes alone, which other programs set too, says nothing


def test_ranks_draw_numbers_of_their_own() -> None:
    drawn = set[float]()
    for rank in range(3):
        DistributedContext(rank, 3, rank).seed(5)
        drawn.add(float(torch.rand(())))
    assert len(drawn) == 3


def test_only_the_main_process_prints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_what_ranks_cannot_share_is_refused_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, texts = tmp_path / "out", ["good", "bad"]
    with pytest.raises(ValueError, match=r"shard is 'full'.*torchrun --nproc-per-node 2"):
        finetune("classify", texts, texts, model="missing", out=out, shard="full")
    as_rank(monkeypatch, 0, 4)
    with pytest.raises(ValueError, match=r"batch_size is 33, .*4 processes.* choose a multiple of 4, such as 32"):
        finetune("classify", texts, texts, model="missing", out=out, batch_size=33)
    with pytest.raises(ValueError, match="batch_size is 7"):
        pretrain("missing", out=out, init="missing", batch_size=7)
    assert not out.exists()


# ---------------------------------------------------------------------------------------------------------------
# Whose rows


@given(st.integers(1, 9), st.integers(1, 5), st.sampled_from(["token-classification", "multiple-choice"]))
def test_each_row_of_a_batch_is_given_to_one_rank(rows: int, ranks: int, head: str) -> None:
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
def test_ranks_have_as_many_windows_of_a_corpus(size: int, ranks: int) -> None:
    corpus = Corpus(Path("corpus.txt"), end=size, window=100).for_ranks(ranks)
    assert corpus.window <= 100
    if ranks == 1:
        assert corpus.window == 100
    elif size >= 100 * ranks:  # a few bytes make no windows
        assert corpus.windows % ranks == 0
