"""Labelled texts are read as they were written, what is wrong is named by its line, and the demo finds its data."""

from __future__ import annotations

import hashlib
import io
import sys
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from minibert.checkpoints import hub
from minibert.tasks import reviews
from minibert.tasks.reviews import find_reviews, read_labelled

TUTORIAL = b"a fine film\t1\na dull film\t0\n"


# -- reading


@pytest.mark.parametrize(
    "content",
    [
        b"a fine film\t1\na dull film\t0\n",
        b"a fine film\t1\na dull film\t0",  # no newline at the end, as in SST-2
        b"\xef\xbb\xbfa fine film\t1\r\n\r\na dull film\t 0 \r\n",  # with a BOM and blank lines
        b"\xef\xbb\xbfLabel\tid\tText\r\n1\t7\ta fine film\r\n0\t8\ta dull film\r\n",
    ],
)
def test_a_tsv_file_is_read_with_and_without_header_bom_and_crlf(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_bytes(content)
    rows = read_labelled(tmp_path / "x.tsv")
    assert (rows.texts, rows.labels, rows.pairs) == (["a fine film", "a dull film"], ["1", "0"], None)


def test_a_first_row_that_looks_like_a_header_is_refused_unless_columns_are_given(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("my review,sentiment\na,1\nb,0\nc,1\n")
    with pytest.raises(ValueError, match=r"the first row .* has the label 'sentiment', .* --text 'my review' --label"):
        read_labelled(tmp_path / "x.csv")
    assert read_labelled(tmp_path / "x.csv", text="my review", label="sentiment").labels == ["1", "0", "1"]
    assert read_labelled(tmp_path / "x.csv", text=1, label=2).labels == ["sentiment", "1", "0", "1"]
    (tmp_path / "x.csv").write_text("a,0\nb,rare\nc,0\n")
    assert read_labelled(tmp_path / "x.csv").labels == ["0", "rare", "0"]


def test_pairs_are_two_columns_of_texts(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"sentence": "a", "other": "b", "label": 1}\n')
    rows = read_labelled(tmp_path / "x.jsonl", pair="other")
    assert (rows.texts, rows.pairs, rows.labels) == (["a"], ["b"], ["1"])


def test_labelled_texts_come_from_standard_input_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a,1\nb,0\n")))
    assert read_labelled("-", format="csv").labels == ["1", "0"]


# -- the demo's data


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no MINIBERT_DATA, and TUTORIAL in the place of the tutorial's file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MINIBERT_DATA", raising=False)
    monkeypatch.setattr(reviews, "TUTORIAL_SHA256", hashlib.sha256(TUTORIAL).hexdigest())
    return tmp_path / "cache" / "minibert" / "sst2" / "train.tsv"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An open network that serves TUTORIAL; the addresses that were read."""
    asked: list[str] = []

    def urlopen(address: str, **options: Any) -> io.BytesIO:
        asked.append(address)
        return io.BytesIO(TUTORIAL)

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(hub, "answers", lambda address: True)
    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return asked


def test_a_named_file_comes_before_all_others(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sst2").mkdir()
    (tmp_path / "sst2" / "train.tsv").write_text("from the folder\t1\n")
    (tmp_path / "mine.csv").write_text("mine,yes\n")
    monkeypatch.setenv("MINIBERT_DATA", str(tmp_path))
    assert find_reviews(tmp_path / "mine.csv").texts == ["mine"]
    assert find_reviews(tmp_path / "mine.csv").meaning == {}
    assert find_reviews().texts == ["from the folder"]
    assert "MINIBERT_DATA" in find_reviews().why


def test_the_tutorials_file_is_downloaded_once_and_kept(cache: Path, served: list[str]) -> None:
    assert find_reviews().texts == ["a fine film", "a dull film"]
    assert cache.read_bytes() == TUTORIAL
    assert list(cache.parent.iterdir()) == [cache]
    assert find_reviews().why == "the tutorial's own file"
    assert served == [reviews.TUTORIAL_FILE]


def test_a_file_that_is_not_the_tutorials_is_not_used(
    cache: Path, served: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviews, "TUTORIAL_SHA256", "0" * 64)
    found = find_reviews()
    assert len(found.texts) == 480
    assert "no longer that file" in found.why
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_leaves_the_shipped_reviews(cache: Path, served: list[str]) -> None:
    cache.parent.parent.parent.mkdir()
    cache.parent.parent.write_text("a file where the folder should be")
    assert len(find_reviews().texts) == 480
    assert str(cache.parent) in find_reviews().why


def test_the_shipped_reviews_are_the_last_resort_and_balanced(cache: Path) -> None:
    found = find_reviews()
    assert Counter(found.labels) == {"0": 240, "1": 240}
    assert "HF_HUB_OFFLINE is set" in found.why
    assert found.meaning == {"0": "negative", "1": "positive"}


def test_in_a_closed_network_the_hub_is_asked_and_nobody_else(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(hub, "answers", lambda address: bool(asked.append(address)))
    assert "the Hub does not answer" in find_reviews().why
    assert asked == [hub.endpoint()]
