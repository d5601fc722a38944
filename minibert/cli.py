"""The `minibert` command.

    COMMANDS, at the end: name -> help, arguments, function  ->  parser  ->  main

A function takes the parsed arguments, prints a report for people and returns its figures, which `--json` prints once
more as the last line; figures with "ok": false say that what was to be shown does not hold. It imports the room that
does the work when it is called, so that `--help` is instant.
Exit status: 0 done, 1 the work failed, 2 the request was wrong, 130 interrupted, 141 nobody reads the output.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, NoReturn, TextIO

from minibert import __version__

Arguments = argparse.Namespace
Figures = dict[str, Any]
DEFAULT_MODEL = "distilbert-base-uncased"
WRONG_REQUEST = (ValueError, TypeError, FileNotFoundError, IsADirectoryError, NotADirectoryError)
FAILURE = (OSError, RuntimeError, MemoryError, ImportError)
TEXTS_AT_ONCE = 64  # that predict reads before it answers


# ---------------------------------------------------------------------------------------------------------------
# What commands share


def add_features(parser: argparse.ArgumentParser) -> None:
    """The settings of a vector, and of the machine that computes it."""
    add = parser.add_argument
    add("--model", default=DEFAULT_MODEL, metavar="NAME", help="checkpoint: a Hub name or a folder (%(default)s)")
    add("--pooling", default="cls", metavar="HOW", help="cls, mean, max or pooler (%(default)s)")
    add(
        "--layers",
        default="-1",
        type=whole_numbers,
        metavar="N,N",
        help="0: embeddings, -1: last layer; several: --layers=-4,-3,-2,-1 (%(default)s)",
    )
    add("--combine", default="concat", metavar="HOW", help="of several layers: concat, sum or mean (%(default)s)")
    add("--precision", default="float32", metavar="TYPE", help="float32, bfloat16, float16 or auto (%(default)s)")
    add("--truncation", default="warn", metavar="HOW", help="a text that is too long is cut (warn) or refused (error)")
    add_machine(parser)


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Where to compute, and in what portions."""
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or mps (%(default)s)")
    parser.add_argument("--batch-tokens", default=4096, type=int, metavar="N", help="tokens in a batch (%(default)s)")


def features_settings(args: Arguments) -> dict[str, Any]:
    """The settings that add_features reads, by the names of TextFeatures."""
    names = ("model", "pooling", "layers", "combine", "precision", "truncation", "device", "batch_tokens")
    return {name: getattr(args, name) for name in names}


def whole_numbers(text: str) -> tuple[int, ...]:
    """ "-2,-1" as (-2, -1)."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as -2,-1") from None


def grid(text: str) -> str | list[float]:
    """The name of a grid, or values of C."""
    try:
        return text if text.isalpha() else [float(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not tutorial, log or numbers such as 0.1,1") from None


def standard_input() -> BinaryIO:
    """Standard input as bytes, which are UTF-8 whatever the locale says."""
    if sys.stdin.isatty():
        print("one text a line; end with Ctrl-D", file=sys.stderr)
    return sys.stdin.buffer


def portions(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lists of up to `size` texts."""
    texts = iter(texts)
    while portion := list(itertools.islice(texts, size)):
        yield portion


# ---------------------------------------------------------------------------------------------------------------
# The main job


def demo_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `minibert demo`."""
    parser.add_argument("--data", metavar="FILE", help="labelled texts, .tsv or .csv (default: SST-2 if it can be had)")
    parser.add_argument("--model", metavar="NAME", help=f"checkpoint (default: {DEFAULT_MODEL} if it can be had)")
    parser.add_argument("--rows", type=int, default=2000, metavar="N", help="how many rows to use (%(default)s)")


def demo(args: Arguments) -> Figures:
    """The main job, start to end, with whatever weights and data this machine can reach."""
    from minibert.tasks import demo as room

    return room.demo(args.data, args.model, args.rows, show=lambda text: print(text, flush=True))


def embed_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `minibert embed`."""
    add = parser.add_argument
    add("input", metavar="IN", help=".txt (one text a line), .tsv, .csv, .jsonl, each with .gz; - is standard input")
    add(
        "--out",
        required=True,
        type=Path,
        metavar="FILE.npy",
        help="where the matrix goes, when all is done; an "
        "interrupted command is taken up where it was if it is given again",
    )
    add(
        "--column",
        metavar="NAME",
        help="of a table: its name, or its number from 1 where there is no header "
        "(default: sentence, text, or the only one)",
    )
    add("--format", metavar="TYPE", help="txt, tsv, csv or jsonl (default: by the name; standard input: txt)")
    add("--dtype", default="float32", metavar="TYPE", help="of numbers in the file: float32 or float16 (%(default)s)")
    add("--restart", action="store_true", help="begin again, whatever an interrupted command has done")
    add_features(parser)


def embed(args: Arguments) -> Figures:
    """One vector for each text of a file, as a numpy file; memory does not grow with the number of texts."""
    from dataclasses import asdict

    from minibert.vectors.stream import embed_file

    if args.input == "-":
        standard_input()  # says what is wanted of a terminal
    begin = time.perf_counter()
    written = embed_file(
        args.input,
        args.out,
        column=args.column,
        format=args.format,
        dtype=args.dtype,
        restart=args.restart,
        **features_settings(args),
    )
    seconds = time.perf_counter() - begin
    before = f"; {written.resumed_rows:,} rows were done before" if written.resumed_rows else ""
    print(f"{args.out}: {written.shape} {written.dtype}, {seconds:.2f} s with loading{before}")
    return asdict(written) | {"seconds": round(seconds, 3)}


# ---------------------------------------------------------------------------------------------------------------
# Classifiers


def train_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `minibert classify train`."""
    parser.add_argument("data", metavar="DATA", help="labelled texts, .tsv or .csv; columns sentence and label")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="where the classifier goes")
    parser.add_argument(
        "--grid", type=grid, metavar="GRID", help="values of C to choose from: tutorial, log, or 0.01,0.1,1"
    )
    parser.add_argument("--folds", type=int, default=5, metavar="N", help="of cross-validation; 0: none (%(default)s)")
    add_features(parser)


def classify_train(args: Arguments) -> Figures:
    """Train logistic regression on features of labelled texts and save it."""
    if args.out.exists() and not args.out.is_dir():
        raise ValueError(f"--out is {args.out}, which is a file; a classifier is a folder")
    from minibert.printing import block, score_table
    from minibert.tasks.frozen import train
    from minibert.tasks.reviews import read_labelled

    rows = read_labelled(args.data)
    begin = time.perf_counter()
    classifier = train(rows.texts, rows.labels, grid=args.grid, folds=args.folds, **features_settings(args))
    seconds = time.perf_counter() - begin
    classifier.save(args.out)
    counts = ", ".join(f"{rows.labels.count(label):,} {label}" for label in classifier.labels)
    print(block("data", f"{args.data}: {len(rows.texts):,} rows ({counts})"))
    shape = (classifier.rows, classifier.features.n_features_out_)
    print(block("features", f"{shape} by {args.model}, pooling {args.pooling}"))
    print(score_table(classifier))
    print(block("saved in", f"{args.out} after {seconds:.1f} s"))
    return classifier.details() | {"out": str(args.out), "seconds": round(seconds, 3)}


def load_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the commands that use a saved classifier."""
    parser.add_argument("folder", metavar="FOLDER", help="what `minibert classify train` wrote")
    parser.add_argument("--model", metavar="NAME", help="where its checkpoint is now (default: where it was)")
    add_machine(parser)


def load_classifier(args: Arguments) -> Any:
    """The classifier that the arguments name."""
    from minibert.tasks.frozen import Classifier

    return Classifier.load(args.folder, model=args.model, device=args.device, batch_tokens=args.batch_tokens)


def evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `minibert classify evaluate`."""
    load_arguments(parser)
    parser.add_argument("data", metavar="DATA", help="labelled texts, .tsv or .csv; columns sentence and label")


def classify_evaluate(args: Arguments) -> Figures:
    """Accuracy, scores by class and confusion matrix on labelled texts."""
    from dataclasses import asdict

    from minibert.printing import accuracy, beside, block, class_table, confusion_table
    from minibert.tasks.frozen import evaluate
    from minibert.tasks.reviews import read_labelled

    rows = read_labelled(args.data)
    evaluation = evaluate(load_classifier(args), rows.texts, rows.labels)
    print(block("accuracy", f"{accuracy(evaluation)} (standard error), {evaluation.rows:,} rows of {args.data}"))
    print(beside("by class", class_table(evaluation, evaluation.labels)))
    print(beside("confusion", confusion_table(evaluation, evaluation.labels)))
    return asdict(evaluation)


def predict_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `minibert classify predict`."""
    load_arguments(parser)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="default: standard input, one text a line")


def classify_predict(args: Arguments) -> Figures:
    """A line for each text: its label, the probability of that, and the text, by tabs."""
    from minibert.text.tables import read_lines

    classifier = load_classifier(args)
    texts: Iterable[str] = args.texts or read_lines(standard_input(), "standard input")
    size = 1 if not args.texts and sys.stdin.isatty() else TEXTS_AT_ONCE
    predictions = []
    for portion in portions(texts, size):
        for text, row in zip(portion, classifier.predict_proba(portion), strict=True):
            label, probability = classifier.labels[row.argmax()], float(row.max())
            shown = text.replace("\r", " ").replace("\n", " ")  # one text, one line
            print(f"{label}\t{probability:.4f}\t{shown}")
            if args.json:
                predictions.append({"label": label, "probability": probability, "text": text})
        sys.stdout.flush()
    return {"predictions": predictions}


# ---------------------------------------------------------------------------------------------------------------
# The model itself


def fill_mask_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `minibert fill-mask`."""
    parser.add_argument("text", metavar="TEXT", help='with one or more [MASK]: "The capital of France is [MASK]."')
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="NAME", help="a Hub name or a folder (%(default)s)")
    parser.add_argument("--top-k", type=int, default=5, metavar="K", help="guesses for each mask (%(default)s)")


def fill_mask(args: Arguments) -> Figures:
    """The most likely tokens at each [MASK], with their probabilities."""
    from minibert.tasks.fill_mask import fill_mask as guess

    masks = guess(args.text, args.model, args.top_k)
    for number, guesses in enumerate(masks, start=1):
        print(f"mask {number}")
        for one in guesses:
            print(f"  {one.probability:.4f}  {one.token}")
    return {"masks": [[{"token": one.token, "probability": one.probability} for one in row] for row in masks]}


def parity_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `minibert parity`."""
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="one checkpoint (default: the real one and many random ones)")
    add("--full", action="store_true", help="BERT-large as well: some minutes and 8 GB of memory")
    add("--golden", action="store_true", help="stored references instead of transformers, which need not be installed")
    add("--device", default="cpu", metavar="NAME", help="cuda, mps: against our own float32 on the CPU, within bounds")
    add("--dtype", default="float32", choices=("float32", "float64", "float16", "bfloat16"), help="the same in it")
    add("--attention", default="eager", choices=("eager", "sdpa"), help="the same for torch's fused attention")
    add("--report", action="append", default=[], metavar="FILE", help="write a page, FILE.html or FILE.md (repeatable)")


def parity(args: Arguments) -> Figures:
    """Every tensor, gradient and decision against transformers, bit for bit; exit status 1 if one differs."""
    from minibert.lab.parity import command

    return command.run(args)


def bench_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `minibert bench`."""
    add = parser.add_argument
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="minibert and transformers alone: less than a minute")
    size.add_argument("--full", action="store_true", help="more rounds, and up to 100,000 sentences: hours")
    add("--device", default="cpu", metavar="NAME", help="cpu or cuda (%(default)s)")
    add(
        "--model",
        action="append",
        metavar="NAME",
        help="a checkpoint, or distilbert-shape (repeatable; default: distilbert-shape and all-MiniLM-L6-v2)",
    )
    add("--sentences", type=int, metavar="N", help="texts of the job (default: 2000; quick: 256)")
    add("--rounds", type=int, metavar="N", help="in which everybody takes a turn (default: 3; full: 7)")
    add("--threads", type=int, metavar="N", help="of each contestant (default: all cores)")
    add("--plot", type=Path, metavar="FILE.png", help="draw the figures")


def bench(args: Arguments) -> Figures:
    """Speed, memory and equality against transformers and other peers; half an hour or more on two cores.

    Exit status 1 if our own vectors differ from those of transformers.
    """
    from minibert.lab.bench import command

    return command.run(args)


def trace_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `minibert trace`."""
    add = parser.add_argument
    add("text", metavar="TEXT", help="the text to follow")
    add("text_b", nargs="?", metavar="TEXT_B", help="a second text, to make a pair")
    add("--out", type=Path, metavar="FILE.html", help="the page")
    add("--model", metavar="NAME", help=f"a Hub name or a folder (default: the classifier's, or {DEFAULT_MODEL})")
    add("--classifier", metavar="FOLDER", help="what `minibert classify train` wrote: shows what decides")
    add("--layers", type=whole_numbers, metavar="N,N", help="layers of the page, from 0 (default: all that have room)")
    add("--heads", type=whole_numbers, metavar="N,N", help="heads of the page, from 0 (default: all that have room)")
    add("--truncation", default="warn", metavar="HOW", help="a text that is too long is cut (warn) or refused (error)")
    add("--annotated", type=Path, metavar="FOLDER", help="pages of `make annotated` to link to (default: if there)")
    add("--png", type=Path, metavar="FILE", help="the attention of one layer and head as a picture")
    add("--svg", type=Path, metavar="FILE", help="the same as vector graphics")
    add("--layer", type=int, default=-1, metavar="N", help="layer of the picture, from 0 (default: the last)")
    add("--head", default="mean", metavar="N", help="head of the picture, from 0, or mean or rollout (%(default)s)")
    add("--words", action="store_true", help="join word pieces in the picture")


def trace(args: Arguments) -> Figures:
    """Follow a text through the model, on a page or as a picture of its attention."""
    from minibert.lab.trace import command

    return command.run(args, DEFAULT_MODEL)


# ---------------------------------------------------------------------------------------------------------------
# Checkpoints


def download_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `minibert download`."""
    parser.add_argument("model", metavar="MODEL", help=f"a Hub name, such as {DEFAULT_MODEL}")


def download(args: Arguments) -> Figures:
    """Fetch a checkpoint into weights/, unless it is here already."""
    from minibert.checkpoints import hub

    source = hub.locate_locally(args.model)
    if source:
        print(f"{args.model} is here already, from {source.origin}: {source.folder}")
    folder = source.folder if source else hub.fetch(args.model)
    if not source:
        print(f"{args.model} is now in {folder}")
    return {"model": args.model, "folder": str(folder), "downloaded": source is None}


def inspect_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `minibert inspect`."""
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="a Hub name or a folder (default: all that are known)"
    )


def inspect(args: Arguments) -> Figures:
    """What is in a checkpoint on this machine, or which known checkpoints are here; downloads nothing."""
    from minibert.lab import inspection

    if args.model is None:
        known = inspection.known_checkpoints()
        print(inspection.known_text(known))
        return {"checkpoints": known}
    figures = inspection.inspect(args.model)
    print(inspection.checkpoint_text(figures))
    return figures


# ---------------------------------------------------------------------------------------------------------------
# The command line


@dataclass(frozen=True)
class Command:
    """One command: what it does, its arguments, its function, which returns the figures for --json."""

    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Arguments], Figures]


GROUPS = {"classify": "features + logistic regression: train, evaluate, predict"}
COMMANDS = {
    "demo": Command("the main job, start to end", demo_arguments, demo),
    "embed": Command("one vector for each text of a file", embed_arguments, embed),
    "classify train": Command("train on labelled texts", train_arguments, classify_train),
    "classify evaluate": Command("measure on labelled texts", evaluate_arguments, classify_evaluate),
    "classify predict": Command("label texts", predict_arguments, classify_predict),
    "fill-mask": Command("guess the masked words", fill_mask_arguments, fill_mask),
    "trace": Command("follow a text through the model, as a page", trace_arguments, trace),
    "parity": Command("prove that every tensor equals that of transformers", parity_arguments, parity),
    "bench": Command("speed against transformers and other peers", bench_arguments, bench),
    "download": Command("fetch a checkpoint", download_arguments, download),
    "inspect": Command("say what is in a checkpoint", inspect_arguments, inspect),
}


class Parser(argparse.ArgumentParser):
    """Answers a wrong request with one line."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where to read on; exit status 2."""
        print(f"minibert: error: {message}; see `{self.prog} --help`", file=sys.stderr)
        sys.exit(2)


def parser() -> argparse.ArgumentParser:
    """The parser of all COMMANDS."""
    top = Parser(prog="minibert", description="BERT and DistilBERT, to be read, checked and used.")
    top.add_argument("--version", action="version", version=f"minibert {__version__}")
    places = {"": top.add_subparsers(metavar="COMMAND", required=True)}
    for name, command in COMMANDS.items():
        group, _, last = name.rpartition(" ")
        if group not in places:
            grouped = places[""].add_parser(group, help=GROUPS[group], description=GROUPS[group])
            places[group] = grouped.add_subparsers(metavar="COMMAND", required=True)
        one = places[group].add_parser(last, help=command.help, description=command.run.__doc__)
        command.arguments(one)
        one.add_argument("--json", action="store_true", help="print the figures as one JSON object, the last line")
        one.set_defaults(run=command.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    args = parser().parse_args(argv)
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
        except KeyboardInterrupt:
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
