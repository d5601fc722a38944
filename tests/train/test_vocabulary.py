"""Learning a vocabulary: by hand and by the library the same, from process to process too; what cannot be learned."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

import minibert
from minibert.cli.main import main
from minibert.text.wordpiece import SPECIAL_TOKENS
from minibert.train import vocabulary
from minibert.train.vocabulary import count_words, learn_by_hand, learn_by_library, learn_vocabulary, letters

BOATS = "the old boat . the older boats .\n"
REVIEWS = Path(__file__).parents[2] / "minibert" / "data" / "reviews.tsv"  # real sentences, and labels


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    rows = REVIEWS.read_text("utf-8").splitlines()
    path.write_text("".join(row.split("\t")[0] + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def words(text: Path) -> Counter[str]:
    return count_words([text], lowercase=True)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text(BOATS * 3 + "\nÉlan, the OLD boat's\n", encoding="utf-8")
    return path


def test_the_example_of_the_first_page_is_what_is_learned() -> None:
    words = Counter(BOATS.split())
    first = [*SPECIAL_TOKENS, *".abdehlorst", *(f"##{letter}" for letter in "adehlorst")]
    assert learn_by_hand(words, 1000) == [*first, "bo", "ol", "th", "##at", "boat", "old", "the"]


def test_on_real_text_the_library_learns_what_the_hand_learns(words: Counter[str]) -> None:
    by_hand = learn_by_hand(words, 1000)
    assert len(by_hand) == 1000
    assert learn_by_library(words, 1000) == by_hand


@given(st.dictionaries(st.text("ab", min_size=1, max_size=9), st.integers(1, 20), min_size=1, max_size=8))
@settings(max_examples=300, deadline=None)
def test_on_any_words_the_library_learns_what_the_hand_learns(words: dict[str, int]) -> None:
    assert learn_by_library(words, 60, 1) == learn_by_hand(words, 60, 1)


def test_ties_decided_otherwise_would_be_seen(words: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    right = learn_by_hand(words, 1000)
    monkeypatch.setattr(vocabulary, "letters", lambda words: letters(words)[::-1])
    for learn in (learn_by_hand, learn_by_library):
        assert set(learn(words, 1000)) != set(right)


def test_another_process_learns_the_same(text: Path) -> None:
    code = (
        f"from minibert.train.vocabulary import learn_vocabulary\nprint(learn_vocabulary({str(text)!r}, 1000).tokens)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(learn_vocabulary(text, 1000).tokens)


@pytest.mark.parametrize("by", ["library", "hand"])
def test_a_rare_pair_is_not_joined(by: str, corpus: Path) -> None:
    often, once = (learn_vocabulary(corpus, 1000, min_frequency=n, by=by).tokens for n in (4, 1))
    assert "boat" in often
    assert "elan" in once and "elan" not in often


def test_case_and_accents_stay_only_where_they_are_requested(corpus: Path) -> None:
    uncased, cased = (learn_vocabulary(corpus, 1000, min_frequency=1, lowercase=way).tokens for way in (True, False))
    assert {"elan", "old"} <= set(uncased) and not {"Élan", "OLD"} & set(uncased)
    assert {"Élan", "OLD", "old"} <= set(cased)


def test_the_statistics_of_the_corpus_are_right(corpus: Path) -> None:
    found = learn_vocabulary(corpus, 1000)
    assert (found.words, found.different_words) == (3 * 8 + 7, 6 + 4)  # elan , ' s beside those of BOATS
    assert found.letters == len(set(".thedolrbas" + "n',"))
    in_one = {"the": 7, "old": 4, "boat": 4, ".": 6, "boats": 3, "older": 3, ",": 1, "'": 1, "s": 1}
    assert found.whole == sum(in_one.values()) / found.words


def test_several_files_and_packed_ones_are_read_as_one(corpus: Path, tmp_path: Path) -> None:
    packed, twice = tmp_path / "packed.txt.gz", tmp_path / "twice.txt"
    packed.write_bytes(gzip.compress(corpus.read_bytes()))
    twice.write_bytes(corpus.read_bytes() * 2)
    assert learn_vocabulary([corpus, packed], 100).tokens == learn_vocabulary(twice, 100).tokens


def test_rare_words_of_a_huge_corpus_and_very_long_words_teach_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("boat boat\n" + "qu" * 51 + "\n" + "".join(f"word{n}\n" for n in range(100)) + "boat\n" * 2)
    found = learn_vocabulary(path, 100, min_frequency=1)
    assert found.words == 105 and "boat" in found.tokens
    assert not any("q" in token for token in found.tokens)  # WordPiece never splits a word of over 100 characters
    monkeypatch.setattr(vocabulary, "MOST_WORDS", 10)
    found = learn_vocabulary(path, 50, min_frequency=4)
    assert found.words < 20 and "boat" in found.tokens


# ---------------------------------------------------------------------------------------------------------------
# The folder and the command


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_folder_is_a_tokenizer_to_minibert_and_to_transformers(
    lowercase: bool, corpus: Path, tmp_path: Path
) -> None:
    text, found = "The old BOAT and [MASK] élan, zebra", learn_vocabulary(corpus, 60, lowercase=lowercase)
    found.save(tmp_path / "out")
    ours, theirs = minibert.load_tokenizer(tmp_path / "out"), AutoTokenizer.from_pretrained(tmp_path / "out")
    assert ours.encode(text) == theirs.encode(text)
    assert ours.convert_ids_to_tokens(range(len(found.tokens))) == found.tokens
    assert (ours.tokenize("THE boat") == ["the", "boat"]) == lowercase
    assert (tmp_path / "out" / "vocab.txt").read_text("utf-8").split("\n")[:-1] == found.tokens


def test_the_command_reports_what_it_learned(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vocab", str(corpus), "--size", "36", "--out", str(tmp_path / "out"), "--json"]) == 0
    shown = capsys.readouterr().out
    figures = json.loads(shown.splitlines()[-1])
    assert (figures["tokens"], figures["words"]) == (36, 31)
    assert "31 words, 10 different ones, 14 letters" in shown and "note" not in shown
    assert minibert.load_tokenizer(tmp_path / "out").vocab_size == 36
    assert main(["vocab", str(corpus), "--out", str(tmp_path / "small"), "--by", "hand"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "39 tokens; " in shown and "fewer tokens than the 8,000 requested: no other pair occurs 2 times" in shown
    assert main(["vocab", "no_such_corpus.txt", "--out", str(tmp_path)]) == 2  # before anything is read
    assert "is there already and holds" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------
# What cannot be learned


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no word to learn from; a corpus is text"),
        (b"  \n\n\t\n", "no word to learn from"),
        (b"a boat\nPK\x03\x04\0\0\n", "is a binary file .or UTF-16., not text"),
        (b"a boat\n\xff\xfe\x80\n", "line 2, is not UTF-8"),
    ],
    ids=["empty", "blank", "NUL", "not UTF-8"],
)
def test_what_is_no_text_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        learn_vocabulary(tmp_path / "corpus.txt", 1000)


def test_a_size_too_small_for_the_letters_names_the_smallest_that_fits(corpus: Path) -> None:
    least = 5 + len(letters(count_words([corpus], True)))
    with pytest.raises(ValueError, match=rf"size is {least - 1}, and {least} tokens are needed .* choose {least}"):
        learn_vocabulary(corpus, least - 1)
    assert len(learn_vocabulary(corpus, least).tokens) == least
