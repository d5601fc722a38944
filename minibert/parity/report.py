"""`minibert parity`: the comparisons run and reported, as lines for a terminal, figures for --json, and a page."""

import argparse
import importlib.metadata
import math
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from packaging.version import Version
from tqdm import tqdm

from minibert import __version__
from minibert.checkpoints.checkpoint import Checkpoint
from minibert.kernels.matmul import reduced_float32
from minibert.parity.checkpoints import BASE, LARGER, TINY
from minibert.parity.compare import DROPOUT, NEWEST, OLDEST, RUNGS, TENSORS, Comparison
from minibert.parity.ladder import Result, climb_checkpoint, climb_path, climb_random
from minibert.utils.device import check_device
from minibert.utils.files import write_text_atomically
from minibert.utils.outputs import check_file
from minibert.utils.printing import Figures, install_hint, printable, progress_bar, require, table
from minibert.utils.templates import templates

CHECKPOINT = "all-MiniLM-L6-v2"
HEADER = ("step", "shape", "tensors", "values", "largest difference", "ulp", "")


def run(args: argparse.Namespace) -> Figures:
    """Compare with transformers, or one path of ours with another; print and write the report, return its figures.

    figures["ok"] says whether everything passed. Raises ValueError or FileNotFoundError for a report that cannot be
    written and for a checkpoint that is not there, ValueError if float32 is not float32, ImportError without a
    transformers for which parity holds.
    """
    check_device(args.device)
    for device in ("cpu", args.device) if args.dtype == "float32" else ("cpu",):
        if reason := reduced_float32(torch.device(device)):
            raise ValueError(reason)
    for path in map(Path, args.report):
        check_file(path, args.overwrite, endings=(".html", ".md"))
    checkpoint = Checkpoint.open(args.model or CHECKPOINT)
    against = "transformers, eager attention, float32 on the CPU"
    versions = {"minibert": __version__, "torch": torch.__version__}
    if (args.device, args.dtype, args.attention) == ("cpu", "float32", "eager"):
        versions["transformers"] = transformers_version()
        sizes = [] if args.model else [*TINY, *BASE, *(LARGER if args.full else ())]
        climbs: list[Callable[[], Result]] = [
            partial(climb_checkpoint, checkpoint),
            *(partial(climb_random, size) for size in sizes),
        ]
    else:
        against = "minibert's own written-out float32 path on the CPU"
        climbs = [partial(climb_path, checkpoint, args.device, getattr(torch, args.dtype), args.attention)]
    results: list[Result] = []
    for climb in progress_bar(climbs, "parity", unit="checkpoint"):
        began = time.perf_counter()
        results.append(climb())
        results[-1].seconds = time.perf_counter() - began
        tqdm.write(result_lines(results[-1]))
    for path in map(Path, args.report):
        write_text_atomically(path, page(path.suffix, against, versions, results))
        print(printable(f"written: {path}"))
    print(f"{sum(result.seconds for result in results):.0f} s\n{verdict(results)}")
    return figures(against, versions, results)


def transformers_version() -> str:
    """Return the version of the installed transformers. Raises ImportError if parity was not established for it."""
    require("test", "transformers")
    version = importlib.metadata.version("transformers")
    if not Version(OLDEST) <= Version(version) <= Version(NEWEST):
        known = f"parity was established for {OLDEST} to {NEWEST}"
        raise ImportError(f"transformers {version} is installed, and {known}: {install_hint('test')}")
    return version


def steps(result: Result) -> list[Figures]:
    """Return the ladder of one checkpoint: a line for each stage in all layers, and for each rung with each head."""
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for row in sorted(result.rows, key=lambda row: RUNGS.index(row.rung)):
        by_stage = row.rung in (TENSORS, DROPOUT) and row.head == "encoder"
        name = row.stage if by_stage else row.head
        label = row.rung if result.tiny else name if by_stage and row.rung == TENSORS else f"{row.rung}, {name}"
        groups.setdefault((row.rung, label), []).append(row)
    return [
        {
            "rung": rung,
            "name": label,
            "shape": "various"
            if len({row.shape for row in rows}) > 1
            else " x ".join(map(str, rows[0].shape)) or "one number",
            "tensors": len(rows),
            "values": sum(math.prod(row.shape) for row in rows),
            "largest": max(row.largest for row in rows),
            "ulp": max(row.ulp for row in rows),
            "equal": all(row.equal for row in rows),
            "ok": all(row.ok for row in rows),
        }
        for (rung, label), rows in groups.items()
    ]


def ladder_cells(result: Result) -> list[tuple[str, ...]]:
    """Return the ladder of one checkpoint in the columns of HEADER."""
    return [
        (
            step["name"],
            step["shape"],
            f"{step['tensors']:,}",
            f"{step['values']:,}",
            f"{step['largest']:.1e}" if step["largest"] else "0",
            f"{step['ulp']:,}",
            "equal" if step["equal"] else "in bounds" if step["ok"] else "DIFFERS",
        )
        for step in steps(result)
    ]


def divergence(result: Result) -> list[str]:
    """Return the first tensor that differs, both values, and the cause; nothing if none does."""
    first = result.first
    if first is None:
        return []
    where = f"first difference: {first.place} ({first.head})"
    if first.index is not None:
        where += f" at {list(first.index)}: minibert {first.ours:.9g}, reference {first.theirs:.9g}"
    return [where, f"likely cause: {result.cause}"]


def result_lines(result: Result) -> str:
    """Return one checkpoint for a terminal."""
    lines = [f"{result.checkpoint} ({result.origin}), {result.seconds:.0f} s"]
    lines += table([HEADER, *ladder_cells(result)], left=2).splitlines()
    return "\n  ".join([*lines, *divergence(result)]) + "\n"


def verdict(results: list[Result]) -> str:
    """Return the last line."""
    rows = [row for result in results for row in result.rows]
    equal, passed = sum(row.equal for row in rows), sum(row.ok for row in rows)
    if any(row.allowed for row in rows):
        return f"{passed:,} of {len(rows):,} tensors within the measured bounds, {equal:,} of them bit-identical"
    return f"{equal:,} of {len(rows):,} tensors bit-identical"


def figures(against: str, versions: dict[str, str], results: list[Result]) -> Figures:
    """Return a run as one JSON object."""
    rows = [row for result in results for row in result.rows]
    return {
        "against": against,
        "versions": versions,
        "ok": all(row.ok for row in rows),
        "verdict": verdict(results),
        "tensors": len(rows),
        "equal": sum(row.equal for row in rows),
        "seconds": round(sum(result.seconds for result in results), 1),
        "checkpoints": [
            {
                "name": result.checkpoint,
                "origin": result.origin,
                "seconds": round(result.seconds, 1),
                "steps": steps(result),
                "first_divergent": divergence(result),
            }
            for result in results
        ],
    }


def page(suffix: str, against: str, versions: dict[str, str], results: list[Result]) -> str:
    """Return a run as one page: .html, or .md with the lines of the terminal, indented so that Markdown keeps them."""
    made_with = ", ".join(f"{name} {version}" for name, version in versions.items())
    if suffix == ".md":
        lines = (textwrap.indent(result_lines(result), "    ") for result in results)
        return "\n".join([f"# Parity\n\n**{verdict(results)}**\n\nCompared with {against}; {made_with}.\n", *lines])
    return (
        templates(Path(__file__).parent)
        .get_template("page.html")
        .render(
            verdict=verdict(results),
            compared=f"Compared with {against}; {made_with}.",
            results=results,
            header=HEADER,
            ladder_cells=ladder_cells,
            divergence=divergence,
        )
    )
