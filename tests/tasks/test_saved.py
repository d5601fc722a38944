"""The folder of a classifier holds the old one or the new one, never a half, and what is damaged is refused."""

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from minibert import files
from minibert.checkpoints.tensor_files import sha256
from minibert.tasks import saved
from minibert.tasks.saved import ARRAYS, DETAILS, DETAILS_FILE, TENSORS_FILE, digest

DETAILS_OF_ONE: dict[str, Any] = {
    "model": "a-model",
    "weights_sha256": "ab",
    "tokenizer_fingerprint": "cd",
    "pooling": "cls",
    "labels": ["neg", "pos"],
    "C": 1.0,
    "rows": 24,
    "folds": 5,
    "scores": [{"C": 1.0, "mean": 0.9, "std": 0.1}],
}


def arrays(seed: int = 0, classes: int = 2, width: int = 4) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    rows = 1 if classes == 2 else classes
    return {
        "mean": draw.normal(size=width),
        "scale": draw.uniform(1, 2, size=width),
        "coef": draw.normal(size=(rows, width)).astype(np.float32),
        "intercept": draw.normal(size=rows),
    }


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in expected)


def write_raw(folder: Path, change: dict[str, Any], numbers: dict[str, Any] | None = None) -> None:
    """A classifier with other entries (None takes one out) or arrays, as whoever means harm would write it."""
    numbers = arrays() if numbers is None else numbers
    hashed = digest(numbers) if numbers.keys() == set(ARRAYS) else ""
    details = {"format": 1, "tensors_sha256": hashed} | DETAILS_OF_ONE | change
    text = json.dumps({name: value for name, value in details.items() if value is not None})
    (folder / TENSORS_FILE).write_bytes(save(numbers, {DETAILS: text}))


def test_what_was_written_is_read_back_from_one_file(tmp_path: Path) -> None:
    saved.write(tmp_path / "a" / "b", DETAILS_OF_ONE, arrays())
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == [TENSORS_FILE]
    details, numbers = saved.read(tmp_path / "a" / "b")
    assert details == DETAILS_OF_ONE | {"format": 1, "tensors_sha256": digest(arrays())}
    assert same(numbers, arrays())


def test_a_folder_of_an_earlier_minibert_is_read_and_replaced(tmp_path: Path) -> None:
    (tmp_path / TENSORS_FILE).write_bytes(save(arrays()))
    details = {"format": 1} | DETAILS_OF_ONE | {"tensors_sha256": sha256(tmp_path / TENSORS_FILE)}
    (tmp_path / DETAILS_FILE).write_text(json.dumps(details))
    read, numbers = saved.read(tmp_path)
    assert read == details
    assert same(numbers, arrays())
    (tmp_path / DETAILS_FILE).write_text(json.dumps(details | {"tensors_sha256": "0"}))
    with pytest.raises(ValueError, match="are not those that were written"):
        saved.read(tmp_path)
    saved.write(tmp_path, DETAILS_OF_ONE, arrays(1))
    assert [path.name for path in tmp_path.iterdir()] == [TENSORS_FILE]
    assert same(saved.read(tmp_path)[1], arrays(1))


@pytest.mark.parametrize("step", range(12))
def test_a_retrain_killed_at_any_step_leaves_the_old_or_the_new(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever touches the folder fails at its n-th call, as if the process had ended there."""
    (tmp_path / TENSORS_FILE).write_bytes(save(arrays()))
    old = {"format": 1} | DETAILS_OF_ONE | {"tensors_sha256": sha256(tmp_path / TENSORS_FILE)}
    (tmp_path / DETAILS_FILE).write_text(json.dumps(old))
    calls = iter(range(100))

    def dying(function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            if next(calls) >= step:
                raise KeyboardInterrupt
            return function(*args, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("touch", "write_bytes", "unlink", "chmod"):
            patch.setattr(Path, name, dying(getattr(Path, name)))
        patch.setattr(files.os, "replace", dying(os.replace))
        with suppress(KeyboardInterrupt):
            saved.write(tmp_path, DETAILS_OF_ONE | {"rows": 25}, arrays(1))
    details, numbers = saved.read(tmp_path)
    assert same(numbers, arrays(0 if details["rows"] == 24 else 1))


def test_a_full_disk_is_named_and_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match=r"No space left on device: .*classifier\.safetensors'"):
        saved.write(tmp_path / "new" / "folder", DETAILS_OF_ONE, arrays())
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_classifier_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved.write(tmp_path, DETAILS_OF_ONE, arrays())

    def full(self: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(Path, "write_bytes", full)
        saved.write(tmp_path, DETAILS_OF_ONE, arrays(1))
    assert same(saved.read(tmp_path)[1], arrays())


def test_the_file_has_the_rights_of_any_other_file(tmp_path: Path) -> None:
    saved.write(tmp_path, DETAILS_OF_ONE, arrays())
    (tmp_path / "plain").touch()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"labels": None},
        {"labels": ["pos"]},
        {"labels": ["pos", "pos"]},
        {"labels": ["neg", 7]},
        {"labels": "neg, pos"},
        {"labels": {"neg": 0}},
        {"C": "1"},
        {"C": 0.0},
        {"C": float("nan")},
        {"C": True},
        {"rows": -1},
        {"rows": 2.5},
        {"folds": [5]},
        {"scores": 3},
        {"scores": [{"C": 1.0}]},
        {"scores": [[1.0, 0.9, 0.1]]},
        {"scores": [{"C": 1.0, "mean": "x", "std": 0.1}]},
        {"model": {}},
        {"weights_sha256": 7},
        {"tokenizer_fingerprint": []},
        {"pooling": None},
    ],
    ids=str,
)
def test_an_entry_that_is_missing_or_of_another_kind_is_refused_by_name(change: dict[str, Any], tmp_path: Path) -> None:
    write_raw(tmp_path, change)
    with pytest.raises(ValueError, match=next(iter(change))) as error:
        saved.read(tmp_path, ("pooling",))
    assert str(tmp_path) in str(error.value)


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    write_raw(tmp_path, {"format": 2})
    with pytest.raises(ValueError, match="has format 2, this minibert reads 1; update minibert"):
        saved.read(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"coef": np.full((1, 4), np.nan)}, "coef holds NaN or infinity"),
        ({"intercept": np.array([np.inf])}, "intercept holds NaN or infinity"),
        ({"coef": np.ones((1, 4), dtype=np.int32)}, "coef is I32, not F32 or F64"),
        ({"mean": np.ones(4, dtype=bool)}, "mean is BOOL, not F32 or F64"),
        ({"scale": np.zeros(4)}, "scale holds a number that is not above 0"),
        ({"scale": np.ones(3)}, "need scale"),
        ({"mean": np.array(1.0)}, "need mean"),
        ({"coef": np.ones((2, 4))}, "need coef"),
        ({"coef": np.ones(4)}, "need coef"),
        ({"intercept": np.ones(2)}, "need intercept"),
        ({"intercept": None}, "intercept is missing"),
    ],
)
def test_arrays_that_are_no_classifier_are_refused_by_name(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    numbers = {name: array for name, array in (arrays() | change).items() if array is not None}
    write_raw(tmp_path, {}, numbers)
    with pytest.raises(ValueError, match=words) as error:
        saved.read(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_numbers_that_were_changed_are_refused(tmp_path: Path) -> None:
    saved.write(tmp_path, DETAILS_OF_ONE, arrays())
    content = bytearray((tmp_path / TENSORS_FILE).read_bytes())
    content[-1] ^= 1
    (tmp_path / TENSORS_FILE).write_bytes(content)
    assert load_file(tmp_path / TENSORS_FILE)
    with pytest.raises(ValueError, match=r"the numbers in classifier\.safetensors are not those that were written"):
        saved.read(tmp_path)


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (b"", ValueError, "is damaged"),
        (b"{}", ValueError, "is damaged"),
        (save(arrays()), FileNotFoundError, "holds no classifier"),
        (save(arrays(), {DETAILS: "{"}), ValueError, "is damaged"),
        (save(arrays(), {DETAILS: "[" * 100_000}), ValueError, "is damaged"),
        (save(arrays(), {DETAILS: "[]"}), ValueError, "not what minibert writes"),
        (save(arrays(), {DETAILS: "{}"}), ValueError, "not what minibert writes"),
        (save(arrays(), {DETAILS: '{"format": 1}'}), ValueError, "it lacks model, weights_sha256"),
    ],
)
def test_a_file_that_holds_no_classifier_is_refused(
    content: bytes, kind: type[Exception], words: str, tmp_path: Path
) -> None:
    (tmp_path / TENSORS_FILE).write_bytes(content)
    with pytest.raises(kind, match=words):
        saved.read(tmp_path)


def test_a_folder_without_one_says_how_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no classifier.*`minibert classify train` makes one"):
        saved.read(tmp_path)
    (tmp_path / DETAILS_FILE).write_text("{}")
    with pytest.raises(ValueError, match=r"classifier\.safetensors is missing"):
        saved.read(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in the file system of Windows")
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / DETAILS_FILE)
    (tmp_path / TENSORS_FILE).write_bytes(save(arrays()))
    with pytest.raises(ValueError, match=r"classifier\.json is a pipe, not a file"):
        saved.read(tmp_path)
    (tmp_path / TENSORS_FILE).unlink()
    os.mkfifo(tmp_path / TENSORS_FILE)
    with pytest.raises(ValueError, match=r"classifier\.safetensors is a pipe, not a file"):
        saved.read(tmp_path)
