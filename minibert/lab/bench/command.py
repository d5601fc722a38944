"""`minibert bench`: which measurement a request asks for, run, printed and drawn."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import tempfile
import time
from pathlib import Path
from typing import Any

from minibert.checkpoints.hub import locate
from minibert.config import Config
from minibert.lab.bench import report
from minibert.lab.bench.process import running
from minibert.lab.bench.results import Result, goals_of
from minibert.lab.bench.run import Plan, Session, Subject, check_device, cores
from minibert.lab.bench.work import find_work
from minibert.printing import block
from minibert.text.tokenizer import load_tokenizer

MINILM = "all-MiniLM-L6-v2"
DISTILBERT = "distilbert-shape"
TITLES = {MINILM: "all-MiniLM-L6-v2", DISTILBERT: "DistilBERT's shape, random weights"}
KEYS = {MINILM: "minilm", DISTILBERT: "distilbert"}

PLANS = {
    "quick": Plan("quick", (MINILM,), sentences=256, rounds=3, short=60, starts=1),
    "default": Plan(
        "default",
        (DISTILBERT, MINILM),
        sentences=2000,
        rounds=3,
        short=200,
        starts=3,
        lengths=(8, 32, 128, 512),
        counts=(100, 1000),
        batch_tokens=(256, 512, 1024),
        by_threads=True,
    ),
    "full": Plan(
        "full",
        (DISTILBERT, MINILM),
        sentences=2000,
        rounds=7,
        short=500,
        starts=5,
        lengths=(8, 16, 32, 64, 128, 256, 512),
        counts=(100, 1000, 10_000, 100_000),
        batch_tokens=(128, 256, 512, 1024, 2048, 4096),
        by_threads=True,
    ),
}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure, print and draw; return all figures, where "ok" says whether our own vectors are equal.

    Raises ValueError for a request that cannot be done, FileNotFoundError for a checkpoint or a folder that is not
    there, ImportError where transformers, which everything is compared with, or matplotlib is missing.
    """
    plan = plan_of(args)
    began = time.perf_counter()
    print(report.heading(plan), flush=True)
    results = []
    for model in plan.models:
        results.append(measure(model, plan))
        print("\n" + report.result_text(results[-1]), flush=True)
    goals = [goal for result in results for goal in goals_of(result)]
    spent = time.perf_counter() - began
    print("\n" + report.goals_text(goals))
    print("\n" + block("legend", *report.LEGEND))
    print(f"\n{spent:.0f} s")
    if args.plot:
        from minibert.lab.bench import plot

        plot.draw(results, args.plot)
        print(f"written: {args.plot}")
    return report.figures(plan, results, spent)


def plan_of(args: argparse.Namespace) -> Plan:
    """The plan that the arguments name, with what they change in it. Raises before anything is measured."""
    if importlib.util.find_spec("transformers") is None:
        raise ImportError('the benchmark compares with transformers: pip install "minibert[bench]"')
    check_device(args.device)
    if args.plot:
        check_plot(args.plot)
    plan = PLANS["quick" if args.quick else "full" if args.full else "default"]
    changes: dict[str, Any] = {name: getattr(args, name) for name in ("sentences", "rounds") if getattr(args, name)}
    if args.model:
        changes["models"] = tuple(args.model)
    for name in ("sentences", "rounds", "threads"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise ValueError(f"--{name} is {value}; it must be at least 1")
    threads = min(args.threads or cores(), cores())
    return dataclasses.replace(plan, device=args.device, threads=threads, **changes)


def check_plot(path: Path) -> None:
    """Raise for a picture that cannot be written at the end."""
    from minibert.lab.pictures import pyplot

    pyplot()
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--plot is {path}; it must end in .png, .svg or .pdf")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"--plot is {path}, and there is no folder {path.absolute().parent}")


def measure(model: str, plan: Plan) -> Result:
    """Everything about one checkpoint; what is written for it goes with its folder."""
    with tempfile.TemporaryDirectory(prefix="minibert-bench-") as name:
        scratch = Path(name)
        subject = subject_of(model, plan, scratch)
        with Session(subject, plan, scratch) as session:
            return session.run()


def subject_of(model: str, plan: Plan, scratch: Path) -> Subject:
    """The checkpoint, its tokenizer and its texts; DistilBERT's shape is written first."""
    folder = scratch / DISTILBERT if model == DISTILBERT else locate(model).folder
    if model == DISTILBERT:
        with running(plan.threads) as process:
            process.ask("write_distilbert", folder=str(folder), vocabulary_from=str(locate(MINILM).folder))
    tokenizer = load_tokenizer(folder)
    title = TITLES.get(model, Path(model).name)
    return Subject(
        title,
        KEYS.get(model, "other"),
        folder,
        Config.from_file(folder / "config.json"),
        tokenizer,
        find_work(plan.sentences, tokenizer),
    )
