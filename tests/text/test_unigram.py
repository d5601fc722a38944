"""The hand-written unigram model gives the ids of the `tokenizers` library, and says where it cannot."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
from helpers import HARD_TEXTS
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2
from small_tokenizers import FAIRSEQ, SENTENCES, pieces
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from minibert.text import unigram as module
from minibert.text.unigram import Precompiled, Unigram, lower_without_accents, split_words

MODEL = sentencepiece_model_pb2.ModelProto.FromString(pieces("xlm-roberta"))
CHARSMAP = MODEL.normalizer_spec.precompiled_charsmap
VOCAB = [(name, 0.0) for name in FAIRSEQ[:4]] + [(piece.piece, piece.score) for piece in MODEL.pieces[3:]]
VOCAB += [("<mask>", 0.0)]
BY_TABLE, THEIRS = Precompiled(CHARSMAP), normalizers.Precompiled(CHARSMAP)
HARD = [
    *HARD_TEXTS,
    *SENTENCES,
    "ﬁne  ｗｏｒｄｓ \r\n ﬁ\u0301 ª\u0301\u0301 ½ ㎏ ①",
    "a▁b ▁▁ c ▁",
    "\x1c a\x1db \x1e\x1f \x85 \x00",
    "x" * 500 + " " + "é" * 300 + "\U0010ffff" * 3,
    "a <mask> b<mask>\u3000<mask> <s>c</s> <pad> <unk>",
]
ANY_TEXT = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs", "Cn", "Mc"])),
        st.text(st.characters(max_codepoint=0x24F)),
        st.sampled_from([*FAIRSEQ, *HARD, " ", "▁", "\u0301", "ﬁ"]),
    ),
    max_size=5,
).map("".join)


def library(vocab: list[tuple[str, float]] = VOCAB) -> tokenizers.Tokenizer:
    """The reference, with the same pieces and the same table."""
    backend = tokenizers.Tokenizer(models.Unigram(vocab, 3, False))
    backend.normalizer = THEIRS
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    mask = AddedToken("<mask>", lstrip=True, normalized=False, special=True)
    backend.add_special_tokens([*(AddedToken(name, normalized=False) for name in FAIRSEQ[:4]), mask])
    return backend


REFERENCE = library()
OURS = Unigram(VOCAB, 3, BY_TABLE)


def differences(texts: list[str]) -> list[str]:
    """The texts of which the two make different ids."""
    made = REFERENCE.encode_batch(texts, add_special_tokens=False)
    return [text for text, theirs in zip(texts, made, strict=True) if OURS.ids(text) != theirs.ids]


def test_hard_texts_give_the_ids_of_the_library() -> None:
    assert differences(HARD) == []


@settings(max_examples=300)
@given(ANY_TEXT)
def test_any_text_gives_the_ids_of_the_library(text: str) -> None:
    assert differences([text]) == []


@settings(max_examples=200)
@given(
    st.dictionaries(st.text("ab▁", min_size=1, max_size=4), st.sampled_from([-1.0, -2.0, -3.0, -5.0])),
    st.text("abc ", max_size=12),
)
def test_of_cuts_that_are_worth_the_same_the_library_s_is_taken(scores: dict[str, float], text: str) -> None:
    vocab = [*VOCAB[:4], *scores.items()]
    assert Unigram(vocab, 3).ids(text) == library(vocab).encode(text, add_special_tokens=False).ids


def characters() -> list[str]:
    """All of Unicode, but of Chinese letters and of the plain ones behind them every 31st."""
    codes = [code for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF]
    plain = ("Lo", "Co", "Cn")
    return [chr(c) for c in codes if c < 0x3000 or c % 31 == 0 or unicodedata.category(chr(c)) not in plain]


def test_every_character_becomes_what_it_becomes_in_the_library() -> None:
    texts = {c: f"a{c}b {c} é{c}ｗ ﬁ{c}" for c in characters()}
    assert [c for c, text in texts.items() if BY_TABLE(text) != THEIRS.normalize_str(text)] == []


def test_words_are_split_as_the_library_splits_them() -> None:
    splitter = REFERENCE.pre_tokenizer
    texts = {c: f"a{c}b▁{c} ▁▁c" for c in characters()}
    assert [
        c for c, text in texts.items() if split_words(text) != [w for w, _ in splitter.pre_tokenize_str(text)]
    ] == []


def test_clusters_differ_only_for_some_signs_of_south_east_asia_and_what_is_newer_than_python() -> None:
    wrong = [c for c in characters() for text in [f"ª{c}", f"{c}ª"] if BY_TABLE(text) != THEIRS.normalize_str(text)]
    known = [c for c in wrong if unicodedata.category(c) != "Cn"]
    assert wrong and {unicodedata.category(c) for c in known} == {"Mc"}
    assert {unicodedata.name(c).partition(" ")[0] for c in known} == {"MYANMAR", "TAI"}


def test_albert_s_letters_are_the_library_s_for_all_that_unicode_3_2_had() -> None:
    quotes = [normalizers.Replace(two, '"') for two in ("``", "''")]
    steps = [*quotes, normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    theirs = normalizers.Sequence(steps)
    wrong = [c for c in characters() if lower_without_accents(f"a{c}B") != theirs.normalize_str(f"a{c}B")]
    assert {unicodedata.ucd_3_2_0.category(c) for c in wrong} <= {"Cn"}
    assert lower_without_accents("``Élan'' ﬁ") == '"elan" fi'


def greedy(self: Unigram, word: str) -> list[str]:
    """A mistake: the longest piece first, as WordPiece does."""
    found, start = [], 0
    while start < len(word):
        ends = range(len(word), start, -1)
        end = next((end for end in ends if word[start:end] in self.scores), 0)
        found.append(word[start:end] if end else self.unknown)
        start = end or start + 1
    return found


@pytest.mark.parametrize(
    ("owner", "name", "mistake"),
    [
        (Unigram, "pieces", greedy),
        (Precompiled, "find", lambda self, key: None),
        (module, "clusters", lambda text: list(text)),
        (module, "split_words", str.split),
    ],
    ids=["greedy", "no table", "characters for clusters", "no mark at words"],
)
def test_the_comparison_notices_a_mistake(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, mistake: Callable[..., Any]
) -> None:
    monkeypatch.setattr(owner, name, mistake)
    assert differences(HARD) != []


def test_the_best_cut_is_the_one_of_the_largest_sum() -> None:
    vocab = [("<unk>", 0.0), ("▁", -1.0), ("▁ab", -3.0), ("a", -1.0), ("bc", -1.5), ("c", -2.0), ("▁a", -2.5)]
    model = Unigram(vocab, 0, special_tokens=())
    assert model.tokens("abc") == ["▁", "a", "bc"]  # -3.5; ▁a bc is -4.0, ▁ab c -5.0
    assert model.tokens("xyz c") == ["▁", "<unk>", "▁", "c"]  # unknown characters in a row are one token


def test_the_words_of_the_docstring_are_those_of_the_code() -> None:
    assert split_words(BY_TABLE("ﬁne  ｗｏｒｄｓ")) == ["▁fine", "▁words"]
