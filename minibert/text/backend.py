"""The library's tokenizer, built from the content of a tokenizer.json and checked for what it would fail at later."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers
from tokenizers import Regex, models, pre_tokenizers

MODELS = (models.WordPiece, models.BPE, models.Unigram)


def build(definition: Mapping[str, Any], literal: bool, source: str) -> tokenizers.Tokenizer:
    """The library's tokenizer; literal: it reads special tokens typed in a text as characters.

    Raises ValueError, calling the definition `source`, for one that the library cannot read, or that is of a kind that
    no relative of BERT has.
    """
    model = definition.get("model")
    if isinstance(model, dict) and model.get("dropout"):  # merges left out at random, which is for training
        definition = {**definition, "model": model | {"dropout": None}}
    try:
        backend = tokenizers.Tokenizer.from_str(json.dumps(definition))
    except Exception as error:  # the library raises nothing narrower
        version = tokenizers.__version__
        raise ValueError(f"{source}: tokenizers {version} cannot read this tokenizer.json: {error}") from None
    if not isinstance(backend.model, MODELS):  # where the file does not say, the library does
        kind = type(backend.model).__name__
        raise ValueError(f"{source} holds a {kind} model; BERT and its relatives need WordPiece, BPE or Unigram")
    unknown = None if isinstance(backend.model, models.Unigram) else backend.model.unk_token
    if unknown is not None and backend.model.token_to_id(unknown) is None:  # it would fail at the first such word
        raise ValueError(f"{source}: model.unk_token is {unknown!r}, which is not in the vocabulary")
    check_templates(json.loads(backend.to_str())["post_processor"], source)
    backend.encode_special_tokens = literal
    return backend


def check_templates(processor: Any, source: str) -> None:
    """Raise ValueError for a template with a special token that it does not define, at which the library would end."""
    for one in (processor or {}).get("processors") or [processor or {}]:
        known = one.get("special_tokens") or {}
        for piece in [*(one.get("single") or ()), *(one.get("pair") or ())]:
            name = piece.get("SpecialToken", {}).get("id")
            if name is not None and name not in known:
                raise ValueError(f"{source}: post_processor puts {name!r} beside the texts and does not define it")


def take_apart(backend: tokenizers.Tokenizer, tokens: Iterable[str]) -> None:
    """Let no piece of a unigram vocabulary be one of these special tokens, which are among its pieces.

    Where one is typed, its word is split behind the first character, and no piece goes across.
    """
    names = [token for token in tokens if len(token) > 1]
    if isinstance(backend.model, models.Unigram) and names:
        patterns = (f"{escaped(token[0])}(?={escaped(token[1:])})" for token in sorted(names))
        apart = pre_tokenizers.Split(Regex("|".join(patterns)), "merged_with_previous")
        steps = [apart] if backend.pre_tokenizer is None else [backend.pre_tokenizer, apart]
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)


def escaped(text: str) -> str:
    """A text as a pattern that finds it."""
    return "".join(character if character.isalnum() else f"\\{character}" for character in text)
