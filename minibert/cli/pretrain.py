"""`minibert pretrain`: BERT learns a language from raw text."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from minibert.cli.shared import Arguments, Figures, add_overwrite

if TYPE_CHECKING:
    from minibert.train.loop import Progress


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("corpus", metavar="CORPUS", help="text: one sentence a line, an empty line between documents")
    add("--out", required=True, type=Path, metavar="FOLDER", help="the checkpoint; after a kill the command resumes")
    add("--tokenizer", metavar="NAME", help="a folder that `minibert vocab` wrote, or a checkpoint")
    add("--config", metavar="FILE", help="a config.json with the sizes of a new model")
    add("--init", metavar="NAME", help="a checkpoint to go on from, in place of a new model")
    add("--objective", default="mlm+nsp", metavar="WHAT", help="mlm, mlm+nsp or mlm+sop (%(default)s)")
    add("--dev", metavar="FILE", help="held-out text to be scored on (default: the end of the corpus)")
    add("--paragraphs", action="store_true", help="a line is a paragraph, whose sentences are to be found")
    add("--steps", type=int, default=1000, metavar="N", help="(%(default)s)")
    add("--batch-size", type=int, default=32, metavar="N", help="rows in a step (%(default)s)")
    add("--max-length", type=int, default=128, metavar="N", help="tokens of a row (%(default)s)")
    add("--mask-rate", type=float, default=0.15, metavar="X", help="share of the tokens that are hidden (%(default)s)")
    add("--whole-words", action="store_true", help="hide all tokens of a word together")
    add("--phrases", metavar="FILE", help="a phrase a line, whose tokens are hidden together, as ERNIE does")
    add("--learning-rate", type=float, default=1e-4, metavar="X", help="at its highest (%(default)s)")
    add("--warmup", type=float, default=0.01, metavar="X", help="share of the steps in which it rises (%(default)s)")
    add("--weight-decay", type=float, default=0.01, metavar="X", help="of matrices (%(default)s)")
    add("--clip", type=float, default=1.0, metavar="X", help="largest length of the gradients (%(default)s)")
    add("--accumulate", type=int, default=1, metavar="N", help="batches that make one step (%(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="(%(default)s)")
    add("--precision", default="auto", metavar="TYPE", help="float32, bfloat16 or auto (%(default)s)")
    add("--step", default="packed", choices=("packed", "readable"), help="without padding, or as transformers does it")
    add(
        "--shard",
        default="none",
        choices=("none", "full"),
        help="full: each process of torchrun keeps a part of the model",
    )
    add("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or mps (%(default)s)")
    add("--save-every", type=int, default=500, metavar="N", help="steps until it is scored and saved (%(default)s)")
    add("--restart", action="store_true", help="begin again, whatever an interrupted command has done")
    add_overwrite(parser)


OWN = ("tokenizer", "config", "init", "objective", "dev", "paragraphs", "steps", "max_length", "mask_rate")
HOW = ("whole_words", "phrases", "step", "device", "save_every")
SETTINGS = ("batch_size", "learning_rate", "warmup", "weight_decay", "clip", "accumulate", "seed", "precision", "shard")


def run(args: Arguments) -> Figures:
    """Look at the corpus, learn from it, and write a checkpoint that everything else takes."""
    from minibert.printing import block
    from minibert.train import distributed
    from minibert.train.folder import check_out
    from minibert.train.pretraining import Job, finish, request_of

    distributed.quiet()
    check_out(args.out, args.overwrite, args.tokenizer, args.init)
    job = Job.of(request_of(args.corpus, {name: getattr(args, name) for name in (*OWN, *HOW, *SETTINGS)}))
    print(job.findings.text)
    told = ", ".join(f"{name} {loss:.3f}" for name, loss in job.baselines.items())
    print(block("without model", f"loss of the hidden words of held-out text: {told}"), flush=True)
    trained = finish(job, args.out, args.restart, report(), args.overwrite)
    figures = trained.figures
    print(block("steps", f"{figures['steps']:,}, {figures['tokens']:,} tokens, {figures['tokens_per_second']:,.0f}/s"))
    print(block("saved in", f"{args.out} after {figures['seconds']:.1f} s"))
    return {name: value for name, value in figures.items() if name not in ("curve", "curves")} | {"out": str(args.out)}


def report() -> Callable[[Progress], None]:
    """What is said each time that the model was scored, above the progress bar."""
    import sys

    from tqdm import tqdm

    from minibert.printing import block

    said = {"before": 0}

    def say(progress: Progress) -> None:
        curves = progress.parts or {"masked-lm": progress.curve}
        since, said["before"] = said["before"], len(progress.curve)
        parts = [f"{name} loss {statistics.mean(curve[since:] or curve[-1:]):.3f}" for name, curve in curves.items()]
        scores = progress.scores[-1]
        parts.append(f"held out: {scores['masked_lm_loss']:.3f}, {scores['masked_accuracy']:.1%} of the words right")
        parts += [
            f"{name[:-9]} {value:.1%}" for name, value in scores.items() if name.endswith(("e_accuracy", "r_accuracy"))
        ]
        parts += [f"{scores['kept']:.1%} of what the teacher has right"] if scores.get("kept") is not None else []
        tqdm.write(block(f"step {progress.step:,}", ", ".join(parts)), file=sys.stdout)
        sys.stdout.flush()

    return say
