"""A text of any length to ids, piece by piece: equal to those of the whole text, in memory for a piece.

The library takes about a hundred bytes a character while it works. A text beyond PIECE characters is therefore given
to it in pieces, cut where a word begins, so that no token depends on what stands before or behind its word:

    WordPiece              BERT splits at white space and punctuation before anything else. The last word of a piece may
                           go on and waits for the next.
    byte-level BPE,        A word takes the space before it along, ĠA or ▁A, and is split off there: before a space
    unigram                between two characters that nothing joins.

A tokenizer that splits in another way reads a text whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import tokenizers

from minibert.text.tokenizer_files import flat, kind_of

PIECE = 2**16  # characters; 512 tokens of text take some 3,000

# The normalizers that turn each character with its marks into others, whatever stands around it.
LOCAL = {"Precompiled", "NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Lowercase"}
QUOTES = [{"type": "Replace", "pattern": {"String": two}, "content": '"'} for two in ("``", "''")]  # ALBERT's
# Number signs and a few letters of India that would join a space behind them (Prepend in UAX 29); letters of Thai and
# Lao that join what is before them.
BEFORE_ANY = "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u0d4e\U000110bd-\U00011f02"
SAFE = re.compile(f"(?<=[^\\s{BEFORE_ANY}]) (?=[^\\W\u0e33\u0eb3])")


def piecewise(backend: tokenizers.Tokenizer, definition: Mapping[str, Any]) -> Piecewise:
    """What reads long texts for this backend. definition: the content of tokenizer.json that it was made from."""
    return (Piecewise if kind_of(definition["model"]) == "WordPiece" else AtSpaces)(backend, definition)


class Piecewise:
    """The ids of long texts by WordPiece."""

    def __init__(self, backend: tokenizers.Tokenizer, definition: Mapping[str, Any]) -> None:
        self.backend = backend
        self.longest_word = int(definition["model"].get("max_input_chars_per_word", 100))  # beyond, a word is [UNK]
        added = definition.get("added_tokens") or []
        self.added = {token.get("content", "") for token in added}
        # An added token, [SEP] in a text, may stand across the end of a piece; one more character ends it.
        self.margin = 1 + max(map(len, self.added), default=0)
        self.possible = self.can_be_cut(definition, added)

    def can_be_cut(self, definition: Mapping[str, Any], added: list[Mapping[str, Any]]) -> bool:
        """Whether texts are split as BERT splits them."""
        normalizer, splitter = definition.get("normalizer") or {}, definition.get("pre_tokenizer") or {}
        return (
            normalizer.get("type") == "BertNormalizer"
            and normalizer.get("clean_text", True)
            and splitter.get("type") == "BertPreTokenizer"
            and not any(token.get("normalized") for token in added)
        )

    def beginning(self, text: str) -> str:
        """The first piece of a long text."""
        return text[:PIECE]

    def ids(self, text: str, enough: int | None = None) -> tuple[list[int], bool]:
        """The ids of a text, at least the first `enough` of them, and whether these are all."""
        if not self.possible:
            return self.backend.encode(text, add_special_tokens=False).ids, True
        ids: list[int] = []
        held = ""  # characters whose tokens are not certain yet
        for start in range(0, len(text), PIECE):
            held += text[start : start + PIECE]
            made = self.backend.encode(held, add_special_tokens=False)
            if start + PIECE >= len(text):
                ids += made.ids
                return ids, True
            if certain := self.certain(made, len(held)):
                ids += made.ids[:certain]
                held = held[made.offsets[certain][0] :]
            elif len(set(made.word_ids)) <= 1 and not any(held[a:b].strip() in self.added for a, b in made.offsets):
                held = self.shortened(held)
            if enough is not None and len(ids) >= enough:
                return ids, False
        return ids, True

    def certain(self, made: tokenizers.Encoding, length: int) -> int:
        """How many tokens stay as they are whatever follows: those before the last word that begins before the end."""
        if not self.possible:
            return 0
        words, offsets = made.word_ids, made.offsets
        places = range(len(words) - 1, 0, -1)
        ready = (at for at in places if words[at] != words[at - 1] and offsets[at][0] <= length - self.margin)
        return next(ready, 0)

    def shortened(self, held: str) -> str:
        """The same tokens, whatever follows, from fewer characters: of text that has one word at the most.

        What the normalizer drops goes, and of a word that is too long for the vocabulary all but its beginning. The
        margin stays as it is, behind a character that is dropped, so that no added token comes about or is lost.
        """
        normal: str = self.backend.normalizer.normalize_str(held[: -self.margin])
        word, space, _ = normal.lstrip(" ").partition(" ")
        return word[: self.longest_word + 1] + space + "\0" + held[-self.margin :]


class AtSpaces(Piecewise):
    """The ids of long texts by byte-level BPE and unigram: pieces that end before a space, each certain."""

    def can_be_cut(self, definition: Mapping[str, Any], added: list[Mapping[str, Any]]) -> bool:
        """Whether a word is split off before its space, and nothing before the space matters to what is behind it."""
        steps = list(flat(definition.get("normalizer"), "normalizers"))
        splitters = list(flat(definition.get("pre_tokenizer"), "pretokenizers"))
        if not splitters or any(token.get("rstrip") or " " in token.get("content", "") for token in added):
            return False  # an added token would take the space
        kinds, last = [step.get("type") for step in splitters], splitters[-1]
        if kinds == ["ByteLevel"]:
            return not steps and bool(last.get("use_regex", True))
        local = all(step.get("type") in LOCAL or step in QUOTES for step in steps)
        marked = last.get("prepend_scheme", "always") == "always" and last.get("split", True)
        return local and bool(marked) and kinds == ["WhitespaceSplit", "Metaspace"]

    def beginning(self, text: str) -> str:
        """The first piece of a long text; all of PIECE where it cannot be cut."""
        return text[: self.end(text[:PIECE]) or PIECE]

    def certain(self, made: tokenizers.Encoding, length: int) -> int:
        """All tokens of a piece that could be cut."""
        return len(made) if length < PIECE else 0

    def end(self, held: str) -> int:
        """Where the last piece that is certain ends, 0 where none does."""
        if not self.possible:
            return 0
        at = held.rfind(" ", 0, len(held) - 1)
        while at > 0 and not SAFE.match(held, at):
            at = held.rfind(" ", 0, at)
        return max(at, 0)

    def ids(self, text: str, enough: int | None = None) -> tuple[list[int], bool]:
        """The ids of a text, at least the first `enough` of them, and whether these are all."""
        ids: list[int] = []
        start, size = 0, PIECE
        while self.possible and start + size < len(text):
            if enough is not None and len(ids) >= enough:
                return ids, False
            if end := self.end(text[start : start + size]):
                ids += self.backend.encode(text[start : start + end], add_special_tokens=False).ids
                start, size = start + end, PIECE
            else:
                size *= 2  # a word without end, or a language without spaces
        ids += self.backend.encode(text[start:], add_special_tokens=False).ids
        return ids, True
