"""Text for users: values in error messages, reports in aligned lines, the commands that install optional packages."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

MARGIN = 15  # columns of a report for the name of a line
WIDTH = 96  # columns of a report
LONGEST = 80  # characters of a value in an error message
DISTRIBUTION = "minibert-annotated"  # the name of this project for pip; on PyPI, minibert is another project
CHECKOUT = Path(__file__).resolve().parents[1]  # the source tree, if minibert runs from one


def brief(value: object) -> str:
    """A value for an error message: its repr where that is short, else its type."""
    text = repr(value)
    return text if len(text) <= LONGEST and "\n" not in text else f"of type {type(value).__name__}"


def beside(name: str, lines: str) -> str:
    """A name with a table beside it, whose lines stay as they are."""
    return "\n".join(f"{'' if number else name:<{MARGIN}}{line}" for number, line in enumerate(lines.splitlines()))


def block(name: str, *paragraphs: str) -> str:
    """A name with text beside it: each paragraph begins a line, long ones are wrapped, and no path is broken."""
    width = WIDTH - MARGIN
    lines = [textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False) for text in paragraphs]
    return beside(name, "\n".join(lines))


def table(rows: Sequence[Sequence[object]], left: int = 1) -> str:
    """Rows with aligned columns: the first `left` to the left, the others to the right."""
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    line = "  ".join(f"{{!s:{'<' if number < left else '>'}{width}}}" for number, width in enumerate(widths))
    return "\n".join(line.format(*row).rstrip() for row in rows)


def named(labels: Iterable[str], meaning: Mapping[str, str]) -> list[str]:
    """The labels, each with its meaning where there is one: "1 positive"."""
    return [f"{label} {meaning[label]}" if label in meaning else label for label in labels]


def install_hint(extra: str) -> str:
    """The command that installs an extra of pyproject.toml: in the source tree, or else its packages by their names."""
    if (CHECKOUT / "pyproject.toml").exists():
        command = pip_install("-e", f".[{extra}]")
        return command if Path.cwd() == CHECKOUT else f"cd {shlex.quote(str(CHECKOUT))} && {command}"
    required = [line.split(";") for line in importlib.metadata.requires(DISTRIBUTION) or []]
    return pip_install(*(package.strip() for package, *marker in required if f'"{extra}"' in "".join(marker)))


def pip_install(*arguments: str) -> str:
    """The pip command of the running interpreter; an argument that a shell would interpret is quoted."""
    quoted = (argument if re.fullmatch(r"[\w.=-]+", argument) else f'"{argument}"' for argument in arguments)
    return " ".join([shlex.quote(sys.executable or "python"), "-m pip install", *quoted])
