"""A checkpoint of a few words, with its tokenizer, and labelled texts that are easy to tell apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helpers import write_checkpoint

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
GOOD, BAD, OTHER = ["good", "fine", "lovely"], ["bad", "dull", "awful"], ["film", "book", "play", "meal", "very", "the"]
WORDS = GOOD + BAD + OTHER


def write_words_checkpoint(folder: Path, family: str = "bert", head: str | None = None, **sizes: Any) -> Path:
    """A random checkpoint whose vocabulary is WORDS and the letters."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    vocabulary = SPECIAL + WORDS + letters + ["##" + letter for letter in letters]
    write_checkpoint(folder, family, head, **{"vocab_size": len(vocabulary), "num_labels": 2} | sizes)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    return folder


def labelled(rows: int = 24) -> tuple[list[str], list[str]]:
    """Texts with a good or a bad word, in turn, and the label "pos" or "neg"."""
    texts = []
    for row in range(rows):
        words = BAD if row % 2 else GOOD
        texts.append(f"the {OTHER[row % 4]} very {words[row % 3]} {OTHER[row // 4 % 4]}")
    return texts, ["neg" if row % 2 else "pos" for row in range(rows)]


def write_tsv(path: Path, rows: int = 24) -> Path:
    """The labelled texts as a file."""
    texts, labels = labelled(rows)
    lines = [f"{text}\t{label}\n" for text, label in zip(texts, labels, strict=True)]
    path.write_text("".join(lines), encoding="utf-8")
    return path
