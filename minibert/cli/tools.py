"""The commands that show and measure: `minibert trace`, `parity` and `bench`."""

import time
from argparse import ArgumentParser

from minibert.bench.plan import BenchSettings
from minibert.cli.shared import DEFAULT_MODEL, Arguments, add_options, add_overwrite, check_texts, read_options
from minibert.utils.files import user_path
from minibert.utils.printing import Figures, block, require
from minibert.utils.settings import integers


def trace_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("text", nargs="?", metavar="TEXT", help="the text to follow; with --live, the one that the page opens with")
    add("text_b", nargs="?", metavar="TEXT_B", help="a second text, to make a pair")
    add("--out", type=user_path, metavar="FILE.html", help="the page")
    add("--live", action="store_true", help="a page that computes: the text is typed there, and the model changed")
    add("--weights", default="bfloat16", choices=("bfloat16", "int8", "float32"), help="of --live (%(default)s)")
    add("--model", metavar="NAME", help=f"a Hub name or a folder (default: the classifier's, or {DEFAULT_MODEL})")
    add(
        "--classifier",
        metavar="FOLDER",
        help="of `minibert classify train`, of `minibert finetune classify` or of transformers: explains its decision",
    )
    add("--layers", type=integers, metavar="N,N", help="layers of the page, from 0 (default: as many as fit in 12 MB)")
    add("--heads", type=integers, metavar="N,N", help="heads of the page, from 0 (default: as many as fit in 12 MB)")
    add("--truncation", default="warn", metavar="HOW", help="a text that is too long is cut (warn) or refused (error)")
    add(
        "--annotated",
        type=user_path,
        metavar="FOLDER",
        help="pages of `make annotated` to link (build/annotated)",
    )
    add("--png", type=user_path, metavar="FILE", help="the attention of one layer and head as a picture")
    add("--svg", type=user_path, metavar="FILE", help="the same as vector graphics")
    add("--layer", type=int, default=-1, metavar="N", help="layer of the picture, from 0 (default: the last)")
    add("--head", default="mean", metavar="N", help="head of the picture, from 0, or mean or rollout (%(default)s)")
    add("--words", action="store_true", help="join word pieces in the picture")
    add_overwrite(parser)


def trace(args: Arguments) -> Figures:
    """Follow a text through the model, on a page or as a picture of its attention."""
    from minibert.tracing import trace

    check_texts(args, [text for text in (args.text, args.text_b) if text])
    return trace.run(args, DEFAULT_MODEL)


def parity_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="one checkpoint (default: the real one and many random ones)")
    add("--full", action="store_true", help="the relatives' full sizes and BERT-large as well: some minutes and 8 GB")
    add("--device", default="cpu", metavar="NAME", help="cuda, mps: against our own float32 on the CPU, within bounds")
    add("--dtype", default="float32", choices=("float32", "float64", "float16", "bfloat16"), help="the same in it")
    add("--attention", default="eager", choices=("eager", "sdpa"), help="the same for torch's fused attention")
    add("--report", action="append", default=[], metavar="FILE", help="write a page, FILE.html or FILE.md (repeatable)")
    add_overwrite(parser)


def parity(args: Arguments) -> Figures:
    """Compare every tensor, gradient and decision with transformers, bit for bit; exit status 1 if one differs."""
    from minibert.parity import report

    return report.run(args)


def bench_arguments(parser: ArgumentParser) -> None:
    add_options(parser, BenchSettings)
    shapes = "distilbert-, roberta-, albert- or modernbert-shape"
    text = f"a checkpoint, or {shapes}; repeatable (distilbert-shape, all-MiniLM-L6-v2)"
    parser.add_argument("--model", action="append", metavar="NAME", help=text)


def bench(args: Arguments) -> Figures:
    """Measure speed, memory and equality beside transformers and other runtimes: half an hour or more on two cores.

    Exit status 1 if our own vectors, or weights after training, differ from those of transformers.
    """
    settings = read_options(args, BenchSettings, models=tuple(args.model or ()))
    require("bench", *("transformers", "accelerate")[: 1 + settings.train])  # the Trainer needs accelerate
    from minibert.bench import embed, harness, report, serving, training
    from minibert.utils.device import check_device
    from minibert.utils.plotting import check_picture

    check_device(settings.device)
    if settings.plot:
        check_picture(user_path(settings.plot), settings.overwrite)
    benchmark = (training if settings.train else serving if settings.serve else embed).BENCHMARK
    began = time.perf_counter()
    results = []
    print(report.heading(settings), flush=True)
    for model in settings.models:
        results.append(harness.measure(model, settings, benchmark))
        print("\n" + report.result_text(results[-1]), flush=True)
    seconds = time.perf_counter() - began
    print("\n" + block("legend", report.LEGEND))
    print(block("seconds", f"{seconds:.0f}"))
    if settings.plot:
        report.draw(results, user_path(settings.plot))
        print(block("written", settings.plot))
    return report.figures(settings, results, seconds)
