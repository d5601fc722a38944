"""`minibert parity`: which comparison a request asks for, run, printed and written."""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from minibert import __version__
from minibert.checkpoints.hub import locate
from minibert.checkpoints.tensor_files import list_tensors
from minibert.config import Config
from minibert.extras import install_hint
from minibert.files import check_output, write_text_atomically
from minibert.model import Encoder
from minibert.parity import golden
from minibert.parity.checkpoints import BERT_BASE, BERT_LARGE, DISTILBERT_BASE, RELATIVES, TINY
from minibert.parity.compare import MEASURED, NEWEST, OLDEST
from minibert.parity.ladder import Result, climb_checkpoint, climb_path, climb_random
from minibert.parity.page import page
from minibert.parity.report import Report, figures, finding_lines, markdown, result_lines

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in MEASURED}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Compare with transformers, or with what else was asked for; print the ladder and return its figures.

    figures["ok"] says whether everything passed. Raises ValueError for a request that contradicts itself and
    FileNotFoundError for a checkpoint that is not there.
    """
    check(args)
    began = time.perf_counter()
    report = Report("", {"minibert": __version__, "torch": torch.__version__})
    other_path = (args.device, args.dtype, args.attention) != ("cpu", "float32", "eager")
    missing = "" if args.golden or other_path else unusable()
    if missing:
        print(f"{missing}; comparing with stored references instead (--golden)\n")
    try:
        compare(args, report, other_path, bool(missing))
    except KeyboardInterrupt:
        report.seconds = time.perf_counter() - began
        print(f"\ninterrupted after {report.seconds:.0f} s; compared until then, {len(report.results)} checkpoints:")
        print(report.verdict if report.results else "nothing compared")
        raise
    report.seconds = time.perf_counter() - began
    if report.findings:
        print(finding_lines(report.findings) + "\n")
    for file in args.report:
        write_text_atomically(Path(file), page(report) if file.endswith(".html") else markdown(report))
        print(f"written: {file}")
    print(f"{report.seconds:.0f} s")
    print(report.verdict)
    return figures(report)


def compare(args: argparse.Namespace, report: Report, other_path: bool, without_transformers: bool) -> None:
    """Fill the report with what was asked for."""
    if other_path:
        report.against, report.bounded = "Compared with minibert's own written-out float32 path on the CPU", True
        source = locate(args.model or golden.CHECKPOINT)
        run = partial(climb_path, source, args.device, DTYPES[args.dtype], args.attention)
        show(report, [Climb(stored_bytes(source.folder) / 4e6, run)])
    elif args.golden or without_transformers:
        report.against = f"Compared with stored references of {golden.CHECKPOINT} and published values"
        report.findings = golden.check_all()
    else:
        report.versions["transformers"] = importlib.metadata.version("transformers")
        report.against = "Compared with transformers, eager attention, float32 on the CPU"
        show(report, ladders(args.model, args.full))
        report.findings = [] if args.model else golden.check_published()


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot be done before anything is computed."""
    for file in args.report:
        if not file.endswith((".html", ".md")):
            raise ValueError(f"--report {file!r} is neither .html nor .md")
        if not Path(file).absolute().parent.is_dir():
            raise FileNotFoundError(f"--report {file!r}: there is no folder {Path(file).absolute().parent}")
        check_output(Path(file), args.overwrite)
    if args.golden and args.model:
        raise ValueError(f"--golden has references of {golden.CHECKPOINT} alone; leave out {args.model!r}")
    if args.golden and (args.device, args.dtype, args.attention) != ("cpu", "float32", "eager"):
        raise ValueError("--golden is of float32 and eager on the CPU; leave out --device, --dtype and --attention")


def unusable() -> str:
    """Why transformers cannot be the reference: missing, or of a version for which parity was not established."""
    try:
        version = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return f"transformers is not installed ({install_hint('test')})"
    if not numbers(OLDEST) <= numbers(version) <= numbers(NEWEST):
        return f"transformers {version} is installed, and parity was established for {OLDEST} to {NEWEST}"
    return ""


def numbers(version: str) -> tuple[int, ...]:
    """ "5.23.0.dev0" as (5, 23, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


@dataclass(frozen=True)
class Climb:
    """One checkpoint to be compared, and how many million parameters its encoder has."""

    millions: float
    run: Callable[[], Result]


def ladders(model: str | None, full: bool) -> list[Climb]:
    """What to compare: one checkpoint, or the real one and random ones from the smallest up."""
    source = locate(model or golden.CHECKPOINT)
    real = Climb(stored_bytes(source.folder) / 4e6, partial(climb_checkpoint, source))
    if model is not None:
        return [real]
    sizes = [*TINY, DISTILBERT_BASE, BERT_BASE, *([*RELATIVES, BERT_LARGE] if full else [])]
    return [real, *(Climb(size.millions, partial(climb_random, size)) for size in sizes)]


def show(report: Report, climbs: list[Climb]) -> None:
    """Say how long it will take, then climb one ladder after the other and print each when it is done."""
    print(f"about {in_words_of_time(expected(climbs, probe()))} on this machine\n", flush=True)
    with tqdm(climbs, disable=None, unit="checkpoint", leave=False) as bar:
        for climb in bar:
            report.results.append(climb.run())
            bar.write(result_lines(report.results[-1]))


# ---------------------------------------------------------------------------------------------------------------
# How long it will take

# Seconds of one checkpoint, and of a million of its parameters, on a machine whose `probe` takes PROBE seconds.
PER_CHECKPOINT, PER_MILLION, PROBE = 0.5, 0.3, 0.045


def expected(climbs: Iterable[Climb], seconds: float) -> float:
    """Seconds for these ladders on a machine whose probe takes so many seconds."""
    return sum(PER_CHECKPOINT + PER_MILLION * climb.millions for climb in climbs) * seconds / PROBE


def probe() -> float:
    """Seconds of one step of a layer of BERT-base: the median of five, after one to warm up."""
    encoder = Encoder(Config(vocab_size=1, num_hidden_layers=1))
    ids = torch.zeros(4, 32, dtype=torch.long)
    seconds = []
    for _ in range(6):
        begin = time.perf_counter()
        encoder(ids, attention_mask=torch.ones_like(ids)).last_hidden_state.sum().backward()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[1:])


def in_words_of_time(seconds: float) -> str:
    """70 as "70 s", 200 as "3 minutes"; no more digits than an estimate has."""
    return f"{max(10, round(seconds, -1)):.0f} s" if seconds < 150 else f"{seconds / 60:.0f} minutes"


def stored_bytes(folder: Path) -> int:
    """The size of a checkpoint's weights."""
    return sum(file.stat().st_size for file in {tensor.file for tensor in list_tensors(folder).values()})
