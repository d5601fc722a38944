"""Opening safetensors files without trusting them.

A safetensors file is 8 bytes (the header's length, little-endian), the header (JSON: name -> dtype, shape, begin
and end of its bytes) and the bytes of the tensors one after the other. Nothing in it can run code, but a damaged
or hostile header can lie; every number in it is checked against the file before a tensor is read.
Format: safetensors 0.8, "Format" section of its documentation.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.bin", "model.pt", "model.pth")
MAX_HEADER = 100_000_000  # bytes, the limit of the format itself
ITEM_SIZE = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}

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
            "once where you trust it: AutoModel.from_pretrained(folder).save_pretrained(folder) in transformers"
        )
    raise FileNotFoundError(f"{folder} has no {WEIGHTS_FILE}; it holds: {listing(folder)}")


def list_shards(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of all shards that the index names, each exactly where the index says."""
    index_path = folder / INDEX_FILE
    try:
        where: dict[str, str] = dict(json.loads(index_path.read_text(encoding="utf-8"))["weight_map"])
        shards = sorted(set(where.values()))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{index_path} is not an index of shards: {error!r}") from None
    tensors: dict[str, StoredTensor] = {}
    for shard in shards:
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise ValueError(f"{index_path} names the shard {shard!r}, which is outside the folder")
        if not (folder / shard).exists():
            raise FileNotFoundError(
                f"{index_path} names the shard {shard}, which is missing; the folder holds: {listing(folder)}"
            )
        for name, stored in read_header(folder / shard).items():
            if name in tensors:
                raise ValueError(f"tensor {name} is in two shards, {tensors[name].file.name} and {shard}")
            tensors[name] = stored
    for name, shard in where.items():
        if name not in tensors or tensors[name].file.name != shard:
            raise ValueError(f"{index_path} says that {shard} holds {name}, and it does not")
    return tensors


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The checked header of one safetensors file. Raises ValueError, in plain words, for anything else."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a safetensors file")
    size = path.stat().st_size
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
        raw = file.read(length)
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique_names)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} has a damaged header: {error}") from None
    if not isinstance(header, dict):
        raise ValueError(f"{path} has a damaged header: not an object of names")
    header.pop("__metadata__", None)
    check_layout(path, header, size - 8 - length)
    return {name: StoredTensor(path, name, row["dtype"], tuple(row["shape"])) for name, row in header.items()}


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON lets a name stand twice and keeps the last; a header that says two things of one tensor is refused."""
    row = dict(pairs)
    if len(row) < len(pairs):
        raise json.JSONDecodeError("a name stands twice in the header", "", 0)
    return row


def check_layout(path: Path, header: dict[str, Any], data_bytes: int) -> None:
    """Every tensor's bytes fit its dtype and shape and follow the one before: no gap, no overlap, no byte left."""
    spans = []
    for name, row in header.items():
        try:
            dtype, shape, (begin, end) = row["dtype"], row["shape"], row["data_offsets"]
            whole = type(shape) is list and all(type(n) is int and n >= 0 for n in (*shape, begin, end))
            item_size = ITEM_SIZE.get(dtype)
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{path} has a damaged header: tensor {name} lacks dtype, shape or offsets") from None
        if item_size is None:
            raise ValueError(f"{path}: tensor {name} has dtype {dtype!r}; supported: {', '.join(ITEM_SIZE)}")
        if not whole or end - begin != math.prod(shape) * item_size:
            raise ValueError(
                f"{path} has a damaged header: tensor {name} of shape {shape} and dtype {dtype} "
                f"cannot stand at bytes {begin} to {end}"
            )
        spans.append((begin, end, name))
    expected = 0
    for begin, end, name in sorted(spans):
        if begin != expected:
            raise ValueError(f"{path} has a damaged header: tensor {name} begins at byte {begin}, not {expected}")
        expected = end
    if expected != data_bytes:
        problem = "is cut short" if expected > data_bytes else "has bytes that belong to no tensor"
        raise ValueError(
            f"{path} {problem}: its tensors need {expected} bytes and it holds {data_bytes}; download it again"
        )


def read_tensors(stored: list[StoredTensor]) -> Iterator[tuple[StoredTensor, Tensor]]:
    """Read tensors in the order given. ValueError for what the library refuses.

    The file is opened anew for each: what has been read of it counts as memory of this process until it is closed,
    so that a checkpoint would be there twice.
    """
    for tensor in stored:
        try:
            with safe_open(tensor.file, framework="pt") as file:
                values = file.get_tensor(tensor.name)
        except SafetensorError as error:
            raise ValueError(f"{tensor.file} is damaged: {error}; download it again") from None
        yield tensor, values


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
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
