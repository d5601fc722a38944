"""What a kill or a fault leaves on disk: a folder in each of its states, a file with a flipped bit."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock


def flip(path: Path, place: int) -> None:
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def copies_of(folder: Path, into: Path, work: Callable[[], object]) -> list[Path]:
    """Copies of a folder before each file that appears or is removed during the work: what a kill would leave."""
    copies = list[Path]()

    def copy_before(function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*given: Any, **more: Any) -> Any:
            copies.append(Path(shutil.copytree(folder, into / f"copy {len(copies)}")))
            return function(*given, **more)

        return watched

    with mock.patch.multiple(os, replace=copy_before(os.replace), unlink=copy_before(os.unlink)):
        work()
    return copies
