"""`minibert evaluate`: a trained folder on data with answers."""

from __future__ import annotations

import argparse
from pathlib import Path

from minibert.cli import classify
from minibert.cli.shared import Arguments, Figures


def arguments(parser: argparse.ArgumentParser) -> None:
    classify.evaluate_arguments(parser)


def run(args: Arguments) -> Figures:
    """Measure any trained folder, frozen or fine-tuned, on data of the kind that it learned from."""
    from minibert.train.run import REPORT

    if not (Path(args.folder) / REPORT).exists():
        return classify.evaluate_classifier(args)
    from minibert.train.finetuning import Reader

    reader = Reader.load(args.folder, args.device)
    columns = {name: getattr(args, name, None) for name in ("text", "pair", "label", "format")}
    measure = reader.measure(reader.with_columns(columns).task.read(args.data))
    print(measure.text)
    return measure.figures
