"""`minibert convert`: an older folder, whose weights are a pickle, as safetensors."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from minibert.cli.shared import Arguments, Figures, add_overwrite


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="with pytorch_model.bin and config.json")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER2", help="a new folder")
    add_overwrite(parser)
    parser.add_argument("--model-type", metavar="TYPE", help="such as bert: for a config.json that states none")


def run(args: Arguments) -> Figures:
    """Write a checkpoint whose weights are a pickle as safetensors; a pickle that would run code is refused."""
    from minibert.checkpoints.convert import convert
    from minibert.printing import block

    done = convert(args.folder, args.out, model_type=args.model_type, overwrite=args.overwrite)
    print(block("read", f"{done.folder}: {', '.join(done.read)}"))
    for name, why in done.left_out.items():
        print(block("left out", f"{name}: {why}"))
    print(
        block("written", f"{done.out}: {', '.join(done.written)}; {done.tensors} tensors, model_type {done.model_type}")
    )
    return asdict(done)
