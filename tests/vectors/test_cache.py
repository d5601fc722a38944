"""The cache of rows on the disk keeps to its limit, and drops the oldest."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from minibert.vectors.cache import DISK_LIMIT, ROWS_FILE, DiskRows

ROW = bytes(3072)  # 768 numbers
LIMIT = 2**20  # bytes: 300 such rows


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def portion(first: int, count: int = 50) -> dict[bytes, bytes]:
    return {key(number): ROW for number in range(first, first + count)}


def test_beyond_the_limit_the_oldest_rows_go_and_the_newest_stay(tmp_path: Path) -> None:
    rows = DiskRows(tmp_path, limit=LIMIT)
    for first in range(0, 2000, 50):
        rows.write(portion(first))
        assert (tmp_path / ROWS_FILE).stat().st_size <= LIMIT + 2 * 50 * len(ROW)
    kept = sorted(rows.read({key(number) for number in range(2000)}))
    assert kept == [key(number) for number in range(2000 - len(kept), 2000)]
    assert 150 <= len(kept) <= 320


def test_a_row_that_is_written_again_is_new_again(tmp_path: Path) -> None:
    rows = DiskRows(tmp_path, limit=LIMIT)
    for first in range(0, 1000, 50):
        rows.write(portion(first) | {key(10**6): ROW})
    assert rows.read({key(10**6), key(0)}).keys() == {key(10**6)}


def test_below_the_limit_every_row_stays(tmp_path: Path) -> None:
    rows = DiskRows(tmp_path)
    assert rows.limit == DISK_LIMIT == 4 * 2**30
    for first in range(0, 1000, 50):
        rows.write(portion(first))
    assert len(rows.read(set(portion(0, 1000)))) == 1000


def test_a_cache_far_above_the_limit_shrinks_write_by_write(tmp_path: Path) -> None:
    DiskRows(tmp_path).write(portion(0, 2000))
    rows, left = DiskRows(tmp_path, limit=LIMIT), [2000]
    for first in range(2000, 3000, 50):
        rows.write(portion(first))
        left.append(len(rows.read(set(portion(0, 3000)))))
    assert all(after <= before for before, after in pairwise(left))
    assert left[-1] <= 320


def test_a_limit_below_one_portion_keeps_nothing_and_fails_nothing(tmp_path: Path) -> None:
    rows = DiskRows(tmp_path, limit=1)
    rows.write(portion(0))
    assert rows.read(set(portion(0))) == {}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in the file system of Windows")
def test_a_pipe_in_place_of_the_file_gives_a_warning_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ROWS_FILE)
    with pytest.warns(UserWarning, match=f"{ROWS_FILE} cannot be used"):
        assert DiskRows(tmp_path).read({key(0)}) == {}
