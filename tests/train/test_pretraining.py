"""Pretraining: the result is an ordinary checkpoint; the corpus is examined; what cannot be learned is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from training import CONFIG, write_home

import minibert
from minibert.losses import IGNORED
from minibert.tasks.base import Example
from minibert.train import pretrain
from minibert.train.pretraining import PretrainRun, baselines
from minibert.train.settings import PretrainSettings

QUICK: dict[str, Any] = {"max_length": 16, "batch_size": 4, "learning_rate": 3e-3}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_home(tmp_path_factory.mktemp("home"))


def new_run(home: Path, corpus: Path | None = None, **how: Any) -> PretrainRun:
    given = {"tokenizer": str(home / "words"), "config": str(home / "small.json")} | QUICK | how
    return PretrainRun.of(corpus or home / "corpus.txt", PretrainSettings(**given))


def test_the_command_writes_an_ordinary_checkpoint(home: Path, tmp_path: Path, run: Any) -> None:
    (tmp_path / "phrases.txt").write_text("the film\nvery good\n")
    command = (
        f"pretrain {home}/corpus.txt --tokenizer {home}/words --config {home}/small.json --whole-words --steps 30 "
        f"--phrases {tmp_path}/phrases.txt --learning-rate 3e-3 --save-every 10 --max-length 16 --batch-size 4 "
        f"--precision float32 --out {tmp_path}/out --json"
    )
    printed = run(*command.split())
    assert printed.startswith("corpus         54 documents") and "\nstep 10 " in printed and "\nstep 30 " in printed
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    assert report["asked"]["phrases"] == ["the film", "very good"]
    assert len(report["curves"]["masked-lm"]) == len(report["curves"]["next-sentence"]) == 30
    assert report["epochs"][-1]["masked_lm_loss"] < report["epochs"][0]["masked_lm_loss"]
    theirs = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    ours: Any = minibert.load(tmp_path / "out", head="pretraining")
    ids = torch.arange(5, 12)[None]
    with torch.no_grad():
        assert torch.equal(ours(ids).prediction_logits, theirs(ids).prediction_logits)


def test_of_electra_both_models_are_ordinary_checkpoints(home: Path, tmp_path: Path) -> None:
    how = QUICK | {"config": home / "electra.json", "tokenizer": home / "words", "objective": "electra", "steps": 4}
    pretrain(home / "corpus.txt", out=tmp_path / "out", **how)
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    losses = {name: curve[0] for name, curve in report["curves"].items()}
    assert report["curve"][0] == pytest.approx(losses["masked-lm"] + 50 * losses["replaced-token-detection"], rel=1e-4)
    transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "out")
    generator = minibert.load(tmp_path / "out" / "generator", head="masked-lm")
    table = minibert.load(tmp_path / "out").embeddings.token.weight
    assert torch.equal(generator.encoder.embeddings.token.weight, table)


def test_pretraining_continues_from_a_checkpoint(home: Path, tmp_path: Path) -> None:
    how = QUICK | {"steps": 2, "objective": "mlm", "learning_rate": 1e-3, "init": home / "teacher"}
    model = pretrain(home / "corpus.txt", out=tmp_path / "out", **how)
    moved = model.encoder.embeddings.token.weight - minibert.load(home / "teacher").embeddings.token.weight
    assert 0 < moved.abs().max() < 0.01


# ---------------------------------------------------------------------------------------------------------------
# Statistics of a corpus

V = 8
DOCUMENTS = [[[5, 6, 7], [5, 6, 1]], [[7, 5, 6, 2, 1, 7]]] * 10  # 6 always follows 5; 120 tokens


def test_baselines_are_probabilities_by_counts_within_documents() -> None:
    rows = [Example([3, a, 4], [0] * 3, {"labels": [IGNORED, IGNORED, b]}) for a in range(V) for b in range(V)]
    found = [baselines(DOCUMENTS, V, [row]) for row in rows]  # of one masked token each
    unigram, bigram = (np.exp([-nats[name] for nats in found]).reshape(V, V) for name in ("unigram", "bigram"))
    assert unigram[5, 6] == pytest.approx(31 / 128)
    assert bigram[5, 6] == pytest.approx((30 + 50 * 31 / 128) / (30 + 50))
    assert bigram[7, 5] == pytest.approx((20 + 50 * 31 / 128) / (20 + 50))  # across sentences
    assert bigram[4] == pytest.approx(unigram[4])  # 4 was never seen
    assert unigram.sum(1) == pytest.approx(np.ones(V)) and bigram.sum(1) == pytest.approx(np.ones(V))


def test_possible_problems_are_noted(home: Path, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("the film\n\n" * 30 + "the book\nvery bad\n\n" * 10)
    run = new_run(home, tmp_path / "c.txt", dev=str(tmp_path / "c.txt"))
    summary = " ".join(run.summary.split())
    assert "75.0% of the documents have one sentence, 94.0% of the sentences are repeated" in summary
    assert "note many sentences are repeated" in summary and "note many documents have one sentence" in summary


# ---------------------------------------------------------------------------------------------------------------
# Refused


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"max_length": 25}, "max_length is 25; the model of .*small.json has 20"),
        ({"mask_rate": 1.0}, "mask_rate is 1.0; it must be above 0 and below 1"),
        ({"phrases": os.devnull}, "is a device, not a file"),
        ({"init": "x"}, "give either config and tokenizer .*, for a new model, or init"),
        ({"config": None}, "give either config and tokenizer"),
        ({"tokenizer": None}, "give either config and tokenizer"),
        ({"objective": "electra", "step": "readable"}, "objective electra needs a config"),
        ({"objective": "electra", "config": None, "init": "x"}, "objective electra needs a config"),
    ],
    ids=str,
)
def test_a_request_that_cannot_be_learned_is_refused_beforehand(how: dict[str, Any], message: str, home: Path) -> None:
    with pytest.raises(ValueError, match=message):
        new_run(home, **how)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the film\n\nthe book\n\nthe play\n", "each document has one sentence, so none follows"),
        ("the film\nthe book\nthe play\n", "0% of the second texts are from another document"),
        ("東京\n大阪\n\n京都\n奈良\n", "100% of its tokens are unknown to the vocabulary"),
        ("\u200b\n\n\u200b\n", "each document has one sentence"),
        ("\u200b\n\u200b\n\n\u200b\n\u200b\n", "it gives no row to learn from; a corpus has one"),
        ("", "it gives no row to learn from; a corpus has one sentence a line and an empty line"),
    ],
)
def test_a_corpus_from_which_nothing_can_be_learned_is_refused(
    text: str, message: str, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "c.txt").write_text(text)
    with pytest.raises(ValueError, match=f"nothing can be learned from .*c.txt: {message}"):
        new_run(home, tmp_path / "c.txt", dev=str(home / "corpus.txt"))


def test_a_config_or_checkpoint_of_a_smaller_vocabulary_is_refused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(json.dumps(CONFIG | {"vocab_size": 68}))
    with pytest.raises(ValueError, match=r"the vocabulary of the tokenizer is 69; the model of .*small.json has 68"):
        new_run(home, config=str(tmp_path / "small.json"))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n" + "\n".join(f"w{n}" for n in range(90)))
    with pytest.raises(ValueError, match=r"the vocabulary of the tokenizer is 95; the model of .*teacher has 69"):
        new_run(home, config=None, init=str(home / "teacher"), tokenizer=str(tmp_path))
