"""`minibert distill`: a smaller model learns from a larger one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from minibert.cli.finetune import epoch_line, show
from minibert.cli.pretrain import report
from minibert.cli.shared import Arguments, Figures, add_overwrite, numbers, whole_numbers

OF_BOTH = ("layers", "take", "temperature", "weights", "max_length", "step", "device", "save_every")
SETTINGS = ("batch_size", "learning_rate", "warmup", "weight_decay", "clip", "accumulate", "seed", "precision", "shard")
OF_LANGUAGE = ("steps", "places", "tokenizer", "mask_rate", "whole_words", "paragraphs")
OF_CLASSIFY = ("epochs", "text", "pair", "label")
COLUMNS = ("text", "pair", "label")


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("data", metavar="DATA", help="text: one sentence a line, an empty line between documents; or a table")
    add("--teacher", required=True, metavar="NAME", help="a masked LM, or of a task what finetune made")
    add("--out", required=True, type=Path, metavar="FOLDER", help="the student; after a kill the command resumes")
    add("--task", default="language", choices=("language", "classify"), help="what is learned (%(default)s)")
    add("--dev", metavar="FILE", help="held-out data (default: the end of the text; of a task none)")
    add("--layers", type=int, metavar="N", help="of the student (default: half of the teacher's)")
    add("--take", type=whole_numbers, metavar="N,N", help="the teacher's that they begin as (default: evenly spread)")
    add("--temperature", type=float, metavar="X", help="makes the teacher's answers softer (2)")
    add(
        "--weights",
        type=numbers,
        metavar="X,X",
        help="distillation, masked LM, cosine (5,2,1); labels: soft, true (5,2)",
    )
    add("--batch-size", type=int, metavar="N", help="rows in a step (32)")
    add("--max-length", type=int, metavar="N", help="tokens of a row (128)")
    add("--learning-rate", type=float, metavar="X", help="at its highest (5e-4; of a task 5e-5)")
    add("--warmup", type=float, metavar="X", help="share of the steps in which it rises (0.05; 0.1)")
    add("--weight-decay", type=float, metavar="X", help="of matrices (0; 0.01)")
    add("--clip", type=float, metavar="X", help="largest length of the gradients (5; 1)")
    add("--accumulate", type=int, metavar="N", help="batches that make one step (1)")
    add("--seed", type=int, metavar="N", help="(0)")
    add("--precision", default="auto", metavar="TYPE", help="float32, bfloat16 or auto (%(default)s)")
    add("--shard", choices=("none", "full"), help="full: each process of torchrun keeps a part of the model")
    add("--step", choices=("packed", "readable"), help="without padding (packed), or as one writes it down")
    add("--device", metavar="NAME", help="auto, cpu, cuda or mps (auto)")
    add("--save-every", type=int, metavar="N", help="steps between two saved states (500, when it is scored; 200)")
    add("--restart", action="store_true", help="begin again, whatever an interrupted command has done")
    add_overwrite(parser)
    language = parser.add_argument_group("--task language").add_argument
    language("--steps", type=int, metavar="N", help="(1000)")
    language("--places", choices=("all", "masked"), help="tokens at which the teacher's guesses are learned (all)")
    language("--tokenizer", metavar="NAME", help="(default: the teacher's)")
    language("--mask-rate", type=float, metavar="X", help="share of the tokens that are hidden (0.15)")
    language("--whole-words", action="store_true", default=None, help="hide all tokens of a word together")
    language("--paragraphs", action="store_true", default=None, help="a line is a paragraph, whose sentences are found")
    classify = parser.add_argument_group("--task classify").add_argument
    classify("--epochs", type=int, metavar="N", help="(3)")
    classify("--text", metavar="COLUMN", help="name or number of its column (default: sentence or text)")
    classify("--pair", metavar="COLUMN", help="of a second text")
    classify("--label", metavar="COLUMN", help="(default: label)")


def run(args: Arguments) -> Figures:
    """A student half as deep as its teacher begins as every second of its layers, and learns what the teacher says."""
    from minibert.train import distributed
    from minibert.train.folder import check_out

    distributed.quiet()
    check_out(args.out, args.overwrite, args.teacher, args.tokenizer)
    other = OF_CLASSIFY if args.task == "language" else OF_LANGUAGE
    if wrong := [name for name in other if getattr(args, name) is not None]:
        raise ValueError(f"--{wrong[0].replace('_', '-')} has no meaning for --task {args.task}")
    figures = language(args) if args.task == "language" else classify(args)
    return {name: value for name, value in figures.items() if name not in ("curve", "curves")} | {"out": str(args.out)}


def language(args: Arguments) -> Figures:
    """From a text and a masked LM."""
    from minibert.printing import block
    from minibert.train.distillation import Request, new_job, request_of
    from minibert.train.pretraining import finish

    given = chosen(args, *OF_BOTH, *SETTINGS, *OF_LANGUAGE, "dev")
    job = new_job(request_of(Request, corpus=args.data, init=args.teacher, **given))
    print(job.findings.text, flush=True)
    print(block("student", begins(job.take, job.config.num_hidden_layers)), flush=True)
    figures = finish(job, args.out, args.restart, report(), args.overwrite).figures
    print(block("steps", f"{figures['steps']:,}, {figures['tokens']:,} tokens, {figures['tokens_per_second']:,.0f}/s"))
    print(block("saved in", f"{args.out} after {figures['seconds']:.1f} s"))
    return figures


def classify(args: Arguments) -> Figures:
    """From labelled texts and a classifier."""
    from minibert.printing import block
    from minibert.tasks.classification import Classification
    from minibert.train.distillation import TextRequest, finish, new_text_job, request_of

    task = Classification(**chosen(args, *COLUMNS))
    given = chosen(args, *OF_BOTH, *SETTINGS, "epochs")
    request = request_of(TextRequest, model=args.teacher, **given)
    data, dev = task.read(args.data), None if args.dev is None else task.read(args.dev)
    job = new_text_job(task, data, dev, request)
    print(block("data", f"{args.data}: {len(data):,} rows" + (f"; {args.dev}: {len(dev):,}" if dev else "")))
    for note in dict.fromkeys([*job.encoded.notes, *(job.held_out.notes if job.held_out else ())]):
        print(block("note", note))
    print(block("student", begins(job.take, job.deep)), flush=True)
    trained = finish(job, args.out, args.restart, epoch_line(task), args.overwrite)
    show(trained, job.settings.seed, 1)
    print(block("saved in", f"{args.out} after {trained.figures['seconds']:.1f} s"))
    return trained.figures


def chosen(args: Arguments, *names: str) -> dict[str, Any]:
    """What was said of these; what was not, the request knows."""
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def begins(take: tuple[int, ...], deep: int) -> str:
    """Which layers the student begins as."""
    taken = ", ".join(map(str, take))
    layers = "1 layer, which begins" if len(take) == 1 else f"{len(take)} layers, which begin"
    return f"a DistilBERT of {layers} as {taken} of the teacher's 0 to {deep - 1}"
