"""Sentences of words and their tags, and the files that have them.

    # a comment                       a line for each word, an empty line between sentences; columns are separated by
    Ann    NNP   B-person             tabs or, in a line without tabs, by spaces, in a .csv by commas
    left   VBD   O

    {"words": ["Ann", "left"], "tags": ["B-person", "O"]}     or a sentence in each row: .jsonl, .json, .parquet

In a line the word is the first column and the tag the last, unless `columns` names others, or a header such as "id word
pos ner" names the word's. A line that begins with # is a comment, except in a .csv; lines 1-2 and 1.1 of CoNLL-U are
not words.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, groupby, zip_longest
from typing import Any, NamedTuple

from minibert.tables.columns import listed
from minibert.tables.formats import CANDIDATES, DELIMITERS, settings_by_name
from minibert.tables.reading import Table
from minibert.tasks.entities import OUTSIDE, PREFIXES
from minibert.tasks.settings import TaggingSettings
from minibert.utils.printing import brief, counted
from minibert.utils.wording import advice

DOCUMENT = "-DOCSTART-"  # begins a document in CoNLL files; not a word
WORDS = ("word", "words", "token", "tokens", "form")  # usual names of columns, the likeliest first
TAGS = ("ner_tags", "ner_tag", "ner", "tags", "tag", "labels", "label", "entity", "pos_tags", "pos", "upos")
CONLL_U = 10  # columns
NO_WORD = re.compile(r"\d+[-.]\d+", re.ASCII)  # a line of CoNLL-U
JSON = re.compile(r"\s*\[?\{.*\}\]?,?\s*")  # a line of a .jsonl
MOST_SPACES = 1  # in a word, on average: "New York" may be one
WRONG_TASK = "; texts with a label each are for the task classify, JSON for answer or choose"


@dataclass(frozen=True)
class Sentences:
    """The words of sentences, tagged or not. Raises ValueError if words and tags differ in number."""

    words: Sequence[Sequence[str]]
    tags: Sequence[Sequence[str]] | None = None
    texts: Sequence[str] = ()  # of raw texts, and where the words are in them: characters start .. end - 1
    places: Sequence[Sequence[tuple[int, int]]] = ()
    notes: tuple[str, ...] = ()  # on how a file was read

    def __post_init__(self) -> None:
        pairs = enumerate(zip_longest(self.words, self.words if self.tags is None else self.tags, fillvalue=()))
        if wrong := [row for row, (words, tags) in pairs if len(words) != len(tags)]:
            raise ValueError(
                f"row {wrong[0]} has a different number of words and tags; every word needs exactly one tag"
            )

    def __len__(self) -> int:
        return len(self.words)

    @property
    def known_tags(self) -> Sequence[Sequence[str]]:
        """The tags. Raises ValueError for untagged sentences."""
        if self.tags is None:
            raise ValueError("these sentences have no tags; training and evaluation need one for each word")
        return self.tags


def read_sentences(path: Any, how: TaggingSettings, tagged: bool = True) -> Sentences:
    """Return the sentences of a file, or of rows in memory; compressed too, - is standard input.

    tagged: False also reads words without tags, as O. Raises FileNotFoundError, and ValueError, with the line or row,
    for anything but words and tags.
    """
    settings = settings_by_name(path, "txt", how.format, encoding=how.encoding)
    format = settings.format_of(path)
    lines = format in ("txt", *DELIMITERS)
    with Table(path, [], replace(settings, format="txt") if lines else settings, whole=True) as file:
        sentences = from_lines(file, how, format == "csv", tagged) if lines else from_objects(file, how)
    if not any(sentences.words):
        raise ValueError(f"{file.name} holds no sentences; each line needs a word and its tag")
    if how.tag_names is None:
        return sentences
    return replace(
        sentences, tags=[[tag_name(tag, how.tag_names, file.name) for tag in tags] for tags in sentences.known_tags]
    )


def tag_name(tag: str, names: Sequence[str], file: str) -> str:
    """Return the name of a tag that is a number; a name is itself. Raises ValueError for any other tag."""
    if tag in names:
        return tag
    if not tag.isdecimal() or int(tag) >= len(names):
        raise ValueError(f"{file} has the tag {brief(tag)}; tag_names has names of the numbers 0 to {len(names) - 1}")
    return names[int(tag)]


def untagged(words: Sequence[Sequence[str]]) -> Sentences:
    """Return sentences of these words, to be tagged; the text of each is its words with spaces between them."""
    places = list[list[tuple[int, int]]]()
    for row in words:
        ends = list(accumulate(len(word) + 1 for word in row))
        places.append([(end - 1 - len(word), end - 1) for word, end in zip(row, ends, strict=True)])
    return Sentences(words, None, [" ".join(row) for row in words], places)


# ---------------------------------------------------------------------------------------------------------------
# A sentence in each row


def from_objects(file: Table, how: TaggingSettings) -> Sentences:
    """Return the sentences of rows that are objects, with a list of words and a list of tags; numbers are tags too."""
    words, tags = list[list[str]](), list[list[str]]()
    numbers = False
    for place, record in file.records():
        cells = record if isinstance(record, dict) else {}
        columns = how.columns or [
            next((name for name in usual if name in cells), "") for usual in ((*WORDS, "1"), (*TAGS, "2"))
        ]  # the cells of a tuple are called 1 and 2
        row, given = map(cells.get, columns)
        if not isinstance(row, list) or not isinstance(given, list):
            raise ValueError(
                f"{place} is {brief(record)}; it needs a list of words and a list of tags, such as "
                '{"words": ["Ann"], "tags": ["B-person"]}' + advice("; {} chooses other names", columns=...)
            )
        if len(row) != len(given):
            counts = f"{counted(len(row), 'word')} and {counted(len(given), 'tag')}"
            raise ValueError(f"{place} has {counts}; each word needs one tag")
        if wrong := [item for item in row if not isinstance(item, str)] + [item for item in given if not is_tag(item)]:
            raise ValueError(f"{place} has {brief(wrong[0])}; words are texts, tags are texts or numbers")
        words.append(row)
        tags.append(list(map(str, given)))
        numbers = numbers or any(isinstance(item, int) for item in given)
    note = "tags that are numbers are their own names; tag_names (--tag-names O,B-PER) names them"
    return Sentences(words, tags, notes=(note,) if numbers and how.tag_names is None else ())


def is_tag(value: object) -> bool:
    """Return whether this is a name or a number."""
    return (isinstance(value, str) and bool(value.strip())) or (isinstance(value, int) and not isinstance(value, bool))


# ---------------------------------------------------------------------------------------------------------------
# A word in each line


class Line(NamedTuple):
    """A line of a file, from 1, and its columns; none: it ends a sentence."""

    number: int
    text: str
    cells: list[str]


def from_lines(file: Table, how: TaggingSettings, in_csv: bool, tagged: bool) -> Sentences:
    """Return the sentences of lines, each a word and its tag."""
    every = list(lines_of(file, in_csv))
    lines = [line for line in every if in_csv or not is_comment(line)]
    if not tagged and all(len(line.cells) <= 1 for line in lines):
        how = replace(how, columns=None)  # of training
        lines = [line._replace(cells=[*line.cells, OUTSIDE]) if line.cells else line for line in lines]
    first = next((line for line in lines if line.cells), None)
    if first is None:
        return Sentences([], [])
    *columns, header = word_and_tag(first.cells, how, file.name)
    lines = [line for line in lines if line is not first or not header]
    check_lines(lines, max(len(first.cells), 2), columns, file.name)
    groups = [list(group) for is_word, group in groupby(lines, key=lambda line: bool(line.cells)) if is_word]
    words, tags = ([[line.cells[column] for line in group] for group in groups] for column in columns)
    check_words(words, tags, file.name)
    left_out = len(every) - len(lines) - header
    note = f"{counted(left_out, 'line')} left out: comments, which begin with #, and 1-2 or 1.1 of CoNLL-U"
    return Sentences(words, tags, notes=(note,) if left_out else ())


def lines_of(file: Table, in_csv: bool) -> Iterator[Line]:
    """Yield the lines with their columns, none for a line that ends a sentence or a document."""
    delimiter = ""
    for number, (_, record) in enumerate(file.records(), 1):
        text = str(record)
        delimiter = delimiter or max(CANDIDATES, key=text.count)  # of a .csv
        if in_csv:
            cells = next(csv.reader([text], delimiter=delimiter), [])
        else:
            cells = text.split("\t") if "\t" in text else re.findall("[^ ]+", text)
        cells = [cell.strip(" ") for cell in cells]
        yield Line(number, text, [] if not any(cells) or DOCUMENT in cells else cells)


def is_comment(line: Line) -> bool:
    """Return whether a line is no word: it begins with #, or is a range or an empty node of CoNLL-U."""
    return line.text.startswith("#") or (len(line.cells) == CONLL_U and NO_WORD.fullmatch(line.cells[0]) is not None)


def word_and_tag(first: list[str], how: TaggingSettings, name: str) -> tuple[int, int, bool]:
    """Return the columns of word and tag, from 0, and whether the first line is a header, which has their names.

    Raises ValueError for a chosen column that is not there.
    """
    if how.columns is not None:
        word, tag = (place_of(column, first, name) for column in how.columns)
        return word, tag, any(isinstance(column, str) for column in how.columns)
    names = [cell.lower() for cell in first]
    named = [column for column, cell in enumerate(names) if cell in WORDS]
    header = bool(named) and names[-1] in TAGS
    return named[0] if header else 0, -1, header


def place_of(column: str | int, first: list[str], name: str) -> int:
    """Return the place of a column, from 0. Raises ValueError if it is not there."""
    if isinstance(column, str):
        if first.count(column) == 1:
            return first.index(column)
        raise ValueError(f"{name} has no column {brief(column)} in its first line, or two; it has: {listed(first)}")
    if column == 0 or not -len(first) <= column <= len(first):
        raise ValueError(
            f"columns has {column}, and {name} has {counted(len(first), 'column')}, from 1 on; -1 is the last"
        )
    return column - 1 if column > 0 else column


def check_lines(lines: Sequence[Line], width: int, columns: Sequence[int], name: str) -> None:
    """Raise ValueError for a line that is neither empty nor a word and its tag."""
    word, tag = columns
    for line in lines:
        has_both = len(line.cells) == width and line.cells[word] and line.cells[tag][:1] not in ("", "[")
        fits = not line.cells or has_both
        if not fits or JSON.fullmatch(line.text):
            raise ValueError(
                f"{name}, line {line.number}, is {line.text[:40]!r}; a word and its tag need {width} columns separated "
                f"by tabs or spaces, in a .csv by commas (is a quote not closed?){WRONG_TASK}, or for this task in a "
                "file whose name ends in .jsonl"
            )


def check_words(sentences: Sequence[Sequence[str]], tags: Sequence[Sequence[str]], name: str) -> None:
    """Raise ValueError if the words are texts or numbers, or if the first line is a header."""
    words = list(chain.from_iterable(sentences))
    first, *others = chain.from_iterable(tags)
    if sum(word.count(" ") for word in words) > MOST_SPACES * len(words):
        raise ValueError(
            f"{name} has texts in place of words, such as {words[0][:40]!r}; each line needs a word and its tag"
            f"{WRONG_TASK}"
        )
    if all(word.isdecimal() for word in words):
        raise ValueError(
            f"{name} has numbers in place of words, such as {words[0][:40]!r}; choose the columns of word and tag"
            + advice(", as {} for CoNLL-U", columns=(2, 4))
        )
    if set(others) - {OUTSIDE} and all(map(is_usual, others)) and not is_usual(first):
        raise ValueError(
            f"{name} begins with a header, {words[0]!r} and {first!r}, or with a tag unlike the others; name the "
            "columns of the header" + advice(": {}", columns=(words[0], first))
        )


def is_usual(tag: str) -> bool:
    """Return whether a tag is O, or has a prefix such as B-."""
    return tag == OUTSIDE or (len(tag) > 2 and tag[0] in PREFIXES and tag[1] == "-")
