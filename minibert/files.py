"""Files read without trust and written whole.

Read: a regular file, of a size that can be meant, and JSON that is what it should be. Written: under a temporary name,
then renamed, so that a file appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

if sys.platform != "win32":
    import fcntl

MOST_BYTES = 100_000_000  # of a JSON file; the limit that safetensors sets its headers
MOST_DIGITS = 40  # of a whole number: transformers writes "no limit" as 10^30
MOST_LEVELS = 100  # of lists and objects in each other; the files of checkpoints have seven
NESTED = (dict, list)
KINDS = {  # what opens like a file and need not end
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def regular(path: Path, what: str = "file") -> Path:
    """`path` itself if a regular file is there: to open a pipe or a device could wait for ever.

    Raises ValueError, saying that it is not a `what`, for anything else; FileNotFoundError where nothing is.
    """
    if kind := KINDS.get(stat.S_IFMT(path.stat().st_mode)):
        raise ValueError(f"{path} is {kind}, not a {what}")
    return path


def read_small(path: Path) -> bytes:
    """All bytes of a file that is read at once. Raises ValueError for one that is far too long for that."""
    if (size := regular(path).stat().st_size) > MOST_BYTES:
        raise ValueError(f"{path} has {size:,} bytes; a file of this kind has at most {MOST_BYTES:,}")
    return path.read_bytes()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds one object. Raises ValueError, with the file and the line, for anything else."""
    raw = read_small(path)
    try:
        content = parse_json(raw.decode("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not an object of names and values")
    return content


def parse_json(text: str, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """JSON as Python has it; `pairs` makes the objects. Raises ValueError for what only an attacker would write.

    That is: numbers of thousands of digits, lists in lists without end, and half characters, which cannot be printed.
    """
    try:
        content = json.loads(text, parse_int=whole_number, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("its lists and objects stand too deep in each other") from None
    check_levels(content)
    if "\\u" in text:  # UTF-8 holds no half of a surrogate pair, and only an escape can smuggle one in
        json.dumps(content, ensure_ascii=False).encode()
    return content


def whole_number(digits: str) -> int:
    """A whole number of JSON. The time to read one grows with the square of its length."""
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"it has a number of {len(digits):,} digits, {digits[:12]}...; none needs over {MOST_DIGITS}")
    return int(digits)


def check_levels(content: Any) -> None:
    """Raise ValueError for lists and objects too deep in each other: Python fails at what is hardly deeper."""
    level = [content]
    for _ in range(MOST_LEVELS):
        values = [value.values() if isinstance(value, dict) else value for value in level if isinstance(value, NESTED)]
        level = [value for inside in values for value in inside if isinstance(value, NESTED)]
    if level:
        raise ValueError(f"its lists and objects stand more than {MOST_LEVELS} deep in each other")


def shown(value: Any, most: int = 60) -> str:
    """A value that JSON held, as it stood there and cut where it is long, for an error message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= most else text[:most] + "..."


@contextmanager
def naming(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Give an OSError that names no file, such as that of a full disk, or only the temporary one, the name of this."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`: renamed to it when all is written, removed when writing fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path, temporary):
            temporary.touch()
            mode = temporary.stat().st_mode  # by the user's umask; safetensors writes for the owner alone
            yield temporary
            if temporary.stat().st_mode != mode:
                temporary.chmod(mode)
            os.replace(temporary, path)
    finally:
        with suppress(OSError):  # it was never there, or its folder is not
            temporary.unlink()


def write_text_atomically(path: Path, text: str) -> None:
    """Write a text file so that it appears whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def lock_file(path: Path) -> BinaryIO:
    """The file, made if need be, open and locked until it is closed or the process ends.

    Raises RuntimeError while another process holds the lock. Windows and file systems without locks refuse nobody.
    """
    if path.exists():
        regular(path)
    file = path.open("ab")
    try:
        if sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise RuntimeError(f"another process is writing {path.parent}; wait for it, or use another output") from None
    except OSError:
        pass  # a file system without locks
    return file
