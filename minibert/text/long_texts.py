"""A very long text in pieces with the same ids, because the library takes a hundred bytes per character.

A piece ends before a word that follows a space, where every supported tokenizer splits: BERT splits at spaces before
anything else, and a word of byte-level BPE and unigram vocabularies begins with its space, ĠA or ▁A.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

PIECE = 2**16  # characters; 512 tokens of text take some 3,000
SPLITTERS = (["BertPreTokenizer"], ["ByteLevel"], ["WhitespaceSplit", "Metaspace"])
# The normalizers that replace each character and its marks, regardless of the characters around it.
LOCAL = {"BertNormalizer", "Precompiled", "NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Lowercase"}
QUOTES = re.compile(r'"type": "Replace", "pattern": \{"String": "(``|\'\')"\}, "content": "\\""')  # ALBERT's
# Number signs and a few letters of India that would join a space after them (Prepend in UAX 29).
BEFORE_ANY = "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u0d4e\U000110bd-\U00011f02"
# A word boundary for every supported tokenizer: before a space and a letter or digit, except for letters of Thai and
# Lao that join the character before them.
BOUNDARY = rf"(?<=[^\s{BEFORE_ANY}])(?= [^\W\u0e33\u0eb3])"


def pieces_of(text: str) -> list[str]:
    """A very long text in pieces of at least PIECE characters, each of which ends before a word."""
    return re.findall(rf"(?s).{{{PIECE},}}?{BOUNDARY}|.+", text)


def splits_at_spaces(definition: Mapping[str, Any]) -> bool:
    """Whether no token depends on text beyond a space, so that the ids of pieces_of are those of the whole text."""
    if any(token.get("rstrip") or " " in token["content"] for token in definition["added_tokens"]):
        return False  # an added token would include the space
    normalizer, splitter = json.dumps(definition.get("normalizer")), json.dumps(definition.get("pre_tokenizer"))
    odd = re.search(r'"prepend_scheme": "(never|first)"|"(split|use_regex)": false', splitter)
    return not odd and types_in(splitter) in SPLITTERS and set(types_in(QUOTES.sub("", normalizer))) <= LOCAL


def types_in(part: str) -> list[str]:
    """The types of the steps of a normalizer or pre_tokenizer, which may be one, a Sequence, or null."""
    return [name for name in re.findall(r'"type": "(\w+)"', part) if name != "Sequence"]
