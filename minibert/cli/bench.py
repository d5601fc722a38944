"""`minibert bench`: speed against other runtimes; with --train, of training; with --serve, of the server."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minibert.cli.shared import Arguments, Figures, add_overwrite
from minibert.extras import install_hint

if TYPE_CHECKING:
    from minibert.bench.session import Plan


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--quick", action="store_true", help="minibert and transformers alone: less than a minute (--train: two)"
    )
    size.add_argument("--full", action="store_true", help="more rounds, and up to 100,000 sentences: hours")
    add("--train", action="store_true", help="measure training in place of vectors, against transformers' Trainer")
    add("--objective", choices=("classify", "mlm"), help="of --train: labels of texts (default), or hidden words")
    add("--serve", action="store_true", help="measure `minibert serve` in place of vectors, against infinity-emb")
    add("--infinity", type=Path, metavar="PROGRAM", help="with --serve: infinity_emb in an environment of its own")
    add("--soak", type=float, default=0, metavar="SECONDS", help="with --serve: full load, and whether memory is flat")
    add("--device", default="cpu", metavar="NAME", help="cpu or cuda (%(default)s)")
    add(
        "--model",
        action="append",
        metavar="NAME",
        help="a checkpoint, or distilbert-, roberta- or albert-shape; repeatable (default: the first, and MiniLM)",
    )
    add("--job", action="store_true", help="the job alone: no single sentences, no cold starts, nothing that grows")
    add("--sentences", type=int, metavar="N", help="texts of the job (default: 2000; quick: 256; --train: 512; 192)")
    add("--rounds", type=int, metavar="N", help="in which everybody takes a turn (default: 3; full: 7)")
    add("--threads", type=int, metavar="N", help="of each backend (default: all cores)")
    add("--plot", type=Path, metavar="FILE.png", help="draw the figures")
    add_overwrite(parser)


def run(args: Arguments) -> Figures:
    """Speed, memory and equality against transformers and other runtimes; half an hour or more on two cores.

    Exit status 1 if our own vectors, or weights after training, differ from those of transformers.
    """
    if args.serve:
        return serve(args)
    plan = plan_of(args)
    from minibert.printing import block

    room = "minibert.bench" + ".train" * args.train
    report: Any = importlib.import_module(f"{room}.report")
    measure = importlib.import_module(f"{room}.run").measure

    began = time.perf_counter()
    print(report.heading(plan), flush=True)
    results = []
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was begun is ended
    try:
        for model in plan.models:
            results.append(measure(model, plan))
            print("\n" + report.result_text(results[-1]), flush=True)
    finally:
        signal.signal(signal.SIGTERM, before)
    spent = time.perf_counter() - began
    print("\n" + report.goals_text([goal for result in results for goal in report.goals_of(result)]))
    print("\n" + block("legend", report.LEGEND) + "\n\n" + report.time_text(plan, results, spent))
    if args.plot:
        from minibert.bench import plot

        plot.draw(results, args.plot)
        print(f"written: {args.plot}")
    figures: Figures = report.figures(plan, results, spent)
    return figures


def serve(args: Arguments) -> Figures:
    """The server, against infinity-emb; exit status 1 if its vectors are wrong, or its memory grows in the soak."""
    for name in ("train", "full", "job", "plot"):
        if getattr(args, name):
            raise ValueError(f"--{name} is about another benchmark than --serve; leave out one of them")
    for name in ("sentences", "rounds", "threads"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise ValueError(f"--{name} is {value}; it must be at least 1")
    if not 0 <= args.soak < float("inf"):
        raise ValueError(f"--soak is {args.soak:g}; it must be a number of seconds")
    from minibert.bench.machine import cores
    from minibert.bench.report import goals_text
    from minibert.bench.serve import report, run
    from minibert.printing import block

    given = {"model": args.model and args.model[0], "sentences": args.sentences, "rounds": args.rounds}
    sizes = {"rounds": 1, "seconds": 2.0} if args.quick else {}
    plan = run.Plan(
        infinity=args.infinity,
        threads=min(args.threads or cores(), cores()),
        soak=args.soak,
        **sizes | {name: value for name, value in given.items() if value is not None},
    )
    began = time.perf_counter()
    print(report.heading(plan), flush=True)
    result = run.measure(plan)
    print("\n" + report.result_text(plan, result))
    print("\n" + goals_text(report.goals_of(plan, result)) + "\n\n" + block("legend", report.LEGEND))
    figures: Figures = report.figures(plan, result, time.perf_counter() - began)
    return figures


def plan_of(args: Arguments) -> Plan:
    """The plan that the arguments name, with what they change in it. Raises before anything is measured.

    ValueError for a request that cannot be done, FileNotFoundError for a folder that is not there, ImportError where
    transformers, which everything is compared with, or matplotlib is missing.
    """
    if importlib.util.find_spec("transformers") is None:
        raise ImportError(f"the benchmark compares with transformers: {install_hint('bench')}")
    from minibert.bench.machine import cores

    check_device(args.device)
    if args.train:
        check_training(args)
    elif args.objective:
        raise ValueError("--objective is what --train learns; add --train")
    if args.plot:
        check_plot(args.plot, args.overwrite)
    for name in ("sentences", "rounds", "threads"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise ValueError(f"--{name} is {value}; it must be at least 1")
    plans: Any = importlib.import_module("minibert.bench." + ("train.run" if args.train else "session"))
    chosen: Plan = plans.QUICK if args.quick else plans.FULL if args.full else plans.DEFAULT
    if args.job:
        chosen = dataclasses.replace(chosen, short=0, starts=0, growth={})
    return dataclasses.replace(
        chosen,
        models=tuple(args.model or chosen.models),
        sentences=args.sentences or chosen.sentences,
        rounds=args.rounds or chosen.rounds,
        threads=min(args.threads or cores(), cores()),
        device=args.device,
        objective=args.objective or "classify",
    )


def check_device(device: str) -> None:
    """Raise ValueError for a device that the benchmark cannot measure on this machine."""
    import torch

    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device is {device!r}; the benchmark runs on cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device is 'cuda', and torch sees no CUDA device here; without --device it measures the CPU")


def check_training(args: Arguments) -> None:
    """Raise for a benchmark of training that cannot be measured here."""
    if importlib.util.find_spec("accelerate") is None:
        raise ImportError(f"transformers' Trainer needs accelerate: {install_hint('bench')}")
    if args.plot:
        raise ValueError("--plot draws vectors, not training; without it the figures are printed, with --json as JSON")
    if args.device != "cpu":
        raise ValueError(f"--device is {args.device!r}; training is measured on cpu")


def check_plot(path: Path, overwrite: bool) -> None:
    """Raise for a picture that cannot be written at the end."""
    from minibert.files import check_output
    from minibert.plotting import pyplot

    pyplot()
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--plot is {path}; it must end in .png, .svg or .pdf")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"--plot is {path}, and there is no folder {path.absolute().parent}")
    check_output(path, overwrite)
