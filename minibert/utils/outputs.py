"""Outputs: no command replaces or deletes a file that minibert did not write.

`check_output` refuses an output before any work begins. `atomic_folder` writes a folder: its files appear when all of
them are complete, together with LIST_FILE, which holds the SHA-256 of each. With overwrite, a file in a folder is
replaced only if it still has the SHA-256 in that list; a single file only if it has the mark of minibert.
"""

import errno
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from minibert.utils.files import (
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

LIST_FILE = "minibert.json"  # {"files": {name: SHA-256}}; two of them, old and new, while a file is being replaced
OTHER = "name another --out"
# A numpy file of ours has its numbers from byte 4096 on, where a page of memory begins; numpy itself pads to 64 bytes.
NPY_HEADER = 4096
NPY_START = b"\x93NUMPY\x01\x00" + (NPY_HEADER - 10).to_bytes(2, "little")
# The first columns of a table of predictions; in a .jsonl there are values between their names.
COLUMNS = ("labels? probability probabilities", "number choice probability", "masks filled", "answer start end score")
PREDICTIONS = "|".join(names.replace(" ", r'(?:": [^\n]*, "|[,\t])') for names in COLUMNS).encode()
ENTITIES = rb'entities(": |[,\t][^\n]*\n"?)\[(\]|\{""?text""?: )'  # with the first row of a .csv or .tsv
# By suffix, a regular expression that matches the first or the last 4096 bytes of every file that minibert writes.
MARKS = {
    ".npy": re.escape(NPY_START),
    ".html": b"minibert (trace|parity)</title>",
    ".md": b"# Parity",
    **dict.fromkeys((".png", ".svg", ".pdf", ".onnx"), b"minibert"),
    **dict.fromkeys((".tsv", ".csv", ".jsonl"), rb'\A(\{")?(?:(%b)\b|%b)' % (PREDICTIONS, ENTITIES)),
    ".parquet": b"(?s)maker..minibert",
}


def check_output(
    out: Path,
    overwrite: bool = False,
    *,
    files: Iterable[str] | None = None,
    endings: Sequence[str] = (),
    apart: Iterable[str | os.PathLike[str] | None] = (),
) -> None:
    """Raise ValueError, before any work begins, for an output that would replace something that must be kept.

    files: the names of the files to be written into the folder `out`; None: `out` is itself a file, in a folder that
    exists, and has one of `endings`. apart: folders that are inputs; `out` may not equal, contain or be inside any of
    them. overwrite: minibert's own files may be replaced.
    """
    if endings and out.suffix.lower() not in endings:
        raise ValueError(f"{out} must be a file that ends in {', '.join(endings)}")
    if files is None and not out.parent.is_dir():
        raise FileNotFoundError(f"{out} cannot be written: there is no folder {out.parent}")
    check_place(out, apart)
    if not out.exists() or (files is not None and out.is_dir() and not any(out.iterdir())):
        return
    if out.is_dir() != (files is not None):
        raise ValueError(f"{out} is a {'folder, not a file' if out.is_dir() else 'file, not a folder'}; {OTHER}")
    if not overwrite:
        held = "" if files is None else f" and holds {listing(out)}"
        raise ValueError(f"{out} is there already{held}; {OTHER}, or replace what minibert wrote there: overwrite=True")
    if files is None:
        with regular(out).open("rb") as file:
            ends = file.read(4096)
            file.seek(max(0, out.stat().st_size - 4096))
            foreign = [] if re.search(MARKS[out.suffix.lower()], ends + file.read()) else [out]
    else:
        own = own_files(out)
        foreign = [out / name for name in files if os.path.lexists(out / name) and name not in own]
        foreign = foreign if foreign or own else sorted(out.iterdir())  # none of ours: someone else's folder
    if foreign:
        raise ValueError(
            f"not as minibert wrote it, so nothing is replaced: {', '.join(map(str, foreign[:9]))}; {OTHER}"
        )


def check_place(out: Path, apart: Iterable[str | os.PathLike[str] | None]) -> None:
    """Raise ValueError for a link, the current folder or a parent of it, and for a folder that overlaps an input.

    Raises PermissionError without the right to write there, NotADirectoryError in place of a folder.
    """
    if out.is_symlink():
        raise ValueError(f"{out} is a symbolic link; {OTHER}")
    place = out.resolve()
    if Path.cwd().is_relative_to(place):
        raise ValueError(f"{out} is the folder in which the command runs, or one around it; {OTHER}")
    for other in (user_path(one).resolve() for one in apart if one is not None and user_path(one).is_dir()):
        if place.is_relative_to(other) or other.is_relative_to(place):
            raise ValueError(f"{out} is the same as, inside or around {other}, which is read; {OTHER}")
    parent = next(one for one in place.parents if one.exists())
    os.listdir(parent)
    for folder in (one for one in (parent, place) if one.is_dir() and not os.access(one, os.W_OK | os.X_OK)):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def own_files(folder: Path) -> dict[str, str]:
    """The files in a folder that still are as minibert wrote them, each with its SHA-256."""
    listed = read_json(folder / LIST_FILE).get("files", {}) if (folder / LIST_FILE).exists() else {}
    place, own = folder.resolve(), {}
    for name, digests in listed.items() if isinstance(listed, dict) else ():
        try:
            path = (place / name).resolve()
            inside = path == place / name and path.is_relative_to(place) and path.is_file()  # not through a link
        except (OSError, ValueError, RuntimeError):  # no file can have this name: it is too long, or has a null byte
            continue
        if inside and isinstance(digests, str | list) and (digest := sha256(path)) in digests:
            own[name] = digest
    return own


@contextmanager
def atomic_folder(out: Path, overwrite: bool = False) -> Iterator[Path]:
    """A temporary folder beside `out`: its files move there when all are written, and it is removed on failure.

    Raises what check_output raises where `out` has been filled since it was checked.
    """
    temporary = temporary_path(out)
    try:
        with naming(out, temporary):
            temporary.mkdir(parents=True)
        yield temporary
        paths = sorted(path for path in temporary.rglob("*") if path.is_file())
        files = {path.relative_to(temporary).as_posix(): sha256(path) for path in paths}
        check_output(out, overwrite, files=files)
        write_list(temporary, files)
        for path in (*temporary.rglob("*"), temporary):
            sync(path)
        with suppress(OSError):
            out.rmdir()  # only an empty folder can be removed
        if out.exists():
            replace_files(out, temporary, files)
        else:
            os.rename(temporary, out)
        sync(out.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def replace_files(out: Path, temporary: Path, new: Mapping[str, str]) -> None:
    """Move the new files to `out` one by one, and delete those of minibert that are no longer written."""
    old = own_files(out)
    # A kill from here on leaves old and new files, each complete and in the list.
    write_list(out, {name: [digests[name] for digests in (old, new) if name in digests] for name in {**old, **new}})
    for name in new:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(temporary / name, out / name)
        sync((out / name).parent)
    for name in old.keys() - new.keys():
        (out / name).unlink()
    os.replace(temporary / LIST_FILE, out / LIST_FILE)
    sync(out)


def write_list(folder: Path, files: Mapping[str, object]) -> None:
    """Write LIST_FILE: for each file its SHA-256, or all values that it may have."""
    write_text_atomically(folder / LIST_FILE, json.dumps({"files": files}, indent=1) + "\n")
