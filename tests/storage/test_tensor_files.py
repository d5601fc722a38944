"""A safetensors file that is damaged, truncated, hostile or something else is refused with its path and size."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.models import assert_equal
from torch import Tensor

from minibert.storage.tensor_files import (
    DISGUISES,
    INDEX_FILE,
    PICKLES,
    WEIGHTS_FILE,
    list_tensors,
    read_weight,
    sha256_of,
    write_tensors,
)
from minibert.utils.files import sha256

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([0.5, 2.0]).half(), "c": torch.ones(4).bfloat16()}
HEADER: dict[str, Any] = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "F64", "shape": [2], "data_offsets": [24, 40]},
}
DATA = bytes(range(40))
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def packed(header: Any, data: bytes = DATA, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def read_all(folder: Path) -> dict[str, Tensor]:
    return {name: read_weight(stored) for name, stored in list_tensors(folder).items()}


def changed(name: str = "b", **row: Any) -> dict[str, Any]:
    return HEADER | {name: HEADER[name] | row}


def test_tensors_that_are_written_are_listed_and_read_back(tmp_path):
    write_tensors(tmp_path / WEIGHTS_FILE, TENSORS)
    listed = list_tensors(tmp_path)
    shapes = {name: (stored.dtype, stored.shape) for name, stored in listed.items()}
    assert shapes == {"a": ("F32", (2, 3)), "b": ("F16", (2,)), "c": ("BF16", (4,))}
    assert_equal(read_all(tmp_path), TENSORS)
    assert sha256_of(tensor.file for tensor in list_tensors(tmp_path).values()) == sha256(tmp_path / WEIGHTS_FILE)
    with pytest.raises(OSError, match=WEIGHTS_FILE):
        write_tensors(tmp_path / "missing" / WEIGHTS_FILE, TENSORS)
    assert [path.name for path in tmp_path.iterdir()] == [WEIGHTS_FILE]


@pytest.mark.parametrize("length", [60, 0x0280, 0x0480, 0x3C + 256])
def test_a_header_whose_length_looks_like_a_magic_number_is_read(length, tmp_path):
    """640 in little-endian begins as a pickle does, and 60 is the character "<" of a web page."""
    row = {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    raw = json.dumps(row).encode().ljust(length)
    assert any(length.to_bytes(8, "little").startswith(magic) for magic in DISGUISES)
    (tmp_path / WEIGHTS_FILE).write_bytes(packed(raw, bytes(4)))
    assert read_all(tmp_path)["a"].tolist() == [0.0]


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:53aa\nsize 90868376\n"
DAMAGED = {
    "Git LFS pointer": POINTER,
    "a web page": b"<!DOCTYPE html><html><body>404</body></html>",
    "a pickle": pickle.dumps({"weight": [1.0]}, 2),
    "a pickle, which": pickle.dumps({"weight": [1.0]}, 4),
    "PyTorch pickle (zip)": b"PK\x03\x04" + bytes(60),
    **{f"damaged{' ' * n}": content for n, content in enumerate([b"", b"\x00", b"1234567", bytes(8)])},
    **{f"cut short{' ' * n}": packed(HEADER)[: int(len(packed(HEADER)) * n / 100)] for n in (10, 50, 99)},
}
WRONG_LENGTHS = (2**63, 2**64 - 1, 10**9, len(packed(HEADER)) - 7, 0, 1, 30, len(json.dumps(HEADER)) + 1)
LYING: list[Any] = [
    *(changed(data_offsets=offsets) for offsets in ([20, 36], [25, 41], [24, 24], [40, 24], [-16, 0], [24], 24)),
    changed("a", data_offsets=[8, 32]),
    *(changed(shape=shape) for shape in ([-2], [-1, -2], [2**62, 2**62], [2.0], [True, 2], {}, "2", None)),
    changed(shape=[2**62], data_offsets=[24, 24 + 2**65]),
    *(HEADER | {"b": row} for row in ({}, [], None)),
    *(changed(dtype=dtype) for dtype in (["F32"], None, "F128")),
    {"a": HEADER["a"]},
    HEADER | {"__metadata__": {"format": ["no", "text"]}},
    {"__metadata__": {"data_offsets": "x"}, "a": HEADER["a"]},
    {},
    [1, 2],
    *(
        b"null",
        b"not json",
        b"\xff\xfe{}",
        json.dumps(HEADER).encode("utf-16"),
        b"{" + b'"a":{' * 100_000,
        b"[" * 100_000,
    ),
    b'{"a": ' + b"9" * 5000 + b"}",
]


@pytest.mark.parametrize(
    "content",
    [
        *DAMAGED.values(),
        *(packed(HEADER, length=n) for n in WRONG_LENGTHS),
        *map(packed, LYING),
        packed(HEADER, DATA + b"x"),
    ],
)
def test_anything_but_an_intact_file_is_refused_with_its_path_and_size(content, tmp_path):
    path = tmp_path / WEIGHTS_FILE
    path.write_bytes(content)
    with pytest.raises(ValueError) as error:
        list_tensors(tmp_path)
    message = str(error.value)
    assert message.startswith(f"{path} ({len(content):,} bytes) is ") and "\n" not in message
    what = next((what.strip() for what, file in DAMAGED.items() if file == content), "damaged or cut short")
    assert what in message
    assert "download" in message or "convert it to safetensors" in message


def test_only_a_regular_file_is_opened(tmp_path):
    (tmp_path / WEIGHTS_FILE).mkdir()
    with pytest.raises(ValueError, match="folder"):
        list_tensors(tmp_path)


@pytest.mark.parametrize(("dtype", "shape"), [("I64", [2]), ("U8", [16]), ("BOOL", [16]), ("F8_E4M3", [16])])
def test_a_weight_that_is_not_a_float_of_torch_is_refused_by_name(dtype, shape, tmp_path):
    """Its bits would be taken as integers: -1163378688.0 for a weight of -0.00128."""
    (tmp_path / WEIGHTS_FILE).write_bytes(packed(changed(dtype=dtype, shape=shape)))
    stored = list_tensors(tmp_path)  # the file may contain it: positions that are not loaded are integers
    assert read_weight(stored["a"]).dtype == torch.float32
    with pytest.raises(ValueError, match=rf"tensor b .*{dtype}.*F64, F32, F16, BF16"):
        read_weight(stored["b"])


# shards


def write_shards(folder: Path, where: Any = None) -> None:
    save_file({"a": TENSORS["a"], "b": TENSORS["b"]}, folder / FIRST)
    save_file({"c": TENSORS["c"]}, folder / SECOND)
    content = {"weight_map": where or {"a": FIRST, "b": FIRST, "c": SECOND}}
    (folder / INDEX_FILE).write_text(json.dumps(content))


def test_shards_hold_the_same_tensors_as_one_file_which_comes_first(tmp_path):
    write_shards(tmp_path)
    assert_equal(read_all(tmp_path), TENSORS)
    before = sha256_of(tensor.file for tensor in list_tensors(tmp_path).values())
    save_file({"c": TENSORS["c"] + 1}, tmp_path / SECOND)
    assert sha256_of(tensor.file for tensor in list_tensors(tmp_path).values()) != before
    save_file({"only": torch.ones(1)}, tmp_path / WEIGHTS_FILE)
    assert list_tensors(tmp_path).keys() == {"only"}


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (
            {"a": FIRST, "b": FIRST, "c": "gone.safetensors"},
            r"'gone\.safetensors'.*00001",
        ),
        ({"a": FIRST, "b": FIRST, "c": SECOND, "gone": FIRST}, rf"{FIRST}.* gone"),
        ({"a": FIRST, "b": SECOND, "c": SECOND}, r"model-0000[12].* b\b"),
        ({"a": SECOND, "b": FIRST, "c": SECOND}, r"model-0000[12].* a\b"),
        ({"a": FIRST, "b": FIRST, "c": FIRST}, rf"{FIRST}.* c\b"),
        ({"a": "../outside.safetensors"}, r"'../outside.safetensors'"),
        ({"a": "/etc/passwd"}, "'/etc/passwd'"),
        *((value, "checkpoint/model") for value in (5, ["a"], {"a": 5}, {"a": "x", "b": 5}, {"a": []})),
    ],
)
def test_shards_that_do_not_match_their_index_are_refused(where, message, tmp_path):
    (tmp_path / "checkpoint").mkdir()
    save_file({"a": TENSORS["a"]}, tmp_path / "outside.safetensors")
    write_shards(tmp_path / "checkpoint", where)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        list_tensors(tmp_path / "checkpoint")


@pytest.mark.parametrize("name", PICKLES)
def test_a_folder_with_only_a_pickle_says_how_to_convert_it(name, tmp_path):
    (tmp_path / "config.json").touch()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors.*config\.json"):
        list_tensors(tmp_path)
    (tmp_path / name).write_bytes(b"\x80\x02.")
    with pytest.raises(FileNotFoundError, match=r"minibert convert .* --out FOLDER2") as error:
        list_tensors(tmp_path)
    assert name in str(error.value)
