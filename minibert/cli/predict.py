"""`minibert predict`: what a model with a task head says of new texts."""

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

from minibert.cli.classify import COLUMNS, add_columns
from minibert.cli.evaluate import load_arguments, load_reader, with_file_options
from minibert.cli.shared import Arguments, Figures, add_overwrite, standard_input
from minibert.outputs import check_output

TEXTS_AT_ONCE = 64  # texts in a batch
Row = tuple[str, str | None, dict[str, Any]]  # a text, its second text, and all columns of its row


def arguments(parser: argparse.ArgumentParser) -> None:
    load_arguments(parser)
    add = parser.add_argument
    add("texts", nargs="*", metavar="TEXT", help="or pairs, with a tab between (default: --file, or standard input)")
    add("--file", metavar="FILE", help="texts: .txt, .tsv, .csv, .jsonl, .json or .parquet; - is standard input")
    add_columns(parser, set(COLUMNS) - {"label"})
    parser.set_defaults(encoding=None, missing=None)  # None: as in training
    add("--pretokenized", action="store_true", help="for a tagger: words are separated by spaces alone")
    add(
        "--out",
        type=Path,
        metavar="FILE",
        help="a table of the predictions and all columns of the input: .tsv, .csv, .jsonl or .parquet; an input column "
        "that is called as a prediction becomes NAME_input",
    )
    add_overwrite(parser)


def run(args: Arguments) -> Figures:
    """A line for each text: the prediction, its probability, and the text, separated by tabs.

    On standard input a text is a line; a pair, such as a question and its passage, is a line with a tab between.
    """
    about = [f"--{name}" for name in COLUMNS if name != "label" and getattr(args, name) is not None]
    if args.file is None and about:
        raise ValueError(f"{', '.join(about)} is about --file, which is not given; --file - is standard input")
    if args.texts and args.file is not None:
        raise ValueError("give either texts or --file")
    from minibert.printing import block, require
    from minibert.text.writing import ENDINGS, table_writer
    from minibert.train.reader import with_given_words

    if args.out is not None:
        check_output(args.out, args.overwrite, endings=ENDINGS, apart=[args.folder])
        require("parquet", *["pyarrow"] * (args.out.suffix.lower() == ".parquet"))
    reader, begin = load_reader(args), time.perf_counter()
    if args.pretokenized:
        reader = with_given_words(reader)
    typed = not args.texts and args.file in (None, "-") and standard_input().isatty()
    counts: Counter[str] = Counter()
    found: list[Any] = []
    total = 0
    rows = rows_of(args, reader)
    with table_writer(args.out) if args.out else nullcontext() as write:
        while portion := list(islice(rows, 1 if typed else TEXTS_AT_ONCE)):
            lines, predictions = predict(reader, portion)
            table = [joined(one, given) for one, (_, _, given) in zip(predictions, portion, strict=True)]
            if write is None:
                print("\n".join(lines), flush=True)
                found += table if args.json else []
            else:
                write(table)
            total += len(table)
            counts.update(one["label"] for one in predictions if "label" in one)
    if args.out is None:
        return {"predictions": found}
    seconds, labels = round(time.perf_counter() - begin, 3), dict(sorted(counts.items()))
    shown = ", ".join(f"{count:,} {label}" for label, count in labels.items())
    print(block("saved in", f"{args.out}: {total:,} rows{f' ({shown})' if shown else ''}, {seconds:.1f} s"))
    return {"out": str(args.out), "rows": total, "labels": labels, "seconds": seconds}


def rows_of(args: Arguments, reader: Any) -> Iterator[Row]:
    """The rows of the file, or of the texts that were given as arguments or lines.

    Raises ValueError for single texts where the model reads pairs, and for pairs where it reads single texts.
    """
    from minibert.tasks.classification import Classification
    from minibert.text.tables import TextFile

    pairs, choices = reader.pairs, reader.task.name == "choose"
    if args.file is not None:
        trained = reader.task if isinstance(reader.task, Classification) else Classification()
        how = with_file_options(trained, args, args.file)
        if pairs is not None and pairs != (how.pair is not None):
            wanted = "pairs: name the column of the second texts, --pair" if pairs else "one text a row, without --pair"
            raise ValueError(f"the model of {args.folder} reads {wanted}")
        column = how.text or ("question" if choices else None)
        with TextFile(args.file, column, column2=how.pair, whole=True, **how.reading) as file:
            for row in file:
                text, pair = (row, None) if isinstance(row, str) else row
                yield json.dumps(file.record) if choices else text, pair, file.record
        return
    with nullcontext(args.texts) if args.texts else TextFile("-") as lines:
        for number, line in enumerate(lines):
            pairs = "\t" in line if pairs is None else pairs
            text, tab, second = line.partition("\t") if pairs else (line, "", "")
            if pairs and not tab:
                raise ValueError(f"row {number} has no tab; this model reads pairs, with a tab between their texts")
            yield (text, second, {"text": text, "pair": second}) if pairs else (text, None, {"text": text})


def predict(reader: Any, rows: list[Row]) -> tuple[list[str], list[dict[str, Any]]]:
    """The lines and the dicts of the predictions."""
    texts, pairs, _ = zip(*rows, strict=True)
    data = reader.task.from_texts(texts, None if pairs[0] is None else pairs)
    answers = reader.answer(data)
    return reader.task.format_predictions(answers, data), reader.task.as_dicts(answers, data)


def joined(prediction: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """One row of the table: columns of the input that are called as a prediction become NAME_input."""
    row = dict(prediction)
    for name, value in given.items():
        while name in row:
            name += "_input"
        row[name] = value
    return row
