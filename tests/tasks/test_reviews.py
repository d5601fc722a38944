"""Labelled texts are read as they were written, what is wrong is named by its line, and the demo finds its data."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import sys
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibert.checkpoints import hub
from minibert.files import atomic_write
from minibert.tasks import reviews as room
from minibert.tasks.reviews import find_reviews, parse, read_labelled

TUTORIAL = b"a fine film\t1\na dull film\t0\n"


# -- reading


@pytest.mark.parametrize(
    "content",
    [
        b"a fine film\t1\na dull film\t0\n",
        b"a fine film\t1\na dull film\t0",  # no newline at the end, as in SST-2
        b"a fine film\t1\r\na dull film\t0\r\n",
        b"\xef\xbb\xbfa fine film\t1\n\na dull film\t0\n\n",  # with a BOM and blank lines
        b"sentence\tlabel\na fine film\t1\na dull film\t0\n",
        b"\xef\xbb\xbfLabel\tid\tText\r\n1\t7\ta fine film\r\n0\t8\ta dull film\r\n",
    ],
)
def test_a_tsv_file_is_read_with_and_without_header_bom_and_crlf(content: bytes) -> None:
    rows = parse(content, "x.tsv")
    assert (rows.texts, rows.labels) == (["a fine film", "a dull film"], ["1", "0"])


def test_quotes_are_characters_in_tsv_and_quotes_in_csv() -> None:
    assert parse(b'"so" he said, "fine\t1\n"x"\t0\n', "x.tsv").texts == ['"so" he said, "fine', '"x"']
    assert parse(b'"so, ""he""\nsaid",1\nx,0\n', "x.CSV").texts == ['so, "he"\nsaid', "x"]


def test_labels_stay_names_and_texts_keep_their_spaces() -> None:
    rows = parse(b" a \t 01 \nb\tTrue\n\t1.0\n", "x.tsv")
    assert rows.labels == ["01", "True", "1.0"]
    assert rows.texts == [" a ", "b", ""]


@given(st.lists(st.tuples(st.text(st.characters(codec="utf-8", exclude_characters="\0")), st.sampled_from("ab"))))
def test_what_the_csv_module_writes_is_read_back(rows: list[tuple[str, str]]) -> None:
    file = io.StringIO(newline="")
    csv.writer(file).writerows([("text", "label"), ("first", "a"), *rows])
    read = parse(file.getvalue().encode(), "x.csv")
    assert list(zip(read.texts, read.labels, strict=True)) == [("first", "a"), *rows]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.tsv", b"a\t1\nb\n", "line 2, has 1 column, 2 are expected"),
        ("x.tsv", b"sentence\tlabel\na\t1\n\nb\t  \n", "line 4, has an empty label"),
        ("x.tsv", b"a\t1\nb\t0\tmore\n", "line 2, has 3 columns, 2 are expected"),
        (
            "x.tsv",
            b"label\tid\ttext\n1\t2\ta\n1\tb\n",
            "line 3, has 2 columns, 3 are expected",
        ),
        ("x.csv", b'a,1\n"b\nc",0,\n', "line 2, has 3 columns"),
        ("x.csv", b'a,1\n"b,0\n', "line 2, cannot be read"),
        ("x.tsv", b"", "holds no rows"),
        ("x.tsv", b"sentence\tlabel\n", "holds no rows"),
        ("x.tsv", b"a\t1\ncaf\xe9\t0\n", "line 2, is not UTF-8 .byte 0xE9"),
        ("x.tsv", "a\t1\n".encode("utf-16"), "is not UTF-8"),
        ("x.tsv", b"\x89PNG\0\0\t1", "is not UTF-8"),
        ("x.xml", b"<a/>", "x.xml would be read as 'xml', which is none of txt, tsv, csv"),
        ("x.txt", b"a\t1\n", "x.txt is read as one text per line and has no columns text and label"),
        ("x.json", b"{}", "x.json, read as one JSON array .*, is an object"),
        ("x.csv", b"review,sentiment\na,1\nb,0\nc,1\n", "the first row of x.csv has the label 'sentiment', which no"),
        ("x.tsv", b"my text\ttarget\na\t1\nb\t1\n", "--text 'my text' --label target.; if it is not, number them"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(name: str, content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(content, name)


def test_a_file_that_is_not_there_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not there"):
        read_labelled(tmp_path / "none.tsv")
    with pytest.raises(FileNotFoundError, match="is a folder"):
        read_labelled(tmp_path)


def test_a_header_is_no_row_where_its_columns_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("review,sentiment\na,1\nb,0\nc,1\n")
    rows = read_labelled(tmp_path / "x.csv", text="review", label="sentiment")
    assert (rows.texts, rows.labels, rows.pairs) == (["a", "b", "c"], ["1", "0", "1"], None)


def test_a_first_row_with_a_label_of_its_own_is_read_where_the_columns_are_numbered(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,rare\nb,0\nc,0\n")
    with pytest.raises(ValueError, match="the label 'rare', which no other row has"):
        read_labelled(tmp_path / "x.csv")
    assert read_labelled(tmp_path / "x.csv", text=1, label=2).labels == ["rare", "0", "0"]


def test_a_label_of_its_own_is_no_header_in_another_row_or_under_a_header() -> None:
    assert parse(b"a,0\nb,rare\nc,0\n", "x.csv").labels == ["0", "rare", "0"]
    assert parse(b"text,label\nb,rare\nc,0\nd,0\n", "x.csv").labels == ["rare", "0", "0"]


def test_pairs_are_two_columns_of_texts(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"sentence": "a", "other": "b", "label": 1}\n')
    rows = read_labelled(tmp_path / "x.jsonl", pair="other")
    assert (rows.texts, rows.pairs, rows.labels) == (["a"], ["b"], ["1"])


def test_labelled_texts_come_from_standard_input_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a,1\nb,0\n")))
    assert read_labelled("-", format="csv").labels == ["1", "0"]


def test_a_pipe_in_place_of_a_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.tsv")
    with pytest.raises(ValueError, match=r"x.tsv is a pipe, not a file"):
        read_labelled(tmp_path / "x.tsv")


# -- the demo's data


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no MINIBERT_DATA, and TUTORIAL in the place of the tutorial's file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MINIBERT_DATA", raising=False)
    monkeypatch.setattr(room, "TUTORIAL_SHA256", hashlib.sha256(TUTORIAL).hexdigest())
    return tmp_path / "cache" / "minibert" / "sst2" / "train.tsv"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An open network that serves TUTORIAL; the addresses that were read."""
    asked: list[str] = []

    def urlopen(address: str, **options: Any) -> io.BytesIO:
        asked.append(address)
        return io.BytesIO(TUTORIAL)

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(hub, "answers", lambda address: True)
    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return asked


def test_a_named_file_comes_before_all_others(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sst2").mkdir()
    (tmp_path / "sst2" / "train.tsv").write_text("from the folder\t1\n")
    (tmp_path / "mine.csv").write_text("mine,yes\n")
    monkeypatch.setenv("MINIBERT_DATA", str(tmp_path))
    assert find_reviews(tmp_path / "mine.csv").texts == ["mine"]
    assert find_reviews(tmp_path / "mine.csv").meaning == {}
    assert find_reviews().texts == ["from the folder"]
    assert "MINIBERT_DATA" in find_reviews().why


def test_the_tutorials_file_is_downloaded_once_and_kept(cache: Path, served: list[str]) -> None:
    assert find_reviews().texts == ["a fine film", "a dull film"]
    assert cache.read_bytes() == TUTORIAL
    assert list(cache.parent.iterdir()) == [cache]
    assert find_reviews().why == "downloaded earlier"
    assert served == [room.TUTORIAL_FILE]


def test_a_damaged_copy_is_downloaded_again(cache: Path, served: list[str]) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_bytes(TUTORIAL[:10])
    assert len(find_reviews().texts) == 2
    assert cache.read_bytes() == TUTORIAL


def test_a_file_that_is_not_the_tutorials_is_not_used(
    cache: Path, served: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "TUTORIAL_SHA256", "0" * 64)
    reviews = find_reviews()
    assert len(reviews.texts) == 480
    assert "no longer that file" in reviews.why
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_costs_one_warning(cache: Path, served: list[str]) -> None:
    cache.parent.parent.parent.mkdir()
    cache.parent.parent.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="could not be written"):
        assert len(find_reviews().texts) == 2


def test_a_download_that_breaks_off_leaves_the_shipped_reviews(
    cache: Path, served: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def urlopen(address: str, **options: Any) -> io.BytesIO:
        raise TimeoutError("timed out")

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    assert "timed out" in find_reviews().why


def test_the_shipped_reviews_are_the_last_resort_and_balanced(cache: Path) -> None:
    reviews = find_reviews()
    assert Counter(reviews.labels) == {"0": 240, "1": 240}
    assert "HF_HUB_OFFLINE is set" in reviews.why
    assert reviews.meaning == {"0": "negative", "1": "positive"}


def test_in_a_closed_network_the_hub_is_asked_and_nobody_else(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(hub, "answers", lambda address: bool(asked.append(address)))
    assert "the Hub does not answer" in find_reviews().why
    assert asked == [hub.endpoint()]


def test_a_file_atomic_write_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(OSError, match="disk full"), atomic_write(path) as temporary:
        temporary.write_text("half")
        raise OSError("disk full")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with atomic_write(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"
