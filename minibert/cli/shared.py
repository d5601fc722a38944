"""What commands share: settings that several take, and how they are read."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, fields
from typing import Any, BinaryIO, TypeVar

from minibert.vectors.recipe import Recipe

Item = TypeVar("Item")
Arguments = argparse.Namespace
Figures = dict[str, Any]  # what a command returns: printed once more as JSON where --json asks for it
DEFAULT_MODEL = "distilbert-base-uncased"
SETTINGS = {setting.name: setting for setting in fields(Recipe)}


def add_features(parser: argparse.ArgumentParser) -> None:
    """The settings of a vector, and of the machine that computes it. No `missing`: in a file no text is missing."""
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, metavar="NAME", help="checkpoint: a Hub name or a folder (%(default)s)"
    )
    add_setting(parser, "pooling", "HOW", "{choices} (%(default)s)")
    add_setting(parser, "layers", "N,N", "0: embeddings, -1: last; several: -4,-3,-2,-1 (%(default)s)", whole_numbers)
    add_setting(parser, "combine", "HOW", "of several layers: {choices} (%(default)s)")
    add_setting(parser, "precision", "TYPE", "{choices} (%(default)s)")
    add_setting(parser, "long", "HOW", "a text of more tokens than the model takes: {choices} (%(default)s)")
    add_setting(parser, "stride", "N", "tokens from one window to the next (half a window)", int)
    add_setting(parser, "truncation", "HOW", "the older name of --long: warn (cut) or error")
    add_machine(parser)


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Where to compute, and in what portions."""
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or mps (%(default)s)")
    add_setting(parser, "batch_tokens", "N", "tokens in a batch (%(default)s)", int)


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """Leave to replace an output that is there."""
    parser.add_argument("--overwrite", action="store_true", help="replace what minibert wrote there before, no more")


def add_setting(
    parser: argparse.ArgumentParser, name: str, metavar: str, words: str, read: Callable[[str], Any] = str
) -> None:
    """One setting of a Recipe, with the default and the {choices} that it has there."""
    setting = SETTINGS[name]
    default = ",".join(map(str, setting.default)) if isinstance(setting.default, tuple) else setting.default
    *choices, last = setting.metadata.get("choices", [""])
    words = words.format(choices=f"{', '.join(choices)} or {last}")
    parser.add_argument(f"--{name.replace('_', '-')}", default=default, type=read, metavar=metavar, help=words)


def features_settings(args: Arguments) -> dict[str, Any]:
    """What add_features reads, as the keyword arguments of TextFeatures. Raises what Recipe raises."""
    recipe = Recipe(**{name: getattr(args, name) for name in SETTINGS if hasattr(args, name)})
    return {"model": args.model, "device": args.device, **asdict(recipe)}


def whole_numbers(text: str) -> tuple[int, ...]:
    """ "-2,-1" as (-2, -1)."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as -2,-1") from None


def numbers(text: str) -> tuple[float, ...]:
    """ "5,2.5" as (5.0, 2.5)."""
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 5,2,1") from None


def windows_text(windowed: int, texts: int, windows: int) -> str:
    """How many texts were read in windows."""
    return f"{windowed:,} of {texts:,} texts in {windows:,} windows"


def standard_input() -> BinaryIO:
    """Standard input as bytes, which are UTF-8 whatever the locale says."""
    if sys.stdin.isatty():
        print("one text a line; end with Ctrl-D", file=sys.stderr)
    return sys.stdin.buffer


def portions(texts: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of up to `size` texts."""
    remaining = iter(texts)
    while portion := list(itertools.islice(remaining, size)):
        yield portion
