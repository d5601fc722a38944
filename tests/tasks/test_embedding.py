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
        ("a\nb\n", [["a", "b"]], None),
        ("a\tb\nc\td\n", [["a", "c"], ["b", "d"]], None),
        ("a\ta\nc\td\n", [["a", "c"], ["a", "d"]], None),  # equal cells in the first row
        ("a\tb\tx\nc\td\ty\n", [["a", "c"], ["b", "d"], ["x", "y"]], None),
        ("a\tb\tx\tz\nc\td\ty\tz\n", [["a", "c"], ["b", "d"], ["x", "y"], ["z", "z"]], None),
        ("a\tb\t4.5\nc\td\t0\n", [["a", "c"], ["b", "d"]], [4.5, 0.0]),
        ("score\tsentence2\tsentence1\n4.5\tb\ta\n0\td\tc\n", [["a", "c"], ["b", "d"]], [4.5, 0.0]),
        ("anchor\tpositive\tnegative_1\tid\na\tb\tx\t1\n", [["a"], ["b"], ["x"]], None),
        ("Query\tText\na\tb\n", [["a"], ["b"]], None),
    ],
)
def test_columns_have_their_usual_names_or_without_a_header_their_order(
    content: str, columns: list[list[str]], similarity: Any, tmp_path: Path
) -> None:
    assert read(tmp_path, content) == (columns, similarity)


def test_columns_that_are_named_are_the_only_ones(tmp_path: Path) -> None:
    content = "one\ttwo\tthree\na\tb\t2\n"
    assert read(tmp_path, content, text="one", pair="two") == ([["a"], ["b"]], None)
    assert read(tmp_path, content, text="two", pair="one", label="three") == ([["b"], ["a"]], [2.0])
    assert read(tmp_path, content, text="one", pair="two", negatives=("three",)) == ([["a"], ["b"], ["2"]], None)


def test_other_kinds_of_files_are_read_by_their_names_too(tmp_path: Path) -> None:
    objects = '{"sentence1": "a", "sentence2": "b", "score": 1}\n{"sentence1": "c", "sentence2": "d", "score": 0.5}\n'
    assert read(tmp_path, objects, "rows.jsonl") == ([["a", "c"], ["b", "d"]], [1.0, 0.5])
    assert read(tmp_path, "a\n\nc\n", "rows.txt", missing="empty") == ([["a", "", "c"]], None)
    assert read(tmp_path, "sentence1;sentence2\na;b\n", "rows.csv", delimiter=";") == ([["a"], ["b"]], None)


def test_columns_in_memory_are_read_by_their_names() -> None:
    table = {"sentence1": ["a", "c"], "sentence2": ["b", "d"], "score": [1, 0.5]}
    found = Embedding().read(table)
    assert found.columns == (["a", "c"], ["b", "d"]) and found.similarity == [1.0, 0.5]
    with pytest.raises(ValueError, match="'x', 'y'"):
        Embedding().read({"x": ["a"], "y": ["b"]})
