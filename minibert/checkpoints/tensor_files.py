"""Opening safetensors files without trusting them.

A safetensors file is 8 bytes (the header's length, little-endian), the header (JSON: name -> dtype, shape, begin
and end of its bytes) and the bytes of the tensors one after the other. Nothing in it can run code, but a damaged or
hostile header can lie. The library checks every number in it against the file (no gap, no overlap, no byte left); what
it lets through, or says only in the words of its format, is checked here.
Format: safetensors 0.8, "Format" section of its documentation.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from minibert.files import atomic_write, parse_json, read_json, regular

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.bin", "model.pt", "model.pth")
MAX_HEADER = 10_000_000  # bytes, of some 80,000 tensors; the format itself allows ten times that
MAX_AXES = 8  # of a tensor; a matrix has two
FLOATING = ("F64", "F32", "F16", "BF16")  # what a weight can be
OTHER = ("I64", "I32", "I16", "I8", "U8", "BOOL")  # what may stand in the file and is no weight, such as positions
UNCOVERED = ("not fully covered", "IncompleteBuffer")  # how the library, new and old, says that the lengths differ

# What a file that is no safetensors file begins with, and what it is.
DISGUISES = (
    (b"version https://git-lfs", "a Git LFS pointer, not the weights; run `git lfs pull` or download the file itself"),
    (b"PK\x03\x04", "a PyTorch pickle (zip), which can run code when opened; convert it to safetensors"),
    (b"\x80\x02", "a pickle, which can run code when opened; convert it to safetensors"),
    (b"\x80\x04", "a pickle, which can run code when opened; convert it to safetensors"),
    (b"<", "a web page, not weights; download the file itself"),
)


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a checkpoint, not read yet."""

    file: Path
    name: str
    dtype: str  # as safetensors writes it: F32, F16, BF16, ...
    shape: tuple[int, ...]


def list_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the checkpoint in `folder`, by its name in the file; single file or shards with an index.

    Raises FileNotFoundError where there are no safetensors (a pickle is refused), ValueError for a file that is
    damaged or is something else.
    """
    if (folder / WEIGHTS_FILE).exists():
        return read_header(folder / WEIGHTS_FILE)
    if (folder / INDEX_FILE).exists():
        return list_shards(folder)
    pickles = [name for name in PICKLES if (folder / name).exists()]
    if pickles:
        raise FileNotFoundError(
            f"{folder} has only {pickles[0]}, a pickle, which can run code when opened and is not read; convert it "
            f"once, which runs none: minibert convert {shlex.quote(str(folder))} --out FOLDER2"
        )
    raise FileNotFoundError(f"{folder} has no {WEIGHTS_FILE}; it holds: {listing(folder)}")


def list_shards(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of all shards that the index names, each exactly where the index says."""
    index_path = folder / INDEX_FILE
    where = read_index(index_path)
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted(set(where.values())):
        for name, stored in read_header(folder / shard).items():
            if name in tensors:
                raise ValueError(f"tensor {name} is in two shards, {tensors[name].file.name} and {shard}")
            tensors[name] = stored
    for name, shard in where.items():
        if name not in tensors or tensors[name].file.name != shard:
            raise ValueError(f"{index_path} says that {shard} holds {name}, and it does not")
    return tensors


def read_index(path: Path) -> dict[str, str]:
    """Tensor -> shard, a file that stands beside the index. Raises ValueError and FileNotFoundError in plain words."""
    where = read_json(path).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(shard, str) for shard in where.values()):
        raise ValueError(f"{path} is not an index of shards: its weight_map must give each tensor a file")
    held = {file.name for file in path.parent.iterdir()}
    for shard in sorted(set(where.values())):
        if shard in ("", "..") or Path(shard).name != shard:
            raise ValueError(f"{path} names the shard {shard!r}, which is outside the folder")
        if shard not in held:
            raise FileNotFoundError(
                f"{path} names the shard {shard}, which is missing; the folder holds: {listing(path.parent)}"
            )
    return where


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The checked header of one safetensors file. Raises ValueError, in plain words, for anything else."""
    raw = header_bytes(path)
    try:
        header = parse_json(raw.decode(), pairs=unique_names)
        with safe_open(path, framework="pt") as file:
            rows = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  # the file is no dict
    except ValueError as error:
        raise ValueError(f"{path} has a damaged header: {error}") from None
    except SafetensorError as error:
        raise ValueError(f"{path} {damage(header, path.stat().st_size - 8 - len(raw), str(error))}") from None
    tensors = {name: StoredTensor(path, name, row.get_dtype(), tuple(row.get_shape())) for name, row in rows.items()}
    for name, tensor in tensors.items():
        if tensor.dtype not in FLOATING + OTHER:
            supported = ", ".join(FLOATING + OTHER)
            raise ValueError(f"{path}: tensor {name} has dtype {tensor.dtype!r}; supported: {supported}")
        if len(tensor.shape) > MAX_AXES:
            raise ValueError(f"{path}: tensor {name} has {len(tensor.shape):,} axes; supported: at most {MAX_AXES}")
    return tensors


def header_bytes(path: Path) -> bytes:
    """The header as it stands in the file. Raises ValueError where it is not even long enough, or something else."""
    size = regular(path, "safetensors file").stat().st_size
    with path.open("rb") as file:
        start = file.read(40)
        for magic, what in DISGUISES:
            if start.startswith(magic) and start[8:9] != b"{":  # a header's length can look like a magic number
                raise ValueError(f"{path} ({size} bytes) is {what}")
        length = int.from_bytes(start[:8], "little")
        if len(start) < 8 or length > size - 8 or length > MAX_HEADER:
            raise ValueError(
                f"{path} is cut short or is no safetensors file: it has {size} bytes and its header "
                f"would need {length + 8}; download it again"
            )
        file.seek(8)
        return file.read(length)


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON lets a name stand twice and keeps the last; a header that says two things of one tensor is refused."""
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("a name stands twice in the header")
    return row


def damage(header: Any, held: int, problem: str) -> str:
    """What the library finds wrong, in plain words where a download was broken off: then the header itself is right."""
    if not any(words in problem for words in UNCOVERED):
        return f"has a damaged header: {problem.removeprefix('Error while deserializing header: ')}"
    rows = [row for name, row in header.items() if name != "__metadata__" and "data_offsets" in row]
    needed = max((row["data_offsets"][1] for row in rows), default=0)
    what = "is cut short" if needed > held else "has bytes that belong to no tensor"
    return f"{what}: its tensors need {needed} bytes and it holds {held}; download it again"


def read_tensors(stored: list[StoredTensor]) -> Iterator[tuple[StoredTensor, Tensor]]:
    """Read weights in the order given. ValueError for what is damaged, or is not floating-point.

    The file is opened anew for each: what has been read of it counts as memory of this process until it is closed,
    so that a checkpoint would be there twice.
    """
    for tensor in stored:
        if tensor.dtype not in FLOATING:
            raise ValueError(
                f"{tensor.file}: tensor {tensor.name} has dtype {tensor.dtype}; a weight is {', '.join(FLOATING)}"
            )
    for tensor in stored:
        try:
            with safe_open(tensor.file, framework="pt") as file:
                values = file.get_tensor(tensor.name)
        except SafetensorError as error:
            raise ValueError(f"{tensor.file} is damaged: {error}; download it again") from None
        yield tensor, values


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file, which appears whole or not at all. Raises OSError, naming it, where that fails."""
    with atomic_write(path) as temporary:
        try:
            save_file(tensors, temporary, metadata={"format": "pt"})
        except SafetensorError as error:  # a full disk among them
            raise OSError(f"{path} could not be written: {error}") from None


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with regular(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weights_sha256(folder: Path) -> str:
    """The identity of a checkpoint's weights: the SHA-256 of its file, or of its shards' SHA-256s in order."""
    files = sorted({tensor.file for tensor in list_tensors(folder).values()})
    if len(files) == 1:
        return sha256(files[0])
    return hashlib.sha256("".join(sha256(file) for file in files).encode()).hexdigest()


def listing(folder: Path, most: int = 12) -> str:
    """The names in a folder, for an error message."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "") if names else "nothing"
