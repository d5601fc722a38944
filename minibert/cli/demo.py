"""`minibert demo`: the main job."""

from __future__ import annotations

import argparse

from minibert.cli.shared import DEFAULT_MODEL, Arguments, Figures


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", metavar="FILE", help="labelled texts, .tsv, .csv or .jsonl (default: SST-2 if it can be had)")
    add("--text", metavar="COLUMN", help="of --data: name, or number where there is no header")
    add("--label", metavar="COLUMN", help="the same of the labels")
    add("--model", metavar="NAME", help=f"checkpoint (default: {DEFAULT_MODEL} if it can be had)")
    add("--rows", type=int, default=2000, metavar="N", help="how many rows to use (%(default)s)")


def run(args: Arguments) -> Figures:
    """The main job, start to end, with whatever weights and data this machine can reach."""
    if args.data is None and (args.text or args.label):
        raise ValueError("--text and --label are columns of --data, which is not given")
    from minibert.tasks import demo as room

    def show(text: str) -> None:
        print(text, flush=True)

    return room.demo(args.data, args.model, args.rows, show, text=args.text, label=args.label)
