"""`minibert check`: a BERT of your own beside the right one."""

import argparse
import time
from pathlib import Path

from minibert.checking import TEXT
from minibert.cli.shared import Arguments, add_overwrite
from minibert.utils.files import user_path
from minibert.utils.printing import Figures, block

PRECISIONS = ("auto", "float32", "float16", "bfloat16")


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "what",
        nargs="?",
        metavar="WHAT",
        help="a file of functions (my_bert.py, as tutorials/build/ has it), a model (my_bert.py:NAME, a class or a "
        "function that takes the checkpoint's folder), or numbers (outputs.npz); a file of Python is run",
    )
    add("--model", default="all-MiniLM-L6-v2", metavar="NAME", help="checkpoint of a model or numbers (%(default)s)")
    add("--export", type=user_path, metavar="FILE.npz", help="write the inputs, and what they should become")
    add("--stage", metavar="FUNCTION", help="check one function of a file, and those that it needs")
    add(
        "--precision", default="auto", choices=PRECISIONS, help="in which numbers were computed (%(default)s: by dtype)"
    )
    add(
        "--text",
        default=TEXT,
        metavar="TEXT",
        help="on which your functions are shown at work; [MASK] is guessed (%(default)s)",
    )
    add("--certificate", type=user_path, metavar="FILE.html", help="write a page, once all functions are right")
    add("--watch", action="store_true", help="check again when the file changes, until Ctrl-C")
    add_overwrite(parser)


def run(args: Arguments) -> Figures:
    """Say what is right, what is wrong and why, and what to write next."""
    from minibert.checking.arrays import write_inputs
    from minibert.checking.certificate import write_certificate
    from minibert.checking.check import check
    from minibert.checkpoints.checkpoint import Checkpoint
    from minibert.utils.outputs import check_file

    if (args.export is None) == (args.what is None):
        raise ValueError("give a file to check, or --export FILE.npz to write the inputs")
    if args.export is not None:
        check_file(args.export, args.overwrite, endings=(".npz",))
        print(*write_inputs(args.export, Checkpoint.open(args.model)), sep="\n")
        print(block("written", str(args.export)))
        return {"ok": True, "out": str(args.export)}
    if args.certificate is not None:
        check_file(args.certificate, args.overwrite, endings=(".html",), apart=(args.what,))
        print(*write_certificate(args.certificate, user_path(args.what), args.text), sep="\n")
        print(block("written", str(args.certificate)))
        return {"ok": True, "out": str(args.certificate)}
    while True:
        before = modified(args.what)
        report = check(args.what, args.model, stage=args.stage, precision=args.precision, text=args.text)
        print(report, flush=True)
        if not args.watch:
            return report.figures
        while modified(args.what) == before:
            time.sleep(0.2)


def modified(what: str) -> int:
    """Return when the file was last changed, in nanoseconds; 0 if it is not there, as while an editor saves it."""
    path = Path(what.partition(".py:")[0] + ".py" if ".py:" in what else what)
    return path.stat().st_mtime_ns if path.exists() else 0
