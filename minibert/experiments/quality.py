"""The same fine-tuning by minibert and by transformers, side by side: is the result as good?

    python -m minibert.experiments.quality [sst2 mrpc wnut17 xquad] [--model NAME] [--seeds 3] [--json]

Both start from the same weights, a new task head included, and get the same batches in the same order, with the same
learning rates. minibert trains in its packed step, transformers as its users do: a padded batch through the model,
torch's AdamW, precision by autocast. The last epoch counts on both sides, and the same code predicts and measures. The
data are files under $MINIBERT_DATA, a folder each.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from minibert.bench.report import machine
from minibert.checkpoints.load import load, save
from minibert.heads import Head
from minibert.tasks.answering import Answering
from minibert.tasks.base import Task
from minibert.tasks.classification import Classification
from minibert.tasks.tagging import Tagging
from minibert.train.finetuning import FinetuneRun
from minibert.train.loop import learning_rate_at, new_optimizer, set_learning_rate, train
from minibert.train.settings import FinetuneSettings
from minibert.train.start import new_model
from minibert.utils.printing import progress_bar, table

TRAINING_ROWS = {"mrpc": 3276, "xquad": 800}  # of data that comes in one file; the rest is held out


def read_data(name: str, folder: Path) -> tuple[Task, Any, Any]:
    """One of DATA, from its files: the task, its training rows and its held-out rows."""
    task, (first, *second) = DATA[name]
    training = task.read(folder / name / first)
    if second:
        return task, training, task.read(folder / name / second[0])
    fields = ("rows",) if name == "xquad" else ("texts", "pairs", "labels")
    parts = slice(TRAINING_ROWS[name]), slice(TRAINING_ROWS[name], None)
    columns = [{field: getattr(training, field)[part] for field in fields} for part in parts]
    return task, *(replace(training, **column) for column in columns)


def prepare(name: str, folder: Path, settings: FinetuneSettings) -> FinetuneRun:
    """One of DATA, ready to be learned."""
    return FinetuneRun.of(*read_data(name, folder), settings)


DATA: dict[str, tuple[Task, tuple[str, ...]]] = {
    "sst2": (Classification(), ("train.tsv", "dev.tsv")),  # sentences of reviews, 6,920 and 872
    "mrpc": (Classification(text="#1 String", pair="#2 String", label="Quality"), ("train.tsv",)),  # paraphrases or not
    "wnut17": (Tagging(), ("train.conll", "dev.conll")),  # rare names in web texts, 3,394 and 1,009 sentences
    "xquad": (Answering(), ("xquad.en.json",)),  # questions on Wikipedia; the held-out ones are on other passages
}


# ---------------------------------------------------------------------------------------------------------------
# Both sides


def train_ours(run: FinetuneRun, start: Head) -> Head:
    """minibert's loop."""
    train(start, run.batches(), run.settings)
    return start


def train_theirs(run: FinetuneRun, start: Head) -> Head:
    """transformers' model, trained as its users train it; the result is loaded into minibert and evaluated there."""
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        save(start, folder)
        model = getattr(transformers, f"AutoModel{start.upstream}").from_pretrained(folder)
        plain_loop(model, run, segments=start.config.type_vocab_size > 0)
        model.save_pretrained(folder)
        return load(folder, head=start.name)


def plain_loop(model: Any, run: FinetuneRun, *, segments: bool) -> None:
    """A plain training loop around a model of transformers."""
    settings, batches, optimizer = run.settings, run.batches(), new_optimizer(model, run.settings)
    steps = settings.epochs * batches.batches_per_epoch
    in_order = (batch for epoch in range(settings.epochs) for batch in batches.epoch_batches(epoch))
    lower = torch.autocast("cpu", torch.bfloat16) if settings.precision == "bfloat16" else nullcontext()
    model.train()
    for step, batch in enumerate(progress_bar(in_order, "training", steps, unit="step")):
        set_learning_rate(optimizer, learning_rate_at(step, steps, settings))
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, **batch.labels}
        inputs |= {"token_type_ids": batch.token_type_ids} if segments else {}
        with lower:
            loss = model(**inputs).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()


SIDES: dict[str, Callable[[FinetuneRun, Head], Head]] = {"minibert": train_ours, "transformers": train_theirs}


def compare(prepared: FinetuneRun, seeds: int) -> dict[str, Any]:
    """Train on each side with each seed; scores, their mean and standard deviation, and the standard error of one."""
    scores, seconds = ({side: list[float]() for side in SIDES} for _ in range(2))
    for seed in range(seeds):
        run = replace(prepared, settings=replace(prepared.settings, seed=seed))
        for side, learn in SIDES.items():
            torch.manual_seed(seed)
            start, began = new_model(run.source.folder, run.task, run.labels), time.perf_counter()
            model = learn(run, start)
            seconds[side].append(time.perf_counter() - began)
            measure = run.measure(model)
            scores[side].append(measure.score)
            print(
                f"{side}, seed {seed}: {measure.main} {measure.score:.4f}, {seconds[side][-1]:.0f} s", file=sys.stderr
            )
    p = statistics.mean(score for each in scores.values() for score in each)
    rows = measure.figures.get("entities", len(prepared.dev))  # the score is a share of these
    found: dict[str, Any] = {
        "main": measure.main,
        "rows": [len(prepared.encoded.examples), len(prepared.dev)],
        "standard_error": math.sqrt(p * (1 - p) / rows),
    }
    for side, each in scores.items():
        deviation = statistics.stdev(each) if len(each) > 1 else 0.0
        found[side] = {"scores": each, "mean": statistics.mean(each), "std": deviation, "seconds": seconds[side]}
    return found | {"difference": found["minibert"]["mean"] - found["transformers"]["mean"]}


# ---------------------------------------------------------------------------------------------------------------
# Command line


def report(found: dict[str, dict[str, Any]]) -> str:
    """A row for each task: the score of each side over the seeds, and the difference."""
    lines: list[list[str]] = [["data", "training", "held out", "score", *SIDES, "difference", "standard error"]]
    for name, figures in found.items():
        scores = [f"{figures[side]['mean']:.4f}, std {figures[side]['std']:.4f}" for side in SIDES]
        apart = [f"{figures['difference']:+.4f}", f"{figures['standard_error']:.4f}"]
        lines.append([name, *map(str, figures["rows"]), figures["main"], *scores, *apart])
    return table(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train on both sides and print the table; exit status 1 if they differ by more than the standard error."""
    parser = argparse.ArgumentParser(description="Fine-tune with minibert and with transformers, and compare.")
    parser.add_argument("data", nargs="*", metavar="DATA", help=f"of {', '.join(DATA)} (default: all)")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", metavar="NAME", help="checkpoint (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="number of runs (%(default)s)")
    parser.add_argument(
        "--epochs", type=int, default=3, metavar="N", help="passes over the training data (%(default)s)"
    )
    parser.add_argument("--precision", default="auto", help="float32, bfloat16 or auto (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON too")
    args, folder = parser.parse_args(arguments), os.path.expanduser(os.environ.get("MINIBERT_DATA", ""))
    if not folder or not set(args.data) <= DATA.keys():
        parser.error(f"DATA is one of {', '.join(DATA)}, each a folder of the folder that $MINIBERT_DATA names")
    settings = FinetuneSettings(model=args.model, epochs=args.epochs, precision=args.precision)
    found = {name: compare(prepare(name, Path(folder), settings), args.seeds) for name in args.data or DATA}
    print(report(found))
    if args.json:
        print(json.dumps(found | {"machine": machine(torch.get_num_threads())}))
    return int(any(abs(figures["difference"]) > figures["standard_error"] for figures in found.values()))


if __name__ == "__main__":
    sys.exit(main())
