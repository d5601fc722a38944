"""The hand-written byte-level BPE gives the ids of the `tokenizers` library, on all of Unicode that Python knows."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import tokenizers
from helpers import HARD_TEXTS
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import FAIRSEQ, SENTENCES, byte_pairs
from tokenizers import AddedToken, models, pre_tokenizers

from minibert.text import byte_pairs as module
from minibert.text.byte_pairs import BytePairs, byte_characters, kind, split_words

# Two merges that no sentence teaches: they show where words are not to be split in another way.
VOCAB, MERGES = byte_pairs()
VOCAB = VOCAB | {"'S": len(VOCAB), "!Ĝ": len(VOCAB) + 1}
MERGES = [*MERGES, ("'", "S"), ("!", "Ĝ")]
HARD = [
    *HARD_TEXTS,
    *SENTENCES,
    "I'm don't IT'S 'S 'RE we'll 'l 're",
    "  two   spaces  at both ends  ",
    "\x1c a\x1db \x1e\x1f !\x1c",
    "x" * 500 + " " + "ab" * 300,
    "a <mask> b<mask>\u3000<mask> <s>c</s> <pad> <unk> \x1c<mask>",
]
ANY_TEXT = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs", "Cn"])),
        st.text(st.characters(max_codepoint=0x24F)),
        st.sampled_from([*FAIRSEQ, *HARD, " ", "'", "'ll"]),
    ),
    max_size=5,
).map("".join)


def library(prefix: bool = False, literal: bool = False) -> tokenizers.Tokenizer:
    """The reference, with the same merges."""
    backend = tokenizers.Tokenizer(models.BPE(vocab=VOCAB, merges=MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.add_special_tokens([*FAIRSEQ[:4], AddedToken("<mask>", lstrip=True, special=True)])
    backend.encode_special_tokens = literal
    return backend


def differences(ours: BytePairs, texts: list[str], reference: tokenizers.Tokenizer | None = None) -> list[str]:
    """The texts of which the two make different ids."""
    made = (reference or library()).encode_batch(texts, add_special_tokens=False)
    return [text for text, theirs in zip(texts, made, strict=True) if ours.ids(text) != theirs.ids]


@pytest.mark.parametrize("prefix", [False, True])
def test_hard_texts_give_the_ids_of_the_library(prefix: bool) -> None:
    assert differences(BytePairs(VOCAB, MERGES, prefix), HARD, library(prefix)) == []


def test_typed_special_tokens_can_be_read_literally() -> None:
    assert differences(BytePairs(VOCAB, MERGES, special_tokens=()), HARD, library(literal=True)) == []


@settings(max_examples=300)
@given(ANY_TEXT)
def test_any_text_gives_the_ids_of_the_library(text: str) -> None:
    assert differences(BytePairs(VOCAB, MERGES), [text]) == []


def test_the_bytes_have_the_characters_of_the_library() -> None:
    assert sorted(byte_characters()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert [byte_characters()[byte] for byte in b" \n!\xc3\xa9"] == ["Ġ", "Ċ", "!", "Ã", "©"]


def test_every_character_that_python_has_in_its_tables_is_split_as_the_library_splits() -> None:
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    wrong = []
    for code in (code for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF):
        plain = unicodedata.category(chr(code)) in ("Lo", "Co", "Cn")
        if plain and code > 0x2FFF and code % 31:  # of Chinese letters and those behind them every 31st
            continue
        text = f"a{chr(code)}1{chr(code)} {chr(code)}"
        ours = ["".join(byte_characters()[byte] for byte in word.encode()) for word in split_words(text)]
        if ours != [word for word, _ in splitter.pre_tokenize_str(text)]:
            wrong.append(code)
    assert {unicodedata.category(chr(code)) for code in wrong} <= {"Cn"}  # letters that are newer than Python


def last_first(self: BytePairs, word: str) -> list[str]:
    """A mistake: of the pairs that were learned, the last one first."""
    pieces = [byte_characters()[byte] for byte in word.encode()]
    while True:
        ranks = [self.ranks.get(pair, -1) for pair in pairwise(pieces)]
        if max(ranks, default=-1) < 0:
            return pieces
        at = ranks.index(max(ranks))
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


@pytest.mark.parametrize(
    ("owner", "name", "mistake"),
    [
        (BytePairs, "pieces", last_first),
        (module, "kind", lambda c: "W" if c.isspace() and c != " " else kind(c)),
        (module, "CONTRACTION", module.re.compile("(?i)'(?:s|t|re|ve|m|ll|d)")),
        (module, "RUN", module.re.compile(" ?L+| ?N+| ?O+|[ W]+")),
    ],
    ids=["merges", "white space of Python", "contractions in capitals", "the last space of several"],
)
def test_the_comparison_notices_a_mistake(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, mistake: Callable[..., Any]
) -> None:
    monkeypatch.setattr(owner, name, mistake)
    assert differences(BytePairs(VOCAB, MERGES), HARD) != []


def test_the_comparison_notices_a_space_that_the_mask_leaves() -> None:
    assert differences(BytePairs(VOCAB, MERGES, taking_space=()), HARD) != []


def test_of_equal_pairs_the_leftmost_is_joined_and_one_learned_earlier_goes_first() -> None:
    vocab = {piece: id for id, piece in enumerate(["a", "b", "aa", "ab", "aab"])}
    assert BytePairs(vocab, [("a", "a")]).pieces("aaa") == ["aa", "a"]
    assert BytePairs(vocab, [("a", "b"), ("a", "a")]).pieces("aab") == ["a", "ab"]
    assert BytePairs(vocab, [("a", "a"), ("aa", "b")]).pieces("aab") == ["aab"]


def test_the_words_of_the_docstring_are_those_of_the_code() -> None:
    assert split_words("Hello world! Hello") == ["Hello", " world", "!", " Hello"]
