"""`minibert classify`: features and logistic regression, trained, measured, used."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minibert.cli.shared import (
    Arguments,
    Figures,
    add_features,
    add_machine,
    add_overwrite,
    features_settings,
    portions,
    standard_input,
    windows_text,
)
from minibert.files import atomic_folder, atomic_write, check_output

if TYPE_CHECKING:
    from minibert.text.texts import Row

TEXTS_AT_ONCE = 64  # that predict reads before it answers
Answer = tuple[str, float, tuple[str, ...]]  # label, its probability, the text or the two of a pair
CLASSIFIER_FILES = ("classifier.safetensors", "classifier.json")  # that is written, and that of an earlier minibert
LINE_ENDS, BREAKS = re.compile(r"[\r\n]"), re.compile(r"[\r\n\t]")


def grid(text: str) -> str | list[float]:
    """The name of a grid, or values of C."""
    try:
        return text if text.isalpha() else [float(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not tutorial, log or numbers such as 0.1,1") from None


def data_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("data", metavar="DATA", help="labelled texts: .tsv, .csv, .jsonl, .json or .parquet; - is standard input")
    add("--text", metavar="COLUMN", help="name, or number where there is no header (default: sentence or text)")
    add("--pair", metavar="COLUMN", help="the same of second texts, where the rows are pairs")
    add("--label", metavar="COLUMN", help="the same of the labels (default: label)")
    add("--format", metavar="TYPE", help="tsv, csv, jsonl, json or parquet (default: by the name)")


def train_arguments(parser: argparse.ArgumentParser) -> None:
    data_arguments(parser)
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="where the classifier goes")
    add_overwrite(parser)
    parser.add_argument(
        "--grid", type=grid, metavar="GRID", help="values of C to choose from: tutorial, log, or 0.01,0.1,1"
    )
    parser.add_argument("--folds", type=int, default=5, metavar="N", help="of cross-validation; 0: none (%(default)s)")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--features", type=Path, metavar="FILE.npy", help="vectors of DATA, made by `minibert embed`")
    kept.add_argument(
        "--cache",
        type=Path,
        metavar="FOLDER",
        help="keeps the features, so that neither an interruption nor another grid computes any twice "
        "(default: the name of --out with .features)",
    )
    add_features(parser)


def train_classifier(args: Arguments) -> Figures:
    """Train logistic regression on features of labelled texts and save it."""
    check_output(args.out, args.overwrite, files=CLASSIFIER_FILES, apart=[args.model])
    from minibert.printing import block
    from minibert.tasks.frozen import score_table, train
    from minibert.tasks.reviews import read_labelled

    rows = read_labelled(args.data, text=args.text, label=args.label, pair=args.pair, format=args.format)
    begin = time.perf_counter()
    settings = features_settings(args)
    if args.features is None:
        settings["cache"] = args.cache or args.out.with_name(args.out.name + ".features")
    vectors = None if args.features is None else read_vectors(args.features)
    how = {"vectors": vectors, "grid": args.grid, "folds": args.folds}
    classifier = train(rows.texts, rows.labels, pairs=rows.pairs, **how, **settings)
    seconds = time.perf_counter() - begin
    with atomic_folder(args.out, args.overwrite) as folder:
        classifier.save(folder)
    counts = ", ".join(f"{rows.labels.count(label):,} {label}" for label in classifier.labels)
    print(block("data", f"{args.data}: {len(rows.texts):,} {'pairs' if rows.pairs else 'rows'} ({counts})"))
    shape = (classifier.rows, classifier.features.n_features_out_)
    where = args.features or f"{settings['cache']}, which makes another --grid quick and may be removed"
    print(block("features", f"{shape} by {args.model}, pooling {args.pooling}, in {where}"))
    account = getattr(classifier.features, "account_", None)  # None: all vectors came from a cache
    if account and account.windowed:
        print(block("windows", windows_text(account.windowed, account.texts, account.windows)))
    print(score_table(classifier))
    print(block("saved in", f"{args.out} after {seconds:.1f} s"))
    return classifier.details() | {"out": str(args.out), "seconds": round(seconds, 3)}


def read_vectors(path: Path) -> Any:
    """The matrix in a numpy file, or ValueError."""
    import numpy as np

    from minibert.files import regular

    try:
        return np.load(regular(path, "numpy file"), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"--features is {path}, which is no file of `minibert embed`: {error}") from None


def load_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="what `minibert classify train` wrote")
    parser.add_argument("--model", metavar="NAME", help="where its checkpoint is now (default: where it was)")
    add_machine(parser)


def load_classifier(args: Arguments) -> Any:
    """The classifier that the arguments name."""
    from minibert.tasks.frozen import Classifier

    return Classifier.load(args.folder, model=args.model, device=args.device, batch_tokens=args.batch_tokens)


def evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    load_arguments(parser)
    data_arguments(parser)


def evaluate_classifier(args: Arguments) -> Figures:
    """Accuracy, scores by class and confusion matrix on labelled texts."""
    from dataclasses import asdict

    from minibert.printing import beside, block
    from minibert.tasks.frozen import evaluate
    from minibert.tasks.metrics import accuracy, class_table, confusion_table
    from minibert.tasks.reviews import read_labelled

    rows = read_labelled(args.data, text=args.text, label=args.label, pair=args.pair, format=args.format)
    evaluation = evaluate(load_classifier(args), rows.texts, rows.labels, rows.pairs)
    print(block("accuracy", f"{accuracy(evaluation)} (standard error), {evaluation.rows:,} rows of {args.data}"))
    print(beside("by class", class_table(evaluation, evaluation.labels)))
    print(beside("confusion", confusion_table(evaluation, evaluation.labels)))
    return asdict(evaluation)


# ---------------------------------------------------------------------------------------------------------------
# predict


def predict_arguments(parser: argparse.ArgumentParser) -> None:
    load_arguments(parser)
    add = parser.add_argument
    add("texts", nargs="*", metavar="TEXT", help="or pairs, with a tab between (default: --file, or standard input)")
    add("--file", metavar="FILE", help="texts: .txt, .tsv, .csv, .jsonl, .json or .parquet; - is standard input")
    add("--text", metavar="COLUMN", help="of --file: name, or number where there is no header")
    add("--pair", metavar="COLUMN", help="of --file: the same of second texts, where the rows are pairs")
    add("--format", metavar="TYPE", help="of --file: txt, tsv, csv, jsonl, json or parquet (default: by the name)")
    add("--out", type=Path, metavar="FILE.tsv", help="a table with a header, in place of lines on standard output")
    add_overwrite(parser)


def predict(args: Arguments) -> Figures:
    """A line for each text: its label, the probability of that, and the text, by tabs; of a pair both texts.

    On standard input a text is a line; a pair is a line too, with a tab between its texts.
    """
    check_predict(args)
    from minibert.text.tables import TextFile

    if args.texts:
        return answer(args, args.texts, TEXTS_AT_ONCE)
    if args.file in (None, "-"):
        standard_input()  # says what is wanted of a terminal
    at_once = 1 if args.file is None and sys.stdin.isatty() else TEXTS_AT_ONCE
    with TextFile(args.file or "-", args.text, args.format, args.pair) as texts:
        return answer(args, texts, at_once)


def check_predict(args: Arguments) -> None:
    """Refuse what cannot be done before anything is read."""
    if args.texts and args.file is not None:
        raise ValueError("texts and --file are both given; leave out one of them")
    if args.file is None and (args.text or args.pair or args.format):
        raise ValueError(
            "--text and --format are about --file, which is not given, and so is --pair; --file - is standard input"
        )
    if args.out is None:
        return
    if args.out.suffix != ".tsv" or args.out.is_dir():
        raise ValueError(f"--out is {args.out}; it must be a file that ends in .tsv")
    if not args.out.parent.is_dir():
        raise FileNotFoundError(f"--out is {args.out}, and there is no folder {args.out.parent}")
    if args.file is not None and args.out.exists() and args.out.resolve() == Path(args.file).resolve():
        raise ValueError(f"--out is {args.out}, the file with the texts; name another")
    check_output(args.out, args.overwrite, apart=[args.folder])


def answer(args: Arguments, texts: Iterable[Row], at_once: int) -> Figures:
    """Label the texts, `at_once` at a time, to standard output or into a table."""
    from minibert.text.texts import are_pairs

    classifier = load_classifier(args)
    if classifier.pairs and args.file is None:
        texts = split_pairs(texts)

    def labelled() -> Iterator[list[Answer]]:
        for portion in portions(texts, at_once):
            pairs = [row[1] for row in portion] if are_pairs(portion) else None
            firsts = [row[0] for row in portion] if pairs else portion
            for_each = zip(portion, classifier.predict_proba(firsts, pairs), strict=True)
            yield [
                (classifier.labels[row.argmax()], float(row.max()), text if isinstance(text, tuple) else (text,))
                for text, row in for_each
            ]

    if args.out is None:
        return print_labels(labelled(), args.json)
    return write_labels(labelled(), args.out, classifier.pairs)


def split_pairs(lines: Iterable[Row]) -> Iterator[Row]:
    """Lines with a tab as pairs. Raises ValueError for a line that has none, or several."""
    for number, line in enumerate(lines, 1):
        parts = line.split("\t") if isinstance(line, str) else line
        if len(parts) != 2:
            raise ValueError(
                f"line {number} has {len(parts) - 1} tabs, and the classifier was trained on pairs: one tab between "
                "two texts is wanted"
            )
        yield parts[0], parts[1]


def print_labels(portions: Iterable[list[Answer]], collect: bool) -> Figures:
    """One line a text or pair, shown as soon as its portion is done."""
    predictions = []
    for portion in portions:
        for label, probability, texts in portion:
            cells = [label, f"{probability:.4f}", *(LINE_ENDS.sub(" ", text) for text in texts)]
            print("\t".join(cells))  # one text, one line
            if collect:
                named = dict(zip(("text", "pair"), texts, strict=False))  # pair: where there are two
                predictions.append({"label": label, "probability": probability, **named})
        sys.stdout.flush()
    return {"predictions": predictions}


def write_labels(portions: Iterable[list[Answer]], out: Path, pairs: bool) -> Figures:
    """A .tsv file with a header, which appears when all is done; tabs and line ends in a text become spaces."""
    from tqdm import tqdm

    from minibert.printing import block

    begin = time.perf_counter()
    counts: Counter[str] = Counter()
    with atomic_write(out) as path, path.open("w", encoding="utf-8", newline="") as file:
        file.write("label\tprobability\ttext" + ("\tpair" if pairs else "") + "\n")
        with tqdm(desc="label", unit="text", delay=2, disable=None) as bar:
            for portion in portions:
                for label, probability, texts in portion:
                    counts[label] += 1
                    cells = [BREAKS.sub(" ", cell) for cell in (label, f"{probability:.4f}", *texts)]
                    file.write("\t".join(cells) + "\n")
                bar.update(len(portion))
    seconds = time.perf_counter() - begin
    shown = ", ".join(f"{count:,} {label}" for label, count in sorted(counts.items()))
    print(block("saved in", f"{out}: {counts.total():,} rows ({shown or 'none'}), {seconds:.1f} s"))
    return {
        "out": str(out),
        "rows": counts.total(),
        "labels": dict(sorted(counts.items())),
        "seconds": round(seconds, 3),
    }
