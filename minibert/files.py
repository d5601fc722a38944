"""Files: untrusted input is read within limits, and output is written atomically.

Input is a regular file of bounded size, and JSON is one object. Output is written under a temporary name, then renamed,
so that no reader ever sees half a file. check_output refuses, before any work begins, an output that would replace
something; with overwrite, only files that minibert itself wrote are replaced.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

if sys.platform != "win32":
    import fcntl

MOST_BYTES = 100_000_000  # of a JSON file; safetensors sets its headers the same limit
LIST_FILE = "minibert.json"  # in a folder that minibert wrote: its files, each with the sha256 of what was written
OTHER = "name another --out"
# What a file that minibert wrote has near its beginning, by the ending of its name.
MARKS = {
    ".npy": b"\x93NUMPY",
    ".html": b"minibert trace</title>",
    ".md": b"# Parity",
    ".png": b"\x89PNG",
    ".svg": b"<svg",
    ".pdf": b"%PDF",
    ".onnx": b"pytorch",
    ".txt": b"in   input_ids: int64",
    ".tsv": b"label\tprobability\ttext",
}


def regular(path: Path, what: str = "file") -> Path:
    """`path` itself if it is a regular file: opening a pipe or a device could block forever.

    Raises ValueError, "is not a `what`", for anything else; FileNotFoundError where nothing is.
    """
    path.stat()
    if not path.is_file():
        kind = "folder" if path.is_dir() else "pipe" if path.is_fifo() else "device"
        raise ValueError(f"{path} is a {kind}, not a {what}")
    return path


def read_small(path: Path) -> bytes:
    """All bytes of a file that is read at once. Raises ValueError for more than MOST_BYTES."""
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
    """JSON text as Python objects; `pairs` builds each object. Raises ValueError for anything else.

    Deep nesting and lone surrogates, which could not be printed or written, are refused too.
    """
    try:
        content = json.loads(text, object_pairs_hook=pairs)
        if "\\u" in text:  # UTF-8 cannot encode half of a surrogate pair, but an escape can
            json.dumps(content, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("its lists and objects are nested too deeply") from None
    return content


def shown(value: Any, most: int = 60) -> str:
    """A JSON value as it was written, shortened, for an error message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= most else text[:most] + "..."


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with regular(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def listing(folder: Path, most: int = 12) -> str:
    """The names in a folder, for an error message."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "") if names else "nothing"


@contextmanager
def naming(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Put `path` into an OSError that names no file, such as that of a full disk, or only the temporary one."""
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
        with suppress(OSError):  # it was never created, or its folder is gone
            temporary.unlink()


def write_text_atomically(path: Path, text: str) -> None:
    """Write a UTF-8 text file that appears complete or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def lock_file(path: Path) -> io.FileIO:
    """The file, created if need be, open to read and write and locked until it is closed or the process ends.

    Raises RuntimeError while another process holds the lock. Windows and file systems without locks refuse nobody.
    """
    while True:
        if path.exists():
            regular(path)
        file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666), "r+")
        if sys.platform == "win32":
            return file
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise RuntimeError(f"another process is writing {path}; wait for it, or choose another output") from None
        except OSError:
            return file
        with suppress(FileNotFoundError):  # the other process may have renamed the file before this lock was taken
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()


# ---------------------------------------------------------------------------------------------------------------
# Outputs that must not replace anything


def check_output(
    out: Path,
    overwrite: bool = False,
    *,
    files: Iterable[str] | None = None,
    apart: Iterable[str | os.PathLike[str] | None] = (),
) -> None:
    """Raise ValueError, before any work begins, for an output that would replace something that must be kept.

    files: the names of the files to be written into the folder `out`; None: `out` is a file itself. apart: folders that
    are read; `out` may not be one of them, contain one or lie in one. overwrite: files of minibert may be replaced.
    """
    check_place(out, apart)
    if not out.exists() or (files is not None and out.is_dir() and not any(out.iterdir())):
        return
    if out.is_dir() != (files is not None):
        kinds = ("folder", "file") if out.is_dir() else ("file", "folder")
        raise ValueError(f"{out} is a {kinds[0]}, and a {kinds[1]} is to be written; {OTHER}")
    if not overwrite:
        held = "" if files is None else f" and holds {listing(out)}"
        raise ValueError(
            f"{out} is there already{held}; {OTHER}, or replace what minibert wrote there: --overwrite, overwrite=True"
        )
    if files is None:
        check_is_own_file(out)
    else:
        check_are_own(out, files)


def check_place(out: Path, apart: Iterable[str | os.PathLike[str] | None]) -> None:
    """Raise ValueError for a link, the current folder or a parent of it, and for a folder that overlaps an input."""
    if out.is_symlink():
        raise ValueError(f"{out} is a symbolic link; {OTHER}")
    place = out.resolve()
    if Path.cwd().is_relative_to(place):
        raise ValueError(f"{out} is the folder in which the command runs, or one around it; {OTHER}")
    for other in (Path(one).resolve() for one in apart if one is not None and Path(one).is_dir()):
        if place.is_relative_to(other) or other.is_relative_to(place):
            raise ValueError(f"{out} is the same as, inside or around {other}, which is read; {OTHER}")


def check_is_own_file(path: Path) -> None:
    """Raise ValueError for a file that does not begin as minibert writes files of this suffix."""
    with regular(path).open("rb") as file:
        head = file.read(4096)
    if MARKS[path.suffix.lower()] not in head and b"<title>minibert parity</title>" not in head:
        raise ValueError(f"{path} is not a file that minibert wrote, so it is not replaced; {OTHER}")


def check_are_own(folder: Path, files: Iterable[str]) -> None:
    """Raise ValueError where the folder has a file of one of these names that is not as minibert wrote it."""
    listed = listed_files(folder)
    if not listed:
        raise ValueError(
            f"{folder} holds {listing(folder)}, and no {LIST_FILE} that names files which minibert wrote, so "
            f"nothing there is replaced; {OTHER}"
        )
    for name in files:
        if os.path.lexists(folder / name) and not is_own(folder, name, listed.get(name, [])):
            raise ValueError(f"{folder / name} is not as minibert wrote it, so it is not replaced; {OTHER}")


def listed_files(folder: Path) -> dict[str, list[str]]:
    """The files that minibert wrote into a folder, by the list there, each with the SHA-256 values that it may have."""
    if not (folder / LIST_FILE).exists():
        return {}
    listed: dict[str, list[str]] = {}
    content = read_json(folder / LIST_FILE)
    for part in (content.get("before", {}), content.get("files")):
        if not isinstance(part, dict):
            raise ValueError(f"{folder / LIST_FILE} is no list of files that minibert wrote; {OTHER}")
        for name, digest in part.items():
            listed.setdefault(name, []).append(str(digest))
    return listed


def is_own(folder: Path, name: str, digests: list[str]) -> bool:
    """Whether a file inside the folder, not elsewhere through a link, has one of these SHA-256 values."""
    place, path = folder.resolve(), (folder / name).resolve()
    return path == place / name and path.is_relative_to(place) and path.is_file() and sha256(path) in digests


@contextmanager
def atomic_folder(out: Path, overwrite: bool = False) -> Iterator[Path]:
    """A temporary folder beside `out`: its files move there when all are written, and it is removed on failure.

    Raises what check_output raises where `out` has been filled since it was checked.
    """
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with naming(out, temporary):
            temporary.mkdir(parents=True)
            yield temporary
            move_into(out, temporary, overwrite)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # it was renamed, or not finished


def move_into(out: Path, temporary: Path, overwrite: bool) -> None:
    """Rename the temporary folder to `out`, or move its files one by one into an `out` that exists."""
    paths = sorted(path for path in temporary.rglob("*") if path.is_file())
    files = {path.relative_to(temporary).as_posix(): sha256(path) for path in paths}
    check_output(out, overwrite, files=files)
    if not out.exists() or not any(out.iterdir()):
        write_list(temporary, files)
        if out.exists():
            out.rmdir()
        os.rename(temporary, out)
        return
    before = listed_files(out)
    old = {name: sha256(out / name) for name, digests in before.items() if is_own(out, name, digests)}
    write_list(out, files, old)  # a kill from here on leaves old and new files, all of them named in the list
    for name in files:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(temporary / name, out / name)
    for name in old.keys() - files.keys():  # of a checkpoint of other parts
        (out / name).unlink()
    write_list(out, files)


def write_list(folder: Path, files: dict[str, str], before: dict[str, str] | None = None) -> None:
    """Write the list of the files that minibert wrote; before: the files that they are replacing."""
    content = {"files": files} | ({"before": before} if before else {})
    write_text_atomically(folder / LIST_FILE, json.dumps(content, indent=1) + "\n")
