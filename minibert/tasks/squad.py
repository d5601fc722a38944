"""Questions on passages in the format of SQuAD (Rajpurkar et al. 2016, 2018): the file and the official score.

    {"version": "1.1", "data": [{"paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "answers": [{"text": ..., "answer_start": ...}, ...]}, ...]}, ...]}, ...]}

An answer is a span of the passage. In version 2.0 a question may have none: "is_impossible" is true.
"""

from __future__ import annotations

import os
import re
import string
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from minibert.files import parse_json
from minibert.printing import brief
from minibert.tasks.metrics import f1
from minibert.text.tables import decompressed, opened


class Gold(NamedTuple):
    """A right answer and the character of the passage at which it starts."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question, its passage and the right answers, none where the passage has no answer.

    Raises ValueError for an answer that is not at its start in the passage, TypeError for anything but texts.
    """

    question: str
    context: str
    answers: tuple[Gold, ...] = ()

    def __post_init__(self) -> None:
        "".join((self.question, self.context))  # raises TypeError
        for text, start in self.answers:
            found = self.context[start : start + len(text)] if start >= 0 else ""
            if found != text or not text.strip():
                raise ValueError(
                    f"the answer {brief(text[:60])} is not at character {start}, where the passage has "
                    f"{brief(found[:60])}; correct answer_start, or search near it: --repair, repair=True"
                )


@dataclass(frozen=True)
class Questions:
    """Questions, all with right answers or all to be answered."""

    rows: Sequence[Question]
    known: bool = True  # False: the answers are to be predicted
    unanswerable: bool = False  # as in SQuAD 2.0: a question may have no answer
    repaired: int = 0  # answers that were not at their start

    def __len__(self) -> int:
        return len(self.rows)


# ---------------------------------------------------------------------------------------------------------------
# The file


def read_squad(path: str | Path, repair: bool = False) -> Questions:
    """The questions of a file of SQuAD 1.1 or 2.0; .gz too, - is standard input.

    repair: an answer that is not at its start is taken, stripped, from the nearest place where it occurs. Raises
    FileNotFoundError, and ValueError with the place in the file for anything invalid.
    """
    place = name = os.fspath(path)
    rows: list[Question] = []
    repaired = 0
    with opened(path) as stream, decompressed(stream, name) if name.endswith(".gz") else nullcontext(stream) as inside:
        raw = inside.read()
    try:
        content = parse_json(raw.decode("utf-8-sig"))
        unanswerable = str(content.get("version")).removeprefix("v").startswith("2")
        for i, article in enumerate(content["data"]):
            for j, paragraph in enumerate(article["paragraphs"]):
                for k, record in enumerate(paragraph["qas"]):
                    place = f"{name}, data[{i}].paragraphs[{j}].qas[{k}]"
                    context, answers = paragraph["context"], golds(record)
                    found = tuple(nearest(context, gold) if repair else gold for gold in answers)
                    repaired += sum(new != old for new, old in zip(found, answers, strict=True))
                    unanswerable = unanswerable or "is_impossible" in record
                    rows.append(Question(record["question"], context, found))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        problem = f"no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{place} is not as in SQuAD: {problem}") from None
    if not rows:
        raise ValueError(f"{name} holds no questions")
    return Questions(rows, True, unanswerable, repaired)


def golds(record: dict[str, Any]) -> list[Gold]:
    """The answers of a question. Raises ValueError without answers, unless it is marked as impossible."""
    if record.get("is_impossible") is True:  # its answers, if any, are plausible, not right
        return []
    if not record["answers"]:
        raise ValueError("there is no answer; in SQuAD 2.0 such a question is marked is_impossible")
    return [Gold(answer["text"], answer["answer_start"]) for answer in record["answers"]]


def nearest(context: str, gold: Gold) -> Gold:
    """The stripped answer at its occurrence nearest to `start`; unchanged if it is there, or nowhere."""
    text = gold.text.strip()
    if not text or (gold.start >= 0 and context.startswith(gold.text, gold.start)):
        return gold
    starts = [match.start() for match in re.finditer(f"(?={re.escape(text)})", context)]
    return Gold(text, min(starts, key=lambda start: abs(start - gold.start))) if starts else gold


# ---------------------------------------------------------------------------------------------------------------
# The official score


def normalized_words(text: str) -> list[str]:
    """The words that count: lower case, without ASCII punctuation and the articles a, an, the."""
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def score_answer(answer: str, question: Question, unanswerable: bool) -> tuple[float, float]:
    """Exact match and F1 of an answer, 0 to 1: the best over the right ones.

    unanswerable: by the rules of 2.0, where "" is right for a question without an answer, and nothing else is.
    """
    words = normalized_words(answer)
    right = [normalized_words(gold.text) for gold in question.answers]
    if unanswerable:
        right = [one for one in right if one] or [[]]
    if unanswerable and not words:  # then the F1 is 1 for a right answer without words, and 0 for any other
        return float([] in right), float([] in right)
    return float(words in right), max(
        f1((Counter(words) & Counter(one)).total(), len(words), len(one)) for one in right
    )
