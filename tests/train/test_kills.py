"""`minibert embed` of 200,000 lines: killed 20 times on the way it ends with the same file, and memory stays flat."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from words import BAD, GOOD, OTHER, write_words_checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="SIGKILL, and memory is read from /proc"),
]

ROWS, KILLS = 200_000, 20
QUIET = os.environ | {"OMP_WAIT_POLICY": "passive"}  # threads that wait leave the processor to others
# The command, with the rows of a portion in progress saved after every batch.
EAGER = "import sys; from minibert.vectors import growing_file as room; room.SECONDS = 0.0; "
EAGER += "from minibert.cli.main import main; sys.exit(main(sys.argv[1:]))"


def write_lines(path: Path) -> None:
    """Short lines, of 0 to 12 words; the same at each call."""
    pick = random.Random(0)
    words = GOOD + BAD + OTHER
    path.write_text("".join(" ".join(pick.choices(words, k=pick.randrange(13))) + "\n" for _ in range(ROWS)))


def kept(out: Path) -> int:
    """How many rows the journal of an unfinished run counts."""
    journal = out.with_name(out.name + ".partial.json")
    try:
        content = json.loads(journal.read_text())
    except FileNotFoundError:
        return ROWS if out.exists() else 0
    return int(content["done"]["texts"] + content["begun"]["rows"])


@pytest.mark.parametrize("command", [["-m", "minibert"], ["-c", EAGER]], ids=["by time", "after every batch"])
def test_embed_that_is_killed_twenty_times_writes_the_file_of_an_uninterrupted_run(
    tmp_path: Path, command: list[str]
) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)  # pytest shows it where the test fails
    pick = random.Random(seed)
    checkpoint = write_words_checkpoint(tmp_path / "words", max_position_embeddings=64)
    lines, whole, out = tmp_path / "lines.txt", tmp_path / "whole.npy", tmp_path / "x.npy"
    write_lines(lines)
    embed = [sys.executable, *command, "embed", str(lines), "--model", str(checkpoint), "--out"]
    subprocess.run([*embed, str(whole)], check=True, stdout=subprocess.DEVNULL, env=QUIET)
    hits: list[int] = []
    for number in range(KILLS):
        aim = (number + pick.random()) * ROWS / (KILLS + 1)  # rows that are to be there before the kill
        with subprocess.Popen([*embed, str(out)], stdout=subprocess.DEVNULL, env=QUIET) as process:
            while kept(out) < aim and process.poll() is None:
                time.sleep(0.001)
            time.sleep(pick.uniform(0, 0.02))
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL, "it had ended before the kill"
        hits.append(kept(out))
    assert hits == sorted(hits), "a kill lost rows that were kept"
    assert len(set(hits)) > KILLS // 2, hits
    last = subprocess.run([*embed, str(out), "--json"], check=True, capture_output=True, text=True, env=QUIET)
    assert json.loads(last.stdout.splitlines()[-1])["resumed_rows"] == hits[-1]
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.glob("x.npy*")) == ["x.npy"]


MEMORY = r"""
import re, sys
from pathlib import Path
from minibert.vectors import stream

class Watched(stream.GrowingFile):
    def append(self, *given):
        super().append(*given)
        print(self.rows, re.search(r"VmRSS:\s*(\d+) kB", Path("/proc/self/status").read_text())[1], flush=True)

stream.GrowingFile = Watched
stream.embed_file(sys.argv[1], sys.argv[2], sys.argv[3], pooling=sys.argv[4])
"""


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_memory_of_embed_is_flat_after_the_first_twenty_thousand_lines(tmp_path: Path, pooling: str) -> None:
    # One layer of MiniLM's width: the kernels, of which each new number of rows needs others, are as large as there.
    checkpoint = write_words_checkpoint(
        tmp_path / "words",
        hidden_size=384,
        num_hidden_layers=1,
        num_attention_heads=12,
        intermediate_size=1536,
        max_position_embeddings=64,
    )
    write_lines(tmp_path / "lines.txt")
    result = subprocess.run(
        [sys.executable, "-c", MEMORY, tmp_path / "lines.txt", tmp_path / "x.npy", checkpoint, pooling],
        check=True,
        capture_output=True,
        text=True,
        env=QUIET,
    )
    measured = [tuple(map(int, re.findall(r"\d+", line))) for line in result.stdout.splitlines()]
    assert measured[-1][0] == ROWS
    begun = next(memory for rows, memory in measured if rows >= 20_000)
    most = max(memory for rows, memory in measured if rows >= 20_000)
    print(f"{begun / 1024:.0f} MB after 20,000 lines, {most / 1024:.0f} MB at most")
    assert most <= 1.1 * begun
