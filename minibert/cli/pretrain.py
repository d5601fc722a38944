"""`minibert pretrain`: a model learns a language from raw text."""

from __future__ import annotations

import argparse

from minibert.cli.finetune import add_output, print_result, print_saved, progress_printer
from minibert.cli.options import add_options, read_options
from minibert.cli.shared import Arguments, Figures
from minibert.printing import block
from minibert.train.settings import PretrainSettings


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("corpus", metavar="CORPUS", help="text: one sentence a line, an empty line between documents")
    add_output(parser)
    add_options(parser, PretrainSettings, skip=("epochs",))


def run(args: Arguments) -> Figures:
    """Check the corpus, learn from it, and write an ordinary checkpoint."""
    from minibert.train import distributed
    from minibert.train.pretraining import PretrainRun
    from minibert.train.run import check_out

    distributed.silence_other_ranks()
    check_out(args.out, args.overwrite, args.tokenizer, args.init)
    prepared = PretrainRun.of(args.corpus, read_options(args, PretrainSettings))
    print(prepared.stats.text)
    losses = ", ".join(f"{name} {loss:.3f}" for name, loss in prepared.baselines.items())
    print(block("without model", f"loss of the masked tokens of held-out text: {losses}"), flush=True)
    report = progress_printer(None)
    trained = prepared.finish(args.out, restart=args.restart, overwrite=args.overwrite, report=report)
    print_result(trained)
    return print_saved(args, trained)
