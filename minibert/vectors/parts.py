"""Unfinished work: the parts of a large matrix on disk, which an interrupted run resumes from.

    vectors.npy.parts/_manifest.json   the settings: everything that determines a vector except its text
    vectors.npy.parts/part-0.npz       the first vectors, the hashes of their texts, their token stats, and a checksum

A part appears by a rename, so it is done if its file exists; its checksum tells whether it is whole, and of these
settings. Any other is named and computed again. Only what a manifest of minibert belongs to is used or removed.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minibert.tables.texts import TextOrPair
from minibert.text.tokenized import TokenStats
from minibert.utils.files import atomic_write, final_name, lock_file, read_json, regular, write_text_atomically
from minibert.utils.printing import brief
from minibert.utils.wording import advice
from minibert.vectors.embedder import Chunk
from minibert.vectors.readable import Matrix

MANIFEST = "_manifest.json"  # readers of a folder of .parquet files, such as pandas, skip names that begin with _
# The numbers of a .npy file begin at byte 4096, with a page of memory; numpy itself pads its header to 64 bytes.
NPY_HEADER = 4096
NPY_START = b"\x93NUMPY\x01\x00" + (NPY_HEADER - 10).to_bytes(2, "little")
HASHES = 64  # of the texts of a part: they tell which texts have changed
PART = re.compile(r"part-\d+\.npz")


@contextmanager
def work_folder(folder: Path, settings: dict[str, Any], restart: bool, outputs: Iterable[Path]) -> Iterator[None]:
    """Provide a folder of unfinished work, locked within the block: new, empty, or begun with the same settings.

    outputs: the files that the work writes there, which restart removes.
    Raises ValueError for any other file, except hidden ones, for a manifest that is damaged or not by minibert, and,
    unless restart, for other settings, naming the first that differs; RuntimeError while another process works in the
    folder.
    """
    manifest = folder / MANIFEST
    lock = folder / ".lock"
    folder.mkdir(parents=True, exist_ok=True)
    with lock_file(lock):
        try:
            before = read_manifest(manifest) if manifest.exists() else None
            own = {manifest, *outputs} if before is not None else set()
            files = {path for path in folder.rglob("*") if not path.is_dir() and not path.name.startswith(".")}
            if others := sorted(files - own):
                raise ValueError(f"{others[0]} is not an output of this work; move it away, or choose another folder")
            if restart or before is None:
                for path in own - {manifest}:
                    path.unlink(missing_ok=True)
                before = settings
            for name in settings:
                if before.get(name) != settings[name]:
                    raise ValueError(
                        f"{folder} was started with {name} {brief(before.get(name))}, and now it is "
                        f"{settings[name]!r}; use the earlier settings" + advice(", or start again: {}", restart=True)
                    )
            write_text_atomically(manifest, json.dumps({"settings": settings}, indent=1) + "\n")
            yield
        finally:
            lock.unlink(missing_ok=True)
            with suppress(OSError):
                folder.rmdir()  # only an empty folder can be removed


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the settings of unfinished work. Raises ValueError for a file that minibert did not write like this."""
    try:
        settings = read_json(path).get("settings")
    except ValueError:
        settings = None
    if not isinstance(settings, dict) or not settings.keys() >= {"weights", "pooling"}:
        raise ValueError(
            f"{path} is damaged, or not by minibert, so nothing in {path.parent} is used or removed; move the folder "
            "away, or choose another output"
        )
    return settings


@contextmanager
def part_folder(parts: Parts, restart: bool) -> Iterator[None]:
    """Provide the folder of these parts, and remove it if it ends up without any.

    Raises what work_folder raises; an interrupt within the block becomes one that states how many rows are kept.
    """
    with work_folder(parts.folder, parts.settings, restart, parts.files()):
        try:
            yield
        except KeyboardInterrupt:
            kept = f"{parts.rows:,} rows are kept; the same command continues" if parts.rows else ""
            raise KeyboardInterrupt(kept) from None
        finally:
            for path in parts.folder.iterdir() if not parts.files() else ():
                name = final_name(path)  # also of what a kill left
                if name == MANIFEST or PART.fullmatch(name):
                    path.unlink()


class DamagedPartError(RuntimeError):
    """A part cannot be read, or is not what was written."""


@dataclass
class Parts:
    """The parts of a matrix (N, D) in a folder: for each chunk of texts `holds` or `add`, then `join`."""

    folder: Path
    width: int
    dtype: str
    settings: dict[str, Any]  # everything that determines a vector except its text
    stats: dict[int, TokenStats] = field(default_factory=dict)  # of the parts that are done, by number
    hashes: dict[int, NDArray[np.uint32]] = field(default_factory=dict)  # hashes_of their texts

    @property
    def rows(self) -> int:
        """How many rows are done."""
        return sum(stats.texts for stats in self.stats.values())

    def path(self, number: int) -> Path:
        """Return the file of a part."""
        return self.folder / f"part-{number}.npz"

    def files(self) -> list[Path]:
        """Return the files of all parts."""
        return [path for path in self.folder.glob("part-*") if PART.fullmatch(path.name)]

    def read(self, number: int) -> tuple[Matrix, NDArray[np.uint32], TokenStats]:
        """Return the vectors of a part, (n, D), the hashes of their texts, and their stats. Raises DamagedPartError."""
        path = self.path(number)
        try:
            with regular(path).open("rb") as file, np.load(file) as part:
                vectors, hashes, stats = part["vectors"], part["hashes"], TokenStats(*part["stats"].tolist())
                if part["checksum"] != self.checksum(number, vectors, hashes, stats):
                    raise ValueError("its checksum differs")
                return vectors, hashes, stats
        except Exception as error:  # zipfile and numpy have many classes of errors for a damaged file
            raise DamagedPartError(f"{path} is damaged ({error})") from None

    def checksum(self, number: int, vectors: Matrix, hashes: NDArray[np.uint32], stats: TokenStats) -> str:
        """Return the hash of a part and its settings."""
        about = [self.settings, number, vectors.shape, str(vectors.dtype), hashes.tolist(), astuple(stats)]
        return hashlib.sha256(json.dumps(about).encode() + vectors.tobytes()).hexdigest()

    def holds(self, numbered: tuple[int, Sequence[TextOrPair]]) -> bool:
        """Return whether this part was done by an earlier run; it warns of a damaged one.

        numbered: the number of the part, and its texts. Raises ValueError if it was done with other texts.
        """
        number, texts = numbered
        if not self.path(number).exists():
            return False
        try:
            _, hashes, stats = self.read(number)
            if not np.array_equal(hashes, hashes_of(texts)):
                raise self.changed()
        except DamagedPartError as error:
            warnings.warn(f"{error}; it is computed again", stacklevel=2)
            return False
        self.stats[number], self.hashes[number] = stats, hashes
        return True

    def changed(self) -> ValueError:
        """Return the error for a part of other texts."""
        return ValueError(
            f"{self.folder} was started with other texts: those from row {self.rows:,} on have changed; "
            "use the earlier texts" + advice(", or start again: {}", restart=True)
        )

    def add(self, number: int, chunk: Chunk) -> None:
        """Write a part, (n, D). Raises ValueError for a number beyond its dtype."""
        with np.errstate(over="ignore"):
            rows = chunk.vectors.astype(self.dtype)
        for row, column in np.argwhere(np.isinf(rows)):
            raise ValueError(
                f"row {chunk.rows[row]} has the number {chunk.vectors[row, column]:.6g}, and {self.dtype} ends at "
                f"{np.finfo(self.dtype).max:.6g}; use dtype float32"
            )
        stats, hashes = chunk.tokens.stats, hashes_of(chunk.texts)
        checksum = self.checksum(number, rows, hashes, stats)
        with atomic_write(self.path(number)) as temporary, temporary.open("wb") as file:
            np.savez(file, vectors=rows, hashes=hashes, stats=astuple(stats), checksum=checksum)
        self.stats[number], self.hashes[number] = stats, hashes

    def join(self, out: Path) -> None:
        """Write all parts as one numpy file (N, D), part by part, so that memory stays flat, and remove them.

        Raises ValueError if an earlier run had more texts, DamagedPartError for a part that was damaged meanwhile.
        """
        if len(self.files()) > len(self.stats):  # a part after the last one was of other texts
            raise self.changed()
        header = {"descr": np.dtype(self.dtype).str, "fortran_order": False, "shape": (self.rows, self.width)}
        with atomic_write(out) as temporary, temporary.open("wb") as file:
            file.write((NPY_START + str(header).encode()).ljust(NPY_HEADER - 1) + b"\n")
            for number in sorted(self.stats):
                try:
                    vectors, *_ = self.read(number)
                except DamagedPartError as error:
                    raise DamagedPartError(f"{error}; the same command computes it again") from None
                file.write(vectors.tobytes())
        for path in self.files():
            path.unlink()


def hashes_of(texts: Sequence[TextOrPair]) -> NDArray[np.uint32]:
    """Return how many of the texts or pairs have one hash, and this hash, (up to HASHES, 2)."""
    size = -(-len(texts) // HASHES) or 1
    blocks = [texts[first : first + size] for first in range(0, len(texts), size)]
    return np.array([(len(block), hash_of(block)) for block in blocks], np.uint32).reshape(-1, 2)


def hash_of(texts: Sequence[TextOrPair]) -> int:
    """Return the hash of texts or pairs."""
    return zlib.crc32(json.dumps(texts).encode())
