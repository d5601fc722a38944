"""Labelled texts: read from a file, or found for the demo.

A file is .tsv (columns by tab, quotes are characters like any other) or .csv (columns by comma, quoted), UTF-8.
With a header, the columns are those named sentence (or text) and label; without one, there are two: text, label.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import urllib.request
import warnings
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from minibert.checkpoints import hub
from minibert.files import written_whole
from minibert.text.tables import TABLES, TEXT_COLUMNS, read_rows

LABEL_COLUMN = "label"

# The file of "A Visual Guide to Using BERT for the First Time" (Alammar 2019): SST-2, 6,920 sentences of film reviews.
TUTORIAL_FILE = "https://raw.githubusercontent.com/clairett/pytorch-sentiment-classification/master/data/SST2/train.tsv"
TUTORIAL_SHA256 = "ec192f833a64da08f475488a77b0d0b47db47acd0f458bd18433fc793b569920"
TUTORIAL_LIMIT = 4_000_000  # bytes; the file has 0.7 million
MEANING = {"0": "negative", "1": "positive"}  # of the labels in SST-2 and in the shipped reviews


@dataclass(frozen=True)
class Labelled:
    """Texts and the name of the class of each."""

    texts: list[str]
    labels: list[str]


@dataclass(frozen=True)
class Reviews(Labelled):
    """Labelled texts for the demo: where they are from, why these, and what the labels mean where that is known."""

    origin: str
    why: str
    meaning: dict[str, str] = field(default_factory=dict)


# ---------------------------------------------------------------------------------------------------------------
# Reading


def read_labelled(path: str | Path) -> Labelled:
    """The texts and labels of a .tsv or .csv file; labels stay names (str), without the spaces around them.

    Blank lines are skipped. Raises FileNotFoundError where there is no such file, ValueError, naming the line, for
    anything that is not a text and a label.
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not there"
        raise FileNotFoundError(f"{path} {what}; a .tsv or .csv file is wanted")
    return parse(path.read_bytes(), str(path))


def parse(content: bytes, name: str) -> Labelled:
    """What a file of this content and name holds; see read_labelled."""
    kind = Path(name).suffix.lower().removeprefix(".")
    if kind not in TABLES:
        raise ValueError(f"{name} must end in .tsv (columns by tab) or .csv (columns by comma)")
    rows = list(read_rows(io.BytesIO(content), name, kind))
    first = rows[0][1] if rows else []
    text_column, label_column, width = columns(first)
    texts, labels = [], []
    for number, row in rows[is_header(first) :]:
        check_row(row, width, label_column, f"{name}, line {number},")
        texts.append(row[text_column])
        labels.append(row[label_column].strip())
    if not texts:
        raise ValueError(f"{name} holds no rows; each needs a text and a label")
    return Labelled(texts, labels)


def is_header(row: list[str]) -> bool:
    """Whether the row names both columns."""
    names = [name.strip().lower() for name in row]
    return LABEL_COLUMN in names and any(name in names for name in TEXT_COLUMNS)


def columns(first: list[str]) -> tuple[int, int, int]:
    """Which column is the text, which the label, and how many there are, by the first row of the file."""
    if not is_header(first):
        return 0, 1, 2
    names = [name.strip().lower() for name in first]
    text = next(name for name in TEXT_COLUMNS if name in names)
    return names.index(text), names.index(LABEL_COLUMN), len(names)


def check_row(row: list[str], width: int, label_column: int, place: str) -> None:
    """Raise ValueError for a row with too few or too many columns, or without a label."""
    if len(row) == 1:
        raise ValueError(f"{place} has one column: the label is missing")
    if len(row) != width:
        wanted = "text and label, or a header that names sentence and label" if width == 2 else "as in the header"
        raise ValueError(f"{place} has {len(row)} columns, {width} are expected ({wanted})")
    if not row[label_column].strip():
        raise ValueError(f"{place} has an empty label")


# ---------------------------------------------------------------------------------------------------------------
# The demo's data


def find_reviews(data: str | Path | None = None) -> Reviews:
    """Data for the demo: the named file, $MINIBERT_DATA/sst2/train.tsv, the tutorial's own file, the shipped reviews.

    The tutorial's file is downloaded once, in a few seconds or not at all. Raises what read_labelled raises.
    """
    if data is not None:
        return reviews(read_labelled(data), str(data), "named with --data")
    folder = os.environ.get("MINIBERT_DATA")
    if folder and (path := Path(folder) / "sst2" / "train.tsv").is_file():
        return reviews(read_labelled(path), f"SST-2, {path}", "MINIBERT_DATA names its folder", MEANING)
    kept = data_folder() / "sst2" / "train.tsv"
    if kept.is_file() and is_tutorial_file(content := kept.read_bytes()):
        return reviews(parse(content, str(kept)), f"SST-2, {kept}", "downloaded earlier", MEANING)
    content, why_not = download_tutorial_file()
    if content:
        keep(kept, content)
        return reviews(parse(content, TUTORIAL_FILE), f"SST-2, {TUTORIAL_FILE}", "the tutorial's own file", MEANING)
    shipped = resources.files("minibert") / "data" / "reviews.tsv"
    why = f"the tutorial's file, SST-2, was not downloaded: {why_not}; another file: --data FILE"
    return reviews(parse(shipped.read_bytes(), "reviews.tsv"), "sample reviews that come with minibert", why, MEANING)


def reviews(rows: Labelled, origin: str, why: str, meaning: dict[str, str] | None = None) -> Reviews:
    """Rows, with where they are from."""
    return Reviews(rows.texts, rows.labels, origin, why, meaning or {})


def data_folder() -> Path:
    """Where downloaded data is kept: minibert/ in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "minibert"


def is_tutorial_file(content: bytes) -> bool:
    """Whether this is the tutorial's file, byte for byte."""
    return hashlib.sha256(content).hexdigest() == TUTORIAL_SHA256


def download_tutorial_file(seconds: float = 4.0) -> tuple[bytes, str]:
    """The content of the tutorial's file, or b"" and why there is none; not tried where the Hub does not answer."""
    if hub.offline():
        return b"", "HF_HUB_OFFLINE is set"
    if not hub.hub_is_reachable():  # asked already, for the weights: a closed network costs its time-out once
        return b"", "the Hub does not answer, so its server was not asked"
    if not hub.answers(TUTORIAL_FILE):
        return b"", "its server does not answer"
    try:
        with urllib.request.urlopen(TUTORIAL_FILE, timeout=seconds) as answer:
            content = bytes(answer.read(TUTORIAL_LIMIT))
    except (OSError, http.client.HTTPException) as error:
        return b"", f"its server answers: {error}"
    return (content, "") if is_tutorial_file(content) else (b"", f"{TUTORIAL_FILE} is no longer that file")


def keep(path: Path, content: bytes) -> None:
    """Write a downloaded file for the next time; where that fails, there is one warning."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        message = f"{path} could not be written ({error.strerror}): the file will be downloaded again"
        warnings.warn(message, stacklevel=2)
