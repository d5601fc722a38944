"""The word behind [MASK]: masked language modelling, the task that BERT was pretrained with, on one text."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from minibert.checkpoints.load import has_head, load
from minibert.heads import MaskedLM
from minibert.text.tokenizer import Batch, Tokenizer, load_tokenizer


class Guess(NamedTuple):
    """A token that may stand at a mask, and how likely it is there."""

    token: str
    probability: float


def fill_mask(
    text: str, model: str | Path | MaskedLM, top_k: int = 5, *, tokenizer: Tokenizer | None = None
) -> list[list[Guess]]:
    """The `top_k` likeliest tokens at every [MASK] of the text, in the order of the masks, the likeliest first.

    `model` is a checkpoint's name or folder, or a loaded MaskedLM with the tokenizer that belongs to it. Each mask is
    guessed by itself, while the others stay masked. Raises ValueError for a text without a mask or with one beyond
    the longest row that the model takes, for top_k outside 1 .. V, and for a head that was never trained.
    """
    if not isinstance(text, str):
        raise TypeError(f"text is of type {type(text).__name__}; one str is wanted")
    if isinstance(model, (str, Path)):
        if not has_head(model, MaskedLM.name):
            raise ValueError(
                f"{model} was saved without the part that guesses words, the head 'masked-lm'; checkpoints straight "
                "from pretraining have it: --model bert-base-uncased, --model distilbert-base-uncased"
            )
        tokenizer = tokenizer or load_tokenizer(model)
        loaded = load(model, head=MaskedLM.name)
        assert isinstance(loaded, MaskedLM)
        model = loaded
    if not isinstance(model, MaskedLM):
        raise TypeError(f"model is of type {type(model).__name__}; load one with head='masked-lm'")
    if tokenizer is None:
        raise TypeError("a loaded model needs its tokenizer: fill_mask(text, model, tokenizer=...)")
    if not model.head_is_trained:
        raise ValueError("the head 'masked-lm' was never trained; load a checkpoint that has it")
    if not 1 <= top_k <= model.config.vocab_size:
        raise ValueError(f"top_k is {top_k}; it must be from 1 to vocab_size, {model.config.vocab_size}")
    batch = tokenizer(text)
    places = mask_places(text, batch, tokenizer)
    best = torch.topk(predict(model, batch, places), top_k)  # (masks, V) -> (masks, top_k)
    return [
        [Guess(tokenizer.token_text(id), p) for id, p in zip(ids, row, strict=True)]
        for ids, row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def mask_places(text: str, batch: Batch, tokenizer: Tokenizer) -> list[int]:
    """Where the masks are in the only row of the batch. Raises ValueError if there is none, or one was cut off."""
    mask = tokenizer.id_to_token(tokenizer.mask_id) or "[MASK]"
    places: list[int] = (batch.input_ids[0] == tokenizer.mask_id).nonzero().flatten().tolist()
    if batch.truncated and len(places) < text.count(mask):
        raise ValueError(
            f"the text has {batch.longest} tokens and {text.count(mask)} {mask}, {len(places)} of them "
            f"within the {tokenizer.max_length} tokens that are read; shorten the text"
        )
    if not places:
        raise ValueError(f"the text has no {mask}; write {mask} where a word is to be guessed")
    return places


@torch.no_grad()
def predict(model: MaskedLM, batch: Batch, places: list[int]) -> torch.Tensor:
    """p(token | text) at these places, (masks, V), in eval mode; the model's own mode is restored."""
    was_training = model.training
    model.eval()
    try:
        batch = batch.to(model.decoder.bias.device)
        output = model(batch.input_ids, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids)
    finally:
        model.train(was_training)
    probabilities: torch.Tensor = output.logits[0, places].float().softmax(dim=-1)
    return probabilities
