"""The hand-written WordPiece gives the ids of the `tokenizers` library, on all of Unicode."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable, Iterable

import pytest
import tokenizers
from helpers import HARD_TEXTS, minilm_folder
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.text import wordpiece
from minibert.text.wordpiece import SPECIAL_TOKENS, WordPiece

ANY_TEXT = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.text(st.characters(max_codepoint=0x24F)),
        st.sampled_from([*SPECIAL_TOKENS, *HARD_TEXTS, " "]),
    ),
    max_size=5,
).map("".join)


def library(literal: bool = False, **normalizer: object) -> tokenizers.Tokenizer:
    """The reference: the library's tokenizer, with changed settings of its BertNormalizer."""
    definition = json.loads((minilm_folder() / "tokenizer.json").read_text(encoding="utf-8"))
    definition |= {"truncation": None, "padding": None}
    definition["normalizer"] |= normalizer
    backend = tokenizers.Tokenizer.from_str(json.dumps(definition))
    backend.encode_special_tokens = literal
    return backend


REFERENCE = library()
VOCAB = REFERENCE.get_vocab()


def differences(ours: WordPiece, texts: Iterable[str], reference: tokenizers.Tokenizer = REFERENCE) -> list[str]:
    """The texts of which the two make different ids."""
    texts = list(texts)
    expected = reference.encode_batch(texts, add_special_tokens=False)
    return [text for text, theirs in zip(texts, expected, strict=True) if ours.ids(text) != theirs.ids]


def sentences(code_points: Iterable[int], per_sentence: int = 64) -> list[str]:
    """Sentences that hold each character alone and inside a word: dropped, split or kept, each gives other ids."""
    words = [f"a{chr(code)}b {chr(code)}" for code in code_points if not 0xD800 <= code <= 0xDFFF]
    return [" ".join(words[start : start + per_sentence]) for start in range(0, len(words), per_sentence)]


def test_hard_texts_give_the_ids_of_the_library():
    assert differences(WordPiece(VOCAB), HARD_TEXTS) == []


def test_every_character_of_the_basic_plane_gives_the_ids_of_the_library():
    assert differences(WordPiece(VOCAB), sentences(range(0x10000))) == []


def test_characters_of_the_other_planes_give_the_ids_of_the_library():
    # Every mark, sign and cased letter; of the plain letters, private and unassigned code points every 31st.
    plain = ("Lo", "Co", "Cn")
    codes = (c for c in range(0x10000, sys.maxunicode + 1) if c % 31 == 0 or unicodedata.category(chr(c)) not in plain)
    assert differences(WordPiece(VOCAB), sentences(codes)) == []


@settings(max_examples=300, deadline=None)
@given(ANY_TEXT)
def test_any_text_gives_the_ids_of_the_library(text: str):
    assert differences(WordPiece(VOCAB), [text]) == []


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"lowercase": False}, {"lowercase": False}),
        ({"lowercase": False, "strip_accents": True}, {"lowercase": False, "strip_accents": True}),
        ({"strip_accents": False}, {"strip_accents": False}),
        ({"split_chinese": False}, {"handle_chinese_chars": False}),
        ({"special_tokens": ()}, {"literal": True}),
    ],
)
def test_every_setting_gives_the_ids_of_the_library(ours: dict[str, object], theirs: dict[str, object]):
    assert differences(WordPiece(VOCAB, **ours), HARD_TEXTS, library(**theirs)) == []


class ShortestMatch(WordPiece):
    """A mistake to be caught: the shortest piece first."""

    def pieces(self, word: str) -> list[str]:
        pieces, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            ends = range(start + 1, len(word) + 1)
            end = next((end for end in ends if prefix + word[start:end] in self.vocab), None)
            if end is None:
                return ["[UNK]"]
            pieces.append(prefix + word[start:end])
            start = end
        return pieces


@pytest.mark.parametrize(
    "mistaken",
    [
        ShortestMatch(VOCAB),
        WordPiece(VOCAB, strip_accents=False),
        WordPiece(VOCAB, lowercase=False),
        WordPiece(VOCAB, split_chinese=False),
        WordPiece(VOCAB, special_tokens=()),
    ],
    ids=["shortest match", "accents kept", "case kept", "Chinese not split", "special tokens not recognised"],
)
def test_the_comparison_notices_a_mistake(mistaken: WordPiece):
    assert differences(mistaken, HARD_TEXTS) != []


@pytest.mark.parametrize(
    ("step", "mistake"),
    [
        ("category", unicodedata.category),
        ("clean", lambda text: text),
        ("lower", str.lower),
        ("strip_accents", lambda text: unicodedata.normalize("NFC", text)),
        ("MAX_WORD_LENGTH", 101),
        ("MAX_WORD_LENGTH", 99),
    ],
)
def test_the_comparison_notices_a_mistake_in_one_step(
    monkeypatch: pytest.MonkeyPatch, step: str, mistake: Callable[[str], str] | int
):
    monkeypatch.setattr(wordpiece, step, mistake)
    assert differences(WordPiece(VOCAB), HARD_TEXTS) != []


def test_the_steps_of_the_docstring_are_those_of_the_code():
    ours = WordPiece(VOCAB)
    assert ours.split("Café-Bar 東京") == ["cafe", "-", "bar", "東", "京"]
    assert ours.tokens("Café-Bar 東京") == ["cafe", "-", "bar", "東", "京"]


def test_a_word_is_cut_into_its_longest_pieces():
    assert WordPiece(VOCAB).pieces("unbelievably") == ["un", "##bel", "##ie", "##va", "##bly"]


def test_a_word_with_one_unknown_piece_is_unknown_as_a_whole():
    assert WordPiece(VOCAB).pieces("unbelievably😀") == ["[UNK]"]


def test_of_two_special_tokens_that_begin_alike_the_longer_one_is_recognised():
    vocab = {"<m": 0, "<m>": 1, "a": 2}
    assert WordPiece(vocab, special_tokens=("<m", "<m>")).ids("a<m>a<ma") == [2, 1, 2, 0, 2]
