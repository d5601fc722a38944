"""How long the page of `minibert trace --live` needs, in Chromium: for the vectors, and until all is drawn.

    python tutorials/experiments/live.py [--model minibert-novels] [--tokens 8 32 128] [--runs 5]

Each time is the median of the runs, after one that is not counted; the page tells the first one itself.
It needs what the tests install, and Chromium.
"""

import argparse
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from minibert.bench.report import machine
from minibert.cli.main import main as minibert
from minibert.utils.printing import progress_bar, table

LETTERS = "abcdefghijklmnopqrstuvwxyz"  # another word in each run, since the page keeps what it has computed
DONE = "n => document.querySelector('#status').textContent.startsWith(`${n} tokens, computed`)"


def seconds(opened: Any, tokens: int, runs: int) -> tuple[float, float]:
    """Return the median seconds of the vectors of so many tokens, and until all is drawn."""
    computed, drawn = [], []
    for run in range(runs + 1):
        opened.fill("#typed-text", "")
        opened.wait_for_function(DONE, arg=2)
        began = time.perf_counter()
        opened.fill("#typed-text", " ".join([LETTERS[run]] * (tokens - 2)))
        opened.wait_for_function(DONE, arg=tokens, timeout=120_000)
        drawn.append(time.perf_counter() - began)
        computed.append(float(opened.locator("#status").inner_text().split("computed in ")[1].split()[0]))
    return statistics.median(computed[1:]), statistics.median(drawn[1:])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the times as a table."""
    from playwright.sync_api import sync_playwright  # only the tests install it

    parser = argparse.ArgumentParser(description="Time the page that computes, in Chromium.")
    parser.add_argument("--model", default="minibert-novels", metavar="NAME", help="(%(default)s)")
    parser.add_argument(
        "--tokens", nargs="+", type=int, default=[8, 32, 128], metavar="N", help="of a text (%(default)s)"
    )
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="that are counted (%(default)s)")
    args = parser.parse_args(arguments)
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "page.html"
        if status := minibert(["trace", "--live", "a", "--model", args.model, "--out", str(path)]):
            return status
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        opened = browser.new_page()
        opened.goto(path.as_uri())
        opened.wait_for_function(DONE, arg=3)
        if max(args.tokens) > (most := opened.evaluate("trace.data.max_length")):
            parser.error(f"--tokens {max(args.tokens)} is more than the {most} that {args.model} reads")
        rows = [(n, *seconds(opened, n, args.runs)) for n in progress_bar(args.tokens, "texts")]
    print(f"{args.model}, {machine(1)['cpu']}")
    print(table([("tokens", "vectors", "all drawn"), *((n, f"{x:.2f} s", f"{y:.2f} s") for n, x, y in rows)], left=0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
