"""A corpus to pretrain on: one sentence a line, an empty line between documents; read in windows of the file.

    file -> windows of a few megabytes -> documents -> sentences as token ids

No more than a window and the one after it are ever held, so that a corpus of 10 GB takes no more memory than one of
10 MB. A document that a window's end cuts goes on in the next as one of its own.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from minibert.files import regular
from minibert.text.tokenizer import Tokenizer

WINDOW = 2 * 2**20  # bytes
LONGEST_LINE = 2**20  # bytes: no sentence is that long, a file without line ends is
HELD_OUT = 0.1  # of the bytes, where no file to be scored on is given,
MOST_HELD_OUT = 2**17  # but no more than these
PIECES, PIECE = 64, 2**16  # of the file are hashed, bytes each
ENDS = re.compile(r"(?<=[.?!])\s+")  # of sentences in a paragraph

Document = list[list[int]]  # sentences, each as token ids without special ones


@dataclass(frozen=True)
class Corpus:
    """The lines of a text file that begin at bytes start .. end - 1."""

    path: Path
    end: int
    start: int = 0
    paragraphs: bool = False  # a line is a paragraph, whose sentences are to be found: they end with . ? or !
    window: int = WINDOW

    @classmethod
    def of(cls, path: str | os.PathLike[str], paragraphs: bool = False) -> Corpus:
        """The whole file. Raises FileNotFoundError, and ValueError for what is no text that can be read in windows."""
        place = regular(Path(path))
        if place.suffix in (".gz", ".parquet", ".zip", ".bz2", ".xz"):
            raise ValueError(f"{place} is packed; a corpus is read from many places at once: unpack it first")
        size = place.stat().st_size
        if size == 0:
            raise ValueError(f"{place} is empty; a corpus has one sentence a line and an empty line between documents")
        return cls(place, size, paragraphs=paragraphs)

    @property
    def fingerprint(self) -> str:
        """The identity of what is in it: its size, and the hash of pieces from all over it, which takes no time."""
        digest = hashlib.sha256(f"{self.start} {self.end} {self.paragraphs}".encode())
        with self.path.open("rb") as file:
            for number in range(PIECES):
                file.seek(self.start + (self.end - self.start) * number // PIECES)
                digest.update(file.read(PIECE))
        return digest.hexdigest()

    @property
    def windows(self) -> int:
        """How many there are."""
        return -(-(self.end - self.start) // self.window)

    def for_ranks(self, ranks: int) -> Corpus:
        """In windows of which each of several ranks (distributed.py) has as many."""
        if ranks == 1:
            return self
        size = self.end - self.start
        each = -(-size // (self.window * ranks))
        return replace(self, window=-(-size // (each * ranks)))

    def split(self) -> tuple[Corpus, Corpus]:
        """What is learned from, and the end of the file, which is held out."""
        cut = self.end - min(int((self.end - self.start) * HELD_OUT), MOST_HELD_OUT)
        return replace(self, end=cut), replace(self, start=cut)

    def lines(self, number: int) -> Iterator[str]:
        """The lines that begin in a window. Raises ValueError, naming the byte, for what is no text."""
        first = self.start + number * self.window
        after = min(first + self.window, self.end)
        with self.path.open("rb") as file:
            if first:
                file.seek(first - 1)
                self.one_line(file)  # the end of a line that began before
            while (place := file.tell()) < after and (line := self.one_line(file)):
                yield decoded(line, self.path, place)

    def one_line(self, file: BinaryIO) -> bytes:
        """The next line. Raises ValueError where it is too long to be one."""
        place, line = file.tell(), file.readline(LONGEST_LINE + 1)
        if len(line) > LONGEST_LINE:
            raise ValueError(
                f"{self.path} has a line of more than {LONGEST_LINE:,} bytes, at byte {place:,}; a corpus has one "
                "sentence a line and an empty line between documents"
            )
        return line

    def documents(self, number: int) -> list[list[str]]:
        """The documents of a window, each a list of its sentences."""
        documents: list[list[str]] = [[]]
        for line in self.lines(number):
            if text := line.strip():
                documents[-1] += ENDS.split(text) if self.paragraphs else [text]
            elif documents[-1]:
                documents.append([])
        return [document for document in documents if document]

    def tokenized(self, number: int, tokenizer: Tokenizer) -> list[Document]:
        """The documents of a window as token ids; lines of which nothing is left are dropped."""
        documents = self.documents(number)
        made = iter(ids_of([line for document in documents for line in document], tokenizer))
        found = [[ids for ids in (next(made) for _ in document) if ids] for document in documents]
        return [document for document in found if document]


def decoded(line: bytes, path: Path, place: int) -> str:
    """A line as text. Raises ValueError, naming the byte, for anything else."""
    try:
        text = line.decode("utf-8-sig" if place == 0 else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text: byte {place + error.start:,} ({error.reason})") from None
    if "\0" in text:
        raise ValueError(f"{path} is no text: byte {place + line.index(0):,} is zero")
    return text


def ids_of(lines: Sequence[str], tokenizer: Tokenizer) -> Iterator[list[int]]:
    """The token ids of each line, without special ones."""
    return (made.ids for made in tokenizer.encode_each(lines))
