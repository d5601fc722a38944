"""The delimiter is found or refused; bytes and cells that are no text are an error with a way out."""

import csv
import gzip
import io
import json
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from minibert.tables.columns import Column
from minibert.tables.formats import FileSettings
from minibert.tables.reading import Table, TextFile
from minibert.tasks.classification import Classification

ROWS = [
    ("Sehr gut, danke", "lob"),
    ('Das "neue" Gerät;\nschön', "lob"),
    ("Bitte melden", "bitte"),
    ("Wann, wo?", "bitte"),
]
NAMES = ("Bewertung des Käufers", "Art der Zuschrift")


def table(delimiter: str, header: tuple[str, ...] = ("text", "label"), encoding: str = "utf-8") -> bytes:
    """ROWS as the csv module writes them."""
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter).writerows([header, *ROWS] if header else ROWS)
    return text.getvalue().encode(encoding)


def read(path: Path, content: bytes, *names: str | None, **settings: Any) -> tuple[list[tuple[str, ...]], list[str]]:
    """The rows of a file with this content in the columns of text and label, and the warnings."""
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    text, label = names or (None, None)
    columns = [Column("text", text), Column("label", label, ("label",))]
    with warnings.catch_warnings(record=True) as caught, Table(path, columns, FileSettings(**settings)) as file:
        warnings.simplefilter("always")
        return list(file.rows()), [str(one.message) for one in caught]


UMLAUT = "Bewertung des K\u00e4ufers", "Bewertung des Ka\u0308ufers"  # one character, or two
READ: list[tuple[str, str, tuple[str, ...], list[Any]]] = [
    ("x.tsv", 'text\tlabel\n"Hello, you\t1\nWell, me\t0\n', (), [('"Hello, you', "1"), ("Well, me", "0")]),
    *(
        ("x.tsv", f"text\tlabel\n{text}\t1\n", (), [(text, "1")])
        for text in ('"He said no."', 'a 12"" pipe', '"a" and "b"', '"', "a film " * 50_000)
    ),
    ("x.csv", f'text,label\n"{"a film " * 50_000}",1\n', (), [("a film " * 50_000, "1")]),
    ("x.csv", "sep=x,label\na,1\n", ("sep=x", "label"), [("a", "1")]),
    *(
        ("x.csv", f"n, {written} \n1,gut\n", (asked, "n"), [("gut", "1")])
        for written, asked in product(UMLAUT, repeat=2)
    ),
    (
        "x.jsonl",
        '{"a.b": "this", "a": {"b": "other"}, "c.d": {"e": 1}}\n{"a": {"b": "nested"}, "c.d": {"e": 2}}\n',
        ("a.b", "c.d.e"),  # a name that has a point itself is found first
        [("this", 1), ("nested", 2)],
    ),
]


@pytest.mark.parametrize(("name", "content", "names", "rows"), READ)
def test_rows_are_read_without_a_warning(tmp_path, name, content, names, rows):
    assert read(tmp_path / name, content.encode(), *names) == (rows, [])


WHICH = "x.csv: the delimiter of its columns is not certain; choose delimiter=',' or delimiter=';'"
BODY = b'{"review": {"body": "a"}, "label": 1}\n{"review": null, "label": 1}\n'
REFUSED: list[tuple[str, bytes, tuple[str, ...], dict[str, Any], str]] = [
    *(("x.csv", b"Gut;3,5\nSchlecht;1,5\n", names, {}, WHICH) for names in (("1", "2"), ())),
    ("x.csv", table(";", NAMES, "cp1252"), (), {}, r"line 1\b.*UTF-8 .*0xE4.*encoding='cp1252'"),
    ("x.csv", table(";", NAMES, "utf-16"), (), {}, r"line 1\b.*UTF-8 .*0xFF.*encoding='utf-16'"),
    ("x.csv", b"text,label\na,1\n\x81,1\n", (), {"encoding": "cp1252"}, r"x\.csv, line 3\b.*CP1252 .*0x81"),
    *(
        ("x.csv", b"text,label\na,1\nb,\n", (), {"missing": missing}, r"line 3\b.*''.*missing='drop'")
        for missing in ("error", "empty")
    ),
    (
        "x.jsonl",
        b'{"text": "a", "label": 1}\n{"text": "b", "label": 1}',
        ("body", "label"),
        {"missing": "drop"},  # which leaves out rows, but not all of them
        r"line 1\b.*'body'.*'text', 'label'",
    ),
    ("x.jsonl", BODY, ("review.body", "label"), {}, r"line 2\b.*None.*'review\.body'"),
    ("x.csv", b'text,label\na,1\n"b,0\n' + b"a long text,1\n" * 20_000, (), {}, r"line 3\b.*quote"),
]


@pytest.mark.parametrize(("name", "content", "names", "settings", "message"), REFUSED)
def test_what_is_wrong_is_an_error_with_its_place_and_the_way_out(tmp_path, name, content, names, settings, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path / name, content, *names, **settings)


# -- delimiters


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz"])
@pytest.mark.parametrize(("delimiter", "shown"), [(",", ""), (";", "';'"), ("\t", "tab"), ("|", "'|'")])
@pytest.mark.parametrize(
    ("header", "names"),
    [(("text", "label"), ()), (NAMES, NAMES), ((), ()), ((), ("1", "2"))],
    ids=["usual names", "names with blanks and umlauts", "no names", "numbers"],
)
def test_the_delimiter_is_found_and_named(tmp_path, name, delimiter, shown, header, names):
    rows, said = read(tmp_path / name, table(delimiter, header), *names)
    assert rows == ROWS
    assert len(said) == bool(shown)
    given = repr(shown.strip("'"))
    assert all(f"{name}: its columns are separated by {shown}, not by ','; delimiter={given}" in one for one in said)
    assert read(tmp_path / name, table(delimiter, header), *names, delimiter=delimiter) == (ROWS, [])


def test_a_tsv_may_have_another_delimiter_and_then_has_quotes(tmp_path):
    assert read(tmp_path / "x.tsv", table(","))[0] == ROWS


@pytest.mark.parametrize(
    ("content", "column", "texts"),
    [
        ("text\nGut; danke\n", None, ["Gut; danke"]),
        ('review\n"Gut, danke"\n"Na; ja"\n', "review", ["Gut, danke", "Na; ja"]),
        ('"Gut; danke"\nSchlecht\n', "1", ["Gut; danke", "Schlecht"]),
        ("Gut; danke; sehr\nSchlecht\n", "1", ["Gut; danke; sehr", "Schlecht"]),
    ],
)
def test_one_column_needs_no_delimiter(tmp_path, content, column, texts):
    (tmp_path / "x.csv").write_text(content)
    with TextFile(tmp_path / "x.csv", column) as file:
        assert list(file) == texts


def test_one_column_of_sentences_with_a_semicolon_each_is_not_split_unless_it_is_requested(tmp_path):
    (tmp_path / "x.csv").write_text("Gut; danke\nSchlecht; nein\n")
    with (
        pytest.raises(ValueError, match="delimiter=','"),
        TextFile(tmp_path / "x.csv", "1") as file,
    ):
        list(file)
    for delimiter, texts in ((",", ["Gut; danke", "Schlecht; nein"]), (";", ["Gut", "Schlecht"])):
        with TextFile(tmp_path / "x.csv", "1", delimiter=delimiter) as file:
            assert list(file) == texts


def test_a_whole_line_is_never_a_text_where_its_names_have_another_delimiter(tmp_path):
    """`embed` of Bewertung;Note made vectors of whole lines, the number included."""
    (tmp_path / "x.csv").write_text("Bewertung;Note\nGut;1\nSchlecht;5\n")
    with (
        pytest.warns(UserWarning, match="';'"),
        pytest.raises(ValueError, match=r"sentence or text.*'Bewertung', 'Note'"),
        TextFile(tmp_path / "x.csv") as file,
    ):
        list(file)


# -- encodings


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "utf-16", "utf-16-le", "utf-8-sig"])
@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz"])
def test_a_table_of_excel_is_read_in_its_encoding(tmp_path, name, encoding):
    content = table(";", NAMES, encoding)
    assert read(tmp_path / name, content, *NAMES, encoding=encoding, delimiter=";") == (ROWS, [])


@pytest.mark.parametrize("format", ["txt", "jsonl", "json"])
def test_every_format_has_an_encoding(tmp_path, format):
    text = {"txt": "schön\n", "jsonl": '{"text": "schön"}\n', "json": '["schön"]'}[format]
    (tmp_path / "x").write_bytes(text.encode("cp1252"))
    with TextFile(tmp_path / "x", format=format, encoding="cp1252") as file:
        assert list(file) == ["schön"]


# -- missing texts, and names


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", b'text,label\na,1\n"",0\n'),
        ("x.tsv", b"text\tlabel\na\t1\n\t0\n"),
        ("x.jsonl", b'{"text": "a", "label": 1}\n\n{"text": null, "label": 0}\n'),
        ("x.jsonl", b'{"text": "a", "label": 1}\n\n{"text": NaN, "label": 0}\n'),
    ],
)
def test_an_empty_cell_is_a_missing_text_as_null_and_nan_are(tmp_path, name, content):
    with pytest.raises(ValueError, match=rf"{name}, line 3\b.*'text'.*missing='empty'"):
        read(tmp_path / name, content)
    with TextFile(tmp_path / name, missing="empty") as file:
        assert list(file) == ["a", ""]


GAPS = {
    "x.csv": b'text,label\na,1\n"",0\nb,\nc,0\n',
    "x.tsv": b"text\tlabel\na\t1\n\t0\nb\t \nc\t0\n",
    "x.jsonl": b'{"id": 1}\n{"text": "a", "label": "1"}\n{"text": NaN, "label": "0"}\n{"text": "c", "label": "0"}\n',
    "x.json": b'[{"text": "a", "label": "1"}, {"text": null}, {"text": "c", "label": "0"}, {"text": "d"}]',
}


@pytest.mark.parametrize("name", GAPS)
def test_rows_without_a_text_or_a_label_are_left_out_and_counted(tmp_path, name):
    rows, said = read(tmp_path / name, GAPS[name], missing="drop")
    assert rows == [("a", "1"), ("c", "0")]
    assert len(said) == 1 and "2 of 4 rows" in said[0]
    assert read(tmp_path / "y.jsonl", BODY, "review.body", "label", missing="drop")[0] == [("a", 1)]


# -- a header where columns have numbers


@pytest.mark.parametrize("column", [3, "3"])
@pytest.mark.parametrize("first", ["Nr,Note,Texte", "id,,text of the review"])
def test_a_header_that_is_read_as_a_text_is_a_warning(tmp_path, first, column):
    (tmp_path / "x.csv").write_text(f'{first}\n1,"3,5",a\n2,4,b\n')
    with TextFile(tmp_path / "x.csv", column) as file, pytest.warns(UserWarning, match=r"x\.csv"):
        assert list(file) == [first.split(",")[2], "a", "b"]


@pytest.mark.parametrize("content", ["1,a\n2,b\n3,c\n", "x,a\n2,b\ny,c\n", "x,a\n2,b\n", ",a\n2,b\n3,c\n"])
def test_a_first_row_as_the_others_is_no_warning(tmp_path, content):
    (tmp_path / "x.csv").write_text(content)
    with TextFile(tmp_path / "x.csv", 2) as file:
        assert next(iter(file)) == "a"


# -- objects in objects


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.parquet"])
def test_a_name_with_points_is_that_of_an_object_in_an_object(tmp_path, name):
    rows = [{"id": n, "review": {"body": {"text": text}, "by": "x"}, "mark": {"n": n}} for n, text in enumerate("ab")]
    if name == "x.parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / name)
    content = json.dumps(rows) if name == "x.json" else "".join(json.dumps(row) + "\n" for row in rows)
    content = (tmp_path / name).read_bytes() if name == "x.parquet" else content.encode()
    assert read(tmp_path / name, content, "review.body.text", "mark.n") == ([("a", 0), ("b", 1)], [])
    with pytest.raises(ValueError, match=r"'review\.title'.*'review', 'review\.body', 'review\.body\.text'"):
        read(tmp_path / name, content, "review.title", "mark.n")
    with pytest.raises(ValueError, match=r"'review'.*'review\.body\.text'"):
        read(tmp_path / name, content, "review", "mark.n")


# -- what Excel, pandas and R write


@pytest.mark.parametrize("delimiter", [";", ",", "\t", "|"])
@pytest.mark.parametrize("line", ["sep={}", '"sep={}"', "SEP={}"])
@pytest.mark.parametrize("name", ["x.csv", "x.tsv"])
def test_the_first_line_of_excel_states_the_delimiter(tmp_path, name, line, delimiter):
    content = f"\ufeff{line.format(delimiter)}\r\n".encode() + table(delimiter, ("text", "label"))
    assert read(tmp_path / name, content) == (ROWS, [])
    with pytest.raises(ValueError, match=r"line 2\b.*'body'"):
        read(tmp_path / name, content, "body", "label")


def test_quotes_that_pandas_puts_into_a_tsv_are_named_once_with_the_way_to_read_them(tmp_path):
    content = b'text\tlabel\nplain\t1\n"so ""he"" said"\t0\n"a ""b"""\t0\n'
    rows, said = read(tmp_path / "x.tsv", content)
    assert rows[1:] == [('"so ""he"" said"', "0"), ('"a ""b"""', "0")]
    assert len(said) == 1 and "x.tsv, line 3" in said[0] and "format='csv' delimiter='tab'" in said[0]
    assert read(tmp_path / "x.tsv", content, format="tsv") == (rows, [])
    plain = [("plain", "1"), ('so "he" said', "0"), ('a "b"', "0")]
    assert read(tmp_path / "x.tsv", content, format="csv", delimiter="tab") == (plain, [])


@pytest.mark.parametrize("cell", ['"a\nb"', '"a\tb"'])
def test_a_cell_of_pandas_with_a_tab_or_a_line_end_is_refused_with_the_way_to_read_it(tmp_path, cell):
    content = f"text\tlabel\n{cell}\t1\n".encode()
    with pytest.raises(ValueError, match=r"line 2\b.* 2 .*format='csv' delimiter='tab'"):
        read(tmp_path / "x.tsv", content)
    rows, said = read(tmp_path / "x.tsv", content, format="csv", delimiter="tab")
    assert (rows, said) == ([(cell.strip('"'), "1")], [])


def test_a_tsv_of_r_whose_names_are_in_quotes_is_refused_with_the_way_to_read_it(tmp_path):
    content = b'"text"\t"label"\n"a"\t"1"\n'
    (tmp_path / "x.tsv").write_bytes(content)
    with (
        TextFile(tmp_path / "x.tsv", "text") as file,
        pytest.warns(UserWarning, match=r"line 1\b.*quotes.*format='csv' delimiter='tab'"),
        pytest.raises(ValueError, match="'text'"),
    ):
        list(file)
    assert read(tmp_path / "x.tsv", content, format="csv", delimiter="tab") == ([("a", "1")], [])


# -- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoding": "cp12521"}, "encoding is 'cp12521'"),
        ({"encoding": "base64"}, "encoding is 'base64'"),
        ({"delimiter": ";;"}, "delimiter is ';;'"),
        ({"delimiter": ""}, "delimiter is ''"),
        ({"delimiter": '"'}, "delimiter is"),
        ({"missing": "skip"}, r"missing is 'skip'.*error, empty, drop"),
    ],
)
def test_settings_are_checked_at_once(settings, message):
    for make in (FileSettings, Classification):
        with pytest.raises(ValueError, match=message):
            make(**settings)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("x.txt", {"delimiter": ";"}, r"x\.txt .*delimiter.*format='csv'"),
        ("x.parquet", {"delimiter": ";"}, r"parquet.*delimiter"),
    ],
)
def test_a_setting_that_a_format_does_not_have_is_refused(name, settings, message):
    with pytest.raises(ValueError, match=message):
        FileSettings(**settings).format_of(name)
