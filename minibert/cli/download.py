"""`minibert download`: a checkpoint from the Hub."""

from __future__ import annotations

import argparse

from minibert.cli.shared import DEFAULT_MODEL, Arguments, Figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=f"a Hub name, such as {DEFAULT_MODEL}")


def run(args: Arguments) -> Figures:
    """Fetch a checkpoint into weights/, unless it is here already."""
    from minibert.checkpoints import hub

    source = hub.locate_locally(args.model)
    if source:
        print(f"{args.model} is here already, from {source.origin}: {source.folder}")
    folder = source.folder if source else hub.fetch(args.model)
    if not source:
        print(f"{args.model} is now in {folder}")
    return {"model": args.model, "folder": str(folder), "downloaded": source is None}
