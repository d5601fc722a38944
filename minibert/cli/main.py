"""The `minibert` command.

    COMMANDS -> parser -> main

Each command has two functions. One adds its options to a parser. The other takes the parsed options, prints a report
and returns its figures; `--json` prints them too, as the last line, and "ok": false among them means that a check
failed. A command imports the package that does the work when it runs, so that `--help` is instant.

Exit status: 0 done, 1 the work failed, 2 the request was wrong, 141 the output was closed; 130 and 143: ended by Ctrl-C
and SIGTERM, each a KeyboardInterrupt, whose text says what is kept.
"""

import argparse
import io
import json
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from typing import Any, NoReturn

from minibert import __version__
from minibert.cli import check, checkpoints, classify, demo, embed, predict, score, search, serve, tools, train
from minibert.cli.shared import Arguments
from minibert.tasks import TASKS
from minibert.utils import habits
from minibert.utils.files import neighbours, user_path
from minibert.utils.printing import CONTROL, Figures, did_you_mean, is_main_process, note, printable
from minibert.utils.wording import render

WRONG_REQUEST = (ValueError, TypeError, FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
FAILURE = (OSError, RuntimeError, MemoryError, ImportError)

NUMBER = re.compile(r"-\.?\d")  # what begins like a negative number

GROUPS = {
    "classify": "features + logistic regression: train, evaluate, predict",
    "finetune": f"train a checkpoint for a task: {', '.join(TASKS)}",
}
# Each command's name: its line of help, the function that adds its arguments, and the function that runs it.
COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[Arguments], Figures]]] = {
    "demo": ("classify sentences, start to end, as the tutorial does", demo.arguments, demo.run),
    "embed": ("one vector per text of a file", embed.arguments, embed.run),
    "search": ("the nearest texts of a corpus", search.search_arguments, search.search),
    "mine": ("the closest pairs of a corpus", search.mine_arguments, search.mine),
    "classify train": ("train on labelled texts", classify.arguments, classify.run),
    "classify evaluate": ("measure on labelled texts", predict.evaluate_arguments, predict.evaluate),
    "classify predict": ("label texts", predict.predict_arguments, predict.predict),
    **{
        f"finetune {name}": (
            entry.help,
            partial(train.finetune_arguments, name=name),
            partial(train.finetune, name=name),
        )
        for name, entry in TASKS.items()
    },
    "pretrain": ("train a model on raw text from nothing", train.pretrain_arguments, train.pretrain),
    "distill": ("train a smaller model on the predictions of a larger one", train.distill_arguments, train.distill),
    "vocab": ("learn a vocabulary from text", train.vocab_arguments, train.vocab),
    "evaluate": ("measure a trained folder, or vectors", predict.evaluate_any_arguments, predict.evaluate_any),
    "predict": ("predictions of a trained folder", predict.predict_arguments, predict.predict),
    "fill-mask": ("predict the masked tokens", predict.fill_mask_arguments, predict.fill_mask),
    "score": ("how likely a masked language model finds each text", score.arguments, score.run),
    "serve": ("vectors, labels and masked tokens over HTTP", serve.arguments, serve.run),
    "trace": ("follow a text through the model, as a page", tools.trace_arguments, tools.trace),
    "parity": ("prove that every tensor equals that of transformers", tools.parity_arguments, tools.parity),
    "check": ("a BERT of your own: what is right, what is wrong and why", check.arguments, check.run),
    "bench": ("speed against transformers and other peers", tools.bench_arguments, tools.bench),
    "download": ("fetch a checkpoint", checkpoints.download_arguments, checkpoints.download),
    "convert": (
        "write an older checkpoint, a pickle, as safetensors",
        checkpoints.convert_arguments,
        checkpoints.convert,
    ),
    "export": ("write a checkpoint as an ONNX file", checkpoints.export_arguments, checkpoints.export),
    "inspect": ("print what a checkpoint holds", checkpoints.inspect_arguments, checkpoints.inspect),
}


class Parser(argparse.ArgumentParser):
    """A parser that reports a wrong request in one line, and reads -4,-1 as a value, not as an option.

    commands: the names that may follow, if it has commands.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.commands: Collection[str] = ()
        super().__init__(*arguments, **settings)
        self._negative_number_matcher = NUMBER

    @property
    def options(self) -> list[str]:
        """All options, such as --model."""
        return list(self._option_string_actions)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but first refuse an unknown command or option, with the nearest name."""
        for word in args:
            name = word.partition("=")[0]
            if name == "--":
                break
            if not name.startswith("-") or name == "-" or " " in word or NUMBER.match(name):
                if self.commands and name not in self.commands:
                    every = COMMANDS if " " not in self.prog else ()  # `train` is in a group
                    habit = [
                        f"; did you mean {ours}?"
                        for ours, names in habits.COMMANDS.items()
                        if name.lower() in names.split()
                    ]
                    near = "".join(habit) or did_you_mean(name, [*self.commands, *every])
                    self.error(f"there is no command {name}{near}")
                if self.commands:
                    break
            elif not name.startswith("-h") and not any(option.startswith(name) for option in self.options):
                ours = render(habits.argument(name.lstrip("-").replace("-", "_")), self.options)
                self.error(f"there is no option {name}{ours or did_you_mean(name, self.options)}")
        return super().parse_known_args(args, namespace)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Return the value of an argument as its type. argparse would say "invalid user_path value: ''"."""
        if action.type is user_path and not arg_string:
            self.error(f"{action.option_strings[0]} has an empty name; is a variable of the shell not set?")
        return super()._get_value(action, arg_string)

    def add_subparsers(self, **settings: Any) -> Any:
        """Add the place of the commands."""
        made = super().add_subparsers(**settings)
        self.commands = made.choices
        return made

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and where to read more; exit with status 2."""
        note(f"error: {message}; see `{self.prog} --help`")
        sys.exit(2)


def parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of COMMANDS, with options only for the one that argv names: adding them may import torch."""
    top = Parser(prog="minibert", description="BERT and DistilBERT, to be read, checked and used.")
    top.add_argument("--version", action="version", version=f"minibert {__version__}")
    places = {"": top.add_subparsers(metavar="COMMAND", required=True)}
    for name, (help, arguments, run) in COMMANDS.items():
        group, _, last = name.rpartition(" ")
        if group not in places:
            places[group] = (
                places[""]
                .add_parser(group, help=GROUPS[group], description=GROUPS[group])
                .add_subparsers(metavar="COMMAND", required=True)
            )
        command = places[group].add_parser(last, help=help, description=getattr(run, "func", run).__doc__)
        if list(argv[: len(name.split())]) == name.split():
            arguments(command)
        command.add_argument("--json", action="store_true", help="print the figures as one JSON object, the last line")
        command.set_defaults(run=run, parser=command)
    return top


def parse(argv: Sequence[str]) -> Arguments:
    """Return the parsed options, with the texts that argparse leaves after one: `predict FOLDER --device cpu TEXT`."""
    args, rest = parser(argv).parse_known_args(argv)
    if rest and not hasattr(args, "texts"):
        args.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.texts += rest
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names of files may be anything; a pipe gets each line at once, as a terminal does.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    argv = sys.argv[1:] if argv is None else argv
    options: list[str] = []
    with warnings.catch_warnings(), terminable() as terminated, redirect_stdout(Printable(sys.stdout)):
        warnings.showwarning = lambda message, *_, **__: show_warning(message, options)
        try:
            args = parse(argv)
            options += args.parser.options
            figures = args.run(args)
            if args.json:
                print(json_line(figures))
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it exits
            return 141
        except KeyboardInterrupt as stop:
            exec("")  # without it, CPython ends by SIGINT, whatever is returned, if code within exec was interrupted
            if is_main_process():
                note(f"interrupted: {str(stop) or 'nothing is kept'}")
            return 128 + (signal.SIGTERM if terminated else signal.SIGINT)
        except WRONG_REQUEST as error:
            return complain(error, 2, options)
        except FAILURE as error:
            return complain(error, 1, options)
    return 0 if figures.get("ok", True) else 1


class Printable:
    """Standard output that a terminal shows as it is: names, labels and texts come from files, which anyone wrote."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text with its control characters escaped, except tabs and line ends."""
        self.stream.write(printable(text, keep="\t\n"))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def json_line(figures: Figures) -> str:
    """Return the figures as one line of JSON, in which control characters are escaped as JSON escapes them."""
    line = json.dumps(figures, default=str, ensure_ascii=False, allow_nan=False)
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", line)


@contextmanager
def terminable() -> Iterator[list[int]]:
    """Turn SIGTERM into a KeyboardInterrupt within the block, as Ctrl-C is one, and record it (main thread only)."""
    received: list[int] = []

    def interrupt(number: int, _: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    usual = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, usual)


def complain(error: BaseException, status: int, options: Collection[str]) -> int:
    """Print in one line what went wrong, in the words of a command with these options."""
    text = render(str(error), options) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, FileNotFoundError) and error.filename:
        text += did_you_mean(str(error.filename), neighbours(error.filename))
    note(f"error: {text}")
    return status


def show_warning(message: Warning | str, options: Collection[str]) -> None:
    """Print a warning as one plain line instead of Python's two with file and line number."""
    note(f"warning: {render(str(message), options).strip().splitlines()[0]}")
