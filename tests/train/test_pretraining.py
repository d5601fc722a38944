"""Pretraining: the result is an ordinary checkpoint; the corpus is examined; what cannot be learned is refused."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from training import CONFIG, write_home

import minibert
from minibert.cli import main as cli
from minibert.losses import IGNORED
from minibert.tasks.base import Example
from minibert.train import pretrain
from minibert.train.pretraining import PretrainRun, baselines
from minibert.train.settings import PretrainSettings

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK: dict[str, Any] = {"max_length": 16, "batch_size": 4, "learning_rate": 3e-3}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_home(tmp_path_factory.mktemp("home"))


def new_run(home: Path, corpus: Path | None = None, **how: Any) -> PretrainRun:
    given = {"tokenizer": str(home / "words"), "config": str(home / "small.json")} | QUICK | how
    return PretrainRun.of(corpus or home / "corpus.txt", PretrainSettings(**given))


def test_the_result_is_an_ordinary_checkpoint(home: Path, tmp_path: Path) -> None:
    how = QUICK | {"steps": 30, "save_every": 10, "config": home / "small.json", "tokenizer": home / "words"}
    model: Any = pretrain(home / "corpus.txt", out=tmp_path / "out", **how)
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    assert [entry["step"] for entry in report["epochs"]] == [10, 20, 30]
    assert len(report["curves"]["masked-lm"]) == len(report["curves"]["next-sentence"]) == 30
    assert report["epochs"][-1]["masked_lm_loss"] < report["epochs"][0]["masked_lm_loss"]
    theirs = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    ids = torch.arange(5, 12)[None]
    with torch.no_grad():
        assert torch.equal(model(ids).prediction_logits, theirs(ids).prediction_logits)
    assert minibert.embed(["the film"], model=tmp_path / "out").shape == (1, 24)


def test_of_electra_both_models_are_ordinary_checkpoints(home: Path, tmp_path: Path) -> None:
    how = QUICK | {"config": home / "electra.json", "tokenizer": home / "words", "objective": "electra", "steps": 4}
    pretrain(home / "corpus.txt", out=tmp_path / "out", **how)
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    losses = {name: curve[0] for name, curve in report["curves"].items()}
    assert report["curve"][0] == pytest.approx(losses["masked-lm"] + 50 * losses["replaced-token-detection"], rel=1e-4)
    assert {"masked_accuracy", "replaced_found", "originals_left_alone"} <= set(report["dev"])
    transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "out")
    generator = minibert.load(tmp_path / "out" / "generator", head="masked-lm")
    table = minibert.load(tmp_path / "out").embeddings.token.weight
    assert torch.equal(generator.encoder.embeddings.token.weight, table)


def test_pretraining_continues_from_a_checkpoint(home: Path, tmp_path: Path) -> None:
    how = QUICK | {"steps": 2, "objective": "mlm", "learning_rate": 1e-3, "init": home / "teacher"}
    model = pretrain(home / "corpus.txt", out=tmp_path / "out", **how)
    moved = model.encoder.embeddings.token.weight - minibert.load(home / "teacher").embeddings.token.weight
    assert 0 < moved.abs().max() < 0.01


def test_the_command_reports_the_corpus_and_each_evaluation(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "phrases.txt").write_text("the film\nvery good\n")
    args = ["pretrain", str(home / "corpus.txt"), "--tokenizer", str(home / "words")]
    args += ["--config", str(home / "small.json"), "--phrases", str(tmp_path / "phrases.txt"), "--whole-words"]
    args += ["--steps", "4", "--save-every", "2", "--max-length", "16", "--batch-size", "4"]
    assert cli.main([*args, "--out", str(tmp_path / "out"), "--json"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("corpus         54 documents") and "\nstep 2 " in printed and "\nstep 4 " in printed
    figures = json.loads(printed.splitlines()[-1])
    assert figures["asked"]["phrases"] == ["the film", "very good"]
    assert {"masked_lm_loss", "masked_accuracy", "next_sentence_accuracy"} <= set(figures["dev"])


# ---------------------------------------------------------------------------------------------------------------
# Statistics of a corpus

V = 8
DOCUMENTS = [[[5, 6, 7], [5, 6, 1]], [[7, 5, 6, 2, 1, 7]]] * 10  # 6 always follows 5; 120 tokens


def nats(before: int, token: int) -> dict[str, float]:
    """The baselines of one masked token."""
    return baselines(DOCUMENTS, V, [Example([3, before, 4], [0] * 3, {"labels": [IGNORED, IGNORED, token]})])


def test_baselines_are_probabilities_by_counts_within_documents() -> None:
    assert nats(5, 6)["unigram"] == pytest.approx(-math.log(31 / 128))
    assert nats(5, 6)["bigram"] == pytest.approx(-math.log((30 + 50 * 31 / 128) / (30 + 50)))
    assert nats(7, 5)["bigram"] == pytest.approx(-math.log((20 + 50 * 31 / 128) / (20 + 50)))  # across sentences
    assert nats(4, 6)["bigram"] == pytest.approx(nats(4, 6)["unigram"])  # 4 was never seen
    for before in range(V):
        for name in ("unigram", "bigram"):
            assert sum(math.exp(-nats(before, token)[name]) for token in range(V)) == pytest.approx(1)


def test_possible_problems_are_noted(home: Path, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("the film\n\n" * 30 + "the book\nvery bad\n\n" * 10)
    run = new_run(home, tmp_path / "c.txt", dev=str(tmp_path / "c.txt"))
    assert [run.stats[name] for name in ("documents", "sentences", "tokens", "single")] == [40, 50, 100, 0.75]
    assert run.stats["repeated"] == pytest.approx(1 - 3 / 50)
    summary = " ".join(run.summary.split())
    assert "75.0% of the documents have one sentence, 94.0% of the sentences are repeated" in summary
    assert "note many sentences are repeated" in summary and "note many documents have one sentence" in summary


# ---------------------------------------------------------------------------------------------------------------
# Refused

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_length": 25}, "max_length is 25; the model of .*small.json has 20"),
    ({"mask_rate": 1.0}, "mask rate is 1.0"),
    ({"phrases": os.devnull}, "is a device, not a file"),
    ({"init": "x"}, "give either config and tokenizer .*, for a new model, or init"),
    ({"config": None}, "give either config and tokenizer"),
    ({"tokenizer": None}, "give either config and tokenizer"),
    ({"objective": "electra", "step": "readable"}, "objective electra needs a config"),
    ({"objective": "electra", "config": None, "init": "x"}, "objective electra needs a config"),
]
NOT_LEARNED = {
    "the film\n\nthe book\n\nthe play\n": "each document has one sentence, so none follows",
    "the film\nthe book\nthe play\n": "0% of the second texts are from another document",
    "東京\n大阪\n\n京都\n奈良\n": "100% of its tokens are unknown to the vocabulary",
    "\u200b\n\n\u200b\n": "each document has one sentence",
    "\u200b\n\u200b\n\n\u200b\n\u200b\n": "it gives no row to learn from; a corpus has one",
    "": "it gives no row to learn from; a corpus has one sentence a line and an empty line",
}


@pytest.mark.parametrize(("how", "message"), REFUSED, ids=[str(how) for how, _ in REFUSED])
def test_a_request_that_cannot_be_learned_is_refused_beforehand(how: dict[str, Any], message: str, home: Path) -> None:
    with pytest.raises(ValueError, match=message):
        new_run(home, **how)


@pytest.mark.parametrize("text", NOT_LEARNED)
def test_a_corpus_from_which_nothing_can_be_learned_is_refused(text: str, home: Path, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text(text)
    with pytest.raises(ValueError, match=f"nothing can be learned from .*c.txt: {NOT_LEARNED[text]}"):
        new_run(home, tmp_path / "c.txt", dev=str(home / "corpus.txt"))


def test_a_config_or_checkpoint_of_a_smaller_vocabulary_is_refused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(json.dumps(CONFIG | {"vocab_size": 68}))
    with pytest.raises(ValueError, match=r"the vocabulary of the tokenizer is 69; the model of .*small.json has 68"):
        new_run(home, config=str(tmp_path / "small.json"))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n" + "\n".join(f"w{n}" for n in range(90)))
    with pytest.raises(ValueError, match=r"the vocabulary of the tokenizer is 95; the model of .*teacher has 69"):
        new_run(home, config=None, init=str(home / "teacher"), tokenizer=str(tmp_path))
