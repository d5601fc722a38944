"""`minibert classify`: features and logistic regression, trained, measured, used."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from minibert.commands.shared import (
    Arguments,
    Figures,
    add_features,
    add_machine,
    features_settings,
    portions,
    standard_input,
)

TEXTS_AT_ONCE = 64  # that predict reads before it answers


def grid(text: str) -> str | list[float]:
    """The name of a grid, or values of C."""
    try:
        return text if text.isalpha() else [float(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not tutorial, log or numbers such as 0.1,1") from None


def train_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `minibert classify train`."""
    parser.add_argument("data", metavar="DATA", help="labelled texts, .tsv or .csv; columns sentence and label")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="where the classifier goes")
    parser.add_argument(
        "--grid", type=grid, metavar="GRID", help="values of C to choose from: tutorial, log, or 0.01,0.1,1"
    )
    parser.add_argument("--folds", type=int, default=5, metavar="N", help="of cross-validation; 0: none (%(default)s)")
    add_features(parser)


def train_classifier(args: Arguments) -> Figures:
    """Train logistic regression on features of labelled texts and save it."""
    if args.out.exists() and not args.out.is_dir():
        raise ValueError(f"--out is {args.out}, which is a file; a classifier is a folder")
    from minibert.printing import block, score_table
    from minibert.tasks.frozen import train
    from minibert.tasks.reviews import read_labelled

    rows = read_labelled(args.data)
    begin = time.perf_counter()
    classifier = train(rows.texts, rows.labels, grid=args.grid, folds=args.folds, **features_settings(args))
    seconds = time.perf_counter() - begin
    classifier.save(args.out)
    counts = ", ".join(f"{rows.labels.count(label):,} {label}" for label in classifier.labels)
    print(block("data", f"{args.data}: {len(rows.texts):,} rows ({counts})"))
    shape = (classifier.rows, classifier.features.n_features_out_)
    print(block("features", f"{shape} by {args.model}, pooling {args.pooling}"))
    print(score_table(classifier))
    print(block("saved in", f"{args.out} after {seconds:.1f} s"))
    return classifier.details() | {"out": str(args.out), "seconds": round(seconds, 3)}


def load_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the commands that use a saved classifier."""
    parser.add_argument("folder", metavar="FOLDER", help="what `minibert classify train` wrote")
    parser.add_argument("--model", metavar="NAME", help="where its checkpoint is now (default: where it was)")
    add_machine(parser)


def load_classifier(args: Arguments) -> Any:
    """The classifier that the arguments name."""
    from minibert.tasks.frozen import Classifier

    return Classifier.load(args.folder, model=args.model, device=args.device, batch_tokens=args.batch_tokens)


def evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `minibert classify evaluate`."""
    load_arguments(parser)
    parser.add_argument("data", metavar="DATA", help="labelled texts, .tsv or .csv; columns sentence and label")


def evaluate_classifier(args: Arguments) -> Figures:
    """Accuracy, scores by class and confusion matrix on labelled texts."""
    from dataclasses import asdict

    from minibert.printing import accuracy, beside, block, class_table, confusion_table
    from minibert.tasks.frozen import evaluate
    from minibert.tasks.reviews import read_labelled

    rows = read_labelled(args.data)
    evaluation = evaluate(load_classifier(args), rows.texts, rows.labels)
    print(block("accuracy", f"{accuracy(evaluation)} (standard error), {evaluation.rows:,} rows of {args.data}"))
    print(beside("by class", class_table(evaluation, evaluation.labels)))
    print(beside("confusion", confusion_table(evaluation, evaluation.labels)))
    return asdict(evaluation)


def predict_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `minibert classify predict`."""
    load_arguments(parser)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="default: standard input, one text a line")


def predict(args: Arguments) -> Figures:
    """A line for each text: its label, the probability of that, and the text, by tabs."""
    from minibert.text.tables import read_lines

    classifier = load_classifier(args)
    texts: Iterable[str] = args.texts or read_lines(standard_input(), "standard input")
    size = 1 if not args.texts and sys.stdin.isatty() else TEXTS_AT_ONCE
    predictions = []
    for portion in portions(texts, size):
        for text, row in zip(portion, classifier.predict_proba(portion), strict=True):
            label, probability = classifier.labels[row.argmax()], float(row.max())
            shown = text.replace("\r", " ").replace("\n", " ")  # one text, one line
            print(f"{label}\t{probability:.4f}\t{shown}")
            if args.json:
                predictions.append({"label": label, "probability": probability, "text": text})
        sys.stdout.flush()
    return {"predictions": predictions}
