"""The nearest texts of a corpus and its closest pairs: equal to sorting everything, and never of another recipe."""

import io
import json
import os
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.neighbors import NearestNeighbors
from support.words import write_words_checkpoint

import minibert
from minibert.cli import main as cli
from minibert.vectors import search as module
from minibert.vectors.origin import Origin
from minibert.vectors.parts import hashes_of
from minibert.vectors.search import closest_pairs, nearest
from minibert.vectors.stream import embed_file, embed_stream

TEXTS = ["the good film", "the bad film", "a dull film", "fine words", "the good film", "one text"]
RANDOM = np.random.default_rng(0)


@pytest.fixture
def corpus(checkpoint: Path, tmp_path: Path) -> Path:
    """A file of texts and its vectors, as `embed` writes them."""
    (tmp_path / "corpus.txt").write_text("\n".join(TEXTS) + "\n")
    embed_file(tmp_path / "corpus.txt", tmp_path / "corpus.npy", checkpoint, pooling="mean")
    return tmp_path / "corpus.npy"


def unit(vectors: Any) -> Any:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_no_cosine_is_above_one(checkpoint):
    texts = [f"the {'good ' * n}film" for n in range(16)]
    vectors = unit(np.float32(RANDOM.normal(size=(500, 384))))
    assert (np.einsum("nd,nd->n", vectors, vectors) > 1).any()  # without care
    assert max(float(scores[0]) for _, scores in nearest(vectors, vectors, 1)) <= 1
    assert max(score for *_, score in closest_pairs(np.repeat(vectors, 2, axis=0), 500, -1)) <= 1
    assert max(hits[0].score for hits in minibert.search(texts, texts, model=checkpoint)) <= 1


# ---------------------------------------------------------------------------------------------------------------
# Equal to sorting everything


@pytest.mark.parametrize("top", [1, 7, 300, 301, 5000])
@pytest.mark.parametrize("block", [1, 64, 299, 1000])
def test_the_nearest_are_those_of_a_full_sort_whatever_the_block(top, block, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", block)
    monkeypatch.setattr(module, "SCORES", 3 * block)
    vectors = RANDOM.normal(size=(300, 8)).astype(np.float32)
    queries = RANDOM.normal(size=(10, 8)).astype(np.float32)
    cosines = unit(queries.astype(np.float64)) @ unit(vectors.astype(np.float64)).T
    expected = np.argsort(-cosines, axis=1, kind="stable")[:, :top]
    for (rows, scores), wanted, line in zip(nearest(vectors, queries, top), expected, cosines, strict=True):
        assert rows.tolist() == wanted.tolist()
        assert scores == pytest.approx(line[wanted], abs=1e-6)


@pytest.mark.parametrize("block", [2, 3, 100])
def test_of_equal_scores_the_first_rows_count(block, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", block)
    vectors = np.array([[1, 0], [0, 1], [2, 0], [3, 0], [1, 1], [9, 0]], np.float32)
    ((rows, scores),) = nearest(vectors, np.array([[5, 0]], np.float32), 3)
    assert rows.tolist() == [0, 2, 3] and scores.tolist() == [1, 1, 1]


@pytest.mark.parametrize("top", [1, 10, 10_000])
@pytest.mark.parametrize("scores", [4, 400, 10**6])
@pytest.mark.parametrize("above", [-1.0, 0.5])
def test_the_closest_pairs_are_those_of_a_full_sort(top, scores, above, monkeypatch):
    monkeypatch.setattr(module, "SCORES", scores)
    vectors = RANDOM.normal(size=(50, 4)).astype(np.float32)
    cosines = unit(vectors.astype(np.float64)) @ unit(vectors.astype(np.float64)).T
    every = sorted((-cosines[i, j], i, j) for i in range(50) for j in range(i + 1, 50) if cosines[i, j] >= above)
    found = closest_pairs(vectors, top, above)
    assert [(i, j) for i, j, _ in found] == [(i, j) for _, i, j in every[:top]]
    assert [score for _, _, score in found] == pytest.approx([-score for score, _, _ in every[:top]], abs=1e-6)


def test_scikit_learn_finds_the_same_neighbours_and_clusters_the_same_file(corpus):
    vectors = np.load(corpus)
    (hits,) = minibert.search(corpus, TEXTS[3], top=3)
    distances, rows = NearestNeighbors(n_neighbors=3, metric="cosine").fit(vectors).kneighbors(vectors[3:4])
    assert [hit.row for hit in hits] == rows[0].tolist()
    assert [1 - hit.score for hit in hits] == pytest.approx(distances[0].tolist(), abs=1e-5)
    labels = KMeans(3, random_state=0, n_init=1).fit_predict(unit(vectors))
    assert labels[0] == labels[4]


def test_faiss_reads_the_same_file_and_finds_the_same(corpus):
    """As search.py shows it: the exact index, and the graph for large corpora."""
    faiss = pytest.importorskip("faiss", reason="needs faiss-cpu, of the extra test")
    vectors = unit(np.load(corpus))
    hits = [minibert.search(corpus, text, top=3)[0] for text in TEXTS]
    for index in (
        faiss.IndexFlatIP(vectors.shape[1]),
        faiss.IndexHNSWFlat(vectors.shape[1], 32, faiss.METRIC_INNER_PRODUCT),
    ):
        index.add(vectors)
        scores, rows = index.search(vectors, 3)
        np.testing.assert_allclose(scores, [[hit.score for hit in some] for some in hits], atol=1e-5)
        assert [TEXTS[row[0]] for row in rows.tolist()] == [some[0].text for some in hits]


# ---------------------------------------------------------------------------------------------------------------
# A corpus


def test_a_file_of_vectors_is_searched_as_it_was_made_from_anywhere(corpus, monkeypatch):
    monkeypatch.chdir("/")
    found = minibert.search(corpus, ["the good film", "one text"], top=2)
    assert [[hit.text for hit in hits] for hits in found] == [["the good film"] * 2, ["one text", found[1][1].text]]
    assert [hit.row for hit in found[0]] == [0, 4] and found[0][0].score == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("kind", ["texts", "file"])
def test_texts_are_embedded_first(kind, corpus, checkpoint):
    given = TEXTS if kind == "texts" else corpus.with_name("corpus.txt")
    found = minibert.search(given, "one text", model=checkpoint, pooling="mean", top=3)
    expected = minibert.search(corpus, "one text", top=3)
    assert [(hit.row, hit.text) for hit in found[0]] == [(hit.row, hit.text) for hit in expected[0]]
    (pair,) = minibert.mine(given, model=checkpoint, pooling="mean", top=1)
    assert (pair.row, pair.other_row, pair.text, pair.other_text) == (0, 4, TEXTS[0], TEXTS[4])


def test_rows_of_pairs_are_found_as_pairs(checkpoint, tmp_path):
    (tmp_path / "pairs.tsv").write_text("a\tb\nthe film\tgood\none text\tbad\n")
    embed_file(tmp_path / "pairs.tsv", tmp_path / "x.npy", checkpoint, column="a", column2="b", pooling="mean")
    ((hit,),) = minibert.search(tmp_path / "x.npy", "the film", top=1)
    assert hit.text in {("the film", "good"), ("one text", "bad")}


def test_texts_and_a_model_that_moved_are_named(corpus, checkpoint, tmp_path):
    moved = corpus.with_name("corpus.txt").rename(tmp_path / "moved.txt")
    with pytest.raises(FileNotFoundError, match=r"corpus\.txt.*texts="):
        minibert.search(corpus, "one text")
    assert minibert.search(corpus, "one text", texts=moved, model=checkpoint)[0][0].row == 5
    Origin.place(corpus).unlink()
    with pytest.raises(ValueError, match=r"which model.*model="):
        minibert.search(corpus, "one text", texts=moved)
    assert minibert.search(corpus, "one text", texts=moved, model=checkpoint, pooling="mean")[0][0].row == 5
    with pytest.raises(ValueError, match=r"where its texts.*texts="):
        minibert.search(corpus, "one text", model=checkpoint)


# ---------------------------------------------------------------------------------------------------------------
# The texts that were embedded


CHANGES: dict[str, tuple[Any, str]] = {  # what becomes of the lines, and the row that is named
    "edited": (lambda lines: [*lines[:3], "a dull book", *lines[4:]], r"row 3 of .*corpus\.txt "),
    "edited, with the same vector": (lambda lines: [*lines[:3], "FINE words", *lines[4:]], "row 3 of"),
    "sorted": (sorted, "row 0 of"),
    "reversed": (lambda lines: lines[::-1], "row 0 of"),
    "the last one": (lambda lines: [*lines[:-1], "one text "], "row 5 of"),
    "shorter": (lambda lines: lines[:-1], "6 vectors.* 5 texts"),
    "longer": (lambda lines: [*lines, "more"], "6 vectors.* 7 texts"),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("kind", ["the file", "another file", "texts"])
def test_other_texts_than_those_that_were_embedded_are_refused_by_row(change, message, kind, corpus, tmp_path):
    path = tmp_path / ("corpus.txt" if kind == "the file" else "other-corpus.txt")
    path.write_text("\n".join(change(TEXTS)) + "\n")
    texts = {"the file": None, "another file": path, "texts": change(TEXTS)}[kind]
    message = message.replace(" of .*corpus\\.txt", "").replace(" of", "") if kind == "texts" else message
    with pytest.raises(ValueError, match=rf"corpus\.npy.*{message}"):
        minibert.search(corpus, "one text", texts=texts)
    with pytest.raises(ValueError, match=rf"corpus\.npy.*{message}"):
        minibert.mine(corpus, texts=texts)


def test_of_several_files_the_one_that_has_changed_is_named(checkpoint, tmp_path):
    for name, texts in (("a", TEXTS), ("b", TEXTS[:1] * 500), ("c", TEXTS * 90)):
        (tmp_path / f"{name}.txt").write_text("\n".join(texts) + "\n")
    embed_file(tmp_path / "*.txt", tmp_path / "x.npy", checkpoint, pooling="mean", part_rows=600)
    assert len(minibert.search(tmp_path / "x.npy", "one text")[0]) == 10
    (tmp_path / "c.txt").write_text("\n".join([*(TEXTS * 89), *TEXTS[::-1]]) + "\n")
    with pytest.raises(ValueError, match=r"row 1,0[34]\d to 1,04\d of \S*/c\.txt "):
        minibert.search(tmp_path / "x.npy", "one text")
    (tmp_path / "a.txt").rename(tmp_path / "d.txt")
    with pytest.raises(ValueError, match=r"row 0 to 9 of \S*/b\.txt"):
        minibert.search(tmp_path / "x.npy", "one text")


def test_pairs_and_texts_of_an_interrupted_run_are_compared_too(checkpoint, tmp_path):
    firsts, seconds = TEXTS[:4], TEXTS[2:]
    with pytest.raises(TypeError):
        embed_stream([*firsts[:3], None], tmp_path / "x.npy", checkpoint, pairs=seconds, part_rows=2)
    assert embed_stream(firsts, tmp_path / "x.npy", checkpoint, pairs=seconds, part_rows=2).resumed_rows == 2
    pairs = np.array([firsts, seconds]).T
    (tmp_path / "pairs.tsv").write_text("a\tb\n" + "".join("\t".join(pair) + "\n" for pair in pairs))
    found = Origin.read(tmp_path / "x.npy")
    assert found is not None and found.hashes == hashes_of(list(map(tuple, pairs.tolist()))).tolist()
    pairs[2, 1] = "another"
    assert found.changed(list(map(tuple, pairs.tolist()))) == range(2, 3)


# ---------------------------------------------------------------------------------------------------------------
# Refused


def test_vectors_of_another_recipe_weights_or_number_are_refused_by_name(corpus, checkpoint, tmp_path):
    with pytest.raises(ValueError, match="leave the settings"):
        minibert.search(corpus, "one text", pooling="cls")
    other = tmp_path / "other"
    write_words_checkpoint(other)
    minibert.save(minibert.Encoder(minibert.load(checkpoint).config), other)
    with pytest.raises(ValueError, match="weights was"):
        minibert.search(corpus, "one text", model=other)
    with pytest.raises(ValueError, match=r"6 vectors.* 5 texts"):
        minibert.search(corpus, "one text", texts=TEXTS[:5])
    place = Origin.place(corpus)
    place.unlink()
    np.save(corpus, np.ones((6, 3), np.float32))
    with pytest.raises(ValueError, match="vectors of 3 numbers"):
        minibert.search(corpus, "one text", texts=TEXTS, model=checkpoint)
    place.write_text(json.dumps({"minibert": "0", "other": 1}))
    with pytest.raises(ValueError, match=r"corpus\.npy\.json .*damaged.*; embed"):
        minibert.search(corpus, "one text")


@pytest.mark.parametrize("wrong", [0.0, np.nan, np.inf])
def test_a_vector_without_a_direction_is_refused_by_row(wrong, corpus):
    vectors = np.load(corpus)
    vectors[3] = wrong
    np.save(corpus, vectors)
    with pytest.raises(ValueError, match="row 3 has length"):
        minibert.search(corpus, "one text")


@pytest.mark.parametrize("array", [np.ones(4, np.float32), np.ones((4, 4), np.int64), np.ones((0, 4), np.float32)])
def test_a_file_that_is_no_matrix_of_vectors_is_refused(array, corpus):
    np.save(corpus, array)
    with pytest.raises(ValueError, match=r"corpus\.npy holds .*\(.*float32 or float16.*; embed"):
        minibert.search(corpus, "one text")
    corpus.write_bytes(b"")
    with pytest.raises(ValueError, match="is not a numpy file"):
        minibert.search(corpus, "one text")


def header(text: str, version: int = 1) -> bytes:
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2, "little") + text.encode() + bytes(96)


def npz(file: Path) -> None:
    np.savez(file.with_suffix(".npz"), a=np.ones((6, 4), np.float32))
    file.with_suffix(".npz").rename(file)


WHOLE = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}"
ODD: dict[str, Any] = {
    **{f"shape {shape}": header(WHOLE.replace("(2, 3)", shape)) for shape in ("(-2, 3)", f"({10**30}, 3)", "(2,")},
    **{f"type {kind}": header(WHOLE.replace("'<f4'", kind)) for kind in ("'|O'", "5", "'nonsense'")},
    "nested": header("(" * 3000),
    "long": header(" " * 60000),
    "version 9": header(WHOLE, 9),
    "nothing": b"",
    "a pickle": pickle.dumps([1]),
    "zip": npz,
    "pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "device": lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
}


@pytest.mark.parametrize("content", ODD.values(), ids=ODD)
def test_an_odd_numpy_file_is_one_error_that_names_it(content, corpus):
    corpus.write_bytes(content) if isinstance(content, bytes) else content(corpus)
    with pytest.raises(ValueError, match=r"corpus\.npy is (not a numpy file|a (pipe|device))") as caught:
        minibert.search(corpus, "one text")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize("name", ["model", "recipe", "identity", "texts", "hashes"])
@pytest.mark.parametrize(
    "value", [None, 3, 2.5, True, "x", [], [1], [[1]], [[1.5, -1]], ["x"], {}, {"path": 3}, {"x": None}]
)
def test_a_value_of_another_type_beside_the_vectors_is_an_error_that_names_the_file(name, value, corpus):
    place = Origin.place(corpus)
    place.write_text(json.dumps(json.loads(place.read_text()) | {name: value}))
    try:
        minibert.search(corpus, "one text")
    except (ValueError, FileNotFoundError) as error:
        assert re.search(r"corpus\.npy|no folder x", str(error))
    else:
        assert (name, value) in [("hashes", []), ("recipe", {}), ("identity", {}), ("identity", {"x": None})]


@pytest.mark.parametrize("key", ["delimiter", "encoding", "format", "missing", "column", "path", "whole"])
@pytest.mark.parametrize("value", [3, [], {}, "x", None])
def test_a_wrong_way_to_read_the_texts_is_an_error_that_names_a_file(key, value, corpus):
    place = Origin.place(corpus)
    content = json.loads(place.read_text())
    content["texts"][key] = value
    place.write_text(json.dumps(content))
    if (key, value) in [("delimiter", None), ("format", None), ("column", None)]:
        assert minibert.search(corpus, "one text")
        return
    with pytest.raises((ValueError, FileNotFoundError), match="corpus"):
        minibert.search(corpus, "one text")


@pytest.mark.parametrize("name", ["no.npy", "no.txt"])
def test_a_file_that_is_missing_is_said_to_be(name, capsys, tmp_path):
    for command in (["search", str(tmp_path / name), "a"], ["mine", str(tmp_path / name)]):
        assert cli.main(command) == 2
        assert f"{name}: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("above", [np.nan, np.inf, -1.5, 1.01])
def test_a_least_cosine_that_is_none_is_refused(above, corpus):
    with pytest.raises(ValueError, match=f"above is {above}"):
        minibert.mine(corpus, above=above)
    assert cli.main(["mine", str(corpus), "--above", str(above)]) == 2


def test_what_cannot_be_asked_is_refused(corpus, checkpoint):
    for top in (0, -1):
        with pytest.raises(ValueError, match=f"top is {top}"):
            minibert.search(corpus, "one text", top=top)
    with pytest.raises(ValueError, match="no texts"):
        minibert.search([], "one text", model=checkpoint)
    with pytest.raises(ValueError, match="leave them out"):
        minibert.search(TEXTS, "one text", texts=TEXTS, model=checkpoint)


def test_embed_does_not_replace_a_file_of_another_program_beside_its_output(corpus, checkpoint, tmp_path):
    (tmp_path / "new.npy.json").write_text("{}")
    with pytest.raises(ValueError, match=r"new\.npy\.json is there already"):
        embed_file(tmp_path / "corpus.txt", tmp_path / "new.npy", checkpoint)
    assert not (tmp_path / "new.npy").exists()


# ---------------------------------------------------------------------------------------------------------------
# The commands


def test_the_commands_print_a_line_for_each_text_or_pair(corpus, capsys):
    assert cli.main(["search", str(corpus), "one text", "--top", "1", "--json"]) == 0
    line, figures = capsys.readouterr().out.splitlines()
    assert line == "1.0000\t5\tone text"
    assert json.loads(figures)["queries"][0]["hits"][0]["row"] == 5
    assert cli.main(["mine", str(corpus), "--top", "1"]) == 0
    assert capsys.readouterr().out == "1.0000\t0\t4\tthe good film\tthe good film\n"
    assert cli.main(["search", str(corpus), "--top", "1", "one text", "the good film"]) == 0  # after an option
    assert cli.main(["search", str(corpus), "one text", "--top", "0"]) == 2
    assert "--top is 0" in capsys.readouterr().err


QUERY_FILES: dict[str, tuple[list[str], str]] = {
    "queries.txt": ([], "one text\nfine words\n"),
    "queries.tsv": (["--column", "query"], "query\tid\none text\t1\nfine words\t2\n"),
    "queries.json": (["--column", "q"], '[{"q": "one text", "text": ""}, {"q": "fine words", "text": ""}]'),
}


@pytest.mark.parametrize("name", QUERY_FILES)
def test_queries_are_read_from_a_file_of_any_format(name, corpus, capsys, tmp_path):
    options, content = QUERY_FILES[name]
    (tmp_path / name).write_text(content)
    assert cli.main(["search", str(corpus), "--file", str(tmp_path / name), *options, "--top", "1"]) == 0
    lines = ["query\tone text", "1.0000\t5\tone text", "query\tfine words", "1.0000\t3\tfine words"]
    assert capsys.readouterr().out.splitlines() == lines


def test_queries_come_from_one_place(corpus, capsys, monkeypatch):
    for more in (["--file", "queries.txt"], ["--column", "text"]):
        assert cli.main(["search", str(corpus), "one text", *more]) == 2
        assert "queries or --file" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\ufeffone text\r\nfine words".encode())))
    assert cli.main(["search", str(corpus), "--top", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[1::2] == ["1.0000\t5\tone text", "1.0000\t3\tfine words"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    assert cli.main(["search", str(corpus)]) == 2
    assert "no query" in capsys.readouterr().err
