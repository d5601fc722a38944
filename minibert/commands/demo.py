"""`minibert demo`: the main job."""

from __future__ import annotations

import argparse

from minibert.commands.shared import DEFAULT_MODEL, Arguments, Figures


def arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `minibert demo`."""
    parser.add_argument("--data", metavar="FILE", help="labelled texts, .tsv or .csv (default: SST-2 if it can be had)")
    parser.add_argument("--model", metavar="NAME", help=f"checkpoint (default: {DEFAULT_MODEL} if it can be had)")
    parser.add_argument("--rows", type=int, default=2000, metavar="N", help="how many rows to use (%(default)s)")


def run(args: Arguments) -> Figures:
    """The main job, start to end, with whatever weights and data this machine can reach."""
    from minibert.tasks import demo as room

    return room.demo(args.data, args.model, args.rows, show=lambda text: print(text, flush=True))
