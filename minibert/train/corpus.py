"""A corpus for pretraining: one sentence per line, an empty line between documents; read in windows of the file.

    file -> windows of a few megabytes -> documents -> sentences as token ids

At most two windows are in memory, so a corpus of 10 GB takes no more memory than one of 10 MB. A document that crosses
the end of a window continues in the next as a document of its own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from minibert.text.tokenizer import Tokenizer
from minibert.utils.files import AnyPath, regular, user_path

WINDOW = 2 * 2**20  # bytes
LONGEST_LINE = 2**20  # bytes: no sentence is that long, but a file without line ends is
HELD_OUT = 0.1  # of the bytes, if no held-out file is given
MOST_HELD_OUT = 2**17  # bytes
PIECES = 64  # of the file, which the fingerprint reads
PIECE = 2**16  # bytes
NOT_TEXT = re.compile("[\0\udc80-\udcff]")  # a zero byte, or one that is not UTF-8
ENDS = re.compile(r"(?<=[.?!])\s+")  # of sentences in a paragraph
FORMAT = "a corpus has one sentence per line and an empty line between documents"

Document = list[list[int]]  # sentences, each as token ids without special tokens


@dataclass(frozen=True)
class CorpusFile:
    """The lines of a text file that begin at bytes start .. end - 1."""

    path: Path
    end: int
    start: int = 0
    paragraphs: bool = False  # each line is a paragraph; its sentences end with . ? or !
    window: int = WINDOW

    @classmethod
    def of(cls, path: AnyPath, paragraphs: bool = False) -> CorpusFile:
        """Return the whole file. Raises FileNotFoundError for a missing file."""
        file = regular(user_path(path))
        return cls(file, file.stat().st_size, paragraphs=paragraphs)

    @property
    def fingerprint(self) -> str:
        """The identity of the content: its size, and the hash of pieces from all over it."""
        digest = hashlib.sha256(f"{self.start} {self.end} {self.paragraphs}".encode())
        with self.path.open("rb") as file:
            for number in range(PIECES):
                file.seek(self.start + (self.end - self.start) * number // PIECES)
                digest.update(file.read(PIECE))
        return digest.hexdigest()

    @property
    def windows(self) -> int:
        """The number of windows."""
        return -(-(self.end - self.start) // self.window)

    def for_ranks(self, ranks: int) -> CorpusFile:
        """Return the file with windows of a size that gives each rank (distributed.py) the same number of them."""
        size = self.end - self.start
        each = -(-size // (self.window * ranks))
        return self if ranks == 1 else replace(self, window=-(-size // (each * ranks)))

    def split(self) -> tuple[CorpusFile, CorpusFile]:
        """Return the training text, and the end of the file, which is held out."""
        cut = self.end - min(int((self.end - self.start) * HELD_OUT), MOST_HELD_OUT)
        return replace(self, end=cut), replace(self, start=cut)

    def lines(self, number: int) -> Iterator[str]:
        """Yield the lines that begin in a window. Raises ValueError, naming the byte, for a file that is not text."""
        first = self.start + number * self.window
        with self.path.open("rb") as file:
            if first:
                file.seek(first - 1)
                file.readline(LONGEST_LINE + 1)  # the end of a line of the window before
            after = min(first + self.window, self.end)
            while (begin := file.tell()) < after and (line := file.readline(LONGEST_LINE + 1)):
                text = line.decode("utf-8-sig" if begin == 0 else "utf-8", "surrogateescape")
                if len(line) > LONGEST_LINE or NOT_TEXT.search(text):
                    problem = f"the line at byte {begin:,} is another encoding, or over {LONGEST_LINE:,} bytes long"
                    raise ValueError(f"{self.path} is not UTF-8 text, or compressed: {problem}; {FORMAT}")
                yield text

    def documents(self, number: int) -> list[list[str]]:
        """Return the documents of a window, each a list of its sentences."""
        documents: list[list[str]] = [[]]
        for line in self.lines(number):
            if text := line.strip():
                documents[-1] += ENDS.split(text) if self.paragraphs else [text]
            elif documents[-1]:
                documents.append([])
        return [document for document in documents if document]

    def tokenized(self, number: int, tokenizer: Tokenizer) -> list[Document]:
        """Return the documents of a window as token ids; sentences without tokens are dropped."""
        documents = self.documents(number)
        lines = (line for document in documents for line in document)
        encodings = tokenizer.encode_each(lines, details=False)
        with_tokens = [[ids for ids in (next(encodings).ids for _ in document) if ids] for document in documents]
        return [document for document in with_tokens if document]
