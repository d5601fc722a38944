"""Data that Python holds, in every usual form, is what the file with the same rows is, in every format."""

import gzip
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
from datasets import Dataset
from pyarrow import parquet

from minibert.tasks import task_class
from minibert.train.finetuning import as_data

# Rows of each task as a .jsonl has them.
ROWS: dict[str, list[dict[str, Any]]] = {
    "classify": [{"text": "a film", "label": "good"}, {"text": "a mess", "label": "bad"}],
    "embed": [{"anchor": "a film", "positive": "a movie"}, {"anchor": "a mess", "positive": "chaos"}],
    "tag": [{"words": ["Ann", "left"], "tags": ["B-PER", "O"]}, {"words": ["yes"], "tags": ["O"]}],
    "choose": [
        {"question": "why", "choices": ["a", "b"], "label": 1},
        {"question": "who", "choices": ["c", "d"], "label": 0},
    ],
    "answer": [{"question": "where", "context": "in Rome", "answers": {"text": ["Rome"], "answer_start": [3]}}],
    "mask": [{"text": "a film"}, {"text": "a mess"}],
}
FORMS: dict[str, Any] = {
    "list of dicts": lambda rows: rows,
    "generator": lambda rows: (row for row in rows),
    "dict of columns": lambda rows: {name: [row[name] for row in rows] for name in rows[0]},
    "pandas": pd.DataFrame,
    "pandas with arrays": lambda rows: pd.DataFrame(rows).map(lambda x: np.array(x) if isinstance(x, list) else x),
    "records": lambda rows: pd.DataFrame(rows).to_records(),
    "polars": polars.DataFrame,
    "Arrow": pa.Table.from_pylist,
    "Dataset": Dataset.from_list,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("name", ROWS)
def test_every_form_of_rows_is_read_like_the_file(name, form, tmp_path):
    task = task_class(name)()
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]))
    expected = as_data(task, tmp_path / "rows.jsonl")
    found = as_data(task, form(ROWS[name]))
    if name == "mask":
        expected, found = expected.documents, found.documents
    assert found == expected


@pytest.mark.parametrize("ending", [".json", ".jsonl.gz", ".parquet"])
@pytest.mark.parametrize("name", ROWS)
def test_every_format_of_a_file_is_read_like_lines(name, ending, tmp_path):
    path, rows = tmp_path / f"rows{ending}", ROWS[name]
    if ending == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        lines = gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
        path.write_bytes(lines if ending == ".jsonl.gz" else json.dumps(rows).encode())
    found, expected = (as_data(task_class(name)(), data) for data in (path, rows))
    assert found == replace(expected, name=str(path)) if name == "mask" else found == expected


@pytest.mark.parametrize("name", ["classify", "embed", "tag"])
def test_tuples_are_rows_whose_columns_have_no_names(name):
    task = task_class(name)()
    assert as_data(task, [tuple(row.values()) for row in ROWS[name]]) == as_data(task, ROWS[name])


def test_texts_with_pairs_or_without_are_rows_of_sentence_vectors():
    task = task_class("embed")()
    anchors, positives = (list(column) for column in zip(*(row.values() for row in ROWS["embed"]), strict=True))
    assert as_data(task, anchors, pairs=positives) == as_data(task, ROWS["embed"])
    assert as_data(task, anchors).columns == (anchors,)
    scored = as_data(task, [("a", "b", 0.5), ("c", "d", 1)])
    assert scored.columns == (["a", "c"], ["b", "d"]) and scored.similarity == [0.5, 1.0]
    assert as_data(task, [("a", "b", "n"), ("c", "d", "m")]).columns == (["a", "c"], ["b", "d"], ["n", "m"])


@pytest.mark.parametrize("rows", [[(0, 1, 1), (1, 0, 0)], np.array([[0, 1, 1], [1, 0, 0]])], ids=["tuples", "matrix"])
def test_a_row_of_zeros_and_ones_for_each_text_is_several_labels(rows):
    task = task_class("classify")()
    data = as_data(task, ["a", "b"], rows)
    assert data.labels == [("1", "2"), ("0",)] and task.resolve(data).problem_type == "multi_label_classification"


@pytest.mark.parametrize("data", [7, None, b"text"], ids=repr)
def test_what_is_no_data_is_refused_with_what_is(data):
    with pytest.raises(TypeError, match="a data frame, a dict of columns, a list of dicts or of tuples"):
        as_data(task_class("classify")(), data)


def test_texts_without_labels_and_rows_of_different_lengths_are_refused():
    for data, words in (
        (["a", "b"], "no column label"),
        ([("a", "x"), ("b",)], "row 1 has 1 items, and row 0 has 2"),
        ({"text": ["a"], "label": ["x", "y"]}, "text 1, label 2"),
        ([{"text": "a", "label": "x"}, {"text": None, "label": "y"}], "row 1 is None"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            as_data(task_class("classify")(), data)
