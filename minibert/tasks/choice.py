"""Multiple choice: a question, and which of C texts answers it or goes on from it (Devlin et al. 2018, section 4.4).

    {"question": "The sky is", "choices": ["blue.", "a fish."], "label": 0}

    [CLS] the sky is [SEP] blue. [SEP]      score 3.1
    [CLS] the sky is [SEP] a fish. [SEP]    score 0.4      p = softmax over the choices

Each choice is written out behind its question as a pair, and scored by itself. A context, a passage that the question
is about, stands before the question. Of a pair that is too long the longer text is cut first: the context, with the
question behind it, at its beginning, the choice at its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from minibert.printing import block
from minibert.settings import setting
from minibert.tasks.base import Encoded, Example, Logits, Measure, Task
from minibert.tasks.classification import one_line
from minibert.tasks.labels import finite, softmax
from minibert.tasks.metrics import standard_error
from minibert.tasks.reviews import check_there
from minibert.text.tables import (
    STANDARD_INPUT,
    Column,
    decompressed,
    format_of,
    kind_of,
    opened,
    read_json_array,
    read_json_lines,
    value,
)
from minibert.text.texts import as_texts
from minibert.text.tokenized import shares
from minibert.text.tokenizer import Tokenizer

EXAMPLE = '{"question": "The sky is", "choices": ["blue.", "a fish."], "label": 0}'


@dataclass(frozen=True)
class Question:
    """A question, what may answer it, and which of that does. Raises ValueError for a label that is no choice."""

    question: str
    choices: tuple[str, ...]  # C, at least 2
    label: int | None = None  # the number of the right choice, from 0; None: to be answered
    context: str = ""
    place: str = "a question"  # where it stands, for messages

    def __post_init__(self) -> None:
        if len(self.choices) < 2:
            raise ValueError(f"{self.place} has {len(self.choices)} choices; at least 2 are needed")
        if self.label is not None and not 0 <= self.label < len(self.choices):
            raise ValueError(f"{self.place} has the label {self.label}, and choices 0 to {len(self.choices) - 1}")

    @property
    def first(self) -> str:
        """What stands before each choice."""
        return f"{self.context} {self.question}" if self.context else self.question


@dataclass(frozen=True)
class Chosen:
    """The most probable choice."""

    number: int  # from 0
    choice: str
    probability: float
    probabilities: tuple[float, ...]  # (C); their sum is 1


# ---------------------------------------------------------------------------------------------------------------
# Reading


def read_records(path: str | Path, format: str | None = None) -> Iterator[tuple[str, object]]:
    """What stands on each line of a .jsonl, or in the array of a .json, with its place. - is standard input."""
    check_there(path, "questions")
    name = STANDARD_INPUT if str(path) == "-" else str(path)
    found, compressed = format_of(name, "jsonl" if name == STANDARD_INPUT and format is None else format)
    if found not in ("jsonl", "json"):
        raise ValueError(f"{name} is read as .{found}; questions are a .jsonl, one on each line, such as {EXAMPLE}")
    with opened(path) as file, decompressed(file, name) if compressed else nullcontext(file) as stream:
        yield from read_json_lines(stream, name) if found == "jsonl" else read_json_array(stream, name)


def questions(records: Iterable[tuple[str, object]], labels: bool) -> list[Question]:
    """The questions of records with their places. Raises ValueError, naming the place, for what is none.

    labels: the right choice is wanted; without, it is not looked at. All questions must have as many choices.
    """
    found = [question_of(record, place, labels) for place, record in records]
    check_counts(found)
    return found


def check_counts(data: Sequence[Question]) -> None:
    """Raise ValueError, naming two questions, where one has another number of choices than the first."""
    for one in data:
        if len(one.choices) != len(data[0].choices):
            raise ValueError(
                f"{one.place} has {len(one.choices)} choices, and {data[0].place} has {len(data[0].choices)}; "
                "all questions need the same number of them"
            )


def question_of(record: object, place: str, label: bool) -> Question:
    """One question."""
    if not isinstance(record, dict):
        raise ValueError(f"{place} is {kind_of(record)}, not an object of names and values such as {EXAMPLE}")
    text, given = value(record, "question", Column("question"), place), record.get("choices")
    context = "" if record.get("context") is None else value(record, "context", Column("context"), place)
    if not isinstance(given, list):
        what = "no choices" if given is None else f"{kind_of(given)} as 'choices'"
        raise ValueError(f"{place} has {what}; a list of texts is wanted")
    named = {f"choices[{number}]": choice for number, choice in enumerate(given)}
    choices = tuple(value(named, name, Column("choice"), place) for name in named)
    if blank := [name for name, choice in zip(named, choices, strict=True) if not choice.strip()]:
        raise ValueError(f"{place} has no text as {blank[0]!r}; each choice needs one")
    right = right_choice(record, choices, place) if label else None
    return Question(text, choices, right, context, place)


def right_choice(record: dict[str, object], choices: Sequence[str], place: str) -> int:
    """The number of the right choice, which is given by its number, from 0, or by its text."""
    if record.get("label") is None:
        raise ValueError(f"{place} has no label; it is the number of the right choice, from 0, or its text")
    label = record["label"]
    if isinstance(label, str):
        if choices.count(label) != 1:
            many = f"{choices.count(label)} of the choices" if label in choices else "none of the choices"
            raise ValueError(
                f"{place} has the label {label!r}, which is {many}; give the number of the right one, from 0"
            )
        return choices.index(label)
    if not isinstance(label, int) or isinstance(label, bool):
        raise ValueError(f"{place} has {kind_of(label)} as 'label', not the number of the right choice or its text")
    return label


# ---------------------------------------------------------------------------------------------------------------
# The task


@dataclass(frozen=True)
class Choice(Task):
    """The right one of C choices. format: of a file whose name does not say it, jsonl or json."""

    format: str | None = setting(None, "jsonl or json (default: by the file name)", metavar="TYPE")

    name = "choose"
    head = "multiple-choice"
    data_help = 'JSON lines of {"question", "choices": [...], "label"}'
    main = "accuracy"

    def read(self, path: str | Path) -> list[Question]:
        """Questions with the right choice of each: objects of "question", "choices", "label" and perhaps "context"."""
        found = questions(read_records(path, self.format), labels=True)
        if not found:
            raise ValueError(f"{path} holds no questions; one is wanted on each line, such as {EXAMPLE}")
        return found

    def from_texts(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Question]:
        """Questions to be answered: each text is one as in a file; a label is not looked at."""
        if pairs is not None:
            raise ValueError(f"a question holds its choices; leave the second texts out, and write it as {EXAMPLE}")
        return questions(((f"row {row}", parsed(text, row)) for row, text in enumerate(as_texts(texts))), labels=False)

    def labels_of(self, data: Sequence[Question]) -> list[str]:
        """None: a choice has a number only. Raises ValueError for no questions, or one without its right choice."""
        if not data:
            raise ValueError("there are no questions; to learn, some with their right choices are needed")
        known_labels(data)
        return []

    def encode(self, data: Sequence[Question], tokenizer: Tokenizer, labels: Sequence[str], max_length: int) -> Encoded:
        """An example for each choice, all of a question one after the other, each with the number of the right one."""
        check_counts(data)
        framing = tokenizer.template
        room = tokenizer.resolve_max_length(max_length, pairs=True) - framing.specials(pairs=True)
        examples: list[Example] = []
        cut = 0
        firsts = tokenizer.encode_each([one.first for one in data])
        seconds = tokenizer.encode_each([choice for one in data for choice in one.choices])
        for question in tqdm(data, "encoding", unit="question", delay=2, disable=None):
            known = {} if question.label is None else {"labels": question.label}
            first = next(firsts).ids
            for _ in question.choices:
                choice = next(seconds).ids
                n, m = shares(len(first), len(choice), room)
                cut += n < len(first) or m < len(choice)
                ids = framing.row(first[len(first) - n :], choice[:m])
                examples.append(Example(ids, framing.segments(n, m), known))
        note = (
            f"{cut:,} of {len(examples):,} choices with their questions are longer than {max_length} tokens: the "
            "beginnings of contexts and questions, or the ends of choices, were cut off"
        )
        return Encoded(examples, choices=len(data[0].choices) if data else 0, notes=(note,) if cut else ())

    def decode(
        self, logits: Sequence[Logits], encoded: Encoded, data: Sequence[Question], labels: Sequence[str]
    ) -> list[Chosen]:
        """The choice with the largest logit of each question."""
        if not data:
            return []
        scores = np.concatenate(logits).reshape(len(data), encoded.choices)  # (N·C) -> (N,C)
        p = softmax(finite(scores, lambda row: data[row].place))
        return [
            Chosen(int(best), one.choices[best], float(row[best]), tuple(row.tolist()))
            for one, row, best in zip(data, p, p.argmax(axis=1), strict=True)
        ]

    def measure(self, answers: Sequence[Chosen], data: Sequence[Question], labels: Sequence[str]) -> Measure:
        """Accuracy with its standard error, and the rate of guessing."""
        true = known_labels(data)
        accuracy = sum(answer.number == label for answer, label in zip(answers, true, strict=True)) / len(true)
        figures: dict[str, Any] = {
            "rows": len(true),
            "accuracy": accuracy,
            "standard_error": standard_error(accuracy, len(true)),
            "choices": len(data[0].choices),
            "chance": 1 / len(data[0].choices),
        }
        told = "{accuracy:.3f} ± {standard_error:.3f} (standard error), {rows:,} questions; chance is {chance:.3f}"
        return Measure(figures, self.main, block("accuracy", told.format(**figures)))

    def format_predictions(self, answers: Sequence[Chosen], data: Sequence[Question]) -> list[str]:
        """The number of the choice, its probability, its text, and the question, by tabs."""
        return [
            one_line(str(answer.number), f"{answer.probability:.4f}", answer.choice, one.question)
            for answer, one in zip(answers, data, strict=True)
        ]


def known_labels(data: Sequence[Question]) -> list[int]:
    """The number of the right choice of each question. Raises ValueError for one that has none."""
    for one in data:
        if one.label is None:
            raise ValueError(f"{one.place} has no label; to learn from it or to measure, it needs the right choice")
    return [one.label for one in data if one.label is not None]


def parsed(text: str, row: int) -> object:
    """The value of a text of JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"row {row} is not JSON: {error}; a question is such as {EXAMPLE}") from None
