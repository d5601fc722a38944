"""A head switched off is a slice of zeros before the output projection, and a masked token is a text with [MASK]."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.models import small_config
from support.words import labelled, write_words_checkpoint
from torch import Tensor

import minibert
from minibert.hooks import forward, recording
from minibert.parity.checkpoints import make_batch
from minibert.prediction.frozen import train
from minibert.tasks.masked_text import fill_mask
from minibert.tracing.ablation import heads_off

TEXT = "the film very lovely it good"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("mlm"), head="masked-lm", max_position_embeddings=80)


def by_hand(encoder: Any, batch: Any, layer: int, head: int) -> Tensor:
    """The last vectors, (S,D), with the slice of one head zeroed by a wrapped output projection."""
    attention = encoder.layers[layer].attention
    project, W = attention.output.forward, attention.head_size

    def without(context):
        context = context.clone()
        context[..., head * W : (head + 1) * W] = 0
        return project(context)

    attention.output.forward = without
    try:
        with torch.no_grad():
            return encoder(**batch).last_hidden_state[0].double()
    finally:
        attention.output.forward = project


def test_the_effect_of_a_head_is_that_of_its_zeroed_slice_and_of_no_other_head(folder):
    encoder, tokenizer = minibert.load(folder).train(), minibert.load_tokenizer(folder)
    traced = minibert.trace(encoder, tokenizer, TEXT)
    assert all(module.training and not module._forward_pre_hooks for module in encoder.modules())
    encoder.eval()
    whole, batch, found = traced.hidden_states[-1].double(), tokenizer(TEXT), traced.ablation.heads
    assert [len(heads) for heads in found] == [3, 3]
    for layer, heads in enumerate(found):
        for head, effect in enumerate(heads):
            right, other = (by_hand(encoder, batch, layer, one) for one in (head, (head + 1) % 3))
            cosines = torch.cosine_similarity(right, whole, dim=-1).tolist()
            assert effect.cosines == pytest.approx(cosines, abs=1e-6)
            assert effect.mean == pytest.approx(
                torch.cosine_similarity(right.mean(0), whole.mean(0), dim=0).item(), abs=1e-6
            )
            assert effect.cosines != pytest.approx(torch.cosine_similarity(other, whole, dim=-1).tolist(), abs=1e-4)


def test_a_shared_layer_loses_its_head_in_one_place_only():
    config = minibert.Config(
        model_type="albert",
        vocab_size=50,
        hidden_size=24,
        num_attention_heads=3,
        num_hidden_layers=3,
        intermediate_size=37,
    )
    encoder, ids = minibert.Encoder(config, pooler=False).eval(), torch.tensor([[2, 7, 9, 3]]).expand(3, -1)
    whole = encoder(ids, output_hidden_states=True).hidden_states
    with heads_off(encoder, 1):
        found = encoder(ids, output_hidden_states=True).hidden_states
    same = [torch.allclose(one, other, atol=1e-6) for one, other in zip(found, whole, strict=True)]
    assert same == [True, True, False, False]


def test_a_masked_token_is_guessed_as_fill_mask_guesses_it_and_without_a_head_otherwise(folder):
    model, tokenizer = minibert.load(folder, head="masked-lm"), minibert.load_tokenizer(folder)
    traced = minibert.trace(model, tokenizer, TEXT)
    (expected,) = fill_mask("the [MASK] very lovely it good", model, 5, tokenizer=tokenizer)
    filled = traced.ablation.filled[2]
    assert (filled.token, [guess.token for guess in filled.guesses]) == ("film", [guess.token for guess in expected])
    assert [one.probability for one in filled.guesses] == pytest.approx([p for _, p in expected], abs=1e-6)
    batch = tokenizer("the [MASK] very lovely it good")
    for head in range(3):
        state = by_hand(model.encoder, batch, 1, head).float()
        probs = model.predict_tokens(state[None])[0, 2].softmax(dim=-1)
        found = traced.ablation.filled_without[2][1]
        assert found[head].probability == pytest.approx(probs[tokenizer.ids(["film"])[0][1]].item(), abs=1e-6)
        assert found[head].probability != pytest.approx(found[(head + 1) % 3].probability, abs=1e-6)
    where = minibert.trace(model, tokenizer, "the [MASK] good").ablation.filled[2]  # [MASK] is no word of the text
    assert where.token == where.guesses[0].token


def test_with_a_classifier_the_probability_of_its_decision_changes(folder):
    classifier = train(*labelled(), model=folder, folds=0, pooling="mean")
    encoder, tokenizer = minibert.load(folder), minibert.load_tokenizer(folder)
    traced = minibert.trace(encoder, tokenizer, "the film very good", classifier=classifier)
    state = by_hand(encoder, tokenizer("the film very good"), 1, 2).mean(dim=0).numpy()
    expected = classifier.head.predict_proba(state[None])[0, traced.decision.decided]
    found = [effect.probability for effect in traced.ablation.heads[1]]
    assert found[2] == pytest.approx(expected, abs=1e-6) and not np.isclose(found[1], found[2], atol=1e-6)


def test_a_long_text_is_changed_in_part_and_the_page_says_so_with_six_decimals(folder, monkeypatch):
    model, tokenizer = minibert.load(folder, head="masked-lm"), minibert.load_tokenizer(folder)
    monkeypatch.setattr("minibert.tracing.ablation.MOST", 120)
    traced = minibert.trace(model, tokenizer, TEXT)  # 9 tokens, 6 heads: 54 tokens for all heads
    assert (len(traced.ablation.masked), list(traced.ablation.filled_without)) == (7, [1, 2])
    page = traced.to_html()
    assert "can be chosen together for the first 2 tokens of the list" in page
    assert "tokens of this long text can be masked" not in page  # all can
    data = json.loads(re.findall(r'id="trace-data">(.*?)</script>', page, re.DOTALL)[0])["ablation"]
    effect = traced.ablation.heads[1][2]
    assert data["heads"][1][2] == [
        pytest.approx(effect.cosines, abs=5.1e-7),
        pytest.approx(effect.mean, abs=5.1e-7),
        None,
    ]
    monkeypatch.setattr("minibert.tracing.ablation.MOST", 50)
    page = minibert.trace(model, tokenizer, TEXT).to_html()
    assert "its heads were not switched off" in page and '<select id="switched-off" disabled>' in page
    assert "Only the first 5 of the 7 tokens of this long text can be masked" in page
    assert "too long to choose a token and a head together" in page


def test_another_thread_that_uses_the_model_meanwhile_is_neither_recorded_nor_changed():
    encoder = minibert.Encoder(small_config(num_hidden_layers=1)).eval()
    batch = make_batch(encoder.config, 5, rows=3)
    whole = forward(encoder, batch).last_hidden_state
    with ThreadPoolExecutor(1) as pool, recording(encoder) as kept, heads_off(encoder, 0):
        other = pool.submit(forward, encoder, batch).result().last_hidden_state
        assert torch.equal(other, whole) and not kept
        assert not torch.equal(forward(encoder, batch).last_hidden_state, whole) and kept
