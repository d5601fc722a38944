"""Film reviews for the demo and the tutorials: a file of your own, SST-2, or the reviews shipped with minibert."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.request
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from minibert.checkpoints import hub
from minibert.files import atomic_write
from minibert.tasks.classification import Classification, Texts

# The file of "A Visual Guide to Using BERT for the First Time" (Alammar 2019): SST-2, 6,920 sentences of film reviews.
TUTORIAL_FILE = "https://raw.githubusercontent.com/clairett/pytorch-sentiment-classification/master/data/SST2/train.tsv"
TUTORIAL_SHA256 = "ec192f833a64da08f475488a77b0d0b47db47acd0f458bd18433fc793b569920"
TUTORIAL_LIMIT = 4_000_000  # bytes; the file has 0.7 million
SECONDS = 4.0  # timeout of the download
MEANING = {"0": "negative", "1": "positive"}  # the labels of SST-2 and of the shipped reviews


@dataclass(frozen=True)
class Reviews:
    """Labelled texts, where they come from and why, and what the labels mean where that is known."""

    texts: list[str]
    labels: list[str]
    origin: str
    why: str
    meaning: dict[str, str] = field(default_factory=dict)


def read_labelled(
    path: str | Path,
    *,
    text: str | int | None = None,
    label: str | int | None = None,
    pair: str | int | None = None,
    format: str | None = None,
) -> Texts:
    """The texts and labels of a table, labels as str. Arguments and errors are those of Classification and its read."""
    return Classification(text, pair, label, format).read(path)


def find_reviews(
    data: str | Path | None = None, *, text: str | int | None = None, label: str | int | None = None
) -> Reviews:
    """Data for the demo: the named file, $MINIBERT_DATA/sst2/train.tsv, the tutorial's own file, the shipped reviews.

    text, label: the columns of the named file. The tutorial's file is downloaded once. Raises as read_labelled does.
    """
    meaning, folder = MEANING, os.environ.get("MINIBERT_DATA")
    cached = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "minibert" / "sst2" / "train.tsv"
    if data is not None:
        path, why, meaning = Path(data), "named with --data", {}
        origin = str(data)
    elif folder and (path := Path(folder) / "sst2" / "train.tsv").is_file():
        origin, why = f"SST-2, {path}", "MINIBERT_DATA names its folder"
    elif not (problem := download(cached)):
        path, origin, why = cached, f"SST-2, {cached}", "the tutorial's own file"
    else:
        path, origin = (
            Path(str(resources.files("minibert") / "data" / "reviews.tsv")),
            "sample reviews shipped with minibert",
        )
        why = f"the tutorial's file, SST-2, was not downloaded: {problem}; another file: --data FILE"
    rows = read_labelled(path, text=text, label=label)
    return Reviews(rows.texts, rows.known_labels, origin, why, meaning)


def download(path: Path) -> str:
    """Download the tutorial's file unless it is there. Returns the reason where that failed, else ""."""
    if path.is_file() and is_tutorial_file(path.read_bytes()):
        return ""
    if hub.offline():
        return "HF_HUB_OFFLINE is set"
    if not hub.hub_is_reachable():  # known already: a closed network costs its timeout once
        return "the Hub does not answer, so its server was not tried"
    try:
        with urllib.request.urlopen(TUTORIAL_FILE, timeout=SECONDS) as answer:
            content = bytes(answer.read(TUTORIAL_LIMIT))
        if not is_tutorial_file(content):
            return f"{TUTORIAL_FILE} is no longer that file"
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
    except (OSError, http.client.HTTPException) as error:
        return str(error)
    return ""


def is_tutorial_file(content: bytes) -> bool:
    """Whether this is the tutorial's file, byte for byte."""
    return hashlib.sha256(content).hexdigest() == TUTORIAL_SHA256
