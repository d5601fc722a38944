"""Command-line flags from settings: each field of a settings dataclass is one option of a command."""

import argparse
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from minibert.settings import type_of

Settings = TypeVar("Settings")


def add_options(
    parser: argparse.ArgumentParser,
    settings: type,
    only: Collection[str] | None = None,
    skip: Collection[str] = (),
    **defaults: Any,
) -> None:
    """Add an option for each field that has a help text: --learning-rate for learning_rate, a switch for a bool.

    A bool that may be None has two switches, --normalize and --no-normalize. only, skip: names of fields. defaults:
    those that differ from the settings' own, by name.
    """
    for one in fields(settings):
        if one.name in skip or "help" not in one.metadata or (only is not None and one.name not in only):
            continue
        (kind, optional), default = type_of(settings, one.name), defaults.get(one.name, one.default)
        flag, help = f"--{one.name.replace('_', '-')}", help_of(default, one.metadata)
        if kind is bool:
            action: Any = argparse.BooleanOptionalAction if optional else "store_true"
            parser.add_argument(flag, action=action, default=default, help=help)
            continue
        metavar = one.metadata["metavar"] or {int: "N", float: "X"}.get(kind, "NAME")
        parse = one.metadata["parse"] or (kind if kind in (int, float) else str)
        parser.add_argument(flag, type=parse, default=default, metavar=metavar, help=help)


def help_of(default: Any, metadata: Mapping[str, Any]) -> str:
    """The help text of a setting, with its choices and, where it has one, its default."""
    *choices, last = metadata["choices"] or ("",)
    text: str = metadata["help"].replace("{choices}", f"{', '.join(choices)} or {last}").replace("%", "%%")
    if default is None or default is False or default == "":
        return text
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    return f"{text} ({shown})"


def read_options(args: argparse.Namespace, settings: type[Settings], **more: Any) -> Settings:
    """Make the settings from the parsed options and `more`. Raises what the dataclass raises for a wrong value."""
    named = {one.name: getattr(args, one.name) for one in fields(settings) if hasattr(args, one.name)}  # type: ignore[arg-type]  # a dataclass
    return settings(**(named | more))
