"""What pretraining is worth: a checkpoint fine-tuned, random weights of its shape trained alike, and frozen vectors.

    python -m minibert.experiments.transfer [sst2 mrpc] [--model NAME] [--rows N] [--seeds 3] [--epochs 3]
        [--learning-rate 3e-4] [--json]

    fine-tuned  all weights are trained, with a new head
    random      the same training, from random weights
    frozen      logistic regression on the mean of the last layer's vectors; no seed

--rows N trains on N rows drawn at random, the same for all seeds and ways; the first N of a larger draw are a smaller
one. The last epoch counts. The data are files in $MINIBERT_DATA, one folder per data set.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from random import Random

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from minibert.bench.report import machine
from minibert.experiments.quality import read_arguments, read_data
from minibert.model import initialise
from minibert.tasks.classification import Texts
from minibert.tasks.metrics import standard_error
from minibert.train.finetuning import FinetuneRun
from minibert.train.loop import train
from minibert.utils.printing import table
from minibert.vectors.embedder import embed


@dataclass(frozen=True)
class Estimate:
    """An accuracy, or a gain of accuracy, on the held-out rows."""

    mean: float
    standard_error: float


@dataclass(frozen=True)
class Transfer:
    """The results on one data set. The scores of a way are accuracies, one per seed."""

    training: int  # rows
    held_out: int
    majority: float  # accuracy of the most frequent label
    scores: dict[str, list[float]]
    gain: Estimate  # of fine-tuning over random weights

    @property
    def ways(self) -> dict[str, Estimate]:
        """The mean accuracy of each way."""
        means = {way: statistics.mean(each) for way, each in self.scores.items()}
        return {way: Estimate(mean, standard_error(mean, self.held_out)) for way, mean in means.items()}


def fine_tune(run: FinetuneRun, seed: int, *, pretrained: bool) -> list[bool]:
    """Return which held-out rows are right after training from the checkpoint, or from random weights of its shape."""
    run = replace(run, settings=replace(run.settings, seed=seed))
    torch.manual_seed(seed)
    model = run.new_model()
    if not pretrained:
        initialise(model, model.config)
    for _ in train(model, run.batches(), run.settings):
        pass
    return [one["label"] == true for one, true in zip(run.predict(model), run.dev.known_labels, strict=True)]


def frozen(model: str, training: Texts, held_out: Texts) -> float:
    """Return the accuracy of logistic regression on frozen vectors."""
    features, tests = (embed(data.texts, model, pairs=data.pairs, pooling="mean") for data in (training, held_out))
    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    return float(classifier.fit(features, training.known_labels).score(tests, held_out.known_labels))


def gain(run: FinetuneRun, training: Texts, held_out: Texts, seeds: int) -> Transfer:
    """Measure the accuracies of each way.

    Fine-tuning and random weights are measured on the same rows, so the error of the gain is the standard error of the
    mean difference per row.
    """
    right: dict[str, list[list[bool]]] = {"fine-tuned": [], "random": []}  # way -> (seeds, rows)
    for seed in range(seeds):
        for way, rows in right.items():
            rows.append(fine_tune(run, seed, pretrained=way == "fine-tuned"))
            print(f"{way}, seed {seed}: {statistics.fmean(rows[-1]):.4f}", file=sys.stderr)
    scores = {way: [statistics.fmean(one) for one in rows] for way, rows in right.items()}
    scores["frozen"] = [frozen(run.settings.model, training, held_out)]
    apart = np.mean(right["fine-tuned"], axis=0) - np.mean(right["random"], axis=0)  # (rows)
    gain = Estimate(float(apart.mean()), float(apart.std(ddof=1)) / math.sqrt(len(apart)))
    majority = max(map(held_out.known_labels.count, set(held_out.known_labels))) / len(held_out)
    return Transfer(len(training), len(held_out), majority, scores, gain)


def drawn(data: Texts, rows: int) -> Texts:
    """Return so many rows of the data, drawn at random, in the order of the draw."""
    order = Random(0).sample(range(len(data)), len(data))[:rows]
    columns = {name: getattr(data, name) for name in ("texts", "pairs", "labels")}
    return replace(data, **{name: [column[n] for n in order] for name, column in columns.items() if column is not None})


def report(found: dict[str, Transfer]) -> str:
    """Return a row for each data set."""
    columns = ["fine-tuned", "random", "frozen", "gain"]
    lines = [["data", "training", "held out", "majority", *(f"{way}, standard error" for way in columns)]]
    for name, one in found.items():
        scores = [f"{each.mean:.3f}, {each.standard_error:.3f}" for each in (*one.ways.values(), one.gain)]
        lines.append([name, str(one.training), str(one.held_out), f"{one.majority:.3f}", *scores])
    return table(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and print the table; exit status 2 if the data are missing."""
    parser = argparse.ArgumentParser(description="Fine-tune a checkpoint and random weights of its shape, and compare.")
    parser.add_argument("--rows", type=int, metavar="N", help="of the training file, drawn at random (default: all)")
    args, folder, settings = read_arguments(parser, ("sst2", "mrpc"), "minibert-novels", 3e-4, arguments)
    found = {}
    for name in args.data:
        task, training, held_out = read_data(name, folder)
        if args.rows is not None:
            if not 1 <= args.rows <= len(training):
                parser.error(f"--rows is {args.rows}; {name} has 1 to {len(training)} training rows to draw")
            training = drawn(training, args.rows)
        found[name] = gain(FinetuneRun.of(task, training, held_out, settings), training, held_out, args.seeds)
    print(report(found))
    if args.json:
        figures = {name: asdict(one) for name, one in found.items()}
        print(json.dumps(figures | {"machine": machine(torch.get_num_threads())}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
