"""The delimiter is found or refused; bytes and cells that are no text are an error with a way out."""

import csv
import gzip
import io
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from minibert.tables.formats import FileSettings
from minibert.tables.reading import Column, Table, TextFile
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


# -- delimiters


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz"])
@pytest.mark.parametrize(("delimiter", "shown"), [(",", ""), (";", "';'"), ("\t", "tab"), ("|", "'|'")])
@pytest.mark.parametrize(
    ("header", "names"),
    [(("text", "label"), ()), (NAMES, NAMES), ((), ()), ((), ("1", "2"))],
    ids=["usual names", "names with blanks and umlauts", "no names", "numbers"],
)
def test_the_delimiter_is_found_and_named(
    tmp_path: Path, name: str, delimiter: str, shown: str, header: Any, names: Any
) -> None:
    rows, said = read(tmp_path / name, table(delimiter, header), *names)
    assert rows == ROWS
    assert len(said) == bool(shown)
    given = repr(shown.strip("'"))
    assert all(f"{name}: its columns are separated by {shown}, not by ','; delimiter={given}" in one for one in said)
    assert read(tmp_path / name, table(delimiter, header), *names, delimiter=delimiter) == (ROWS, [])


def test_a_tsv_may_have_another_delimiter_and_then_has_quotes(tmp_path: Path) -> None:
    assert read(tmp_path / "x.tsv", table(","))[0] == ROWS
    plain = b'text\tlabel\n"Hello, you\t1\nWell, me\t0\n'
    assert read(tmp_path / "x.tsv", plain) == ([('"Hello, you', "1"), ("Well, me", "0")], [])


@pytest.mark.parametrize(
    ("content", "column"),
    [
        ("text\nGut; danke\n", None),
        ("review\nGut; danke\nSchlecht\n", None),
        ('review\n"Gut, danke"\n"Na; ja"\n', "review"),
        ('"Gut; danke"\nSchlecht\n', "1"),
        ("Gut; danke; sehr\nSchlecht\n", "1"),
    ],
)
def test_one_column_needs_no_delimiter(tmp_path: Path, content: str, column: str | None) -> None:
    (tmp_path / "x.csv").write_text(content)
    with Table(tmp_path / "x.csv", [Column("text", column)]) as file:
        texts = [text for (text,) in file.rows()]
    assert texts == [row[0] for row in csv.reader(io.StringIO(content))][column != "1" :]


@pytest.mark.parametrize("names", [("1", "2"), (None, None)])
def test_a_delimiter_that_is_not_certain_is_refused_with_the_way_out(tmp_path: Path, names: Any) -> None:
    message = "x.csv: the delimiter of its columns is not certain; choose delimiter=',' or delimiter=';'"
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "x.csv", b"Gut;3,5\nSchlecht;1,5\n", *names)


def test_one_column_of_sentences_with_a_semicolon_each_is_not_split_unless_it_is_requested(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("Gut; danke\nSchlecht; nein\n")
    with (
        pytest.raises(ValueError, match="delimiter=','"),
        TextFile(tmp_path / "x.csv", "1") as file,
    ):
        list(file)
    for delimiter, texts in ((",", ["Gut; danke", "Schlecht; nein"]), (";", ["Gut", "Schlecht"])):
        with TextFile(tmp_path / "x.csv", "1", delimiter=delimiter) as file:
            assert list(file) == texts


def test_a_whole_line_is_never_a_text_where_its_names_have_another_delimiter(tmp_path: Path) -> None:
    """`embed` of Bewertung;Note made vectors of whole lines, the number included."""
    (tmp_path / "x.csv").write_text("Bewertung;Note\nGut;1\nSchlecht;5\n")
    with (
        pytest.warns(UserWarning, match="';'"),
        pytest.raises(ValueError, match=r"sentence or text.*'Bewertung', 'Note'"),
        Table(tmp_path / "x.csv", [Column("column")]) as file,
    ):
        list(file.rows())


# -- encodings


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "utf-16", "utf-16-le", "utf-8-sig"])
@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz"])
def test_a_table_of_excel_is_read_in_its_encoding(tmp_path: Path, name: str, encoding: str) -> None:
    content = table(";", NAMES, encoding)
    assert read(tmp_path / name, content, *NAMES, encoding=encoding, delimiter=";") == (ROWS, [])


@pytest.mark.parametrize("format", ["txt", "jsonl", "json"])
def test_every_format_has_an_encoding(tmp_path: Path, format: str) -> None:
    text = {"txt": "schön\n", "jsonl": '{"text": "schön"}\n', "json": '["schön"]'}[format]
    (tmp_path / "x").write_bytes(text.encode("cp1252"))
    with Table(tmp_path / "x", [Column("text")], FileSettings(format=format, encoding="cp1252")) as file:
        assert list(file.rows()) == [("schön",)]


@pytest.mark.parametrize(
    ("content", "encoding", "message"),
    [
        (table(";", NAMES, "cp1252"), "utf-8", r"line 1\b.*UTF-8 .*0xE4.*encoding='cp1252'"),
        (table(";", NAMES, "utf-16"), "utf-8", r"line 1\b.*UTF-8 .*0xFF.*encoding='utf-16'"),
        (b"text,label\na,1\n\x81,1\n", "cp1252", r"line 3\b.*CP1252 .*0x81"),
        (b"text,label\na,\xc3", "utf-8", r"line 2\b.*UTF-8 .*0xC3"),
    ],
)
def test_bytes_that_are_not_text_are_an_error_with_the_line(
    tmp_path: Path, content: bytes, encoding: str, message: str
) -> None:
    with pytest.raises(ValueError, match=rf"x\.csv, {message}"):
        read(tmp_path / "x.csv", content, encoding=encoding)


# -- missing texts, and names


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", b'text,label\na,1\n"",0\n'),
        ("x.tsv", b"text\tlabel\na\t1\n\t0\n"),
        ("x.jsonl", b'{"text": "a", "label": 1}\n\n{"text": null, "label": 0}\n'),
    ],
)
def test_an_empty_cell_is_a_missing_text_as_null_is(tmp_path: Path, name: str, content: bytes) -> None:
    with pytest.raises(ValueError, match=rf"{name}, line 3\b.*'text'.*missing='empty'"):
        read(tmp_path / name, content)
    with TextFile(tmp_path / name, missing="empty") as file:
        assert list(file) == ["a", ""]


# -- missing texts and labels

GAPS = {
    "x.csv": b'text,label\na,1\n"",0\nb,\nc,0\n',
    "x.tsv": b"text\tlabel\na\t1\n\t0\nb\t \nc\t0\n",
    "x.jsonl": b'{"id": 1}\n{"text": "a", "label": "1"}\n{"text": NaN, "label": "0"}\n{"text": "c", "label": "0"}\n',
    "x.json": b'[{"text": "a", "label": "1"}, {"text": null}, {"text": "c", "label": "0"}, {"text": "d"}]',
}


@pytest.mark.parametrize("name", GAPS)
def test_rows_without_a_text_or_a_label_are_left_out_and_counted(tmp_path: Path, name: str) -> None:
    rows, said = read(tmp_path / name, GAPS[name], missing="drop")
    assert rows == [("a", "1"), ("c", "0")]
    assert len(said) == 1 and "2 of 4 rows" in said[0]


def test_a_column_that_no_row_has_is_an_error_also_where_rows_are_left_out(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"line 1\b.*'body'.*'text', 'label'"):
        read(
            tmp_path / "x.jsonl",
            b'{"text": "a", "label": 1}\n{"text": "b", "label": 1}',
            "body",
            "label",
            missing="drop",
        )


@pytest.mark.parametrize("missing", ["error", "empty"])
def test_a_missing_label_is_refused_with_the_way_to_leave_it_out(tmp_path: Path, missing: str) -> None:
    with pytest.raises(ValueError, match=r"line 3\b.*''.*missing='drop'"):
        read(tmp_path / "x.csv", b"text,label\na,1\nb,\n", missing=missing)


def test_nan_is_a_missing_text_as_null_is(tmp_path: Path) -> None:
    content = b'{"text": "a"}\n{"text": NaN}\n'
    (tmp_path / "x.jsonl").write_bytes(content)
    with TextFile(tmp_path / "x.jsonl", missing="empty") as file:
        assert list(file) == ["a", ""]
    with TextFile(tmp_path / "x.jsonl") as file, pytest.raises(ValueError, match=r"line 2\b.* nan\b.*missing='empty'"):
        list(file)


# -- a header where columns have numbers


@pytest.mark.parametrize("column", [3, "3"])
@pytest.mark.parametrize("first", ["Nr,Note,Texte", "id,,text of the review"])
def test_a_header_that_is_read_as_a_text_is_a_warning(tmp_path: Path, first: str, column: Any) -> None:
    (tmp_path / "x.csv").write_text(f'{first}\n1,"3,5",a\n2,4,b\n')
    with TextFile(tmp_path / "x.csv", column) as file, pytest.warns(UserWarning, match=r"x\.csv"):
        assert list(file) == [first.split(",")[2], "a", "b"]


@pytest.mark.parametrize("content", ["1,a\n2,b\n3,c\n", "x,a\n2,b\ny,c\n", "x,a\n2,b\n", ",a\n2,b\n3,c\n"])
def test_a_first_row_as_the_others_is_no_warning(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.csv").write_text(content)
    with TextFile(tmp_path / "x.csv", 2) as file:
        assert next(iter(file)) == "a"


# -- objects in objects


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.parquet"])
def test_a_name_with_points_is_that_of_an_object_in_an_object(tmp_path: Path, name: str) -> None:
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


def test_a_name_that_has_a_point_itself_is_found_first(tmp_path: Path) -> None:
    content = b'{"a.b": "this", "a": {"b": "other"}, "c.d": {"e": 1}}\n{"a": {"b": "nested"}, "c.d": {"e": 2}}\n'
    assert read(tmp_path / "x.jsonl", content, "a.b", "c.d.e") == ([("this", 1), ("nested", 2)], [])


def test_a_row_without_the_object_has_no_text(tmp_path: Path) -> None:
    content = b'{"review": {"body": "a"}, "label": 1}\n{"review": null, "label": 1}\n'
    with pytest.raises(ValueError, match=r"line 2\b.*None.*'review\.body'"):
        read(tmp_path / "x.jsonl", content, "review.body", "label")
    assert read(tmp_path / "x.jsonl", content, "review.body", "label", missing="drop")[0] == [("a", 1)]


# -- what Excel, pandas and R write


@pytest.mark.parametrize("delimiter", [";", ",", "\t", "|"])
@pytest.mark.parametrize("line", ["sep={}", '"sep={}"', "SEP={}"])
@pytest.mark.parametrize("name", ["x.csv", "x.tsv"])
def test_the_first_line_of_excel_states_the_delimiter(tmp_path: Path, name: str, line: str, delimiter: str) -> None:
    content = f"\ufeff{line.format(delimiter)}\r\n".encode() + table(delimiter, ("text", "label"))
    assert read(tmp_path / name, content) == (ROWS, [])
    with pytest.raises(ValueError, match=r"line 2\b.*'body'"):
        read(tmp_path / name, content, "body", "label")


def test_a_column_may_be_called_as_a_stated_delimiter_is(tmp_path: Path) -> None:
    assert read(tmp_path / "x.csv", b"sep=x,label\na,1\n", "sep=x", "label") == ([("a", "1")], [])


@pytest.mark.parametrize(("name", "quote"), [("x.csv", '"'), ("x.tsv", "")])
def test_a_cell_may_be_longer_than_the_csv_module_reads_by_default(tmp_path: Path, name: str, quote: str) -> None:
    delimiter, text = "," if quote else "\t", "a film " * 50_000
    content = f"text{delimiter}label\n{quote}{text}{quote}{delimiter}1\n".encode()
    assert read(tmp_path / name, content) == ([(text, "1")], [])


def test_a_quote_that_is_not_closed_is_named_where_it_opens_also_after_many_characters(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"line 3\b.*quote"):
        read(tmp_path / "x.csv", b'text,label\na,1\n"b,0\n' + b"a long text,1\n" * 20_000)


def test_quotes_that_pandas_puts_into_a_tsv_are_named_once_with_the_way_to_read_them(tmp_path: Path) -> None:
    content = b'text\tlabel\nplain\t1\n"so ""he"" said"\t0\n"a ""b"""\t0\n'
    rows, said = read(tmp_path / "x.tsv", content)
    assert rows[1:] == [('"so ""he"" said"', "0"), ('"a ""b"""', "0")]
    assert len(said) == 1 and "x.tsv, line 3" in said[0] and "--format csv --delimiter tab" in said[0]
    assert read(tmp_path / "x.tsv", content, format="tsv") == (rows, [])
    plain = [("plain", "1"), ('so "he" said', "0"), ('a "b"', "0")]
    assert read(tmp_path / "x.tsv", content, format="csv", delimiter="tab") == (plain, [])


@pytest.mark.parametrize("cell", ['"a\nb"', '"a\tb"'])
def test_a_cell_of_pandas_with_a_tab_or_a_line_end_is_refused_with_the_way_to_read_it(
    tmp_path: Path, cell: str
) -> None:
    content = f"text\tlabel\n{cell}\t1\n".encode()
    with pytest.raises(ValueError, match=r"line 2\b.* 2 .*--format csv --delimiter tab"):
        read(tmp_path / "x.tsv", content)
    rows, said = read(tmp_path / "x.tsv", content, format="csv", delimiter="tab")
    assert (rows, said) == ([(cell.strip('"'), "1")], [])


def test_a_tsv_of_r_whose_names_are_in_quotes_is_refused_with_the_way_to_read_it(tmp_path: Path) -> None:
    content = b'"text"\t"label"\n"a"\t"1"\n'
    (tmp_path / "x.tsv").write_bytes(content)
    with (
        TextFile(tmp_path / "x.tsv", "text") as file,
        pytest.warns(UserWarning, match=r"line 1\b.*quotes.*--format csv --delimiter tab"),
        pytest.raises(ValueError, match="'text'"),
    ):
        list(file)
    assert read(tmp_path / "x.tsv", content, format="csv", delimiter="tab") == ([("a", "1")], [])


@pytest.mark.parametrize("text", ['"He said no."', 'a 12"" pipe', '"a" and "b"', '"'])
def test_quotes_that_belong_to_a_text_are_no_warning(tmp_path: Path, text: str) -> None:
    assert read(tmp_path / "x.tsv", f"text\tlabel\n{text}\t1\n".encode()) == ([(text, "1")], [])


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
def test_settings_are_checked_at_once(settings: Any, message: str) -> None:
    for make in (FileSettings, Classification):
        with pytest.raises(ValueError, match=message):
            make(**settings)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("x.txt", {"delimiter": ";"}, r"x\.txt .*delimiter.*--format csv"),
        ("x.parquet", {"delimiter": ";"}, r"parquet.*delimiter"),
    ],
)
def test_a_setting_that_a_format_does_not_have_is_refused(name: str, settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FileSettings(**settings).format_of(name)


@pytest.mark.parametrize("written", ["Bewertung des K\u00e4ufers", " Bewertung des Ka\u0308ufers "])
def test_an_umlaut_of_a_name_may_be_one_character_or_two(tmp_path: Path, written: str) -> None:
    for requested in ("Bewertung des K\u00e4ufers", "Bewertung des Ka\u0308ufers"):
        assert read(tmp_path / "x.csv", f"n,{written}\n1,gut\n".encode(), requested, "n")[0] == [("gut", "1")]
