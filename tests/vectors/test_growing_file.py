"""A matrix that grows on the disk notices when its file is no longer its own, and names what is damaged or full."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert.text.tokenizer import TokenStats
from minibert.vectors import growing_file
from minibert.vectors.growing_file import GrowingFile, Journal

needs_removal = pytest.mark.skipif(sys.platform == "win32", reason="Windows removes no open file")
TEXTS = ["a", "b"]
ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


def growing(folder: Path, **settings: Any) -> GrowingFile:
    return GrowingFile(folder / "x.npy", 3, "float32", settings)


def append(matrix: GrowingFile, rows: np.ndarray = ROWS) -> None:
    matrix.append(rows, TEXTS, TokenStats(texts=2, tokens=6))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_matrix_that_is_finished_is_one_file(tmp_path: Path) -> None:
    with growing(tmp_path) as matrix:
        append(matrix)
        matrix.finish()
    assert names(tmp_path) == ["x.npy"]
    assert np.array_equal(np.load(tmp_path / "x.npy"), ROWS)


@needs_removal
@pytest.mark.parametrize("does", [append, GrowingFile.finish], ids=["append", "finish"])
def test_a_process_whose_file_was_removed_leaves_that_of_the_next_one_alone(does: Any, tmp_path: Path) -> None:
    """A runs, its partial file is removed, B begins: A must neither rename nor remove what is B's."""
    a = growing(tmp_path).__enter__()
    append(a)
    (tmp_path / "x.npy.partial").unlink()
    with growing(tmp_path) as b:
        append(b, ROWS + 1)
        journal = (tmp_path / "x.npy.partial.json").read_bytes()
        with pytest.raises(RuntimeError, match=r"x\.npy\.partial was removed or replaced"):
            does(a)
        a.__exit__(None, None, None)
        assert names(tmp_path) == ["x.npy.partial", "x.npy.partial.json"]
        assert (tmp_path / "x.npy.partial.json").read_bytes() == journal
        b.finish()
    assert np.array_equal(np.load(tmp_path / "x.npy"), ROWS + 1)


@needs_removal
def test_a_process_that_did_nothing_does_not_remove_the_file_of_the_next_one(tmp_path: Path) -> None:
    a = growing(tmp_path).__enter__()
    (tmp_path / "x.npy.partial").unlink()
    with growing(tmp_path) as b:
        a.__exit__(None, None, None)
        assert names(tmp_path) == ["x.npy.partial"]
        append(b)
        b.finish()
    assert names(tmp_path) == ["x.npy"]


@needs_removal
def test_a_file_that_was_removed_and_not_replaced_is_told_too(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="was removed or replaced"), growing(tmp_path) as matrix:
        (tmp_path / "x.npy.partial").unlink()
        append(matrix)
    assert names(tmp_path) == []


@needs_removal
def test_the_journal_of_a_process_that_begins_as_another_finishes_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with growing(tmp_path) as a:
        append(a)

        def next_one(folder: Path) -> None:
            b = growing(tmp_path).__enter__()
            append(b, ROWS + 1)
            b.__exit__(None, None, None)

        monkeypatch.setattr(growing_file, "sync_folder", next_one)
        a.finish()
    assert names(tmp_path) == ["x.npy", "x.npy.partial", "x.npy.partial.json"]


WHOLE = {"settings": {}, "texts_sha256": "0" * 64, "done": {name: 1 for name in TokenStats.__dataclass_fields__}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is not valid JSON"),
        ("{" * 100_000, "is not valid JSON"),
        ("[]", "holds a list"),
        (json.dumps(WHOLE | {"settings": 7}), "settings is 7"),
        (json.dumps(WHOLE | {"texts_sha256": None}), "texts_sha256 is null"),
        (json.dumps(WHOLE | {"done": []}), r"done is \[\]"),
        (json.dumps(WHOLE | {"done": {}}), "done.texts is null"),
        (json.dumps(WHOLE | {"done": WHOLE["done"] | {"texts": "1"}}), 'done.texts is "1"'),
        (json.dumps(WHOLE | {"done": WHOLE["done"] | {"texts": -1}}), "done.texts is -1"),
        (json.dumps(WHOLE | {"done": WHOLE["done"] | {"tokens": True}}), "done.tokens is true"),
        (json.dumps(WHOLE | {"done": WHOLE["done"] | {"texts": 10**30}}), "by its journal at least"),
    ],
)
def test_a_damaged_journal_is_refused_by_name_and_entry(content: str, words: str, tmp_path: Path) -> None:
    with growing(tmp_path) as matrix:
        append(matrix)
    (tmp_path / "x.npy.partial.json").write_text(content)
    with pytest.raises(ValueError, match=words) as error, growing(tmp_path):
        pass
    assert str(tmp_path / "x.npy.partial") in str(error.value)
    assert names(tmp_path) == ["x.npy.partial", "x.npy.partial.json"]


def test_a_journal_that_was_written_is_read_back(tmp_path: Path) -> None:
    journal = Journal({"layers": [1, 2]}, "0" * 64, TokenStats(1, 2, 3, 4, 5))
    journal.write(tmp_path / "journal.json")
    assert Journal.read(tmp_path / "journal.json") == journal


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in the file system of Windows")
@pytest.mark.parametrize("name", ["x.npy.partial", "x.npy.partial.json"])
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(name: str, tmp_path: Path) -> None:
    with growing(tmp_path) as matrix:
        append(matrix)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=f"{name} is a pipe, not a file"), growing(tmp_path):
        pass


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with growing(tmp_path) as matrix:
        append(matrix)
        monkeypatch.setattr(growing_file, "write_all", full)
        with pytest.raises(OSError, match=r"No space left on device: .*x\.npy\.partial'"):
            append(matrix)
        monkeypatch.undo()
        monkeypatch.setattr(growing_file.json, "dump", full)
        with pytest.raises(OSError, match=r"No space left on device: .*x\.npy\.partial\.json'"):
            append(matrix)
    monkeypatch.undo()
    with growing(tmp_path) as matrix:
        assert matrix.rows == 2
