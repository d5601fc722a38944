"""Multiple choice: which of C texts answers a question or continues it (Devlin et al. 2018, section 4.4).

    {"question": "The sky is", "choices": ["blue.", "a fish."], "label": 0}

    [CLS] the sky is [SEP] blue. [SEP]      score 3.1
    [CLS] the sky is [SEP] a fish. [SEP]    score 0.4      p = softmax over the choices

Each choice is paired with its question and scored on its own. A context, the passage of the question, comes before the
question. A pair that is too long is truncated longest text first: context and question at their beginning, the choice
at its end.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import softmax

from minibert.tables.columns import Column
from minibert.tables.formats import settings_by_name
from minibert.tables.reading import Table
from minibert.tables.texts import RowError, as_texts
from minibert.tables.writing import one_line
from minibert.tasks.base import Encoded, Example, Logits, Measure, Prediction, Row, Task
from minibert.tasks.labels import check_finite
from minibert.tasks.metrics import accuracy_text, standard_error
from minibert.tasks.settings import ChoiceSettings, ClassificationSettings
from minibert.text.tokenized import shares
from minibert.text.tokenizer import Tokenizer, TruncationWarning
from minibert.utils.files import parse_json
from minibert.utils.printing import brief, progress_bar

COLUMNS = (Column("question", None, ("question", "sent1")),)
EXAMPLE = '{"question": "The sky is", "choices": ["blue.", "a fish."], "label": 0}'


@dataclass(frozen=True)
class ChoiceQuestion:
    """A question, its choices, and the right one. Raises TypeError or ValueError for anything but texts."""

    question: str
    choices: tuple[str, ...]  # C, at least 2
    label: int | None = None  # the index of the right choice; None: to be predicted
    context: str = ""

    def __post_init__(self) -> None:
        "".join((self.question, self.context, *self.choices)).encode()  # TypeError, or ValueError for half characters
        known = self.label is None or (type(self.label) is int and 0 <= self.label < len(self.choices))
        if not known or not isinstance(self.choices, tuple) or len(list(filter(str.strip, self.choices))) < 2:
            raise ValueError(
                f"the choices are {brief(self.choices)} and the label {brief(self.label)}; a question has at least 2 "
                "choices that are not blank, and the index or text of one of them as its label"
            )


def question_of(record: Any, place: int | str, labelled: bool = True) -> ChoiceQuestion:
    """Return the question in a JSON object, or its text. Raises ValueError, with the place, for anything else."""
    try:
        record = of_swag(parse_json(record) if isinstance(record, str) else record)
        choices = record["choices"]
        label = record["label"] if labelled else None
        if isinstance(label, str) and choices.count(label) == 1:
            label = choices.index(label)
        choices = tuple(choices) if isinstance(choices, list) else choices
        return ChoiceQuestion(record["question"], choices, label, record.get("context") or "")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        problem = f"no {error}" if isinstance(error, KeyError) else error
        raise RowError(place, f"is not a question such as {EXAMPLE}: {problem}") from None


def of_swag(record: Any) -> Any:
    """Return the question in a row of SWAG, with sent1, sent2, ending0 to ending3 and label; any other row as it is.

    Each choice is sent2, with which it begins, and its ending, as in run_swag.py of transformers.
    """
    if "choices" in record or "ending0" not in record:
        return record
    endings = [record[f"ending{n}"] for n in range(len(record)) if f"ending{n}" in record]
    choices = [" ".join(filter(None, (record.get("sent2"), ending))) for ending in endings]
    label = {name: int(value) if str(value).isdecimal() else value for name, value in record.items() if name == "label"}
    return {"question": record["sent1"], "choices": choices, **label}


# ---------------------------------------------------------------------------------------------------------------
# The task


@dataclass(frozen=True)
class Choice(ChoiceSettings, Task):
    """The right one of C choices."""

    name = "choose"
    head = "multiple-choice"
    served_at = ""
    main = "accuracy"

    def read(self, path: Any) -> list[ChoiceQuestion]:
        """Read questions with labels from a .jsonl, the array of a .json, or a .csv of SWAG; - is standard input.

        A file whose name ends in nothing that is known is a .jsonl.
        """
        settings = settings_by_name(path, "jsonl", self.format, encoding=self.encoding)
        with Table(path, COLUMNS, settings, whole=True) as table:
            questions = [question_of(record, place) for place, record in table.records()]
        if not questions:
            raise ValueError(f"{table.name} holds no questions; each is an object such as {EXAMPLE}")
        return questions

    def rows(self, path: str, how: ClassificationSettings) -> Iterator[Row]:
        """Yield the questions of a file, with a label or not, as texts of JSON. Raises ValueError for anything else."""
        if how.text is not None or how.pair is not None:
            raise ValueError("this model reads one text per row, without --pair and --text")
        with Table(path, COLUMNS, how, whole=True) as table:
            for place, record in table.records():
                if not isinstance(record, dict):
                    raise ValueError(f"{place} is not a question such as {EXAMPLE}")
                yield Row(json.dumps(record), None, record)

    def from_texts(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[ChoiceQuestion]:
        """Return unlabelled questions: each text is one as in a file, its label ignored; there are no pairs."""
        return [question_of(text, row, labelled=False) for row, text in enumerate(as_texts(texts))]

    def labels_of(self, data: Sequence[ChoiceQuestion]) -> list[str]:
        """Return []: choices have no names. Raises ValueError without questions, or without a label for each."""
        known = sum(question.label is not None for question in data)
        if not data or known < len(data):
            raise ValueError(f"{known} of {len(data)} questions have a label; training and evaluation need all")
        return []

    def encode(
        self, data: Sequence[ChoiceQuestion], tokenizer: Tokenizer, labels: Sequence[str], max_length: int
    ) -> Encoded:
        """Return an example for each choice, a question's choices in a row, each with the index of the right one."""
        if len(counts := {len(question.choices) for question in data}) > 1:
            raise ValueError(f"the questions have {sorted(counts)} choices; all need the same number")
        template = tokenizer.template
        room = tokenizer.resolve_max_length(max_length, pairs=True) - template.specials(pairs=True)
        examples: list[Example] = []
        truncated = longest = 0
        left = tokenizer.truncates_left
        firsts = tokenizer.encode_each([" ".join(filter(None, (row.context, row.question))) for row in data])
        seconds = tokenizer.encode_each([choice for row in data for choice in row.choices])
        for question in progress_bar(data, "encoding", unit="question"):
            known = {} if question.label is None else {"labels": question.label}
            first = next(firsts).ids
            choices = [next(seconds).ids for _ in question.choices]
            for choice in choices:
                n, m = shares(len(first), len(choice), room)
                left = left or n < len(first)
                ids = template.row(first[len(first) - n :], tokenizer.truncate(choice, m))
                examples.append(Example(ids, template.segments(n, m), known))
            tokens = len(first) + max(map(len, choices))
            truncated += tokens > room
            longest = max(longest, tokens + max_length - room)
        warning = TruncationWarning(truncated, len(data), max_length, longest, what="question", left=left)
        return Encoded(examples, choices=len(data[0].choices) if data else 0, truncation=warning if truncated else None)

    def decode(
        self, logits: Sequence[Logits], encoded: Encoded, data: Sequence[ChoiceQuestion], labels: Sequence[str]
    ) -> list[Prediction]:
        """Return the choice with the largest logit of each question, its number from 0, and the probability of each."""
        if not data:
            return []
        scores = np.concatenate(logits).reshape(len(data), encoded.choices).astype(np.float64)  # (N·C) -> (N, C)
        check_finite(scores, "a logit")
        p = softmax(scores, axis=1)
        return [
            {
                "number": int(best),
                "choice": question.choices[best],
                "probability": float(row[best]),
                "probabilities": tuple(row.tolist()),
            }
            for question, row, best in zip(data, p, p.argmax(axis=1), strict=True)
        ]

    def measure(self, answers: Sequence[Prediction], data: Sequence[ChoiceQuestion], labels: Sequence[str]) -> Measure:
        """Return accuracy with its standard error, beside chance."""
        self.labels_of(data)
        rows = len(data)
        choices = len(data[0].choices)
        accuracy = (
            sum(answer["number"] == question.label for answer, question in zip(answers, data, strict=True)) / rows
        )
        figures = {
            "accuracy": accuracy,
            "standard_error": standard_error(accuracy, rows),
            "rows": rows,
            "choices": choices,
            "chance": 1 / choices,
        }
        return Measure(figures, self.main, accuracy_text(accuracy, rows, f"chance {1 / choices:.3f}"))

    def format_predictions(self, answers: Sequence[Prediction], data: Sequence[ChoiceQuestion]) -> list[str]:
        """Return the index of the choice, its probability, its text, and the question."""
        return [
            one_line(str(answer["number"]), f"{answer['probability']:.4f}", answer["choice"], question.question)
            for answer, question in zip(answers, data, strict=True)
        ]
