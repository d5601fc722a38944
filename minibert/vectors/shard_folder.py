"""The folder of shards while they are made: what is in it, what is still to do, and the manifest that says so.

    vectors/manifest.json   model, settings, versions, and every shard with its rows and the hash of its source
    vectors/a.parquet       a shard, there as soon as it is whole

What is done is known by the footers of the shards themselves, so a kill at any moment loses no shard: the manifest is
there from the beginning, by which the folder is known as ours, and is written anew every SECONDS and at the end.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from minibert.files import lock_file, read_json, shown, write_text_atomically
from minibert.text.tokenized import TokenStats
from minibert.vectors.cache import SECONDS
from minibert.vectors.growing_file import WAY_OUT
from minibert.vectors.shards import Record, Shard

MANIFEST = "manifest.json"
LOCK = ".lock"
TEMPORARY = re.compile(r"\.(.+)\.\d+")  # as files.atomic_write calls them
PACKAGES = ("minibert-annotated", "torch", "tokenizers", "pyarrow", "ray")


@dataclass
class ShardFolder:
    """A folder that shards go to, of one process at a time; inside `with`.

    shards: all, in the order of the input. settings: all that determines a vector except its text, as JSON has it.
    facts: what else the manifest is to say. restart: forget what was done before.
    todo: the numbers of the shards that are not done; changed: those of them whose source is another than it was.
    Raises ValueError for a folder that holds something else, shards of other settings, or of sources that are not
    among `shards`; RuntimeError while another process writes to it.
    """

    out: Path
    shards: Sequence[Shard]
    settings: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    restart: bool = False

    def __enter__(self) -> ShardFolder:
        present = files_in(self.out) if self.out.is_dir() else set()
        self.names = [Path(shard.out).relative_to(self.out.absolute()).as_posix() for shard in self.shards]
        then = self.known(present)
        self.out.mkdir(parents=True, exist_ok=True)
        self.lock = lock_file(self.out / LOCK)
        with suppress(FileNotFoundError):
            for name in present:
                if is_temporary(name) or (self.restart and name in then):
                    (self.out / name).unlink()
        found = [Record.of(shard.out) for shard in self.shards]
        self.records = [
            record if record is not None and record.is_of(shard, self.settings) else None
            for record, shard in zip(found, self.shards, strict=True)
        ]
        self.todo = [number for number, record in enumerate(self.records) if record is None]
        self.changed = [number for number in self.todo if found[number] is not None]
        self.write()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.write()
        for name in files_in(self.out):
            if is_temporary(name) or name == LOCK:  # of a worker that was killed, for no other is at work now
                (self.out / name).unlink(missing_ok=True)
        self.lock.close()

    def add(self, number: int, record: Record) -> None:
        """Take note of a shard that is done."""
        self.records[number] = record
        if time.monotonic() - self.written >= SECONDS:
            self.write()

    @property
    def account(self) -> TokenStats:
        """What became of the texts of all shards that are done."""
        return sum((record.account for record in self.records if record is not None), TokenStats())

    def known(self, present: set[str]) -> set[str]:
        """The shards that the manifest of an earlier run names; ValueError for a folder that is not this job's."""
        if MANIFEST not in present:
            strange = sorted(name for name in present if name != LOCK and not is_temporary(name))
            if strange:
                raise ValueError(
                    f"{self.out} has {strange[0]} in it, and no {MANIFEST} of shards; "
                    "choose a folder that is new or empty"
                )
            return set()
        path = self.out / MANIFEST
        content = read_json(path)
        settings, shards = content.get("settings"), content.get("shards")
        if not isinstance(settings, dict) or not isinstance(shards, list):
            raise ValueError(f"{path} is no manifest of shards: settings is {shown(settings)}; choose another folder")
        then = {str(shard.get("file")) for shard in shards if isinstance(shard, dict)}
        for name, now in self.settings.items():
            if not self.restart and settings.get(name) != now:
                raise ValueError(
                    f"{self.out} was begun with {name} {settings.get(name)!r}, and now it is {now!r}; give the "
                    f"settings of then, {WAY_OUT}"
                )
        for name in sorted(present - set(self.names) - {MANIFEST, LOCK}):
            if is_temporary(name) or (self.restart and name in then):
                continue
            if name in then:
                raise ValueError(f"{self.out} has {name}, whose source is not in the input now; put it back, {WAY_OUT}")
            raise ValueError(f"{self.out} has {name} in it, which is none of its shards; move it away")
        return then

    def write(self) -> None:
        """Write the manifest, whole."""
        shards = [
            {"file": name, "rows": None, "source": {"path": shard.source}}
            if record is None
            else {"file": name, "rows": record.account.texts, "source": asdict(record.source)}
            | {"account": asdict(record.account), "seconds": round(record.seconds, 3)}
            for name, shard, record in zip(self.names, self.shards, self.records, strict=True)
        ]
        content = self.facts | {
            "done": all(record is not None for record in self.records),
            "rows": self.account.texts,
            "settings": self.settings,
            "versions": versions(),
            "shards": shards,
        }
        write_text_atomically(self.out / MANIFEST, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        self.written = time.monotonic()


def files_in(folder: Path) -> set[str]:
    """The files in a folder and below it, by their paths from there."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def is_temporary(name: str) -> bool:
    """Whether a file is one that was never renamed to what it was to become: its writer was killed."""
    return TEMPORARY.fullmatch(Path(name).name) is not None


def versions() -> dict[str, str]:
    """What computed it."""
    found = {}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
