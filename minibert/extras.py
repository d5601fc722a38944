"""Optional packages: how to install them from where the user is. On PyPI, minibert is another project."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

DISTRIBUTION = "minibert-annotated"  # the name of this project for pip
CHECKOUT = Path(__file__).resolve().parents[1]  # the source tree, if minibert runs from one


def install_hint(extra: str) -> str:
    """The command that installs an extra of pyproject.toml: in the source tree, or else its packages by their names."""
    if (CHECKOUT / "pyproject.toml").exists():
        command = pip_install("-e", f".[{extra}]")
        return command if Path.cwd() == CHECKOUT else f"cd {shlex.quote(str(CHECKOUT))} && {command}"
    required = [line.split(";") for line in importlib.metadata.requires(DISTRIBUTION) or []]
    return pip_install(*(package.strip() for package, *marker in required if f'"{extra}"' in "".join(marker)))


def pip_install(*arguments: str) -> str:
    """`python -m pip install` with the running interpreter; an argument that a shell would interpret is quoted."""
    python, found = sys.executable or "python", shutil.which("python")
    if found and Path(found).parent == Path(python).parent and os.path.samefile(found, python):
        python = "python"  # python and python3 of one environment are one file
    quoted = (argument if re.fullmatch(r"[\w.=-]+", argument) else f'"{argument}"' for argument in arguments)
    return " ".join([shlex.quote(python), "-m pip install", *quoted])
