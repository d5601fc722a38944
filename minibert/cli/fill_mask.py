"""`minibert fill-mask`: the most probable tokens at each [MASK]."""

import argparse

from minibert.cli.shared import DEFAULT_MODEL, Arguments, Figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", help='with one or more [MASK]: "The capital of France is [MASK]."')
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="NAME", help="a Hub name or a folder (%(default)s)")
    parser.add_argument("--top-k", type=int, default=5, metavar="K", help="tokens for each mask (%(default)s)")


def run(args: Arguments) -> Figures:
    """The most probable tokens at each [MASK], with their probabilities."""
    from minibert.tasks.masked_text import fill_mask

    masks = fill_mask(args.text, args.model, args.top_k)
    for number, guesses in enumerate(masks, start=1):
        print(f"mask {number}", *(f"  {p:.4f}  {token}" for token, p in guesses), sep="\n")
    return {"masks": [[guess._asdict() for guess in guesses] for guesses in masks]}
