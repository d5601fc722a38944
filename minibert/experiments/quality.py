"""The same fine-tuning by minibert and by transformers, side by side: is what comes out as good?

    python -m minibert.experiments.quality [sst2 mrpc wnut17 xquad] [--model NAME] [--seeds 3] [--json]

Both begin with the same weights, a fresh task head among them, and get the same batches in the same order, at the same
learning rates. minibert trains in its packed step, transformers as its users do: a padded batch through the model,
torch's AdamW, precision by autocast. The last epoch counts on both sides, none is chosen, and the same code answers
and measures. The data are files under $MINIBERT_DATA, a folder for each.
"""

from __future__ import annotations

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from minibert.bench.machine import machine
from minibert.checkpoints.load import load, save
from minibert.heads import Head
from minibert.printing import table
from minibert.tasks.answering import Answering
from minibert.tasks.base import Task
from minibert.tasks.classification import Classification
from minibert.tasks.tagging import Tagging
from minibert.train.finetuning import Job, Request, new_model
from minibert.train.loop import Settings, new_optimizer, rate, train

SPLIT = {"mrpc": 3276, "xquad": 800}  # rows to learn from of data that comes in one file; the rest is to be answered


@dataclass(frozen=True)
class Data:
    """A task with what is learned from and what is answered."""

    task: Task
    learned: Any
    held_out: Any


@dataclass(frozen=True)
class Side:
    """The scores of one side, a seed each, and what a run took."""

    scores: list[float]
    seconds: list[float]

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return statistics.mean(self.scores)

    @property
    def spread(self) -> float:
        """Standard deviation over the seeds."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else 0.0


# ---------------------------------------------------------------------------------------------------------------
# Data


def sst2(folder: Path) -> Data:
    """Sentences of reviews, 6,920 and 872."""
    task = Classification()
    return Data(task, task.read(folder / "sst2" / "train.tsv"), task.read(folder / "sst2" / "dev.tsv"))


def mrpc(folder: Path) -> Data:
    """Pairs of sentences that say the same, or do not."""
    task = Classification(text="#1 String", pair="#2 String", label="Quality")
    texts = task.read(folder / "mrpc" / "train.tsv")
    assert texts.pairs is not None  # the column was named
    assert texts.labels is not None
    cut = SPLIT["mrpc"]
    learned = replace(texts, texts=texts.texts[:cut], pairs=texts.pairs[:cut], labels=texts.labels[:cut])
    held_out = replace(texts, texts=texts.texts[cut:], pairs=texts.pairs[cut:], labels=texts.labels[cut:])
    return Data(task, learned, held_out)


def wnut17(folder: Path) -> Data:
    """Names of rare things in texts of the web, 3,394 and 1,009 sentences."""
    task = Tagging()
    return Data(task, task.read(folder / "wnut17" / "train.conll"), task.read(folder / "wnut17" / "dev.conll"))


def xquad(folder: Path) -> Data:
    """Questions on passages of Wikipedia; those to be answered come last, on other passages."""
    task = Answering()
    questions = task.read(folder / "xquad" / "xquad.en.json")
    cut = SPLIT["xquad"]
    learned, held_out = (replace(questions, rows=rows) for rows in (questions.rows[:cut], questions.rows[cut:]))
    return Data(task, learned, held_out)


DATA: dict[str, Callable[[Path], Data]] = {"sst2": sst2, "mrpc": mrpc, "wnut17": wnut17, "xquad": xquad}


# ---------------------------------------------------------------------------------------------------------------
# The two sides


def ours(job: Job, start: Head) -> Head:
    """minibert's own way."""
    train(start, job.batches(start.config.pad_token_id), job.settings)
    return start


def theirs(job: Job, start: Head) -> Head:
    """transformers' model, trained as its users train it; what came out as a model of ours, to be asked alike."""
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        save(start, folder)
        model = getattr(transformers, f"AutoModel{start.upstream}").from_pretrained(folder)
        learn(model, job, segments=start.config.type_vocab_size > 0)
        model.save_pretrained(folder)
        return load(folder, head=start.name)


def learn(model: Any, job: Job, *, segments: bool) -> None:
    """A plain training loop around a model of transformers."""
    settings, batches = job.settings, job.batches(model.config.pad_token_id)
    optimizer = new_optimizer(model, settings)
    steps = settings.epochs * batches.an_epoch
    in_order = (batch for epoch in range(settings.epochs) for batch in batches.of_epoch(epoch))
    model.train()
    for step, batch in enumerate(tqdm(in_order, total=steps, unit="step", delay=2, disable=None)):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps, settings)
        given = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, **batch.labels}
        if segments:
            given["token_type_ids"] = batch.token_type_ids
        lower = torch.autocast("cpu", torch.bfloat16) if settings.precision == "bfloat16" else nullcontext()
        with lower:
            loss = model(**given).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()


SIDES: dict[str, Callable[[Job, Head], Head]] = {"minibert": ours, "transformers": theirs}


def compare(data: Data, request: Request, seeds: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
    """Train on each side with each seed; scores, their means, and the standard error of one of them."""
    job = Job.of(data.task, data.learned, data.held_out, request)
    sides: dict[str, Side] = {name: Side([], []) for name in names}
    for seed in seeds:
        one = replace(job, request=replace(job.request, settings=replace(job.request.settings, seed=seed)))
        for name, side in sides.items():
            torch.manual_seed(seed)
            start, begin = new_model(one.source.folder, one.task, one.labels), time.perf_counter()
            model = SIDES[name](one, start)
            side.seconds.append(time.perf_counter() - begin)
            measure = one.measure(model)
            side.scores.append(measure.score)
            print(f"{name}, seed {seed}: {measure.main} {measure.score:.4f}, {side.seconds[-1]:.0f} s", file=sys.stderr)
    p = statistics.mean(side.mean for side in sides.values())
    rows = measure.figures.get("entities", len(data.held_out))  # what the score is a share of
    return {
        "main": measure.main,
        "rows": [len(data.learned), len(data.held_out)],
        "standard_error": math.sqrt(p * (1 - p) / rows),
        **{
            name: {"scores": s.scores, "mean": s.mean, "std": s.spread, "seconds": s.seconds}
            for name, s in sides.items()
        },
    }


# ---------------------------------------------------------------------------------------------------------------
# Command line


def report(found: dict[str, dict[str, Any]], sides: Sequence[str]) -> str:
    """A row for each task: the score of each side over the seeds, and how far apart they are."""
    head = ["data", "learned", "asked", "score", *sides, "difference", "standard error"]
    rows = []
    for name, figures in found.items():
        told = [f"{figures[side]['mean']:.4f} ± {figures[side]['std']:.4f}" for side in sides]
        apart = f"{figures[sides[0]]['mean'] - figures[sides[1]]['mean']:+.4f}" if len(sides) == 2 else ""
        rows.append([name, *figures["rows"], figures["main"], *told, apart, f"{figures['standard_error']:.4f}"])
    return table([head, *rows])


def main(arguments: Sequence[str] | None = None) -> int:
    """Train on both sides and print the table; exit status 1 where the two are further apart than chance allows."""
    parser = argparse.ArgumentParser(description="Fine-tune with minibert and with transformers, and compare.")
    parser.add_argument("data", nargs="*", metavar="DATA", help=f"of {', '.join(DATA)} (default: all)")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", metavar="NAME", help="(%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="(%(default)s)")
    parser.add_argument("--epochs", type=int, default=3, metavar="N", help="(%(default)s)")
    parser.add_argument("--precision", default="auto", metavar="TYPE", help="float32, bfloat16 or auto (%(default)s)")
    parser.add_argument("--side", choices=tuple(SIDES), help="one side only")
    parser.add_argument("--json", action="store_true", help="the figures once more, as JSON")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.data if name not in DATA]
    folder = os.environ.get("MINIBERT_DATA")
    if unknown or folder is None:
        told = f"no data {', '.join(unknown)}; there are {', '.join(DATA)}" if unknown else "MINIBERT_DATA is not set"
        print(f"{told}; MINIBERT_DATA names a folder with {', '.join(DATA)}", file=sys.stderr)
        return 2
    sides = [given.side] if given.side else list(SIDES)
    request = Request(model=given.model, settings=Settings(epochs=given.epochs, precision=given.precision))
    found = {}
    for name in given.data or DATA:
        found[name] = compare(DATA[name](Path(folder)), request, range(given.seeds), sides)
        print(report({name: found[name]}, sides), flush=True)
    if len(found) > 1:
        print("\n" + report(found, sides))
    if given.json:
        print(json.dumps(found | {"machine": machine(torch.get_num_threads())}))
    apart = (abs(one[sides[0]]["mean"] - one[sides[-1]]["mean"]) > one["standard_error"] for one in found.values())
    return int(any(apart))


if __name__ == "__main__":
    sys.exit(main())
