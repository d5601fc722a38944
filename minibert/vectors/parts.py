"""Work in parts that survives a kill: each part is a file that appears by a rename, in a folder of one run at a time.

    vectors.npy.parts/manifest.json   the settings: everything that determines a row except its text
    vectors.npy.parts/part-0.npy      the first rows
    vectors.npy.parts/part-0.json     the hash of their texts and their token stats, written last: the part is done

The texts alone decide where a part ends, so a run that was interrupted and one that was not give the same bits.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from minibert.files import atomic_write, lock_file, read_json, write_text_atomically
from minibert.text.texts import TextOrPair
from minibert.text.tokenized import TokenStats
from minibert.vectors.cache import Matrix

MANIFEST, LOCK = "manifest.json", ".lock"
START_AGAIN = "or start again (--restart, restart=True)"


@contextmanager
def work_folder(folder: Path, settings: dict[str, Any], restart: bool) -> Iterator[None]:
    """A folder of unfinished work, locked inside `with`: new, empty, or started earlier with the same settings.

    Raises ValueError for a folder of other files, and, unless restart, for other settings, naming the first that
    differs; RuntimeError while another process works in the folder.
    """
    manifest, lock = folder / MANIFEST, folder / LOCK
    started = manifest.exists()
    names = [path.name for path in folder.iterdir()] if folder.is_dir() and not started else []
    if others := [name for name in names if not name.startswith(".")]:
        raise ValueError(f"{folder} holds other files, such as {min(others)}; choose a folder that is new or empty")
    folder.mkdir(parents=True, exist_ok=True)
    with lock_file(lock):
        try:
            before = read_json(manifest).get("settings", {}) if started and not restart else settings
            if differing := [name for name in settings if before.get(name) != settings[name]]:
                name = differing[0]
                raise ValueError(
                    f"{folder} was started with {name} {before.get(name)!r}, and now it is {settings[name]!r}; "
                    f"use the earlier settings, {START_AGAIN}"
                )
            if restart:
                remove_parts(folder)
            write_text_atomically(manifest, json.dumps({"settings": settings}, indent=1) + "\n")
            yield
        finally:
            lock.unlink(missing_ok=True)


@contextmanager
def part_folder(out: Path, settings: dict[str, Any], restart: bool) -> Iterator[Parts]:
    """The parts of a matrix whose file will be `out`, in a folder beside it, which is removed when all is joined.

    Raises what work_folder raises; an interrupt inside `with` becomes one that says how many rows are kept.
    """
    folder = out.with_name(out.name + ".parts")
    with work_folder(folder, settings, restart):
        parts = Parts(folder)
        try:
            yield parts
        except KeyboardInterrupt:
            kept = f"{parts.rows:,} rows are kept; the same command continues" if parts.rows else ""
            raise KeyboardInterrupt(kept) from None
        finally:
            if parts.joined or not any(folder.glob("part-*.json")):
                remove_parts(folder)  # before the manifest, so that a kill leaves a folder that is known
                shutil.rmtree(folder)


def remove_parts(folder: Path) -> None:
    """Remove all parts."""
    for path in folder.glob("part-*"):
        path.unlink()


class Parts:
    """The parts of a matrix (N, D): for each chunk of texts `holds` or `add`, in their order, then `join`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.joined = folder, False
        self.stats: list[TokenStats] = []  # of the parts that are done

    @property
    def rows(self) -> int:
        """How many rows are done."""
        return sum(stats.texts for stats in self.stats)

    def path(self, number: int, suffix: str) -> Path:
        """A file of a part."""
        return self.folder / f"part-{number}{suffix}"

    def holds(self, texts: Sequence[TextOrPair]) -> bool:
        """Whether the next part, that of these texts, was done by an earlier run.

        Raises ValueError if it was done with other texts.
        """
        done, rows = (self.path(len(self.stats), suffix) for suffix in (".json", ".npy"))
        if not done.exists() or not rows.exists():
            return False
        part = read_json(done)
        if part.get("sha256") != texts_sha256(texts):
            raise self.other_texts()
        self.stats.append(TokenStats(**part["stats"]))
        return True

    def other_texts(self) -> ValueError:
        """The error for work that was started with other texts."""
        return ValueError(
            f"{self.folder} was started with other texts: those from row {self.rows:,} on have changed; "
            f"use the earlier texts, {START_AGAIN}"
        )

    def add(self, vectors: Matrix, texts: Sequence[TextOrPair], stats: TokenStats, dtype: str) -> None:
        """Write the next part, (n, D). Raises ValueError for a number beyond this dtype."""
        with np.errstate(over="ignore"):
            rows = vectors.astype(dtype)
        for row, column in np.argwhere(np.isinf(rows)):
            raise ValueError(
                f"row {self.rows + row} has the number {vectors[row, column]:.6g}, and {dtype} ends at "
                f"{np.finfo(dtype).max:.6g}; use dtype float32"
            )
        number = len(self.stats)
        with atomic_write(self.path(number, ".npy")) as temporary, temporary.open("wb") as file:
            np.save(file, rows)
        content = {"sha256": texts_sha256(texts), "stats": asdict(stats)}
        write_text_atomically(self.path(number, ".json"), json.dumps(content))
        self.stats.append(stats)

    def join(self, out: Path, width: int, dtype: str) -> None:
        """Write all parts as one numpy file (N, D), part by part, so that memory stays flat.

        Raises ValueError if an earlier run had more texts.
        """
        if self.path(len(self.stats), ".json").exists():
            raise self.other_texts()
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False}
        with atomic_write(out) as temporary, temporary.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header | {"shape": (self.rows, width)})
            for number in range(len(self.stats)):
                file.write(np.load(self.path(number, ".npy")).tobytes())
        self.joined = True


def texts_sha256(texts: Sequence[TextOrPair]) -> str:
    """The hash of texts or pairs; no others have the same."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()
