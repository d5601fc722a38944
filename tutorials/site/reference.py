"""Every public name from its docstring, and every command from its help: what the site shows to look things up in."""

import inspect
import io
import os
import re
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from textwrap import dedent
from typing import Any
from unittest.mock import patch

import minibert
from minibert.cli.main import COMMANDS, main

WIDTH = 88  # columns of a signature
NARROW = 48  # of a command's help, which fit a phone
ANNOTATION = re.compile(r": '([^']*)'")  # which Python keeps as text
NAMES = {"minibert": minibert, "minibert.train": minibert.train, "minibert.stream": minibert.stream}


def reference() -> str:
    """Return the public names as Markdown, each with its signature, its docstring and its methods."""
    lines = []
    for module, found in NAMES.items():
        lines += [f"## {module}", described(found)]
        for name in found.__all__:
            if f"{module}.{name}" not in NAMES:
                lines += entry(f"{module}.{name}", getattr(found, name))
    return "\n\n".join(lines)


def entry(name: str, found: Any) -> Iterator[str]:
    """Yield the entry of a function, or of a class and its methods."""
    yield from (f"### {name}", signature(name.rpartition(".")[2], found), described(found))
    if inspect.isclass(found):
        for method, value in vars(found).items():
            if (
                not method.startswith("_")
                and inspect.getdoc(value)
                and (callable(value) or isinstance(value, property))
            ):
                shown = signature(method, value) if callable(value) else f"```python\n{method}\n```"
                yield from (f"#### {name}.{method}", shown, described(value))


def signature(name: str, found: Any) -> str:
    """Return a call as code, a parameter per line if it is long."""
    given = inspect.signature(found)
    result = "" if inspect.isclass(found) else f" -> {given.return_annotation}"
    parts = [part for part in parameters(given) if part != "self"]
    call = f"{name}({', '.join(parts)}){result}"
    if len(call) > WIDTH:
        lines = "".join(f"    {part},\n" for part in parts)
        call = f"{name}(\n{lines}){result}"
    return f"```python\n{call}\n```"


def parameters(given: inspect.Signature) -> Iterator[str]:
    """Yield the parameters as they are written, with * before those that are given by name."""
    named = False
    for one in given.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not named:
            named = True
            yield "*"
        named = named or one.kind is one.VAR_POSITIONAL
        if len(repr(one.default)) > WIDTH // 2:
            one = one.replace(default=...)
        yield ANNOTATION.sub(r": \1", str(one)).replace("= Ellipsis", "= ...")


def described(found: Any) -> str:
    """Return the docstring as Markdown; what is indented keeps its layout."""
    blocks = re.split(r"\n\s*\n", inspect.getdoc(found) or "")
    laid_out = (f"```text\n{dedent(block)}\n```" if block.startswith("  ") else escaped(block) for block in blocks)
    return "\n\n".join(laid_out)


def escaped(text: str) -> str:
    """Return text in which only `code` is markup."""
    parts = text.split("`")
    parts[::2] = (re.sub(r"[\\*_\[\]<>$#|~]", r"\\\g<0>", part) for part in parts[::2])
    return "`".join(parts)


def commands() -> str:
    """Return the help of each command as Markdown."""
    lines = []
    for name in COMMANDS:
        help = io.StringIO()
        with redirect_stdout(help), suppress(SystemExit), patch.dict(os.environ, {"COLUMNS": str(NARROW)}):
            main([*name.split(), "--help"])
        lines += [f"## minibert {name}", f"```text\n{help.getvalue().rstrip()}\n```"]
    return "\n\n".join(lines)
