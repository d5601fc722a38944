"""ELECTRA's pretraining: shared tables, drawn tokens, and losses equal to a computation with transformers' models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from words import write_words_checkpoint

import minibert
from minibert.config import Config
from minibert.losses import IGNORED
from minibert.tasks.base import Example
from minibert.text.masking import Masking
from minibert.text.tokenizer import load_tokenizer
from minibert.train import electra, pretrain
from minibert.train.batches import Batch, collate
from minibert.train.electra import Electra

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = {
    "model_type": "electra",
    "embedding_size": 8,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
}
V = 50


@pytest.fixture
def model() -> Electra:
    torch.manual_seed(0)
    model = Electra(Config.from_dict(CONFIG | {"vocab_size": V})).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)  # far from the beginning, where all scores are nearly the same
    return model


def batch() -> Batch:
    """Rows of several lengths, some of whose tokens are masked."""
    random = torch.Generator().manual_seed(0)
    rows = []
    for length in (9, 4, 12, 7):
        ids = torch.randint(5, V, (length,), generator=random)
        chosen = torch.rand(length, generator=random) < 0.4
        chosen[1] = True
        labels = torch.where(chosen, ids, IGNORED)
        rows.append(Example(torch.where(chosen, 4, ids).tolist(), [0] * length, {"labels": labels.tolist()}))
    return collate(rows, range(len(rows)), 0)


def upstream(kind: str, part: Any, folder: Path) -> Any:
    minibert.save(part, folder)
    return getattr(transformers, f"ElectraFor{kind}").from_pretrained(folder, attn_implementation="eager").eval()


def test_both_models_have_the_same_tables_and_a_gradient_of_each_reaches_them(model: Electra) -> None:
    names = [name for name, _ in model.named_parameters() if ".embeddings." in name]
    assert sum("token" in name for name in names) == 1
    loss = electra.losses(model, batch())
    table = model.discriminator.encoder.embeddings.token.weight
    for one in loss.values():
        (gradient,) = torch.autograd.grad(one, table, retain_graph=True)
        assert gradient.abs().sum() > 0


def test_the_generator_is_a_quarter_as_wide_and_as_deep(model: Electra) -> None:
    small, config = model.generator.config, model.config
    assert (small.hidden_size, small.num_attention_heads, small.intermediate_size) == (4, 1, 8)
    assert small.embedding_size == config.embedding_size
    assert small.num_hidden_layers == config.num_hidden_layers


def test_the_losses_are_those_of_the_two_models_of_transformers(model: Electra, tmp_path: Path) -> None:
    given = batch()
    labels = given.labels["labels"]
    chosen = labels != IGNORED
    generator = upstream("MaskedLM", model.generator, tmp_path / "generator")
    discriminator = upstream("PreTraining", model.discriminator, tmp_path / "discriminator")
    torch.manual_seed(5)
    found = electra.losses(model, given)
    inputs = {"attention_mask": given.attention_mask, "token_type_ids": given.token_type_ids}
    guessed = generator(given.input_ids, labels=labels, **inputs)
    torch.manual_seed(5)
    drawn = torch.multinomial(guessed.logits[chosen].softmax(-1), 1).squeeze(1)
    filled = given.input_ids.clone()
    filled[chosen] = drawn
    replaced = (filled != torch.where(chosen, labels, given.input_ids)).long()
    told = discriminator(filled, labels=replaced, **inputs)
    assert found["masked-lm"].item() == pytest.approx(guessed.loss.item(), rel=1e-5)
    assert found["replaced-token-detection"].item() == pytest.approx(told.loss.item(), rel=1e-5)
    with_padding = F.binary_cross_entropy_with_logits(told.logits, replaced.float())
    assert abs(with_padding.item() - told.loss.item()) > 1e-4  # the control: padding would show


def test_a_token_that_is_drawn_as_it_was_counts_as_original(model: Electra) -> None:
    given = batch()
    labels = given.labels["labels"]
    right = labels[labels != IGNORED]
    assert electra.scores(model, given, right)[1].sum() == 0
    wrong = right.clone()
    wrong[0] += 1
    assert electra.scores(model, given, wrong)[1].sum() == 1


def test_no_gradient_goes_through_the_drawing(model: Electra) -> None:
    loss = electra.losses(model, batch())["replaced-token-detection"]
    own = model.generator.transform.weight
    assert torch.autograd.grad(loss, own, allow_unused=True) == (None,)


def test_chosen_tokens_are_masked_or_left_and_never_replaced(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_words_checkpoint(tmp_path))
    masking = electra_masking(tokenizer)
    ids = list(range(5, 60)) * 400
    hidden, labels = masking(ids, 0, 0)
    kinds = {"masked": 0, "left": 0, "other": 0}
    for now, before, label in zip(hidden, ids, labels, strict=True):
        if label != IGNORED:
            kinds["masked" if now == tokenizer.mask_id else "left" if now == before else "other"] += 1
    assert kinds["other"] == 0
    assert kinds["masked"] / sum(kinds.values()) == pytest.approx(0.85, abs=0.02)


def electra_masking(tokenizer: Any) -> Masking:
    return replace(Masking.of(tokenizer), masked=electra.MASKED, replaced=electra.REPLACED)


def test_a_pretrained_pair_is_two_ordinary_checkpoints(tmp_path: Path) -> None:
    words = write_words_checkpoint(tmp_path / "words")
    (tmp_path / "corpus.txt").write_text("the film very good\nthe book\n\nthe play very bad\nthe meal\n\n" * 20)
    (tmp_path / "small.json").write_text(json.dumps(CONFIG))
    how: dict[str, Any] = {"config": tmp_path / "small.json", "tokenizer": words, "objective": "electra", "steps": 6}
    how |= {"save_every": 3, "batch_size": 8, "max_length": 16, "precision": "float32", "learning_rate": 1e-3}
    found = pretrain(tmp_path / "corpus.txt", out=tmp_path / "out", **how)
    again = pretrain(tmp_path / "corpus.txt", out=tmp_path / "again", **how)
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), again.parameters(), strict=True))
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    assert len(report["curves"]["replaced-token-detection"]) == 6
    assert report["curve"][0] == pytest.approx(
        report["curves"]["masked-lm"][0] + 50 * report["curves"]["replaced-token-detection"][0], rel=1e-4
    )
    assert {"masked_accuracy", "replaced_found", "originals_left_alone"} <= set(report["epochs"][-1])
    transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "out")
    generator = minibert.load(tmp_path / "out" / "generator", head="masked-lm")
    table = minibert.load(tmp_path / "out").embeddings.token.weight
    assert torch.equal(generator.encoder.embeddings.token.weight, table)


def test_a_bert_is_no_electra() -> None:
    with pytest.raises(ValueError, match="bert has no head 'replaced-token-detection'"):
        Electra(Config(vocab_size=50, hidden_size=16, num_attention_heads=4, intermediate_size=32))


def test_heads_that_cannot_be_quartered_are_refused() -> None:
    with pytest.raises(ValueError, match="num_attention_heads is 2; the generator has a quarter of them"):
        Electra(Config.from_dict(CONFIG | {"vocab_size": V, "num_attention_heads": 2}))
