"""`minibert classify train`: features and logistic regression. Its folder is for `evaluate` and `predict`."""

import argparse
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minibert.cli.shared import Arguments, add_data, add_features, add_overwrite, read_options
from minibert.utils.files import regular, user_path
from minibert.utils.outputs import atomic_folder, check_folder
from minibert.utils.printing import Figures
from minibert.vectors.recipe import Recipe


def arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add = parser.add_argument
    add("--out", required=True, type=user_path, metavar="FOLDER", help="the folder of the classifier")
    add_overwrite(parser)
    add("--grid", default="short", metavar="GRID", help="values of C: short, tutorial, log, or 0.01,0.1,1")
    add("--folds", type=int, default=5, metavar="N", help="of the cross-validation; 0: none (%(default)s)")
    add("--features", metavar="FILE.npy", help="vectors of DATA, written by `minibert embed`")
    kept = "keeps the features for another run, after an interruption too (default: the name of --out with .features)"
    add("--cache", metavar="FOLDER", help=kept)
    add_features(parser)


def run(args: Arguments) -> Figures:
    """Train logistic regression on features of labelled texts and save it."""
    from minibert.prediction.frozen import score_table, train
    from minibert.tasks.classification import Classification
    from minibert.utils.printing import block, counted

    check_folder(args.out, args.overwrite, apart=[args.model])
    if args.features and args.cache:
        raise ValueError("--features and --cache are both given; given vectors need no cache")
    task = read_options(args, Classification)
    rows = task.read(args.data)
    begin = time.perf_counter()
    recipe = read_options(args, Recipe, missing=task.missing_text)
    settings = asdict(recipe) | {"model": args.model, "device": args.device}
    if args.features is None:
        settings["cache"] = args.cache or args.out.with_name(args.out.name + ".features")
    vectors = None if args.features is None else read_vectors(user_path(args.features))
    try:
        classifier = train(rows, vectors=vectors, grid=args.grid, folds=args.folds, **settings)
    except KeyboardInterrupt as stop:
        if args.features is None and user_path(settings["cache"]).exists():
            stop.args = (f"the features of some texts are kept in {settings['cache']}; the same command continues",)
        raise
    classifier.task = task
    seconds = time.perf_counter() - begin
    with atomic_folder(args.out, args.overwrite) as folder:
        classifier.save(folder)
    counts = ", ".join(f"{rows.known_labels.count(label):,} {label}" for label in classifier.labels)
    print(block("data", f"{args.data}: {counted(len(rows), 'pair' if rows.pairs else 'row')} ({counts})"))
    where = args.features or f"{settings['cache']}, which makes another --grid quick and may be removed"
    shape = (classifier.rows, classifier.features.n_features_out_)
    print(block("features", f"{shape} by {args.model}, pooling {classifier.features.recipe_.how}, in {where}"))
    stats = getattr(classifier.features, "stats_", None)  # None: all vectors came from a cache
    if stats and stats.windowed:
        print(
            block(
                "windows", f"{stats.windowed:,} of {counted(stats.texts, 'text')} in {counted(stats.windows, 'window')}"
            )
        )
    print(score_table(classifier))
    [(usual, most)] = Counter(rows.known_labels).most_common(1)
    majority = most / len(rows)
    print(block("baseline", f"{majority:.4f}, the accuracy of always saying {usual!r}, the majority class"))
    print(block("saved in", f"{args.out} after {seconds:.1f} s"))
    return classifier.details() | {"out": str(args.out), "majority": majority, "seconds": round(seconds, 3)}


def read_vectors(path: Path) -> Any:
    """Return the matrix of a numpy file. Raises ValueError for a file of another kind."""
    import numpy as np

    try:
        return np.load(regular(path, "numpy file"), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"--features is {path}, which is not a file of `minibert embed`: " + str(error)) from None
