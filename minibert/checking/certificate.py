"""The certificate: a page for who has written all functions, with what they make possible, run from the file."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory

from minibert.checking.process import LOADING
from minibert.checking.solution import RIGHT, check_file
from minibert.utils.files import sha256, write_text_atomically
from minibert.utils.templates import templates

TRAINED = 360  # of the 480 reviews; the others judge


def write_certificate(out: Path, path: Path, text: str) -> list[str]:
    """Write the page, and return its lines. Raises ValueError, and writes nothing, if anything is missing or wrong."""
    before = sha256(path)
    verdicts = check_file(path, text=text)
    if missing := [verdict.stage.function for verdict in verdicts if verdict.state != RIGHT]:
        raise ValueError(
            f"no certificate: {len(missing)} of {len(verdicts)} functions are not right yet: {', '.join(missing)}; "
            f"minibert check {path} says why"
        )
    by_hand = sum(not verdict.library for verdict in verdicts)
    lines = [
        f"{len(verdicts)} of {len(verdicts)} functions are right, {by_hand} of them by hand",
        "a BERT of twelve layers gives the right states",
        *at_work(path, text),
        f"{path.name}, SHA-256 {before}",
        datetime.now(UTC).strftime("%Y-%m-%d"),
    ]
    if sha256(path) != before:
        raise ValueError(f"no certificate: {path} has changed while it was checked")
    template = templates(Path(__file__).parent).get_template("certificate.html")
    write_text_atomically(out, template.render(lines=lines, verdicts=verdicts))
    return lines


def at_work(path: Path, text: str) -> list[str]:
    """Return the line that the file prints for each command: its guesses, its accuracy, its losses.

    Raises ValueError if one fails.
    """
    reviews = (resources.files("minibert") / "data" / "reviews.tsv").read_text("utf-8").splitlines()
    with TemporaryDirectory(prefix="minibert-check-", ignore_cleanup_errors=True) as folder:
        files = {"train.tsv": reviews[:TRAINED], "dev.tsv": reviews[TRAINED:]}
        for name, rows in files.items():
            (Path(folder) / name).write_text("\n".join(["text\tlabel", *rows]) + "\n", "utf-8")
        return [
            printed_by(path, "guess", text if "[MASK]" in text else f"{text} [MASK]"),
            printed_by(path, "classify", *(str(Path(folder) / name) for name in files)),
            printed_by(path, "train", text.replace("[MASK]", "door")),
        ]


def printed_by(path: Path, command: str, *arguments: str) -> str:
    """Return the first line that the file prints for a command. Raises ValueError if there is none, or it fails."""
    try:
        done = subprocess.run(
            [sys.executable, str(path), command, *arguments],
            capture_output=True,
            timeout=LOADING,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"no certificate: {path} {command} was stopped after {LOADING:.0f} s") from None
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    if done.returncode or not lines:
        errors = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it prints nothing"]
        raise ValueError(f"no certificate: {path} {command} failed: {errors[-1][:200]}")
    return f"{command}: {lines[0][:200]}"
