"""What pretraining is worth: a checkpoint fine-tuned, random weights of its shape trained alike, and frozen vectors.

    python -m minibert.experiments.transfer [sst2 mrpc] [--model NAME] [--seeds 3] [--learning-rate 3e-4] [--json]

    fine-tuned  all weights are trained, with a new head
    random      the same training, from random weights
    frozen      logistic regression on the mean of the last layer's vectors; no seed

The last epoch counts. The data are files under $MINIBERT_DATA, a folder each.
"""

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from minibert.bench.report import machine
from minibert.experiments.quality import read_data
from minibert.model import initialise
from minibert.tasks.classification import Texts
from minibert.tasks.metrics import standard_error
from minibert.train.finetuning import FinetuneRun
from minibert.train.loop import train
from minibert.train.settings import FinetuneSettings
from minibert.utils.printing import table
from minibert.vectors.embedder import embed

DATA = ("sst2", "mrpc")


def fine_tune(run: FinetuneRun, seed: int, *, pretrained: bool) -> list[bool]:
    """Which held-out rows are right after training from the checkpoint, or from random weights of its shape."""
    run = replace(run, settings=replace(run.settings, seed=seed))
    torch.manual_seed(seed)
    model = run.new_model()
    if not pretrained:
        initialise(model, model.config)
    train(model, run.batches(), run.settings)
    return [one["label"] == true for one, true in zip(run.predict(model), run.dev.known_labels, strict=True)]


def frozen(model: str, training: Texts, held_out: Texts) -> float:
    """The accuracy of logistic regression on frozen vectors."""
    features, tests = (embed(data.texts, model, pairs=data.pairs, pooling="mean") for data in (training, held_out))
    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    return float(classifier.fit(features, training.known_labels).score(tests, held_out.known_labels))


def compare(name: str, folder: Path, settings: FinetuneSettings, seeds: int) -> dict[str, Any]:
    """The accuracies of each way, and the gain of fine-tuning over random weights with its standard error.

    Both ways are measured on the same rows, so the error of the gain is that of the mean difference of a row.
    """
    task, training, held_out = read_data(name, folder)
    run = FinetuneRun.of(task, training, held_out, settings)
    right: dict[str, list[list[bool]]] = {"fine-tuned": [], "random": []}  # by way: (seeds, rows)
    for seed in range(seeds):
        for way, rows in right.items():
            rows.append(fine_tune(run, seed, pretrained=way == "fine-tuned"))
            print(f"{name}, {way}, seed {seed}: {statistics.fmean(rows[-1]):.4f}", file=sys.stderr)
    ways = {way: [statistics.fmean(one) for one in rows] for way, rows in right.items()}
    ways["frozen"] = [frozen(settings.model, training, held_out)]
    found: dict[str, Any] = {"rows": [len(training), len(held_out)]}
    for way, scores in ways.items():
        mean = statistics.mean(scores)
        found[way] = {"scores": scores, "mean": mean, "standard_error": standard_error(mean, len(held_out))}
    apart = np.mean(right["fine-tuned"], axis=0) - np.mean(right["random"], axis=0)  # (rows)
    gain = {"mean": float(apart.mean()), "standard_error": float(apart.std(ddof=1)) / math.sqrt(len(apart))}
    majority = max(map(held_out.known_labels.count, set(held_out.known_labels))) / len(held_out)
    return found | {"gain": gain, "majority": majority}


def report(found: dict[str, dict[str, Any]]) -> str:
    """A row for each task."""
    columns = ["fine-tuned", "random", "frozen", "gain"]
    lines = [["data", "training", "held out", "majority", *(f"{way}, standard error" for way in columns)]]
    for name, figures in found.items():
        scores = [f"{figures[way]['mean']:.3f}, {figures[way]['standard_error']:.3f}" for way in columns]
        lines.append([name, *map(str, figures["rows"]), f"{figures['majority']:.3f}", *scores])
    return table(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and print the table; exit status 2 for data that are not there."""
    parser = argparse.ArgumentParser(description="Fine-tune a checkpoint and random weights of its shape, and compare.")
    parser.add_argument("data", nargs="*", metavar="DATA", help=f"of {', '.join(DATA)} (default: both)")
    parser.add_argument("--model", default="minibert-novels", metavar="NAME", help="checkpoint (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="number of runs (%(default)s)")
    parser.add_argument("--epochs", type=int, default=3, metavar="N", help="over the training rows (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=3e-4, metavar="X", help="peak (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON too")
    args, folder = parser.parse_args(arguments), os.path.expanduser(os.environ.get("MINIBERT_DATA", ""))
    if not folder or not set(args.data) <= set(DATA):
        parser.error(f"DATA is one of {', '.join(DATA)}, each a folder of the folder that $MINIBERT_DATA names")
    settings = FinetuneSettings(model=args.model, epochs=args.epochs, learning_rate=args.learning_rate)
    found = {name: compare(name, Path(folder), settings, args.seeds) for name in args.data or DATA}
    print(report(found))
    if args.json:
        print(json.dumps(found | {"machine": machine(torch.get_num_threads())}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
