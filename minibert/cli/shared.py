"""What several commands share: options, a phrase of their reports, and standard input."""

import argparse
import sys
from dataclasses import asdict
from typing import Any, BinaryIO

from minibert.cli.options import add_options, read_options
from minibert.vectors.recipe import Recipe

Arguments = argparse.Namespace
Figures = dict[str, Any]  # the results of a command, which --json prints as JSON
DEFAULT_MODEL = "distilbert-base-uncased"


def add_features(parser: argparse.ArgumentParser) -> None:
    """Add the options of a Recipe, the model and the device; --missing is one of files."""
    help = "checkpoint: a Hub name or a folder (%(default)s)"
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="NAME", help=help)
    add_options(parser, Recipe, skip=("missing", "batch_tokens"))
    add_machine(parser)


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Add the options for the device and the size of a batch."""
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or mps (%(default)s)")
    add_options(parser, Recipe, only=["batch_tokens"])


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """Add the option that permits replacing an output."""
    parser.add_argument("--overwrite", action="store_true", help="replace files that minibert wrote, no others")


def features_settings(args: Arguments) -> dict[str, Any]:
    """The options of add_features, as the keyword arguments of TextFeatures. Raises what Recipe raises."""
    return {"model": args.model, "device": args.device, **asdict(read_options(args, Recipe))}


def windows_text(windowed: int, texts: int, windows: int) -> str:
    """How many texts were longer than the model allows and read in windows."""
    return f"{windowed:,} of {texts:,} texts in {windows:,} windows"


def standard_input() -> BinaryIO:
    """Standard input as bytes, so that the locale does not matter; a user at a terminal gets a hint."""
    if sys.stdin.isatty():
        print("one text a line; end with Ctrl-D", file=sys.stderr)
    return sys.stdin.buffer
