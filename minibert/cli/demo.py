"""`minibert demo`: the main job."""

import argparse

from minibert.cli.shared import DEFAULT_MODEL, Arguments, add_options, read_options
from minibert.tables.formats import FileSettings
from minibert.utils.printing import Figures, block


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", metavar="FILE", help="labelled texts, .tsv, .csv or .jsonl (default: SST-2 if it is available)")
    add("--text", metavar="COLUMN", help="column of the texts of --data: name, or number without a header")
    add("--label", metavar="COLUMN", help="column of the labels of --data")
    add_options(parser, FileSettings)
    add("--model", metavar="NAME", help=f"checkpoint (default: {DEFAULT_MODEL} if it is available)")
    add("--rows", type=int, default=2000, metavar="N", help="rows to use (%(default)s)")
    add("--files", metavar="FOLDER", help="also write the files that README's commands read; those there are kept")


def run(args: Arguments) -> Figures:
    """Classify sentences, start to end, with the weights and data that are available."""
    reading = read_options(args, FileSettings)
    if args.data is None and (args.text or args.label or reading != FileSettings()):
        raise ValueError("--text and --label are columns of --data, which is not given, and the rest is about it")
    from minibert.prediction.demo import demo
    from minibert.prediction.samples import write_samples

    columns = {"text": args.text, "label": args.label, **reading.reading}
    written = {} if args.files is None else write_samples(args.files)  # first, so that an error costs no time
    figures = demo(args.data, args.model, args.rows, **columns)
    if written:
        kept = "" if all(written.values()) else "; files that were there are as they were"
        print(block("samples", f"{args.files}: {', '.join(written)}{kept}"))
    return figures | {"files": written}
