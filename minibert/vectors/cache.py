"""Vectors that were computed before, kept by text: in this process, or in a folder for every process.

A row is the bytes of one float32 vector. Its key is the sha256 of everything that determines it: settings and text.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from minibert.text.texts import TextOrPair

Matrix = NDArray[np.float32]
ROWS_FILE = "rows.sqlite"
MEMORY_LIMIT = 256 * 2**20  # bytes of vectors: 87,000 of width 768


class MemoryRows:
    """Rows of this process, shared by its estimators; beyond `limit` bytes the oldest are dropped."""

    def __init__(self, limit: int = MEMORY_LIMIT) -> None:
        self.limit, self.size = limit, 0
        self.rows: dict[bytes, bytes] = {}
        self.lock = threading.Lock()

    def read(self, keys: set[bytes]) -> dict[bytes, bytes]:
        """The rows that are there."""
        with self.lock:
            return {key: self.rows[key] for key in keys & self.rows.keys()}

    def write(self, rows: dict[bytes, bytes]) -> None:
        """Add rows."""
        with self.lock:
            for key, row in rows.items():
                self.size += len(row) - len(self.rows.pop(key, b""))
                self.rows[key] = row
            while self.size > self.limit:
                self.size -= len(self.rows.pop(next(iter(self.rows))))


class DiskRows:
    """Rows in one SQLite file in a folder, which any number of processes may use at once; to empty it, delete it.

    If the file cannot be read or written (no rights, disk full, damaged), one warning says so and nothing is kept.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        if Path(folder).is_file():
            raise ValueError(f"cache {folder} is a file; it must be None or the path of a folder")
        self.path, self.usable = Path(folder) / ROWS_FILE, True

    def read(self, keys: set[bytes]) -> dict[bytes, bytes]:
        """The rows that are there."""
        command = "SELECT key, vector FROM rows WHERE key = ?"
        return dict(self._run(lambda database: [row for key in keys for row in database.execute(command, (key,))]))

    def write(self, rows: dict[bytes, bytes]) -> None:
        """Add rows, all of them or none."""
        if self.usable:
            self._run(lambda database: database.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?)", rows.items()))

    def _run(self, action: Callable[[sqlite3.Connection], Iterable[tuple[bytes, bytes]]]) -> list[tuple[bytes, bytes]]:
        """The result of one transaction, by a connection of its own: none may outlive a fork."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=30)) as database, database:  # seconds to wait for a writer
                database.execute("CREATE TABLE IF NOT EXISTS rows (key BLOB PRIMARY KEY, vector BLOB)")
                return list(action(database))
        except (OSError, sqlite3.Error) as error:
            self.usable = False
            warnings.warn(
                f"the cache {self.path} cannot be used ({error}): vectors are computed and not kept; "
                "make the folder writable, or delete the file if it is damaged",
                stacklevel=2,
            )
            return []


MEMORY = MemoryRows()


def as_bytes(text: TextOrPair) -> bytes:
    """A text in UTF-8; between the texts of a pair a byte that UTF-8 never has, so that no text has the same bytes."""
    return text.encode() if isinstance(text, str) else b"\xff".join(part.encode() for part in text)


def cached(
    texts: Sequence[TextOrPair],
    identity: list[object],
    width: int,
    store: MemoryRows | DiskRows,
    compute: Callable[[list[int]], Iterable[Matrix]],
) -> Matrix:
    """A row for each text or pair, (N, width): from the store or, a few thousand at a time, computed and stored.

    identity: everything that determines a vector except the text. compute: the numbers of new texts to their vectors,
    batch by batch, each (n, width). A text that occurs twice is computed once.
    """
    base = hashlib.sha256(json.dumps(identity).encode()).digest()
    keys = [hashlib.sha256(base + as_bytes(text)).digest() for text in texts]
    known = {key: row for key, row in store.read(set(keys)).items() if len(row) == 4 * width}  # else damaged
    new = {key: number for number, key in enumerate(keys) if key not in known}
    left = iter(new)
    for vectors in compute(list(new.values())) if new else ():
        rows = {next(left): vector.tobytes() for vector in vectors}
        store.write(rows)
        known |= rows
    return np.frombuffer(bytearray().join(known[key] for key in keys), dtype=np.float32).reshape(len(texts), width)
