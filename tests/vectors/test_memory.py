"""`embed_file` of 60,000 lines: memory stays flat after the first 20,000, those of the kernels included."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from words import BAD, GOOD, OTHER, write_words_checkpoint

ROWS = 60_000
MEMORY = r"""
import re, sys
from pathlib import Path
from minibert.vectors import stream

add = stream.Parts.add

def watched(self, *given):
    add(self, *given)
    print(self.rows, re.search(r"VmRSS:\s*(\d+) kB", Path("/proc/self/status").read_text())[1], flush=True)

stream.Parts.add = watched
stream.embed_file(sys.argv[1], sys.argv[2], sys.argv[3], pooling=sys.argv[4])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
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
    pick, words = random.Random(0), GOOD + BAD + OTHER  # short lines, of 0 to 12 words
    lines = (" ".join(pick.choices(words, k=pick.randrange(13))) for _ in range(ROWS))
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in lines))
    result = subprocess.run(
        [sys.executable, "-c", MEMORY, tmp_path / "lines.txt", tmp_path / "x.npy", checkpoint, pooling],
        check=True,
        capture_output=True,
        text=True,
    )
    measured = [tuple(map(int, re.findall(r"\d+", line))) for line in result.stdout.splitlines()]
    assert measured[-1][0] == ROWS
    first = next(memory for rows, memory in measured if rows >= 20_000)
    most = max(memory for rows, memory in measured if rows >= 20_000)
    print(f"{first / 1024:.0f} MB after 20,000 lines, {most / 1024:.0f} MB at most")
    assert most <= 1.1 * first
