"""A safetensors file that is damaged, cut short, hostile or something else is refused in plain words."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from minibert.checkpoints.tensor_files import (
    DISGUISES,
    INDEX_FILE,
    MAX_HEADER,
    PICKLES,
    WEIGHTS_FILE,
    list_tensors,
    read_header,
    read_tensors,
    sha256,
    weights_sha256,
    write_tensors,
)

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([0.5, 2.0]).half(), "c": torch.ones(4).bfloat16()}
HEADER = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "F64", "shape": [2], "data_offsets": [24, 40]},
}
DATA = bytes(range(40))


def packed(header: Any, data: bytes = DATA, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def read_all(folder: Path) -> dict[str, Tensor]:
    return {stored.name: tensor for stored, tensor in read_tensors(list(list_tensors(folder).values()))}


def refused(folder: Path, content: bytes, *words: str) -> None:
    """The file is refused with its path and these words, before any tensor of it is read."""
    path = folder / WEIGHTS_FILE
    path.write_bytes(content)
    with pytest.raises(ValueError) as error:
        list_tensors(folder)
    missing = [word for word in (str(path), *words) if word not in str(error.value)]
    assert not missing, f"{error.value} does not say {missing}"


def test_a_file_is_listed_and_read_as_the_library_reads_it(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / WEIGHTS_FILE, metadata={"format": "pt"})
    listed = list_tensors(tmp_path)
    assert {name: (stored.dtype, stored.shape) for name, stored in listed.items()} == {
        "a": ("F32", (2, 3)),
        "b": ("F16", (2,)),
        "c": ("BF16", (4,)),
    }
    read = read_all(tmp_path)
    assert all(torch.equal(read[name], tensor) for name, tensor in TENSORS.items())


def test_a_file_without_metadata_is_read(tmp_path: Path) -> None:
    (tmp_path / WEIGHTS_FILE).write_bytes(packed(HEADER))
    assert read_all(tmp_path).keys() == {"a", "b"}


@pytest.mark.parametrize("length", [60, 0x0280, 0x0480, 0x3C + 256])
def test_a_header_whose_length_looks_like_a_magic_number_is_read(length: int, tmp_path: Path) -> None:
    """640 in little-endian begins as a pickle does, and 60 is the character "<" of a web page."""
    row = {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    raw = json.dumps(row).encode().ljust(length)
    assert any(length.to_bytes(8, "little").startswith(magic) for magic, _ in DISGUISES)
    (tmp_path / WEIGHTS_FILE).write_bytes(packed(raw, bytes(4)))
    assert read_all(tmp_path)["a"].tolist() == [0.0]


# something else under the name


def test_a_git_lfs_pointer_is_recognised(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:53aa\nsize 90868376\n"
    refused(tmp_path, pointer, "Git LFS pointer", "git lfs pull", f"{len(pointer)} bytes")


def test_a_web_page_is_recognised(tmp_path: Path) -> None:
    refused(tmp_path, b"<!DOCTYPE html><html><body>404</body></html>", "web page", "44 bytes")


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_under_the_name_is_refused_unopened(protocol: int, tmp_path: Path) -> None:
    refused(tmp_path, pickle.dumps({"weight": [1.0]}, protocol), "pickle", "run code", "safetensors")


def test_a_zip_of_torch_under_the_name_is_refused_unopened(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02.")
    refused(tmp_path, (tmp_path / "archive").read_bytes(), "PyTorch pickle (zip)", "run code")


def test_a_folder_under_the_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / WEIGHTS_FILE).mkdir()
    with pytest.raises(ValueError, match="is a folder, not a safetensors file"):
        list_tensors(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x00", b"1234567", bytes(8)])
def test_an_empty_or_tiny_file_is_refused(content: bytes, tmp_path: Path) -> None:
    refused(tmp_path, content)


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_a_file_that_was_cut_short_is_refused_with_the_bytes_it_has(kept: float, tmp_path: Path) -> None:
    whole = packed(HEADER)
    cut = whole[: int(len(whole) * kept)]
    refused(tmp_path, cut, "cut short", "download it again")


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 10**9, len(packed(HEADER)) - 7])
def test_a_header_length_beyond_the_file_is_refused_without_reading_it(length: int, tmp_path: Path) -> None:
    refused(tmp_path, packed(HEADER, length=length), f"it has {len(packed(HEADER))} bytes", str(length + 8))


def test_a_header_longer_than_the_format_allows_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / WEIGHTS_FILE
    path.write_bytes((MAX_HEADER + 1).to_bytes(8, "little") + b"{")
    os.truncate(path, MAX_HEADER + 100)  # a file with a hole: as long as its header says, but not on the disk
    with pytest.raises(ValueError, match="is no safetensors file"):
        list_tensors(tmp_path)


@pytest.mark.parametrize("length", [0, 1, 30, len(json.dumps(HEADER)) + 1])
def test_a_header_length_that_is_a_little_wrong_is_refused(length: int, tmp_path: Path) -> None:
    refused(tmp_path, packed(HEADER, length=length), "damaged header")


# headers that lie


def changed(name: str = "b", **row: Any) -> dict[str, Any]:
    return HEADER | {name: HEADER[name] | row}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        pytest.param(changed(data_offsets=[20, 36]), ["damaged header", "offset for tensor `b`"], id="overlap"),
        pytest.param(changed(data_offsets=[25, 41]), ["damaged header", "offset for tensor `b`"], id="gap"),
        pytest.param(
            changed("a", data_offsets=[8, 32]), ["damaged header", "offset for tensor `a`"], id="gap at the start"
        ),
        pytest.param(changed(data_offsets=[24, 24]), ["damaged header"], id="too few bytes"),
        pytest.param(changed(data_offsets=[40, 24]), ["damaged header", "offset for tensor `b`"], id="backwards"),
        pytest.param(changed(data_offsets=[-16, 0]), ["damaged header"], id="negative offset"),
        pytest.param(changed(shape=[-2]), ["damaged header"], id="negative size"),
        pytest.param(changed(shape=[-1, -2]), ["damaged header"], id="two negative sizes"),
        pytest.param(changed(shape=[2**62, 2**62]), ["damaged header"], id="huge shape"),
        pytest.param(
            changed(shape=[2**62], data_offsets=[24, 24 + 2**65]), ["damaged header"], id="huge but consistent"
        ),
        pytest.param(changed(shape=[2.0]), ["damaged header"], id="a shape that is no whole number"),
        pytest.param(changed(shape=[True, 2]), ["damaged header"], id="a shape of truth values"),
        pytest.param(changed(shape={}), ["damaged header"], id="a shape that is an object"),
        pytest.param(changed(shape="2"), ["damaged header"], id="a shape that is text"),
        pytest.param(changed(shape=None), ["damaged header"], id="no shape"),
        pytest.param(changed(data_offsets=[24]), ["damaged header"], id="one offset"),
        pytest.param(changed(data_offsets=24), ["damaged header"], id="offsets a number"),
        pytest.param(HEADER | {"b": {}}, ["damaged header"], id="an empty row"),
        pytest.param(HEADER | {"b": []}, ["damaged header"], id="a row that is a list"),
        pytest.param(HEADER | {"b": None}, ["damaged header"], id="a row that is null"),
        pytest.param(
            changed(dtype="F8_E4M3", shape=[16]),
            ["tensor b has dtype 'F8_E4M3'", "F32", "BF16"],
            id="another dtype",
        ),
        pytest.param(changed(dtype=["F32"]), ["damaged header"], id="a dtype that is a list"),
        pytest.param(changed(dtype=None), ["damaged header"], id="no dtype"),
        pytest.param({"a": HEADER["a"]}, ["bytes that belong to no tensor", "24", "40"], id="bytes left over"),
        pytest.param(changed(shape=[1] * 30 + [2]), ["tensor b has 31 axes"], id="many axes"),
        pytest.param(
            {"__metadata__": {"data_offsets": "x"}, "a": HEADER["a"]},
            ["bytes that belong to no tensor", "24", "40"],
            id="metadata with the names of a tensor's row",
        ),
        pytest.param({}, ["bytes that belong to no tensor"], id="no tensors"),
        pytest.param([1, 2], ["damaged header"], id="a list"),
        pytest.param(b"null", ["damaged header"], id="null"),
        pytest.param(b"not json", ["damaged header"], id="no JSON"),
        pytest.param(b"\xff\xfe{}", ["damaged header"], id="no UTF-8"),
        pytest.param(json.dumps(HEADER).encode("utf-16"), ["damaged header"], id="UTF-16"),
        pytest.param(b"{" + b'"a":{' * 100_000, ["damaged header"], id="deep nesting"),
        pytest.param(b"[" * 100_000, ["damaged header"], id="deep nesting of lists"),
        pytest.param(b'{"a": ' + b"9" * 5000 + b"}", ["damaged header"], id="a number of 5000 digits"),
        pytest.param(b'{"a": {}, "a": {}}', ["a name stands twice"], id="a tensor twice"),
        pytest.param(
            b'{"a": {"dtype": "F32", "dtype": "F64", "shape": [10], "data_offsets": [0, 40]}}',
            ["a name stands twice"],
            id="a dtype twice",
        ),
    ],
)
def test_a_header_that_lies_is_refused(header: Any, words: list[str], tmp_path: Path) -> None:
    refused(tmp_path, packed(header), *words)


def test_trailing_bytes_are_refused(tmp_path: Path) -> None:
    refused(tmp_path, packed(HEADER, DATA + b"x"), "bytes that belong to no tensor", "40", "41")


def test_metadata_of_another_type_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, packed(HEADER | {"__metadata__": {"format": ["no", "text"]}}), "damaged header")


def test_a_file_that_changed_since_its_header_was_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / WEIGHTS_FILE).write_bytes(packed(HEADER))
    stored = list(list_tensors(tmp_path).values())
    (tmp_path / WEIGHTS_FILE).write_bytes(packed(HEADER)[:-1])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        list(read_tensors(stored))


@pytest.mark.parametrize("dtype", ["I64", "U8", "BOOL"])
def test_a_weight_that_is_no_floating_point_number_is_refused_by_name(dtype: str, tmp_path: Path) -> None:
    """Its bits would be taken as whole numbers: -1163378688.0 for a weight of -0.00128."""
    shape = {"I64": [2], "U8": [16], "BOOL": [16]}[dtype]
    (tmp_path / WEIGHTS_FILE).write_bytes(packed(HEADER | {"b": HEADER["b"] | {"dtype": dtype, "shape": shape}}))
    stored = list_tensors(tmp_path)  # to stand in the file is allowed: positions that are not loaded do
    assert [tensor.name for tensor, _ in read_tensors([stored["a"]])] == ["a"]
    with pytest.raises(ValueError, match=f"tensor b has dtype {dtype}; a weight is F64, F32, F16, BF16"):
        list(read_tensors(list(stored.values())))


def test_thousands_of_huge_numbers_are_refused_at_once(tmp_path: Path) -> None:
    shape = b"[" + b",".join([b"9" * 4000] * 2000) + b"]"
    refused(tmp_path, packed(b'{"a": {"dtype": "F32", "shape": ' + shape + b"}}"), "damaged header", "4,000 digits")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in the file system of Windows")
@pytest.mark.parametrize("name", [WEIGHTS_FILE, INDEX_FILE])
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=f"{name} is a pipe, not a"):
        list_tensors(tmp_path)
    with pytest.raises(ValueError, match=f"{name} is a pipe, not a"):
        sha256(tmp_path / name)


def test_a_device_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / WEIGHTS_FILE).symlink_to(os.devnull)
    with pytest.raises(ValueError, match="is a device, not a safetensors file"):
        list_tensors(tmp_path)


def test_tensors_that_are_written_are_read_back(tmp_path: Path) -> None:
    write_tensors(tmp_path / WEIGHTS_FILE, TENSORS)
    assert all(torch.equal(tensor, TENSORS[name]) for name, tensor in read_all(tmp_path).items())


def test_a_file_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=WEIGHTS_FILE):
        write_tensors(tmp_path / "missing" / WEIGHTS_FILE, TENSORS)
    assert not list(tmp_path.iterdir())


PIECES = st.sampled_from(
    [b"0", b"-1", b"9" * 30, b"null", b"[]", b"{}", b'"', b"\\", b"\x00", b"\xff", b"\\ud800", b"1e999", b"NaN", b"F64"]
)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_file_with_a_damaged_header_is_refused_or_read_correctly_but_never_crashes(data: st.DataObject) -> None:
    damaged = bytearray(packed(HEADER))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(damaged) - len(DATA) - 1))
        kind = data.draw(st.sampled_from(["change", "insert", "remove", "replace"]))
        if kind == "change":
            damaged[place] ^= data.draw(st.integers(1, 255))
        elif kind == "insert":
            damaged[place:place] = data.draw(PIECES)
        elif kind == "remove":
            del damaged[place : place + data.draw(st.integers(1, 8))]
        else:
            piece = data.draw(PIECES)
            damaged[place : place + len(piece)] = piece
    if data.draw(st.booleans()) and len(damaged) > 8 + len(DATA):  # a length that fits, so that the rest is looked at
        damaged[:8] = (len(damaged) - 8 - len(DATA)).to_bytes(8, "little")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / WEIGHTS_FILE
        path.write_bytes(damaged)
        try:
            ours = read_all(Path(folder))
        except ValueError as error:
            assert str(path) in str(error)
        else:
            theirs = load_file(path)
            assert ours.keys() == theirs.keys()
            assert all(ours[name].numpy().tobytes() == theirs[name].numpy().tobytes() for name in ours)


# shards


def write_shards(folder: Path, where: dict[str, str] | None = None) -> None:
    save_file({"a": TENSORS["a"], "b": TENSORS["b"]}, folder / "model-00001-of-00002.safetensors")
    save_file({"c": TENSORS["c"]}, folder / "model-00002-of-00002.safetensors")
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    write_index(folder, {"weight_map": where or {"a": first, "b": first, "c": second}})


def write_index(folder: Path, content: Any) -> None:
    (folder / INDEX_FILE).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def test_shards_hold_the_same_tensors_as_one_file(tmp_path: Path) -> None:
    write_shards(tmp_path)
    read = read_all(tmp_path)
    assert read.keys() == TENSORS.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in TENSORS.items())


def test_one_file_is_read_before_an_index(tmp_path: Path) -> None:
    write_shards(tmp_path)
    save_file({"only": torch.ones(1)}, tmp_path / WEIGHTS_FILE)
    assert list_tensors(tmp_path).keys() == {"only"}


def test_a_missing_shard_is_named_with_what_the_folder_holds(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model-00002-of-00002\.safetensors, which is missing.*model-00001"):
        list_tensors(tmp_path)


def test_a_tensor_that_is_listed_and_absent_is_named(tmp_path: Path) -> None:
    first = "model-00001-of-00002.safetensors"
    write_shards(tmp_path, {"a": first, "b": first, "gone": first})
    with pytest.raises(ValueError, match=f"says that {first} holds gone, and it does not"):
        list_tensors(tmp_path)


def test_a_tensor_in_another_shard_than_the_index_says_is_named(tmp_path: Path) -> None:
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    write_shards(tmp_path, {"a": first, "b": second, "c": second})
    with pytest.raises(ValueError, match=f"says that {second} holds b, and it does not"):
        list_tensors(tmp_path)


def test_a_tensor_in_two_shards_is_named_with_both(tmp_path: Path) -> None:
    write_shards(tmp_path)
    save_file({"c": TENSORS["c"], "a": TENSORS["a"]}, tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(ValueError, match=r"tensor a is in two shards, model-00001.*and model-00002"):
        list_tensors(tmp_path)


@pytest.mark.parametrize("shard", ["../outside.safetensors", "/etc/passwd", "deeper/inside.safetensors"])
def test_a_shard_outside_the_folder_is_refused(shard: str, tmp_path: Path) -> None:
    save_file({"a": TENSORS["a"]}, tmp_path / "outside.safetensors")
    folder = tmp_path / "checkpoint"
    (folder / "deeper").mkdir(parents=True)
    save_file({"a": TENSORS["a"]}, folder / "deeper" / "inside.safetensors")
    write_index(folder, {"weight_map": {"a": shard}})
    with pytest.raises(ValueError, match="outside the folder"):
        list_tensors(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"weight_map": 5}',
        b'{"weight_map": ["a"]}',
        b'{"weight_map": {"a": 5}}',
        b'{"weight_map": {"a": "x", "b": 5}}',
        b'{"weight_map": {"a": []}}',
        b'{"weight_map": {"a": ".."}}',
        b'{"weight_map": {"a": ""}}',
    ],
)
def test_an_index_that_is_none_is_refused(content: bytes, tmp_path: Path) -> None:
    write_index(tmp_path, content)
    with pytest.raises(ValueError, match=str(tmp_path)):
        list_tensors(tmp_path)


# nothing to read


@pytest.mark.parametrize("name", PICKLES)
def test_a_folder_with_only_a_pickle_says_how_to_convert_it(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x80\x02.")
    with pytest.raises(FileNotFoundError, match=r"can run code.*minibert convert .* --out FOLDER2") as error:
        list_tensors(tmp_path)
    assert name in str(error.value)


def test_a_folder_without_weights_lists_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    (tmp_path / "vocab.txt").touch()
    with pytest.raises(FileNotFoundError, match=r"has no model\.safetensors; it holds: config\.json, vocab\.txt"):
        list_tensors(tmp_path)


# identity


def test_the_identity_of_one_file_is_its_sha256(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / WEIGHTS_FILE)
    assert weights_sha256(tmp_path) == sha256(tmp_path / WEIGHTS_FILE)


def test_the_identity_of_shards_changes_with_any_of_them(tmp_path: Path) -> None:
    write_shards(tmp_path)
    before = weights_sha256(tmp_path)
    save_file({"c": TENSORS["c"] + 1}, tmp_path / "model-00002-of-00002.safetensors")
    assert weights_sha256(tmp_path) != before


def test_a_header_is_read_without_the_tensors(tmp_path: Path) -> None:
    path = tmp_path / WEIGHTS_FILE
    path.write_bytes(packed(HEADER))
    assert read_header(path)["b"].shape == (2,)
