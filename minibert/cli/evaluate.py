"""`minibert evaluate`: a trained folder on labelled data."""

from __future__ import annotations

import argparse
from typing import Any

from minibert.cli.classify import data_arguments
from minibert.cli.shared import Arguments, Figures, add_machine


def load_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="of `minibert classify train` or `minibert finetune`")
    parser.add_argument("--model", metavar="NAME", help="the checkpoint of a frozen classifier, where it was moved")
    add_machine(parser)


def load_reader(args: Arguments) -> Any:
    """The trained folder, ready to predict: a train.finetuning.Reader or a tasks.frozen.FrozenReader."""
    from minibert.tasks.folders import folder_kind

    if folder_kind(args.folder) == "frozen":
        from minibert.tasks.frozen import Classifier, FrozenReader

        how = {"model": args.model, "device": args.device, "batch_tokens": args.batch_tokens}
        return FrozenReader(Classifier.load(args.folder, **how))
    from minibert.train.finetuning import Reader

    return Reader.load(args.folder, args.device)


def arguments(parser: argparse.ArgumentParser) -> None:
    load_arguments(parser)
    data_arguments(parser)


def run(args: Arguments) -> Figures:
    """Measure a trained folder on labelled data of the kind it was trained on."""
    reader = load_reader(args)
    reader = reader.with_columns({name: getattr(args, name) for name in ("text", "pair", "label", "format")})
    measure = reader.measure(reader.task.read(args.data))
    print(measure.text)
    figures: Figures = measure.figures
    return figures
