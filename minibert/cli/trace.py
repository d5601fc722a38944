"""`minibert trace`: the journey of a sentence."""

import argparse
from pathlib import Path

from minibert.cli.shared import DEFAULT_MODEL, Arguments, Figures, add_overwrite
from minibert.settings import integers


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("text", metavar="TEXT", help="the text to follow")
    add("text_b", nargs="?", metavar="TEXT_B", help="a second text, to make a pair")
    add("--out", type=Path, metavar="FILE.html", help="the page")
    add("--model", metavar="NAME", help=f"a Hub name or a folder (default: the classifier's, or {DEFAULT_MODEL})")
    add(
        "--classifier",
        metavar="FOLDER",
        help="of `minibert classify train`, of `minibert finetune classify` or of transformers: explains its decision",
    )
    add("--layers", type=integers, metavar="N,N", help="layers of the page, from 0 (default: as many as fit in 12 MB)")
    add("--heads", type=integers, metavar="N,N", help="heads of the page, from 0 (default: as many as fit in 12 MB)")
    add("--truncation", default="warn", metavar="HOW", help="a text that is too long is cut (warn) or refused (error)")
    add("--annotated", type=Path, metavar="FOLDER", help="pages of `make annotated` to link (default: build/annotated)")
    add("--png", type=Path, metavar="FILE", help="the attention of one layer and head as a picture")
    add("--svg", type=Path, metavar="FILE", help="the same as vector graphics")
    add("--layer", type=int, default=-1, metavar="N", help="layer of the picture, from 0 (default: the last)")
    add("--head", default="mean", metavar="N", help="head of the picture, from 0, or mean or rollout (%(default)s)")
    add("--words", action="store_true", help="join word pieces in the picture")
    add_overwrite(parser)


def run(args: Arguments) -> Figures:
    """Follow a text through the model, on a page or as a picture of its attention."""
    from minibert.tracing import command

    return command.run(args, DEFAULT_MODEL)
