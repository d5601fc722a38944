"""Tables that are written: each format, streamed, whole or not at all."""

import csv
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from minibert.tables.writing import table_writer

ROWS: list[dict[str, Any]] = [
    {"id": 1, "name": 'a "b", c\td\ne', "list": [1, {"x": "ü"}], "none": None, "flag": True, "share": 0.1},
    {"id": 2, "name": "", "list": [], "none": "x", "flag": False, "share": 1e-9},
]


def write(path: Path, *portions: list[dict[str, Any]]) -> Path:
    with table_writer(path) as add:
        for rows in portions:
            add(rows)
    return path


def test_a_csv_and_a_tsv_have_a_header_and_text_in_their_cells(tmp_path):
    with write(tmp_path / "a.csv", ROWS[:1], ROWS[1:]).open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == list(ROWS[0])
    assert rows == [
        ["1", 'a "b", c\td\ne', '[1, {"x": "ü"}]', "", "true", "0.1"],
        ["2", "", "[]", "x", "false", "1e-09"],
    ]
    lines = write(tmp_path / "a.tsv", ROWS).read_text(encoding="utf-8").splitlines()
    assert lines == [
        "id\tname\tlist\tnone\tflag\tshare",
        '1\ta "b", c d e\t[1, {"x": "ü"}]\t\ttrue\t0.1',
        "2\t\t[]\tx\tfalse\t1e-09",
    ]


def test_a_jsonl_and_a_parquet_keep_values_and_rows_of_their_own_columns(tmp_path):
    rows = [*ROWS, {"id": 3, "more": "y"}]
    lines = write(tmp_path / "a.jsonl", ROWS, rows[2:]).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == rows
    parquet = pytest.importorskip("pyarrow.parquet")
    plain = [{name: value for name, value in row.items() if name != "list"} for row in rows]  # of mixed types
    found = parquet.read_table(write(tmp_path / "a.parquet", plain[:1], plain[1:])).to_pylist()
    names = dict.fromkeys(name for row in plain for name in row)
    assert found == [{name: row.get(name) for name in names} for row in plain]


def test_a_table_without_rows_is_an_empty_file(tmp_path):
    assert [write(tmp_path / f"a{ending}").read_bytes() for ending in (".tsv", ".csv", ".jsonl")] == [b""] * 3


def test_a_row_may_lack_a_column_and_have_none_that_the_first_lacks(tmp_path):
    assert write(tmp_path / "a.csv", [{"a": 1, "b": 2}, {"b": 3}]).read_text() == "a,b\n1,2\n,3\n"
    with pytest.raises(ValueError, match=r"'c'.*\.jsonl"):
        write(tmp_path / "b.csv", [{"a": 1}], [{"a": 1, "c": 2}])


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".jsonl", ".parquet"])
def test_a_table_appears_whole_or_not_at_all(ending, tmp_path):
    path = tmp_path / f"a{ending}"
    path.write_text("before")
    with pytest.raises(KeyError), table_writer(path) as add:
        add([{"a": 1}])
        raise KeyError
    assert [one.name for one in tmp_path.iterdir()] == [path.name] and path.read_text() == "before"


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".jsonl"])
def test_memory_does_not_grow_with_the_rows(ending, tmp_path):
    peaks = []
    for count in (20, 200):
        tracemalloc.start()
        with table_writer(tmp_path / f"{count}{ending}") as add:
            for part in range(count):
                add([{"text": f"{part} " * 2000}] * 2)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 100_000 < (tmp_path / f"200{ending}").stat().st_size
