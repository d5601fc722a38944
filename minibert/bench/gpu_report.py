"""All checks and figures of a GPU in one file: `make bench-gpu`, or python -m minibert.bench.gpu_report.

Each section is one command of minibert in a process of its own: parity within its bounds, then embedding (which also
compares our vectors with those of the CPU), training and serving, each beside its peers.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from minibert.utils.device import device_count
from minibert.utils.files import write_text_atomically

SECTIONS = (
    ("parity",),
    ("parity", "--dtype", "bfloat16"),
    ("bench",),
    ("bench", "--train"),
    ("bench", "--serve"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report, again after each section. Exit status 1 if a section failed, 2 if there is no such device."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="Other options go to every `minibert bench`.")
    parser.add_argument("--device", default="cuda", metavar="NAME", help="(%(default)s)")
    parser.add_argument(
        "--out", default="build/bench-gpu.txt", metavar="FILE", help="replaced if it exists (%(default)s)"
    )
    parser.add_argument("--infinity", metavar="PROGRAM", help="infinity_emb, in its own environment")
    args, others = parser.parse_known_args(arguments)
    if not device_count(args.device):
        parser.exit(2, f"minibert: error: device {args.device!r} is not available to torch; this report needs a GPU\n")
    commands = [[*section, "--device", args.device, *others * (section[0] == "bench")] for section in SECTIONS]
    commands[-1] += ["--infinity", args.infinity] if args.infinity else []
    parts = []
    failed = 0
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    for command in commands:
        argv = [sys.executable, "-m", "minibert", *command]
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace"
        )
        failed += done.returncode != 0
        parts.append(f"$ minibert {' '.join(command)}\n\n{done.stdout}\nexit status {done.returncode}\n")
        print(parts[-1], flush=True)
        write_text_atomically(Path(args.out), "\n".join(parts))
    print(f"{failed} of {len(commands)} sections failed; written: {args.out}")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
