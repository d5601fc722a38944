"""A corpus in shards, without Ray: found, checked, embedded whole, and recognised later."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from minibert.vectors.shard_folder import ShardFolder
from words import BAD, GOOD, OTHER, write_words_checkpoint

import minibert
from minibert.text import texts as text_room
from minibert.vectors import shards as room
from minibert.vectors.embedder import Embedder
from minibert.vectors.recipe import Recipe
from minibert.vectors.shards import Columns, Record, Shard, Source, check_shard, embed_shard, find_shards

D = 24
TEXTS = [
    f"{good} {bad} {'film ' * (row % 4)}".strip() for row, (good, bad) in enumerate(zip(GOOD * 9, BAD * 9, strict=True))
]
BODY = Columns("body")
SETTINGS = {"pooling": "cls"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_words_checkpoint(tmp_path_factory.mktemp("words")))


@pytest.fixture(scope="module")
def embedder(checkpoint: str) -> Embedder:
    return Embedder(checkpoint, Recipe(), "cpu")


def write_shard(path: Path, texts: Iterable[Any] = TEXTS, rows: int = 10, **columns: Any) -> Path:
    """A Parquet file with the column body, in row groups of so many rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = list(texts)
    pq.write_table(pa.table({"id": list(range(len(body))), "body": body} | columns), path, row_group_size=rows)
    return path


def embed(source: Path, out: Path, embedder: Embedder, columns: Columns = BODY) -> pa.Table:
    embed_shard(Shard(str(source), str(out)), columns, embedder, SETTINGS)
    return pq.read_table(out)


def matrix(table: pa.Table) -> np.ndarray[Any, Any]:
    return np.array(table.column("vector").to_pylist(), np.float32)


# -- found


def test_shards_are_in_the_order_of_their_names_and_keep_them_below_the_first_wildcard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b/2.parquet", "a/1.parquet", "a/2.jsonl.gz", "a/.hidden.parquet"):
        (tmp_path / "corpus" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "corpus" / name).touch()
    found = [(Path(s.source).relative_to(tmp_path), Path(s.out)) for s in find_shards("corpus/*/*", Path("out"))]
    names = ("a/1.parquet", "a/2.jsonl.gz", "b/2.parquet")
    outs = ("a/1.parquet", "a/2.jsonl.gz.parquet", "b/2.parquet")
    assert found == [(Path("corpus") / x, tmp_path / "out" / y) for x, y in zip(names, outs, strict=True)]
    assert [Path(shard.out).name for shard in find_shards("corpus/b/2.parquet", Path("out"))] == ["2.parquet"]


def test_what_lies_in_the_output_folder_is_never_input(tmp_path: Path) -> None:
    write_shard(tmp_path / "corpus" / "a.parquet")
    write_shard(tmp_path / "corpus" / "vectors" / "a.parquet")
    found = find_shards(f"{tmp_path}/**/*.parquet", tmp_path / "corpus" / "vectors")
    assert [shard.source for shard in found] == [str(tmp_path / "corpus" / "a.parquet")]
    with pytest.raises(FileNotFoundError, match="matches no file outside of the output folder"):
        find_shards(f"{tmp_path}/corpus/*.parquet", tmp_path / "corpus")


def test_a_name_with_brackets_is_a_file_where_there_is_one(tmp_path: Path) -> None:
    write_shard(tmp_path / "a[1].parquet")
    assert len(find_shards(str(tmp_path / "a[1].parquet"), tmp_path / "out")) == 1


@pytest.mark.parametrize(
    ("pattern", "error", "message"),
    [
        ("corpus/*.txt", FileNotFoundError, r"corpus/\*.txt matches no file; a pattern stands in quotes"),
        ("corpus", ValueError, r"corpus is a folder; name the files in it, such as corpus/\*.parquet"),
        ("s3://corpus/*.parquet", ValueError, "is an address, .* use minibert.vectors.ray.embed_dataset"),
        ("corpus/*", ValueError, r"the vectors of corpus/a.csv and of .* would both be out/a.csv.parquet; rename one"),
    ],
)
def test_a_pattern_that_means_nothing_or_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, error: type[Exception], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    for name in ("a.csv", "a.csv.parquet"):
        (tmp_path / "corpus" / name).touch()
    with pytest.raises(error, match=message):
        find_shards(pattern, Path("out"))


# -- checked


def refused(path: Path, columns: Columns = BODY) -> str:
    with pytest.raises(ValueError) as caught:
        check_shard(Shard(str(path), ""), columns)
    return str(caught.value).replace(f"{path.parent}/", "")


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    source = write_shard(tmp_path / "a.parquet")
    assert refused(source, Columns("text")) == ("a.parquet has no column 'text'; choose as text one of: 'id', 'body'")
    assert refused(source, Columns("body", "title")).startswith("a.parquet has no column 'title'; choose as pair")
    assert "are both the column 'body'" in refused(source, Columns("body", "body"))
    (tmp_path / "b.jsonl").write_text('{"txt": "good"}\n')
    assert "b.jsonl, line 1, has no column 'body'" in refused(tmp_path / "b.jsonl")


def test_a_column_of_numbers_or_lists_holds_no_texts(tmp_path: Path) -> None:
    source = write_shard(tmp_path / "a.parquet", ["good"], lists=[["good"]])
    assert refused(source, Columns("id")) == "a.parquet has int64 as 'id', not texts; choose a column of strings"
    assert "has list<" in refused(source, Columns("lists"))


def test_a_column_called_vector_is_in_the_way(tmp_path: Path) -> None:
    assert "has a column 'vector' already" in refused(write_shard(tmp_path / "a.parquet", ["good"], vector=[1.0]))


def test_a_null_is_named_by_its_row_before_anything_is_computed(tmp_path: Path) -> None:
    source = write_shard(tmp_path / "a.parquet", [*TEXTS[:23], None, *TEXTS[23:]], rows=5, lists=[[1, 2]] * 28)
    assert refused(source) == "a.parquet, row 24, has null as 'body', not a text; leave the row out, or fill it"
    check_shard(Shard(str(source), ""), BODY, missing="empty")


def test_a_null_without_statistics_is_named_when_it_is_read(tmp_path: Path, embedder: Embedder) -> None:
    source = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": [*TEXTS[:7], None]}), source, write_statistics=False)
    check_shard(Shard(str(source), ""), BODY)
    with pytest.raises(ValueError, match=r"a\.parquet, row 8, has null as 'body'"):
        embed(source, tmp_path / "out.parquet", embedder)
    assert sorted(os.listdir(tmp_path)) == ["a.parquet"]


@pytest.mark.parametrize("keep", [0, 100, -4])
def test_a_file_that_is_no_sound_parquet_is_refused(tmp_path: Path, keep: int) -> None:
    whole = write_shard(tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[:keep])
    assert refused(tmp_path / "a.parquet").startswith("a.parquet is not a sound parquet file: ")


def test_damage_in_the_middle_of_a_shard_leaves_no_output(tmp_path: Path, embedder: Embedder) -> None:
    source = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": TEXTS}), source, compression="gzip", row_group_size=9)
    raw = bytearray(source.read_bytes())
    place = pq.read_metadata(source).row_group(1).column(0).data_page_offset
    raw[place + 25 : place + 60] = bytes(35)
    source.write_bytes(raw)
    check_shard(Shard(str(source), ""), BODY)
    with pytest.raises(ValueError, match=r"a\.parquet is not a sound parquet file: after row \d+, "):
        embed(source, tmp_path / "out.parquet", embedder)
    assert sorted(os.listdir(tmp_path)) == ["a.parquet"]


# -- embedded


def test_the_columns_are_kept_with_the_vectors_of_embed_beside_them(
    tmp_path: Path, checkpoint: str, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "TEXTS", 7)
    source = write_shard(tmp_path / "a.parquet", tags=[["x"]] * 27, when=pa.array([1] * 27, pa.timestamp("ms")))
    made = embed(source, tmp_path / "out" / "a.parquet", embedder)
    kept = pq.read_table(source)
    assert made.select(kept.column_names) == kept
    assert made.schema.field("vector").type == pa.list_(pa.float32(), D)
    np.testing.assert_allclose(matrix(made), minibert.embed(TEXTS, checkpoint), rtol=0, atol=1e-5)
    assert pq.ParquetFile(tmp_path / "out" / "a.parquet").num_row_groups > 3
    assert os.listdir(tmp_path / "out") == ["a.parquet"]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_strings_of_every_kind_are_texts(tmp_path: Path, checkpoint: str, embedder: Embedder, kind: Any) -> None:
    pq.write_table(pa.table({"body": pa.array(TEXTS).cast(kind)}), tmp_path / "a.parquet")
    made = embed(tmp_path / "a.parquet", tmp_path / "out.parquet", embedder)
    np.testing.assert_allclose(matrix(made), minibert.embed(TEXTS, checkpoint), rtol=0, atol=1e-5)


def test_nulls_are_empty_texts_where_that_is_asked_for(tmp_path: Path, checkpoint: str) -> None:
    source = write_shard(tmp_path / "a.parquet", ["good", None, "bad"])
    made = embed(source, tmp_path / "out.parquet", Embedder(checkpoint, Recipe(missing="empty"), "cpu"))
    assert made.column("body").to_pylist() == ["good", None, "bad"]
    np.testing.assert_allclose(matrix(made), minibert.embed(["good", "", "bad"], checkpoint), rtol=0, atol=1e-5)


def test_pairs_are_two_columns(tmp_path: Path, checkpoint: str, embedder: Embedder) -> None:
    source = write_shard(tmp_path / "a.parquet", TEXTS, title=OTHER[:3] * 9)
    made = embed(source, tmp_path / "out.parquet", embedder, Columns("body", "title"))
    expected = minibert.embed(TEXTS, checkpoint, pairs=OTHER[:3] * 9)
    np.testing.assert_allclose(matrix(made), expected, rtol=0, atol=1e-5)


TABLES: dict[str, tuple[str, Columns, str]] = {
    "a.txt": ("good film\n\nbad\n", Columns(), "text"),
    "a.jsonl": ('{"id": 1, "body": "good film"}\n{"id": 2, "body": ""}\n{"id": 3, "body": "bad"}\n', BODY, "body"),
    "a.csv": ("id,body\n1,good film\n2,\n3,bad\n", BODY, "body"),
    "a.tsv.gz": ("1\tgood film\n2\t\n3\tbad\n", Columns("2"), "text"),
}


@pytest.mark.parametrize("name", TABLES)
def test_of_other_tables_the_texts_are_kept(tmp_path: Path, checkpoint: str, embedder: Embedder, name: str) -> None:
    content, columns, kept = TABLES[name]
    raw = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    check_shard(Shard(str(tmp_path / name), ""), columns)
    made = embed(tmp_path / name, tmp_path / "out.parquet", embedder, columns)
    assert made.column_names == [kept, "vector"]
    assert made.column(kept).to_pylist() == ["good film", "", "bad"]
    np.testing.assert_allclose(matrix(made), minibert.embed(["good film", "", "bad"], checkpoint), rtol=0, atol=1e-5)


def test_no_rows_give_no_rows_of_the_right_width(tmp_path: Path, embedder: Embedder) -> None:
    pq.write_table(pa.table({"body": pa.array([], pa.string())}), tmp_path / "a.parquet")
    made = embed(tmp_path / "a.parquet", tmp_path / "out.parquet", embedder)
    assert made.num_rows == 0
    assert made.schema.field("vector").type == pa.list_(pa.float32(), D)


def test_long_texts_come_in_small_portions(
    tmp_path: Path, checkpoint: str, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_room, "CHARACTERS", 40)
    source = write_shard(tmp_path / "a.parquet", rows=27)
    made = embed(source, tmp_path / "out.parquet", embedder)
    assert pq.ParquetFile(tmp_path / "out.parquet").num_row_groups > 8
    np.testing.assert_allclose(matrix(made), minibert.embed(TEXTS, checkpoint), rtol=0, atol=1e-5)


def test_an_error_of_a_text_names_its_file_and_row(tmp_path: Path, checkpoint: str) -> None:
    source = write_shard(tmp_path / "a.parquet", [*TEXTS[:12], "good " * 40], rows=5)
    strict = Embedder(checkpoint, Recipe(long="error"), "cpu")
    with pytest.raises(ValueError, match=r"a\.parquet: row 12 has 42 tokens"):
        embed(source, tmp_path / "out.parquet", strict)


def test_a_shard_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_shard(tmp_path / "a.parquet")
    compute = embedder.vectors

    def meanwhile(*given: Any) -> Any:
        os.utime(source, ns=(0, 0))
        return compute(*given)

    monkeypatch.setattr(embedder, "vectors", meanwhile)
    with pytest.raises(ValueError, match=r"a\.parquet was changed while it was read"):
        embed(source, tmp_path / "out.parquet", embedder)
    assert sorted(os.listdir(tmp_path)) == ["a.parquet"]


# -- recognised


def test_a_shard_that_is_done_is_not_computed_again(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = Shard(str(write_shard(tmp_path / "a.parquet")), str(tmp_path / "out.parquet"))
    first = embed_shard(shard, BODY, embedder, SETTINGS)
    monkeypatch.setattr(room, "embedded", None)  # a call would fail
    assert embed_shard(shard, BODY, embedder, SETTINGS) == first == Record.of(shard.out)
    with pytest.raises(TypeError):
        embed_shard(shard, BODY, embedder, {"pooling": "mean"})


def test_a_source_is_known_by_size_and_time_or_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"good")
    source = Source.of(str(path))
    assert source.is_same(str(path))
    os.utime(path, ns=(5, 5))
    assert source.is_same(str(path))  # the bytes
    path.write_bytes(b"evil")
    assert not source.is_same(str(path))
    path.write_bytes(b"longer")
    os.utime(path, ns=(source.modified_ns, source.modified_ns))
    assert not source.is_same(str(path))


def test_another_file_or_a_torn_one_has_no_record(tmp_path: Path, embedder: Embedder) -> None:
    out = tmp_path / "out.parquet"
    assert Record.of(str(out)) is None
    assert Record.of(str(write_shard(tmp_path / "a.parquet"))) is None
    embed(tmp_path / "a.parquet", out, embedder)
    assert Record.of(str(out)) is not None
    out.write_bytes(out.read_bytes()[:-1])
    assert Record.of(str(out)) is None


# -- the folder


def corpus(folder: Path) -> list[Shard]:
    for name in ("a", "b"):
        write_shard(folder / "corpus" / f"{name}.parquet")
    return find_shards(f"{folder}/corpus/*.parquet", folder / "out")


def fill(folder: ShardFolder, embedder: Embedder, numbers: Iterable[int]) -> None:
    for number in numbers:
        folder.add(number, embed_shard(folder.shards[number], BODY, embedder, folder.settings))


def test_the_manifest_tells_sources_rows_settings_and_versions(tmp_path: Path, embedder: Embedder) -> None:
    shards = corpus(tmp_path)
    with ShardFolder(tmp_path / "out", shards, SETTINGS, {"model": "words"}) as folder:
        before = json.loads((tmp_path / "out" / "manifest.json").read_text())
        fill(folder, embedder, folder.todo)
    found = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (before["done"], before["rows"], [shard["rows"] for shard in before["shards"]]) == (False, 0, [None, None])
    assert (found["done"], found["rows"], found["model"], found["settings"]) == (True, 54, "words", SETTINGS)
    assert [shard["file"] for shard in found["shards"]] == ["a.parquet", "b.parquet"]
    source = found["shards"][0]["source"]
    assert source == {"path": shards[0].source} | {k: source[k] for k in ("bytes", "modified_ns", "sha256")}
    assert source["sha256"] == Source.of(shards[0].source).sha256
    assert {"torch", "pyarrow"} <= set(found["versions"])
    assert sorted(os.listdir(tmp_path / "out")) == ["a.parquet", "b.parquet", "manifest.json"]


def test_only_what_is_missing_or_has_changed_is_to_do(tmp_path: Path, embedder: Embedder) -> None:
    shards = corpus(tmp_path)
    with ShardFolder(tmp_path / "out", shards, SETTINGS) as folder:
        fill(folder, embedder, [0])
    with ShardFolder(tmp_path / "out", shards, SETTINGS) as folder:
        assert (folder.todo, folder.changed) == ([1], [])
        fill(folder, embedder, [1])
    write_shard(tmp_path / "corpus" / "a.parquet", TEXTS[1:])
    with ShardFolder(tmp_path / "out", shards, SETTINGS) as folder:
        assert (folder.todo, folder.changed) == ([0], [0])
    with ShardFolder(tmp_path / "out", shards, SETTINGS, restart=True) as folder:
        assert (folder.todo, folder.changed) == ([0, 1], [])


def test_what_killed_workers_left_is_removed(tmp_path: Path, embedder: Embedder) -> None:
    shards = corpus(tmp_path)
    with ShardFolder(tmp_path / "out", shards, SETTINGS) as folder:
        fill(folder, embedder, [0])
        (tmp_path / "out" / ".b.parquet.123").touch()
    assert sorted(os.listdir(tmp_path / "out")) == ["a.parquet", "manifest.json"]
    (tmp_path / "out" / ".manifest.json.7").touch()
    with ShardFolder(tmp_path / "out", shards, SETTINGS):
        assert sorted(os.listdir(tmp_path / "out")) == [".lock", "a.parquet", "manifest.json"]


def test_a_folder_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path, embedder: Embedder) -> None:
    shards = corpus(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    for restart in (False, True):
        with pytest.raises(ValueError, match=r"out has thesis\.tex in it, and no manifest\.json of shards"):
            ShardFolder(out, shards, SETTINGS, restart=restart).__enter__()
    assert os.listdir(out) == ["thesis.tex"]
    (out / "thesis.tex").rename(tmp_path / "thesis.tex")
    with ShardFolder(out, shards, SETTINGS) as folder:
        fill(folder, embedder, [0])
    (tmp_path / "thesis.tex").rename(out / "thesis.tex")
    for restart in (False, True):
        with pytest.raises(ValueError, match=r"out has thesis\.tex in it, which is none of its shards; move it away"):
            ShardFolder(out, shards, SETTINGS, restart=restart).__enter__()
    assert sorted(os.listdir(out)) == ["a.parquet", "manifest.json", "thesis.tex"]


def test_a_manifest_that_is_none_is_refused(tmp_path: Path) -> None:
    shards = corpus(tmp_path)
    (tmp_path / "out").mkdir()
    for content in ("{}", "[]", "{", '{"settings": {}, "shards": 3}'):
        (tmp_path / "out" / "manifest.json").write_text(content)
        with pytest.raises(ValueError, match=r"manifest\.json (is no manifest|is not valid JSON|holds a list)"):
            ShardFolder(tmp_path / "out", shards, {}, restart=True).__enter__()


def test_other_settings_are_refused_and_restart_takes_them(tmp_path: Path, embedder: Embedder) -> None:
    shards = corpus(tmp_path)
    with ShardFolder(tmp_path / "out", shards, SETTINGS) as folder:
        fill(folder, embedder, [0, 1])
    with pytest.raises(
        ValueError, match=r"begun with pooling 'cls', and now it is 'mean'; .* \(--restart, restart=True"
    ):
        ShardFolder(tmp_path / "out", shards, {"pooling": "mean"}).__enter__()
    with ShardFolder(tmp_path / "out", shards, {"pooling": "mean"}, restart=True) as folder:
        assert folder.todo == [0, 1]
        assert sorted(os.listdir(tmp_path / "out")) == [".lock", "manifest.json"]


def test_a_shard_whose_source_is_gone_is_refused_and_restart_removes_it(tmp_path: Path, embedder: Embedder) -> None:
    shards = corpus(tmp_path)
    with ShardFolder(tmp_path / "out", shards, SETTINGS) as folder:
        fill(folder, embedder, [0, 1])
    with pytest.raises(ValueError, match=r"out has b\.parquet, whose source is not in the input now; put it back, or"):
        ShardFolder(tmp_path / "out", shards[:1], SETTINGS).__enter__()
    with ShardFolder(tmp_path / "out", shards[:1], SETTINGS, restart=True):
        assert sorted(os.listdir(tmp_path / "out")) == [".lock", "manifest.json"]


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    shards = corpus(tmp_path)
    with (
        ShardFolder(tmp_path / "out", shards, SETTINGS),
        pytest.raises(RuntimeError, match="another process is writing"),
    ):
        ShardFolder(tmp_path / "out", shards, SETTINGS).__enter__()
