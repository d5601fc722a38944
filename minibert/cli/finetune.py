"""`minibert finetune`: a checkpoint learns a task from your own data. There is one command for each of tasks.TASKS."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minibert.cli.options import add_options, read_options
from minibert.cli.shared import Arguments, Figures, add_overwrite
from minibert.printing import block
from minibert.tasks import task_class
from minibert.train.settings import FinetuneSettings

if TYPE_CHECKING:
    from minibert.train.loop import Progress
    from minibert.train.run import Trained


def arguments(parser: argparse.ArgumentParser, name: str) -> None:
    """Data, output, the settings of training and those of the task."""
    task = task_class(name)
    parser.add_argument("data", metavar="DATA", help=task.data_help)
    parser.add_argument("--dev", metavar="FILE", help="data for evaluation after each epoch; the best epoch is kept")
    add_output(parser)
    add_options(parser, FinetuneSettings, skip=() if name == "classify" else ("class_weight",))
    add_options(parser, task)
    parser.add_argument(
        "--seeds", type=int, default=1, metavar="N", help="train with N seeds, keep the best on dev (1)"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="plot the loss and the score on dev")


def add_output(parser: argparse.ArgumentParser) -> None:
    """The output folder of a training."""
    text = "the trained checkpoint; the same command resumes a killed run"
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help=text)
    parser.add_argument("--restart", action="store_true", help="start again instead of resuming a killed run")
    add_overwrite(parser)


def run(args: Arguments, name: str) -> Figures:
    """Train with one seed or several, write the folder of the best, and report the scores."""
    from minibert.outputs import check_output
    from minibert.train import distributed
    from minibert.train.checkpointer import remove_run
    from minibert.train.finetuning import FinetuneRun
    from minibert.train.run import check_out, check_picture, plot_runs, write

    distributed.silence_other_ranks()
    if args.seeds < 1 or (args.seeds > 1 and args.dev is None):
        raise ValueError(f"--seeds is {args.seeds}; it must be at least 1, and several seeds are compared on --dev")
    check_out(args.out, args.overwrite, args.model)
    if args.plot:
        check_picture(args.plot)
        check_output(args.plot, args.overwrite)
    task = read_options(args, task_class(name))
    data, dev = task.read(args.data), None if args.dev is None else task.read(args.dev)
    prepared = FinetuneRun.of(task, data, dev, read_options(args, FinetuneSettings))
    check_out(args.out, args.overwrite, *prepared.inputs)
    print_data(args, data, dev, prepared.notes)
    folders = {
        seed: args.out.with_name(f"{args.out.name}.training" + (f"-{seed}" if args.seeds > 1 else ""))
        for seed in range(args.seed, args.seed + args.seeds)
    }
    trained: list[Trained] = []
    for seed, folder in folders.items():
        one = replace(prepared, settings=replace(prepared.settings, seed=seed))
        print(block("seed", str(seed)), flush=True)
        trained.append(one.train(folder, restart=args.restart, report=progress_printer(task.main)))
        print_result(trained[-1])
    best = max(trained, key=lambda one: one.measure.score if one.measure else 0.0)
    if args.seeds > 1:
        scores = [one.measure.score for one in trained if one.measure]
        spread = {"mean": statistics.mean(scores), "std": statistics.stdev(scores)}
        best.figures["seeds"] = {"scores": scores} | spread
        print(block("seeds", "mean {mean:.4f}, standard deviation {std:.4f}; the best is kept".format(**spread)))
    write(best, args.out, args.overwrite)
    for folder in folders.values():
        remove_run(folder)
    if args.plot and distributed.context().is_main:
        plot_runs([one.figures for one in trained], task.main, args.plot)
        print(block("picture", str(args.plot)))
    return print_saved(args, best)


def print_data(args: Arguments, data: Any, dev: Any, notes: list[str]) -> None:
    """The sizes of the data, and notes on it."""
    print(block("data", f"{args.data}: {len(data):,} rows" + (f"; {args.dev}: {len(dev):,}" if args.dev else "")))
    for note in notes:
        print(block("note", note))


def progress_printer(main: str | None) -> Callable[[Progress], None]:
    """A function that prints each evaluation above the progress bar: of an epoch, compared by `main`, or of steps."""
    from tqdm import tqdm

    start = 0

    def print_progress(progress: Progress) -> None:
        nonlocal start
        curves, scores = progress.parts or {"": progress.curve}, progress.scores[-1] if progress.scores else {}
        parts = [f"{name} loss {statistics.mean(curve[start:] or curve[-1:]):.3f}" for name, curve in curves.items()]
        start = len(progress.curve)
        shown = [main] if main else [name for name in scores if name.endswith(("loss", "accuracy", "found", "kept"))]
        held_out = [f"{name.replace('_', ' ')} {scores[name]:.4f}" for name in shown if scores.get(name) is not None]
        parts += [f"held out: {', '.join(held_out)}"] if held_out else []
        parts += ["the best so far"] if main and held_out and progress.best == progress.epoch - 1 else []
        name = f"epoch {progress.epoch}" if main else f"step {progress.step:,}"
        tqdm.write(block(name, ", ".join(parts).strip()), file=sys.stdout)
        sys.stdout.flush()

    return print_progress


def print_result(trained: Trained) -> None:
    """The size of the model, the steps, and the score of the best epoch."""
    figures, measure = trained.figures, trained.measure
    print(block("parameters", "{trained:,} trained, {frozen:,} frozen".format(**figures["parameters"])))
    print(block("steps", "{steps:,}, {tokens:,} tokens, {tokens_per_second:,.0f} a second".format(**figures)))
    if measure is not None:
        print(block("kept", f"epoch {figures['best_epoch']}, {measure.main} {measure.score:.4f} on dev"))
        print(measure.text)


def print_saved(args: Arguments, trained: Trained) -> Figures:
    """The last line of the report; returns the figures for --json."""
    print(block("saved in", f"{args.out} after {trained.figures['seconds']:.1f} s"))
    figures = {name: value for name, value in trained.figures.items() if name not in ("curve", "curves")}
    return figures | {"out": str(args.out)}
