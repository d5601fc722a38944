"""Filling masks: the guesses are those of transformers' logits, and a text that cannot be filled is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from helpers import minilm_folder

import minibert
from minibert.tasks.fill_mask import fill_mask
from minibert.text.tokenizer import TruncationWarning

TEXT = "the [MASK] sat on the [MASK] ."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random masked language model, 8 wide, with the vocabulary of bert-base-uncased."""
    folder = tmp_path_factory.mktemp("mlm")
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(
        transformers.BertConfig(
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            max_position_embeddings=32,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(minilm_folder() / name, folder)
    return folder


def test_every_mask_gets_the_likeliest_tokens_of_transformers(folder):
    guesses = fill_mask(TEXT, folder, top_k=4)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(TEXT, return_tensors="pt")
    model = transformers.BertForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        rows = model(**batch).logits[0, batch["input_ids"][0] == tokenizer.mask_token_id].softmax(-1)
    assert len(guesses) == len(rows) == 2
    for guess, row in zip(guesses, rows, strict=True):
        assert [g.token for g in guess] == tokenizer.convert_ids_to_tokens(row.topk(4).indices)
        assert [g.probability for g in guess] == pytest.approx(row.topk(4).values.tolist(), rel=1e-5)


def test_a_loaded_model_and_its_tokenizer_do_the_same_and_the_mode_is_kept(folder):
    model = minibert.load(folder, head="masked-lm").train()
    guesses = fill_mask(TEXT, model, tokenizer=minibert.load_tokenizer(folder))
    assert guesses == fill_mask(TEXT, folder)
    assert [len(guess) for guess in guesses] == [5, 5]
    assert model.training


def test_a_text_without_a_mask_is_refused(folder):
    for text in ("", "the cat sat", "[mask]"):
        with pytest.raises(ValueError, match=r"the text has no \[MASK\]"):
            fill_mask(text, folder)


def test_a_mask_that_is_cut_off_is_refused_with_the_numbers(folder):
    match = r"the text has 43 tokens and 2 \[MASK\], 1 of them within the 32 tokens"
    with pytest.warns(TruncationWarning), pytest.raises(ValueError, match=match):
        fill_mask("a [MASK] " + "cat " * 38 + "[MASK]", folder)


def test_a_long_text_whose_masks_are_read_is_filled_with_the_usual_warning(folder):
    with pytest.warns(TruncationWarning):
        assert len(fill_mask("a [MASK] " + "cat " * 40, folder)) == 1


@pytest.mark.parametrize("top_k", [0, -1, 30523])
def test_top_k_outside_the_vocabulary_is_refused(top_k, folder):
    with pytest.raises(ValueError, match=f"top_k is {top_k}; it must be from 1 to vocab_size, 30522"):
        fill_mask(TEXT, folder, top_k=top_k)


def test_a_head_that_was_never_trained_is_refused(folder):
    model = minibert.load(folder, head="masked-lm", new_head=True)
    with pytest.raises(ValueError, match="never trained"):
        fill_mask(TEXT, model, tokenizer=minibert.load_tokenizer(folder))


def test_wrong_types_are_refused(folder):
    for text, model, match in (
        ([TEXT], folder, "text is of type list"),
        (TEXT, minibert.load(folder), "model is of type Encoder; load one with head='masked-lm'"),
        (TEXT, minibert.load(folder, head="masked-lm"), "needs its tokenizer"),
    ):
        with pytest.raises(TypeError, match=match):
            fill_mask(text, model)


def test_a_checkpoint_without_the_head_is_refused(folder, tmp_path):
    minibert.save(minibert.load(folder), tmp_path / "encoder")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, tmp_path / "encoder")
    assert json.loads((tmp_path / "encoder" / "config.json").read_text())["architectures"] == ["BertModel"]
    with pytest.raises(ValueError, match="head 'masked-lm'"):
        fill_mask(TEXT, tmp_path / "encoder")
