"""Labelled texts: read from a file, or found for the demo.

A file is one of text/tables.py: .tsv, .csv, .jsonl, .json or .parquet. Its columns are asked for by name, or by number
where there is no header; else they are those named sentence (or text) and label, and a table without that header has
two: text, label.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import shlex
import urllib.request
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from minibert.checkpoints import hub
from minibert.files import atomic_write
from minibert.text.tables import Column, Table

LABEL_COLUMNS = ("label",)  # what these columns are called
PAIR_COLUMNS = ("sentence2", "text2", "text_b")

# The file of "A Visual Guide to Using BERT for the First Time" (Alammar 2019): SST-2, 6,920 sentences of film reviews.
TUTORIAL_FILE = "https://raw.githubusercontent.com/clairett/pytorch-sentiment-classification/master/data/SST2/train.tsv"
TUTORIAL_SHA256 = "ec192f833a64da08f475488a77b0d0b47db47acd0f458bd18433fc793b569920"
TUTORIAL_LIMIT = 4_000_000  # bytes; the file has 0.7 million
MEANING = {"0": "negative", "1": "positive"}  # of the labels in SST-2 and in the shipped reviews


@dataclass(frozen=True)
class Labelled:
    """Texts, the name of the class of each, and the second texts where they are pairs."""

    texts: list[str]
    labels: list[str]
    pairs: list[str] | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Reviews(Labelled):
    """Labelled texts for the demo: where they are from, why these, and what the labels mean where that is known."""

    origin: str
    why: str
    meaning: dict[str, str] = field(default_factory=dict)


# ---------------------------------------------------------------------------------------------------------------
# Reading


def read_labelled(
    path: str | Path,
    *,
    text: str | int | None = None,
    label: str | int | None = None,
    pair: str | int | None = None,
    format: str | None = None,
) -> Labelled:
    """The texts and labels of a file; labels stay names (str), without the spaces around them.

    text, label: names of columns, or numbers from 1 where there is no header; None: see above. pair: the column of
    second texts, if there is one. format: see text.tables.Table, for a file whose name does not say it.
    Raises FileNotFoundError where there is no such file, ValueError, naming the line, for anything that is not a text
    and a label, and for a first row that looks like a header.
    """
    check_there(path)
    with Table(path, columns(text, label, pair), format) as table:
        return labelled(table)


def check_there(path: str | Path, wanted: str = "texts and labels") -> None:
    """Raise FileNotFoundError for a file of data that is not there."""
    if str(path) != "-" and not (path := Path(path)).exists():
        raise FileNotFoundError(f"{path} is not there; a file of {wanted} is wanted")
    if Path(path).is_dir():
        raise FileNotFoundError(f"{path} is a folder; a file of {wanted} is wanted")


def parse(content: bytes, name: str) -> Labelled:
    """What a file of this content and name holds; see read_labelled."""
    with Table(name, columns(), stream=io.BytesIO(content)) as table:
        return labelled(table)


def columns(
    text: str | int | None = None, label: str | int | None = None, pair: str | int | None = None
) -> list[Column]:
    """The columns to ask a table for: text, label and, if it is named, pair."""
    names = [None if name is None else str(name) for name in (text, label, pair)]
    asked = [Column("text", names[0]), Column("label", names[1], LABEL_COLUMNS), Column("pair", names[2], PAIR_COLUMNS)]
    return asked if pair is not None else asked[:2]


def labelled(table: Table) -> Labelled:
    """All rows of a table. Raises ValueError where there is none, and where the first one looks like a header."""
    rows = list(table.rows())
    if not rows:
        raise ValueError(f"{table.name} holds no rows; each needs a text and a label")
    texts, labels, *pairs = map(list, zip(*rows, strict=True))
    check_header(table, texts[0], labels)
    return Labelled(texts, labels, pairs=pairs[0] if pairs else None)


def check_header(table: Table, text: str, labels: Sequence[str]) -> None:
    """Raise ValueError where the first row looks like a header: its label is the only one that no other row has."""
    guessed = not table.header and not any(column.name for column in table.columns)
    if guessed and labels.count(labels[0]) == 1 and len(set(labels)) < len(labels):
        text = text if len(text) <= 30 else "NAME"
        raise ValueError(
            f"the first row of {table.name} has the label {labels[0]!r}, which no other row has; if it is a header, "
            f"name the columns, text= and label= (--text {shlex.quote(text)} --label {shlex.quote(labels[0])}); "
            "if it is not, number them (--text 1 --label 2)"
        )


# ---------------------------------------------------------------------------------------------------------------
# The demo's data


def find_reviews(
    data: str | Path | None = None, *, text: str | int | None = None, label: str | int | None = None
) -> Reviews:
    """Data for the demo: the named file, $MINIBERT_DATA/sst2/train.tsv, the tutorial's own file, the shipped reviews.

    text, label: the columns of the named file. The tutorial's file is downloaded once, in a few seconds or not at all.
    Raises what read_labelled raises.
    """
    if data is not None:
        return reviews(read_labelled(data, text=text, label=label), str(data), "named with --data")
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
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        message = f"{path} could not be written ({error.strerror}): the file will be downloaded again"
        warnings.warn(message, stacklevel=2)
