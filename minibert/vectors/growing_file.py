"""A .npy file that grows row by row, and that is resumed after a kill.

    vectors.npy.partial        header and rows, some of them perhaps torn
    vectors.npy.partial.json   the journal: settings, how many rows are done, and a hash of what they were made from
    vectors.npy.partial.begun  of the portion in progress the rows that are computed, in the order in which they were

Rows come portion by portion. A portion is computed in an order of its own, batch by batch; its rows wait in the third
file, which is saved every SECONDS, until all are there and are appended in their own order. So a kill costs SECONDS of
work however slow the machine is, and the clock decides no batch, hence no bit.

Rows are on the disk before the journal counts them, and the journal is replaced as a whole; whatever stands in the
files beyond that is written anew. The finished file appears by a rename. One process at a time: the partial
file is locked, and a lock ends with its process; whoever finds another file under its name stops and touches nothing.
D width of a row; N rows.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minibert.files import lock_file, naming, read_json, regular, shown
from minibert.text.texts import TextOrPair
from minibert.text.tokenized import TokenStats
from minibert.vectors.cache import SECONDS, Matrix

WAY_OUT = "or begin again (--restart, restart=True)"


@dataclass
class Journal:
    """How far the rows are."""

    settings: dict[str, Any]  # all that determines a row except its text
    texts_sha256: str = hashlib.sha256().hexdigest()
    account: TokenStats = field(default_factory=TokenStats)  # its texts are the rows that are done
    begun: int = 0  # rows of the next portion that are saved
    begun_sha256: str = ""  # of all texts, those of this portion too

    @classmethod
    def read(cls, path: Path) -> Journal:
        """The journal in a file, or ValueError."""
        content = read_json(path)
        for name, kind in (("settings", dict), ("texts_sha256", str), ("done", dict)):
            if not isinstance(value := content.get(name), kind):
                raise ValueError(f"{path} is no journal of minibert: {name} is {shown(value)}; remove it, {WAY_OUT}")
        done = content["done"]
        for name in (column.name for column in fields(TokenStats)):
            if type(value := done.get(name)) is not int or value < 0:
                raise ValueError(
                    f"{path} is no journal of minibert: done.{name} is {shown(value)}; remove it, {WAY_OUT}"
                )
        account = TokenStats(**{column.name: done[column.name] for column in fields(TokenStats)})
        begun = content.get("begun", {"rows": 0, "texts_sha256": ""})
        if not isinstance(begun, dict) or type(rows := begun.get("rows")) is not int or rows < 0:
            raise ValueError(f"{path} is no journal of minibert: begun is {shown(begun)}; remove it, {WAY_OUT}")
        return cls(content["settings"], content["texts_sha256"], account, rows, str(begun.get("texts_sha256")))

    def write(self, path: Path) -> None:
        """Replace the file; it is on the disk before it takes the place of the one before."""
        content = {
            "done": asdict(self.account),
            "texts_sha256": self.texts_sha256,
            "begun": {"rows": self.begun, "texts_sha256": self.begun_sha256},
            "settings": self.settings,
        }
        new = path.with_name(path.name + ".new")
        with naming(path, new):
            with new.open("w", encoding="utf-8") as file:
                json.dump(content, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)


class GrowingFile:
    """The matrix `out` (N, D) while it grows; inside `with`: resume, portions as often as need be, finish.

    A portion is `begin`, `arrived` as often as rows come, and `append`; append alone will do where it is quick.

    settings: all that determines a row except its text, as JSON has it. restart: forget what was done before.
    Without finish the partial file stays for the next time, unless nothing is done.
    Raises RuntimeError while another process has the file or once it took its place, ValueError where what was begun
    has other settings, OSError, with the name of the file, where the disk is full.
    """

    def __init__(self, out: Path, width: int, dtype: str, settings: dict[str, Any], restart: bool = False) -> None:
        self.out, self.width, self.dtype = out, width, np.dtype(dtype)
        self.partial = out.with_name(out.name + ".partial")
        self.journal_path = out.with_name(out.name + ".partial.json")
        self.begun_path = out.with_name(out.name + ".partial.begun")
        self.settings, self.restart = settings, restart
        self.texts = hashlib.sha256()
        self.share = 1.0  # of a text in a row of the portion in progress: less where texts have several windows
        self.in_progress: tuple[NDArray[np.int64], Matrix] | None = None  # what `arrived` was given last
        self.finished = False

    def __enter__(self) -> GrowingFile:
        self.file = lock_file(self.partial)
        try:
            begun = self.journal_path.exists() and os.fstat(self.file.fileno()).st_size > 0
            self.journal = self._go_on() if begun and not self.restart else self._begin()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # what went wrong matters more
            if isinstance(error, KeyboardInterrupt) and self._is_ours():
                self._save()
        self._leave()

    def _leave(self) -> None:
        """Let go of the file; where there is no journal, nothing in it is done, and it is removed."""
        with self.file, suppress(PermissionError):  # Windows removes no open file
            if not self.finished and not self.journal_path.exists() and self._is_ours():
                self.partial.unlink()
                self.begun_path.unlink(missing_ok=True)

    def _is_ours(self) -> bool:
        """Whether the file under the partial name is still the open one: somebody may have removed or replaced it."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self.file.fileno()), self.partial.stat())
        return False

    def _check_ours(self) -> None:
        if not self._is_ours():
            raise RuntimeError(
                f"{self.partial} was removed or replaced while this process was writing it, so {self.out} was not "
                "made; the same command begins again, or goes on with what is there"
            )

    @property
    def rows(self) -> int:
        """N so far."""
        return self.journal.account.texts

    @property
    def kept(self) -> int:
        """How many rows an interrupt leaves: those that are done, and those of the portion in progress."""
        return self.rows + int(self.share * self.journal.begun)

    def resume(self, texts: Iterator[list[TextOrPair]]) -> Iterator[list[TextOrPair]]:
        """Take the texts of the rows that are done out of the portions, one by one; ValueError where they differ."""
        rows = 0
        while rows < self.rows and (portion := next(texts, None)) is not None:
            rows += len(portion)
            self.texts.update(as_bytes(portion))
            yield portion
        if rows != self.rows or self.texts.hexdigest() != self.journal.texts_sha256:
            raise ValueError(
                f"{self.partial} was begun with other texts: the first {self.rows:,} are not those of "
                f"now; give the texts of then, {WAY_OUT}"
            )

    def begin(self, texts: Sequence[TextOrPair], rows: int) -> Matrix | None:
        """Of this portion, `rows` rows, those that an interrupted run has computed, in that order; None if it has none.

        Raises ValueError where it was begun with other texts, or its file is damaged.
        """
        self.saved, self.share = time.monotonic(), len(texts) / rows
        hashed = self.texts.copy()
        hashed.update(as_bytes(texts))
        then, self.journal.begun_sha256 = self.journal.begun_sha256, hashed.hexdigest()
        if not self.journal.begun:
            return None
        if then != self.journal.begun_sha256:
            raise ValueError(
                f"{self.partial} was begun with other texts: those from row {self.rows:,} on are not those of now; "
                f"give the texts of then, {WAY_OUT}"
            )
        size = 4 * self.journal.begun * self.width
        found = regular(self.begun_path).stat().st_size if self.begun_path.exists() else 0
        if found < size or rows < self.journal.begun:
            raise ValueError(
                f"{self.begun_path} is damaged: it has {found:,} bytes for {rows:,} rows, and by its journal at least "
                f"{size:,} for {self.journal.begun:,}; put it back, {WAY_OUT}"
            )
        return np.fromfile(self.begun_path, np.float32, size // 4).reshape(-1, self.width)

    def arrived(self, order: NDArray[np.int64], vectors: Matrix) -> None:
        """Take note of what is computed of the portion, see cache.Arrived, and save it when it is time."""
        self.in_progress = order, vectors
        if time.monotonic() - self.saved >= SECONDS:
            self._check_ours()
            self._save()

    def _save(self) -> None:
        """Bring what has arrived to the disk; saved before is what the journal counts, and not written again."""
        if self.in_progress is None or len(self.in_progress[0]) <= self.journal.begun:
            return
        order, vectors = self.in_progress
        with naming(self.begun_path), self.begun_path.open("r+b" if self.journal.begun else "wb", buffering=0) as file:
            file.seek(4 * self.journal.begun * self.width)
            write_all(file, vectors[order[self.journal.begun :]].tobytes())
            os.fsync(file.fileno())
        journal = replace(self.journal, begun=len(order))
        journal.write(self.journal_path)
        self.journal, self.saved = journal, time.monotonic()

    def append(self, vectors: Matrix, texts: Sequence[TextOrPair], account: TokenStats) -> None:
        """Add the rows of these texts, (n, D), and return when they are safe on the disk."""
        with naming(self.partial):
            write_all(self.file, self._narrowed(vectors).tobytes())
            os.fsync(self.file.fileno())
        self._check_ours()
        self.texts.update(as_bytes(texts))
        journal = Journal(self.settings, self.texts.hexdigest(), self.journal.account + account)
        journal.write(self.journal_path)
        self.in_progress = None  # before the journal, or an interrupt here would save its rows as the next portion's
        self.journal = journal
        self.begun_path.unlink(missing_ok=True)

    def finish(self) -> None:
        """Give the file its name."""
        with naming(self.partial):
            self.file.seek(0)
            write_all(self.file, self._header(self.rows))
            os.fsync(self.file.fileno())
        self._check_ours()
        if sys.platform == "win32":
            self.file.close()  # Windows renames no open file
        os.replace(self.partial, self.out)  # elsewhere still locked, so that nobody else can change it
        self.finished = True
        sync_folder(self.out.parent)
        if not self.partial.exists():  # else the next process has begun already, and these may be its own
            self.journal_path.unlink(missing_ok=True)
            self.begun_path.unlink(missing_ok=True)

    def _begin(self) -> Journal:
        self.journal_path.unlink(missing_ok=True)  # before its rows go
        self.begun_path.unlink(missing_ok=True)
        with naming(self.partial):
            self.file.truncate(0)
            write_all(self.file, self._header(0))
        return Journal(self.settings)

    def _go_on(self) -> Journal:
        """The journal of before; whatever comes after its rows is cut off."""
        journal = Journal.read(self.journal_path)
        for name, now in self.settings.items():
            if (then := journal.settings.get(name)) != now:
                raise ValueError(
                    f"{self.partial} was begun with {name} {then!r}, and now it is {now!r}; give the "
                    f"settings of then, {WAY_OUT}"
                )
        size = len(self._header(0)) + journal.account.texts * self.width * self.dtype.itemsize
        if (found := os.fstat(self.file.fileno()).st_size) < size:
            raise ValueError(
                f"{self.partial} is damaged: it has {found:,} bytes, and by its journal at least "
                f"{size:,}; put it back, {WAY_OUT}"
            )
        self.file.truncate(size)
        self.file.seek(size)
        return journal

    def _header(self, rows: int) -> bytes:
        """What numpy.save writes before the rows; numpy leaves room, so it is as long for any number of them."""
        header = io.BytesIO()
        descr = np.lib.format.dtype_to_descr(self.dtype)
        shape = (rows, self.width)
        np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
        return header.getvalue()

    def _narrowed(self, vectors: Matrix) -> NDArray[np.floating[Any]]:
        """In the dtype of the file, or ValueError for a number that it cannot hold."""
        with np.errstate(over="ignore"):
            narrow = vectors.astype(self.dtype)
        lost = np.argwhere(~np.isfinite(narrow) & np.isfinite(vectors))
        if len(lost):
            row, column = lost[0]
            raise ValueError(
                f"row {self.rows + row} has the number {vectors[row, column]:.6g}, and {self.dtype} ends "
                f"at {np.finfo(self.dtype).max:.6g}; use dtype float32"
            )
        return narrow


def write_all(file: io.FileIO, content: bytes) -> None:
    """Write every byte: the system may take a part at a time."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def as_bytes(texts: Sequence[TextOrPair]) -> bytes:
    """A portion of texts or pairs for the hash, in which no two portions are the same."""
    return json.dumps(texts).encode()


def sync_folder(folder: Path) -> None:
    """Bring a rename to the disk, where folders can be opened for that."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
