"""What several commands share: flags made from settings, options, and standard input."""

import os
import re
import shlex
import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any, BinaryIO, TypeVar

from minibert.tables.formats import format_by_name
from minibert.tasks import TASKS
from minibert.tasks.settings import ClassificationSettings
from minibert.utils.printing import cut, note
from minibert.utils.settings import type_of
from minibert.vectors.recipe import Recipe

Arguments = Namespace
Settings = TypeVar("Settings")
DEFAULT_MODEL = "distilbert-base-uncased"
# The settings of Classification about a file.
COLUMNS = ("text", "pair", "label", "format", "delimiter", "encoding", "missing")


# ---------------------------------------------------------------------------------------------------------------
# Each field of a settings dataclass is one option of a command


def add_options(
    parser: ArgumentParser,
    settings: type,
    only: Collection[str] | None = None,
    skip: Collection[str] = (),
    **defaults: Any,
) -> None:
    """Add an option for each field that has a help text: --learning-rate for learning_rate, a switch for a bool.

    A bool that may be None has two switches, --normalize and --no-normalize. only, skip: names of fields. defaults:
    those that differ from the settings' own, by name.
    """
    for setting in fields(settings):
        if setting.name in skip or "help" not in setting.metadata or (only is not None and setting.name not in only):
            continue
        kind, optional = type_of(settings, setting.name)
        default = defaults.get(setting.name, setting.default)
        flag = f"--{setting.name.replace('_', '-')}"
        help = help_of(default, setting.metadata)
        if kind is bool:
            action: Any = BooleanOptionalAction if optional else "store_true"
            parser.add_argument(flag, action=action, default=default, help=help)
            continue
        metavar = setting.metadata["metavar"] or {int: "N", float: "X"}.get(kind, "NAME")
        parse = setting.metadata["parse"] or (kind if kind in (int, float) else str)
        parser.add_argument(flag, type=parse, default=default, metavar=metavar, help=help)


def help_of(default: Any, metadata: Mapping[str, Any]) -> str:
    """Return the help text of a setting, with its choices and its default, if it has one."""
    *choices, last = metadata["choices"] or ("",)
    text: str = metadata["help"].replace("{choices}", f"{', '.join(choices)} or {last}").replace("%", "%%")
    if default is None or default is False or default == "":
        return text
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    return f"{text} ({shown})"


def read_options(args: Arguments, settings: type[Settings], **more: Any) -> Settings:
    """Make the settings from the parsed options and `more`. Raises what the dataclass raises for a wrong value."""
    named = {setting.name: getattr(args, setting.name) for setting in fields(settings) if hasattr(args, setting.name)}  # type: ignore[arg-type]  # a dataclass
    return settings(**(named | more))


# ---------------------------------------------------------------------------------------------------------------
# Options of several commands


def add_features(parser: ArgumentParser) -> None:
    """Add the options of a Recipe, the model and the device; --missing is one of files."""
    help = "checkpoint: a Hub name or a folder (%(default)s)"
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="NAME", help=help)
    add_options(parser, Recipe, skip=("missing", "batch_tokens"))
    add_machine(parser)


def add_masked_lm(parser: ArgumentParser) -> None:
    """Add the checkpoint with a masked-LM head; find_masked_lm chooses one that is not named."""
    help = (
        f"with a trained masked-LM head: a Hub name or a folder ({DEFAULT_MODEL}; if it is not here, minibert-novels)"
    )
    parser.add_argument("--model", metavar="NAME", help=help)


def add_device(parser: ArgumentParser) -> None:
    """Add the option for the device."""
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or mps (%(default)s)")


def add_machine(parser: ArgumentParser) -> None:
    """Add the options for the device and the size of a batch."""
    add_device(parser)
    add_options(parser, Recipe, only=["batch_tokens"])


def add_data(parser: ArgumentParser) -> None:
    """Add a table of labelled texts, and the options that choose its columns."""
    parser.add_argument("data", metavar="DATA", help=TASKS["classify"].data_help)
    add_options(parser, ClassificationSettings, only=COLUMNS)


def add_overwrite(parser: ArgumentParser) -> None:
    """Add the option that permits replacing an output."""
    parser.add_argument(
        "--overwrite", action="store_true", help="replace this file, or a folder that only minibert wrote to"
    )


def masked_lm(args: Arguments) -> str:
    """Return the checkpoint of add_masked_lm; standard error names one that the user did not name."""
    from minibert.storage.hub import find_masked_lm

    if args.model is None:
        args.model = find_masked_lm()
        note(f"computed by {args.model}; --model names another")
    return str(args.model)


def check_texts(args: Arguments, texts: Iterable[str]) -> None:
    """Raise ValueError for a text that is a file or a folder, or has the name of one: its content must be meant."""
    for text in texts:
        if os.path.exists(text) or (re.fullmatch(r"\S+", text) and format_by_name(text)):
            way = f"--file {shlex.quote(text)} reads it; a text of this name can come from standard input"
            way = (
                way if hasattr(args, "file") else "this command reads no files and has no --file; give the text itself"
            )
            raise ValueError(f"{cut(text)} is the name of a file or a folder, not a text; {way}")


def standard_input() -> BinaryIO:
    """Return standard input as bytes, so that the locale does not matter; a user at a terminal gets a hint."""
    if sys.stdin.isatty():
        print("one text per line; end with Ctrl-D", file=sys.stderr)
    return sys.stdin.buffer
