"""Text for users: values in error messages, reports in aligned lines, progress, how to install optional packages."""

import difflib
import importlib.metadata
import importlib.util
import io
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Figures = dict[str, Any]  # what a command found, which --json prints as JSON
MARGIN = 15  # columns of a report for the name of a line
WIDTH = 96  # columns of a report
LONGEST = 80  # characters of a value in an error message
MOST = 4000  # characters of a message, and of a paragraph or a cell of a report: far more than any needs
# Characters that a terminal obeys: control characters of ASCII, of 8 bits, and those that reorder a line (Unicode TR9).
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
BAR_AFTER, LINE_EVERY = 2, 60  # seconds: progress is shown on a terminal, or as lines
DISTRIBUTION = "minibert-annotated"  # the name of this project for pip; on PyPI, minibert is another project
CHECKOUT = Path(__file__).resolve().parents[2]  # the source tree, if minibert runs from one
FILES = CHECKOUT if (CHECKOUT / "pyproject.toml").exists() else Path(__file__).parents[1]  # its weights/ and tutorials/


def printable(text: str, keep: str = "") -> str:
    """Return a text whose control characters are escaped as in Python: a terminal would obey them, even in a name.

    keep: those that stay, such as line ends.
    """
    return CONTROL.sub(lambda one: one[0] if one[0] in keep else one[0].encode("unicode_escape").decode(), text)


def cut(text: str, most: int = LONGEST) -> str:
    """Return a text made printable; for one of more than `most` characters, its beginning and its length."""
    return printable(text if len(text) <= most else f"{text[: most // 2]}... ({len(text):,} characters)")


def brief(value: Any) -> str:
    """Return a value for an error message: its repr if that is short, else the beginning of a text, or the type."""
    if isinstance(value, str) and len(value) > LONGEST:
        return f"{value[: LONGEST // 2]!r}... ({len(value):,} characters)"
    if isinstance(value, int) and abs(value) >= 10**LONGEST:  # Python refuses to write thousands of digits
        return f"a number of more than {LONGEST} digits"
    text = repr(value.item() if getattr(value, "ndim", None) == 0 else value)  # numpy's nan as nan, not np.float64(nan)
    return text if len(text) <= LONGEST and "\n" not in text else f"of type {type(value).__name__}"


def did_you_mean(word: str, names: Iterable[str], least: float = 0.6) -> str:
    """Return "; did you mean A or B?" with the names most like a word, or "" if none is close.

    Only the last part of a name counts: `name` in owner/name, `train` in `classify train`, `model` in --model. least:
    of difflib's ratio.
    """
    parts: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        parts.setdefault(last_part(name), []).append(name)
    last = last_part(word)
    close = [last] if last in parts else difflib.get_close_matches(last, parts, 1, least)
    near = [name for part in close for name in parts[part]]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def last_part(name: str) -> str:
    """Return what follows the last slash, space or dash at the start of a word, in lower case."""
    return re.split(r"/| |^-+", name)[-1].lower()


def note(text: str) -> None:
    """Print one line to standard error, after the name of the program: an error, a warning or progress."""
    print(f"minibert: {cut(' '.join(text.split()), MOST)}", file=sys.stderr, flush=True)


def beside(name: str, lines: str) -> str:
    """Return a name with a table beside it, whose lines stay as they are."""
    return "\n".join(f"{'' if number else name:<{MARGIN}}{line}" for number, line in enumerate(lines.splitlines()))


def block(name: str, *paragraphs: str) -> str:
    """Return a name with text beside it: each paragraph begins a line, long ones are wrapped, and no path is broken."""
    wrap = textwrap.TextWrapper(WIDTH - MARGIN, break_long_words=False, break_on_hyphens=False)
    return beside(name, "\n".join(wrap.fill(cut(paragraph, MOST)) for paragraph in paragraphs))


def table(rows: Sequence[Sequence[object]], left: int = 1) -> str:
    """Return rows as text with aligned columns: the first `left` columns to the left, the others to the right."""
    rows = [[cut(str(cell), MOST) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    line = "  ".join(f"{{:{'<' if number < left else '>'}{width}}}" for number, width in enumerate(widths))
    return "\n".join(line.format(*row).rstrip() for row in rows)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 row", "0 classes", "2,000 queries"."""
    several = re.sub("y$", "ie", noun) + ("es" if noun[-1] == "s" else "s")
    return f"{number:,} {noun if number == 1 else several}"


def with_meanings(labels: Iterable[str], meaning: Mapping[str, str]) -> list[str]:
    """Return the labels, each with its meaning where there is one: "1 positive"."""
    return [f"{label} {meaning[label]}" if label in meaning else label for label in labels]


def is_main_process() -> bool:
    """Return whether this process prints: of the processes that torchrun started, only the first does."""
    return os.environ.get("RANK", "0") == "0"


def progress_bar(
    rows: Iterable[Any] | None = None, name: str | None = None, total: int | None = None, show: bool = True, **how: Any
) -> Any:
    """Return a tqdm progress bar on a terminal; elsewhere it prints a line per minute to standard error.

    how: other arguments of tqdm.
    """
    from tqdm import tqdm  # here, so that `--help` is fast

    how |= {"leave": False, "disable": not (show and is_main_process())}
    if sys.stderr.isatty():
        return tqdm(rows, name, total, delay=BAR_AFTER, **how)
    lines = {"delay": LINE_EVERY, "mininterval": LINE_EVERY, "miniters": 1, "ncols": 0, "file": io.StringIO()}
    bar: Any = tqdm(rows, name, total, **lines, **how)

    def print_line(msg: str | None = None, pos: int = 0) -> None:
        if msg is None:  # "": the end
            print(f"minibert: {printable(str(bar).strip())}", file=sys.stderr, flush=True)

    bar.display = print_line
    return bar


def require(extra: str, *packages: str) -> None:
    """Raise ImportError, with the command that installs them, unless these packages of an extra are there."""
    if missing := [package for package in packages if importlib.util.find_spec(package) is None]:
        raise ImportError(f"this needs {' and '.join(missing)}: {install_hint(extra)}")


def install_hint(extra: str) -> str:
    """Return the command that installs an extra of pyproject.toml; outside the source tree, its packages by name."""
    if (CHECKOUT / "pyproject.toml").exists():
        return pip_install("-e", f"{CHECKOUT}[{extra}]")
    required = [line.split(";") for line in importlib.metadata.requires(DISTRIBUTION) or []]
    return pip_install(*(package.strip() for package, *marker in required if f'"{extra}"' in "".join(marker)))


def pip_install(*arguments: str) -> str:
    """Return the pip command of the running interpreter; an argument that a shell would interpret is quoted."""
    quoted = (argument if re.fullmatch(r"[\w.=-]+", argument) else f'"{argument}"' for argument in arguments)
    return " ".join([shlex.quote(sys.executable or "python"), "-m pip install", *quoted])
