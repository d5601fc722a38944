"""Answering: where in a passage the answer to a question stands (Devlin et al. 2018, sections 4.2 and 4.3).

    [CLS] question [SEP] window of the passage [SEP]  ->  start and end scores of each token  ->  the best span

A passage that is too long is read in windows that overlap. Of a span that stands in several, the scores of that window
count in which its first token has the most text on both sides. The answer is cut from the passage itself, so that case,
accents and spaces are those of the text.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from minibert.printing import table
from minibert.settings import check, setting
from minibert.tasks.base import Encoded, Example, Logits, Measure, Task
from minibert.tasks.squad import Gold, Question, Questions, read_squad, score_answer
from minibert.text.texts import as_texts
from minibert.text.tokenized import TokenStats
from minibert.text.tokenizer import Tokenizer

GOOGLES_STRIDE = 128  # tokens, with rows of 384
NOWHERE = {"start_positions": 0, "end_positions": 0}  # an answer that is not in the window is said to be at [CLS]


class Window(NamedTuple):
    """Tokens start .. end - 1 of a passage, the first of them at place `first` of its row."""

    start: int
    end: int
    first: int


class Passage(NamedTuple):
    """What leads back from the rows of a question to its passage."""

    windows: list[Window]
    offsets: Sequence[tuple[int, int]]  # of each token of the whole passage: its characters


class Span(NamedTuple):
    """Characters start .. end - 1 of the passage, and the start and end score together; (0, 0) is no answer."""

    score: float
    start: int
    end: int


@dataclass(frozen=True)
class Candidate:
    """A possible answer; context[start:end] is its text, "" the answer that there is none."""

    text: str
    probability: float  # among the n best
    start: int
    end: int


@dataclass(frozen=True)
class Answer(Candidate):
    """What is answered to a question."""

    n_best: tuple[Candidate, ...] = ()  # the most probable first
    null_difference: float | None = None  # the score of no answer less that of the best one; None: not asked


# ---------------------------------------------------------------------------------------------------------------
# The task


@dataclass(frozen=True)
class Answering(Task):
    """An answer to each question, cut from its passage.

    max_question: tokens of a question, whose end is cut off. stride: tokens from the beginning of a window to that of
    the next, as Google counts (transformers' doc_stride is how many two windows share); None: 128, or half a window
    where that is less. max_answer: tokens of an answer. n_best: how many candidates are kept. null_threshold: how much
    better than the best answer "no answer" must score. unanswerable: whether there may be no answer; None: if the data
    is SQuAD 2.0. repair: see read_squad. Raises ValueError for settings out of range.
    """

    max_question: int = setting(64, "tokens of a question", minimum=1)
    stride: int | None = setting(None, "tokens from one window of a passage to the next (default: 128)", minimum=1)
    max_answer: int = setting(30, "tokens of an answer", minimum=1)
    n_best: int = setting(20, "candidate answers to keep", minimum=1)
    null_threshold: float = setting(0.0, "how much better than the best answer no answer must score")
    unanswerable: bool | None = None
    repair: bool = setting(False, "take each answer from the nearest place where its text occurs")

    name = "answer"
    head = "question-answering"
    data_help = "questions on passages: SQuAD 1.1 or 2.0 JSON"
    row_length = 384
    main = "f1"

    def __post_init__(self) -> None:
        check(self)

    def read(self, path: str | Path) -> Questions:
        """The questions of a SQuAD file: see read_squad."""
        return read_squad(path, self.repair)

    def from_texts(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Questions:
        """Questions, `texts`, to be answered from passages, `pairs`."""
        if pairs is None:
            raise ValueError("a question is answered from a passage; give the passages as pairs")
        asked, contexts = as_texts(texts), as_texts(pairs)
        if len(asked) != len(contexts):
            raise ValueError(f"there are {len(asked)} questions and {len(contexts)} passages; each needs its own")
        rows = [Question(question, context) for question, context in zip(asked, contexts, strict=True)]
        return Questions(rows, known=False)

    def labels_of(self, data: Questions) -> list[str]:
        """None: what is learned is places. Raises ValueError where there is nothing to learn."""
        if not data.known or not len(data):
            raise ValueError("there are no questions with answers; to learn to answer, each needs what is right")
        if not any(question.answers for question in data.rows):
            raise ValueError(f"none of the {len(data)} questions has an answer; to learn to answer, some must have one")
        return []

    def resolve(self, data: Questions) -> Answering:
        """Whoever learned that there may be no answer, as in SQuAD 2.0, may give none ever after."""
        return self if self.unanswerable is not None else replace(self, unanswerable=data.unanswerable)

    def encode(self, data: Questions, tokenizer: Tokenizer, labels: Sequence[str], max_length: int) -> Encoded:
        """A row for each window. Raises ValueError where max_question or stride leave no room in max_length."""
        max_length, framing = tokenizer.resolve_max_length(max_length, pairs=True), tokenizer.template
        self.check_room(max_length, framing.specials(pairs=True))
        contexts = passages(data, tokenizer)
        examples: list[Example] = []
        back: list[Passage] = []
        seen = Seen(data, self.max_question, self.max_answer)
        questions = tokenizer.encode_each([question.question for question in data.rows])
        bar = tqdm(questions, "encoding", len(data), leave=False, unit="text", delay=2, disable=None)
        for row, asked in zip(data.rows, bar, strict=True):
            context = contexts[row.context]
            question = asked.ids[: self.max_question]
            room = max_length - len(question) - framing.specials(pairs=True)
            stride = self.stride or max(1, min(GOOGLES_STRIDE, room // 2))
            first = framing.second(len(question))
            windows = [Window(*span, first) for span in spans(len(context.ids), room, stride)]
            answer = answer_tokens(row.answers[0], context.offsets) if row.answers else None
            for window in windows:
                ids = framing.row(question, context.ids[window.start : window.end])
                segments = framing.segments(len(question), window.end - window.start)
                examples.append(Example(ids, segments, positions(answer, window) if data.known else {}))
            back.append(Passage(windows, context.offsets))
            seen.add(row, len(asked), windows, answer)
        unknown = sum(one.unknown for one in contexts.values())
        tokenizer.warn(TokenStats(len(data), sum(len(one.ids) for one in contexts.values()), unknown), max_length)
        return Encoded(examples, notes=seen.notes(), back=back)

    def check_room(self, max_length: int, specials: int) -> None:
        """Raise ValueError where a window beside the longest question has no room, or less than one stride."""
        room = max_length - self.max_question - specials
        said = f"max_length is {max_length}, and a question of max_question {self.max_question} tokens"
        if room < 1:
            raise ValueError(
                f"{said} with {specials} special ones leaves no room for the passage; raise max_length to "
                f"{self.max_question + specials + 1} or more, or lower max_question"
            )
        if self.stride is not None and self.stride >= room:
            raise ValueError(
                f"stride is {self.stride}; {said} leaves windows of {room} tokens, which must overlap: "
                f"choose a stride below {room}, or a larger max_length"
            )

    def decode(
        self, logits: Sequence[Logits], encoded: Encoded, data: Questions, labels: Sequence[str]
    ) -> list[Answer]:
        """The best answer to each question over its windows, "" where none scores well enough."""
        nullable = data.unanswerable if self.unanswerable is None else self.unanswerable
        left = iter(logits)
        answers = []
        for question, passage in zip(data.rows, encoded.back, strict=True):
            scores = [next(left).astype(np.float64) for _ in passage.windows]  # (2, tokens) each
            found = sorted(self.best_spans(scores, passage), key=lambda span: (-span.score, span.start, span.end))
            null = min(float(start[0] + end[0]) for start, end in scores) if nullable or not found else None
            answers.append(self.answer(question.context, found, null))
        return answers

    def best_spans(self, scores: Sequence[NDArray[np.float64]], passage: Passage) -> Iterator[Span]:
        """The best spans of each window, of up to max_answer tokens of the passage."""
        for window, (start, end), here in zip(passage.windows, scores, best_context(passage.windows), strict=True):
            tokens = slice(window.first, window.first + window.end - window.start)
            start = np.where(here, start[tokens], -np.inf)
            for score, i, j in best_pairs(start, end[tokens], self.max_answer, self.n_best):
                first, last = passage.offsets[window.start + i], passage.offsets[window.start + j]
                yield Span(score, first[0], last[1])

    def answer(self, context: str, found: Sequence[Span], null: float | None) -> Answer:
        """The answer from spans, the best first, and the score of no answer, None where there must be one."""
        spans: dict[str, Span] = {}
        for span in found:
            spans.setdefault(context[span.start : span.end], span)  # of equal texts the best
        best = list(spans.items())[: self.n_best]
        if null is not None:
            best = sorted([*best, ("", Span(null, 0, 0))], key=lambda item: -item[1].score)
        weights = np.exp(np.array([span.score for _, span in best]) - best[0][1].score)
        shares = (weights / weights.sum()).tolist()
        n_best = [
            Candidate(text, probability, span.start, span.end)
            for (text, span), probability in zip(best, shares, strict=True)
        ]
        difference = null - found[0].score if null is not None and found else None
        none = not found or (difference is not None and difference > self.null_threshold)
        chosen = next(one for one in n_best if (one.text == "") == none)
        return Answer(chosen.text, chosen.probability, chosen.start, chosen.end, tuple(n_best), difference)

    def measure(self, answers: Sequence[Answer], data: Questions, labels: Sequence[str]) -> Measure:
        """Exact match and F1, 0 to 1, with the standard error of the F1; for SQuAD 2.0 also with and without answer.

        Raises ValueError where no right answers are known.
        """
        if not data.known:
            raise ValueError("these questions have no answers to compare with; to measure, each needs what is right")
        pairs = zip(answers, data.rows, strict=True)
        points = np.array([score_answer(answer.text, question, data.unanswerable) for answer, question in pairs])
        has = np.array([bool(question.answers) for question in data.rows])
        groups = {"all": np.ones_like(has)}
        if data.unanswerable:
            groups |= {"has_answer": has, "no_answer": ~has}
        found = {name: figures_of(points[group]) for name, group in groups.items() if group.any()}
        figures: dict[str, Any] = found.pop("all")
        none = not any(answer.text for answer in answers)
        text = score_table({"all": figures, **found})
        text += f"\n\nstandard error of the F1 {figures['standard_error']:.3f}"
        if none:
            text += "\nno question was answered"
        return Measure({**figures, **found, "degenerate": none}, self.main, text)

    def format_predictions(self, answers: Sequence[Answer], data: Questions) -> list[str]:
        """A line for each question: answer, probability, question; white space inside becomes single spaces."""
        return [
            f"{' '.join(answer.text.split())}\t{answer.probability:.4f}\t{' '.join(question.question.split())}"
            for answer, question in zip(answers, data.rows, strict=True)
        ]


# ---------------------------------------------------------------------------------------------------------------
# Windows


class Context(NamedTuple):
    """The tokens of a passage."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    unknown: int  # how many are [UNK]


def passages(data: Questions, tokenizer: Tokenizer) -> dict[str, Context]:
    """Every passage once, though many questions are asked about it."""
    texts = list(dict.fromkeys(question.context for question in data.rows))
    bar = tqdm(tokenizer.encode_each(texts), "passages", len(texts), leave=False, unit="text", delay=2, disable=None)
    made = zip(texts, bar, strict=True)
    return {text: Context(one.ids, one.offsets, one.ids.count(tokenizer.unk_id)) for text, one in made}


def spans(tokens: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """Beginning and end of windows of up to `room` tokens, `stride` apart, until one reaches the end; at least one."""
    for start in range(0, max(tokens - room, 0) + stride, stride):
        yield start, min(start + room, tokens)


def best_context(windows: Sequence[Window]) -> list[NDArray[np.bool_]]:
    """For each token of each window whether it has the most text around it there: Google's max context.

    That is the shorter of both sides and a hundredth of the window's length; of equal windows the first.
    """
    most = np.full(windows[-1].end, -np.inf)
    owner = np.zeros(windows[-1].end, dtype=np.int64)
    for number, (start, end, _) in enumerate(windows):
        place = np.arange(end - start)
        context = np.minimum(place, place[::-1]) + 0.01 * (end - start)
        better = context > most[start:end]
        owner[start:end][better] = number
        most[start:end][better] = context[better]
    return [owner[start:end] == number for number, (start, end, _) in enumerate(windows)]


def best_pairs(
    start: NDArray[np.float64], end: NDArray[np.float64], most: int, count: int
) -> list[tuple[float, int, int]]:
    """The `count` best start[i] + end[j], i <= j < i + most, with i and j, in no particular order; (n) and (n)."""
    n = len(start)
    most = min(most, n)
    if not n:
        return []
    ends = np.lib.stride_tricks.sliding_window_view(np.pad(end, (0, most - 1), constant_values=-np.inf), most)
    sums = (start[:, None] + ends).ravel()  # (n) and (n,most) -> (n·most), at i · most + j - i
    best = np.argpartition(-sums, count - 1)[:count] if count < len(sums) else np.arange(len(sums))
    return [(float(sums[x]), int(x // most), int(x // most + x % most)) for x in best if sums[x] > -np.inf]


def answer_tokens(answer: Gold, offsets: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """The first and the last token of the passage that have a character of the answer; None where no token has."""
    first = bisect_right(offsets, answer.start, key=lambda offset: offset[1])
    last = bisect_left(offsets, answer.start + len(answer.text), key=lambda offset: offset[0]) - 1
    return (first, last) if first <= last else None


def positions(answer: tuple[int, int] | None, window: Window) -> dict[str, int]:
    """The places in the row of the answer's first and last token; 0, [CLS], where the window has not all of it."""
    if answer is None or answer[0] < window.start or answer[1] >= window.end:
        return NOWHERE
    first, last = (window.first + token - window.start for token in answer)
    return {"start_positions": first, "end_positions": last}


@dataclass
class Seen:
    """What became of the questions, counted."""

    data: Questions
    max_question: int
    max_answer: int
    cut: int = 0  # questions
    longest: int = 0  # tokens of the longest question
    windowed: int = 0  # questions whose passage is read in several windows
    rows: int = 0  # windows of all questions
    too_long: int = 0  # answers of more than max_answer tokens
    torn: int = 0  # answers that stand whole in no window

    def add(self, question: Question, tokens: int, windows: list[Window], answer: tuple[int, int] | None) -> None:
        """One more question."""
        self.cut += tokens > self.max_question
        self.longest = max(self.longest, tokens)
        self.windowed += len(windows) > 1
        self.rows += len(windows)
        if question.answers:
            self.torn += all(positions(answer, window) == NOWHERE for window in windows)
            self.too_long += answer is not None and answer[1] - answer[0] >= self.max_answer

    def notes(self) -> tuple[str, ...]:
        """What a user should know."""
        total, notes = len(self.data), []
        if self.windowed:
            notes.append(f"{self.windowed:,} of {total:,} questions are read in several windows, {self.rows:,} in all")
        if self.cut:
            notes.append(
                f"{self.cut:,} of {total:,} questions are longer than max_question {self.max_question} tokens (the "
                f"longest has {self.longest}): their ends were cut off"
            )
        if self.torn:
            notes.append(f"{self.torn:,} answers stand whole in no window, and can be neither learned nor found")
        if self.too_long:
            notes.append(f"{self.too_long:,} answers have more than max_answer {self.max_answer} tokens: none is found")
        if self.data.repaired:
            notes.append(
                f"{self.data.repaired:,} answers stood elsewhere than the file says: the nearest place was taken"
            )
        return tuple(notes)


# ---------------------------------------------------------------------------------------------------------------
# Figures


def figures_of(points: NDArray[np.float64]) -> dict[str, Any]:
    """The means of exact match and F1, (N, 2), and the standard error of the second."""
    exact_match, f1 = points.mean(axis=0).tolist()
    error = float(points[:, 1].std() / math.sqrt(len(points)))
    return {"exact_match": exact_match, "f1": f1, "standard_error": error, "questions": len(points)}


def score_table(groups: dict[str, dict[str, Any]]) -> str:
    """A row for each group of questions."""
    rows = [
        [name.replace("_", " "), f"{one['questions']:,}", f"{one['exact_match']:.3f}", f"{one['f1']:.3f}"]
        for name, one in groups.items()
    ]
    return table([["", "questions", "exact match", "F1"], *rows])
