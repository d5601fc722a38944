"""What commands share: settings that several take, and how they are read."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

Arguments = argparse.Namespace
Figures = dict[str, Any]  # what a command returns: printed once more as JSON where --json asks for it
DEFAULT_MODEL = "distilbert-base-uncased"


def add_features(parser: argparse.ArgumentParser) -> None:
    """The settings of a vector, and of the machine that computes it."""
    add = parser.add_argument
    add("--model", default=DEFAULT_MODEL, metavar="NAME", help="checkpoint: a Hub name or a folder (%(default)s)")
    add("--pooling", default="cls", metavar="HOW", help="cls, mean, max or pooler (%(default)s)")
    add(
        "--layers",
        default="-1",
        type=whole_numbers,
        metavar="N,N",
        help="0: embeddings, -1: last layer; several: --layers=-4,-3,-2,-1 (%(default)s)",
    )
    add("--combine", default="concat", metavar="HOW", help="of several layers: concat, sum or mean (%(default)s)")
    add("--precision", default="float32", metavar="TYPE", help="float32, bfloat16, float16 or auto (%(default)s)")
    add("--truncation", default="warn", metavar="HOW", help="a text that is too long is cut (warn) or refused (error)")
    add_machine(parser)


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Where to compute, and in what portions."""
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or mps (%(default)s)")
    parser.add_argument("--batch-tokens", default=4096, type=int, metavar="N", help="tokens in a batch (%(default)s)")


def features_settings(args: Arguments) -> dict[str, Any]:
    """The settings that add_features reads, by the names of TextFeatures."""
    names = ("model", "pooling", "layers", "combine", "precision", "truncation", "device", "batch_tokens")
    return {name: getattr(args, name) for name in names}


def whole_numbers(text: str) -> tuple[int, ...]:
    """ "-2,-1" as (-2, -1)."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as -2,-1") from None


def standard_input() -> BinaryIO:
    """Standard input as bytes, which are UTF-8 whatever the locale says."""
    if sys.stdin.isatty():
        print("one text a line; end with Ctrl-D", file=sys.stderr)
    return sys.stdin.buffer


def portions(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lists of up to `size` texts."""
    texts = iter(texts)
    while portion := list(itertools.islice(texts, size)):
        yield portion
