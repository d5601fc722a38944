"""Questions, passages and answers are read from SQuAD and from rows, or refused by place."""

import gzip
import json
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from minibert.tasks.answering import Answering
from minibert.tasks.questions import Gold

PASSAGE = "In 1854, the Café Müller opened in Wien. Its owner, Ann Lee, was born in Rome and died there in 1901."


def gold(text: str, context: str = PASSAGE) -> Gold:
    return Gold(text, context.index(text))


# -- SQuAD


def squad(*questions: dict[str, Any], version: str = "1.1", context: str = PASSAGE) -> dict[str, Any]:
    paragraphs = [{"context": context, "qas": [{"id": f"q{n}", "question": "?"} | q for n, q in enumerate(questions)]}]
    return {"version": version, "data": [{"title": "t", "paragraphs": paragraphs}]}


def written(folder: Path, content: object) -> Path:
    path = folder / "squad.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def moved(text: str, start: int) -> dict[str, Any]:
    return {"answers": [{"text": text, "answer_start": start}]}


ROME = {"question": "Where?", "answers": [gold("Rome")._asdict() | {"answer_start": PASSAGE.index("Rome")}]}
NONE = {"question": "Why?", "answers": [], "is_impossible": True}


@pytest.mark.parametrize(
    ("content", "unanswerable"),
    [
        (squad(ROME, ROME), False),
        (squad(ROME, version="v2.0"), True),
        (squad(ROME, NONE), True),
        (squad(ROME, {"question": "Why?", "is_impossible": True}), True),
        (squad(ROME | {"is_impossible": False}), True),
    ],
)
def test_questions_are_read_with_their_passages_and_answers(tmp_path, content, unanswerable):
    data = Answering().read(written(tmp_path, content))
    first, *others = data.rows
    assert (data.known, data.unanswerable) == (True, unanswerable)
    assert (first.question, first.context, first.answers) == ("Where?", PASSAGE, (gold("Rome"),))
    assert all(row.answers in ((), first.answers) for row in others)
    packed = tmp_path / "squad.json.gz"
    packed.write_bytes(gzip.compress((tmp_path / "squad.json").read_bytes()))
    assert Answering().read(packed) == data


WHERE = r"squad\.json, data\[0\]\.paragraphs\[0\]\.qas\[0\]"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], r"squad\.json"),
        (["x"], r"squad\.json, data\[0\] .*paragraphs"),
        ({"version": "1.1"}, r"squad\.json .*'data'.*paragraphs"),
        ({"data": ["x"]}, r"squad\.json, data\[0\] .*paragraphs"),
        ({"data": [{"paragraphs": [{"qas": [{}]}]}]}, r"squad\.json, data\[0\] .*'context'"),
        ({"data": []}, r"squad\.json"),
        (squad(ROME, context=3), rf"{WHERE} .*\bstr\b"),
        (squad({"question": None}), rf"{WHERE} .*'answers'"),
        (squad({"question": 1, "answers": ROME["answers"]}), rf"{WHERE} .*\bstr\b"),
        (squad({"answers": []}), rf"{WHERE} .*SQuAD 2\.0"),
        (squad({"answers": [{"text": "Rome"}]}), rf"{WHERE} .*'answer_start'"),
        (squad({"answers": [{"text": "Rome", "answer_start": "x"}]}), rf"{WHERE} .*'x'"),
        (squad({"answers": [{"text": " ", "answer_start": 2}]}), rf"{WHERE} .*' '"),
        (squad(moved("Rome", 0)), rf"'Rome'.* 0\b.*'{PASSAGE[:4]}'"),
        (squad(moved("Rome", 1000)), r"'Rome'.* 1000\b.*''"),
        (squad(moved("Rome", -4)), r"'Rome'.* -4\b.*''"),
        ('{"data":\n[}', r"squad\.json .*line 2\b"),
    ],
)
def test_a_file_that_is_not_squad_is_refused_by_place(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        Answering().read(written(tmp_path, content))


@pytest.mark.parametrize(
    ("text", "start", "context", "expected"),
    [
        ("Rome", 0, PASSAGE, gold("Rome")),
        (" Rome ", 60, PASSAGE, gold("Rome")),
        ("Rome\n", 71, PASSAGE, gold("Rome")),
        ("Rome", -4, PASSAGE, gold("Rome")),
        ("Rome", 10, "Rome or Rome or Rome", Gold("Rome", 8)),
    ],
)
def test_an_answer_is_repaired_on_request(tmp_path, text, start, context, expected):
    data = Answering(repair=True).read(written(tmp_path, squad(moved(text, start), context=context)))
    assert data.rows[0].answers == (expected,)
    assert (data.repaired, data.left_out) == (1, 0)


def test_an_answer_that_is_nowhere_is_left_out_on_request(tmp_path):
    answers = [*moved("Paris", 3)["answers"], *moved("Rome", 0)["answers"]]
    path = written(tmp_path, squad(ROME, moved("Paris", 3), {"answers": answers}, moved(" ", 2)))
    with pytest.raises(ValueError, match=r"qas\[1\] .*'Paris'.* 3\b.*repair=True"):
        Answering().read(path)
    data = Answering(repair=True).read(path)
    assert [row.answers for row in data.rows] == [(gold("Rome"),)] * 2
    assert (data.left_out, data.repaired) == (2, 1)
    with pytest.raises(ValueError, match=r"\b1\b.*passage"):
        Answering(repair=True).read(written(tmp_path, squad(moved("Paris", 3))))


# -- rows


START = PASSAGE.index("Rome")
BOTH = {"question": "Where?", "context": PASSAGE}
ROWS: list[dict[str, Any]] = [
    BOTH | {"id": "a", "answers": {"text": ["Rome", "Ann"], "answer_start": [START, PASSAGE.index("Ann")]}},
    BOTH | {"id": "b", "answers": {"text": [], "answer_start": []}},
]
EXPECTED = [(gold("Rome"), gold("Ann")), ()]


@pytest.mark.parametrize("content", [ROWS, {"data": ROWS}], ids=["array", "object"])
def test_rows_of_hugging_face_are_read(tmp_path, content):
    data = Answering().read(written(tmp_path, content))
    assert [row.answers for row in data.rows] == EXPECTED
    assert {(row.question, row.context) for row in data.rows} == {("Where?", PASSAGE)}
    assert data.unanswerable


def test_lines_in_a_json_need_the_format(tmp_path):
    path = written(tmp_path, "".join(json.dumps(row) + "\n" for row in ROWS))
    with pytest.raises(ValueError, match="format='jsonl'"):
        Answering().read(path)
    assert [row.answers for row in Answering(format="jsonl").read(path).rows] == EXPECTED


@pytest.mark.parametrize(
    "answer",
    [
        {"answer_text": "Rome", "answer_start": START},
        {"answer": "Rome", "answer_start": f"{START}.0"},  # as pandas writes a column with a missing value
        {"answers.text": "Rome", "answers.answer_start": START},
        {"answers": {"text": ["Rome"], "answer_start": [START]}},  # as Python prints it
        {"answers": json.dumps([{"text": "Rome", "answer_start": START}])},
        {"answers": json.dumps({"text": "Rome", "answer_start": START})},
    ],
)
@pytest.mark.parametrize("delimiter", [",", ";"])
def test_columns_of_a_table_are_read(file, answer, delimiter):
    rows = pd.DataFrame([BOTH | answer, BOTH | dict.fromkeys(answer, "")])
    path = file("a.csv", rows.to_csv(sep=delimiter, index=False))
    with warnings.catch_warnings(action="ignore"):  # of another delimiter
        data = Answering().read(path)
    assert data == Answering(delimiter=delimiter).read(path)
    assert [row.answers for row in data.rows] == [(gold("Rome"),), ()]


def test_an_answer_without_a_place_is_found_on_request(file):
    for answer in ({"answers": ["Rome"]}, {"answers": "Rome"}, {"answer": "Rome"}, {"answers": {"text": ["Rome"]}}):
        path = file("a.jsonl", json.dumps(BOTH | answer))
        with pytest.raises(ValueError, match=r"a\.jsonl, line 1\b.*'answer_start'.*repair=True"):
            Answering().read(path)
        assert Answering(repair=True).read(path).rows[0].answers == (gold("Rome"),)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "Where?", "answers": []}, r"a\.jsonl, line 1\b.*'context'"),
        (BOTH, r"line 1\b.*'answers'"),
        (7, r'line 1\b.* 7\b.*"question"'),
        (BOTH | {"answers": {"text": ["Rome"], "answer_start": [3, 4]}}, r"line 1\b"),
        (
            BOTH | {"answers": "{'text': array(['Rome'], dtype=object)}"},
            r"JSON.*\.jsonl",
        ),
        (BOTH | {"answer": "Rome", "start": 1e999}, r"line 1\b"),
        (BOTH | {"answer": "Rome", "start": 3}, r"'Rome'.* 3\b"),
    ],
)
def test_a_row_without_question_passage_and_answer_is_refused(file, row, message):
    with pytest.raises(ValueError, match=message):
        Answering().read(file("a.jsonl", json.dumps(row)))
