"""The hand-written WordPiece, byte-level BPE and unigram model give the ids of the `tokenizers` library."""

import sys
import unicodedata
from collections.abc import Iterable
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2
from support.models import HARD_TEXTS, minilm_folder
from support.tokenizers import FAIRSEQ, SENTENCES, byte_pairs, pieces
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from minibert.text import byte_pairs as bpe_module
from minibert.text import unigram as unigram_module
from minibert.text import wordpiece as wordpiece_module
from minibert.text.byte_pairs import BytePairs, byte_characters, kind
from minibert.text.unigram import Unigram
from minibert.text.wordpiece import SPECIAL_TOKENS, WordPiece

HARD = [
    *HARD_TEXTS,
    *SENTENCES,
    *("I'm don't IT'S 'S 'RE we'll 'l 're", "  two   spaces  at both ends  ", "\x1c a\x1db \x1e\x1f \x85 \x00!\x1c"),
    *("ﬁne  ｗｏｒｄｓ \r\n ﬁ\u0301 ª\u0301\u0301 ½ ㎏ ①", "a▁b ▁▁ c ▁", "é" * 300 + "\U0010ffff" * 3),
    *("x" * 500 + " " + "ab" * 300, "a <mask> b<mask>\u3000<mask> <s>c</s> <pad> <unk> \x1c<mask>"),
]


def wordpiece(literal: bool = False, **normalizer: object) -> tokenizers.Tokenizer:
    """The library's tokenizer of all-MiniLM-L6-v2, with changed settings of its BertNormalizer."""
    backend = tokenizers.Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    backend.normalizer = normalizers.BertNormalizer(**normalizer)
    backend.encode_special_tokens = literal
    backend.no_truncation()
    backend.no_padding()
    return backend


VOCAB = wordpiece().get_vocab()
# Two merges that no sentence teaches: they show where words must not be split in another way.
BPE_VOCAB, MERGES = byte_pairs()
BPE_VOCAB = BPE_VOCAB | {"'S": len(BPE_VOCAB), "!Ĝ": len(BPE_VOCAB) + 1}
MERGES = [*MERGES, ("'", "S"), ("!", "Ĝ")]
MODEL = sentencepiece_model_pb2.ModelProto.FromString(pieces("xlm-roberta"))
CHARSMAP = MODEL.normalizer_spec.precompiled_charsmap
TABLE = normalizers.Precompiled(CHARSMAP)
PIECES = [*((name, 0.0) for name in FAIRSEQ[:4]), *((p.piece, p.score) for p in MODEL.pieces[3:]), ("<mask>", 0.0)]


def bpe(prefix: bool = False, literal: bool = False) -> tokenizers.Tokenizer:
    """The library's byte-level BPE with the same merges."""
    backend = tokenizers.Tokenizer(models.BPE(vocab=BPE_VOCAB, merges=MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.add_special_tokens([*FAIRSEQ[:4], AddedToken("<mask>", lstrip=True, special=True)])
    backend.encode_special_tokens = literal
    return backend


def unigram(vocab: list[tuple[str, float]] = PIECES) -> tokenizers.Tokenizer:
    """The library's unigram model with the same pieces and the same table."""
    backend = tokenizers.Tokenizer(models.Unigram(vocab, 3, False))
    backend.normalizer = TABLE
    spaced = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaced])
    mask = AddedToken("<mask>", lstrip=True, normalized=False, special=True)
    backend.add_special_tokens([*(AddedToken(name, normalized=False) for name in FAIRSEQ[:4]), mask])
    return backend


def differences(ours: Any, theirs: tokenizers.Tokenizer, texts: Iterable[str]) -> list[str]:
    """The texts for which the two make different ids."""
    texts = list(texts)
    made = theirs.encode_batch(texts, add_special_tokens=False)
    return [text for text, one in zip(texts, made, strict=True) if ours.ids(text) != one.ids]


SETTINGS: dict[str, tuple[Any, tokenizers.Tokenizer]] = {
    "WordPiece": (WordPiece(VOCAB), wordpiece()),
    "BPE": (BytePairs(BPE_VOCAB, MERGES), bpe()),
    "unigram": (Unigram(PIECES, 3, TABLE.normalize_str), unigram()),
    "case": (WordPiece(VOCAB, lowercase=False), wordpiece(lowercase=False)),
    "case without accents": (WordPiece(VOCAB, False, True), wordpiece(lowercase=False, strip_accents=True)),
    "accents": (WordPiece(VOCAB, strip_accents=False), wordpiece(strip_accents=False)),
    "Chinese": (WordPiece(VOCAB, split_chinese=False), wordpiece(handle_chinese_chars=False)),
    "literal": (WordPiece(VOCAB, special_tokens=()), wordpiece(literal=True)),
    "prefix space": (BytePairs(BPE_VOCAB, MERGES, True), bpe(prefix=True)),
    "literal BPE": (BytePairs(BPE_VOCAB, MERGES, special_tokens=()), bpe(literal=True)),
}
THREE = ("WordPiece", "BPE", "unigram")


@pytest.mark.parametrize(("ours", "theirs"), SETTINGS.values(), ids=SETTINGS)
def test_hard_texts_give_the_ids_of_the_library(ours, theirs):
    assert differences(ours, theirs, HARD) == []


@pytest.mark.parametrize("name", THREE)
@settings(max_examples=100)
@given(data=st.data())
def test_any_text_gives_the_ids_of_the_library(name, data):
    excluded = ["Cs", "Cn"] if name == "BPE" else ["Cs"]  # Python may not know the newest characters
    parts = st.one_of(
        st.text(st.characters(exclude_categories=excluded)),
        st.text(st.characters(max_codepoint=0x24F)),
        st.sampled_from([*SPECIAL_TOKENS, *FAIRSEQ, *HARD, " ", "'", "'ll", "▁", "\u0301", "ﬁ"]),
    )
    assert differences(*SETTINGS[name], ["".join(data.draw(st.lists(parts, max_size=5)))]) == []


some_or_all = pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])


def characters(plain_until: int, step: int) -> list[str]:
    """All of Unicode, except that beyond `plain_until` only every 31st uncased letter and unassigned character."""
    codes = [code for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF]
    plain = ("Lo", "Co", "Cn")
    codes = [c for c in codes if c < plain_until or c % 31 == 0 or unicodedata.category(chr(c)) not in plain]
    return [chr(code) for code in codes[::step]]


@some_or_all
def test_wordpiece_reads_every_character_as_the_library_does(step):
    words = [f"a{character}b {character}" for character in characters(0x10000, step)]
    assert differences(*SETTINGS["WordPiece"], (" ".join(words[i : i + 64]) for i in range(0, len(words), 64))) == []


@some_or_all
def test_bpe_splits_at_every_character_as_the_library_does(step):
    splitter, wrong = pre_tokenizers.ByteLevel(add_prefix_space=False), []
    for character in characters(0x3000, step):
        text = f"a{character}1{character} {character}"
        ours = ["".join(byte_characters()[byte] for byte in word.encode()) for word in bpe_module.split_words(text)]
        wrong += [character] if ours != [word for word, _ in splitter.pre_tokenize_str(text)] else []
    assert {unicodedata.category(character) for character in wrong} <= {"Cn"}  # letters that are newer than Python


@some_or_all
def test_unigram_splits_at_every_character_as_the_library_does(step):
    splitter = unigram().pre_tokenizer
    for text in (f"a{c}b▁{c} ▁▁c" for c in characters(0x3000, step)):
        assert unigram_module.split_words(text) == [word for word, _ in splitter.pre_tokenize_str(text)], ascii(text)


@settings(max_examples=100)
@given(
    st.dictionaries(st.text("ab▁", min_size=1, max_size=4), st.sampled_from([-1.0, -2.0, -3.0, -5.0])),
    st.text("abc ", max_size=12),
)
def test_of_cuts_with_the_same_score_the_library_s_is_taken(scores, text):
    vocab = [*PIECES[:4], *scores.items()]
    assert differences(Unigram(vocab, 3), unigram(vocab), [text]) == []


# -- the comparison notices mistakes


MISTAKES: list[tuple[str, Any, str, Any]] = [
    ("WordPiece", wordpiece_module, "range", lambda *bounds: range(*bounds)[::-1]),
    ("WordPiece", wordpiece_module, "category", unicodedata.category),
    ("WordPiece", wordpiece_module, "clean", lambda text: text),
    ("WordPiece", wordpiece_module, "lower", str.lower),
    ("WordPiece", wordpiece_module, "strip_accents", lambda text: unicodedata.normalize("NFC", text)),
    ("WordPiece", wordpiece_module, "MAX_WORD_LENGTH", 101),
    ("WordPiece", wordpiece_module, "MAX_WORD_LENGTH", 99),
    ("BPE", SETTINGS["BPE"][0], "ranks", {pair: -rank for rank, pair in enumerate(MERGES)}),
    ("BPE", bpe_module, "kind", lambda c: "W" if c.isspace() and c != " " else kind(c)),
    ("BPE", bpe_module, "CONTRACTION", bpe_module.re.compile("(?i)'(?:s|t|re|ve|m|ll|d)")),
    ("BPE", bpe_module, "RUN", bpe_module.re.compile(" ?L+| ?N+| ?O+|[ W]+")),
    ("unigram", SETTINGS["unigram"][0], "scores", dict.fromkeys(dict(PIECES), -1.0)),
    ("unigram", SETTINGS["unigram"][0], "normalise", str),
    ("unigram", SETTINGS["unigram"][0], "longest", 2),
    ("unigram", unigram_module, "split_words", str.split),
]


@pytest.mark.parametrize(("name", "owner", "step", "mistake"), MISTAKES)
def test_the_comparison_notices_a_mistake(monkeypatch, name, owner, step, mistake):
    monkeypatch.setattr(owner, step, mistake, raising=False)
    assert differences(*SETTINGS[name], HARD) != []


# -- examples


def test_words_and_special_tokens_are_split_as_the_docstrings_say():
    ours = WordPiece(VOCAB)
    assert ours.split("Café-Bar 東京") == ours.tokens("Café-Bar 東京") == ["cafe", "-", "bar", "東", "京"]
    assert ours.pieces("unbelievably") == ["un", "##bel", "##ie", "##va", "##bly"]
    assert WordPiece({"<m": 0, "<m>": 1, "a": 2}, special_tokens=("<m", "<m>")).ids("a<m>a<ma") == [2, 1, 2, 0, 2]
    assert bpe_module.split_words("Hello world! Hello") == ["Hello", " world", "!", " Hello"]
