"""`minibert distill`: a smaller model learns from a larger one."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from minibert.cli.finetune import add_output, print_data, print_result, print_saved, progress_printer
from minibert.cli.options import add_options
from minibert.cli.shared import Arguments, Figures
from minibert.printing import block
from minibert.train.settings import DistillClassifierSettings, DistillSettings

SKIP = ("config", "init", "dev", "objective", "phrases", "model", "freeze", "class_weight")  # settings without a flag
COLUMNS = ("text", "pair", "label")  # of a table, for --task classify
LANGUAGE = {one.name for one in fields(DistillSettings) if "help" in one.metadata} - {*SKIP, "epochs"}
CLASSIFY = {one.name for one in fields(DistillClassifierSettings) if "help" in one.metadata} - {*SKIP}


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("data", metavar="DATA", help="text: one sentence a line, an empty line between documents; or a table")
    add("--teacher", required=True, metavar="NAME", help="a masked LM, or the output of `minibert finetune classify`")
    add_output(parser)
    add("--task", default="language", choices=("language", "classify"), help="what is learned (%(default)s)")
    add("--dev", metavar="FILE", help="held-out data (default: the end of the text; of a task none)")
    add_options(parser, DistillSettings, skip=(*SKIP, "epochs"))
    group = parser.add_argument_group("--task classify", "other defaults are those of `minibert finetune classify`")
    group.add_argument("--epochs", type=int, metavar="N", help="passes over the training data (3)")
    for name in COLUMNS:
        group.add_argument(
            f"--{name}", metavar="COLUMN", help=f"column of the {name}s: name, or number without a header"
        )
    parser.set_defaults(**dict.fromkeys(LANGUAGE | CLASSIFY))  # None: the settings have their own default


def run(args: Arguments) -> Figures:
    """A student of half the teacher's layers is initialised with every second of them, and learns its predictions."""
    from minibert.tasks.classification import Classification
    from minibert.train import distributed
    from minibert.train.distillation import DistillClassifierRun, DistillRun
    from minibert.train.run import check_out

    distributed.silence_other_ranks()
    check_out(args.out, args.overwrite, args.teacher, args.tokenizer)
    language = args.task == "language"
    names, other = (LANGUAGE, {"epochs", *COLUMNS}) if language else (CLASSIFY, LANGUAGE - CLASSIFY)
    if wrong := [name for name in sorted(other) if getattr(args, name) is not None]:
        raise ValueError(f"--{wrong[0].replace('_', '-')} has no meaning for --task {args.task}")
    given: dict[str, Any] = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    prepared: DistillRun | DistillClassifierRun
    if language:
        prepared = DistillRun.of(args.data, DistillSettings(init=args.teacher, dev=args.dev, **given))
        print(prepared.stats.text, flush=True)
    else:
        task = Classification(**{name: getattr(args, name) for name in COLUMNS})
        data, dev = task.read(args.data), None if args.dev is None else task.read(args.dev)
        settings = DistillClassifierSettings(model=args.teacher, **given)
        prepared = DistillClassifierRun.of(task, data, dev, settings)
        print_data(args, data, dev, prepared.notes)
    taken = [str(layer) for layer in prepared.settings.take or ()]
    student = f"a DistilBERT of {len(taken)} layers, initialised with layers {', '.join(taken)} of the teacher"
    print(block("student", student), flush=True)
    report = progress_printer(prepared.main)
    trained = prepared.finish(args.out, restart=args.restart, overwrite=args.overwrite, report=report)
    print_result(trained)
    return print_saved(args, trained)
