"""Vectors that were computed before, kept by text: in this process, or in a folder for every process.

A row is the bytes of one float32 vector; its key is the sha256 of all that determines it: the settings, and the text.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from minibert.text.texts import TextOrPair

Matrix = NDArray[np.float32]

# What is called with rows as they are computed: the numbers of all that have arrived so far, in the order in which they
# did, and the matrix (N, width), in which no other row has its vector yet.
Arrived = Callable[[NDArray[np.int64], Matrix], None]

SECONDS = 10.0  # between two times that rows are saved while more are computed
ROWS_FILE = "rows.sqlite"
MEMORY_LIMIT = 256 * 2**20  # bytes of vectors: 87,000 of width 768
DISK_LIMIT = 4 * 2**30  # bytes: 1.2 million vectors of width 768
CHECK_BYTES = 8


class MemoryRows:
    """Rows of this process, shared by its estimators; beyond `limit` bytes the least recently used are dropped."""

    def __init__(self, limit: int = MEMORY_LIMIT) -> None:
        self.limit, self.size = limit, 0
        self.rows: OrderedDict[bytes, bytes] = OrderedDict()
        self.lock = threading.Lock()

    def read(self, keys: set[bytes]) -> dict[bytes, bytes]:
        """The rows that are there."""
        with self.lock:
            found = {key: self.rows[key] for key in keys if key in self.rows}
            for key in found:
                self.rows.move_to_end(key)
        return found

    def write(self, rows: dict[bytes, bytes]) -> None:
        """Add rows."""
        with self.lock:
            for key, row in rows.items():
                self.size += len(row) - len(self.rows.pop(key, b""))
                self.rows[key] = row
            while self.size > self.limit:
                self.size -= len(self.rows.popitem(last=False)[1])


class DiskRows:
    """Rows in one SQLite file in a folder, which any number of processes may use at once.

    limit: the most bytes that the rows take, 4 GiB if nothing is said; beyond it the oldest go. To empty it, delete
    the folder. A row that was damaged counts as not there. Where the file cannot be read or written (no rights, disk
    full, no SQLite file), there is one warning, and nothing is kept.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int = DISK_LIMIT) -> None:
        if not isinstance(folder, str | os.PathLike):
            raise TypeError(f"cache is of type {type(folder).__name__}; it must be None or the path of a folder")
        if Path(folder).is_file():
            raise ValueError(f"cache {folder} is a file; it must be None or the path of a folder")
        self.path = Path(folder) / ROWS_FILE
        self.limit = limit
        self.usable = True

    def read(self, keys: set[bytes]) -> dict[bytes, bytes]:
        """The rows that are there and whole."""
        found = {}
        with self._forgiving(), self._open() as database:
            for key in keys:
                stored = database.execute("SELECT vector FROM rows WHERE key = ?", (key,)).fetchone()
                if stored and stored[0] == sealed(key, stored[0][:-CHECK_BYTES]):
                    found[key] = stored[0][:-CHECK_BYTES]
        return found

    def write(self, rows: dict[bytes, bytes]) -> None:
        """Add rows, all of them or none."""
        if self.usable:
            with self._forgiving(), self._open() as database, database:  # the last: one transaction
                pairs = [(key, sealed(key, row)) for key, row in rows.items()]
                database.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?)", pairs)
                self._make_room(database, len(rows))

    def _make_room(self, database: sqlite3.Connection, added: int) -> None:
        """Drop the oldest rows until the others fit, a few times as many as were added at most: no write takes long.

        SQLite counts the rows it is given, so the oldest have the smallest rowid; the space of dropped ones is reused.
        """
        oldest = "SELECT rowid FROM rows ORDER BY rowid LIMIT ?"
        for _ in range(4):
            pages, free, size = (
                database.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
            if (pages - free) * size <= self.limit:
                return
            database.execute(f"DELETE FROM rows WHERE rowid IN ({oldest})", (added,))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection for one call: none may outlive a fork."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self.path, timeout=30)) as database:  # seconds to wait for another writer
            database.execute("CREATE TABLE IF NOT EXISTS rows (key BLOB PRIMARY KEY, vector BLOB)")
            yield database

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        """Turn what goes wrong inside into one warning: the vectors matter more than the cache."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            self.usable = False
            warnings.warn(
                f"the cache {self.path} cannot be used ({error}): vectors are computed and not kept; "
                "make the folder writable, or delete the file if it is damaged",
                stacklevel=2,
            )


def sealed(key: bytes, row: bytes) -> bytes:
    """The row with a check at its end that tells whether it is still what was written under this key."""
    return row + hashlib.sha256(key + row).digest()[:CHECK_BYTES]


def as_bytes(text: TextOrPair) -> bytes:
    """A text in UTF-8; a pair with a byte between its texts that no UTF-8 has, so that it is never taken for a text."""
    return text.encode() if isinstance(text, str) else b"\xff".join(part.encode() for part in text)


MEMORY = MemoryRows()


class Saving:
    """The rows of `keys` on their way into a store: what has arrived is written every SECONDS, the rest at the end."""

    def __init__(self, store: MemoryRows | DiskRows, keys: list[bytes]) -> None:
        self.store, self.keys = store, keys
        self.order, self.vectors = np.empty(0, np.int64), np.empty((0, 0), np.float32)
        self.written: dict[bytes, bytes] = {}
        self.time = time.monotonic()

    def arrived(self, order: NDArray[np.int64], vectors: Matrix) -> None:
        """Take note of what is computed, see engine.Arrived, and write it when it is time."""
        self.order, self.vectors = order, vectors
        if time.monotonic() - self.time >= SECONDS:
            self.write()

    def write(self) -> None:
        """Write what has arrived since the last time."""
        rows = {self.keys[row]: self.vectors[row].tobytes() for row in self.order[len(self.written) :]}
        self.store.write(rows)
        self.written |= rows
        self.time = time.monotonic()


def cached(
    texts: Sequence[TextOrPair],
    identity: list[object],
    width: int,
    store: MemoryRows | DiskRows,
    compute: Callable[[list[int], Arrived], None],
) -> Matrix:
    """A row for each text or pair, (N, width): from the store, or by `compute`, which is given the numbers of new ones.

    identity: all that determines a vector except the text. A text that stands twice is computed once, and those that
    an interrupted call has computed not again: `compute` tells its second argument what arrives.
    """
    base = hashlib.sha256(json.dumps(identity).encode()).digest()
    keys = [hashlib.sha256(base + as_bytes(text)).digest() for text in texts]
    known = store.read(set(keys))
    new = {key: number for number, key in enumerate(keys) if key not in known}
    if new:
        saving = Saving(store, list(new))
        try:
            compute(list(new.values()), saving.arrived)
        finally:
            saving.write()
        known |= saving.written
    return np.frombuffer(bytearray().join(known[key] for key in keys), dtype=np.float32).reshape(len(texts), width)
