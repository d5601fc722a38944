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
    folder = source.folder if source else hub.fetch(args.model)
    print(f"{args.model} is {f'here already, from {source.origin}' if source else 'downloaded'}: {folder}")
    return {"model": args.model, "folder": str(folder), "downloaded": source is None}
