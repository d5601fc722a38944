"""Texts come out of every kind of file as they were put in, and what is wrong is named with its line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.text.tables import TextFile

FILM, DULL = "a fine film", "a dull film"
ANY_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


def read(folder: Path, name: str, content: bytes, column: str | int | None = None, format: str | None = None) -> Any:
    """The texts of a file with this name and content."""
    (folder / name).write_bytes(content)
    with TextFile(folder / name, column, format) as file:
        return list(file)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


# -- what is right


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.txt", b"a fine film\na dull film\n"),
        ("x.txt", b"\xef\xbb\xbfa fine film\r\na dull film"),
        ("x.log", b"a fine film\na dull film"),
        ("x", b"a fine film\na dull film"),
        ("x.tsv", b"id\tsentence\n1\ta fine film\n2\ta dull film\n"),
        ("x.tsv", b"\xef\xbb\xbfSentence\tlabel\r\na fine film\t1\r\n\r\na dull film\t0\r\n\r\n"),
        ("x.tsv", b"review\na fine film\na dull film\n"),
        ("x.csv", b'text,label\n"a fine film",1\na dull film,0'),
        ("x.CSV", b"text,sentence\n1,a fine film\n0,a dull film\n"),
        ("x.csv", b"text\ra fine film\ra dull film\r"),
        ("x.jsonl", b'{"text": "a fine film", "n": 1}\n\n{"n": 2, "text": "a dull film"}\n'),
        ("x.jsonl", b'\xef\xbb\xbf{"review": "a fine film"}\r\n{"review": "a dull film", "n": null}\r\n'),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_every_kind_of_file_gives_its_texts(folder: Path, name: str, content: bytes, compressed: bool) -> None:
    if compressed:
        name, content = name + ".gz", gzip.compress(content)
    assert read(folder, name, content) == [FILM, DULL]


def test_an_empty_line_of_a_text_file_is_an_empty_text(folder: Path) -> None:
    assert read(folder, "x.txt", b"\n a \n\nb\x0c\xe2\x80\xa8c\rd\n") == ["", " a ", "", "b\x0c\u2028c\rd"]


def test_a_column_is_chosen_by_its_name_or_by_its_number_where_there_is_no_header(folder: Path) -> None:
    assert read(folder, "x.tsv", b"text\ttitle\na\tb\n", "title") == ["b"]
    assert read(folder, "x.jsonl", b'{"text": "a", "title": "b"}', "title") == ["b"]
    assert read(folder, "x.tsv", b"a fine film\t1\na dull film\t0\n", 1) == [FILM, DULL]
    assert read(folder, "x.csv", b"1,a fine film\n0,a dull film\n", "2") == [FILM, DULL]


def test_the_column_that_was_taken_is_known_afterwards(folder: Path) -> None:
    (folder / "x.csv").write_text("review\na\n")
    with TextFile(folder / "x.csv") as file:
        assert list(file) == ["a"]
        assert file.column == "review"


def test_quotes_are_characters_in_tsv_and_quotes_in_csv(folder: Path) -> None:
    assert read(folder, "x.tsv", b'text\tn\n"so" he said, "fine\t1\n', None) == ['"so" he said, "fine']
    assert read(folder, "x.csv", b'text,n\n"so, ""he""\nsaid",1\n') == ['so, "he"\nsaid']


def test_a_format_that_is_named_wins_over_the_name(folder: Path) -> None:
    assert read(folder, "x.txt", b'{"text": "a"}', None, "jsonl") == ["a"]
    assert read(folder, "x.csv", b"text,n\na,1", None, "txt") == ["text,n", "a,1"]


@pytest.mark.parametrize("name", ["x.txt", "x.tsv", "x.csv", "x.jsonl", "x.csv.gz"])
def test_an_empty_file_has_no_texts(folder: Path, name: str) -> None:
    assert read(folder, name, gzip.compress(b"") if name.endswith(".gz") else b"") == []


def test_a_table_of_a_header_alone_has_no_texts(folder: Path) -> None:
    assert read(folder, "x.csv", b"text,label\n") == []


@pytest.mark.parametrize("format", ["txt", "jsonl"])
def test_standard_input_is_read(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"caf\xc3\xa9" if format == "txt" else b'{"text": "caf\xc3\xa9"}'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))
    with TextFile("-", format=format) as file:
        assert (list(file), file.size, file.position) == (["café"], None, 0)


def test_the_position_goes_from_0_to_the_size_of_the_file_on_disk(folder: Path) -> None:
    for name, content in (("x.txt", b"text\n" * 9000), ("x.csv.gz", gzip.compress(os.urandom(50_000).hex().encode()))):
        (folder / name).write_bytes(content)
        with TextFile(folder / name) as file:
            assert (file.position, file.size) == (0, len(content))
            for _ in file:
                assert 0 < file.position <= len(content)
            assert file.position == len(content)


def test_no_more_of_a_file_is_read_than_is_asked_for(folder: Path) -> None:
    (folder / "x.tsv").write_bytes(b"text\n" + b"a fine film\n" * 100_000)
    with TextFile(folder / "x.tsv") as file:
        next(iter(file))
        assert file.position < 100


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(ANY_TEXT, ANY_TEXT)))
def test_what_the_csv_module_writes_is_read_back(folder: Path, rows: list[tuple[str, str]]) -> None:
    table = io.StringIO(newline="")
    csv.writer(table).writerows([("n", "text"), *rows])
    assert read(folder, "x.csv", table.getvalue().encode()) == [text for _, text in rows]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"))), st.booleans())
def test_what_the_json_module_writes_is_read_back(folder: Path, texts: list[str], ascii: bool) -> None:
    lines = [json.dumps({"n": n, "text": text}, ensure_ascii=ascii) + "\n" for n, text in enumerate(texts)]
    assert read(folder, "x.jsonl.gz", gzip.compress("".join(lines).encode(), 1)) == texts


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r")), min_size=1))
def test_lines_and_tab_separated_texts_are_read_back(folder: Path, texts: list[str]) -> None:
    texts = [text.removeprefix("\ufeff") for text in texts]
    assert read(folder, "x.txt", "".join(text + "\n" for text in texts).encode()) == texts
    texts = [text.replace("\t", " ").replace("\0", " ") for text in texts]
    table = "text\tn\n" + "".join(f"{text}\t1\n" for text in texts)
    assert read(folder, "x.tsv", table.encode()) == texts


# -- what is wrong


@pytest.mark.parametrize(
    ("name", "content", "column", "message"),
    [
        ("x.txt", b"a\ncaf\xe9\n", None, r"x.txt, line 2, is not UTF-8 \(byte 0xE9\); save it as UTF-8"),
        ("x.txt", "a\n".encode("utf-16"), None, r"line 1, is not UTF-8 \(byte 0xFF\)"),
        ("x.tsv", b"text\na\n\xff\n", None, r"line 3, is not UTF-8"),
        ("x.jsonl", b'{"text": "\xff"}', None, r"line 1, is not UTF-8"),
        ("x.tsv", "text\n".encode("utf-16"), None, "is a binary file"),
        ("x.txt", b"a\n", "text", "column is 'text', and .* is read as one text a line"),
        (
            "x.tsv",
            b"a\t1\nb\t0\n",
            None,
            "line 1, has no column sentence or text; choose as column one of: 'a', '1'; "
            "where there is no header, column is a number from 1",
        ),
        ("x.csv", b"id,label\n1,2\n", "body", "has no column 'body'; choose as column one of: 'id', 'label'"),
        ("x.csv", b"text,text\n1,2\n", None, "has 2 columns 'text'; give them different names"),
        ("x.csv", b"text,n\na,1\n\n\nb\n", None, "line 5, has 1 columns, 2 are expected"),
        ("x.tsv", b"text\tn\na\tb\tc\n", None, "line 2, has 3 columns, 2 are expected"),
        ("x.csv", b'text,n\n"a\nb",1\n"c,1\nd,2\n', None, "line 4, cannot be read: unexpected end of data"),
        ("x.csv", b'text\n"a' + b"\nb" * 70_000, None, r"line 2, cannot be read: .* \(a quote is not closed"),
        ("x.csv", b'text\n"a"b\n', None, "line 2, cannot be read"),
        ("x.tsv", b"a\t1\n", 3, "column is 3, and .* has columns 1 to 2"),
        ("x.tsv", b"a\t1\n", 0, "column is 0, and .* has columns 1 to 2"),
        ("x.tsv", b"\nsentence\tlabel\n", 1, "line 2 of .* is one; use its name, 'sentence'"),
        ("x.jsonl", b'{"text": "a"}\n{"text": null}', None, "line 2, has null as 'text', not a text"),
        ("x.jsonl", b'{"text": 3.5}', "text", "line 1, has a number as 'text', not a text"),
        ("x.jsonl", b'{"text": true}', None, "line 1, has true or false as 'text'"),
        ("x.jsonl", b'{"text": ["a"]}', None, "line 1, has a list as 'text'"),
        ("x.jsonl", b'{"text": "a"}\n\n{"txt": "b"}', None, "line 3, has no 'text'; it has: 'txt'"),
        ("x.jsonl", b'{"a": "x", "b": "y"}', None, "line 1, has no column sentence or text; .* one of: 'a', 'b'$"),
        ("x.jsonl", b"{}", None, "line 1, has no column sentence or text; .* one of: none$"),
        ("x.jsonl", b'"text"\n', None, "line 1, is a string, not an object"),
        ("x.jsonl", b'{"text": "a"}\n{"text": ', None, "line 2, is not JSON"),
        ("x.jsonl", b"[" * 200_000, None, "line 1, is not JSON"),
        ("x.jsonl", b'{"text": "a\\ud800"}', None, r"line 1, has a lone surrogate \(U\+D800"),
        ("x.txt.gz", gzip.compress(b"a\n" * 999)[:-9], None, "x.txt.gz is cut off"),
        ("x.txt.gz", gzip.compress(os.urandom(40_000))[:20_000], None, "is cut off|is not UTF-8"),
        ("x.txt.gz", b"", None, "x.txt.gz is cut off"),
        ("x.txt.gz", b"a fine film\n", None, "x.txt.gz is not a sound gzip file"),
        ("x.txt.gz", gzip.compress(b"a\n" * 999)[:-8] + b"12345678", None, "is not a sound gzip file"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(
    folder: Path, name: str, content: bytes, column: str | int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read(folder, name, content, column)


def test_texts_before_the_wrong_line_are_given(folder: Path) -> None:
    (folder / "x.txt").write_bytes(b"a\nb\n\xff\n")
    with TextFile(folder / "x.txt") as file:
        texts = iter(file)
        assert [next(texts), next(texts)] == ["a", "b"]
        with pytest.raises(ValueError, match="line 3"):
            next(texts)


def test_a_long_header_is_listed_in_short() -> None:
    from minibert.text.tables import listed

    assert listed([f"c{n}" for n in range(12)]).endswith("'c9' and 2 more")
    assert len(listed(["x" * 500])) < 50


def test_a_missing_file_a_folder_and_an_unknown_format_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        TextFile(tmp_path / "none.txt")
    with pytest.raises(IsADirectoryError):
        TextFile(tmp_path)
    with pytest.raises(ValueError, match="format is 'xml'; choose from txt, tsv, csv, jsonl"):
        TextFile(tmp_path / "none.txt", format="xml")
