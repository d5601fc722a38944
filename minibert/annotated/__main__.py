"""Write the annotated source as pages: `python -m minibert.annotated FOLDER`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from minibert.annotated.pages import build


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, and say where."""
    parser = argparse.ArgumentParser(
        prog="python -m minibert.annotated", description="Write the annotated source as HTML pages."
    )
    parser.add_argument("folder", type=Path, help="where the pages go, build/annotated for example")
    folder = parser.parse_args(arguments).folder
    try:
        print(build(folder))
    except (OSError, ImportError) as error:
        print(f"cannot write the pages: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
