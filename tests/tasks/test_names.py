"""The order of labels is scikit-learn's, and matrices, lists and cells of 0 and 1 are what they look like."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import coo_array
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import LabelEncoder, MultiLabelBinarizer

from minibert.tasks.classification import Classification
from minibert.tasks.names import in_order, in_order_of, with_points

ONE, SEVERAL, COMMA = Classification(), Classification(separator="|"), Classification(separator=",")
CLASSES = range(12)  # from eleven on the order of text differs from that of numbers
MATRIX = np.array([[0, 1, 1], [0, 0, 1]])  # column 0 is never 1


def order_of(task: Classification, labels: Any) -> list[str]:
    return task.labels_of(task.from_labels(["x"] * len(labels), labels))


def read(folder: Path, task: Classification, name: str, labels: list[Any]) -> Any:
    """The data of a file with these labels."""
    if name.endswith(".jsonl"):
        lines = [json.dumps({"text": "x", "label": label}) + "\n" for label in labels]
        (folder / name).write_text("".join(lines))
    else:
        pd.DataFrame({"text": ["x"] * len(labels), "label": labels}).to_csv(folder / name, index=False)
    return task.read(folder / name)


PRINTED: list[Any] = [[0, 1, 1], [0.0, 1.0], [True, False], ["plot", "cast"], ["it's", "cast"]]


# -- order


@pytest.mark.parametrize(
    "labels",
    [
        [*CLASSES] * 2,
        np.array([*CLASSES] * 2, np.uint8),
        np.array([*CLASSES] * 2) - 20,
        [float(number) for number in CLASSES] * 2,
        [True, False] * 2,
        np.array([str(number) for number in CLASSES] * 2),
        ["b", "a", "B", "ä"] * 2,
        pd.Series([*CLASSES] * 2, dtype="Int64"),
        pd.Series([*CLASSES] * 2, dtype="category"),
    ],
)
def test_classes_from_python_are_in_the_order_of_scikit_learn(labels):
    theirs = LabelEncoder().fit(np.asarray(labels)).classes_.tolist()
    whole = [int(label) if isinstance(label, float) else label for label in theirs]  # 1.0 is the class 1
    assert order_of(ONE, labels) == list(map(str, whole))


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("x.csv", [*CLASSES] * 2, [str(number) for number in CLASSES]),
        ("x.jsonl", [*CLASSES] * 2, [str(number) for number in CLASSES]),
        ("x.jsonl", [str(number) for number in CLASSES] * 2, [str(number) for number in CLASSES]),
        ("x.csv", [10, -2, 3] * 2, ["-2", "3", "10"]),
        ("x.csv", [10.5, 9.0, 0.5] * 2, ["0.5", "9.0", "10.5"]),
        ("x.csv", ["10", "9", "x"] * 2, ["10", "9", "x"]),
        ("x.jsonl", [10, "9", "x"] * 2, ["10", "9", "x"]),
    ],
)
def test_numbers_in_a_file_are_ordered_by_value_though_they_are_text(tmp_path, name, labels, expected):
    data = read(tmp_path, ONE, name, labels)
    assert ONE.labels_of(data) == expected
    assert data.labels == list(map(str, labels))


def test_large_numbers_are_ordered_exactly_and_other_digits_are_text():
    assert in_order([str(10**30), str(10**30 - 1), "9"]) == ["9", str(10**30 - 1), str(10**30)]
    assert in_order(["٣", "10", "9"]) == ["10", "9", "٣"]
    assert in_order(["nan", "10", "9"]) == ["10", "9", "nan"]


@pytest.mark.parametrize("labels", [["a", 1], [1, "1"], [True, 2], np.array(["a", 1], dtype=object)])
def test_names_and_numbers_in_one_column_are_refused_with_their_rows(labels):
    with pytest.raises(ValueError, match=r"row 0 .*row 1 "):
        order_of(ONE, labels)


def test_a_confusion_matrix_has_the_order_of_the_labels_and_classes_that_dev_lacks(tmp_path):
    names = ONE.labels_of(read(tmp_path, ONE, "train.csv", [*CLASSES] * 2))
    dev = read(tmp_path, ONE, "dev.csv", [2, 10, 10])
    figures = ONE.measure([{"label": "2"}, {"label": "10"}, {"label": "11"}], dev, names).figures
    assert figures["labels"] == list(figures["classes"]) == [str(number) for number in CLASSES]
    assert [figures["confusion"][row][column] for row, column in ((2, 2), (10, 10), (10, 11))] == [1, 1, 1]


# -- several labels


@pytest.mark.parametrize(
    "given",
    [
        MATRIX,
        MATRIX.astype(bool),
        MATRIX.astype(np.float32),
        MATRIX.tolist(),
        list(MATRIX.astype(float)),
        [tuple(row) for row in MATRIX.tolist()],
        coo_array(MATRIX),
        pd.DataFrame(MATRIX, columns=["x", "y", "z"]),
        pd.Series(list(MATRIX), index=[5, 9]),
        ["[0, 1, 1]", "[0, 0, 1]"],
        ["0|1|1", "0|0|1"],
    ],
)
def test_a_matrix_of_0_and_1_keeps_all_of_its_columns_however_it_is_written(given, tokenizer):
    data = SEVERAL.from_labels(["good", "bad"], given)
    names = SEVERAL.labels_of(data)
    columns = OneVsRestClassifier(LogisticRegression()).fit([[0.0], [1.0], [0.0]], [[0, 1, 1], [0, 0, 1], [1, 0, 0]])
    assert names == list(map(str, columns.classes_))
    encoded = SEVERAL.encode(data, tokenizer, names, 20)
    assert [one.labels["labels"] for one in encoded.examples] == MATRIX.tolist()


@pytest.mark.parametrize("task", [SEVERAL, COMMA])
@pytest.mark.parametrize("name", ["x.jsonl", "x.csv"])
@pytest.mark.parametrize(
    "rows",
    [MATRIX.tolist(), [["plot", "cast"], ["cast"], []], [[0, 2], [1]], [["10", "2"], ["9"]]],
    ids=["matrix", "names", "numbers", "text of numbers"],
)
def test_an_array_in_a_cell_is_the_array_in_jsonl(tmp_path, task, name, rows):
    python = read(tmp_path, task, name, rows if name.endswith("jsonl") else [str(row) for row in rows])  # ['plot']
    as_json = read(tmp_path, task, name, rows if name.endswith("jsonl") else [json.dumps(row) for row in rows])
    expected = task.from_labels(["x"] * len(rows), rows)
    assert python.labels == as_json.labels == expected.labels
    assert python.names == as_json.names == in_order(expected.names)


def test_lists_of_names_and_of_numbers_are_read_as_scikit_learn_binarizes_them():
    for rows in ([[0, 10], [2], [10]], [{0, 10}, {2}, {10}], [["b", "a"], [], ["c", "a"]], [["0"], ["10"], ["2", "0"]]):
        theirs = MultiLabelBinarizer().fit(rows).classes_.tolist()
        assert order_of(SEVERAL, rows) == list(map(str, theirs))
    assert SEVERAL.from_labels(["x", "y"], [["0"], ["1"]]).labels == [("0",), ("1",)]  # names, for they are text


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[0], [1]], r"\b0 or 1\b.*matrix"),
        ([[0, 0, 1], [1, 0]], r"row 0 .*\[0, 0, 1\]"),
        ([[0, 1, 1], [0, 2, 0]], r"row 0 .*\[0, 1, 1\]"),
        (["0|1|1", "a"], r"row 0 .*row 1 array|row 0 "),
        ([["a"], [1]], r"row 0 .*row 1\b"),
        *(([str(np.array(row))] * 2, "row 0 has the label .*; write an array as JSON") for row in PRINTED),
        ([[0, [1]], [1, 0]], r"row 0 .*\[1\]"),
    ],
)
def test_arrays_that_may_be_several_things_are_refused_in_one_sentence(labels, message):
    with pytest.raises(ValueError, match=message):
        SEVERAL.from_labels(["x"] * 2, labels)


def test_a_matrix_of_one_column_is_one_label_that_a_text_has_or_not():
    data = SEVERAL.from_labels(["x", "y"], np.array([[1], [0]]))
    assert (data.labels, data.names) == ([("0",), ()], ["0"])


def test_an_array_in_a_cell_of_text_is_no_class_where_texts_have_one_label(tmp_path):
    with pytest.raises(ValueError, match=r"0, 1, 1.*separator="):
        read(tmp_path, ONE, "x.csv", ["[0, 1, 1]", "[0, 0, 1]"])
    assert read(tmp_path, ONE, "y.csv", ["[PAD]", "[1]"]).labels == ["[PAD]", "[1]"]


@pytest.mark.parametrize(
    "rows",
    [MATRIX.tolist(), [["plot", "cast"], ["cast"], []], [["plot"], ["cast"], ["plot"]], ["plot", ["plot", "cast"]]],
    ids=["matrix", "names", "one name each", "names and lists"],
)
def test_lists_of_labels_in_a_file_are_several_labels_without_a_separator_too(tmp_path, rows):
    data, expected = read(tmp_path, ONE, "x.jsonl", rows), read(tmp_path, SEVERAL, "x.jsonl", rows)
    assert (data.labels, data.names) == (expected.labels, expected.names)
    task = ONE.resolve(data)
    assert (task.problem_type, task.labels_of(data)) == ("multi_label_classification", SEVERAL.labels_of(expected))
    assert ONE.resolve(read(tmp_path, ONE, "y.csv", ["a", "b"])) == ONE


# -- numbers


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_decimal_comma_is_a_point(tmp_path, delimiter):
    cells = ["3,5", "-0,25", "4", ",5", "1,250", "1,5e-2"]
    table = "".join(f'a{delimiter}"{cell}"\n' for cell in cells)
    (tmp_path / "x.csv").write_text(f"text{delimiter}label\n{table}")
    task = Classification(regression=True, delimiter=delimiter)
    frame = pd.read_csv(tmp_path / "x.csv", sep=delimiter, decimal=",")
    assert task.read(tmp_path / "x.csv").labels == frame["label"].tolist() == [3.5, -0.25, 4.0, 0.5, 1.25, 0.015]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["950", "1,234", "12,500"], r"row 1 .*'1,234'"),
        (["3,5", "1.234"], r"row 0 .*'3,5'.*row 1 .*'1\.234'"),
    ],
)
def test_a_comma_that_may_separate_thousands_is_refused(cells, message):
    with pytest.raises(ValueError, match=message):
        with_points(cells, [f"row {row}" for row in range(len(cells))])


# -- the order of a trained head


@pytest.mark.parametrize(
    ("known", "names", "expected"),
    [
        (["b", "a"], ["a", "b"], ["b", "a"]),
        (["LABEL_0", "LABEL_1"], ["0", "1"], ["0", "1"]),
        (["LABEL_1", "LABEL_0"], ["0", "1"], ["1", "0"]),
        (["0", "1"], ["LABEL_0", "LABEL_1"], ["LABEL_0", "LABEL_1"]),
        (["LABEL_0", "LABEL_1"], ["a", "b"], None),
        (["a", "b"], ["a"], None),
        (["LABEL_0", "0"], ["0", "1"], None),
    ],
)
def test_the_order_of_a_head_is_kept_for_the_same_labels(known, names, expected):
    assert in_order_of(known, names) == expected
