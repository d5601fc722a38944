"""The same fine-tuning with minibert and with transformers, side by side: is the result as good?

    python tutorials/experiments/quality.py [sst2 mrpc wnut17 xquad sts] [--model NAME] [--seeds 3] [--epochs 3]
        [--json]

Both start from the same weights, including a new task head, and get the same batches in the same order, with the same
learning rates. minibert trains with its packed step, transformers as its users train it: a padded batch through the
model, torch's AdamW, bfloat16 by autocast. Sentence vectors (sts) are trained with the models and losses of
sentence-transformers in place of those of transformers. The last epoch counts on both sides, and the same code predicts
and measures. The data are files in $MINIBERT_DATA, one folder per data set.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minibert.bench.report import machine
from minibert.checkpoints.load import load, save
from minibert.heads import Head, SentenceVectors
from minibert.prediction.collate import ExampleBatch
from minibert.prediction.packed import packed_output
from minibert.tasks.answering import Answering
from minibert.tasks.base import Task
from minibert.tasks.classification import Classification
from minibert.tasks.embedding import Embedding
from minibert.tasks.metrics import standard_error
from minibert.tasks.tagging import Tagging
from minibert.train.estimator import prepare
from minibert.train.finetuning import FinetuneRun
from minibert.train.loop import learning_rate_at, new_optimizer, set_learning_rate, train
from minibert.train.settings import FinetuneSettings
from minibert.utils.files import user_path
from minibert.utils.printing import progress_bar, table

TRAINING_ROWS = {"mrpc": 3276, "xquad": 800}  # of data sets that are one file; the other rows are held out


def read_data(name: str, folder: Path) -> tuple[Task, Any, Any]:
    """Return the task of one of DATA, its training rows and its held-out rows."""
    task, (first, *second) = DATA[name]
    training = task.read(folder / name / first)
    if second:
        return task, training, task.read(folder / name / second[0])
    fields = ("rows",) if name == "xquad" else ("texts", "pairs", "labels")
    parts = slice(TRAINING_ROWS[name]), slice(TRAINING_ROWS[name], None)
    columns = [{field: getattr(training, field)[part] for field in fields} for part in parts]
    return task, *(replace(training, **column) for column in columns)


DATA: dict[str, tuple[Task, tuple[str, ...]]] = {
    "sst2": (Classification(), ("train.tsv", "dev.tsv")),  # sentences of reviews, 6,920 and 872
    "mrpc": (Classification(text="#1 String", pair="#2 String", label="Quality"), ("train.tsv",)),  # paraphrases or not
    "wnut17": (Tagging(), ("train.conll", "dev.conll")),  # rare names in web texts, 3,394 and 1,009 sentences
    "sts": (Embedding(), ("train.csv", "dev.csv")),  # how similar two sentences are, 5,749 and 1,500 pairs
    "xquad": (Answering(), ("xquad.en.json",)),  # questions on Wikipedia; the held-out ones are on other passages
}


# ---------------------------------------------------------------------------------------------------------------
# Both sides


def train_ours(run: FinetuneRun, start: Head) -> Head:
    """Train with minibert's loop."""
    for _ in train(start, run.batches(), run.settings, loss_of=run.loss_of(packed_output)):
        pass
    return start


def train_theirs(run: FinetuneRun, start: Head) -> Head:
    """Train transformers' model as its users do, and load the result into minibert, which evaluates it."""
    with tempfile.TemporaryDirectory() as folder:
        save(start, folder, run.tokenizer)
        if isinstance(start, SentenceVectors):
            import sentence_transformers

            model: Any = sentence_transformers.SentenceTransformer(folder, device="cpu")
            plain_loop(model, run, loss_of_vectors(model, run.task))
        else:
            import transformers

            model = getattr(transformers, f"AutoModel{start.upstream}").from_pretrained(folder)
            plain_loop(model, run, lambda inputs, batch: model(**inputs, **batch.labels).loss)
        model.save_pretrained(folder)
        if isinstance(start, SentenceVectors):
            return SentenceVectors(load(folder), start.pooling)
        return load(folder, head=start.name)


def loss_of_vectors(model: Any, task: Any) -> Callable[[dict[str, Tensor], ExampleBatch], Tensor]:
    """Return the loss of sentence-transformers that belongs to the task, of our batches."""
    from sentence_transformers.sentence_transformer import losses

    of_pairs = losses.CosineSimilarityLoss(model) if task.loss == "cosine" else losses.CoSENTLoss(model, task.scale)
    in_batch = losses.MultipleNegativesRankingLoss(model, task.scale)

    def loss(inputs: dict[str, Tensor], batch: ExampleBatch) -> Tensor:
        columns = [{name: x[text :: batch.choices] for name, x in inputs.items()} for text in range(batch.choices)]
        similarity = batch.labels.get("similarity")
        found: Tensor = (in_batch if similarity is None else of_pairs)(columns, similarity)
        return found

    return loss


def plain_loop(model: Any, run: FinetuneRun, loss_of: Callable[[dict[str, Tensor], ExampleBatch], Tensor]) -> None:
    """Train a model of a library with a plain loop."""
    settings = run.settings
    batches = run.batches()
    segments = run.checkpoint.config.type_vocab_size > 0
    optimizer = new_optimizer(model, settings)
    steps = settings.epochs * batches.batches_per_epoch
    in_order = (batch for epoch in range(settings.epochs) for batch in batches.epoch_batches(epoch))
    lower = torch.autocast("cpu", torch.bfloat16) if settings.precision == "bfloat16" else nullcontext()
    model.train()
    for step, batch in enumerate(progress_bar(in_order, "training", steps, unit="step")):
        set_learning_rate(optimizer, learning_rate_at(step, steps, settings))
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        inputs |= {"token_type_ids": batch.token_type_ids} if segments else {}
        with lower:
            loss = loss_of(inputs, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()


SIDES: dict[str, Callable[[FinetuneRun, Head], Head]] = {"minibert": train_ours, "transformers": train_theirs}


@dataclass(frozen=True)
class Comparison:
    """The scores of both sides on one data set, one per seed."""

    score: str  # its name
    training: int  # rows
    held_out: int
    standard_error: float  # of one score
    scores: dict[str, list[float]]
    seconds: dict[str, list[float]]

    @property
    def speed(self) -> float:
        """How many times as fast minibert trained."""
        ours, theirs = (sum(self.seconds[side]) for side in SIDES)
        return theirs / ours

    @property
    def difference(self) -> float:
        """The mean score of minibert minus the mean score of transformers."""
        ours, theirs = (statistics.mean(self.scores[side]) for side in SIDES)
        return ours - theirs


def train_both(prepared: FinetuneRun, seeds: int) -> Comparison:
    """Train on each side with each seed, and measure on the held-out rows."""
    scores: dict[str, list[float]] = {side: [] for side in SIDES}
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    for seed in range(seeds):
        run = replace(prepared, settings=replace(prepared.settings, seed=seed))
        for side, learn in SIDES.items():
            torch.manual_seed(seed)
            start = run.new_model()
            began = time.perf_counter()
            model = learn(run, start)
            took = time.perf_counter() - began
            measure = run.measure(model)
            scores[side].append(measure.score)
            seconds[side].append(took)
            print(f"{side}, seed {seed}: {measure.main} {measure.score:.4f}, {took:.0f} s", file=sys.stderr)
    mean = statistics.mean(score for each in scores.values() for score in each)
    counted = measure.figures.get("entities", len(prepared.dev))  # what the score is a share of
    error = measure.figures.get(f"{measure.main}_error", standard_error(mean, counted))
    rows = len(prepared.encoded.examples), len(prepared.dev)
    return Comparison(measure.main, *rows, error, scores, seconds)


# ---------------------------------------------------------------------------------------------------------------
# Command line


def report(found: dict[str, Comparison]) -> str:
    """Return a row for each data set: the score of each side over the seeds, and the difference."""
    lines: list[list[str]] = [
        ["data", "training", "held out", "score", *SIDES, "difference", "standard error", "speed"]
    ]
    for name, one in found.items():
        scores = []
        for each in one.scores.values():
            deviation = statistics.stdev(each) if len(each) > 1 else 0.0
            scores.append(f"{statistics.mean(each):.4f}, std {deviation:.4f}")
        apart = [f"{one.difference:+.4f}", f"{one.standard_error:.4f}", f"{one.speed:.2f} x"]
        lines.append([name, str(one.training), str(one.held_out), one.score, *scores, *apart])
    return table(lines)


def read_arguments(
    parser: argparse.ArgumentParser,
    names: Collection[str],
    model: str,
    learning_rate: float,
    arguments: Sequence[str] | None,
) -> tuple[argparse.Namespace, Path, FinetuneSettings]:
    """Parse the command line of an experiment on some of DATA. Exit status 2 if the data are missing.

    parser: with the experiment's own options. Returns the options, the folder of the data and the settings of training.
    """
    parser.add_argument("data", nargs="*", metavar="DATA", help=f"from {', '.join(names)} (default: all)")
    parser.add_argument("--model", default=model, metavar="NAME", help="checkpoint (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="number of runs (%(default)s)")
    parser.add_argument(
        "--epochs", type=int, default=3, metavar="N", help="passes over the training rows (%(default)s)"
    )
    parser.add_argument("--learning-rate", type=float, default=learning_rate, metavar="X", help="peak (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON too")
    args = parser.parse_args(arguments)
    folder = user_path(os.environ.get("MINIBERT_DATA") or ".")
    if not os.environ.get("MINIBERT_DATA") or not set(args.data) <= set(names):
        parser.error(f"DATA is one of {', '.join(names)}, each a folder of the folder that $MINIBERT_DATA names")
    args.data = args.data or list(names)
    return args, folder, FinetuneSettings(model=args.model, epochs=args.epochs, learning_rate=args.learning_rate)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train on both sides and print the table; exit status 1 if they differ by more than the standard error."""
    args, folder, settings = read_arguments(
        argparse.ArgumentParser(description="Fine-tune with minibert and with transformers, and compare the scores."),
        DATA,
        "all-MiniLM-L6-v2",
        FinetuneSettings.learning_rate,
        arguments,
    )
    found = {name: train_both(prepare(*read_data(name, folder), settings), args.seeds) for name in args.data}
    print(report(found))
    if args.json:
        figures = {name: asdict(one) | {"difference": one.difference} for name, one in found.items()}
        print(json.dumps(figures | {"machine": machine(torch.get_num_threads())}))
    return int(any(abs(one.difference) > one.standard_error for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
