"""What is optional, and how it is installed where the user stands: no hint may name what pip would not find.

On the public index, the name minibert belongs to another project.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

DISTRIBUTION = "minibert-annotated"  # what pip calls this project
CHECKOUT = Path(__file__).resolve().parents[1]  # where it is used from its source


def install_hint(extra: str) -> str:
    """The command that installs an extra of pyproject.toml: into the checkout, or else its packages by their names."""
    if not (CHECKOUT / "pyproject.toml").exists():
        return pip_install(*missing(extra))
    command = pip_install("-e", f".[{extra}]")
    return command if Path.cwd() == CHECKOUT else f"cd {shlex.quote(str(CHECKOUT))} && {command}"


def pip_install(*arguments: str) -> str:
    """`python -m pip install`, with the interpreter that runs now, under the shortest name that means it."""
    python = sys.executable or "python"
    found = shutil.which("python")
    if found and Path(found).parent == Path(python).parent and os.path.samefile(found, python):
        python = "python"  # python and python3 of one environment are one file
    elif Path(python).is_relative_to(CHECKOUT) and Path.cwd() == CHECKOUT:
        python = os.path.relpath(python)
    return " ".join([shlex.quote(python), "-m pip install", *(quoted(argument) for argument in arguments)])


def quoted(argument: str) -> str:
    """In double quotes, which every shell has, where a shell would take a bracket or a comparison for its own."""
    return argument if re.fullmatch(r"[\w.=-]+", argument) else f'"{argument}"'


def missing(extra: str) -> list[str]:
    """What the extra asks for and is not installed, or all of it: such as "transformers<=5.23.0,>=5.0.0"."""
    asked = [
        requirement.partition(";")[0].strip()
        for requirement in importlib.metadata.requires(DISTRIBUTION) or []
        if re.search(rf"extra == ['\"]{extra}['\"]", requirement)
    ]
    return [requirement for requirement in asked if not is_installed(requirement)] or asked


def is_installed(requirement: str) -> bool:
    """Whether the package is there, in whatever version."""
    try:
        return bool(importlib.metadata.version(re.split(r"[^\w.-]", requirement)[0]))
    except importlib.metadata.PackageNotFoundError:
        return False
