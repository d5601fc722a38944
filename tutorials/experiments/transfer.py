"""What pretraining is worth: a checkpoint fine-tuned, random weights of its shape trained alike, and frozen vectors.

    python tutorials/experiments/transfer.py [sst2 mrpc] [--model NAME] [--rows N] [--seeds 3] [--epochs 3]
        [--learning-rate 3e-4] [--json]

    fine-tuned  all weights are trained, with a new head
    random      the same training, from random weights
    frozen      the classifier of `minibert classify train` on the mean of the last layer's vectors; no seed

--rows N trains on N rows drawn at random, the same for all seeds and ways; the first N of a larger draw are a smaller
one. The last epoch counts. "fitted" is the accuracy on the training rows: a gain over random weights that have not
learned their own rows says nothing about pretraining, only that the training was too short for them; with few rows,
raise --epochs. The data are files in $MINIBERT_DATA, one folder per data set.
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
from quality import read_arguments, read_data

from minibert.bench.report import machine
from minibert.prediction.frozen import fit_head
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
    fitted: dict[str, list[float]]  # on the training rows
    scores: dict[str, list[float]]
    gain: Estimate  # of fine-tuning over random weights

    @property
    def ways(self) -> dict[str, Estimate]:
        """The mean accuracy of each way."""
        means = {way: statistics.mean(each) for way, each in self.scores.items()}
        return {way: Estimate(mean, standard_error(mean, self.held_out)) for way, mean in means.items()}


@dataclass(frozen=True)
class Right:
    """Which rows a trained model gets right."""

    training: list[bool]
    held_out: list[bool]


def fine_tune(run: FinetuneRun, training: Texts, seed: int, *, pretrained: bool) -> Right:
    """Return which rows are right after training from the checkpoint, or from random weights of its shape."""
    run = replace(run, settings=replace(run.settings, seed=seed))
    torch.manual_seed(seed)
    model = run.new_model()
    if not pretrained:
        model.config.architecture.initialise(model, model.config)
    for _ in train(model, run.batches(), run.settings):
        pass
    known = replace(run, dev=training, held_out=run.encoded)
    return Right(
        *(
            [one["label"] == true for one, true in zip(part.predict(model), part.dev.known_labels, strict=True)]
            for part in (known, run)
        )
    )


def frozen(model: str, training: Texts, held_out: Texts) -> float:
    """Return the accuracy of logistic regression on frozen vectors."""
    features, tests = (embed(data.texts, model, pairs=data.pairs, pooling="mean") for data in (training, held_out))
    classifier, _ = fit_head(features, training.known_labels)
    return float(classifier.score(tests, held_out.known_labels))


def gain(run: FinetuneRun, training: Texts, held_out: Texts, seeds: int) -> Transfer:
    """Measure the accuracies of each way.

    Fine-tuning and random weights are measured on the same rows, so the error of the gain is the standard error of the
    mean difference per row.
    """
    right: dict[str, list[Right]] = {"fine-tuned": [], "random": []}  # one per seed
    for seed in range(seeds):
        for way, found in right.items():
            found.append(fine_tune(run, training, seed, pretrained=way == "fine-tuned"))
            print(f"{way}, seed {seed}: {statistics.fmean(found[-1].held_out):.4f}", file=sys.stderr)
    fitted = {way: [statistics.fmean(one.training) for one in found] for way, found in right.items()}
    scores = {way: [statistics.fmean(one.held_out) for one in found] for way, found in right.items()}
    scores["frozen"] = [frozen(run.settings.model, training, held_out)]
    tuned, random = (np.mean([one.held_out for one in right[way]], axis=0) for way in ("fine-tuned", "random"))
    apart = tuned - random  # (rows)
    gain = Estimate(float(apart.mean()), float(apart.std(ddof=1)) / math.sqrt(len(apart)))
    majority = max(map(held_out.known_labels.count, set(held_out.known_labels))) / len(held_out)
    return Transfer(len(training), len(held_out), majority, fitted, scores, gain)


def drawn(data: Texts, rows: int) -> Texts:
    """Return so many rows of the data, drawn at random, in the order of the draw."""
    order = Random(0).sample(range(len(data)), len(data))[:rows]
    columns = {name: getattr(data, name) for name in ("texts", "pairs", "labels")}
    return replace(data, **{name: [column[n] for n in order] for name, column in columns.items() if column is not None})


def report(found: dict[str, Transfer]) -> str:
    """Return a row for each data set."""
    columns = ["fine-tuned", "random", "frozen", "gain"]
    titles = ["data", "training", "held out", "majority", "fitted: fine-tuned", "fitted: random"]
    lines = [titles + [f"{way}, standard error" for way in columns]]
    for name, one in found.items():
        scores = [f"{each.mean:.3f}, {each.standard_error:.3f}" for each in (*one.ways.values(), one.gain)]
        fitted = [f"{statistics.fmean(each):.3f}" for each in one.fitted.values()]
        lines.append([name, str(one.training), str(one.held_out), f"{one.majority:.3f}", *fitted, *scores])
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
