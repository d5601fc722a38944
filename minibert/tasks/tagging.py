"""Tagging: a label for each word, such as the type of entity it belongs to (Devlin et al. 2018, section 5.3).

    words     Redondo           Beach        Blvd
    tags      B-location        I-location   I-location
    tokens    red  ##ond  ##o   beach        b  ##l  ##vd
    labels    0    -100   -100  1            1  -100  -100

A file has a word and its tag on each line and an empty line between sentences. A word is labelled, and its prediction
read, at its first token. Every word gets a tag: a word without tokens, because it is invisible or the sentence was
truncated, gets O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tqdm import tqdm

from minibert.losses import IGNORED
from minibert.tasks.base import Encoded, Example, Logits, Measure, Task
from minibert.tasks.entities import OUTSIDE, score_entities
from minibert.tasks.metrics import class_table
from minibert.text.tables import Column, Table
from minibert.text.texts import as_texts
from minibert.text.tokenized import TokenStats
from minibert.text.tokenizer import Tokenizer

DOCUMENT = "-DOCSTART-"  # begins a document in CoNLL files; not a word


@dataclass(frozen=True)
class Sentences:
    """The words of sentences, tagged or not. Raises ValueError where words and tags differ in number."""

    words: Sequence[Sequence[str]]
    tags: Sequence[Sequence[str]] | None = None

    def __post_init__(self) -> None:
        pairs = enumerate(zip_longest(self.words, self.words if self.tags is None else self.tags, fillvalue=()))
        if wrong := [row for row, (words, tags) in pairs if len(words) != len(tags)]:
            raise ValueError(f"row {wrong[0]} has not as many tags as words; each word needs one tag")

    def __len__(self) -> int:
        return len(self.words)

    @property
    def known_tags(self) -> Sequence[Sequence[str]]:
        """The tags. Raises ValueError for untagged sentences."""
        if self.tags is None:
            raise ValueError("these sentences have no tags; training and evaluation need one for each word")
        return self.tags


# ---------------------------------------------------------------------------------------------------------------
# The task


@dataclass(frozen=True)
class Tagging(Task):
    """A tag for each word of a sentence."""

    name = "tag"
    head = "token-classification"
    main = "f1"
    data_help = "one word and its tag a line, an empty line between sentences (CoNLL)"

    def read(self, path: str | Path) -> Sentences:
        """Sentences of a file (.gz too, - is standard input): the first column is the word, the last one its tag.

        Columns are separated by tabs or, in a line without tabs, by spaces. Raises ValueError with the line.
        """
        words: list[list[str]] = []
        tags: list[list[str]] = []
        width, last = 0, -1
        with Table(path, [Column("column", None)], format="txt") as file:
            for number, (line,) in enumerate(file.rows(), 1):
                cells = line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]
                if not line.strip(" \t") or cells[0].strip(" ") == DOCUMENT:
                    continue
                word, tag, width = cells[0].strip(" "), cells[-1].strip(" "), width or len(cells)
                if len(cells) != width or width == 1 or not word or not tag:
                    raise ValueError(
                        f"{file.name}, line {number}, is {line[:40]!r}; it must have a word and its tag, in "
                        f"{max(width, 2)} columns separated by tabs or spaces"
                    )
                if number != last + 1:
                    words.append([])
                    tags.append([])
                words[-1].append(word)
                tags[-1].append(tag)
                last = number
        if not words:
            raise ValueError(f"{file.name} holds no sentences; each line needs a word and its tag")
        return Sentences(words, tags)

    def from_texts(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Sentences:
        """Untagged sentences, split into words at white space."""
        if pairs is not None:
            raise ValueError("tagging takes one text a row; leave out the second texts")
        return Sentences([text.split() for text in as_texts(texts)])

    def labels_of(self, data: Sentences) -> list[str]:
        """The tags, sorted. Raises ValueError for less than two."""
        found = sorted({tag for tags in data.known_tags for tag in tags})
        if len(found) < 2:
            raise ValueError(
                f"{sum(map(len, data.words))} words have the tags {found}; training needs at least two tags"
            )
        return found

    def encode(self, data: Sentences, tokenizer: Tokenizer, labels: Sequence[str], max_length: int) -> Encoded:
        """An example for each sentence that has a token, truncated to max_length tokens.

        `back` has for each sentence the position of each word's first token, None for a word without one.
        """
        max_length = tokenizer.resolve_max_length(max_length, pairs=False)
        numbers = None if data.tags is None else label_numbers(data, labels)
        examples: list[Example] = []
        back: list[list[int | None]] = []
        lengths: list[int] = []  # tokens of each sentence
        tokens = unknown = invisible = 0
        pieces = tokenizer.encode_each(data.words, words=True)
        for row, text in enumerate(
            tqdm(pieces, "encoding", len(data), leave=False, unit="text", delay=2, disable=None)
        ):
            ids = tokenizer.template.row(text.ids[: max_length - 2])
            first: dict[int | None, int] = {}
            for place, word in enumerate(text.word_ids, 1):
                first.setdefault(word, place)
            found = [first.get(word) for word in range(len(data.words[row]))]
            back.append([place if place is not None and place < len(ids) - 1 else None for place in found])
            lengths.append(len(text) + 2)
            invisible += found.count(None)
            tokens, unknown = tokens + len(text), unknown + text.ids.count(tokenizer.unk_id)
            if len(ids) > 2:
                known = {} if numbers is None else {"labels": token_labels(numbers[row], back[-1], len(ids))}
                examples.append(Example(ids, [0] * len(ids), known))
        tokenizer.warn(TokenStats(len(data), tokens, unknown), max_length)
        notes = []
        if long := sum(length > max_length for length in lengths):
            cut = sum(row.count(None) for row in back) - invisible
            notes.append(
                f"{long:,} of {len(data):,} sentences are longer than {max_length} tokens (the longest has "
                f"{max(lengths)}): {cut:,} words were truncated and count as {OUTSIDE}"
            )
        if invisible:
            notes.append(f"{invisible:,} words are invisible (such as U+200B) and count as {OUTSIDE}")
        return Encoded(examples, notes=tuple(notes), back=back)

    def decode(
        self, logits: Sequence[Logits], encoded: Encoded, data: Sentences, labels: Sequence[str]
    ) -> list[list[str]]:
        """The best tag of each word at its first token; O for a word without tokens."""
        remaining = iter(logits)
        answers = []
        for places in encoded.back:
            best = next(remaining).argmax(axis=-1) if any(places) else ()  # (tokens, K) -> (tokens)
            answers.append([OUTSIDE if place is None else labels[best[place]] for place in places])
        return answers

    def measure(self, answers: Sequence[Sequence[str]], data: Sentences, labels: Sequence[str]) -> Measure:
        """Precision, recall and F1 of entities, overall and by type, and the accuracy over words."""
        true = data.known_tags
        overall, types = score_entities(true, answers)
        words = sum(map(len, true))
        right = sum(a == b for row, tags in zip(answers, true, strict=True) for a, b in zip(row, tags, strict=True))
        predicted = {tag for tags in answers for tag in tags}
        figures: dict[str, Any] = {
            "f1": overall.f1,
            "precision": overall.precision,
            "recall": overall.recall,
            "accuracy": right / max(words, 1),
            "sentences": len(true),
            "words": words,
            "entities": overall.rows,
            "degenerate": len(predicted) == 1,
            "types": {type: asdict(one) for type, one in types.items()},
        }
        text = class_table("entities", {**types, "all": overall}, "entities")
        text += "\n\nthe tags of {accuracy:.3f} of {words:,} words are right".format(**figures)
        if len(predicted) == 1:
            text += f"\nevery word got the tag {min(predicted)}"
        return Measure(figures, self.main, text)

    def format_predictions(self, answers: Sequence[Sequence[str]], data: Sentences) -> list[str]:
        """A line for each word and its tag, an empty line after each sentence: a file for `read`."""
        found = []
        for words, tags in zip(data.words, answers, strict=True):
            found += [*(f"{word}\t{tag}" for word, tag in zip(words, tags, strict=True)), ""]
        return found


def label_numbers(data: Sentences, labels: Sequence[str]) -> list[list[int]]:
    """The number of each word's tag. Raises ValueError for an unknown tag."""
    numbers = {label: number for number, label in enumerate(labels)}
    for row, tags in enumerate(data.known_tags):
        for word, tag in enumerate(tags):
            if tag not in numbers:
                raise ValueError(f"row {row}, word {word}, has the tag {tag!r}; known are: {', '.join(labels)}")
    return [[numbers[tag] for tag in tags] for tags in data.known_tags]


def token_labels(numbers: Sequence[int], places: Sequence[int | None], tokens: int) -> list[int]:
    """A label for each token: the word's at its first token, -100 elsewhere."""
    labels = [IGNORED] * tokens
    for number, place in zip(numbers, places, strict=True):
        if place is not None:
            labels[place] = number
    return labels
