"""`minibert evaluate`: a trained folder on labelled data."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from minibert.cli.classify import COLUMNS, data_arguments
from minibert.cli.shared import Arguments, Figures, add_machine


def load_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="of `minibert classify train` or `minibert finetune`")
    parser.add_argument("--model", metavar="NAME", help="the checkpoint of a frozen classifier, where it was moved")
    add_machine(parser)


def load_reader(args: Arguments) -> Any:
    """The folder, ready to predict, of any kind."""
    from minibert.train.reader import open_reader

    return open_reader(args.folder, model=args.model, device=args.device, batch_tokens=args.batch_tokens)


def arguments(parser: argparse.ArgumentParser) -> None:
    load_arguments(parser)
    data_arguments(parser)
    parser.set_defaults(encoding=None, missing=None)  # None: as in training


def run(args: Arguments) -> Figures:
    """Measure a trained folder on labelled data of the kind it was trained on."""
    reader = load_reader(args)
    columns = {name: getattr(args, name) for name in COLUMNS if getattr(args, name) is not None}
    if wrong := [name for name in columns if not hasattr(reader.task, name)]:
        raise ValueError(f"files of the task {reader.task.name!r} have no {', '.join(wrong)} to choose")
    task = replace(reader.task, **columns) if columns else reader.task
    measure = reader.measure(task.read(args.data))
    print(measure.text)
    return dict(measure.figures)
