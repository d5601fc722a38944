"""`minibert bench`: speed against other runtimes; with --train, of training; with --serve, of the server."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import time
from pathlib import Path

from minibert.bench.settings import Settings
from minibert.cli.options import add_options, read_options
from minibert.cli.shared import Arguments, Figures
from minibert.printing import install_hint

PICTURES = (".png", ".svg", ".pdf")


def arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, Settings)
    text = "a checkpoint, or distilbert-, roberta- or albert-shape; repeatable (the first, and all-MiniLM-L6-v2)"
    parser.add_argument("--model", action="append", metavar="NAME", help=text)


def run(args: Arguments) -> Figures:
    """Speed, memory and equality against transformers and other runtimes; half an hour or more on two cores.

    Exit status 1 if our own vectors, or weights after training, differ from those of transformers.
    """
    settings = read_options(args, Settings, models=tuple(args.model or ()))
    check(settings)
    from minibert.bench import harness, report
    from minibert.printing import block

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


def check(settings: Settings) -> None:
    """Raise for what cannot be measured here, before anything runs.

    ImportError for a missing package, ValueError for a device that is not there, FileNotFoundError for a folder.
    """
    for package in ("transformers", "accelerate")[: 1 + settings.train]:  # the Trainer needs accelerate
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"the benchmark compares with transformers and needs {package}: {install_hint('bench')}")
    from minibert.device import check_device

    check_device(settings.device)
    if settings.plot:
        from minibert.outputs import check_output
        from minibert.plotting import pyplot

        pyplot()
        if not settings.plot.endswith(PICTURES):
            raise ValueError(f"--plot is {settings.plot}; it must end in {', '.join(PICTURES)}")
        Path(settings.plot).absolute().parent.stat()
        check_output(Path(settings.plot), settings.overwrite)
