"""The `minibert` command.

    COMMANDS -> parser -> main

Each command is a file of this package with its arguments and its run: a function that takes the parsed arguments,
prints a report and returns its figures, which `--json` prints once more as the last line; figures with "ok": false mean
that a check failed. It imports the package that does the work when it runs, so that `--help` is instant.
Exit status: 0 done, 1 the work failed, 2 the request was wrong, 130 interrupted, 141 nobody reads the output.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, NoReturn, TextIO

from minibert import __version__
from minibert.cli import (
    bench,
    classify,
    convert,
    demo,
    distill,
    download,
    embed,
    evaluate,
    export,
    fill_mask,
    finetune,
    inspect,
    parity,
    predict,
    pretrain,
    serve,
    trace,
    vocab,
)
from minibert.cli.shared import Arguments, Figures
from minibert.tasks import TASKS

WRONG_REQUEST = (ValueError, TypeError, FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
FAILURE = (OSError, RuntimeError, MemoryError, ImportError)


@dataclass(frozen=True)
class Command:
    """One command: what it does, its arguments, its function, which returns the figures for --json."""

    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Arguments], Figures]


GROUPS = {
    "classify": "features + logistic regression: train, evaluate, predict",
    "finetune": f"train a checkpoint for a task: {', '.join(TASKS)}",
}
COMMANDS = {
    "demo": Command("the main job, start to end", demo.arguments, demo.run),
    "embed": Command("one vector for each text of a file", embed.arguments, embed.run),
    "classify train": Command("train on labelled texts", classify.arguments, classify.run),
    "classify evaluate": Command("measure on labelled texts", evaluate.arguments, evaluate.run),
    "classify predict": Command("label texts", predict.arguments, predict.run),
    **{
        f"finetune {name}": Command(help, partial(finetune.arguments, name=name), partial(finetune.run, name=name))
        for name, (_, _, help) in TASKS.items()
    },
    "pretrain": Command("a language learned from raw text", pretrain.arguments, pretrain.run),
    "distill": Command("a smaller model learns from a larger one", distill.arguments, distill.run),
    "vocab": Command("learn a vocabulary from text", vocab.arguments, vocab.run),
    "evaluate": Command("measure a trained folder", evaluate.arguments, evaluate.run),
    "predict": Command("answers of a trained folder", predict.arguments, predict.run),
    "fill-mask": Command("guess the masked words", fill_mask.arguments, fill_mask.run),
    "serve": Command("vectors, labels and masked words over HTTP", serve.arguments, serve.run),
    "trace": Command("follow a text through the model, as a page", trace.arguments, trace.run),
    "parity": Command("prove that every tensor equals that of transformers", parity.arguments, parity.run),
    "bench": Command("speed against transformers and other peers", bench.arguments, bench.run),
    "download": Command("fetch a checkpoint", download.arguments, download.run),
    "convert": Command("write an older checkpoint, a pickle, as safetensors", convert.arguments, convert.run),
    "export": Command("write a checkpoint as an ONNX file", export.arguments, export.run),
    "inspect": Command("say what is in a checkpoint", inspect.arguments, inspect.run),
}


class Parser(argparse.ArgumentParser):
    """Answers a wrong request with one line."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where to read on; exit status 2."""
        print(f"minibert: error: {message}; see `{self.prog} --help`", file=sys.stderr)
        sys.exit(2)


def parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of all COMMANDS; options are made for the one that argv names, since that may import torch."""
    top = Parser(prog="minibert", description="BERT and DistilBERT, to be read, checked and used.")
    top.add_argument("--version", action="version", version=f"minibert {__version__}")
    places = {"": top.add_subparsers(metavar="COMMAND", required=True)}
    for name, command in COMMANDS.items():
        group, _, last = name.rpartition(" ")
        if group not in places:
            grouped = places[""].add_parser(group, help=GROUPS[group], description=GROUPS[group])
            places[group] = grouped.add_subparsers(metavar="COMMAND", required=True)
        one = places[group].add_parser(
            last, help=command.help, description=getattr(command.run, "func", command.run).__doc__
        )
        if list(argv[: len(name.split())]) == name.split():
            command.arguments(one)
        one.add_argument("--json", action="store_true", help="print the figures as one JSON object, the last line")
        one.set_defaults(run=command.run)
    return top


def join_negatives(argv: Sequence[str]) -> list[str]:
    """`--layers -4,-1` as `--layers=-4,-1`: argparse would take a list that begins with a minus for an option."""
    whole: list[str] = []
    for argument in argv:
        if whole and re.fullmatch(r"--\w[\w-]*", whole[-1]) and re.fullmatch(r"-\d+(,-?\d+)+", argument):
            whole[-1] += f"={argument}"
        else:
            whole.append(argument)
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # names of files may be anything
    argv = join_negatives(sys.argv[1:] if argv is None else argv)
    args = parser(argv).parse_args(argv)
    with warnings.catch_warnings():
        warnings.showwarning = show_warning
        try:
            figures = args.run(args)
            if args.json:
                print(json.dumps(figures, default=str, ensure_ascii=False, allow_nan=False))
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at its end
            return 141
        except KeyboardInterrupt as stop:
            if str(stop):  # something to be said of what is done
                print(f"minibert: interrupted: {stop}", file=sys.stderr)
            return 130
        except WRONG_REQUEST as error:
            return complain(error, 2)
        except FAILURE as error:
            return complain(error, 1)
    return 0 if figures.get("ok", True) else 1


def complain(error: BaseException, status: int) -> int:
    """Say in one line what went wrong."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    print(f"minibert: error: {text}", file=sys.stderr)
    return status


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning as one plain line, in place of Python's two with file and line number."""
    out: IO[str] = file or sys.stderr
    print(f"minibert: warning: {str(message).strip().splitlines()[0]}", file=out)
