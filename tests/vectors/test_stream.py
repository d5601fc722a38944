"""A stream of texts becomes a .npy file in flat memory; whatever interrupts it, the same command goes on from there.

"The same" is bit for bit: the finished file after any number of kills against that of one run without.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from words import BAD, GOOD, OTHER, write_words_checkpoint

import minibert
from minibert import files
from minibert.kernels.prefetch import map_ahead, tokenized
from minibert.text import texts as text_room
from minibert.text.texts import portions
from minibert.text.tokenized import TokenStats, TruncationWarning
from minibert.vectors import embedder as room
from minibert.vectors import growing_file, stream
from minibert.vectors.embedder import Embedder
from minibert.vectors.growing_file import GrowingFile
from minibert.vectors.recipe import Recipe
from minibert.vectors.stream import Written, embed_file, embed_stream

D = 24
PORTION = 8


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_words_checkpoint(tmp_path_factory.mktemp("words")))


def some_texts(rows: int, seed: int = 0) -> list[str]:
    """Texts of 0 to 9 words, all lengths mixed."""
    pick = random.Random(seed)
    return [" ".join(pick.choices(GOOD + BAD + OTHER, k=pick.randrange(10))) for _ in range(rows)]


TEXTS = some_texts(45)  # five portions, and one that is not full


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- the file


def test_the_rows_are_those_of_embed_in_the_order_of_the_texts(checkpoint: str, tmp_path: Path) -> None:
    written = embed_stream(iter(TEXTS), tmp_path / "x.npy", checkpoint, pooling="mean", layers=(0, -1), portion=PORTION)
    vectors = np.load(tmp_path / "x.npy")
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(
        vectors, minibert.embed(TEXTS, checkpoint, pooling="mean", layers=(0, -1)), rtol=0, atol=1e-5
    )
    tokens = sum(map(len, minibert.load_tokenizer(checkpoint).ids(TEXTS)))
    assert written == Written(str(tmp_path / "x.npy"), (45, 2 * D), "float32", 45, 0, tokens, 0, 0, 0, written.kernels)
    assert names(tmp_path) == ["x.npy"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_file_is_byte_for_byte_what_numpy_saves(checkpoint: str, tmp_path: Path, dtype: str) -> None:
    embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, dtype=dtype)  # one portion, as embed
    saved = io.BytesIO()
    np.save(saved, minibert.embed(TEXTS, checkpoint).astype(dtype))
    assert (tmp_path / "x.npy").read_bytes() == saved.getvalue()


def test_no_texts_give_no_rows_of_the_right_width(checkpoint: str, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"")
    with pytest.warns(UserWarning, match="holds no texts"):
        assert embed_file(tmp_path / "in.txt", tmp_path / "x.npy", checkpoint).shape == (0, D)
    assert np.load(tmp_path / "x.npy").shape == (0, D)


def test_a_number_beyond_float16_is_refused_and_never_becomes_infinite(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match=r"row 2 has the number 65520, and float16 ends at 65504; use dtype float32"),
        GrowingFile(tmp_path / "x.npy", 2, "float16", {}) as matrix,
    ):
        matrix.append(np.array([[65519, -65519]], np.float32), ["a"], TokenStats(1))
        matrix.append(np.array([[0, 1], [1, 65520]], np.float32), ["b", "c"], TokenStats(2))
    assert json.loads((tmp_path / "x.npy.partial.json").read_text())["done"]["texts"] == 1


def test_one_warning_counts_the_texts_that_were_cut_in_all_portions(checkpoint: str, tmp_path: Path) -> None:
    texts = ["good " * 40 if row % 10 == 3 else "film" for row in range(30)]
    with pytest.warns(TruncationWarning, match="^3 of 30 texts are longer than 20 tokens") as caught:
        written = embed_stream(texts, tmp_path / "x.npy", checkpoint, portion=PORTION)
    assert (len(caught), written.truncated) == (1, 3)
    with pytest.raises(ValueError, match="row 13 has 42 tokens"):
        embed_stream(texts[4:5] * 10 + texts[10:], tmp_path / "y.npy", checkpoint, portion=PORTION, truncation="error")


@pytest.mark.parametrize(("bad", "error"), [(None, TypeError), (3, TypeError), ("\ud800", ValueError)])
def test_what_is_no_text_is_named_by_its_row(checkpoint: str, tmp_path: Path, bad: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="row 20 "):
        embed_stream([*TEXTS[:20], bad], tmp_path / "x.npy", checkpoint, portion=PORTION)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "int8"}, "dtype is 'int8'; choose from float32, float16"),
        ({"portion": 0}, "portion is 0; it must be at least 1"),
        ({"pooling": "best"}, "pooling is 'best'"),
        ({"layers": (9,)}, "layers has 9"),
    ],
)
def test_a_wrong_setting_is_refused_and_leaves_no_file(
    checkpoint: str, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, **settings)
    assert names(tmp_path) == []


def test_one_str_is_not_a_stream_of_letters(checkpoint: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="texts is one str"):
        embed_stream("film", tmp_path / "x.npy", checkpoint)


def test_portions_end_at_a_number_of_texts_or_of_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_room, "CHARACTERS", 10)
    assert list(portions(["a", "b", "c", "d" * 10, "e" * 99, "f"], 2)) == [
        ["a", "b"],
        ["c", "d" * 10],
        ["e" * 99],
        ["f"],
    ]
    assert list(portions([])) == []


# -- interrupted


def begin(checkpoint: str, out: Path, rows: int = 20, error: type[BaseException] = KeyboardInterrupt) -> None:
    """A run that is interrupted after so many texts have been read; of these, the full portions are done."""

    def texts() -> Iterator[str]:
        yield from TEXTS[:rows]
        raise error

    with pytest.raises(error):
        embed_stream(texts(), out, checkpoint, portion=PORTION)


@contextmanager
def interrupted_in_batch(number: int, error: type[BaseException] = KeyboardInterrupt) -> Iterator[None]:
    """Ctrl-C while the engine computes this batch, counted from 0; the engine is one batch ahead of what arrives."""
    forward, before = room.Engine.forward, []

    def forward_until(self: Any, *given: Any) -> Any:
        before.append(None)
        if len(before) > number:
            raise error
        return forward(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room.Engine, "forward", forward_until)
        yield


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts each batch of the engine has."""
    counts: list[int] = []
    batches = room.Engine.batches

    def counting(self: Any, *given: Any) -> Iterator[Any]:
        for rows, pooled in batches(self, *given):
            counts.append(len(rows))
            yield rows, pooled

    monkeypatch.setattr(room.Engine, "batches", counting)
    return counts


def test_an_interrupted_run_goes_on_where_it_was(checkpoint: str, tmp_path: Path, computed: list[int]) -> None:
    embed_stream(TEXTS, tmp_path / "whole.npy", checkpoint, portion=PORTION)
    begin(checkpoint, tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", [1, 2])  # of somebody else, in the meantime
    before = (tmp_path / "x.npy").read_bytes()
    with pytest.raises(ValueError, match="is there already"):
        embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, portion=PORTION)
    assert (tmp_path / "x.npy").read_bytes() == before
    assert names(tmp_path) == ["whole.npy", "x.npy", "x.npy.partial", "x.npy.partial.json"]
    computed.clear()
    written = embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, portion=PORTION, overwrite=True)
    assert computed == [8, 8, 8, 5]
    assert (written.resumed_rows, written.rows) == (16, 45)
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert names(tmp_path) == ["whole.npy", "x.npy"]


def test_an_interrupt_within_a_portion_keeps_its_rows_and_says_so(
    checkpoint: str, tmp_path: Path, computed: list[int]
) -> None:
    settings: dict[str, Any] = {"batch_tokens": 30, "pooling": "mean", "dtype": "float16"}
    embed_stream(TEXTS, tmp_path / "whole.npy", checkpoint, **settings)
    every = computed.copy()
    for batches in (3, 3):
        with (
            interrupted_in_batch(batches),
            pytest.raises(KeyboardInterrupt, match=r"^\d+ of 45 rows are kept; the same command goes on$") as stop,
        ):
            embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, **settings)
    assert names(tmp_path) == ["whole.npy", "x.npy.partial", "x.npy.partial.begun", "x.npy.partial.json"]
    assert str(stop.value).startswith(f"{sum(every[:4])} of 45")
    computed.clear()
    written = embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, **settings)
    assert computed == every[4:]
    assert written.resumed_rows == sum(every[:4])
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert names(tmp_path) == ["whole.npy", "x.npy"]


def test_another_error_within_a_portion_leaves_what_was_saved_by_time(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with interrupted_in_batch(3, RuntimeError), pytest.raises(RuntimeError):
        embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, batch_tokens=30)
    assert names(tmp_path) == []
    monkeypatch.setattr(growing_file, "SECONDS", 0.0)
    with interrupted_in_batch(3, RuntimeError), pytest.raises(RuntimeError):
        embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, batch_tokens=30)
    assert names(tmp_path) == ["x.npy.partial", "x.npy.partial.begun", "x.npy.partial.json"]


def test_a_portion_that_was_begun_with_other_texts_or_is_damaged_is_refused(checkpoint: str, tmp_path: Path) -> None:
    with interrupted_in_batch(3), pytest.raises(KeyboardInterrupt):
        embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, batch_tokens=30)
    with pytest.raises(ValueError, match="those from row 0 on are not those of now; give the texts of then"):
        embed_stream([*TEXTS, "film"], tmp_path / "x.npy", checkpoint, batch_tokens=30)
    begun, journal = tmp_path / "x.npy.partial.begun", tmp_path / "x.npy.partial.json"
    content = json.loads(journal.read_text())
    for rows in (10**9, 46):
        journal.write_text(json.dumps(content | {"begun": content["begun"] | {"rows": rows}}))
        with pytest.raises(ValueError, match=r"\.begun is damaged: it has \d+ bytes for 45 rows, and by its journal"):
            embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, batch_tokens=30)
    for damaged in (None, [], {"rows": "3"}, {"rows": -1}, {}):
        journal.write_text(json.dumps(content | {"begun": damaged}))
        with pytest.raises(ValueError, match="is no journal of minibert: begun is"):
            embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, batch_tokens=30)
    journal.write_text(json.dumps(content))
    begun.unlink()
    with pytest.raises(ValueError, match=r"\.begun is damaged: it has 0 bytes"):
        embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, batch_tokens=30)


def test_a_journal_of_a_minibert_that_knew_no_begun_portions_is_resumed(checkpoint: str, tmp_path: Path) -> None:
    begin(checkpoint, tmp_path / "x.npy")
    journal = tmp_path / "x.npy.partial.json"
    content = json.loads(journal.read_text())
    del content["begun"]
    journal.write_text(json.dumps(content))
    assert embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, portion=PORTION).resumed_rows == 16


def test_the_bar_moves_with_every_batch_and_ends_where_the_texts_end(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[int]
) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    bars: list[Any] = []

    class Bar(stream.tqdm):  # type: ignore[misc,name-defined]
        def __init__(self, **how: Any) -> None:
            super().__init__(**how | {"disable": False, "file": io.StringIO()})
            self.places: list[int] = []
            bars.append(self)

        def update(self, n: float = 1) -> bool | None:
            self.places.append(self.n + n)
            return super().update(n)

    monkeypatch.setattr(stream, "tqdm", Bar)
    size = (tmp_path / "in.txt").stat().st_size
    for source, total in ((embed_file, size), (embed_stream, 45)):
        bars.clear()
        computed.clear()
        given: Any = tmp_path / "in.txt" if source is embed_file else TEXTS
        source(given, tmp_path / f"{source.__name__}.npy", checkpoint, portion=20, batch_tokens=30)
        _, bar = bars
        assert bar.total == total
        assert len(bar.places) == len(computed) + 3  # and at the end of each portion
        assert bar.places == sorted(bar.places)
        assert bar.places[-1] == total
        assert len(set(bar.places)) == len(computed)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, ValueError])
def test_a_run_that_fails_before_its_first_portion_leaves_nothing(
    checkpoint: str, tmp_path: Path, error: type[BaseException]
) -> None:
    begin(checkpoint, tmp_path / "x.npy", 5, error)
    assert names(tmp_path) == []


def test_the_counts_are_of_all_rows_also_after_an_interruption(checkpoint: str, tmp_path: Path) -> None:
    texts = ["good " * 40, *TEXTS]
    with pytest.raises(TypeError):
        embed_stream([*texts[:20], None], tmp_path / "x.npy", checkpoint, portion=PORTION)  # type: ignore[list-item]
    with pytest.warns(TruncationWarning, match="^1 of 46 texts"):
        resumed = embed_stream(texts, tmp_path / "x.npy", checkpoint, portion=PORTION)
    with pytest.warns(TruncationWarning, match="^1 of 46 texts"):
        whole = embed_stream(texts, tmp_path / "y.npy", checkpoint, portion=PORTION)
    assert (resumed.resumed_rows, resumed.tokens, resumed.truncated) == (16, whole.tokens, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pooling": "mean"}, "was begun with pooling 'cls', and now it is 'mean'"),
        ({"layers": (0,)}, r"was begun with layers \[2\], and now it is \[0\]"),
        ({"dtype": "float16"}, "was begun with dtype 'float32', and now it is 'float16'"),
        ({"portion": 16}, r"was begun with portion \[8, 2000000\], and now it is \[16, 2000000\]"),
        ({"batch_tokens": 64}, "was begun with batch_tokens 4096, and now it is 64"),
        ({"truncation": "error"}, "was begun with long 'cut', and now it is 'error'"),
        ({"texts": ["another", *TEXTS[1:]]}, "the first 16 are not those of now"),
        ({"texts": [*TEXTS[:15], "another", *TEXTS[16:]]}, "the first 16 are not those of now"),
        ({"texts": TEXTS[:15]}, "the first 16 are not those of now"),
        ({"texts": []}, "the first 16 are not those of now"),
    ],
)
def test_other_settings_or_texts_are_refused_and_lose_nothing(
    checkpoint: str, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    begin(checkpoint, tmp_path / "x.npy")
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    asked: dict[str, Any] = {"texts": TEXTS, "portion": PORTION} | change
    with pytest.raises(ValueError, match=f"{message}.*or begin again .--restart"):
        embed_stream(asked.pop("texts"), tmp_path / "x.npy", checkpoint, **asked)
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == before


@pytest.mark.parametrize("seed", [1])
def test_another_checkpoint_is_refused(checkpoint: str, tmp_path: Path, seed: int) -> None:
    begin(checkpoint, tmp_path / "x.npy")
    other = write_words_checkpoint(tmp_path / "other", seed=seed)
    with pytest.raises(ValueError, match=r"was begun with weights '[0-9a-f]{64}'"):
        embed_stream(TEXTS, tmp_path / "x.npy", str(other), portion=PORTION)


def test_restart_begins_again(checkpoint: str, tmp_path: Path) -> None:
    begin(checkpoint, tmp_path / "x.npy")
    written = embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, portion=PORTION, pooling="max", restart=True)
    assert written.resumed_rows == 0
    assert names(tmp_path) == ["x.npy"]


def test_a_journal_that_is_damaged_or_counts_rows_that_are_not_there_is_refused(
    checkpoint: str, tmp_path: Path
) -> None:
    begin(checkpoint, tmp_path / "x.npy")
    partial = tmp_path / "x.npy.partial"
    whole = partial.read_bytes()
    partial.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=r"is damaged: it has 1,663 bytes, and by its journal at least 1,664"):
        embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, portion=PORTION)
    partial.write_bytes(whole)
    (tmp_path / "x.npy.partial.json").write_text("{}")
    with pytest.raises(ValueError, match="is no journal of minibert"):
        embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, portion=PORTION)


def test_a_journal_without_its_file_is_forgotten(checkpoint: str, tmp_path: Path) -> None:
    begin(checkpoint, tmp_path / "x.npy")
    (tmp_path / "x.npy.partial").unlink()  # as if killed between the last rename and the removal of the journal
    assert embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, portion=PORTION).resumed_rows == 0
    assert names(tmp_path) == ["x.npy"]


def test_two_at_once_on_one_target_are_refused(checkpoint: str, tmp_path: Path) -> None:
    def texts() -> Iterator[str]:
        yield from TEXTS[:20]
        with pytest.raises(RuntimeError, match=r"another process is writing .*x\.npy\.partial"):
            embed_stream(TEXTS, tmp_path / "x.npy", checkpoint)
        with pytest.raises(RuntimeError, match="another process"):
            embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, restart=True)
        yield from TEXTS[20:]

    assert embed_stream(texts(), tmp_path / "x.npy", checkpoint, portion=PORTION).rows == 45
    assert np.load(tmp_path / "x.npy").shape == (45, D)


def test_a_lock_on_a_file_that_was_renamed_meanwhile_is_not_taken_for_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = files.fcntl.flock
    renamed: list[Path] = []

    def late(file: Any, how: int) -> None:
        if not renamed:  # between opening and locking, the other process finishes
            renamed.append((tmp_path / "x.partial").rename(tmp_path / "x.npy"))
        lock(file, how)

    monkeypatch.setattr(files.fcntl, "flock", late)
    with files.lock_file(tmp_path / "x.partial") as file:
        assert os.path.samestat(os.fstat(file.fileno()), (tmp_path / "x.partial").stat())


# -- killed at every step


def every_step(checkpoint: str, folder: Path, monkeypatch: pytest.MonkeyPatch, tokens: int) -> list[Path]:
    """What is on the disk before and after each step of a run that writes: one folder for each different state."""
    states: dict[str, Path] = {}
    live = folder / "live"
    live.mkdir()

    def snapshot() -> None:
        files = {name: (live / name).read_bytes() for name in names(live)}
        key = hashlib.sha256(repr(files).encode()).hexdigest()
        if key not in states:
            states[key] = folder / f"state {len(states)}"
            shutil.copytree(live, states[key])

    def watched(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **more: Any) -> Any:
            snapshot()
            result = step(*args, **more)
            snapshot()
            return result

        return run

    def in_two(file: Any, content: bytes) -> None:
        for half in (content[: len(content) // 2], content[len(content) // 2 :]):
            watched(write_all)(file, half)

    write_all = growing_file.write_all
    with monkeypatch.context() as patch:
        patch.setattr(growing_file, "write_all", in_two)
        patch.setattr(growing_file.json, "dump", watched(json.dump))
        for name in ("fsync", "replace"):
            patch.setattr(os, name, watched(getattr(os, name)))
        patch.setattr(Path, "unlink", watched(Path.unlink))
        embed_stream(TEXTS[:21], live / "x.npy", checkpoint, portion=PORTION, batch_tokens=tokens)
    return list(states.values())


def saved_rows(journal: Path) -> int:
    """How many rows a journal counts, those of the portion in progress too."""
    content = json.loads(journal.read_text())
    return content["done"]["texts"] + content["begun"]["rows"]


def tear(folder: Path) -> None:
    """What a loss of power may add: bytes that belong to nothing."""
    if (folder / "x.npy.partial").exists():
        for name in ("x.npy.partial", "x.npy.partial.begun"):
            with (folder / name).open("ab") as file:
                file.write(b"\xff" * 1000)
        (folder / "x.npy.partial.json.new").write_text('{"do')


def finished(checkpoint: str, state: Path, tokens: int = 4096) -> bytes:
    """The file that the same command makes of a state."""
    embed_stream(TEXTS[:21], state / "x.npy", checkpoint, portion=PORTION, batch_tokens=tokens, overwrite=True)
    assert names(state) in (["x.npy"], ["x.npy", "x.npy.partial.json.new"])
    return (state / "x.npy").read_bytes()


@pytest.mark.parametrize(
    ("seconds", "tokens"),
    [(10.0, 4096), (0.0, 20)],
    ids=["portions", "batches"],
)
def test_a_kill_at_any_step_changes_no_bit(
    checkpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    computed: list[int],
    seconds: float,
    tokens: int,
) -> None:
    monkeypatch.setattr(growing_file, "SECONDS", seconds)
    states = every_step(checkpoint, tmp_path, monkeypatch, tokens)
    assert len(states) > 20
    wanted = {0, *accumulate(computed)}
    assert wanted >= {0, 8, 16, 21}
    whole = (tmp_path / "live" / "x.npy").read_bytes()
    numbers = set()
    for number, state in enumerate(states):
        if number % 2:
            tear(state)
        journal = state / "x.npy.partial.json"
        begun = journal.exists() and (state / "x.npy.partial").exists()
        kept = saved_rows(journal) if begun else 0
        computed.clear()
        assert finished(checkpoint, state, tokens) == whole
        assert sum(computed) == 21 - kept  # nothing twice
        numbers.add(kept)
    assert numbers == wanted


def test_a_file_whose_torn_end_stays_would_be_caught(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(checkpoint, tmp_path / "x.npy")
    tear(tmp_path)
    go_on = GrowingFile._go_on

    def to_the_end(self: GrowingFile) -> Any:
        torn = self.partial.read_bytes()
        journal = go_on(self)
        self.partial.write_bytes(torn)
        self.file.seek(0, os.SEEK_END)
        return journal

    monkeypatch.setattr(GrowingFile, "_go_on", to_the_end)
    wrong = finished(checkpoint, tmp_path)
    monkeypatch.undo()
    (tmp_path / "whole").mkdir()
    assert wrong != finished(checkpoint, tmp_path / "whole")


# -- killed for real


def kill_when(process: subprocess.Popen[bytes], journal: Path, rows: int, delay: float) -> bool:
    """SIGKILL the process a moment after its journal counts so many rows; whether it was still at work."""
    while process.poll() is None:
        try:
            if json.loads(journal.read_text())["done"]["texts"] >= rows:
                break
        except FileNotFoundError:
            pass
        time.sleep(0.002)
    time.sleep(delay)
    killed = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    return killed


def test_a_command_that_is_killed_again_and_again_writes_the_same_bits(checkpoint: str, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)  # pytest shows it where the test fails
    pick = random.Random(seed)
    source, out, journal = tmp_path / "in.tsv", tmp_path / "x.npy", tmp_path / "x.npy.partial.json"
    rows = 4 * text_room.TEXTS - 1000
    source.write_text("text\tlabel\n" + "".join(f"{text}\t1\n" for text in some_texts(rows, seed)))
    whole = embed_file(source, tmp_path / "whole.npy", checkpoint)
    command = [sys.executable, "-m", "minibert", "embed", source, "--out", out, "--model", checkpoint, "--json"]
    quiet = os.environ | {"OMP_WAIT_POLICY": "passive"}  # threads that wait leave the processor to the other tests
    hit = []
    for least in (1, 2):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=quiet) as process:
            if kill_when(process, journal, least * text_room.TEXTS, pick.uniform(0, 0.05)) and journal.exists():
                hit.append(json.loads(journal.read_text())["done"]["texts"])
    assert hit == sorted(hit)
    assert [number for number in hit if 0 < number < rows], f"no kill hit the middle: {hit}"
    last = subprocess.run(command, capture_output=True, text=True, check=True, env=quiet)
    found = json.loads(last.stdout.splitlines()[-1])
    assert (found["rows"], found["tokens"], found["resumed_rows"]) == (rows, whole.tokens, hit[-1])
    assert f"{hit[-1]:,} rows were done before" in last.stdout
    assert last.stderr == ""
    assert out.read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert names(tmp_path) == ["in.tsv", "whole.npy", "x.npy"]


def test_control_c_is_answered_with_what_is_kept_and_how_to_go_on(checkpoint: str, tmp_path: Path) -> None:
    source, out, journal = tmp_path / "in.txt", tmp_path / "x.npy", tmp_path / "x.npy.partial.json"
    source.write_text("".join(f"{text}\n" for text in some_texts(60 * text_room.TEXTS)))
    command = [sys.executable, "-m", "minibert", "embed", source, "--out", out, "--model", checkpoint]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while not journal.exists() and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 130, said
    told = re.fullmatch(
        r"minibert: interrupted: ([\d,]+) of about [\d,]+,000 rows are kept; the same .* goes on\n", said
    )
    assert told, said
    assert int(told[1].replace(",", "")) == saved_rows(journal) > 0


MEMORY = r"""
import re, sys
from pathlib import Path
from minibert import embed
from minibert.vectors.stream import embed_stream
wide = {"model": sys.argv[1], "layers": [0] * 200}  # rows of 19 kB that cost next to nothing
def peak():  # of this program; ru_maxrss would begin with that of the process which started it
    return re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]
peaks = []
for rows in (2000, 8000):
    embed_stream(("film" for row in range(rows)), sys.argv[2], portion=250, overwrite=True, **wide)
    peaks.append(peak())
embed(["film"] * 8000, **wide)
print(*peaks, peak())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_memory_does_not_grow_with_the_number_of_texts(checkpoint: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEMORY, checkpoint, str(tmp_path / "x.npy")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    small, large, held = (int(kilobytes) for kilobytes in result.stdout.split())
    assert large - small < 40_000  # the 6,000 rows more are 115 MB
    assert held - large > 60_000  # and where all are held, it is seen


# -- one portion ahead


def running() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("minibert-ahead")]


def test_map_ahead_keeps_the_order_and_is_one_item_ahead() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(5):
            taken.append(number)
            yield number

    results = map_ahead(lambda number: number * number, items())
    assert taken == []
    assert next(results) == 0
    assert taken == [0, 1]
    assert list(results) == [1, 4, 9, 16]
    assert running() == []
    assert list(map_ahead(str, [])) == []


def test_the_next_item_is_made_while_the_caller_works_on_this_one() -> None:
    made = {number: threading.Event() for number in range(3)}

    def make(number: int) -> int:
        made[number].set()
        return number

    results = map_ahead(make, range(3))
    assert next(results) == 0
    assert made[1].wait(60)  # would time out if it were made only when it is asked for
    results.close()
    assert running() == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_worker_or_in_the_items_reaches_the_caller_and_ends_the_worker(
    error: type[BaseException],
) -> None:
    def fail(number: int) -> int:
        if number == 2:
            raise error("two")
        return number

    seen: list[int] = []
    with pytest.raises(error, match="two"):
        for number in map_ahead(fail, range(9)):
            seen.append(number)
    assert seen == [0, 1]
    with pytest.raises(error, match="two"):
        list(map_ahead(int, map(fail, range(9))))
    assert running() == []


def test_portions_that_are_tokenized_ahead_are_those_of_one_thread(checkpoint: str) -> None:
    tokenizer = minibert.load_tokenizer(checkpoint)
    ahead, here = (
        list(tokenized(portions(TEXTS, PORTION), tokenizer, torch.device(device), long="cut", first=7))
        for device in ("meta", "cpu")
    )
    assert ahead == here
    assert [portion.first for portion in ahead] == [7, 15, 23, 31, 39, 47]
    assert [ids for portion in ahead for ids in portion.tokens.ids] == tokenizer.ids(TEXTS)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU in the place of a device that computes by itself: portions of 8 texts, tokenized ahead."""
    monkeypatch.setattr(room, "portions", lambda texts: portions(texts, PORTION))
    monkeypatch.setattr(
        room,
        "tokenized",
        lambda portions, tokenizer, device, **settings: tokenized(
            portions, tokenizer, torch.device("meta"), **settings
        ),
    )


@pytest.mark.usefixtures("elsewhere")
def test_prefetched_rows_are_those_of_embed_with_one_warning(checkpoint: str) -> None:
    embedder = Embedder(checkpoint, Recipe(layers=(0, 1)), "cpu")
    texts = [*TEXTS, "good " * 40]
    with pytest.warns(TruncationWarning, match="^1 of 46 texts") as caught:
        vectors = embedder.prefetched(texts)
    assert len(caught) == 1
    with warnings.catch_warnings(action="ignore"):
        np.testing.assert_allclose(vectors, minibert.embed(texts, checkpoint, layers=(0, 1)), rtol=0, atol=1e-5)
    assert embedder.prefetched([]).shape == (0, 2 * D)


@pytest.mark.usefixtures("elsewhere")
def test_an_interrupt_while_the_device_computes_leaves_no_thread(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any, **more: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(room.Engine, "vectors", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Embedder(checkpoint, device="cpu").prefetched(TEXTS)
    assert running() == []
