"""Words and tags are read from every usual file, or refused by line."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from minibert.tasks.sentences import Sentences, read_sentences, untagged
from minibert.tasks.tagging import Tagging

TASK = Tagging()
ANN = ([["Ann", "Lee", "left"], ["Rome"]], [["B-person", "I-person", "O"], ["B-location"]])


def read(folder: Path, text: str, name: str = "a.conll", **how: Any) -> Sentences:
    (folder / name).write_text(text, encoding="utf-8")
    return Tagging(**how).read(folder / name)


# ---------------------------------------------------------------------------------------------------------------
# A word in each line


@pytest.mark.parametrize(
    "text",
    [
        "New York\tB-location\nBeach\tI-location\n\nme\tO\n",
        "New\u00a0York B-location\nBeach  I-location \n\n\n\nme O",
        "\ufeffNew York\tB-location\r\nBeach\tI-location\r\n\t\r\nme\tO\r\n",
        "-DOCSTART- -X- -X- O\n\nNew\u00a0York NNP x B-location\nBeach NNP x I-location\n\nme PRP x O\n",
        "-DOCSTART-\nNew York\tB-location\nBeach\tI-location\n-DOCSTART-\nme\tO\n",
    ],
    ids=["tabs", "spaces", "marks and line ends of Windows", "four columns", "documents without empty lines"],
)
def test_sentences_are_read_from_conll_columns(tmp_path, text):
    (tmp_path / "a.conll.gz").write_bytes(gzip.compress(text.encode()))
    data = TASK.read(tmp_path / "a.conll.gz")
    assert [[word.replace("\u00a0", " ") for word in words] for words in data.words] == [["New York", "Beach"], ["me"]]
    assert data.tags == [["B-location", "I-location"], ["O"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("me\tO\n\nRedondo\n", r"a\.conll, line 3\b.*'Redondo'.* 2 columns"),
        ("me\tO\nyou\tx\tO\n", r"a\.conll, line 2\b.*'you\\tx\\tO'.* 2 columns"),
        ("me\tO\nyou\t\n", r"a\.conll, line 2\b"),
        ("\tO\n", r"a\.conll, line 1\b"),
        ("\n\n-DOCSTART- O\n", r"a\.conll.*sentences"),
        ("", r"a\.conll.*sentences"),
        ("me\tO\n\xff\tO\n", r"a\.conll, line 2\b.*UTF-8"),
        ("good film\tpos\na bad film\tneg\n", r"a\.conll.*texts"),
        (
            "a good old film\tpos\n\na very bad film\tneg\n",
            r"a\.conll.*'a good.* classify",
        ),
        ('{"text": "a", "label": 0}\n', r"a\.conll, line 1\b.*'\{.* answer or choose.*\.jsonl"),
        ("Wort\tArt\n\nAnn\tB-person\nme\tO\n", r"a\.conll.*'Wort' and 'Art'"),
    ],
)
def test_a_file_that_is_no_table_of_words_and_tags_is_refused_by_line(tmp_path, text, message):
    (tmp_path / "a.conll").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=message):
        TASK.read(tmp_path / "a.conll")


@pytest.mark.parametrize("tags", ["PERSON O", "NNP VBZ", "O B-person I-person", "PERSON O LOCATION"])
def test_a_file_of_a_single_short_sentence_is_read(tmp_path, tags):
    data = read(tmp_path, "".join(f"word\t{tag}\n" for tag in tags.split()))
    assert (data.words, data.tags) == ([["word"] * len(tags.split())], [tags.split()])
    assert len(TASK.labels_of(data)) == len(tags.split())


@pytest.mark.parametrize("header", ["word tag", "Token NER", "form upos"])
@pytest.mark.parametrize("row", ["Ann O", "Ann B-person", "Ann PERSON"])
def test_a_header_above_a_single_row_is_no_word(tmp_path, header, row):
    word, tag = row.split()
    for name, space in (("a.conll", " "), ("a.tsv", "\t"), ("a.csv", ",")):
        data = read(tmp_path, f"{header}\n{row}\n".replace(" ", space), name)
        assert (data.words, data.tags) == ([[word]], [[tag]])


@pytest.mark.parametrize(("columns", "words"), [((1, 2), ["Wort", "me"]), (("Wort", "Art"), ["me"])])
def test_columns_that_are_chosen_decide_about_a_header_above_a_single_row(tmp_path, columns, words):
    assert read(tmp_path, "Wort Art\nme O\n", columns=columns).words == [words]


CONLL_U = "".join(
    line + " _" * 6 + "\n" if line else "\n"
    for line in [
        "1-2 AnnLee _ _",
        "1 Ann x B-person",
        "2 Lee x I-person",
        "3 left x O",
        "",
        "1 Rome x B-location",
        "1.1 Rom _ _",
    ]
)
ROWS = "{0}Ann NNP B-person\n{1}Lee NNP I-person\n{2}left VBD O\n\n{0}Rome NNP B-location\n"


@pytest.mark.parametrize(
    ("text", "how"),
    [
        (ROWS.format("", "", ""), {}),
        (ROWS.format("x ", "y ", "z "), {"columns": (2, -1)}),
        ("id word pos ner\n" + ROWS.format("7 ", "8 ", "9 "), {}),
        ("id Token pos LABEL\n" + ROWS.format("x ", "y ", "z "), {}),
        ("id Wort Art Name\n" + ROWS.format("x ", "y ", "z "), {"columns": (2, "Name")}),
        ("# sent_id = 1\n# text = Ann Lee left\n" + ROWS.format("", "", ""), {}),
        ("# by hand\n\nWort x Name\n" + ROWS.format("", "", ""), {"columns": ("Wort", "Name")}),
        ("# by hand\nword pos ner\n" + ROWS.format("", "", ""), {}),
        ("#\n#a comment O\n" + ROWS.format("1\t", "2\t", "3\t").replace(" ", "\t"), {"columns": (2, -1)}),
        (CONLL_U, {"columns": (2, 4)}),
    ],
)
def test_comments_headers_numbers_and_other_columns_are_no_words(tmp_path, text, how):
    data = read(tmp_path, text, **how)
    assert (data.words, data.tags) == ANN


def test_the_summary_says_how_many_lines_are_left_out(tmp_path):
    assert read(tmp_path, "# by hand\nid word pos ner\n" + ROWS.format("7 ", "8 ", "9 ")).notes[0].startswith("1 line ")
    assert read(tmp_path, CONLL_U, columns=(2, 4)).notes[0].startswith("2 lines ")
    assert read(tmp_path, ROWS.format("", "", "")).notes == ()


def test_a_word_of_a_csv_may_be_a_hash(tmp_path):
    assert read(tmp_path, "#,O\nme,O\n", "a.csv").words == [["#", "me"]]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_csv_has_quotes_and_perhaps_a_header(tmp_path, delimiter):
    rows = 'Word,POS,Tag\nAnn,NNP,B-person\n",",",",O\n\n"""",x,O\n'.replace(",", delimiter)
    data = read(tmp_path, rows, "a.csv")
    assert (data.words, data.tags) == ([["Ann", delimiter], ['"']], [["B-person", "O"], ["O"]])


def test_a_csv_may_have_empty_lines_between_sentences_and_no_header(tmp_path):
    data = read(tmp_path, "Ann,B-person\nLee,I-person\nleft,O\n\nRome,B-location\n", "a.csv")
    assert (data.words, data.tags) == ANN
    with pytest.raises(ValueError, match=r"line 2\b.*quote"):
        read(tmp_path, 'Ann,B-person\n",O\nLee,I-person\n', "a.csv")


@pytest.mark.parametrize(
    ("text", "how", "message"),
    [
        ("Wort Art\nAnn B-person\nme O\n", {}, r"'Wort' and 'Art'.*columns=.'Wort', 'Art'"),
        ("Wort Art\nAnn B-person\nme O\n", {"columns": (1, 2)}, r"'Wort' and 'Art'.*columns=.'Wort', 'Art'"),
        ("Wort\tArt\n['Ann']\t['O']\n", {}, r"line 2\b.*jsonl"),
        ("a b\nAnn B-person\n", {"columns": ("a", "c")}, r"'c'.*'a', 'b'"),
        ("a b\nAnn B-person\n", {"columns": (1, 3)}, r"\b3\b.* 2 columns"),
        ("a b\nAnn B-person\n", {"columns": (0, 1)}, r"\b0\b.* 2 columns"),
        ("a b\n", {"columns": (1, 1)}, r"\(1, 1\)"),
        ("a b\n", {"columns": "ab"}, "'ab'"),
        (CONLL_U, {}, r"numbers.*'1'.*columns=.2, 4.*CoNLL-U"),
        ("1 Ann O\n2 left O\n", {}, r"numbers.*'1'.*columns="),
        ("Ann 7\nme 0\n", {"tag_names": ("O", "B-person")}, r"'7'.*tag_names.* 0 to 1"),
        ("Ann B-person\nme O\n", {"tag_names": ("O", "B-city")}, r"'B-person'.*tag_names"),
    ],
)
def test_columns_and_names_that_are_not_there_are_refused(tmp_path, text, how, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path, text, **how)


def test_words_without_tags_are_read_on_request(tmp_path):
    (tmp_path / "a.conll").write_text("# x y\nAnn\nLee\nleft\n\nRome\n")
    data = read_sentences(tmp_path / "a.conll", Tagging(columns=(2, 4)), tagged=False)
    assert data.words == ANN[0]
    raw = untagged([["New York", "", "x"]])
    assert [raw.texts[0][start:end] for start, end in raw.places[0]] == ["New York", "", "x"]


# ---------------------------------------------------------------------------------------------------------------
# A sentence in each row


def objects(words: str, tags: str, given: Any = ANN[1]) -> list[dict[str, Any]]:
    return [{"id": n, words: row, tags: one} for n, (row, one) in enumerate(zip(ANN[0], given, strict=True))]


@pytest.mark.parametrize(
    ("rows", "how"),
    [
        (objects("words", "tags"), {}),
        (objects("tokens", "ner_tags"), {}),
        ([row | {"pos_tags": [0] * len(row["tokens"])} for row in objects("tokens", "ner_tags")], {}),
        (objects("Wörter", "Namen"), {"columns": ("Wörter", "Namen")}),
        (
            objects("tokens", "ner_tags", [[1, 2, 0], [3]]),
            {"tag_names": ("O", "B-person", "I-person", "B-location")},
        ),
    ],
)
def test_a_row_is_a_list_of_words_and_one_of_tags(tmp_path, rows, how):
    data = read(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "a.data", format="jsonl", **how)
    assert (data.words, data.tags) == ANN


def test_tags_of_objects_may_be_numbers(tmp_path):
    data = read(tmp_path, '{"tokens": ["Ann", "left"], "ner_tags": [10, 9]}\n', "a.jsonl")
    assert TASK.labels_of(data) == ["9", "10"] and "tag_names (" in data.notes[0]
    names = tuple(map("B-{}".format, range(11)))
    data = read(tmp_path, '{"tokens": ["Ann", "left"], "ner_tags": [10, "B-9"]}\n', "a.jsonl", tag_names=names)
    assert (data.tags, data.notes) == ([["B-10", "B-9"]], ())


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ('{"text": "a", "label": 0}', r"a\.jsonl, line 1\b.*words.*tags"),
        ("7", r"a\.jsonl, line 1\b.* 7\b.*words"),
        ('{"words": ["a"], "tags": ["O", "O"]}', r"line 1\b.* 1 word and 2 tags"),
        ('{"words": "a", "tags": "O"}', r"line 1\b.* list of tags"),
        ('{"words": [1], "tags": ["O"]}', r"line 1\b.* 1;"),
        ('{"words": ["a"], "tags": [true]}', r"line 1\b.* True\b"),
        ('{"words": ["a"], "tags": [0.5]}', r"line 1\b.* 0\.5\b"),
        ('{"words": [], "tags": []}', r"a\.jsonl.*sentences"),
    ],
)
def test_an_object_that_is_no_sentence_is_refused_by_line(tmp_path, record, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path, record + "\n", "a.jsonl")
