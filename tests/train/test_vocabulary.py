"""Learning a vocabulary: by hand and by the library the same; what cannot be learned."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

import minibert
from minibert.text.wordpiece import SPECIAL_TOKENS
from minibert.train import vocabulary
from minibert.train.vocabulary import (
    count_strings,
    count_words,
    learn_by_library,
    learn_vocabulary,
    letters,
)

BOATS = "the old boat . the older boats .\n"
REVIEWS = Path(__file__).parents[2] / "minibert" / "data" / "reviews.tsv"  # real sentences


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text(BOATS * 3 + "\nÉlan, the OLD boat's\n", encoding="utf-8")
    return path


def learn_by_hand(words: dict[str, int], size: int, min_frequency: int = 2) -> list[str]:
    """Return what is learned by joining again and again the most frequent pair, in a tie that of the smallest ids."""
    tokens = [*SPECIAL_TOKENS, *vocabulary.letters(words)]
    ids = {token: id for id, token in enumerate(tokens)}
    written = [([ids[word[0]], *(ids[f"##{letter}"] for letter in word[1:])], count) for word, count in words.items()]
    while len(tokens) < size:
        pairs = Counter()
        for pieces, count in written:
            for pair in pairwise(pieces):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
        if best is None or pairs[best] < min_frequency:
            break
        token = tokens[best[0]] + tokens[best[1]].removeprefix("##")
        if token not in ids:
            ids[token] = len(tokens)
            tokens.append(token)
        for pieces, _ in written:
            at = 0
            while at < len(pieces) - 1:  # from the left
                if (pieces[at], pieces[at + 1]) == best:
                    pieces[at : at + 2] = [ids[token]]
                at += 1
    return tokens


def test_the_example_of_the_first_page_is_what_is_learned():
    words = Counter(BOATS.split())
    first = [*SPECIAL_TOKENS, *".abdehlorst", *(f"##{letter}" for letter in "adehlorst")]
    assert learn_by_hand(words, 1000) == [*first, "bo", "ol", "th", "##at", "boat", "old", "the"]


def test_on_real_text_the_library_learns_what_the_hand_learns(tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_text("".join(REVIEWS.read_text("utf-8").splitlines(keepends=True)[:40]), "utf-8")
    words = count_words(count_strings([path]), lowercase=True, strip=True)
    right = learn_by_hand(words, 200)
    assert len(right) == 200
    assert learn_by_library(words, 200) == right
    monkeypatch.setattr(
        "minibert.train.vocabulary.letters", lambda words: letters(words)[::-1]
    )  # the control: other ties
    for learn in (learn_by_hand, learn_by_library):
        assert set(learn(words, 200)) != set(right)


@given(st.dictionaries(st.text("ab", min_size=1, max_size=9), st.integers(1, 20), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_on_any_words_the_library_learns_what_the_hand_learns(words):
    assert learn_by_library(words, 60, 1) == learn_by_hand(words, 60, 1)


def test_the_share_of_words_in_one_piece_is_right(corpus):
    in_one = {"the": 7, "old": 4, "boat": 4, ".": 6, "boats": 3, "older": 3, ",": 1, "'": 1, "s": 1}  # of 31 words
    assert learn_vocabulary(corpus, 1000).whole == sum(in_one.values()) / 31


def test_rare_words_of_a_huge_corpus_and_very_long_words_teach_nothing(tmp_path, monkeypatch):
    path = tmp_path / "corpus.txt"
    path.write_text("boat boat\n" + "qu" * 51 + "\n" + "".join(f"word{n}\n" for n in range(100)) + "boat\n" * 2)
    found = learn_vocabulary(path, 100, min_frequency=1)
    assert found.words == 105 and "boat" in found.tokens
    assert not any("q" in token for token in found.tokens)  # WordPiece never splits a word of over 100 characters
    monkeypatch.setattr("minibert.train.vocabulary.MOST_WORDS", 10)
    found = learn_vocabulary(path, 50, min_frequency=4)
    assert found.words < 20 and "boat" in found.tokens


# ---------------------------------------------------------------------------------------------------------------
# The folder and the command


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_folder_is_a_tokenizer_to_minibert_and_to_transformers(lowercase, corpus, tmp_path):
    found = learn_vocabulary(corpus, 1000, min_frequency=1, lowercase=lowercase)
    assert ["elan" in found.tokens, "Élan" in found.tokens, "OLD" in found.tokens] == [lowercase, *[not lowercase] * 2]
    found.save(tmp_path / "out")
    ours, theirs = minibert.load_tokenizer(tmp_path / "out"), AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "The old BOAT and [MASK] élan, zebra"
    assert ours.encode(text) == theirs.encode(text)
    assert ours.convert_ids_to_tokens(range(len(found.tokens))) == found.tokens
    assert (tmp_path / "out" / "vocab.txt").read_text("utf-8").split("\n")[:-1] == found.tokens


MARKED = {  # a text, and its first word without marks
    "Hindi": ("हिन्दी में लिखा है\n", "हिनदी"),
    "Thai": ("ที่นี่ น้ำ\n", "ทน"),
    "Vietnamese": ("Tiếng Việt\n", "tieng"),
    "Japanese": ("がくせい です\n", "かくせい"),
    "Russian": ("Чёрный чай\n", "черныи"),
}


@pytest.mark.parametrize(("text", "bare"), MARKED.values(), ids=MARKED)
@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip", [None, True, False])
def test_accents_and_vowel_signs_are_kept_or_not_apart_from_case(text, bare, lowercase, strip, tmp_path):
    (tmp_path / "corpus.txt").write_text(text, encoding="utf-8")
    found = learn_vocabulary(tmp_path / "corpus.txt", 1000, min_frequency=1, lowercase=lowercase, strip_accents=strip)
    stripped = lowercase if strip is None else strip
    word = text.split()[0]
    right = bare if stripped else word
    assert (right.lower() if lowercase else right).casefold() in [token.casefold() for token in found.tokens]
    assert (found.stripped > 0) == stripped
    found.save(tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text("utf-8"))
    assert (settings["do_lower_case"], settings["strip_accents"]) == (lowercase, stripped)
    ours, theirs = minibert.load_tokenizer(tmp_path / "out"), AutoTokenizer.from_pretrained(tmp_path / "out")
    for line in (text, f"{text} é {text} {text.upper()}"):
        assert ours.encode(line) == theirs.encode(line)
    assert ours.unk_id not in ours.encode(text)


def test_the_command_says_that_words_lost_their_marks_and_how_to_keep_them(tmp_path, run):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("हिन्दी में लिखा है ।\n" * 5, encoding="utf-8")
    request = ("vocab", corpus, "--size", "60")
    lost = " ".join(run(*request, "--out", tmp_path / "lost").split())
    assert "60.0% of the words lost" in lost and "--no-strip-accents" in lost
    assert "no-strip" not in run(*request, "--no-strip-accents", "--out", tmp_path / "kept")
    assert "no-strip" not in run(*request, "--cased", "--out", tmp_path / "cased")
    corpus.write_text("a fine café\n" + "plain words\n" * 200, encoding="utf-8")
    assert "no-strip" not in run(*request, "--out", tmp_path / "english")


def test_words_of_a_language_without_spaces_are_counted_where_they_are_too_long(tmp_path, run):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("かな" * 60 + "\nかな\n" * 2, encoding="utf-8")
    found = learn_vocabulary(corpus, 50, min_frequency=1)
    assert (found.too_long, found.unknown) == (1, 120 / 124)
    said = " ".join(run("vocab", corpus, "--size", "50", "--out", tmp_path / "out").split())
    assert "1 of 3 words have over 100 characters (96.8% of all characters)" in said and "no spaces" in said
    corpus.write_text("かな" * 60 + "\n", encoding="utf-8")
    said = run("vocab", corpus, "--size", "50", "--out", tmp_path / "none", status=2)
    assert "every word has over 100 characters" in said and "no spaces" in said


def test_the_command_reports_what_it_learned(corpus, tmp_path, run):
    *shown, figures = run("vocab", corpus, "--size", "50", "--out", tmp_path / "out", "--json").splitlines()
    printed = " ".join(" ".join(shown).split())
    assert json.loads(figures)["tokens"] == 39 and "31 words, 10 different ones, 14 letters" in printed
    assert "fewer tokens than the 50 requested: no other pair occurs 2 times" in printed
    error = run("vocab", "no_such_corpus.txt", "--out", tmp_path, status=2)  # before anything is read
    assert "is there already and holds" in error


# ---------------------------------------------------------------------------------------------------------------
# What cannot be learned


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no word"),
        (b"  \n\n\t\n", "no word"),
        (b"a boat\nPK\x03\x04\0\0\n", "binary"),
        (b"a boat\n\xff\xfe\x80\n", r"line 2\b.*UTF-8"),
    ],
    ids=["empty", "blank", "NUL", "not UTF-8"],
)
def test_what_is_no_text_is_refused(content, message, tmp_path):
    (tmp_path / "corpus.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        learn_vocabulary(tmp_path / "corpus.txt", 1000)


def test_a_size_too_small_for_the_letters_names_the_smallest_that_fits(corpus):
    least = 5 + len(letters(count_words(count_strings([corpus]), lowercase=True, strip=True)))
    with pytest.raises(ValueError, match=rf"size is {least - 1}\b.* {least} tokens.* {least}\b"):
        learn_vocabulary(corpus, least - 1)
    assert len(learn_vocabulary(corpus, least).tokens) == least
