"""`minibert finetune`: a checkpoint learns a task from data of your own."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minibert.cli.shared import DEFAULT_MODEL, Arguments, Figures, add_overwrite

if TYPE_CHECKING:
    from minibert.tasks.base import Task
    from minibert.train.folder import Trained
    from minibert.train.loop import Progress

Arrange = Callable[[argparse.ArgumentParser], None]


# ---------------------------------------------------------------------------------------------------------------
# Arguments


def training_arguments(parser: argparse.ArgumentParser, data: str) -> None:
    """What every task takes; the defaults are those of BERT's paper."""
    add = parser.add_argument
    add("data", metavar="DATA", help=data)
    add("--dev", metavar="FILE", help="data of the same kind: scored after each epoch, and the best epoch is kept")
    add(
        "--out",
        required=True,
        type=Path,
        metavar="FOLDER",
        help="the finished checkpoint; given again after a kill, the command goes on where it was",
    )
    add("--model", default=DEFAULT_MODEL, metavar="NAME", help="a Hub name or a folder (%(default)s)")
    add("--epochs", type=int, default=3, metavar="N", help="(%(default)s)")
    add("--batch-size", type=int, default=32, metavar="N", help="texts in a step (%(default)s)")
    add("--learning-rate", type=float, default=5e-5, metavar="X", help="at its highest (%(default)s)")
    add("--warmup", type=float, default=0.1, metavar="X", help="share of the steps in which it rises (%(default)s)")
    add("--weight-decay", type=float, default=0.01, metavar="X", help="of matrices (%(default)s)")
    add("--clip", type=float, default=1.0, metavar="X", help="largest length of the gradients (%(default)s)")
    add("--accumulate", type=int, default=1, metavar="N", help="batches that make one step (%(default)s)")
    add("--max-length", type=int, metavar="N", help="tokens of a row (128; of questions on passages 384)")
    add("--seed", type=int, default=0, metavar="N", help="of fresh weights, order and dropout (%(default)s)")
    add(
        "--seeds", type=int, default=1, metavar="N", help="train with so many seeds, keep the best on dev (%(default)s)"
    )
    add("--freeze", default="none", metavar="WHAT", help="none, embeddings, encoder, or so many layers from below")
    add("--precision", default="auto", metavar="TYPE", help="float32, bfloat16 or auto (%(default)s)")
    add(
        "--shard",
        default="none",
        choices=("none", "full"),
        help="full: each process of torchrun keeps a part of the model",
    )
    add("--step", default="packed", choices=("packed", "readable"), help="without padding, or as transformers does it")
    add("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or mps (%(default)s)")
    add("--save-every", type=int, default=200, metavar="N", help="steps between two saved states (%(default)s)")
    add("--plot", type=Path, metavar="FILE.png", help="draw loss and dev score")
    add("--restart", action="store_true", help="begin again, whatever an interrupted command has done")
    add_overwrite(parser)


def classify_arguments(parser: argparse.ArgumentParser) -> None:
    training_arguments(parser, "texts with labels: a table")
    add = parser.add_argument
    add("--text", metavar="COLUMN", help="name or number of its column (default: sentence or text)")
    add("--pair", metavar="COLUMN", help="of a second text")
    add("--label", metavar="COLUMN", help="(default: label)")
    add("--separator", metavar="CHARACTER", help="between several labels of a text, such as |")
    add("--regression", action="store_true", help="labels are numbers")
    add("--class-weight", choices=("balanced",), help="let rare labels count more")


def tag_arguments(parser: argparse.ArgumentParser) -> None:
    training_arguments(parser, "one word and its tag a line, an empty line between sentences (CoNLL)")


def answer_arguments(parser: argparse.ArgumentParser) -> None:
    training_arguments(parser, "questions on passages: SQuAD 1.1 or 2.0 JSON")
    add = parser.add_argument
    add("--max-question", type=int, default=64, metavar="N", help="tokens of a question (%(default)s)")
    add("--stride", type=int, metavar="N", help="tokens from one window of a passage to the next (default: 128)")
    add("--max-answer", type=int, default=30, metavar="N", help="tokens of an answer (%(default)s)")
    add("--n-best", type=int, default=20, metavar="N", help="candidates that are kept (%(default)s)")
    add("--null-threshold", type=float, default=0.0, metavar="X", help="how much better no answer must score (0)")
    add("--repair", action="store_true", help="take answers from where they stand nearest to what the file says")


def choose_arguments(parser: argparse.ArgumentParser) -> None:
    training_arguments(parser, 'JSON lines of {"question", "choices": [...], "label"}')


def mask_arguments(parser: argparse.ArgumentParser) -> None:
    training_arguments(parser, "raw text: one text a line, an empty line between documents; or a table")
    add = parser.add_argument
    add("--text", metavar="COLUMN", help="of a table: name or number of its column (default: sentence or text)")
    add("--format", metavar="TYPE", help="txt, tsv, csv, jsonl, json or parquet (default: by the name)")
    add("--mask-rate", type=float, default=0.15, metavar="X", help="share of the tokens to be guessed (%(default)s)")
    add("--whole-words", action="store_true", help="hide all tokens of a word together")


# ---------------------------------------------------------------------------------------------------------------
# The commands


def classify(args: Arguments) -> Figures:
    """A label for each text or pair; several with --separator, a number with --regression."""
    settings = {name: getattr(args, name) for name in ("text", "pair", "label", "separator", "regression")}
    return run(args, "classify", settings)


def tag(args: Arguments) -> Figures:
    """A tag for each word, such as the kind of name that it belongs to."""
    return run(args, "tag", {})


def answer(args: Arguments) -> Figures:
    """The answer to a question, cut out of a passage."""
    names = ("max_question", "stride", "max_answer", "n_best", "null_threshold", "repair")
    return run(args, "answer", {name: getattr(args, name) for name in names})


def choose(args: Arguments) -> Figures:
    """One of several answers to a question."""
    return run(args, "choose", {})


def mask(args: Arguments) -> Figures:
    """Masked LM goes on, on texts of a field of your own."""
    settings = {name: getattr(args, name) for name in ("whole_words", "text", "format")}
    return run(args, "mask", {"mask_rate": args.mask_rate} | settings)


def run(args: Arguments, name: str, settings: dict[str, Any]) -> Figures:
    """Train, with one seed or several, write the folder of the best, and say how it went."""
    from dataclasses import replace

    from minibert.printing import block
    from minibert.train import distributed
    from minibert.train.finetuning import Job, new_task
    from minibert.train.finetuning import run as train
    from minibert.train.folder import check_out, write_folder
    from minibert.train.keeper import forget

    distributed.quiet()
    if args.seeds < 1:
        raise ValueError(f"--seeds is {args.seeds}; it must be at least 1")
    if args.seeds > 1 and args.dev is None:
        raise ValueError("--seeds compares by --dev, and none was given")
    check_out(args.out, args.overwrite, args.model)
    if args.plot:
        check_picture(args.plot, args.overwrite)
    task = new_task(name, **settings)
    data: Any = task.read(args.data)
    dev: Any = None if args.dev is None else task.read(args.dev)
    job = Job.of(task, data, dev, request_of(args, task, data))
    check_out(args.out, args.overwrite, job.source.folder)
    print(block("data", f"{args.data}: {len(data):,} rows" + (f"; {args.dev}: {len(dev):,}" if args.dev else "")))
    for note in dict.fromkeys([*job.encoded.notes, *(job.held_out.notes if job.held_out else ())]):
        print(block("note", note))
    runs: list[Trained] = []
    for seed in range(args.seed, args.seed + args.seeds):
        one = replace(job, request=replace(job.request, settings=replace(job.request.settings, seed=seed)))
        runs.append(train(one, state_folder(args, seed), restart=args.restart, say=epoch_line(task)))
        show(runs[-1], seed, args.seeds)
    best = max(runs, key=lambda one: one.measure.score if one.measure else 0.0)
    if args.seeds > 1:
        best.figures["seeds"] = summary(runs)
    write_folder(best, args.out, args.overwrite)
    for seed in range(args.seed, args.seed + args.seeds):
        forget(state_folder(args, seed))
    if args.plot and distributed.here().first:
        from minibert.train import curve

        curve.draw([one.figures for one in runs], task.main, args.plot)
        print(block("picture", str(args.plot)))
    print(block("saved in", f"{args.out} after {best.figures['seconds']:.1f} s"))
    return {name: value for name, value in best.figures.items() if name != "curve"} | {"out": str(args.out)}


def check_picture(path: Path, overwrite: bool) -> None:
    """Raise before anything is trained where the picture could not be drawn, or stands in the place of another file."""
    from minibert import plotting as pictures
    from minibert.files import check_output
    from minibert.train import curve

    curve.check_kind(path)
    check_output(path, overwrite)
    pictures.pyplot()


def epoch_line(task: Task) -> Callable[[Progress], None]:
    """What is said when an epoch is over, above the progress bar."""
    import sys

    from tqdm import tqdm

    from minibert.printing import block

    def say(progress: Progress) -> None:
        steps = progress.curve[-max(1, progress.step // progress.epoch) :]
        told = f"loss {statistics.mean(steps):.3f}"
        if progress.scores:
            told += f", {task.main} {progress.scores[-1][task.main]:.4f} on dev"
            told += ", the best so far" if progress.best == progress.epoch - 1 else ""
        tqdm.write(block(f"epoch {progress.epoch}", told), file=sys.stdout)
        sys.stdout.flush()

    return say


def state_folder(args: Arguments, seed: int) -> Path:
    """Where a run with this seed keeps its state until it is done."""
    out: Path = args.out
    return out.with_name(f"{out.name}.training" + (f"-{seed}" if args.seeds > 1 else ""))


def request_of(args: Arguments, task: Task, data: Any) -> Any:
    """What the arguments ask for."""
    from minibert.train.finetuning import Request, weights_of
    from minibert.train.loop import Settings

    names = (
        "epochs",
        "batch_size",
        "learning_rate",
        "warmup",
        "weight_decay",
        "clip",
        "accumulate",
        "seed",
        "shard",
    )
    how = ("max_length", "freeze", "step", "device", "save_every", "model")
    return Request(
        settings=Settings(precision=args.precision, **{name: getattr(args, name) for name in names}),
        class_weights=weights_of(task, data, getattr(args, "class_weight", None)),
        **{name: getattr(args, name) for name in how},
    )


def show(trained: Trained, seed: int, seeds: int) -> None:
    """How one run went."""
    from minibert.printing import block

    figures = trained.figures
    sizes, main = figures["parameters"], trained.task.main
    if seeds > 1:
        print(block("seed", str(seed)))
    print(block("parameters", f"{sizes['trained']:,} trained, {sizes['frozen']:,} frozen"))
    print(
        block(
            "steps", f"{figures['steps']:,}, {figures['tokens']:,} tokens, {figures['tokens_per_second']:,.0f} a second"
        )
    )
    if trained.measure is not None:
        print(block("kept", f"epoch {figures['best_epoch']}, {main} {trained.measure.score:.4f} on dev"))
        print(trained.measure.text)


def summary(runs: list[Trained]) -> dict[str, Any]:
    """Mean and spread of the scores of several seeds, printed and returned."""
    from minibert.printing import block

    scores = [one.measure.score for one in runs if one.measure]
    mean, deviation = statistics.mean(scores), statistics.stdev(scores)
    told = ", ".join(f"{score:.4f}" for score in scores)
    print(block("seeds", f"mean {mean:.4f}, standard deviation {deviation:.4f}: {told}; the best is kept"))
    return {"scores": scores, "mean": mean, "std": deviation}
