"""`minibert bench`: speed against transformers and other peers."""

from __future__ import annotations

import argparse
from pathlib import Path

from minibert.commands.shared import Arguments, Figures


def arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `minibert bench`."""
    add = parser.add_argument
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="minibert and transformers alone: less than a minute")
    size.add_argument("--full", action="store_true", help="more rounds, and up to 100,000 sentences: hours")
    add("--device", default="cpu", metavar="NAME", help="cpu or cuda (%(default)s)")
    add(
        "--model",
        action="append",
        metavar="NAME",
        help="a checkpoint, or distilbert-shape (repeatable; default: distilbert-shape and all-MiniLM-L6-v2)",
    )
    add("--sentences", type=int, metavar="N", help="texts of the job (default: 2000; quick: 256)")
    add("--rounds", type=int, metavar="N", help="in which everybody takes a turn (default: 3; full: 7)")
    add("--threads", type=int, metavar="N", help="of each contestant (default: all cores)")
    add("--plot", type=Path, metavar="FILE.png", help="draw the figures")


def run(args: Arguments) -> Figures:
    """Speed, memory and equality against transformers and other peers; half an hour or more on two cores.

    Exit status 1 if our own vectors differ from those of transformers.
    """
    from minibert.lab.bench import command

    return command.run(args)
