"""What a folder says of its tokenizer beside the vocabulary: names of special tokens, casing, the longest text.

tokenizer_config.json, and in older folders special_tokens_map.json, read without trust: what cannot be meant is a
ValueError with file and key.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from minibert.files import read_json, shown

DEFAULT_MAX_LENGTH = 512
SHORTEST = 3  # tokens: [CLS], one of text, [SEP]
# The special tokens by their role, and what they are called where the files do not say: as in BERT, or as in RoBERTa.
SPECIAL_TOKENS = {
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "pad_token": ("[PAD]", "<pad>"),
    "mask_token": ("[MASK]", "<mask>"),
    "unk_token": ("[UNK]", "<unk>"),
}
# What the library's normalizer calls the settings, and what tokenizer_config.json calls them.
NORMALIZER_SETTINGS = {
    "lowercase": "do_lower_case",
    "strip_accents": "strip_accents",
    "handle_chinese_chars": "tokenize_chinese_chars",
}
SWITCHES = (*NORMALIZER_SETTINGS.values(), "add_prefix_space", "keep_accents")


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
    special_tokens(settings, (), str(path))
    for name in SWITCHES:
        if not isinstance(value := settings.get(name), bool | None):
            raise ValueError(f"{path}: {name} is {shown(value)}; it must be true, false or null")
    longest = settings.get("model_max_length") or DEFAULT_MAX_LENGTH
    if not isinstance(longest, int | float) or isinstance(longest, bool) or not longest >= SHORTEST:
        raise ValueError(f"{path}: model_max_length is {shown(longest)}; it must be a number of at least {SHORTEST}")


def special_tokens(settings: Mapping[str, Any], vocab: Container[str] = (), source: str = "settings") -> dict[str, str]:
    """The five special tokens by their role; the files give each as a str or as {"content": str, ...}.

    One that they do not give is the first usual one that the vocabulary has, or BERT's where it has none.
    """
    found = {}
    for role, usual in SPECIAL_TOKENS.items():
        given = settings.get(role)
        token = given.get("content") if isinstance(given, dict) else given
        if not token and not isinstance(given, dict):
            token = next((name for name in usual if name in vocab), usual[0])
        if not isinstance(token, str):
            raise ValueError(f"{source}: {role} is {shown(given)}; it must be a token, or have one as its content")
        found[role] = token
    return found
