"""`minibert inspect`: what is in a checkpoint."""

from __future__ import annotations

import argparse

from minibert.cli.shared import Arguments, Figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="a Hub name or a folder (default: all that are known)"
    )

    parser.add_argument(
        "--tensors", action="store_true", help="also each tensor: name, dtype, shape, and its name in minibert"
    )


def run(args: Arguments) -> Figures:
    """What is in a checkpoint on this machine, or which known checkpoints are here; downloads nothing."""
    from minibert.checkpoints import inspection

    if args.model is None:
        if args.tensors:
            raise ValueError("--tensors is about one checkpoint; name it")
        known = inspection.known_checkpoints()
        print(inspection.known_text(known))
        return {"checkpoints": known}
    figures = inspection.inspect(args.model)
    print(inspection.checkpoint_text(figures))
    if args.tensors:
        print(inspection.tensors_text(figures))
    return figures
