"""Tagging: a label for each word, such as the kind of name that it is part of (Devlin et al. 2018, section 5.3).

    words     Redondo           Beach        Blvd
    tags      B-location        I-location   I-location
    tokens    red  ##ond  ##o   beach        b  ##l  ##vd
    labels    0    -100   -100  1            1  -100  -100

A file has a word and its tag on each line and an empty line between sentences. The tag of a word stands at its first
token and is read there again. There is always a tag for each word: those that have no token, because nothing of them
can be seen or because the sentence was cut, are O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from minibert.losses import IGNORED
from minibert.tasks.base import Encoded, Example, Logits, Measure, Task
from minibert.tasks.entities import OUTSIDE, entity_table, score_entities
from minibert.text.tables import Column, Table
from minibert.text.texts import as_texts
from minibert.text.tokenized import TokenStats
from minibert.text.tokenizer import Tokenizer

DOCUMENT = "-DOCSTART-"  # begins a document in CoNLL's files; no word


# ---------------------------------------------------------------------------------------------------------------
# Sentences


@dataclass(frozen=True)
class Sentences:
    """The words of sentences with their tags. Raises ValueError for a sentence with more or fewer tags than words.

    lines: of each sentence, the line in `name` on which its first word stands.
    """

    words: Sequence[Sequence[str]]
    tags: Sequence[Sequence[str]] | None = None  # None: to be predicted
    name: str = ""
    lines: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.tags is None:
            return
        if len(self.words) != len(self.tags):
            raise ValueError(f"there are {len(self.words)} sentences and the tags of {len(self.tags)}")
        for row, (words, tags) in enumerate(zip(self.words, self.tags, strict=True)):
            if len(words) != len(tags):
                raise ValueError(f"row {row} has {len(words)} words and {len(tags)} tags; each word needs one tag")

    def __len__(self) -> int:
        return len(self.words)

    def place(self, row: int, word: int) -> str:
        """Where a word stands, for a message."""
        return f"row {row}, word {word}," if self.lines is None else f"{self.name}, line {self.lines[row] + word},"

    @property
    def known_tags(self) -> Sequence[Sequence[str]]:
        """The tags. Raises ValueError where they are to be predicted."""
        if self.tags is None:
            raise ValueError("these sentences have no tags; to learn from them or to measure, each word needs one")
        return self.tags


def read_conll(path: str | Path) -> Sentences:
    """Sentences of a file (.gz too, - is standard input): the first column is the word, the last one its tag.

    Columns stand apart by a tab or, where a line has none, by spaces.
    """
    words: list[list[str]] = []
    tags: list[list[str]] = []
    lines: list[int] = []
    with Table(path, [Column("column", None)], format="txt") as file:
        before = 0
        for number, word, tag in rows_of((line for (line,) in file.rows()), file.name):
            if not words or number != before + 1:
                words.append([])
                tags.append([])
                lines.append(number)
            words[-1].append(word)
            tags[-1].append(tag)
            before = number
    if not words:
        raise ValueError(f"{file.name} holds no sentences; a word and its tag are wanted on each line")
    return Sentences(words, tags, file.name, lines)


def rows_of(lines: Iterable[str], name: str) -> Iterator[tuple[int, str, str]]:
    """The number of each line that has a word, the word and its tag. Raises ValueError for what is no such line."""
    width, first = 0, 0
    for number, line in enumerate(lines, 1):
        if not line.strip(" \t"):
            continue
        cells = line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]
        word, tag = cells[0].strip(" "), cells[-1].strip(" ")
        if word == DOCUMENT:
            continue
        where = f"{name}, line {number},"
        if len(cells) == 1:
            raise ValueError(f"{where} has one column, {word[:40]!r}; a word and its tag are wanted, by tab or space")
        width, first = (width, first) if width else (len(cells), number)
        if len(cells) != width:
            raise ValueError(f"{where} has {len(cells)} columns, {width} are expected, as in line {first}")
        if not word or not tag:
            raise ValueError(f"{where} has no {'tag' if word else 'word'}; a word and its tag are wanted")
        yield number, word, tag


# ---------------------------------------------------------------------------------------------------------------
# The task


@dataclass(frozen=True)
class Row:
    """Where the words of a sentence stand in its example, None for those that no token stands for."""

    has_example: bool  # False: none of its words has a token
    places: Sequence[int | None]


@dataclass(frozen=True)
class Tagging(Task):
    """A tag for each word of a sentence."""

    name = "tag"
    head = "token-classification"
    data_help = "one word and its tag a line, an empty line between sentences (CoNLL)"
    main = "f1"

    def read(self, path: str | Path) -> Sentences:
        """Sentences of a file with a word and its tag on each line: see read_conll."""
        return read_conll(path)

    def from_texts(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Sentences:
        """Sentences without tags: words are what white space parts."""
        if pairs is not None:
            raise ValueError("tags are given to the words of one text; leave the second texts out")
        return Sentences([text.split() for text in as_texts(texts)])

    def labels_of(self, data: Sentences) -> list[str]:
        """The tags in sorted order. Raises ValueError where there are none, or only one."""
        found = sorted({tag for tags in data.known_tags for tag in tags})
        if len(found) < 2:
            count = sum(map(len, data.words))
            what = f"all {count} tags are {found[0]!r}" if found else "there are no words"
            raise ValueError(f"{what}; to learn to tag, words of at least two tags are needed")
        return found

    def encode(self, data: Sentences, tokenizer: Tokenizer, labels: Sequence[str], max_length: int) -> Encoded:
        """An example for each sentence that has a token; the ends of those over max_length tokens are cut off."""
        max_length = tokenizer.resolve_max_length(max_length, pairs=False)
        numbers = None if data.tags is None else label_numbers(data, labels)
        examples: list[Example] = []
        rows: list[Row] = []
        lost = Lost(len(data), max_length)
        tokens = unknown = 0
        pieces = tokenizer.encode_each(data.words, words=True)
        bar = tqdm(pieces, "encoding", len(data), leave=False, unit="text", delay=2, disable=None)
        for row, text in enumerate(bar):
            ids = tokenizer.template.row(text.ids[: max_length - 2])
            whole = first_places(text.word_ids, len(data.words[row]))
            places = [None if place is None or place >= len(ids) - 1 else place for place in whole]
            lost.add(whole, places, len(text) + 2)
            tokens, unknown = tokens + len(text), unknown + text.ids.count(tokenizer.unk_id)
            rows.append(Row(len(ids) > 2, places))
            if rows[-1].has_example:
                known = {} if numbers is None else {"labels": spread(numbers[row], places, len(ids))}
                examples.append(Example(ids, [0] * len(ids), known))
        tokenizer.warn(TokenStats(len(data), tokens, unknown), max_length)
        return Encoded(examples, notes=lost.notes(), back=rows)

    def decode(
        self, logits: Sequence[Logits], encoded: Encoded, data: Sentences, labels: Sequence[str]
    ) -> list[list[str]]:
        """The best tag of each word, by its first token; O for a word without."""
        left = iter(logits)
        answers = []
        for row in encoded.back:
            best = next(left).argmax(axis=-1) if row.has_example else ()  # (tokens, K) -> (tokens)
            answers.append([OUTSIDE if place is None else labels[best[place]] for place in row.places])
        return answers

    def measure(self, answers: Sequence[Sequence[str]], data: Sentences, labels: Sequence[str]) -> Measure:
        """Precision, recall and F1 of entities, of each type too, and how many words have the right tag."""
        true = data.known_tags
        together, types = score_entities(true, answers)
        words = sum(map(len, true))
        right = sum(a == b for row, tags in zip(answers, true, strict=True) for a, b in zip(row, tags, strict=True))
        accuracy = right / words if words else 0.0
        said = [f"{accuracy:.3f} of {words:,} words have the right tag"]
        given = {tag for tags in answers for tag in tags}
        if len(given) == 1:
            said.append(f"every word was given the tag {min(given)}")
        figures: dict[str, Any] = {
            "f1": together.f1,
            "precision": together.precision,
            "recall": together.recall,
            "accuracy": accuracy,
            "sentences": len(true),
            "words": words,
            "entities": together.rows,
            "degenerate": len(given) == 1,
            "types": {type: asdict(one) for type, one in types.items()},
        }
        return Measure(figures, self.main, "\n".join([entity_table(together, types), "", *said]))

    def format_predictions(self, answers: Sequence[Sequence[str]], data: Sentences) -> list[str]:
        """A line for each word, the tag behind a tab, and an empty line after each sentence: a file as `read` reads."""
        found = []
        for words, tags in zip(data.words, answers, strict=True):
            found += [f"{word}\t{tag}" for word, tag in zip(words, tags, strict=True)]
            found.append("")
        return found


def label_numbers(data: Sentences, labels: Sequence[str]) -> list[list[int]]:
    """The number of each word's tag. Raises ValueError for a tag that is not among `labels`."""
    numbers = {label: number for number, label in enumerate(labels)}
    for row, tags in enumerate(data.known_tags):
        for word, tag in enumerate(tags):
            if tag not in numbers:
                raise ValueError(f"{data.place(row, word)} has the tag {tag!r}; known are: {', '.join(labels)}")
    return [[numbers[tag] for tag in tags] for tags in data.known_tags]


def first_places(word_ids: Sequence[int | None], words: int) -> list[int | None]:
    """The place of the first token of each word, counted from [CLS] as 0; None for a word without a token."""
    places: list[int | None] = [None] * words
    for place, word in reversed(list(enumerate(word_ids, 1))):
        if word is not None:
            places[word] = place
    return places


def spread(numbers: Sequence[int], places: Sequence[int | None], tokens: int) -> list[int]:
    """A label for each token: a word's at its first one, -100 everywhere else."""
    labels = [IGNORED] * tokens
    for number, place in zip(numbers, places, strict=True):
        if place is not None:
            labels[place] = number
    return labels


@dataclass
class Lost:
    """Words that the model does not see, counted."""

    sentences: int
    max_length: int
    too_long: int = 0  # sentences
    longest: int = 0  # tokens
    cut: int = 0  # words at the ends of these sentences
    vanished: int = 0  # words that no token stands for

    def add(self, whole: Sequence[int | None], kept: Sequence[int | None], tokens: int) -> None:
        """One more sentence: the places of its words before and after it was cut, its tokens before that."""
        self.too_long += tokens > self.max_length
        self.longest = max(self.longest, tokens)
        self.vanished += whole.count(None)
        self.cut += kept.count(None) - whole.count(None)

    def notes(self) -> tuple[str, ...]:
        """What a user should know."""
        found = []
        if self.too_long:
            found.append(
                f"{self.too_long:,} of {self.sentences:,} sentences are longer than {self.max_length} tokens (the "
                f"longest has {self.longest}): {self.cut:,} words at their ends were cut off and count as {OUTSIDE}"
            )
        if self.vanished:
            found.append(
                f"{self.vanished:,} words have nothing that can be seen (such as U+200B) and count as {OUTSIDE}"
            )
        return tuple(found)
