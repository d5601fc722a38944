"""`minibert embed`: one vector for each text of a file."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from minibert.commands.shared import (
    Arguments,
    Figures,
    add_features,
    features_settings,
    standard_input,
    windows_text,
)


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "input",
        metavar="IN",
        help=".txt (one text a line), .tsv, .csv, .jsonl or .json, also with .gz, or .parquet; - is standard input",
    )
    add(
        "--out",
        required=True,
        type=Path,
        metavar="FILE.npy",
        help="where the matrix goes, when all is done; an "
        "interrupted command is resumed where it was if it is given again",
    )
    add(
        "--column",
        metavar="NAME",
        help="of a table: its name, or its number from 1 where there is no header "
        "(default: sentence, text, or the only one)",
    )
    add("--column2", metavar="NAME", help="the column of second texts, where the rows are pairs")
    add("--format", metavar="TYPE", help="txt, tsv, csv, jsonl, json or parquet (default: by the name)")
    add("--dtype", default="float32", metavar="TYPE", help="of numbers in the file: float32 or float16 (%(default)s)")
    add("--restart", action="store_true", help="begin again, whatever an interrupted command has done")
    add_features(parser)


def run(args: Arguments) -> Figures:
    """One vector for each text of a file, as a numpy file; memory does not grow with the number of texts."""
    from dataclasses import asdict

    from minibert.vectors.stream import embed_file

    if args.input == "-":
        standard_input()  # says what is wanted of a terminal
    begin = time.perf_counter()
    written = embed_file(
        args.input,
        args.out,
        column=args.column,
        column2=args.column2,
        format=args.format,
        dtype=args.dtype,
        restart=args.restart,
        **features_settings(args),
    )
    seconds = time.perf_counter() - begin
    before = f"; {written.resumed_rows:,} rows were done before" if written.resumed_rows else ""
    print(f"{args.out}: {written.shape} {written.dtype}, {seconds:.2f} s with loading{before}")
    if written.windowed:
        print(windows_text(written.windowed, written.rows, written.windows))
    return asdict(written) | {"seconds": round(seconds, 3)}
