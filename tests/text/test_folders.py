"""A folder is read as one text per .txt file, with the name of its subfolder as its label."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_files

import minibert
from minibert.tables.reading import TextFile
from minibert.tasks.classification import Classification
from minibert.vectors.stream import embed_file


def write(folder: Path, **texts: str) -> Path:
    """Files of these texts; __ in a name is the end of a folder, and a name without an ending gets .txt."""
    for name, text in texts.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(path.suffix or ".txt").write_text(text, encoding="utf-8")
    return folder


def read(folder: Path, **settings: Any) -> list[Any]:
    with TextFile(folder, **settings) as file:
        return list(file)


@pytest.fixture
def movies(tmp_path: Path) -> Path:
    """The training folder of the Large Movie Review Dataset, in small."""
    reviews = {"neg__0_2": "dull", "neg__10_1": "a mess", "pos__0_9": "fine", "pos__1_8": "good\n"}
    folder = write(tmp_path / "aclImdb" / "train.v1", **reviews, unsup__0_0="perhaps", urls_pos="http://x")
    (folder / "labeledBow.feat").write_text("9 0:9")
    return folder


def test_the_large_movie_review_dataset_is_read_as_scikit_learn_reads_it(movies):
    with pytest.warns(UserWarning) as said:
        data = Classification(missing="drop").read(movies)
    theirs = load_files(movies, categories=["neg", "pos"], shuffle=False, encoding="utf-8")
    names = [theirs.target_names[number] for number in theirs.target]
    assert sorted(zip(data.texts, data.known_labels, strict=True)) == sorted(
        (text.removesuffix("\n"), name) for text, name in zip(theirs.data, names, strict=True)
    )
    assert data.names == ["neg", "pos"]
    assert "2 of 7 files" in str(said[0].message) and "labeledBow.feat" in str(said[0].message)
    assert "1 of 5 rows" in str(said[1].message)


@pytest.mark.filterwarnings("ignore:.* files are left out")
def test_unlabelled_texts_are_no_third_class(movies):
    with pytest.raises(ValueError, match=r"unsup.0_0\.txt .*None.*missing='drop'"):
        Classification().read(movies)


@pytest.mark.filterwarnings("ignore:.* files are left out")
def test_the_folder_of_a_data_set_is_refused_where_the_folder_of_its_labels_is_meant(movies):
    with pytest.raises(ValueError, match=r"aclImdb .*train.v1.neg.0_2\.txt"):
        Classification().read(movies.parent)
    with pytest.raises(ValueError, match=r"pos .*0_9\.txt"):
        Classification().read(movies / "pos")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp1252"])
def test_each_file_is_one_text_in_the_order_of_the_names(tmp_path, encoding):
    texts = {"b.txt": "two\nlines\n", "a.TXT": "café", "c.txt": "", "sub.d/a.txt": "below"}
    for name, text in [*texts.items()][:3]:
        (tmp_path / name).write_text(text, encoding=encoding)
    assert read(tmp_path, encoding=encoding) == ["café", "two\nlines", ""]
    assert read(Path(os.path.relpath(tmp_path)), encoding=encoding) == ["café", "two\nlines", ""]


def test_files_that_are_no_texts_are_left_out_and_counted(tmp_path):
    write(tmp_path, a="a", b__c__d="d")
    for name in (".hidden.txt", "x.csv", "README"):
        (tmp_path / "b" / name).write_text("x")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.txt").write_text("x")
    (tmp_path / "b" / "up").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "b" / "pipe.txt")
    with pytest.warns(UserWarning, match=r"\b4 of 5 files"):
        assert read(tmp_path) == ["d"]


@pytest.mark.parametrize("settings", [{"format": "csv"}, {"format": "txt"}, {"delimiter": ";"}])
def test_a_folder_has_no_format_and_no_delimiter(tmp_path, settings):
    with pytest.raises(ValueError, match="format"):
        TextFile(write(tmp_path, a="a"), **settings)


def test_a_file_in_another_encoding_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"a\.txt, at byte 3\b.*UTF-8 .*encoding='cp1252'"):
        read(tmp_path)


def test_the_texts_of_a_folder_are_embedded_in_order(tmp_path, checkpoint):
    folder, texts = write(tmp_path / "texts", b="a dull film", a="the film"), ["the film", "a dull film"]
    embed_file(folder, tmp_path / "x.npy", checkpoint)
    assert np.array_equal(np.load(tmp_path / "x.npy"), minibert.embed(texts, checkpoint))


@pytest.mark.filterwarnings("ignore:.* left out", "ignore:.* folds", "ignore:all .* texts were predicted")
def test_a_folder_trains_a_classifier_and_predict_keeps_the_name_of_each_file(movies, tmp_path, checkpoint, run):
    model, out = tmp_path / "model", tmp_path / "out.jsonl"
    printed = run("classify", "train", movies, "--missing", "drop", "--folds", 0, "--model", checkpoint, "--out", model)
    assert "4 rows (2 neg, 2 pos)" in printed
    run("predict", model, "--file", movies, "--out", out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["file"] for row in rows] == [
        f"{n}.txt" for n in ("neg/0_2", "neg/10_1", "pos/0_9", "pos/1_8", "unsup/0_0")
    ]
    assert [row["label_input"] for row in rows] == ["neg", "neg", "pos", "pos", None]
    assert "accuracy" in run("evaluate", model, movies)
