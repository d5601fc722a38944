"""The files of a tokenizer, read without trust: what a Tokenizer is made of, or a ValueError with file and key.

tokenizer_config.json, special_tokens_map.json  the names of special tokens, casing, model_max_length
tokenizer.json                                  everything, as the `tokenizers` library writes it
vocab.txt                                       what BERT was released with: a piece a line, its id the line
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from minibert.checkpoints.tensor_files import listing
from minibert.config import Config
from minibert.files import read_json, read_small, shown

DEFAULT_MAX_LENGTH = 512
SHORTEST = 3  # tokens: [CLS], one of text, [SEP]
SPECIAL_TOKENS = {
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
    "unk_token": "[UNK]",
}
# What the library's normalizer calls the settings, and what tokenizer_config.json calls them.
NORMALIZER_SETTINGS = {
    "lowercase": "do_lower_case",
    "strip_accents": "strip_accents",
    "handle_chinese_chars": "tokenize_chinese_chars",
}


def read_settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, with the names of special tokens from special_tokens_map.json where it has none."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).exists():
            settings |= read_json(folder / name)
            check_settings(settings, folder / name)
    return settings


def check_settings(settings: Mapping[str, Any], path: Path) -> None:
    """Raise ValueError, naming the file and the key, for a setting that cannot be meant."""
    special_tokens(settings, str(path))
    for name in NORMALIZER_SETTINGS.values():
        if not isinstance(value := settings.get(name), bool | None):
            raise ValueError(f"{path}: {name} is {shown(value)}; it must be true, false or null")
    longest = settings.get("model_max_length") or DEFAULT_MAX_LENGTH
    if not isinstance(longest, int | float) or isinstance(longest, bool) or not longest >= SHORTEST:
        raise ValueError(f"{path}: model_max_length is {shown(longest)}; it must be a number of at least {SHORTEST}")


def special_tokens(settings: Mapping[str, Any], source: str = "settings") -> dict[str, str]:
    """The five special tokens by their role; the files give each as a str or as {"content": str, ...}."""
    found = {}
    for role, usual in SPECIAL_TOKENS.items():
        given = settings.get(role)
        token = given.get("content") if isinstance(given, dict) else given or usual
        if not isinstance(token, str):
            raise ValueError(f"{source}: {role} is {shown(given)}; it must be a token, or have one as its content")
        found[role] = token
    return found


def lengths(folder: Path, definition: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[int, int]:
    """The max_length of a checkpoint and the most it can take; checks that the vocabulary fits the model, too."""
    stated = settings.get("model_max_length") or DEFAULT_MAX_LENGTH  # 1e30 where nobody knows
    config = Config.from_file(folder / "config.json")
    added = [token["id"] for token in definition["added_tokens"]]
    tokens = 1 + max([*definition["model"]["vocab"].values(), *added])
    if tokens > config.vocab_size:
        raise ValueError(
            f"the tokenizer of {folder} has {tokens} tokens, the model only {config.vocab_size} "
            "(vocab_size in config.json); the files belong to different checkpoints"
        )
    return int(min(DEFAULT_MAX_LENGTH, stated, config.max_position_embeddings)), config.max_position_embeddings


# ---------------------------------------------------------------------------------------------------------------
# tokenizer.json


def read_definition(folder: Path, settings: Mapping[str, Any], lowercase: bool | None) -> dict[str, Any]:
    """The content of tokenizer.json, or what it would be for vocab.txt, with the casing that counts.

    An explicit lowercase wins over tokenizer_config.json, and that over tokenizer.json, as in transformers.
    """
    if (folder / "tokenizer.json").exists():
        definition = read_json(folder / "tokenizer.json")
        definition["added_tokens"] = definition.get("added_tokens") or []
        check_definition(definition, folder / "tokenizer.json")
    elif (folder / "vocab.txt").exists():
        definition = definition_from_vocab(folder / "vocab.txt", settings, lowercase)
    else:
        raise FileNotFoundError(f"{folder} has neither tokenizer.json nor vocab.txt; it holds: {listing(folder)}")
    normalizer = definition.get("normalizer") or {}
    if normalizer.get("type") == "BertNormalizer":
        given = {ours: settings.get(theirs) for ours, theirs in NORMALIZER_SETTINGS.items()}
        if lowercase is not None:
            given["lowercase"] = lowercase
        definition["normalizer"] = normalizer | {ours: value for ours, value in given.items() if value is not None}
    elif lowercase is not None:
        raise ValueError(
            f"lowercase={lowercase} is not possible: this tokenizer.json has the normalizer "
            f"{normalizer.get('type')}, not BertNormalizer"
        )
    return definition


def check_definition(definition: Mapping[str, Any], path: Path) -> None:
    """Raise ValueError, naming the file and the key, for what we read of tokenizer.json; the library reads the rest."""
    model, normalizer, added = definition.get("model"), definition.get("normalizer"), definition["added_tokens"]
    if not isinstance(model, dict):
        raise ValueError(f"{path}: model is {shown(model)}; it must be an object")
    if model.get("type", "WordPiece") != "WordPiece" or "merges" in model:
        raise ValueError(
            f"{path} holds a {model.get('type', 'BPE')} model; BERT needs a WordPiece model with a vocabulary"
        )
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not vocab or not all(type(id) is int for id in vocab.values()):
        raise ValueError(f"{path}: model.vocab is {shown(vocab)}; it must give each token its id")
    if not isinstance(normalizer, dict | None):
        raise ValueError(f"{path}: normalizer is {shown(normalizer)}; it must be an object or null")
    if not isinstance(added, list) or not all(
        isinstance(token, dict) and type(token.get("id")) is int for token in added
    ):
        raise ValueError(f"{path}: added_tokens is {shown(added)}; it must be a list of tokens, each with its id")


# ---------------------------------------------------------------------------------------------------------------
# vocab.txt


def definition_from_vocab(path: Path, settings: Mapping[str, Any], lowercase: bool | None) -> dict[str, Any]:
    """What tokenizer.json would say, from the file that BERT was released with: a piece a line, its id the line."""
    vocab = read_vocab(path)
    special = special_tokens(settings)
    for token in special.values():
        if token not in vocab:
            raise ValueError(f"{path} has no {token}; BERT needs {', '.join(special.values())}")
    if lowercase is None and settings.get("do_lower_case") is None:
        lowercase = guess_lowercase(path, vocab)
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token=special["unk_token"]))
    backend.add_special_tokens(sorted(special.values(), key=vocab.__getitem__))
    backend.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase is not False)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.decoder = tokenizers.decoders.WordPiece()
    cls, sep = special["cls_token"], special["sep_token"]
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, vocab[cls]), (sep, vocab[sep])],
    )
    definition: dict[str, Any] = json.loads(backend.to_str())
    return definition


def read_vocab(path: Path) -> dict[str, int]:
    """vocab.txt as piece to id. UTF-8 everywhere; CRLF, a byte order mark and blank lines at the end do no harm."""
    try:
        text = read_small(path).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from None
    vocab: dict[str, int] = {}
    for id, piece in enumerate(text.rstrip("\n").split("\n")):
        if piece == "":
            raise ValueError(f"{path}, line {id + 1} is empty; every line must hold one piece")
        if piece in vocab:
            raise ValueError(f"{path}, line {id + 1} repeats {piece!r} of line {vocab[piece] + 1}; pieces must differ")
        vocab[piece] = id
    return vocab


def guess_lowercase(path: Path, vocab: Iterable[str]) -> bool:
    """An uncased vocabulary has no upper-case pieces; [CLS] and [unused1] stand outside of that."""
    cased = any(piece != piece.lower() for piece in vocab if not piece.startswith("["))
    if cased:
        warnings.warn(
            f"{path.parent} does not say do_lower_case, and its vocabulary has upper-case pieces: texts keep "
            "their case; pass lowercase=True or False to decide",
            stacklevel=5,
        )
    return not cased
