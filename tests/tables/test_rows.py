"""Parquet files give their rows within limits of memory, and numbers of classes their names."""

import random
from pathlib import Path
from typing import Any

import pytest

from minibert.tables import formats
from minibert.tables.columns import Column
from minibert.tables.reading import Table

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

LONG = "a" * 3000


def rows_of(path: Path) -> list[Any]:
    with Table(path, [Column("text")], whole=True) as table:
        return [row for _, row in table.records()]


def noise(count: int, length: int) -> list[str]:
    """Texts that no compression makes much shorter."""
    source = random.Random(0)
    return [source.randbytes(length // 2).hex() for _ in range(count)]


KINDS = {
    "texts": (pa.array(["a", None, "b"]), {}),
    "large texts": (pa.array(["a", None, "b"], pa.large_string()), {}),
    "views": (pa.array(["a", None, "b"], pa.string_view()), {}),
    "categories": (pa.array(["a", "b", "a"]).dictionary_encode(), {}),
    "lists": (pa.array([["a", "b"], [], None]), {}),
    "objects": (pa.array([{"x": "a", "y": [{"z": "b"}]}, None, {"x": None, "y": []}]), {}),
    "maps": (pa.array([[("k", "v")], [], None], pa.map_(pa.string(), pa.string())), {}),
    "numbers": (pa.array([1.5, None, 2]), {}),
    "bytes": (pa.array([b"a", b"", None]), {}),
    "plain": (pa.array(["a", None, "b"]), {"use_dictionary": False}),
    "without the schema of Arrow": (pa.array(["a", None, "b"]), {"store_schema": False}),
}


@pytest.mark.parametrize(("column", "how"), KINDS.values(), ids=KINDS)
def test_every_type_of_column_is_read_as_arrow_reads_it(column, how, tmp_path):
    table = pa.table({"text": ["x", "y", "z"], "column": column})
    parquet.write_table(table, tmp_path / "x.parquet", **how)
    assert rows_of(tmp_path / "x.parquet") == table.to_pylist()


BOMBS = {
    "one text of many rows": (pa.array([LONG] * 2000), {}),
    "texts that compress well": (pa.array([f"{LONG}{n}" for n in range(2000)]), {"use_dictionary": False}),
    "one text in many lists": (pa.array([[LONG] * 2] * 1000), {}),
    "one text in a list": (pa.array([[LONG] * 2000]), {}),
    "one text in many objects": (pa.array([{"x": LONG}] * 2000), {}),
}


@pytest.mark.parametrize(("column", "how"), BOMBS.values(), ids=BOMBS)
def test_a_small_file_that_holds_a_lot_is_refused(column, how, tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "ROW_LIMIT", 20_000)
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"text": column}), path, compression="zstd", **how)
    assert path.stat().st_size < 40_000
    with pytest.raises(ValueError, match=r"x\.parquet, decompressed, .* MB"):
        rows_of(path)


def test_a_row_that_is_too_long_is_refused_with_its_place(tmp_path, monkeypatch):
    texts = [*noise(5, 2000), *noise(1, 30_000)]
    parquet.write_table(pa.table({"text": texts}), tmp_path / "x.parquet")
    assert [row["text"] for row in rows_of(tmp_path / "x.parquet")] == texts
    monkeypatch.setattr(formats, "ROW_LIMIT", 20_000)
    with pytest.raises(ValueError, match=r"x\.parquet, row 6, is longer than 0\.02 MB"):
        rows_of(tmp_path / "x.parquet")


def test_rows_that_are_long_together_are_read_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "ROW_LIMIT", 20_000)
    texts = noise(50, 2000)
    parquet.write_table(pa.table({"text": texts}), tmp_path / "x.parquet")
    assert [row["text"] for row in rows_of(tmp_path / "x.parquet")] == texts


def test_numbers_of_classes_become_their_names_in_a_file_and_in_memory(tmp_path):
    datasets = pytest.importorskip("datasets")
    label = datasets.ClassLabel(names=["neg", "pos"])
    features = datasets.Features({"text": datasets.Value("string"), "label": label, "tags": datasets.Sequence(label)})
    rows = {"text": ["a", "b", "c"], "label": [1, 0, -1], "tags": [[0, 1], [], [1]]}
    data = datasets.Dataset.from_dict(rows, features=features)
    data.to_parquet(tmp_path / "x.parquet")
    for source in (tmp_path / "x.parquet", data, data.data.table):
        found = rows_of(source)
        assert [row["label"] for row in found] == ["pos", "neg", None]  # -1 is a row without a label
        assert [row["tags"] for row in found] == [["neg", "pos"], [], ["pos"]]


@pytest.mark.parametrize("metadata", [b"{", b"[]", b'{"info": null}', b'{"info": {"features": {"label": 7}}}'])
def test_other_metadata_of_that_name_does_not_matter(metadata, tmp_path):
    table = pa.table({"text": ["a"], "label": [1]}).replace_schema_metadata({"huggingface": metadata})
    parquet.write_table(table, tmp_path / "x.parquet")
    assert rows_of(tmp_path / "x.parquet") == [{"text": "a", "label": 1}]
