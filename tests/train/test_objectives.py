"""Pretraining objectives: losses and scores equal to those computed token by token or by transformers' models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from training import CLOSE, CONFIG, VOCABULARY, Found, assert_parts_are_the_whole, examples, shifted
from words import write_words_checkpoint

import minibert
from minibert.families.albert import ALBERT
from minibert.families.bert import BERT
from minibert.families.electra import ELECTRA
from minibert.losses import IGNORED
from minibert.text.masking import Masking
from minibert.train.batches import Batch, Batches
from minibert.train.objectives import OBJECTIVES, Electra, ReplacedTokens

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


def batch(name: str) -> Batch:
    return rows_of(name).of_rows(range(6))


@objectives
def test_the_packed_step_is_the_readable_one(name: str) -> None:
    model, given = new_model(name), batch(name)

    def found(step: str, batch: Batch) -> Found:
        return Found.of(lambda model, batch: sum(OBJECTIVES[name](step)(model, batch).values()), model, batch)

    right = found("readable", given)
    assert max(found("packed", given).apart(right).values()) < CLOSE
    assert max(found("packed", shifted(given)).apart(right).values()) > 1e-2  # the control


@pytest.mark.parametrize("name", ["mlm+nsp", "electra"])
def test_uneven_parts_of_a_step_are_the_step_of_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masked tokens are counted by token, pairs by row."""
    monkeypatch.setattr(torch, "multinomial", lambda p, count: p.argmax(dim=-1, keepdim=True))  # of ELECTRA: no chance
    assert_parts_are_the_whole(new_model(name), rows_of(name), OBJECTIVES[name]())


@objectives
def test_the_score_is_the_mean_over_masked_tokens_and_over_rows(name: str) -> None:
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
        pairs = [one[objective.pairing] for one in predictions]
        right = sum(int(logits.argmax()) == int(label) for logits, label in pairs)
        assert found[f"{objective.pairing.replace('-', '_')}_accuracy"] == right / 45


# ---------------------------------------------------------------------------------------------------------------
# ELECTRA


@pytest.fixture
def model() -> Electra:
    return new_model("electra")


def upstream(kind: str, part: Any, folder: Path) -> Any:
    minibert.save(part, folder)
    return getattr(transformers, f"ElectraFor{kind}").from_pretrained(folder, attn_implementation="eager").eval()


def test_the_generator_is_a_quarter_as_wide_with_the_same_tables_which_both_gradients_reach(model: Electra) -> None:
    small = model.generator.config
    sizes = small.hidden_size, small.num_attention_heads, small.intermediate_size, small.embedding_size
    assert sizes == (6, 1, 10, 8)
    assert sum("embeddings.token" in name for name, _ in model.named_parameters()) == 1
    losses = ReplacedTokens()(model, batch("electra"))
    table = model.discriminator.encoder.embeddings.token.weight
    for loss in losses.values():
        (gradient,) = torch.autograd.grad(loss, table, retain_graph=True)
        assert gradient.abs().sum() > 0
    own = model.generator.transform.weight  # no gradient flows through the sampling
    assert torch.autograd.grad(losses["replaced-token-detection"], own, allow_unused=True) == (None,)


def test_the_losses_are_those_of_the_two_models_of_transformers(model: Electra, tmp_path: Path) -> None:
    given = batch("electra")
    labels, chosen = given.labels["labels"], given.labels["labels"] != IGNORED
    generator = upstream("MaskedLM", model.generator, tmp_path / "generator")
    discriminator = upstream("PreTraining", model.discriminator, tmp_path / "discriminator")
    torch.manual_seed(5)
    found = ReplacedTokens()(model, given)
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


def test_a_sampled_token_that_equals_the_original_counts_as_original(model: Electra) -> None:
    given, objective = batch("electra"), ReplacedTokens()
    right = given.labels["labels"][given.labels["labels"] != IGNORED]
    assert objective.detect(model, given, right)[1].sum() == 0
    wrong = torch.cat([(right[:1] + 1) % VOCABULARY, right[1:]])
    assert objective.detect(model, given, wrong)[1].sum() == 1


def test_the_score_counts_replaced_tokens_with_the_likeliest_ones_filled_in(model: Electra) -> None:
    given, objective = batch("electra"), ReplacedTokens()
    with torch.no_grad():
        logits, labels = objective.generate(model, given)
        found, replaced = objective.detect(model, given, logits.argmax(dim=-1))
    score = objective.score(model, rows_of("electra").examples)
    assert score["masked_lm_loss"] == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-5)
    expected = float(F.binary_cross_entropy_with_logits(found, replaced.float()))
    assert score["replaced_token_detection_loss"] == pytest.approx(expected, rel=1e-5)
    assert score["replaced_token_detection_accuracy"] == pytest.approx(float(((found > 0) == replaced).float().mean()))


def test_chosen_tokens_are_masked_or_left_and_never_replaced(tmp_path: Path) -> None:
    tokenizer = minibert.load_tokenizer(write_words_checkpoint(tmp_path))
    ids = np.array(list(range(5, 60)) * 400)
    masked, labels = replace(Masking.of(tokenizer), **ReplacedTokens.masking)(ids.tolist(), 0, 0)
    is_mask = np.array(masked) == tokenizer.mask_id
    assert is_mask[np.array(labels) != IGNORED].mean() == pytest.approx(0.85, abs=0.02)
    assert np.array_equal(np.array(masked)[~is_mask], ids[~is_mask])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (config(), "bert has no head 'replaced-token-detection'"),
        (config("electra", num_attention_heads=2), "num_attention_heads is 0; it must be at least 1"),
    ],
    ids=["a BERT", "no head for the generator"],
)
def test_a_config_without_a_generator_is_refused(given: minibert.Config, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Electra(given)
