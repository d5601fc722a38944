"""`minibert predict`: a trained folder on new texts."""

from __future__ import annotations

import argparse
from pathlib import Path

from minibert.cli import classify
from minibert.cli.shared import Arguments, Figures, portions, standard_input


def arguments(parser: argparse.ArgumentParser) -> None:
    classify.predict_arguments(parser)


def run(args: Arguments) -> Figures:
    """Answers of any trained folder, frozen or fine-tuned, for texts from arguments or standard input."""
    from minibert.train.run import REPORT

    if not (Path(args.folder) / REPORT).exists():
        return classify.predict(args)
    import sys

    from minibert.text.tables import read_lines
    from minibert.train.finetuning import Reader

    reader = Reader.load(args.folder, args.device)
    lines = args.texts or read_lines(standard_input(), "standard input")
    size = 1 if not args.texts and sys.stdin.isatty() else classify.TEXTS_AT_ONCE
    printed: list[str] = []
    for portion in portions(lines, size):
        columns = [line.split("\t", 1) for line in portion]
        pairs = [row[1] for row in columns] if all(len(row) == 2 for row in columns) else None
        data = reader.task.from_texts([row[0] for row in columns] if pairs else portion, pairs)
        told = reader.task.format_predictions(reader.answer(data), data)
        print("\n".join(told), flush=True)
        printed += told if args.json else []
    return {"predictions": printed}
