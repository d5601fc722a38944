"""`minibert parity`: every tensor compared with transformers."""

import argparse

from minibert.cli.shared import Arguments, Figures, add_overwrite


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="one checkpoint (default: the real one and many random ones)")
    add("--full", action="store_true", help="the relatives' full sizes and BERT-large as well: some minutes and 8 GB")
    add("--device", default="cpu", metavar="NAME", help="cuda, mps: against our own float32 on the CPU, within bounds")
    add("--dtype", default="float32", choices=("float32", "float64", "float16", "bfloat16"), help="the same in it")
    add("--attention", default="eager", choices=("eager", "sdpa"), help="the same for torch's fused attention")
    add("--report", action="append", default=[], metavar="FILE", help="write a page, FILE.html or FILE.md (repeatable)")
    add_overwrite(parser)


def run(args: Arguments) -> Figures:
    """Every tensor, gradient and decision against transformers, bit for bit; exit status 1 if one differs."""
    from minibert.parity import report

    return report.run(args)
