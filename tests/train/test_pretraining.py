"""Pretraining: the result is an ordinary checkpoint; the corpus is examined; what cannot be learned is refused.

Losses and scores of the objectives equal those computed token by token or by transformers' models.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from support.models import open_upstream
from support.training import CLOSE, CONFIG, VOCABULARY, Found, assert_parts_are_the_whole, examples, shifted
from support.words import write_words_checkpoint

import minibert
from minibert.families.albert import ALBERT
from minibert.families.bert import BERT
from minibert.families.electra import ELECTRA
from minibert.inputs import IGNORED
from minibert.prediction.collate import ExampleBatch
from minibert.tasks.base import Example
from minibert.text.masking import Masking
from minibert.train import pretrain
from minibert.train.batches import Batches
from minibert.train.objectives import OBJECTIVES, Electra, ReplacedTokens
from minibert.train.pretraining import PretrainRun, baselines
from minibert.train.settings import PretrainSettings

QUICK: dict[str, Any] = {"max_length": 16, "batch_size": 4, "learning_rate": 3e-3}


def new_run(home: Path, corpus: Path | None = None, **how: Any) -> PretrainRun:
    given = {"tokenizer": str(home / "words"), "config": str(home / "small.json")} | QUICK | how
    return PretrainRun.of(corpus or home / "corpus.txt", PretrainSettings(**given))


def test_the_command_writes_an_ordinary_checkpoint(home, tmp_path, run):
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
    theirs = open_upstream(transformers.AutoModelForPreTraining, tmp_path / "out")
    ours = minibert.load(tmp_path / "out", head="pretraining")
    ids = torch.arange(5, 12)[None]
    with torch.no_grad():
        assert torch.equal(ours(ids).prediction_logits, theirs(ids).prediction_logits)


def test_of_electra_both_models_are_ordinary_checkpoints(home, tmp_path):
    how = QUICK | {"config": home / "electra.json", "tokenizer": home / "words", "objective": "electra", "steps": 4}
    pretrain(home / "corpus.txt", out=tmp_path / "out", **how)
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    losses = {name: curve[0] for name, curve in report["curves"].items()}
    assert report["curve"][0] == pytest.approx(losses["masked-lm"] + 50 * losses["replaced-token-detection"], rel=1e-4)
    transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "out")
    generator = minibert.load(tmp_path / "out" / "generator", head="masked-lm")
    table = minibert.load(tmp_path / "out").embeddings.token.weight
    assert torch.equal(generator.encoder.embeddings.token.weight, table)


def test_pretraining_continues_from_a_checkpoint(home, tmp_path):
    how = QUICK | {"steps": 2, "objective": "mlm", "learning_rate": 1e-3, "init": home / "teacher"}
    model = pretrain(home / "corpus.txt", out=tmp_path / "out", **how)
    moved = model.encoder.embeddings.token.weight - minibert.load(home / "teacher").embeddings.token.weight
    assert 0 < moved.abs().max() < 0.01


# ---------------------------------------------------------------------------------------------------------------
# Statistics of a corpus

V = 8
DOCUMENTS = [[[5, 6, 7], [5, 6, 1]], [[7, 5, 6, 2, 1, 7]]] * 10  # 6 always follows 5; 120 tokens


def test_baselines_are_probabilities_by_counts_within_documents():
    rows = [Example([3, a, 4], [0] * 3, {"labels": [IGNORED, IGNORED, b]}) for a in range(V) for b in range(V)]
    found = [baselines(DOCUMENTS, V, [row]) for row in rows]  # of one masked token each
    unigram, bigram = (np.exp([-nats[name] for nats in found]).reshape(V, V) for name in ("unigram", "bigram"))
    assert unigram[5, 6] == pytest.approx(31 / 128)
    assert bigram[5, 6] == pytest.approx((30 + 50 * 31 / 128) / (30 + 50))
    assert bigram[7, 5] == pytest.approx((20 + 50 * 31 / 128) / (20 + 50))  # across sentences
    assert bigram[4] == pytest.approx(unigram[4])  # 4 was never seen
    assert unigram.sum(1) == pytest.approx(np.ones(V)) and bigram.sum(1) == pytest.approx(np.ones(V))


def test_possible_problems_are_noted(home, tmp_path):
    (tmp_path / "c.txt").write_text("the film\n\n" * 30 + "the book\nvery bad\n\n" * 10)
    run = new_run(home, tmp_path / "c.txt", dev=str(tmp_path / "c.txt"))
    summary = " ".join(run.summary.split())
    assert "75.0% of the documents have one sentence, 94.0% of the sentences are repeated" in summary
    assert "note many sentences are repeated" in summary and "note many documents have one sentence" in summary
    (tmp_path / "c.txt").write_text("the\n\n" * 3 + "the book\nvery bad\n\n" * 10)
    run = new_run(home, tmp_path / "c.txt", dev=str(tmp_path / "c.txt"), objective="mlm+sop")
    assert "note 3 documents have one token and are left out" in " ".join(run.summary.split())


@pytest.mark.parametrize("always", [False, True])
def test_each_chosen_token_becomes_the_mask_if_wanted(always, home, tmp_path):
    run = new_run(home, objective="mlm", always_mask=always)
    batch = next(run.batches(tmp_path).epoch_batches(0))
    chosen = batch.input_ids[batch.labels["labels"] != IGNORED]
    assert bool((chosen == run.tokenizer.mask_id).all()) == always


# ---------------------------------------------------------------------------------------------------------------
# Refused


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"max_length": 25}, r"max_length is 25\b.*small.json.* 20$"),
        ({"phrases": os.devnull}, "device"),
        ({"init": "x"}, r"config and tokenizer .*init"),
        ({"config": None}, "config and tokenizer"),
        ({"tokenizer": None}, "config and tokenizer"),
        ({"rows": "sentence"}, r"mlm.nsp.*'sentence'.*mlm or electra"),
        ({"objective": "electra", "step": "readable"}, r"electra.*config"),
        ({"objective": "electra", "config": None, "init": "x"}, r"electra.*config"),
    ],
    ids=str,
)
def test_a_request_that_cannot_be_learned_is_refused_beforehand(how, message, home):
    with pytest.raises(ValueError, match=message):
        new_run(home, **how)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the film\n\nthe book\n\nthe play\n", "one sentence"),
        ("the film\nthe book\nthe play\n", r"^0%|\b0%"),
        ("東京\n大阪\n\n京都\n奈良\n", r"\b100% "),
        ("\u200b\n\n\u200b\n", "one sentence"),
        ("\u200b\n\u200b\n\n\u200b\n\u200b\n", "no row"),
        ("", "no row"),
    ],
)
def test_a_corpus_from_which_nothing_can_be_learned_is_refused(text, message, home, tmp_path):
    (tmp_path / "c.txt").write_text(text)
    with pytest.raises(ValueError, match=rf"c\.txt.*{message}"):
        new_run(home, tmp_path / "c.txt", dev=str(home / "corpus.txt"))


def test_a_config_or_checkpoint_of_a_smaller_vocabulary_is_refused(home, tmp_path):
    (tmp_path / "small.json").write_text(json.dumps(CONFIG | {"vocab_size": 68}))
    with pytest.raises(ValueError, match=r"\b69\b.*small.json.* 68$"):
        new_run(home, config=str(tmp_path / "small.json"))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n" + "\n".join(f"w{n}" for n in range(90)))
    with pytest.raises(ValueError, match=r"\b95\b.*teacher.* 69$"):
        new_run(home, config=None, init=str(home / "teacher"), tokenizer=str(tmp_path))


# ---------------------------------------------------------------------------------------------------------------
# Objectives

FAMILIES = {"mlm": BERT, "mlm+nsp": BERT, "mlm+sop": ALBERT}
LENGTHS = [9, 4, 11, 7, 1, 3]
objectives = pytest.mark.parametrize("name", FAMILIES)


def config(kind: str = "bert", **changes: Any) -> minibert.Config:
    sizes = CONFIG | {"model_type": kind, "vocab_size": VOCABULARY, "num_hidden_layers": 2, "embedding_size": 8}
    return minibert.Config.from_dict(sizes | changes)


def new_model(name: str) -> Any:
    torch.manual_seed(0)
    model = OBJECTIVES[name]().new_model(config("electra" if name == "electra" else FAMILIES[name].name))
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)  # far from the beginning, where all scores are nearly the same
    return model.eval()


def rows_of(name: str, lengths: Sequence[int] = LENGTHS) -> Batches:
    made = examples(OBJECTIVES[name]().head, lengths, family=FAMILIES.get(name, ELECTRA))
    return Batches(made, len(lengths), 0, 0)


def batch(name: str) -> ExampleBatch:
    return rows_of(name).of_rows(range(6))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_parameter_has_a_gradient_unless_a_loss_is_left_out(name):
    """DistributedDataParallel waits for the gradient of each parameter; see loop.one_step."""
    model = new_model(name)
    names, objective = dict(model.named_parameters()).keys(), OBJECTIVES[name]()
    assert Found.of(objective, model, batch(name)).gradients.keys() == names
    first = lambda *given: next(iter(objective.means(*given).values()))  # noqa: E731
    assert (Found.of(first, model, batch(name)).gradients.keys() == names) == (name == "mlm")


@objectives
def test_the_packed_step_is_the_readable_one(name):
    model, given = new_model(name), batch(name)

    def found(step, batch):
        return Found.of(OBJECTIVES[name](step), model, batch)

    right = found("readable", given)
    assert max(found("packed", given).apart(right).values()) < CLOSE
    assert max(found("packed", shifted(given)).apart(right).values()) > 1e-2  # the control


@pytest.mark.parametrize("name", ["mlm+nsp", "electra"])
def test_uneven_parts_of_a_step_are_the_step_of_the_whole(name, monkeypatch):
    """Masked tokens are counted by token, pairs by row."""
    monkeypatch.setattr(torch, "multinomial", lambda p, count: p.argmax(dim=-1, keepdim=True))  # of ELECTRA: no chance
    assert_parts_are_the_whole(new_model(name), rows_of(name), OBJECTIVES[name]())


@objectives
def test_the_score_is_the_mean_over_masked_tokens_and_over_rows(name):
    model, objective, rows = new_model(name), OBJECTIVES[name](), rows_of(name, [5, 9, 2, 11, 7] * 9)
    found = objective.score(model, rows.examples)
    single = [rows.of_rows([number]) for number in range(45)]
    with torch.no_grad():
        predictions = [objective.predict(model, one, "readable") for one in single]
    logits = torch.cat([one["masked-lm"][0][0] for one in predictions])
    labels = torch.cat([one.labels["labels"][0] for one in single])
    assert found["masked_tokens"] == (labels != IGNORED).sum()
    assert found["masked_lm_loss"] == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-5)
    assert found["masked_accuracy"] == float((logits.argmax(-1) == labels).sum()) / found["masked_tokens"]
    if name != "mlm":
        pairs = [one[objective.pairing.name] for one in predictions]
        right = sum(int(logits.argmax()) == int(label) for logits, label in pairs)
        assert found[f"{objective.pairing.name.replace('-', '_')}_accuracy"] == right / 45


# ---------------------------------------------------------------------------------------------------------------
# ELECTRA


@pytest.fixture
def model() -> Electra:
    return new_model("electra")


def upstream(kind: str, part: Any, folder: Path) -> Any:
    minibert.save(part, folder)
    return open_upstream(getattr(transformers, f"ElectraFor{kind}"), folder)


def test_the_generator_is_a_quarter_as_wide_with_the_same_tables_which_both_gradients_reach(model):
    small = model.generator.config
    sizes = small.hidden_size, small.num_attention_heads, small.intermediate_size, small.embedding_size
    assert sizes == (6, 1, 10, 8)
    assert sum("embeddings.token" in name for name, _ in model.named_parameters()) == 1
    losses = ReplacedTokens().means(model, batch("electra"))
    table = model.discriminator.encoder.embeddings.token.weight
    for loss in losses.values():
        (gradient,) = torch.autograd.grad(loss, table, retain_graph=True)
        assert gradient.abs().sum() > 0
    own = model.generator.transform.weight  # no gradient flows through the sampling
    assert torch.autograd.grad(losses["replaced-token-detection"], own, allow_unused=True) == (None,)


def test_the_losses_are_those_of_the_two_models_of_transformers(model, tmp_path):
    given = batch("electra")
    labels, chosen = given.labels["labels"], given.labels["labels"] != IGNORED
    generator = upstream("MaskedLM", model.generator, tmp_path / "generator")
    discriminator = upstream("PreTraining", model.discriminator, tmp_path / "discriminator")
    torch.manual_seed(5)
    found = ReplacedTokens().means(model, given)
    inputs = {"attention_mask": given.attention_mask, "token_type_ids": given.token_type_ids}
    generated = generator(given.input_ids, labels=labels, **inputs)
    torch.manual_seed(5)
    sampled = torch.multinomial(generated.logits[chosen].softmax(-1), 1).squeeze(1)
    filled = given.input_ids.masked_scatter(chosen, sampled)
    replaced = (filled != torch.where(chosen, labels, given.input_ids)).long()
    detected = discriminator(filled, labels=replaced, **inputs)
    assert found["masked-lm"].item() == pytest.approx(generated.loss.item(), rel=1e-5)
    assert found["replaced-token-detection"].item() == pytest.approx(detected.loss.item(), rel=1e-5)
    with_padding = F.binary_cross_entropy_with_logits(detected.logits, replaced.float())
    assert abs(with_padding.item() - detected.loss.item()) > 1e-4  # the control: padding would be seen


def test_a_sampled_token_that_equals_the_original_counts_as_original(model):
    given, objective = batch("electra"), ReplacedTokens()
    right = given.labels["labels"][given.labels["labels"] != IGNORED]
    assert objective.detect(model, given, right)[1].sum() == 0
    wrong = torch.cat([(right[:1] + 1) % VOCABULARY, right[1:]])
    assert objective.detect(model, given, wrong)[1].sum() == 1


def test_the_score_counts_replaced_tokens_with_the_likeliest_ones_filled_in(model):
    given, objective = batch("electra"), ReplacedTokens()
    with torch.no_grad():
        logits, labels = objective.generate(model, given)
        found, replaced = objective.detect(model, given, logits.argmax(dim=-1))
    score = objective.score(model, rows_of("electra").examples)
    assert score["masked_lm_loss"] == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-5)
    expected = float(F.binary_cross_entropy_with_logits(found, replaced.float()))
    assert score["replaced_token_detection_loss"] == pytest.approx(expected, rel=1e-5)
    assert score["replaced_token_detection_accuracy"] == pytest.approx(float(((found > 0) == replaced).float().mean()))


def test_chosen_tokens_are_masked_or_left_and_never_replaced(tmp_path):
    tokenizer = minibert.load_tokenizer(write_words_checkpoint(tmp_path))
    ids = np.array(list(range(5, 60)) * 400)
    masked, labels = replace(Masking.of(tokenizer), **ReplacedTokens.masking)(ids.tolist(), 0, 0)
    is_mask = np.array(masked) == tokenizer.mask_id
    assert is_mask[np.array(labels) != IGNORED].mean() == pytest.approx(0.85, abs=0.02)
    assert np.array_equal(np.array(masked)[~is_mask], ids[~is_mask])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (config(), r"bert .*'replaced-token-detection'"),
        (config("electra", num_attention_heads=2), r"num_attention_heads is 0\b.* 1\b"),
    ],
    ids=["a BERT", "no head for the generator"],
)
def test_a_config_without_a_generator_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Electra(given)
