"""A corpus in windows: every line is read once, whatever the windows, and what is no corpus is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from words import write_words_checkpoint

from minibert.text.tokenizer import load_tokenizer
from minibert.train.corpus import Corpus

TEXT = "the film .\nit is good .\n\na book\n\n\nthe meal\nvery bad\n"


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_documents_are_separated_by_empty_lines_and_paragraphs_are_split_into_sentences(tmp_path: Path) -> None:
    corpus = Corpus.of(write(tmp_path / "c.txt", "\ufeff" + TEXT))
    assert corpus.windows == 1
    assert corpus.documents(0) == [["the film .", "it is good ."], ["a book"], ["the meal", "very bad"]]
    path = write(tmp_path / "p.txt", "One . Two ? Three ! 3.5 and so on\n\nfour\n")
    assert Corpus.of(path, paragraphs=True).documents(0) == [["One .", "Two ?", "Three !", "3.5 and so on"], ["four"]]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.text("ab é\r\t", max_size=12), max_size=20),
    st.integers(1, 40),
    st.booleans(),
)
def test_windows_of_any_size_hold_each_line_once(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], window: int, ends: bool
) -> None:
    text = "\n".join([*lines, "x"]) + ("\n" if ends else "")
    path = write(tmp_path_factory.mktemp("corpus") / "c.txt", text)
    corpus = Corpus(path, path.stat().st_size, window=window)
    found = [list(corpus.lines(number)) for number in range(corpus.windows)]
    assert "".join(line for lines in found for line in lines) == text
    assert all(len("".join(lines[:-1]).encode()) < window for lines in found)  # no more than a line beyond it is read


def test_the_end_of_the_file_is_held_out_and_not_learned_from(tmp_path: Path) -> None:
    path = write(tmp_path / "c.txt", "".join(f"line {number}\n" for number in range(5000)))
    learned, held_out = Corpus.of(path).split()
    before, after = ([*part.lines(0)] for part in (learned, held_out))
    assert [*before, *after] == path.read_text().splitlines(keepends=True)
    assert 0 < len(after) <= 600


def test_sentences_come_as_ids_and_what_vanishes_is_dropped(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_words_checkpoint(tmp_path / "checkpoint"))
    path = write(tmp_path / "c.txt", "the film\n\u200b\ngood\n\n\u200b\n\nbad\n")
    ids = tokenizer.vocab
    assert Corpus.of(path).tokenized(0, tokenizer) == [[[ids["the"], ids["film"]], [ids["good"]]], [[ids["bad"]]]]


def test_the_fingerprint_tells_another_corpus_and_another_way_to_read_it(tmp_path: Path) -> None:
    one = Corpus.of(write(tmp_path / "one.txt", TEXT))
    other = Corpus.of(write(tmp_path / "other.txt", TEXT.replace("bad", "sad")))
    same = Corpus.of(write(tmp_path / "same.txt", TEXT))
    assert one.fingerprint == same.fingerprint
    assert len({one.fingerprint, other.fingerprint, Corpus.of(one.path, paragraphs=True).fingerprint}) == 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x1f\x8b\x08", "is not UTF-8 text, or compressed: the line at byte 0"),
        (b"fine\n\x00\x01\n", "the line at byte 5"),
        (b"fine\n\xff\xfe\n", "the line at byte 5"),
        (b"fine\n" + b"a" * 2**20 + b"b\n", "the line at byte 5 .* over 1,048,576 bytes long"),
    ],
    ids=["compressed", "zeros", "not UTF-8", "one line"],
)
def test_what_is_no_corpus_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        Corpus.of(tmp_path / "c.txt").documents(0)
    with pytest.raises(FileNotFoundError, match=r"none\.txt"):
        Corpus.of(tmp_path / "none.txt")
