"""`minibert bench`: speed against other runtimes; with --train, of training; with --serve, of the server."""

import argparse
import importlib
import time
from pathlib import Path

from minibert.bench.settings import Settings
from minibert.cli.options import add_options, read_options
from minibert.cli.shared import Arguments, Figures
from minibert.printing import block, require


def arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, Settings)
    text = "a checkpoint, or distilbert-, roberta- or albert-shape; repeatable (the first, and all-MiniLM-L6-v2)"
    parser.add_argument("--model", action="append", metavar="NAME", help=text)


def run(args: Arguments) -> Figures:
    """Speed, memory and equality against transformers and other runtimes; half an hour or more on two cores.

    Exit status 1 if our own vectors, or weights after training, differ from those of transformers.
    """
    settings = read_options(args, Settings, models=tuple(args.model or ()))
    require("bench", *("transformers", "accelerate")[: 1 + settings.train])  # the Trainer needs accelerate
    from minibert.bench import harness, report
    from minibert.device import check_device
    from minibert.plotting import check_picture

    check_device(settings.device)
    if settings.plot:
        check_picture(Path(settings.plot), settings.overwrite)
    benchmark = importlib.import_module(f"minibert.bench.{settings.kind}")
    began, results = time.perf_counter(), []
    print(report.heading(settings), flush=True)
    for model in settings.models:
        results.append(harness.measure(model, settings, benchmark))
        print("\n" + report.result_text(results[-1]), flush=True)
    seconds = time.perf_counter() - began
    print("\n" + report.goals_text(results) + "\n\n" + block("legend", report.LEGEND))
    print(block("seconds", f"{seconds:.0f}"))
    if settings.plot:
        report.draw(results, Path(settings.plot))
        print(block("written", settings.plot))
    return report.figures(settings, results, seconds)
