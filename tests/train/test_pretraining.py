"""Pretraining: an ordinary checkpoint comes out, and a request that cannot be learned is refused beforehand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from training import CONFIG, write_home

import minibert
from minibert.cli import main as cli
from minibert.train import pretrain
from minibert.train.pretraining import PretrainRun
from minibert.train.settings import PretrainSettings

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK: dict[str, Any] = {"max_length": 16, "batch_size": 4, "learning_rate": 3e-3}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_home(tmp_path_factory.mktemp("home"))


def new_run(home: Path, **how: Any) -> PretrainRun:
    given = {"tokenizer": str(home / "words"), "config": str(home / "small.json")} | QUICK | how
    return PretrainRun.of(home / "corpus.txt", PretrainSettings(**given))


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
    init, how = home / "teacher", QUICK | {"steps": 2, "objective": "mlm", "learning_rate": 1e-3}
    model = pretrain(home / "corpus.txt", out=tmp_path / "out", init=init, **how)
    moved = model.encoder.embeddings.token.weight - minibert.load(init).embeddings.token.weight
    assert 0 < moved.abs().max() < 0.01


def test_the_command_reports_the_corpus_and_each_evaluation(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "phrases.txt").write_text("the film\n\nvery good\n")
    args = ["pretrain", str(home / "corpus.txt"), "--tokenizer", str(home / "words")]
    args += ["--config", str(home / "small.json"), "--phrases", str(tmp_path / "phrases.txt"), "--whole-words"]
    args += ["--steps", "4", "--save-every", "2", "--max-length", "16", "--batch-size", "4"]
    assert cli.main([*args, "--out", str(tmp_path / "out"), "--json"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("corpus         54 documents")
    assert [line.split()[:2] for line in printed if line.startswith("step ")] == [["step", "2"], ["step", "4"]]
    figures = json.loads(printed[-1])
    assert figures["steps"] == 4 and figures["asked"]["phrases"] == ["the film", "very good"]
    assert {"masked_lm_loss", "masked_accuracy", "next_sentence_accuracy"} <= set(figures["dev"])


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_length": 25}, "max_length is 25; the model has 20 positions"),
    ({"mask_rate": 1.0}, "mask rate is 1.0"),
    ({"phrases": os.devnull}, "is a device, not a file"),
    ({"init": "x"}, "give either config, for a new model, or init"),
    ({"config": None}, "give either config, for a new model, or init"),
    ({"tokenizer": None}, "a new model needs a tokenizer"),
    ({"objective": "electra", "step": "readable"}, "objective electra needs a config"),
    ({"objective": "electra", "config": None, "init": "x"}, "objective electra needs a config"),
]


@pytest.mark.parametrize(("how", "message"), REFUSED, ids=[str(how) for how, _ in REFUSED])
def test_a_request_that_cannot_be_learned_is_refused_beforehand(how: dict[str, Any], message: str, home: Path) -> None:
    with pytest.raises(ValueError, match=message):
        new_run(home, **how)


def test_a_config_or_checkpoint_of_another_vocabulary_is_refused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "wide.json").write_text(json.dumps(CONFIG | {"vocab_size": 9999}))
    with pytest.raises(ValueError, match="vocab_size is 9,999; the tokenizer has 69 tokens"):
        new_run(home, config=str(tmp_path / "wide.json"))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n" + "\n".join(f"w{n}" for n in range(90)))
    with pytest.raises(ValueError, match="has 69 tokens and the tokenizer 95"):
        new_run(home, config=None, init=str(home / "teacher"), tokenizer=str(tmp_path))
