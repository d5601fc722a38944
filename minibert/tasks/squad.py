"""Questions on passages, as SQuAD has them (Rajpurkar et al. 2016, 2018): the file and the official score.

    {"version": "1.1", "data": [{"paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "answers": [{"text": ..., "answer_start": ...}, ...]}, ...]}, ...]}, ...]}

An answer is a stretch of the passage. In version 2.0 a question may have none: "is_impossible" is true.
"""

from __future__ import annotations

import os
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from minibert.files import MOST_BYTES, parse_json, shown
from minibert.tasks.metrics import f1
from minibert.text.tables import decompressed, kind_of, opened

# ---------------------------------------------------------------------------------------------------------------
# Questions


class Gold(NamedTuple):
    """A right answer and the character of the passage at which it begins."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question, its passage and the right answers, none where the passage has no answer.

    place: what messages call it. Raises ValueError for an answer that does not stand where it says.
    """

    question: str
    context: str
    answers: tuple[Gold, ...] = ()
    place: str = "the question"

    def __post_init__(self) -> None:
        for text, start in self.answers:
            if not text.strip():
                raise ValueError(f"{self.place} has an empty answer; leave the answers out where there is none")
            there = self.context[start : start + len(text)] if start >= 0 else ""
            if there != text:
                raise ValueError(
                    f"{self.place} has the answer {shown(text)} at character {start}, and there stands {shown(there)}; "
                    "correct answer_start, or let near places be searched (--repair, repair=True)"
                )


@dataclass(frozen=True)
class Questions:
    """Questions, all with right answers or all to be answered."""

    rows: Sequence[Question]
    known: bool = True  # False: the answers are to be found
    unanswerable: bool = False  # as in SQuAD 2.0: a question may have no answer
    repaired: int = 0  # answers that did not stand where the file said

    def __len__(self) -> int:
        return len(self.rows)


# ---------------------------------------------------------------------------------------------------------------
# The file


def read_squad(path: str | Path, repair: bool = False) -> Questions:
    """The questions of a file of SQuAD 1.1 or 2.0; .gz too, - is standard input.

    repair: an answer that does not stand where the file says is taken, without the white space around it, from where
    it stands nearest to that. Raises FileNotFoundError, and ValueError naming the question, for all that is not as it
    must be.
    """
    name = os.fspath(path)
    content = read_content(path)
    rows: list[Question] = []
    repaired = 0
    unanswerable = str(content.get("version", "")).removeprefix("v").startswith("2")
    for place, context, asked in questions_in(content, name):
        answers = tuple(golds(asked, place))
        unanswerable = unanswerable or "is_impossible" in asked
        if asked.get("is_impossible") is True:
            answers = ()  # what stands there is plausible, not right
        elif not answers:
            raise ValueError(f"{place} has no answer; in SQuAD 2.0 is_impossible says that there is none")
        if repair:
            better = tuple(nearest(context, gold) for gold in answers)
            repaired += sum(new != old for new, old in zip(better, answers, strict=True))
            answers = better
        rows.append(Question(value(asked, "question", str, place), context, answers, place))
    if not rows:
        raise ValueError(f"{name} holds no questions")
    return Questions(rows, True, unanswerable, repaired)


def read_content(path: str | Path) -> dict[str, Any]:
    """The one object of a JSON file. Raises ValueError for anything else."""
    name = os.fspath(path)
    with opened(path) as stream, decompressed(stream, name) if name.endswith(".gz") else nullcontext(stream) as inside:
        raw = inside.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise ValueError(f"{name} has over {MOST_BYTES:,} bytes, the most that is read at once; split it")
    try:
        content = parse_json(raw.decode("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{name} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f'{name} holds {kind_of(content)}; SQuAD is an object with "data"')
    return content


def questions_in(content: dict[str, Any], name: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The place of each question, its passage and the object that it is."""
    for i, article in objects(content, "data", name):
        where = f"{name}, data[{i}]"
        for j, paragraph in objects(article, "paragraphs", where):
            inside = f"{where}.paragraphs[{j}]"
            context = value(paragraph, "context", str, inside)
            for k, asked in objects(paragraph, "qas", inside):
                yield f"{inside}.qas[{k}]" + (f" ({shown(asked['id'])})" if "id" in asked else ""), context, asked


def golds(asked: dict[str, Any], place: str) -> Iterator[Gold]:
    """The answers of a question as the file has them; none where it says nothing of answers and is impossible."""
    if asked.get("is_impossible") is True and "answers" not in asked:
        return
    for number, answer in objects(asked, "answers", place):
        where = f"{place}.answers[{number}]"
        yield Gold(value(answer, "text", str, where), value(answer, "answer_start", int, where))


def objects(record: dict[str, Any], name: str, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a list with their numbers."""
    for number, item in enumerate(value(record, name, list, where)):
        if not isinstance(item, dict):
            raise ValueError(f"{where}: {name}[{number}] is {kind_of(item)}, not an object of names and values")
        yield number, item


def value(record: dict[str, Any], name: str, kind: type, where: str) -> Any:
    """A value of this kind."""
    if name not in record:
        raise ValueError(f"{where} has no {name!r}; it has: {', '.join(map(repr, record)) or 'nothing'}")
    if type(record[name]) is not kind:
        raise ValueError(f"{where} has {kind_of(record[name])} as {name!r}, not {kind_of(kind())}")
    return record[name]


def nearest(context: str, gold: Gold) -> Gold:
    """The answer without the white space around it, where it stands nearest to `start`; unchanged if nowhere."""
    text = gold.text.strip()
    if not text or (gold.start >= 0 and context.startswith(gold.text, gold.start)):
        return gold
    starts = [match.start() for match in re.finditer(f"(?={re.escape(text)})", context)]
    return Gold(text, min(starts, key=lambda start: abs(start - gold.start))) if starts else gold


# ---------------------------------------------------------------------------------------------------------------
# The official score


def words_of(text: str) -> list[str]:
    """What of an answer counts: lower case, without ASCII punctuation and the articles a, an, the."""
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def score_answer(answer: str, question: Question, unanswerable: bool) -> tuple[float, float]:
    """Exact match and F1 of an answer, 0 to 1: the best over the right ones.

    unanswerable: by the rules of 2.0, where "" is right for a question without an answer, and nothing else is.
    """
    said = words_of(answer)
    right = [words_of(gold.text) for gold in question.answers]
    if unanswerable:
        right = [words for words in right if words] or [[]]
    return float(said in right), max(f1_of_words(said, words, unanswerable) for words in right)


def f1_of_words(said: Sequence[str], right: Sequence[str], unanswerable: bool) -> float:
    """F1 of the words as bags; in 2.0, where one of them has no words, whether both have none."""
    if unanswerable and not (said and right):
        return float(said == right)
    return f1((Counter(said) & Counter(right)).total(), len(said), len(right))
