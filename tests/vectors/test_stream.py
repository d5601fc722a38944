"""A stream of texts becomes a .npy file in flat memory; after any interruption the same command continues.

The finished file after any number of kills equals bit for bit that of one run without.
"""

import gzip
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from support.damage import copies_of, flip
from support.words import BAD, GOOD, OTHER, write_words_checkpoint

import minibert
from minibert.text.tokenized import TokenStats, TruncationWarning
from minibert.vectors.embedder import Chunk
from minibert.vectors.parts import NPY_START, Parts
from minibert.vectors.stream import Written, embed_file, embed_stream

D = 24
PART = 8
FOLDER = "x.npy.parts"
PARTS = ["part-0.npz", "part-1.npz", "part-2.npz"]


def some_texts(rows: int, words: int = 10) -> list[str]:
    """Texts of fewer words than that, all lengths mixed."""
    pick = random.Random(0)
    return [" ".join(pick.choices(GOOD + BAD + OTHER, k=pick.randrange(words))) for _ in range(rows)]


TEXTS = some_texts(45)  # five parts, and one that is not full


def names(folder: Path) -> list[str]:
    """The files, without those that say how another one was made (test_search.py)."""
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in files if not name.endswith(".npy.json"))


# -- the file


def test_the_rows_are_those_of_embed_in_the_order_of_the_texts(checkpoint, tmp_path):
    written = embed_stream(iter(TEXTS), tmp_path / "x.npy", checkpoint, pooling="mean", layers=(0, -1), part_rows=PART)
    vectors = np.load(tmp_path / "x.npy")
    expected = minibert.embed(TEXTS, checkpoint, pooling="mean", layers=(0, -1))
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)
    assert vectors.dtype == np.float32
    tokens = sum(map(len, minibert.load_tokenizer(checkpoint).ids(TEXTS)))
    none = dict.fromkeys(("truncated", "windowed", "windows", "resumed_rows"), 0)
    how = {"description": "pooling mean, at most 20 tokens, computed in float32 on cpu", "kernels": written.kernels}
    counts = {"rows": 45, "shape": (45, 2 * D), "dtype": "float32", "tokens": tokens}
    assert written == Written(out=str(tmp_path / "x.npy"), **counts, **none, **how)
    assert names(tmp_path) == ["x.npy"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("texts", [TEXTS, []], ids=["45", "0"])
def test_numpy_reads_the_file_and_its_numbers_begin_at_a_page(checkpoint, tmp_path, dtype, texts):
    embed_stream(texts, tmp_path / "x.npy", checkpoint, dtype=dtype)  # one part, as embed
    expected = minibert.embed(texts, checkpoint).astype(dtype)
    assert (tmp_path / "x.npy").read_bytes()[4096:] == expected.tobytes()
    found = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert found.dtype == dtype and np.array_equal(found, expected)


def test_a_number_beyond_float16_is_refused_and_never_becomes_infinite(tmp_path):
    parts = Parts(tmp_path, 2, "float16", {})
    tokens = Mock(stats=TokenStats(texts=1))
    parts.add(0, Chunk(range(1), ["a"], tokens, np.array([[65519, -65519]], np.float32)))
    with pytest.raises(ValueError, match=r"row 2 .* 65520\b.*float16 .* 65504\b.*float32"):
        parts.add(1, Chunk(range(1, 3), ["a"], tokens, np.array([[0, 1], [1, 65520]], np.float32)))
    assert parts.rows == 1


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"texts": [*TEXTS[:20], None]}, TypeError, "row 20 "),
        ({"texts": [*TEXTS[:20], "\ud800"]}, ValueError, "row 20 "),
        ({"texts": [*TEXTS[:13], "good " * 40], "long": "error"}, ValueError, r"row 13 .*42 tokens"),
        ({"texts": "film"}, TypeError, r"\bstr\b"),
        ({"dtype": "int8"}, ValueError, r"dtype is 'int8'.*float32, float16"),
        ({"layers": (9,)}, ValueError, r"layers .* 9\b"),
        ({"device": "cuda"}, ValueError, "1 cpu, 0 cuda"),
    ],
)
def test_a_wrong_text_or_setting_is_refused(checkpoint, tmp_path, change, error, message):
    request = {"texts": TEXTS, "part_rows": 100, "model": checkpoint} | change
    with pytest.raises(error, match=message):
        embed_stream(out=tmp_path / "x.npy", **request)
    assert os.listdir(tmp_path) == []  # nothing was done, so nothing is kept


# -- interrupted


def begin(checkpoint: Path, out: Path, rows: int = 20, error: type[BaseException] = KeyboardInterrupt) -> str:
    """A run that is interrupted after so many texts have been read; of these, the full parts are done."""

    def texts():
        yield from TEXTS[:rows]
        raise error

    with pytest.raises(error) as caught:
        embed_stream(texts(), out, checkpoint, part_rows=PART)
    return str(caught.value)


def test_an_interrupted_run_continues_where_it_stopped(checkpoint, tmp_path, computed):
    embed_stream(TEXTS, tmp_path / "whole.npy", checkpoint, part_rows=PART)
    assert begin(checkpoint, tmp_path / "x.npy") == "16 rows are kept; the same command continues"
    assert names(tmp_path) == ["whole.npy", *(f"x.npy.parts/{name}" for name in ("_manifest.json", *PARTS[:2]))]
    computed.clear()
    written = embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, part_rows=PART)
    assert computed == [8, 8, 8, 5]
    assert (written.resumed_rows, written.rows) == (16, 45)
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert names(tmp_path) == ["whole.npy", "x.npy"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_run_that_fails_before_its_first_part_leaves_nothing(checkpoint, tmp_path, error):
    assert begin(checkpoint, tmp_path / "x.npy", 5, error) == "" and os.listdir(tmp_path) == []


def test_the_counts_and_the_one_warning_are_of_all_rows_also_after_an_interruption(checkpoint, tmp_path):
    texts = ["good " * 40, *TEXTS]
    with pytest.raises(TypeError):
        embed_stream([*texts[:20], None], tmp_path / "x.npy", checkpoint, part_rows=PART)
    written = []
    for name in ("x.npy", "y.npy"):
        with pytest.warns(TruncationWarning, match=r"^1 of 46 texts .* 20 tokens") as caught:
            written.append(embed_stream(texts, tmp_path / name, checkpoint, part_rows=PART))
        assert len(caught) == 1
    resumed, whole = written
    assert (resumed.resumed_rows, resumed.tokens, resumed.truncated) == (16, whole.tokens, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pooling": "mean"}, r"pooling 'cls'.*'mean'"),
        ({"layers": (0,)}, r"layers \[2\].*\[0\]"),
        ({"dtype": "float16"}, r"dtype 'float32'.*'float16'"),
        ({"part_rows": 16}, r"part_rows \[8, 2000000\].*\[16, 2000000\]"),
        ({"batch_tokens": 64}, r"batch_tokens None.* 64"),
        ({"texts": ["another", *TEXTS[1:]]}, "row 0 "),
        ({"texts": [*TEXTS[:15], "another", *TEXTS[16:]]}, "row 8 "),
        ({"texts": TEXTS[:15]}, "row 8 "),
        ({"texts": TEXTS[:8]}, "row 8 "),
        ({"texts": []}, "row 0 "),
    ],
)
def test_other_settings_or_texts_are_refused_and_lose_nothing(checkpoint, tmp_path, change, message):
    begin(checkpoint, tmp_path / "x.npy")
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    request = {"texts": TEXTS, "part_rows": PART, "model": checkpoint} | change
    with pytest.raises(ValueError, match=rf"{message}.*restart=True"):
        embed_stream(out=tmp_path / "x.npy", **request)
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == before
    restarted = embed_stream(out=tmp_path / "x.npy", restart=True, **request)
    assert restarted.resumed_rows == 0 and names(tmp_path) == ["x.npy"]


def test_a_parts_folder_of_something_else_is_refused_and_left_as_it_is(checkpoint, tmp_path):
    (tmp_path / "x.npy.parts").mkdir()
    (tmp_path / "x.npy.parts" / "thesis.tex").write_text("years of work")
    for restart in (False, True):
        with pytest.raises(ValueError, match=r"thesis\.tex"):
            embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, restart=restart)
    assert names(tmp_path) == ["x.npy.parts/thesis.tex"]


@pytest.mark.parametrize(
    "manifest", [b"", b"junk", b"[]", b'{"settings": [1]}', b'{"settings": {"lr": 1}}', b'{"a": 1}']
)
def test_a_folder_whose_manifest_is_damaged_or_foreign_is_refused_and_left_as_it_is(checkpoint, tmp_path, manifest):
    begin(checkpoint, tmp_path / "x.npy")
    (tmp_path / FOLDER / "_manifest.json").write_bytes(manifest)
    before = names(tmp_path)
    for restart in (False, True):
        with pytest.raises(ValueError, match=rf"{FOLDER}/_manifest\.json"):
            embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, restart=restart)
    assert names(tmp_path) == before


def test_only_files_with_exactly_the_names_of_parts_are_removed(checkpoint, tmp_path):
    begin(checkpoint, tmp_path / "x.npy")
    for name in (".part-2.npz.0123abcd", "._manifest.json.0123abcd", ".notes.of.mine"):
        (tmp_path / FOLDER / name).write_text("x")
    embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, part_rows=PART)
    assert names(tmp_path) == ["x.npy", f"{FOLDER}/.notes.of.mine"]
    (tmp_path / FOLDER / "part-one.txt").write_text("x")
    for restart in (False, True):
        with pytest.raises(ValueError, match=r"part-one\.txt"):
            embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, part_rows=PART, restart=restart, overwrite=True)


# -- damaged


def rewritten(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a part, and write it with fitting checksums."""
    with np.load(path) as part:
        content = dict(part)
    change(content)
    np.savez(path, **content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "too few rows, as its stats say": lambda path: rewritten(
        path, lambda part: part.update(vectors=part["vectors"][:5], stats=np.array([5, *part["stats"][1:]]))
    ),
    "another dtype": lambda path: rewritten(path, lambda part: part.update(vectors=part["vectors"].astype("f2"))),
    "counts that are no integers": lambda path: rewritten(path, lambda part: part.update(stats=np.array([np.nan] * 9))),
    "vectors of strings": lambda path: rewritten(path, lambda part: part.update(vectors=np.array(["x"]))),
    "a pickle": lambda path: rewritten(path, lambda part: part.update(vectors=np.array([{}]))),
    "no hash": lambda path: rewritten(path, lambda part: part.pop("hashes")),
    "of a version without a checksum": lambda path: rewritten(path, lambda part: part.pop("checksum")),
    "NaN": lambda path: rewritten(path, lambda part: part["vectors"].fill(np.nan)),
    "another count of tokens": lambda path: rewritten(path, lambda part: np.add.at(part["stats"], 1, 1)),
    "the part before": lambda path: shutil.copy(path.with_name("part-0.npz"), path),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a device": lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "empty": lambda path: path.write_bytes(b""),
    "a numpy file": lambda path: path.write_bytes(NPY_START),
    "a bit of a vector": lambda path: flip(path, 400),
}


@pytest.fixture(scope="module")
def interrupted(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with four parts of x.npy, and with whole.npy of a run that was not interrupted."""
    folder = tmp_path_factory.mktemp("interrupted")
    embed_stream(TEXTS, folder / "whole.npy", checkpoint, part_rows=PART)
    begin(checkpoint, folder / "x.npy", rows=35)
    return folder


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_part_is_named_and_only_it_is_computed_again(damage, interrupted, checkpoint, tmp_path, computed):
    shutil.copytree(interrupted, tmp_path, dirs_exist_ok=True)
    DAMAGE[damage](tmp_path / FOLDER / "part-1.npz")
    with pytest.warns(UserWarning, match=rf"{FOLDER}/part-1\.npz.*damaged") as caught:
        written = embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, part_rows=PART)
    assert len(caught) == 1 and computed == [8, 8, 5] and written.resumed_rows == 24
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert names(tmp_path) == ["whole.npy", "x.npy"]


def test_a_part_that_is_damaged_before_it_is_joined_leaves_no_file_and_all_other_parts(checkpoint, tmp_path, computed):
    def texts():
        yield from TEXTS
        flip(tmp_path / FOLDER / "part-1.npz", 400)

    with pytest.raises(RuntimeError, match=rf"{FOLDER}/part-1\.npz.*damaged"):
        embed_stream(texts(), tmp_path / "x.npy", checkpoint, part_rows=PART)
    assert not (tmp_path / "x.npy").exists()
    computed.clear()
    with pytest.warns(UserWarning, match=r"part-1\.npz.*damaged"):
        embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, part_rows=PART)
    assert computed == [8]


def test_two_runs_at_once_on_one_output_are_refused(checkpoint, tmp_path):
    def texts():
        yield from TEXTS[:20]
        for restart in (False, True):
            with pytest.raises(RuntimeError, match=r"x\.npy\.parts"):
                embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, restart=restart)
        yield from TEXTS[20:]

    assert embed_stream(texts(), tmp_path / "x.npy", checkpoint, part_rows=PART).rows == 45
    assert names(tmp_path) == ["x.npy"]


def test_a_part_of_another_model_is_computed_again(checkpoint, tmp_path, computed):
    embed_stream(TEXTS[:20], tmp_path / "whole.npy", checkpoint, part_rows=PART)
    for name, how in (("x", {}), ("y", {"pooling": "mean"})):
        with pytest.raises(TypeError):
            embed_stream([*TEXTS[:16], None], tmp_path / f"{name}.npy", checkpoint, part_rows=PART, **how)
    shutil.copy(tmp_path / "y.npy.parts" / "part-1.npz", tmp_path / FOLDER)
    computed.clear()
    with pytest.warns(UserWarning, match=r"x\.npy\.parts/part-1\.npz.*damaged"):
        embed_stream(TEXTS[:20], tmp_path / "x.npy", checkpoint, part_rows=PART)
    assert computed == [8, 4]
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


@pytest.mark.parametrize("name", ["_manifest.json", ".lock", "notes"])
def test_a_pipe_in_a_folder_of_parts_is_refused_at_once(name, checkpoint, tmp_path):
    begin(checkpoint, tmp_path / "x.npy")
    (tmp_path / FOLDER / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / FOLDER / name)
    with pytest.raises(ValueError, match=f"{FOLDER}/{name}"):
        embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, part_rows=PART)


# -- several files


def write_files(folder: Path) -> tuple[Path, list[str]]:
    """The pattern of three tables and a folder, and the texts of all in the order of the names."""
    folder.mkdir()
    for name, texts in (("c.csv.gz", TEXTS[30:]), ("a.csv", TEXTS[:20]), ("b.csv", TEXTS[20:30])):
        content = "".join(f"{number};{text} film\n" for number, text in enumerate(texts)).encode()
        whole = b"id;body\n" + content
        (folder / name).write_bytes(gzip.compress(whole) if name.endswith(".gz") else whole)
    (folder / "d.csv").mkdir()
    return folder / "*.csv*", [f"{text} film" for text in TEXTS]


def test_a_pattern_gives_one_matrix_of_all_files_in_the_order_of_their_names(checkpoint, tmp_path):
    pattern, texts = write_files(tmp_path / "corpus")
    with pytest.warns(UserWarning, match=r"[abc]\.csv.*';'"):
        written = embed_file(pattern, tmp_path / "x.npy", checkpoint, column="body")
    assert written.rows == 45
    settings = {"column": "body", "delimiter": ";"}
    pairs = embed_file(pattern, tmp_path / "pairs.npy", checkpoint, column2="id", **settings)
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), minibert.embed(texts, checkpoint), rtol=0, atol=1e-5)
    assert pairs.shape == (45, D)
    assert pairs.tokens > written.tokens + 2 * 45 - 1
    (tmp_path / "corpus" / "[x].csv").write_text("body\ngood film\n")
    written = embed_file(tmp_path / "corpus" / "[x].csv", tmp_path / "y.npy", checkpoint, column="body")
    assert written.rows == 1  # a file of this name is no pattern


def test_a_pattern_without_files_and_a_file_without_the_column_are_errors_before_any_work(checkpoint, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\*\.csv .*'corpus/\*\.csv'"):
        embed_file(tmp_path / "none*.csv", tmp_path / "x.npy", checkpoint)
    pattern, _ = write_files(tmp_path / "corpus")
    (tmp_path / "corpus" / "c.csv").write_text("id;title\n1;a\n")
    with pytest.raises(ValueError, match=r"c\.csv, line 1\b.*'body'.*'id', 'title'"):
        embed_file(pattern, tmp_path / "x.npy", checkpoint, column="body", delimiter=";")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus"]


# -- killed


def test_a_kill_at_any_step_changes_no_bit_and_costs_one_part(checkpoint, tmp_path, computed):
    live, kept = tmp_path / "live" / "x.npy", set()
    live.parent.mkdir()
    how = {"model": checkpoint, "part_rows": PART, "overwrite": True}
    for state in copies_of(live.parent, tmp_path, lambda: embed_stream(TEXTS[:21], live, **how)):
        missing = [rows for name, rows in zip(PARTS, [8, 8, 5], strict=True) if not (state / FOLDER / name).exists()]
        computed.clear()
        embed_stream(TEXTS[:21], state / "x.npy", **how)
        assert [name for name in names(state) if not name.startswith(".")] == ["x.npy"]  # but for torn temporary files
        assert (state / "x.npy").read_bytes() == live.read_bytes()
        assert computed == missing  # nothing twice
        kept.add(3 - len(missing))
    assert kept == {0, 1, 2, 3}


MEMORY = r"""
import re, sys
from pathlib import Path
from minibert.vectors import parts, stream

add = parts.Parts.add

def watched(self, *given):
    add(self, *given)
    print(self.rows, re.search(r"VmRSS:\s*(\d+) kB", Path("/proc/self/status").read_text())[1], flush=True)

parts.Parts.add = watched
stream.embed_file(sys.argv[1], sys.argv[2], sys.argv[3], pooling="mean")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_is_flat_after_the_first_twenty_thousand_of_sixty_thousand_lines(tmp_path):
    # One layer of MiniLM's width: the kernels, of which each new number of rows needs others, are as large as there.
    sizes = {"hidden_size": 384, "num_hidden_layers": 1, "num_attention_heads": 12, "intermediate_size": 1536}
    checkpoint = write_words_checkpoint(tmp_path / "words", **sizes, max_position_embeddings=64)
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in some_texts(60_000, words=13)))
    command = [sys.executable, "-c", MEMORY, tmp_path / "lines.txt", tmp_path / "x.npy", checkpoint]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    measured = [tuple(map(int, re.findall(r"\d+", line))) for line in result.stdout.splitlines()]
    assert measured[-1][0] == 60_000
    later = [memory for rows, memory in measured if rows >= 20_000]
    assert max(later) <= 1.1 * later[0]


def test_files_without_texts_leave_no_output_and_one_among_others_is_warned_of(checkpoint, tmp_path, run):
    for name, content in (("a.txt", ""), ("b.csv", "text\n"), ("c.txt", "")):
        (tmp_path / name).write_text(content)
    for given, last in (("a.txt", "a.txt"), ("b.csv", "b.csv"), ("-", "standard input")):
        path = given if given == "-" else tmp_path / given
        error = run("embed", path, "--out", tmp_path / "x.npy", "--model", checkpoint, status=2)
        assert f"{last}" in error and error.count("\n") == 1
        assert names(tmp_path) == ["a.txt", "b.csv", "c.txt"]
    with pytest.warns(UserWarning, match=r"a\.txt"), pytest.raises(ValueError, match=r"c\.txt"):
        embed_file(tmp_path / "?.txt", tmp_path / "x.npy", checkpoint)
    (tmp_path / "c.txt").write_text("good\n")
    with pytest.warns(UserWarning, match=r"a\.txt"):
        assert embed_file(tmp_path / "?.txt", tmp_path / "x.npy", checkpoint).rows == 1
    assert embed_stream([], tmp_path / "y.npy", checkpoint).shape == (0, 24)
