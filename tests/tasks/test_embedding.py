"""Which columns of a file are texts, pairs, hard negatives and similarities."""

from pathlib import Path
from typing import Any

import pytest

from minibert.tasks.embedding import Embedding


def read(tmp_path: Path, content: str, name: str = "rows.tsv", **settings: Any) -> tuple[list[list[str]], Any]:
    (tmp_path / name).write_text(content)
    found = Embedding(**settings).read(tmp_path / name)
    return [list(column) for column in found.columns], found.similarity


@pytest.mark.parametrize(
    ("content", "columns", "similarity"),
    [
        ("a\nb\nc\n", [["a", "b", "c"]], None),
        ("a\ta\nc\td\ne\tf\n", [["a", "c", "e"], ["a", "d", "f"]], None),  # equal cells in the first row
        ("a b c\td e f\nc\td\n", [["a b c", "c"], ["d e f", "d"]], None),
        ("a\tb\tx\nc\td\ty\ne\tf\tz\n", [["a", "c", "e"], ["b", "d", "f"], ["x", "y", "z"]], None),
        ("1\tb\tx\tz\nc\td\ty\tz\n", [["1", "c"], ["b", "d"], ["x", "y"], ["z", "z"]], None),
        ("a\tb\t4.5\nc\td\t0\n", [["a", "c"], ["b", "d"]], [4.5, 0.0]),
        ("score\tsentence2\tsentence1\n4.5\tb\ta\n0\td\tc\n", [["a", "c"], ["b", "d"]], [4.5, 0.0]),
        ("anchor\tpositive\tnegative_1\tid\na\tb\tx\t1\n", [["a"], ["b"], ["x"]], None),
        ("Query\tText\na\tb\n", [["a"], ["b"]], None),
        ("query-id\tcorpus-id\tscore\tdocument\tquery\nq1\td1\t1\tb\ta\n", [["a"], ["b"]], [1.0]),
        ("sentence_A\tsentence_B\trelatedness_score\na\tb\t4.5\n", [["a"], ["b"]], [4.5]),
    ],
)
def test_columns_have_their_usual_names_or_without_a_header_their_order(content, columns, similarity, tmp_path):
    assert read(tmp_path, content) == (columns, similarity)


@pytest.mark.parametrize("content", ["frage\tantwort\na\tb\n", "frage\nwer ist das?\n", "frage\tnote\na\t1\n"])
def test_a_header_or_a_row_above_a_single_row_is_refused_with_the_way_out(content, tmp_path):
    with pytest.raises(ValueError, match=r"'frage'.*text="):
        read(tmp_path, content)
    names, row = (line.split("\t") for line in content.splitlines())
    columns = dict(zip(("text", "pair"), names, strict=False))
    assert read(tmp_path, content, **columns) == ([[cell] for cell in row], None)
    numbers = {name: str(number) for number, name in enumerate(columns, 1)}
    if "note" not in names:
        assert read(tmp_path, content, **numbers) == ([list(both) for both in zip(names, row, strict=True)], None)


def test_columns_that_are_named_are_the_only_ones(tmp_path):
    content = "one\ttwo\tthree\na\tb\t2\n"
    assert read(tmp_path, content, text="one", pair="two") == ([["a"], ["b"]], None)
    assert read(tmp_path, content, text="two", pair="one", label="three") == ([["b"], ["a"]], [2.0])
    assert read(tmp_path, content, text="one", pair="two", negatives=("three",)) == ([["a"], ["b"], ["2"]], None)


def test_other_kinds_of_files_are_read_by_their_names_too(tmp_path):
    objects = '{"sentence1": "a", "sentence2": "b", "score": 1}\n{"sentence1": "c", "sentence2": "d", "score": 0.5}\n'
    assert read(tmp_path, objects, "rows.jsonl") == ([["a", "c"], ["b", "d"]], [1.0, 0.5])
    assert read(tmp_path, "a\n\nc\n", "rows.txt", missing="empty") == ([["a", "", "c"]], None)
    assert read(tmp_path, "sentence1;sentence2\na;b\n", "rows.csv", delimiter=";") == ([["a"], ["b"]], None)


def test_columns_in_memory_are_read_by_their_names():
    table = {"sentence1": ["a", "c"], "sentence2": ["b", "d"], "score": [1, 0.5]}
    found = Embedding().read(table)
    assert found.columns == (["a", "c"], ["b", "d"]) and found.similarity == [1.0, 0.5]
    with pytest.raises(ValueError, match="'x', 'y'"):
        Embedding().read({"x": ["a"], "y": ["b"]})
