"""Safetensors files: listed, read and written.

A safetensors file is 8 bytes (the header's length, little-endian), the header (JSON: name -> dtype, shape, begin
and end of its bytes) and the bytes of the tensors one after the other. Nothing in it can run code, and the library
checks every number of the header against the file (no gap, no overlap, no byte left). This module adds the path and the
size of the file to its errors, and recognises files of another kind. Format: safetensors 0.8, "Format" in its
documentation.
"""

import hashlib
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from minibert.utils.files import atomic_write, listing, read_json, regular, sha256
from minibert.utils.printing import brief, cut

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.bin", "model.pt", "model.pth")
FLOATING = ("F64", "F32", "F16", "BF16")  # the dtypes of a weight
# What files that are not safetensors begin with, and what they are.
DISGUISES = {
    b"version https://git-lfs": "a Git LFS pointer, not the weights; run `git lfs pull` or download the file itself",
    b"PK\x03\x04": "a PyTorch pickle (zip), which can run code when opened; convert it to safetensors",
    b"\x80\x02": "a pickle, which can run code when opened; convert it to safetensors",
    b"\x80\x04": "a pickle, which can run code when opened; convert it to safetensors",
    b"<": "a web page, not weights; download the file itself",
}


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a checkpoint, not read yet."""

    file: Path
    name: str
    dtype: str  # as safetensors writes it: F32, F16, BF16, ...
    shape: tuple[int, ...]


def list_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return every tensor of the checkpoint in `folder`, by its name in the file; one file, or shards with an index.

    Raises FileNotFoundError if there are no safetensors (a pickle is refused), ValueError for a file that is damaged
    or not a safetensors file, and for shards that do not match their index.
    """
    if (folder / WEIGHTS_FILE).exists():
        return read_header(folder / WEIGHTS_FILE)
    if not (folder / INDEX_FILE).exists():
        pickle = next((name for name in PICKLES if (folder / name).exists()), None)
        raise FileNotFoundError(
            f"{folder} has only {pickle}, a pickle, which can run code when opened and is not read; convert it once, "
            f"which runs none: minibert convert {shlex.quote(str(folder))} --out FOLDER2"
            if pickle
            else f"{folder} has no {WEIGHTS_FILE}; it holds: {listing(folder)}"
        )
    where = read_index(folder / INDEX_FILE)
    stored = [tensor for shard in sorted(set(where.values())) for tensor in read_header(folder / shard).values()]
    if different := {(tensor.name, tensor.file.name) for tensor in stored} ^ set(where.items()):
        name, shard = min(different)
        raise ValueError(f"{folder / INDEX_FILE} and its shards disagree whether {cut(shard)} holds {cut(name)}")
    return {tensor.name: tensor for tensor in stored}


def read_index(path: Path) -> dict[str, str]:
    """Return the shard that holds each tensor. Raises ValueError, or FileNotFoundError for a missing shard."""
    where = read_json(path).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(shard, str) for shard in where.values()):
        raise ValueError(f"{path} is not an index of shards: its weight_map must map each tensor to a file")
    if missing := set(where.values()) - {file.name for file in path.parent.iterdir()}:
        raise FileNotFoundError(
            f"{path} names {brief(min(missing))}, which is missing here; found: {listing(path.parent)}"
        )
    return where


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of one safetensors file. Raises ValueError, with path and size, for any other file."""
    size = regular(path, "safetensors file").stat().st_size
    with path.open("rb") as file:
        start = file.read(40)
    for magic, what in DISGUISES.items():
        if start.startswith(magic) and start[8:9] != b"{":  # a header's length can look like a magic number
            raise ValueError(f"{path} ({size:,} bytes) is {what}")
    try:
        with safe_open(path, framework="pt") as opened:
            rows = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118  # not a dict
    except SafetensorError as error:
        raise ValueError(
            f"{path} ({size:,} bytes) is damaged or cut short: {cut(str(error), 400)}; download it again"
        ) from None
    return {name: StoredTensor(path, name, row.get_dtype(), tuple(row.get_shape())) for name, row in rows.items()}


def read_weight(stored: StoredTensor) -> Tensor:
    """Return the values of a weight. Raises ValueError if they are not floats.

    The file is opened again for each tensor: its mapped pages count as memory of the process until it is closed, so a
    checkpoint would be in memory twice.
    """
    if stored.dtype not in FLOATING:
        raise ValueError(
            f"{stored.file}: tensor {cut(stored.name)} has dtype {stored.dtype}; a weight is {', '.join(FLOATING)}"
        )
    with safe_open(stored.file, framework="pt") as file:
        return file.get_tensor(stored.name)  # type: ignore[no-any-return]  # a Tensor


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file atomically. Raises OSError, naming it, if that fails."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_write(path) as temporary:
        try:
            save_file(on_cpu, temporary, metadata={"format": "pt"} | (metadata or {}))
        except SafetensorError as error:  # a full disk among them
            raise OSError(f"{path} could not be written: {error}") from None


def sha256_of(files: Iterable[Path]) -> str:
    """Return the SHA-256 of a file; of several, the SHA-256 of theirs in the order of their names."""
    hashes = [sha256(file) for file in sorted(set(files))]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()
