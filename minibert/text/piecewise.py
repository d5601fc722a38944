"""A text of any length to ids, piece by piece: equal to those of the whole text, in memory for a piece.

The library takes about a hundred bytes a character while it works. A text beyond PIECE characters is therefore given
to it in pieces, cut where a word begins: BERT splits at white space and punctuation before anything else, so that no
token depends on what stands before or behind its word. The last word of a piece may go on and waits for the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers

PIECE = 2**16  # characters; 512 tokens of text take some 3,000


class Piecewise:
    """The ids of long texts. definition: the content of tokenizer.json that `backend` was made from."""

    def __init__(self, backend: tokenizers.Tokenizer, definition: Mapping[str, Any]) -> None:
        self.backend = backend
        added = definition.get("added_tokens") or []
        normalizer, splitter = definition.get("normalizer") or {}, definition.get("pre_tokenizer") or {}
        # Other tokenizers read a long text whole: where they may be cut is for whoever adds them to say.
        self.possible = (
            normalizer.get("type") == "BertNormalizer"
            and normalizer.get("clean_text", True)
            and splitter.get("type") == "BertPreTokenizer"
            and not any(token.get("normalized") for token in added)
        )
        self.longest_word = int(definition["model"].get("max_input_chars_per_word", 100))  # beyond, a word is [UNK]
        self.added = {token.get("content", "") for token in added}
        # An added token, [SEP] in a text, may stand across the end of a piece; one more character ends it.
        self.margin = 1 + max(map(len, self.added), default=0)

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
