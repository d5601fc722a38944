"""`minibert predict`: the predictions of a trained folder for new texts."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from minibert.cli.classify import COLUMNS, add_columns
from minibert.cli.evaluate import load_arguments, load_reader
from minibert.cli.options import read_options
from minibert.cli.shared import Arguments, Figures, add_overwrite, standard_input
from minibert.files import atomic_write
from minibert.outputs import check_output
from minibert.text.formats import FileSettings

TEXTS_AT_ONCE = 64  # texts in a batch


def arguments(parser: argparse.ArgumentParser) -> None:
    load_arguments(parser)
    add = parser.add_argument
    add("texts", nargs="*", metavar="TEXT", help="or pairs, with a tab between (default: --file, or standard input)")
    add("--file", metavar="FILE", help="texts: .txt, .tsv, .csv, .jsonl, .json or .parquet; - is standard input")
    add_columns(parser, set(COLUMNS) - {"label"})
    add("--out", type=Path, metavar="FILE.tsv", help="a table with a header, instead of lines on standard output")
    add_overwrite(parser)


def run(args: Arguments) -> Figures:
    """A line for each text: the prediction, its probability, and the text, separated by tabs.

    On standard input a text is a line; a pair is a line with a tab between its texts.
    """
    reading = read_options(args, FileSettings)
    about_file = args.text or args.pair or reading != FileSettings()
    if (args.texts and args.file is not None) or (args.file is None and about_file):
        raise ValueError("give either texts or --file; --text, --pair and --format are about --file, and so on")
    if args.out is not None:
        check_output(args.out, args.overwrite, apart=[args.folder])
    from minibert.printing import block
    from minibert.text.tables import TextFile
    from minibert.text.texts import portions

    reader, begin = load_reader(args), time.perf_counter()
    typed = not args.texts and args.file in (None, "-") and standard_input().isatty()
    source: Any = nullcontext(args.texts)
    if not args.texts:
        source = TextFile(args.file or "-", args.text, column2=args.pair, **reading.reading)
    counts: Counter[str] = Counter()
    found: list[Any] = []
    with (
        source as texts,
        nullcontext() if args.out is None else atomic_write(args.out) as path,
        nullcontext(sys.stdout) if path is None else path.open("w", encoding="utf-8", newline="") as file,
    ):
        if path:
            print("label\tprobability\ttext", file=file)
        for portion in portions(texts, 1 if typed else TEXTS_AT_ONCE):
            lines, figures = predict(reader, portion)
            print("\n".join(lines), file=file, flush=True)
            found += figures if args.json and path is None else []
            counts.update(line.partition("\t")[0] for line in lines)
    if args.out is None:
        return {"predictions": found}
    seconds, labels = round(time.perf_counter() - begin, 3), dict(sorted(counts.items()))
    shown = ", ".join(f"{count:,} {label}" for label, count in labels.items())
    print(block("saved in", f"{args.out}: {counts.total():,} rows ({shown or 'none'}), {seconds:.1f} s"))
    return {"out": str(args.out), "rows": counts.total(), "labels": labels, "seconds": seconds}


def predict(reader: Any, rows: list[Any]) -> tuple[list[str], list[Any]]:
    """The lines of texts, and their values for --json. Rows that are all pairs, or lines with a tab, are pairs."""
    from minibert.tasks.frozen import Classifier

    columns = [row.split("\t", 1) if isinstance(row, str) else row for row in rows]
    pairs = [row[1] for row in columns] if all(len(row) == 2 for row in columns) else None
    data = reader.task.from_texts([row[0] for row in columns] if pairs else rows, pairs)
    lines = reader.task.format_predictions(answers := reader.answer(data), data)
    if not isinstance(reader, Classifier):
        return lines, lines
    values = zip(answers, data.texts, data.pairs or [None] * len(data), strict=True)
    return lines, [
        {"label": one.label, "probability": one.probability, "text": text} | ({} if pair is None else {"pair": pair})
        for one, text, pair in values
    ]
