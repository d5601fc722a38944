"""Questions on passages with their right answers, and the files that have them.

SQuAD (Rajpurkar et al. 2016, 2018) lists the questions of each passage:

    {"version": "1.1", "data": [{"paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "answers": [{"text": ..., "answer_start": ...}, ...]}, ...]}, ...]}, ...]}

In version 2.0 a question may have no answer in its passage: "is_impossible" is true. Or each question is a row, of a
.jsonl, .json or .parquet, as Hugging Face saves it, or of a .csv or .tsv; without an answer its passage has none:

    {"question": ..., "context": ..., "answers": {"text": ["Rome"], "answer_start": [71]}}
    question,context,answer_text,answer_start
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from minibert.tables.columns import Column
from minibert.tables.formats import FileSettings, decompressed, opened, settings_by_name, whole_text
from minibert.tables.reading import Table
from minibert.tasks.base import Row
from minibert.tasks.names import parsed
from minibert.tasks.settings import AnsweringSettings
from minibert.utils.files import parse_json
from minibert.utils.printing import brief
from minibert.utils.wording import advice

COLUMNS = Column("text", "question", ()), Column("pair", "context", ())
TEXTS = ("answer_text", "answer", "answers.text", "text")  # columns of a table with one answer
STARTS = ("answer_start", "answers.answer_start", "start")
FORM = '{"data": [{"paragraphs": [{"context", "qas": [...]}]}]}, or rows of "question", "context" and "answers"'


class Gold(NamedTuple):
    """A right answer and the character of the passage at which it starts."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question, its passage and the right answers, none if the passage has no answer.

    Raises ValueError for an answer that is not at its start in the passage, TypeError for anything but texts.
    """

    question: str
    context: str
    answers: tuple[Gold, ...] = ()

    def __post_init__(self) -> None:
        "".join((self.question, self.context))  # raises TypeError
        for text, start in self.answers:
            there = self.context[start : start + len(text)] if start >= 0 else ""
            if there != text or not text.strip():
                raise ValueError(
                    f"the answer {brief(text[:60])} is not at character {start}, where the passage has "
                    f"{brief(there[:60])}; correct answer_start"
                    + advice(", or let {} search near it, and leave out what is not in the passage", repair=True)
                )


@dataclass(frozen=True)
class Questions:
    """Questions, all with right answers or all to be answered."""

    rows: Sequence[Question]
    known: bool = True  # False: the answers are to be predicted
    unanswerable: bool = False  # as in SQuAD 2.0: a question may have no answer
    repaired: int = 0  # answers that were not at their start
    left_out: int = 0  # questions whose answers are not in the passage

    def __len__(self) -> int:
        return len(self.rows)


class Record(NamedTuple):
    """A question in a file: its place, all its fields, and whether it is a row, not part of a passage."""

    place: str
    fields: dict[str, Any]
    is_row: bool


# ---------------------------------------------------------------------------------------------------------------
# Files


def read_questions(path: Any, how: AnsweringSettings) -> Questions:
    """Return the questions of a file, or of rows in memory, with their answers; compressed too, - is standard input.

    Raises FileNotFoundError, and ValueError with the place in the file for anything invalid.
    """
    rows: list[Question] = []
    repaired = left_out = 0
    unanswerable = False
    settings = settings_by_name(path, "json", how.format, delimiter=how.delimiter, encoding=how.encoding)
    for place, fields, is_row in records(path, settings):
        try:
            given = golds_of(fields, is_row, how.repair)
            repaired_golds = [nearest_answer(fields["context"], gold) if how.repair else gold for gold in given]
            kept = tuple(gold for gold in repaired_golds if gold is not None)
            question = Question(fields["question"], fields["context"], kept)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise not_squad(place, error) from None
        repaired += sum(new not in (None, old) for new, old in zip(repaired_golds, given, strict=True))
        unanswerable = unanswerable or not given or "is_impossible" in fields
        if kept or not given:
            rows.append(question)
        else:
            left_out += 1
    if not rows:
        path = path if isinstance(path, str | Path) else "the data"
        why = f": of {left_out:,} the answer is not in the passage" if left_out else ""
        raise ValueError(f"{path} holds no questions{why}")
    return Questions(rows, True, unanswerable, repaired, left_out)


def question_rows(path: str, settings: FileSettings) -> Iterator[Row]:
    """Yield the questions of a file, answered or not, with their passages and all fields."""
    for place, fields, is_row in records(path, settings):
        question, context = fields.get("question"), fields.get("context")
        if not isinstance(question, str) or not isinstance(context, str):
            raise ValueError(
                f"{place} has no question with its context, and this model reads pairs: name the column of the second "
                "texts, --pair, and of the questions, --text"
            )
        kept = fields if is_row else {name: fields.get(name) for name in ("id", "question", "context", "answers")}
        yield Row(question, context, kept)


def records(path: Any, settings: FileSettings) -> Iterator[Record]:
    """Yield the questions of a file; each has "question" and "context" if the file is as it should be.

    Raises FileNotFoundError, and ValueError with the place in the file for anything but objects.
    """
    name = str(path)
    if settings.format_of(path) == "json":
        with opened(path) as stream, decompressed(stream, name) as inside:
            text = whole_text(inside, name, settings.encoding)
        try:
            content = parse_json(text)
        except ValueError as error:
            hint = "; with an object on each line its format is jsonl" + advice(": {}", format="jsonl")
            raise not_squad(name, error, hint) from None
        yield from squad_records(content, name)
        return
    with Table(path, COLUMNS, settings, whole=True) as table:
        for place, row in table.records():
            if not isinstance(row, dict):
                raise not_squad(place, f"it is {brief(row)}; the task reads {FORM}")
            yield Record(place, row, True)


def squad_records(content: Any, name: str) -> Iterator[Record]:
    """Yield the questions of a JSON file: of passages, or a list of rows."""
    place = name
    try:
        articles = content if isinstance(content, list) else content["data"]
        second = isinstance(content, dict) and str(content.get("version")).removeprefix("v").startswith("2")
        more = {"is_impossible": False} if second else {}
        for i, article in enumerate(articles):
            place = f"{name}, data[{i}]"
            if "paragraphs" not in article:
                yield Record(place, {**article}, True)
                continue
            for j, paragraph in enumerate(article["paragraphs"]):
                for k, record in enumerate(paragraph["qas"]):
                    at = f"{place}.paragraphs[{j}].qas[{k}]"
                    yield Record(at, more | {"context": paragraph["context"]} | record, False)
    except (KeyError, TypeError) as error:
        raise not_squad(place, error, f"; the task reads {FORM}") from None


def not_squad(place: str, problem: object, more: str = "") -> ValueError:
    """Return the error for a file, or a place in it, that is not as in SQuAD."""
    what = f"no {problem}" if isinstance(problem, KeyError) else str(problem)
    return ValueError(f"{place} is not as in SQuAD: " + what + more)


# ---------------------------------------------------------------------------------------------------------------
# Answers


def golds_of(fields: Mapping[str, Any], is_row: bool, repair: bool) -> list[Gold]:
    """Return the right answers to a question. Raises KeyError, TypeError or ValueError if there are none."""
    if fields.get("is_impossible") is True:  # its answers, if any, are plausible, not right
        return []
    given = answers_in(fields)
    if not given and not is_row:
        raise ValueError("there is no answer; in SQuAD 2.0 such a question is marked is_impossible")
    golds = []
    for answer in given:
        start = answer.get("answer_start")
        if start is None and not repair:
            way = advice("; {} takes the first place where the answer occurs", repair=True)
            raise ValueError("no 'answer_start'" + way)
        golds.append(Gold(answer["text"], start if isinstance(start, int) else int(float(start or 0))))
    return golds


def answers_in(row: Mapping[str, Any]) -> list[Any]:
    """Return the answers in the form of SQuAD: from a list, from lists of texts and starts, or from two columns."""
    column = next((name for name in TEXTS if name in row), "")
    if "answers" in row or not column:
        answers = row["answers"]
        if isinstance(answers, str) and answers[:1] in ("{", "["):
            cell = answers
            if (answers := parsed(cell)) is None:
                raise ValueError(
                    f"the answers are {brief(cell)}; write them as JSON, or save the rows as .jsonl or .parquet"
                )
    else:
        answers = {"text": row[column], "answer_start": next((row[name] for name in STARTS if name in row), None)}
    if isinstance(answers, Mapping):
        texts = answers["text"]
        starts = answers.get("answer_start")
        texts = texts if isinstance(texts, list) else [texts]
        starts = starts if isinstance(starts, list) else [starts] * len(texts)
        answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    answers = [answers] if isinstance(answers, str) else answers or []
    answers = [answer if isinstance(answer, Mapping) else {"text": answer} for answer in answers]
    return [answer for answer in answers if answer["text"] not in ("", None)]


def nearest_answer(context: str, gold: Gold) -> Gold | None:
    """Return the stripped answer at its place nearest to `start`; unchanged if it is there, None if nowhere."""
    text = gold.text.strip()
    if text and gold.start >= 0 and context.startswith(gold.text, gold.start):
        return gold
    starts = [match.start() for match in re.finditer(f"(?={re.escape(text)})", context)] if text else []
    return Gold(text, min(starts, key=lambda start: abs(start - gold.start))) if starts else None
