"""Files read without trust and written whole.

Read: a regular file, of a size that can be meant, and JSON that is what it should be. Written: under a temporary name,
then renamed, so that a file appears whole or not at all. What stands where an output is to go is kept: check_output
refuses it before any work begins; with overwrite, only what minibert itself wrote there is replaced.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

MOST_BYTES = 100_000_000  # of a JSON file; the limit that safetensors sets its headers
MOST_DIGITS = 40  # of a whole number: transformers writes "no limit" as 10^30
MOST_LEVELS = 100  # of lists and objects in each other; the files of checkpoints have seven
NESTED = (dict, list)
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


# ---------------------------------------------------------------------------------------------------------------
# Outputs: what is there already is kept


def check_output(
    out: Path,
    overwrite: bool = False,
    *,
    files: Iterable[str] | None = None,
    apart: Iterable[str | os.PathLike[str] | None] = (),
) -> None:
    """Raise ValueError, before any work begins, for an output in whose place something stands that must be kept.

    files: the names of the files that a folder is to get; None: `out` is a file itself. apart: folders that are read,
    which `out` may neither be, nor hold, nor stand in. overwrite: what minibert itself wrote may be replaced.
    """
    check_place(out, apart)
    if not out.exists() or (files is not None and out.is_dir() and not any(out.iterdir())):
        return
    if out.is_dir() != (files is not None):
        kinds = ("folder", "file") if out.is_dir() else ("file", "folder")
        raise ValueError(f"{out} is a {kinds[0]}, and a {kinds[1]} is to be written; {OTHER}")
    if not overwrite:
        held = "" if files is None else f" and holds {some_names(out)}"
        raise ValueError(
            f"{out} is there already{held}; {OTHER}, or replace what minibert wrote there: --overwrite, overwrite=True"
        )
    if files is None:
        check_is_own_file(out)
    else:
        check_are_own(out, files)


def check_place(out: Path, apart: Iterable[str | os.PathLike[str] | None]) -> None:
    """Raise ValueError for a link, for the folder in which this runs, and for one that meets a folder that is read."""
    if out.is_symlink():
        raise ValueError(f"{out} is a symbolic link; {OTHER}")
    place = out.resolve()
    if Path.cwd().is_relative_to(place):
        raise ValueError(f"{out} is the folder in which the command runs, or one around it; {OTHER}")
    for other in (Path(one).resolve() for one in apart if one is not None and Path(one).is_dir()):
        if place.is_relative_to(other) or other.is_relative_to(place):
            raise ValueError(f"{out} is the same as, inside or around {other}, which is read; {OTHER}")


def some_names(folder: Path) -> str:
    """The first names in a folder."""
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def check_is_own_file(path: Path) -> None:
    """Raise ValueError for a file that is not of the kind that minibert writes under such a name."""
    with regular(path).open("rb") as file:
        head = file.read(4096)
    if MARKS[path.suffix.lower()] not in head and b"<title>minibert parity</title>" not in head:
        raise ValueError(f"{path} is not a file that minibert wrote, so it is not replaced; {OTHER}")


def check_are_own(folder: Path, files: Iterable[str]) -> None:
    """Raise ValueError where a file of one of these names stands in the folder, and is not as minibert wrote it."""
    listed = listed_files(folder)
    if not listed:
        raise ValueError(
            f"{folder} holds {some_names(folder)}, and no {LIST_FILE} that names files which minibert wrote, so "
            f"nothing there is replaced; {OTHER}"
        )
    for name in files:
        if os.path.lexists(folder / name) and not is_own(folder, name, listed.get(name, [])):
            raise ValueError(f"{folder / name} is not as minibert wrote it, so it is not replaced; {OTHER}")


def listed_files(folder: Path) -> dict[str, list[str]]:
    """The files that minibert wrote into a folder, by the list that is there, each with the sha256 that it may have."""
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
    """Whether a file of a folder, and none elsewhere that a link or the name leads to, has one of these contents."""
    place, path = folder.resolve(), (folder / name).resolve()
    return path == place / name and path.is_relative_to(place) and path.is_file() and sha256_of(path) in digests


def sha256_of(path: Path) -> str:
    """The sha256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def atomic_folder(out: Path, overwrite: bool = False) -> Iterator[Path]:
    """A temporary folder beside `out`, for its files: moved there when all is written, removed when writing fails.

    Raises what check_output raises where `out` has been filled since it was checked.
    """
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with naming(out, temporary):
            temporary.mkdir(parents=True)
            yield temporary
            move_into(out, temporary, overwrite)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # it was renamed, or never finished


def move_into(out: Path, temporary: Path, overwrite: bool) -> None:
    """Give a new folder its name; into one that is there move file after file, each in one step."""
    paths = sorted(path for path in temporary.rglob("*") if path.is_file())
    files = {path.relative_to(temporary).as_posix(): sha256_of(path) for path in paths}
    check_output(out, overwrite, files=files)
    if not out.exists() or not any(out.iterdir()):
        write_list(temporary, files)
        if out.exists():
            out.rmdir()
        os.rename(temporary, out)
        return
    before = listed_files(out)
    old = {name: sha256_of(out / name) for name, digests in before.items() if is_own(out, name, digests)}
    write_list(out, files, old)  # a kill from here on leaves old and new files, all of them named in the list
    for name in files:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(temporary / name, out / name)
    for name in old.keys() - files.keys():  # of a checkpoint of other parts
        (out / name).unlink()
    write_list(out, files)


def write_list(folder: Path, files: dict[str, str], before: dict[str, str] | None = None) -> None:
    """Note the files that minibert wrote; before: those that they are just taking the place of."""
    content = {"files": files} | ({"before": before} if before else {})
    write_text_atomically(folder / LIST_FILE, json.dumps(content, indent=1) + "\n")
