"""`minibert fill-mask`: the masked words."""

from __future__ import annotations

import argparse

from minibert.cli.shared import DEFAULT_MODEL, Arguments, Figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", help='with one or more [MASK]: "The capital of France is [MASK]."')
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="NAME", help="a Hub name or a folder (%(default)s)")
    parser.add_argument("--top-k", type=int, default=5, metavar="K", help="guesses for each mask (%(default)s)")


def run(args: Arguments) -> Figures:
    """The most likely tokens at each [MASK], with their probabilities."""
    from minibert.tasks.fill_mask import fill_mask as guess

    masks = guess(args.text, args.model, args.top_k)
    for number, guesses in enumerate(masks, start=1):
        print(f"mask {number}")
        for one in guesses:
            print(f"  {one.probability:.4f}  {one.token}")
    return {"masks": [[{"token": one.token, "probability": one.probability} for one in row] for row in masks]}
