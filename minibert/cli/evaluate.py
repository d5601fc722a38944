"""`minibert evaluate`: a trained folder on labelled data."""

import argparse
from dataclasses import replace
from typing import Any

from minibert.cli.classify import COLUMNS, data_arguments
from minibert.cli.shared import Arguments, Figures, add_machine

FOLDER_HELP = "of `minibert classify train`, `minibert finetune` or transformers (also a Hub name), with a task head"


def load_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help=FOLDER_HELP)
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
    """Measure a model with a task head on labelled data, by default in the columns of its training data."""
    reader = load_reader(args)
    measure = reader.measure(with_file_options(reader.task, args, args.data).read(args.data))
    print(measure.text)
    return dict(measure.figures)


def with_file_options(task: Any, args: Arguments, path: str) -> Any:
    """The task with the options about a file; where one is not given it is as in training, if this format has it.

    Raises ValueError for an option that files of the task do not have.
    """
    from minibert.text.formats import DELIMITERS, FORMATS, FileSettings

    given = {name: value for name in COLUMNS if (value := getattr(args, name, None)) is not None}
    if wrong := [name for name in given if not hasattr(task, name)]:
        raise ValueError(f"files of the task {task.name!r} have no {', '.join(wrong)} to choose")
    changed: dict[str, Any] = {}
    if hasattr(task, "format"):
        by_name = path.removesuffix(".gz").lower().endswith(tuple(f".{format}" for format in FORMATS))
        changed["format"] = given.get("format") or (None if by_name else task.format)
        format, _ = FileSettings(format=changed["format"]).format_of(path)
        changed |= {} if format in DELIMITERS else {"delimiter": None}
        changed |= {"text": None, "pair": None, "label": None} if format == "txt" else {}
    return replace(task, **{name: value for name, value in changed.items() if hasattr(task, name)} | given)
