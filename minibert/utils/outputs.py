"""Outputs: no command replaces or deletes someone else's file.

`check_file` and `check_folder` refuse an output before any work begins. A file is replaced only if the user asks for it
with overwrite. A folder is written by `atomic_folder`: it appears when all its files are complete, LIST_FILE among
them, which holds the SHA-256 of each. With overwrite, a folder is replaced only if each file in it is still as listed.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from minibert.utils.files import (
    AnyPath,
    listing,
    naming,
    read_json,
    regular,
    sha256,
    sync,
    temporary_path,
    user_path,
    write_text_atomically,
)
from minibert.utils.printing import cut
from minibert.utils.wording import advice

LIST_FILE = "minibert.json"  # {"files": {name: SHA-256}}
OTHER = "name another --out"
Inputs = Iterable[AnyPath | None]


def check_file(out: Path, overwrite: bool = False, *, endings: Sequence[str] = (), apart: Inputs = ()) -> None:
    """Raise ValueError, before any work begins, for a file that is there already, or has none of the endings.

    overwrite: a file that is there may be replaced, except by a command that reads it. apart: see check_place.
    Raises FileNotFoundError if the folder around it does not exist.
    """
    if endings and out.suffix.lower() not in endings:
        raise ValueError(f"{out} must be a file that ends in {', '.join(endings)}")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"{out} cannot be written: there is no folder {out.parent}")
    check_place(out, apart)
    if out.exists():
        regular(out, f"file; {OTHER}")
        if not overwrite:
            raise ValueError(f"{out} is there already; {OTHER}" + advice(", or replace it: {}", overwrite=True))


def check_folder(out: Path, overwrite: bool = False, *, apart: Inputs = ()) -> None:
    """Raise ValueError, before any work begins, for a folder that holds something.

    overwrite: it may be replaced if minibert wrote all that it holds. apart: see check_place.
    """
    check_place(out, apart)
    if not out.exists():
        return
    if not out.is_dir():
        raise ValueError(f"{out} is a file, not a folder; {OTHER}")
    if out.is_mount():
        raise ValueError(f"{out} is where a file system is mounted, and cannot be replaced; name a folder in it")
    if not overwrite and any(out.iterdir()):
        raise ValueError(
            f"{out} is there already and holds {listing(out)}; {OTHER}"
            + advice(", or replace what minibert wrote there: {}", overwrite=True)
        )
    if foreign := foreign_files(out):
        names = ", ".join(cut(str(path.relative_to(out))) for path in foreign[:9])
        raise ValueError(f"nothing is replaced: in {out}, these are not as minibert wrote them: {names}; {OTHER}")


def check_place(out: Path, apart: Inputs) -> None:
    """Raise ValueError if `out` is a link, an input, or the current folder or one around it.

    apart: files and folders that are inputs, if they exist: `out` may not equal, contain or be inside any of them.
    Raises PermissionError if it may not be written, NotADirectoryError if a file is in the place of a folder.
    """
    if out.is_symlink():
        raise ValueError(f"{out} is a symbolic link; {OTHER}")
    place = out.resolve()
    if Path.cwd().is_relative_to(place):
        raise ValueError(f"{out} is the folder in which the command runs, or one around it; {OTHER}")
    for other in (user_path(one).resolve() for one in apart if one is not None and user_path(one).exists()):
        if place.is_relative_to(other) or other.is_relative_to(place):
            raise ValueError(f"{out} is the same as, inside or around {other}, which is read; {OTHER}")
    parent = next(one for one in place.parents if one.exists())
    os.listdir(parent)
    for folder in (one for one in (parent, place) if one.is_dir() and not os.access(one, os.W_OK | os.X_OK)):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def foreign_files(folder: Path) -> list[Path]:
    """Return the files and links in a folder that are not as its LIST_FILE says; without one, all of them."""
    listed = read_json(folder / LIST_FILE).get("files") if (folder / LIST_FILE).exists() else None
    digests = listed if isinstance(listed, dict) else {}

    def is_ours(path: Path) -> bool:
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not path.is_file():
            return False
        return name == LIST_FILE or (name in digests and sha256(path) == digests[name])

    paths = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return [path for path in paths if not is_ours(path)]


@contextmanager
def atomic_folder(out: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary folder, which becomes `out` when all its files are written, and is removed on failure.

    Raises what check_folder raises if `out` was filled since it was checked.
    """
    temporary = temporary_path(out)
    try:
        with naming(out, temporary):
            temporary.mkdir(parents=True)
        yield temporary
        paths = sorted(path for path in temporary.rglob("*") if path.is_file())
        files = {path.relative_to(temporary).as_posix(): sha256(path) for path in paths}
        write_text_atomically(temporary / LIST_FILE, json.dumps({"files": files}, indent=1) + "\n")
        for path in (*temporary.rglob("*"), temporary):
            sync(path)
        check_folder(out, overwrite)
        replace_folder(out, temporary)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def replace_folder(out: Path, new: Path) -> None:
    """Rename a folder to `out`; what is there gets a temporary name, and is removed once the new folder has its own."""
    old = temporary_path(out)
    if out.exists():
        os.rename(out, old)
    try:
        os.rename(new, out)
    except BaseException:
        if old.exists():
            os.rename(old, out)
        raise
    sync(out.parent)
    shutil.rmtree(old, ignore_errors=True)
