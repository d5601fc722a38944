"""A corpus in shards, without Ray: found, checked, embedded whole, and recognised later as done."""

import gzip
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.shards import TEXTS, matrix, write_shard
from support.words import OTHER

import minibert
from minibert.tables import texts as texts_module
from minibert.vectors import shards as module
from minibert.vectors.shards import Columns, Shard, embed_shard, find_shards, read_shard

D = 24
BODY = Columns("body")
SETTINGS = {"pooling": "cls"}


@pytest.fixture(scope="module")
def embedder(checkpoint: Path) -> minibert.Embedder:
    return minibert.Embedder(checkpoint, minibert.Recipe(), "cpu")


def embed(source: Path, out: Path, embedder: minibert.Embedder, columns: Columns = BODY) -> pa.Table:
    embed_shard(Shard(str(source), str(out)), columns, embedder, SETTINGS)
    return pq.read_table(out)


# -- found


def test_shards_are_in_the_order_of_their_names_and_keep_them_below_the_first_wildcard(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b/2.parquet", "a/1.parquet", "a/2.jsonl.gz", "a/.hidden.parquet", "b/c/[3].parquet"):
        (tmp_path / "corpus" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "corpus" / name).touch()
    found = [(Path(s.source).relative_to(tmp_path), Path(s.out)) for s in find_shards("corpus/*/*", Path("out"))]
    names = ("a/1.parquet", "a/2.jsonl.gz", "b/2.parquet")
    outs = ("a/1.parquet", "a/2.jsonl.gz.parquet", "b/2.parquet")
    assert found == [(Path("corpus") / x, tmp_path / "out" / y) for x, y in zip(names, outs, strict=True)]
    for name in ("2.parquet", "c/[3].parquet"):  # a name with brackets is a file if it exists
        assert [Path(shard.out).name for shard in find_shards(f"corpus/b/{name}", Path("out"))] == [Path(name).name]


def test_what_lies_in_the_output_folder_is_never_input(tmp_path):
    write_shard(tmp_path / "corpus" / "a.parquet")
    write_shard(tmp_path / "corpus" / "vectors" / "a.parquet")
    found = find_shards(f"{tmp_path}/**/*.parquet", tmp_path / "corpus" / "vectors")
    assert [shard.source for shard in found] == [str(tmp_path / "corpus" / "a.parquet")]
    with pytest.raises(FileNotFoundError, match="corpus"):
        find_shards(f"{tmp_path}/corpus/*.parquet", tmp_path / "corpus")


@pytest.mark.parametrize(
    ("pattern", "error", "message"),
    [
        ("corpus/*.txt", FileNotFoundError, r"corpus/\*.txt .*'corpus/\*.parquet'"),
        ("corpus", FileNotFoundError, r"corpus .*\bout\b"),
        ("corpus/*", ValueError, r"corpus/a.csv .* out/a.csv.parquet"),
    ],
)
def test_a_pattern_of_no_file_or_of_two_with_one_output_is_refused(tmp_path, monkeypatch, pattern, error, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    for name in ("a.csv", "a.csv.parquet"):
        (tmp_path / "corpus" / name).touch()
    with pytest.raises(error, match=message):
        find_shards(pattern, Path("out"))


# -- checked


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (Columns("text"), r"a.parquet .*'text'.*'id', 'body'"),
        (Columns("body", "title"), r"a.parquet .*'title'.*pair"),
        (Columns("body", "body"), r"a.parquet .*'body'"),
        (Columns("id"), r"a.parquet .*int64.*'id'"),
        (Columns("lists"), r"a.parquet .*list<"),
        (BODY, r"vectors.parquet .*'vector'"),
        (BODY, r"a.jsonl, line 1\b.*'body'"),
    ],
)
def test_missing_and_wrong_columns_are_named_before_anything_is_computed(tmp_path, columns, message):
    write_shard(tmp_path / "a.parquet", ["good"], lists=[["good"]])
    write_shard(tmp_path / "vectors.parquet", ["good"], vector=[1.0])
    (tmp_path / "a.jsonl").write_text('{"txt": "good"}\n')
    file = re.split("[ ,]", message)[0]
    with pytest.raises(ValueError, match=f"^{tmp_path}/{message}"):
        next(read_shard(str(tmp_path / file), columns))


def write_damaged(source: Path) -> None:
    pq.write_table(pa.table({"body": TEXTS}), source, compression="gzip", row_group_size=9)
    raw = bytearray(source.read_bytes())
    place = pq.read_metadata(source).row_group(1).column(0).data_page_offset
    raw[place + 25 : place + 60] = bytes(35)
    source.write_bytes(raw)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: write_shard(path, [*TEXTS[:23], None], rows=5), r"row 24\b.*null.*'body'"),
        (lambda path: write_shard(path, [*TEXTS[:12], "good " * 40], rows=5), r"row 12 .*42 tokens"),
        (write_damaged, ""),
    ],
    ids=["null", "too long", "damaged"],
)
def test_an_error_in_the_middle_of_a_shard_names_the_place_and_leaves_no_output(tmp_path, checkpoint, write, message):
    write(tmp_path / "a.parquet")
    next(read_shard(str(tmp_path / "a.parquet"), BODY))
    with pytest.raises(ValueError, match=rf"a\.parquet\b.* {message}"):
        embed(
            tmp_path / "a.parquet",
            tmp_path / "out.parquet",
            minibert.Embedder(checkpoint, minibert.Recipe(long="error"), "cpu"),
        )
    assert os.listdir(tmp_path) == ["a.parquet"]


# -- embedded


def test_the_columns_are_kept_with_the_vectors_of_embed_beside_them(tmp_path, checkpoint, embedder, monkeypatch):
    monkeypatch.setattr(module, "TEXTS", 15)  # rows that are read at once
    monkeypatch.setattr(texts_module, "CHARACTERS", 40)  # of which long ones come in small chunks
    source = write_shard(tmp_path / "a.parquet", tags=[["x"]] * 27, when=pa.array([1] * 27, pa.timestamp("ms")))
    made = embed(source, tmp_path / "out" / "a.parquet", embedder)
    kept = pq.read_table(source)
    assert made.select(kept.column_names) == kept
    assert made.schema.field("vector").type == pa.list_(pa.float32(), D)
    np.testing.assert_allclose(matrix(made), minibert.embed(TEXTS, checkpoint), rtol=0, atol=1e-5)
    assert pq.ParquetFile(tmp_path / "out" / "a.parquet").num_row_groups > 8
    assert os.listdir(tmp_path / "out") == ["a.parquet"]


KINDS = [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
CORPORA: dict[str, tuple[dict[str, Any], dict[str, Any], Columns]] = {  # columns of a shard, arguments of embed
    **{str(kind): ({"body": pa.array(TEXTS).cast(kind)}, {"texts": TEXTS}, BODY) for kind in KINDS},
    "nulls": ({"body": ["good", None, "bad"]}, {"texts": ["good", "", "bad"]}, Columns("body", missing="empty")),
    "pairs": (
        {"body": TEXTS, "title": OTHER[:3] * 9},
        {"texts": TEXTS, "pairs": OTHER[:3] * 9},
        Columns("body", "title"),
    ),
}


@pytest.mark.parametrize("name", CORPORA)
def test_strings_of_every_kind_nulls_and_pairs_have_the_vectors_of_embed(tmp_path, checkpoint, name):
    shard, texts, columns = CORPORA[name]
    pq.write_table(pa.table(shard), tmp_path / "a.parquet")
    made = embed(tmp_path / "a.parquet", tmp_path / "out.parquet", minibert.Embedder(checkpoint, device="cpu"), columns)
    assert made.column("body") == pq.read_table(tmp_path / "a.parquet").column("body")
    np.testing.assert_allclose(matrix(made), minibert.embed(model=checkpoint, **texts), rtol=0, atol=1e-5)


TABLES: dict[str, tuple[str, Columns, str]] = {
    "a.txt": ("good film\n\nbad\n", Columns(), "text"),
    "a.jsonl": ('{"id": 1, "body": "good film"}\n{"id": 2, "body": ""}\n{"id": 3, "body": "bad"}\n', BODY, "body"),
    "a.csv": ("id,body\n1,good film\n2,\n3,bad\n", Columns("body", missing="empty"), "body"),
    "a.tsv.gz": ("1\tgood film\n2\t\n3\tbad\n", Columns("2", missing="empty"), "text"),
}


@pytest.mark.parametrize("name", TABLES)
def test_of_other_tables_the_texts_are_kept(tmp_path, checkpoint, embedder, name):
    content, columns, kept = TABLES[name]
    raw = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    made = embed(tmp_path / name, tmp_path / "out.parquet", embedder, columns)
    assert made.column_names == [kept, "vector"]
    assert made.column(kept).to_pylist() == ["good film", "", "bad"]
    np.testing.assert_allclose(matrix(made), minibert.embed(["good film", "", "bad"], checkpoint), rtol=0, atol=1e-5)


def test_no_rows_give_no_rows_of_the_right_width(tmp_path, embedder):
    pq.write_table(pa.table({"body": pa.array([], pa.string())}), tmp_path / "a.parquet")
    made = embed(tmp_path / "a.parquet", tmp_path / "out.parquet", embedder)
    assert made.num_rows == 0
    assert made.schema.field("vector").type == pa.list_(pa.float32(), D)


# -- recognised


def test_a_shard_is_done_if_it_is_whole_and_of_these_settings_and_this_source(tmp_path, embedder):
    shard = Shard(str(write_shard(tmp_path / "a.parquet")), str(tmp_path / "out.parquet"))
    assert shard.stats(SETTINGS) is None  # not there
    counts = embed_shard(shard, BODY, embedder, SETTINGS)
    assert shard.stats(SETTINGS) == counts and counts.texts == len(TEXTS)
    assert shard.stats({"pooling": "mean"}) is None
    os.utime(shard.source, ns=(0, 0))
    assert shard.stats(SETTINGS) is None  # its source has changed


def with_bit_flipped(whole: bytes) -> bytes:
    """The file with another number in one of its vectors."""
    place = pq.read_metadata(pa.BufferReader(whole)).row_group(0).column(2).data_page_offset + 60
    return whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :]


def with_fewer_rows(whole: bytes) -> bytes:
    table, out = pq.read_table(pa.BufferReader(whole)), pa.BufferOutputStream()
    pq.write_table(table.slice(3), out)
    return out.getvalue().to_pybytes()


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:-1],
        lambda whole: whole[: len(whole) // 2] + whole[len(whole) // 2 + 9 :],
        with_bit_flipped,
        lambda whole: whole.replace(b'"longest": 7', b'"longest": 6'),
        with_fewer_rows,
    ],
    ids=["cut", "a gap", "a bit", "a digit of the footer", "fewer rows"],
)
def test_a_damaged_shard_is_named_and_not_done(damage, tmp_path, embedder):
    shard = Shard(str(write_shard(tmp_path / "a.parquet")), str(tmp_path / "out.parquet"))
    embed_shard(shard, BODY, embedder, SETTINGS)
    Path(shard.out).write_bytes(damage(Path(shard.out).read_bytes()))
    with pytest.warns(UserWarning, match=rf"{shard.out}"):
        assert shard.stats(SETTINGS) is None
