"""`minibert export`: a checkpoint as an ONNX file."""

from __future__ import annotations

import argparse
from pathlib import Path

from minibert.cli.shared import Arguments, Figures, add_overwrite


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="NAME", help="a Hub name or a folder")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.onnx", help="the file")
    parser.add_argument(
        "--head",
        metavar="HEAD",
        help="a task head that the checkpoint has, or encoder (default: its head of fine-tuning, else encoder)",
    )
    add_overwrite(parser)


def run(args: Arguments) -> Figures:
    """Write a checkpoint as an ONNX file that takes texts of any number and length, and compare it with the model."""
    from minibert.checkpoints.export import export
    from minibert.printing import block

    exported = export(args.model, args.out, head=args.head, overwrite=args.overwrite)
    print(block("inputs", ", ".join(exported["inputs"])))
    print(block("outputs", ", ".join(exported["outputs"])))
    print(block("compared", f"with the model, by onnxruntime: largest difference {exported['difference']:.1e}"))
    print(block("written", f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB"))
    return exported
