"""Write the diagrams into a folder: `python -m minibert.diagrams FOLDER`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from minibert.diagrams import write


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the diagrams, and say which."""
    parser = argparse.ArgumentParser(prog="python -m minibert.diagrams", description="Write the diagrams as SVG.")
    parser.add_argument("folder", type=Path, help="where they go; those of the project are in tutorials/pictures")
    folder = parser.parse_args(arguments).folder
    try:
        print(*write(folder), sep="\n")
    except OSError as error:
        print(f"cannot write the diagrams: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
