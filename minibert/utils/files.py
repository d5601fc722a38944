"""Files: untrusted input is read within limits, and output is written atomically.

Input is a regular file of bounded size, and JSON is one object. Output is written under a temporary name, then renamed,
so that no reader ever sees half a file, even after a power cut. outputs.py decides what may be replaced.

A process that is killed leaves its temporary file: .NAME.XXXXXXXX beside NAME, with random hexadecimal digits. No later
run stumbles over it. The next run removes it from a folder of unfinished work; elsewhere it may be deleted by hand.
"""

import glob
import hashlib
import json
import os
import re
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path, PureWindowsPath
from typing import IO, Any

from minibert.utils.printing import brief, cut

if sys.platform != "win32":
    import fcntl

AnyPath = str | os.PathLike[str]  # of a file or a folder, as a user gives it
JsonObject = Mapping[str, Any]  # of a file
DEEPEST = 100  # lists and objects of JSON within each other: Python's own limit depends on the caller
MOST_BYTES = 100_000_000  # of a JSON file; safetensors sets the same limit on its headers


def matching_files(pattern: str) -> list[str]:
    """Return the file of this name, else the files that match a pattern such as corpus/**/*.csv, sorted by name.

    `**` is any number of folders. A file that matches under several names, through links, is returned once: under
    its first name that is not a link, or its first name if all are links.
    """
    pattern = os.path.expanduser(pattern)
    if os.path.exists(pattern):
        return [pattern]
    paths: dict[str, str] = {}
    for path in sorted(matching(Path(pattern).parts), key=lambda path: (os.path.islink(path), path)):
        if os.path.isfile(path):
            paths.setdefault(os.path.realpath(path), path)
    return sorted(paths.values())


def matching(parts: Sequence[str]) -> Iterator[str]:
    """Yield the paths that match the parts of a pattern; with two `**` the same path may come more than once."""
    if "**" not in parts:
        yield from glob.glob(os.path.join("", *parts))
        return
    at = parts.index("**")
    before = os.path.join("", *parts[:at])
    for root in glob.glob(before) if before else [""]:
        for folder in folders_below(root):
            yield from matching([glob.escape(folder), *(parts[at + 1 :] or ["*"])])


def folders_below(root: str) -> list[str]:
    """Return a folder and all below it except hidden ones. Links are followed, but no folder is entered twice.

    A link to a folder around it would otherwise repeat every file until the path is too long, as it does in glob.
    """
    entered = set[str]()
    found = list[str]()
    links = [root]
    while links:
        for folder, names, _ in os.walk(links.pop(0) or "."):  # which follows no link below it
            real = os.path.realpath(folder)
            names[:] = [] if real in entered else sorted(name for name in names if not name.startswith("."))
            if real not in entered:
                entered.add(real)
                found.append("" if folder == "." else folder.removeprefix("./"))
                links += [path for name in names if os.path.islink(path := os.path.join(folder, name))]
    return found


def leads_out(name: str) -> bool:
    """Return whether a name that should be below some folder is absolute, or has a drive or "..", on any system."""
    path = PureWindowsPath(name)  # which knows drives, and slashes of both kinds
    return bool(path.drive or path.root) or ".." in path.parts or "\0" in name


def inside(folder: Path, name: str, source: Path) -> Path:
    """Return the folder of this name in `folder`, as the file `source` names it; it need not exist.

    Raises ValueError if it is somewhere else, also by a link. Its files may be links, as in the Hugging Face cache.
    """
    path = folder / name
    # realpath, because resolve() raises RuntimeError for a link to itself.
    if leads_out(name) or not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise ValueError(f"{source} names {brief(name)}, which leads out of {folder}; it must be a folder in there")
    return path


def user_path(path: AnyPath) -> Path:
    """Return a path that a user gave, with the home folder in place of ~ as a shell has it.

    Raises TypeError for anything but a str or a Path, ValueError for "".
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"a path is {brief(path)}; it must be a str or a Path")
    if not os.fspath(path):
        raise ValueError("a name is empty; is a variable of the shell not set?")
    return Path(os.path.expanduser(path))


def neighbours(path: AnyPath) -> list[str]:
    """Return the paths beside this one that are not hidden, each written as it is: what it may be a misspelling of."""
    folder = user_path(path).parent
    with suppress(OSError):
        return sorted(str(folder / name) for name in os.listdir(folder) if not name.startswith("."))
    return []


def regular(path: Path, what: str = "file") -> Path:
    """Return `path` if it is a regular file: opening a pipe or a device could block forever.

    Raises ValueError, "is not a `what`", for anything else; FileNotFoundError if it does not exist.
    """
    path.stat()
    if not path.is_file():
        kind = "folder" if path.is_dir() else "pipe" if path.is_fifo() else "device"
        raise ValueError(f"{path} is a {kind}, not a {what}")
    return path


def read_small(path: Path) -> bytes:
    """Read all bytes of a file. Raises ValueError for more than MOST_BYTES."""
    if (size := regular(path).stat().st_size) > MOST_BYTES:
        raise ValueError(f"{path} has {size:,} bytes; a file of this kind has at most {MOST_BYTES:,}")
    return path.read_bytes()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds one object. Raises ValueError, with the file and the line, for anything else."""
    raw = read_small(path)
    try:
        content = parse_json(raw.decode("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not an object of names and values")
    return content


def parse_json(text: str) -> Any:
    """Parse JSON text. Raises ValueError for anything else.

    Deep nesting is refused, and so are lone surrogates, which could not be printed or written.
    """
    try:
        content = json.loads(text)
        depth = 0
        inner = [content] * (text.count("[") + text.count("{") > DEEPEST)  # the lists and objects of one depth
        while inner:
            depth += 1
            values = (one.values() if isinstance(one, dict) else one for one in inner)
            inner = [value for some in values for value in some if isinstance(value, (dict, list))]
    except RecursionError:
        depth = sys.getrecursionlimit()
    if depth > DEEPEST:
        raise ValueError(f"its lists and objects are nested more than {DEEPEST} deep") from None
    if "\\u" in text:  # UTF-8 cannot encode half of a surrogate pair, but an escape can
        json.dumps(content, ensure_ascii=False).encode()
    return content


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with regular(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def listing(folder: Path) -> str:
    """Return the first names in a folder, for an error message."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return ", ".join([*map(cut, names[:12]), *["..."] * (len(names) > 12)]) or "nothing"


@contextmanager
def naming(path: Path, temporary: Path) -> Iterator[None]:
    """Add `path` to an OSError that names no file, such as that of a full disk, or names only the temporary file."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise


def temporary_path(path: Path) -> Path:
    """Return a hidden path beside `path` that no other process or thread uses."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def final_name(path: Path) -> str:
    """Return the name that a temporary path was to get: a.txt of .a.txt.1f0c52d9; any other path's own name."""
    temporary = re.fullmatch(r"\.(.+)\.[0-9a-f]{8}", path.name, re.DOTALL)
    return temporary[1] if temporary else path.name


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk, where they survive a power cut."""
    with suppress(OSError) if path.is_dir() else nullcontext():  # not every system can sync a folder
        # Windows syncs only what is open for writing.
        descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`: renamed to it when all is written, removed when writing fails."""
    temporary = temporary_path(path)
    try:
        with naming(path, temporary):
            temporary.touch(exist_ok=False)
            mode = temporary.stat().st_mode  # by the user's umask; safetensors lets only the owner read
            yield temporary
            if temporary.stat().st_mode != mode:
                temporary.chmod(mode)
            sync(temporary)  # before its name: after a power cut, a name without its content would be half a file
            os.replace(temporary, path)
            sync(path.parent)
    finally:
        with suppress(OSError):  # it was never created, or its folder is gone
            temporary.unlink()


def write_text_atomically(path: Path, text: str) -> None:
    """Write a UTF-8 text file that appears complete or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def lock_file(path: Path) -> IO[bytes]:
    """Return an open file that is locked until it is closed or the process ends; created if it does not exist.

    Raises RuntimeError while another process holds the lock, ValueError for a pipe or a device. Windows, and file
    systems without locks, lock nothing.
    """
    if path.exists():
        regular(path)
    file = path.open("ab")
    if sys.platform != "win32":
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_nlink == 0:
                raise BlockingIOError  # the process that held it has just removed it, and another may lock a new one
        except BlockingIOError:
            file.close()
            raise RuntimeError(f"another process is writing {path}; wait for it, or choose another output") from None
        except OSError:  # a file system without locks
            pass
    return file
