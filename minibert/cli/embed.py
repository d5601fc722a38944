"""`minibert embed`: one vector for each text of a file or of several, or, with --engine ray, of a large corpus."""

import argparse
import time
from dataclasses import asdict
from typing import Any

from minibert.cli.shared import (
    Arguments,
    add_features,
    add_options,
    add_overwrite,
    read_options,
    standard_input,
)
from minibert.tables.formats import FileSettings
from minibert.utils.files import user_path
from minibert.utils.printing import Figures, counted, printable, require
from minibert.vectors.recipe import Recipe


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "input",
        metavar="IN",
        help=".txt (one text per line), .tsv, .csv, .jsonl or .json, also .gz, .bz2, .xz, or .parquet; - is standard "
        "input; a folder is one text per .txt file; several files: 'corpus/*.parquet' in quotes, in the order of their "
        "names",
    )
    add(
        "--out",
        required=True,
        type=user_path,
        metavar="FILE.npy",
        help="the matrix, complete when it appears; the same command resumes an interrupted one; "
        "with --engine ray a folder",
    )
    add(
        "--column",
        "--text",
        metavar="NAME",
        help="name, or number from 1 in a table without header (default: sentence, text, or the only one)",
    )
    add("--column2", "--pair", metavar="NAME", help="the column of second texts, if the rows are pairs")
    add_options(parser, FileSettings, skip=["missing"])
    add_options(parser, Recipe, only=["missing"])  # none is dropped: there is a vector for each row
    add("--dtype", default="float32", metavar="TYPE", help="of numbers in the file: float32 or float16 (%(default)s)")
    add("--restart", action="store_true", help="discard what an interrupted command has done")
    add_overwrite(parser)
    add(
        "--engine",
        default="local",
        choices=("local", "ray"),
        help="local: this process; ray: Ray Data, on all cores, or on the cluster of RAY_ADDRESS (%(default)s)",
    )
    add("--workers", type=int, metavar="N", help="with ray: models at work at once (one per core or GPU)")
    add("--keep-order", action="store_true", help="with ray: files in the order of their names, not the largest first")
    add_features(parser)


def run(args: Arguments) -> Figures:
    """Write one vector per text of a file, as a numpy file; memory does not grow with the number of texts."""
    begin = time.perf_counter()
    figures = embed_many(args) if args.engine == "ray" else embed_one(args)
    if figures["windowed"]:
        of = counted(figures["rows"], "text")
        print(f"{figures['windowed']:,} of {of} in {counted(figures['windows'], 'window')}")
    seconds = round(time.perf_counter() - begin, 3)
    print(f"{seconds:.2f} s with loading")
    return figures | {"seconds": seconds}


def shared(args: Arguments) -> dict[str, Any]:
    """Return the settings of both engines."""
    names = ("format", "delimiter", "encoding", "device")
    return {name: getattr(args, name) for name in names} | {"recipe": read_options(args, Recipe)}


def embed_one(args: Arguments) -> Figures:
    """Embed one file of texts, to a numpy file."""
    if args.workers is not None or args.keep_order:
        raise ValueError("--workers and --keep-order apply to many files at once; add --engine ray")
    from minibert.vectors.stream import embed_file

    if args.input == "-":
        standard_input()  # tells a user at a terminal what to type
    written = embed_file(
        args.input,
        args.out,
        args.model,
        column=args.column,
        column2=args.column2,
        dtype=args.dtype,
        restart=args.restart,
        overwrite=args.overwrite,
        **shared(args),
    )
    before = f"; {counted(written.resumed_rows, 'row')} done before" if written.resumed_rows else ""
    columns = written.columns or ()
    read = f", column{'s'[: len(columns) - 1]} {' and '.join(map(repr, columns))}" * bool(columns)
    print(f"{printable(str(args.out))}: {written.shape} {written.dtype}{read}{before}; {written.description}")
    if written.cosine is not None:
        print(f"int8: the smallest cosine to float32 is {written.cosine:.4f}, of up to 64 of these texts")
    return asdict(written)


def embed_many(args: Arguments) -> Figures:
    """Embed a corpus of many files, to a folder of the same files, each with a column of vectors."""
    require("ray", "pyarrow", "ray")
    from minibert.vectors.ray import embed_shards

    if args.dtype != "float32":
        raise ValueError(f"--dtype is {args.dtype}, and --engine ray writes float32")
    done = embed_shards(
        args.input,
        args.out,
        args.model,
        text=args.column,
        pair=args.column2,
        workers=args.workers,
        keep_order=args.keep_order,
        restart=args.restart or args.overwrite,
        **shared(args),
    )
    before = f"; {counted(done.resumed_shards, 'shard')} done before" if done.resumed_shards else ""
    rows = f"{counted(done.rows, 'row')} in {counted(done.shards, 'shard')}"
    print(f"{printable(done.out)}: {rows}{before}; {done.description}")
    return asdict(done)
