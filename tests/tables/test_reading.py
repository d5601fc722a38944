"""Every kind of file gives the texts that were put in, and errors name the file and the place."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import sys
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.tables import columns, formats
from minibert.tables.columns import Column
from minibert.tables.reading import Table, TextFile

FILM, DULL = "a fine film", "a dull film"
COMPRESS: dict[str, Any] = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": partial(lzma.compress, preset=0)}
BOTH = (None, None)  # columns of texts and of labels by their usual names
ANY_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


def read(folder: Path, name: str, content: bytes, column: Any = None, **settings: Any) -> Any:
    """The texts of a file; of two names of columns, the rows of texts and labels."""
    (folder / name).write_bytes(content)
    if isinstance(column, tuple):
        with Table(folder / name, [Column("text", column[0]), Column("label", column[1], ("label",))]) as table:
            return list(table.rows())
    with TextFile(folder / name, column, **settings) as file:
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
        ("x", b"a fine film\na dull film"),
        ("x.tsv", b"id\tsentence\n1\ta fine film\n2\ta dull film\n"),
        ("x.tsv", b"\xef\xbb\xbfSentence\tlabel\r\na fine film\t1\r\n\r\na dull film\t0\r\n\r\n"),
        ("x.tsv", b"review\na fine film\na dull film\n"),
        ("x.csv", b'text,label\n"a fine film",1\na dull film,0'),
        ("x.CSV", b"text,sentence\n1,a fine film\n0,a dull film\n"),
        ("x.csv", b"text\ra fine film\ra dull film\r"),
        ("x.jsonl", b'{"text": "a fine film", "n": 1}\n\n{"n": 2, "text": "a dull film"}\n'),
        ("x.jsonl", b'\xef\xbb\xbf{"review": "a fine film"}\r\n{"review": "a dull film", "n": null}\r\n'),
        ("x.json", b'[{"text": "a fine film", "n": 1},\n {"n": 2, "text": "a dull film"}]\n'),
        ("x.JSON", b'\xef\xbb\xbf [ "a fine film" ,"a dull film"\n]'),
    ],
)
@pytest.mark.parametrize("ending", ["", *COMPRESS])
def test_every_kind_of_file_gives_its_texts(folder, name, content, ending):
    assert read(folder, name + ending, COMPRESS.get(ending, bytes)(content)) == [FILM, DULL]


def test_gzip_under_another_name_is_seen_in_the_content(folder, monkeypatch):
    content = gzip.compress(b"text,n\na fine film,1\na dull film,2\n")
    assert read(folder, "x.csv", content) == [FILM, DULL]
    with (folder / "x.csv").open("rb") as stream:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
        with TextFile("-", format="csv") as file:
            assert list(file) == [FILM, DULL]


@pytest.mark.parametrize(
    ("name", "content", "column", "format", "texts"),
    [
        ("x.txt", b"\n a \n\nb\x0c\xe2\x80\xa8c\rd\n", None, None, ["", " a ", "", "b\x0c\u2028c\rd"]),
        ("x.tsv", b"text\ttitle\na\tb\n", "title", None, ["b"]),
        ("x.csv", b"1,a fine film\n0,a dull film\n", "2", None, [FILM, DULL]),
        ("x.tsv", b'text\tn\n"so" he said, "fine\t1\n', None, None, ['"so" he said, "fine']),
        ("x.csv", b'text,n\n"so, ""he""\nsaid",1\n', None, None, ['so, "he"\nsaid']),
        ("x.txt", b'{"text": "a"}\n"b"', None, "jsonl", ["a", "b"]),
        ("x.csv", b"text,n\na,1", None, "txt", ["text,n", "a,1"]),
        ("x.csv", b"n, the text \n1,a\n", "the text", None, ["a"]),
        ("x.jsonl", b'{" the text ": "a"}', "the text", None, ["a"]),
        # Two columns: by name, by number, or not at all.
        *(
            ("x.csv", content, names, None, [("a", "1"), ("b", "0")])
            for content, names in [
                (b"label,sentence\n1,a\n0,b\n", (None, None)),
                (b"review,sentiment\na, 1\nb,0 \n", ("review", "sentiment")),
                (b"label,review\n1,a\n0,b\n", ("review", None)),
                (b"a,1\nb,0\n", (None, None)),
                (b"7,1,a\n8,0,b\n", ("3", "2")),
                (b"1,a\n0,b\n", ("2", None)),
            ]
        ),
        # Labels of objects keep their type.
        ("x.jsonl", b'{"text": "a", "label": 1}\n{"label": " no ", "text": "b"}', BOTH, None, [("a", 1), ("b", "no")]),
    ],
)
def test_columns_and_formats_are_those_requested(folder, name, content, column, format, texts):
    assert read(folder, name, content, column, format=format) == texts


@pytest.mark.parametrize("name", ["x.txt", "x.tsv", "x.csv", "x.jsonl", "x.csv.gz"])
def test_a_file_without_texts_has_none(folder, name):
    for other, content in ((name, b""), ("y.csv", b"text,label\n"), ("y.json", b" [ ]\n")):
        assert read(folder, other, gzip.compress(content) if other.endswith(".gz") else content) == []


@pytest.mark.parametrize("format", ["txt", "jsonl"])
def test_standard_input_is_read(format, monkeypatch):
    content = b"caf\xc3\xa9" if format == "txt" else b'{"text": "caf\xc3\xa9"}'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))
    with TextFile("-", format=format) as file:
        assert (list(file), file.size, file.position) == (["café"], None, 0)


class OneLine(io.BytesIO):
    """Standard input of a user who waits for the answer to the first line."""

    def readline(self, size: int | None = -1) -> bytes:
        assert self.tell() == 0, "a second line is read before the first is answered"
        return super().readline(size)


def test_the_first_line_of_standard_input_is_there_before_the_second_is_read(monkeypatch):
    for line in (FILM, "text", "Text, label", "answer,", "well,said", "a question,an answer", "score: 3,5"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(OneLine(f"{line}\na dull film\n".encode())))
        assert next(iter(TextFile("-"))) == line


@pytest.mark.parametrize(
    ("line", "cells", "format"),
    [
        (b"a fine film\tgood\n", None, "tsv"),
        (b"text\tlabel\n", ["good", "label"], "tsv"),
        (b"a\tb\tgood\n", ["good", "label"], "tsv"),
        (b' {"text": "a"}\n', ["good"], "jsonl"),
        (b'{"text": "a"}', None, "jsonl"),
        (b"Text,label\n", ["good"], "csv"),
        (b',"text"\n', None, "csv"),
        (b"id;sentence1;sentence2\n", None, "csv"),
        *((line, ["good"], None) for line in (b"a\tb", b"{a}", b'{"a": ', b"[1]", b'"a"', b'["a"]')),
    ],
)
def test_standard_input_that_is_a_table_is_refused_with_its_format_and_any_other_line_is_a_text(
    line, cells, format, monkeypatch
):
    for stated in (None, "txt"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line)))
        with TextFile("-", format=stated) as file:
            file.cells = cells
            if stated or not format:
                assert list(file) == [line.decode().removesuffix("\n")]
            else:
                with pytest.raises(ValueError, match=f"format='{format}'.*format='txt'"):
                    next(iter(file))


def test_the_position_goes_from_0_to_the_size_of_the_file_and_no_more_is_read_than_needed(folder):
    random = gzip.compress(b"text\n" + os.urandom(50_000).hex().encode())
    for name, content in (("x.txt", b"text\n" * 9000), ("x.csv.gz", random), ("x.tsv", b"text\nfilm\n" * 9000)):
        (folder / name).write_bytes(content)
        with TextFile(folder / name) as file:
            assert (file.position, file.size) == (0, len(content))
            for number, _ in enumerate(file):
                assert 0 < file.position <= (100 if number == 0 and name != "x.csv.gz" else len(content))
            assert file.position == len(content)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(ANY_TEXT, ANY_TEXT)))
def test_what_the_csv_module_writes_is_read_back(folder, rows):
    table = io.StringIO(newline="")
    csv.writer(table).writerows([("n", "text"), ("1", "first"), *rows])
    assert read(folder, "x.csv", table.getvalue().encode(), missing="empty") == ["first", *(text for _, text in rows)]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=1), st.booleans())
def test_what_the_json_module_writes_is_read_back(folder, texts, ascii):
    records = [{"n": n, "text": text} for n, text in enumerate(texts)]
    lines = [json.dumps(record, ensure_ascii=ascii) + "\n" for record in records]
    assert read(folder, "x.jsonl.gz", gzip.compress("".join(lines).encode(), 1)) == texts
    for array in (records, texts):
        assert read(folder, "x.json", json.dumps(array, ensure_ascii=ascii, indent=1).encode()) == texts


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r")), min_size=1))
def test_lines_and_tab_separated_texts_are_read_back(folder, texts):
    texts = [text.removeprefix("\ufeff") for text in texts]
    assert read(folder, "x.txt", "".join(text + "\n" for text in texts).encode()) == texts
    texts = [text.replace("\t", " ").replace("\0", " ") for text in texts]
    table = "text\tn\n" + "".join(f"{text}\t1\n" for text in texts)
    assert read(folder, "x.tsv", table.encode(), missing="empty") == texts


def test_a_parquet_file_gives_the_requested_columns(folder):
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    texts, labels = [f"text {row}" for row in range(3000)], [row % 3 for row in range(3000)]
    parquet.write_table(pyarrow.table({"text": texts, "label": labels, "n": texts}), folder / "x.parquet")
    content = (folder / "x.parquet").read_bytes()
    assert read(folder, "x.parquet", content, BOTH) == list(zip(texts, labels, strict=True))
    assert read(folder, "x.parquet.gz", gzip.compress(content, 1), "n") == texts
    parquet.write_table(pyarrow.table({"text": ["a", None]}), folder / "null.parquet")
    null = (folder / "null.parquet").read_bytes()
    assert read(folder, "x.parquet", null, missing="empty") == ["a", ""]
    damaged = content[:100] + bytes(3900) + content[4000:]
    for held, column, message in (
        (content, "title", "has no column 'title'; choose .* 'text', 'label', 'n'"),
        (content, "label", "row 1, has 0 as 'label', not a text"),
        (damaged, "text", r"x\.parquet is not a sound parquet file"),
        (null, "text", r"x\.parquet, row 2, has None as 'text', not a text; .* missing='empty'"),
    ):
        with pytest.raises(ValueError, match=message):
            read(folder, "x.parquet", held, column)


def test_without_pyarrow_the_way_to_install_it_is_shown(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"x\.parquet .*pyarrow.*pip install"):
        read(folder, "x.parquet", b"PAR1")


# -- what is wrong


@pytest.mark.parametrize(
    ("name", "content", "column", "message"),
    [
        ("x.txt", b"a\ncaf\xe9\n", None, r"x\.txt, line 2\b.*UTF-8 .*0xE9"),
        ("x.jsonl", b'{"text": "\xff"}', None, r"line 1\b.*UTF-8"),
        ("x.txt", b"a\n", "title", "'title'"),
        ("x.tsv", b"a\t1\nb\t0\n", None, r"line 1\b.*sentence or text.*'a', '1'"),
        ("x.csv", b"id,label\n1,2\n", "body", r"'body'.*'id', 'label'"),
        ("x.csv", b"text,text\n1,2\n", None, "'text'"),
        ("x.csv", b"text,n\na,1\n\n\nb\n", None, r"line 5\b.* 1 .* 2\b"),
        ("x.csv", b'text,n\n"a\nb",1\n"c,1\nd,2\n', None, r"line 4\b"),
        ("x.csv", b'text\n"a"b\n', None, r"line 2\b"),
        ("x.csv", b"text\na\nb, c\n", None, r"line 3\b.* 2 .* 1 .*','"),
        ("x.tsv", b"a\t1\n", 3, r"line 1\b.*'3'.*'1', '2'"),
        ("x.tsv", b"\nsentence\tlabel\n", 1, r"line 2\b.*header.*'sentence'"),
        ("x.tsv", b"a\t1\n", 0, r"line 1\b.*'0'"),
        ("x.jsonl", b'{"text": "a"}\n{"text": null}', None, r"line 2\b.*None.*'text'"),
        ("x.jsonl", b'{"text": true}', None, r"line 1\b.*True.*'text'"),
        ("x.jsonl", b'{"text": ["a"]}', None, r"line 1\b.*\['a'\].*'text'"),
        ("x.jsonl", b'{"text": "a"}\n\n{"txt": "b"}', None, r"line 3\b.*None.*'text'.*'txt'"),
        ("x.jsonl", b'{"a": "x", "b": "y"}', None, r"line 1\b.*sentence or text.*'a', 'b'$"),
        ("x.jsonl", b"{}", None, r"line 1\b.*sentence or text.* none$"),
        ("x.jsonl", b"7\n", None, r"line 1\b.* 7\b"),
        ("x.jsonl", b'{"text": "a"}\n{"text": ', None, r"line 2\b.*JSON"),
        ("x.jsonl", b"[" * 200_000, None, r"line 1\b.*JSON"),
        ("x.jsonl", b'{"text": "a\\ud800"}', None, r"line 1\b.*JSON.*surrogates"),
        ("x.json", b"", None, r"x\.json\b.*JSON.*JSON"),
        ("x.json", b'{"text": "a"}\n{"text": "b"}', None, "format='jsonl'"),
        ("x.json", b'{"text": "a"}', None, r"x\.json\b.*array"),
        ("x.json", b'["a", "b"', None, "Expecting ',' delimiter"),
        ("x.json", b'["a", 12]', None, r"item 2\b.* 12\b"),
        ("x.json", b'["a", {"b": "c"}]', None, r"item 2\b.*None.*'text'.*'b'"),
        ("x.json", b'["a"]', "title", r"item 1\b.*'title'"),
        ("x.json", b'["\xff"]', None, r"x\.json, at byte 2\b.*UTF-8 .*0xFF"),
        ("x.json", b"[" * 200_000, None, "JSON"),
        ("x.json", b'[{"n": ' + b"9" * 5000 + b"}]", None, "JSON"),
        ("x.parquet", b"PAR1 and no more", None, r"x\.parquet\b"),
        ("x.parquet.gz", b"", None, r"x\.parquet\.gz"),
        ("x.txt.gz", gzip.compress(b"a\n" * 999, mtime=0)[:-9], None, r"x\.txt\.gz.*cut off"),
        ("x.txt.gz", b"a fine film\n", None, r"x\.txt\.gz.*Not a gzipped file"),
        ("x.txt.bz2", b"a fine film\n", None, r"x\.txt\.bz2.*Invalid data"),
        ("x.txt.xz", lzma.compress(b"a\n" * 999)[:-9], None, r"x\.txt\.xz.*cut off"),
        ("x.csv", b"PK\3\4\xff", None, "decompress it"),
        ("x.jsonl", b'[{"text": "a"},\n{"text": "b"}]', None, r"line 1\b.*format='json'"),
        ("x.txt.gz", gzip.compress(b"a\n" * 999, mtime=0)[:-8] + b"12345678", None, "CRC check failed"),
        *(
            (name, b"a\n", None, r"ends in \.\w+,.*format=.*: txt, tsv, .*decompress")
            for name in ("x.log", "x.csv.zip", "corpus.2024", "x.xml.gz")
        ),
        # Of two columns the one that is missing is named.
        ("x.csv", b"a,b,c\n", BOTH, r"line 1\b.*sentence or text.*'a', 'b', 'c'.* 1 to 3\b"),
        ("x.csv", b"a,b,c\n", ("1", None), r"line 1\b.*label.*'1', '2', '3'"),
        ("x.csv", b"Nr,Titre,Texte,Avis,Note\n1,a,b,c,5\n", BOTH, "'Nr', 'Titre', 'Texte', 'Avis', 'Note';"),
        ("x.tsv", b"Nr\tTexte\tlabel\n1\tb\tc\n", BOTH, "'Nr', 'Texte', 'label';"),
        ("x.csv", b"a,b\n", ("1", "1"), r"'1'.*label"),
        ("x.csv", b"x,label\n", ("1", "2"), r"line 1\b.*header"),
        ("x.csv", b"text,mark\n", BOTH, r"line 1\b.*header: 'text', 'mark'; .*text='NAME' label='NAME'"),
        ("x.csv", b"a,label\n", ("label", None), r"'label'.*label"),
        ("x.csv", b"a,b\n", ("a", None), r"label.*'a', 'b'"),
        ("x.csv", b"a,b\n1,2\n", ("a", "3"), "'3'"),
        ("x.csv", b"text\na\nb\n", BOTH, r"line 1\b.*'text'"),
        ("x.json", b'["a"]', BOTH, r"label.*'text'"),
        ("x.txt", b"a\n", BOTH, r"one text per line.*label"),
        ("x.txt", b"a\n", ("1", "2"), r"one text per line.*'1'"),
    ],
)
def test_an_error_names_the_file_and_the_line(folder, name, content, column, message):
    with pytest.raises(ValueError, match=message) as error:
        read(folder, name, content, column)
    assert name in str(error.value)


def test_a_pipe_a_device_a_folder_and_a_missing_file_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "x.txt")
    for path in (tmp_path / "x.txt", Path("/dev/null")):
        with pytest.raises(ValueError, match=r"(pipe|device)\b.* -$"):
            TextFile(path)
    with pytest.raises(ValueError, match=r"\.txt files"):
        TextFile(tmp_path)
    with pytest.raises(FileNotFoundError):
        TextFile(tmp_path / "none.txt")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", b"a\n" + b"b" * 2000, r"line 2\b.*0\.001 MB"),
        ("x.txt.gz", gzip.compress(b"b" * 2000, mtime=0), r"line 1\b.*0\.001 MB"),
        ("x.tsv", b"text\nc\n" + b"b" * 2000, r"line 3\b.*0\.001 MB"),
        ("x.jsonl", b'\n{"text": "' + b"b" * 2000 + b'"}', r"line 2\b.*0\.001 MB"),
        ("x.json", b'["a", "' + b"b" * 5000 + b'"]', r"0\.001 MB"),
    ],
)
def test_a_row_that_is_too_long_is_refused_with_its_place(folder, name, content, message, monkeypatch):
    assert len(read(folder, name, content)[-1]) >= 2000  # nothing else is wrong
    monkeypatch.setattr(formats, "ROW_LIMIT", 1000)
    monkeypatch.setattr(formats, "WHOLE_LIMIT", 1000)
    with pytest.raises(ValueError, match=message):
        read(folder, name, content)


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize(
    ("name", "row"), [("x.txt", b"a" * 999), ("x.csv", b"a,a"), ("x.jsonl", b'{"text": "a"}'), ("x.json", b"0,")]
)
def test_a_small_file_that_holds_a_lot_is_refused_in_little_memory(folder, name, row, ending, monkeypatch):
    monkeypatch.setattr(formats, "ROW_LIMIT", 20_000)
    content = COMPRESS[ending]((row + b"\n") * (600_000 // len(row)))
    tracemalloc.start()
    with pytest.raises(ValueError, match=rf"{name}{ending}, decompressed, .* MB"):
        read(folder, name + ending, content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 600_000


# -- files that change


@pytest.mark.parametrize("name", ["x.txt", "x.csv", "x.jsonl", "x.txt.gz"])
@pytest.mark.parametrize("change", ["longer", "shorter", "other"])
def test_a_file_that_changes_while_it_is_read_is_refused(folder, name, change):
    line = b'{"text": "a"}\n' if name == "x.jsonl" else b"text\n"
    content = line * 9000
    content = gzip.compress(content) if name.endswith(".gz") else content
    (folder / name).write_bytes(content)
    with (
        TextFile(folder / name) as file,
        pytest.raises(ValueError, match=rf"{name}.*changed"),
    ):
        for number, _ in enumerate(file):
            if number == 0 and change == "other":
                os.utime(folder / name, ns=(0, 0))
            elif number == 0:
                with (folder / name).open("r+b") as other:
                    other.truncate(len(content) // 2) if change == "shorter" else other.seek(0, os.SEEK_END)
                    other.write(b"" if change == "shorter" else line)


def test_a_file_may_be_replaced_by_a_new_one_while_it_is_read(folder):
    (folder / "x.txt").write_bytes(b"a\n" * 9000)
    with TextFile(folder / "x.txt") as file:
        texts = iter(file)
        assert next(texts) == "a"
        (folder / "new.txt").write_bytes(b"b\n")
        (folder / "new.txt").rename(folder / "x.txt")
        assert list(texts) == ["a"] * 8999


def test_the_names_of_columns_are_prepared_once(folder, monkeypatch):
    calls = list[str]()
    monkeypatch.setattr(columns, "as_written", lambda name: calls.append(name) or name)
    names = [f"c{n}" for n in range(200)]
    (folder / "x.csv").write_text(",".join(names) + "\n" + ",".join(names) + "\n")
    with Table(folder / "x.csv", [Column("text", name) for name in names]) as file:
        assert list(file.rows()) == [tuple(names)]
    assert 0 < len(calls) < 20 * len(names)
