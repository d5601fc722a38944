"""Question answering: the span of a passage that answers a question (Devlin et al. 2018, sections 4.2 and 4.3).

    [CLS] question [SEP] window of the passage [SEP]  ->  start and end scores of each token  ->  the best span

A long passage is split into overlapping windows. A span in several windows is scored in the window where its first
token has the most context on both sides. The answer is cut from the passage itself and keeps its case, accents and
spaces.
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
from scipy.special import softmax
from tqdm import tqdm

from minibert.printing import table
from minibert.settings import check, setting
from minibert.tasks.base import Encoded, Example, Logits, Measure, Task, one_line
from minibert.tasks.squad import Gold, Question, Questions, read_squad, score_answer
from minibert.text.texts import as_columns
from minibert.text.tokenized import TokenStats
from minibert.text.tokenizer import Tokenizer

GOOGLES_STRIDE = 128  # tokens, with rows of 384
NOWHERE = {"start_positions": 0, "end_positions": 0}  # [CLS]: the label where the answer is not in the window


class Window(NamedTuple):
    """Tokens start .. end - 1 of a passage, the first of them at position `first` of its row."""

    start: int
    end: int
    first: int


class Passage(NamedTuple):
    """What `decode` needs of a question's passage."""

    windows: list[Window]
    offsets: Sequence[tuple[int, int]]  # characters of each token of the whole passage


class Span(NamedTuple):
    """Characters start .. end - 1 of the passage, and the sum of start and end score; (0, 0) is no answer."""

    score: float
    start: int
    end: int


@dataclass(frozen=True)
class Answer:
    """A predicted answer; context[start:end] is its text, "" the answer that there is none."""

    text: str
    probability: float  # among the n best
    start: int
    end: int
    n_best: tuple[Answer, ...] = ()  # all candidates, the most probable first
    null_difference: float | None = None  # the score of no answer minus that of the best one; None: not allowed


@dataclass(frozen=True)
class Answering(Task):
    """An answer to each question, cut from its passage.

    max_question: a longer question is truncated. stride: tokens from the start of a window to that of the next, as in
    Google's script (transformers' doc_stride is the overlap); None: 128, or half a window where that is less.
    null_threshold: the margin by which "no answer" must beat the best answer. unanswerable: whether "no answer" is
    allowed; None: if the data is SQuAD 2.0. repair: see read_squad.
    """

    max_question: int = setting(64, "tokens of a question", minimum=1)
    stride: int | None = setting(None, "tokens from one window of a passage to the next (default: 128)", minimum=1)
    max_answer: int = setting(30, "tokens of an answer", minimum=1)
    n_best: int = setting(20, "candidate answers to keep", minimum=1)
    null_threshold: float = setting(0.0, "margin by which no answer must beat the best answer")
    unanswerable: bool | None = None
    repair: bool = setting(False, "take an answer that is not at its start from the nearest place where it occurs")

    name = "answer"
    head = "question-answering"
    row_length = 384
    main = "f1"
    data_help = "questions on passages: SQuAD 1.1 or 2.0 JSON"

    def __post_init__(self) -> None:
        check(self)

    def read(self, path: str | Path) -> Questions:
        """The questions of a SQuAD file: see read_squad."""
        return read_squad(path, self.repair)

    def from_texts(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Questions:
        """Questions, `texts`, to be answered from passages, `pairs`."""
        questions, contexts = as_columns(texts, pairs)
        if contexts is None:
            raise ValueError("a question is answered from a passage; give the passages as second texts (pairs)")
        return Questions([Question(*row) for row in zip(questions, contexts, strict=True)], known=False)

    def labels_of(self, data: Questions) -> list[str]:
        """[]: answers have no names. Raises ValueError without answers to learn from."""
        if not data.known or not any(question.answers for question in data.rows):
            raise ValueError(f"none of the {len(data)} questions has an answer; training needs some")
        return []

    def resolve(self, data: Questions) -> Answering:
        """A model trained on questions without answers, as in SQuAD 2.0, may always predict that there is none."""
        return self if self.unanswerable is not None else replace(self, unanswerable=data.unanswerable)

    def encode(self, data: Questions, tokenizer: Tokenizer, labels: Sequence[str], max_length: int) -> Encoded:
        """A row for each window. Raises ValueError where max_question or stride leave too little of max_length."""
        max_length, template = tokenizer.resolve_max_length(max_length, pairs=True), tokenizer.template
        self.check_room(max_length, max_length - self.max_question - template.specials(pairs=True))
        texts = list(dict.fromkeys(question.context for question in data.rows))  # each once, with all its questions
        contexts = dict(zip(texts, tokenizer.encode_each(texts), strict=True))
        examples: list[Example] = []
        back: list[Passage] = []
        lengths: list[int] = []  # of the questions
        torn = too_long = 0
        questions = tokenizer.encode_each([question.question for question in data.rows])
        bar = tqdm(questions, "encoding", len(data), leave=False, unit="text", delay=2, disable=None)
        for row, pieces in zip(data.rows, bar, strict=True):
            context, question = contexts[row.context], pieces.ids[: self.max_question]
            room = max_length - len(question) - template.specials(pairs=True)
            stride, first = self.stride or max(1, min(GOOGLES_STRIDE, room // 2)), template.second(len(question))
            windows = [Window(*span, first) for span in spans(len(context.ids), room, stride)]
            answer = answer_tokens(row.answers[0], context.offsets) if row.answers else None
            found = [positions(answer, window) for window in windows]
            for window, known in zip(windows, found, strict=True):
                ids = template.row(question, context.ids[window.start : window.end])
                segments = template.segments(len(question), window.end - window.start)
                examples.append(Example(ids, segments, known if data.known else {}))
            back.append(Passage(windows, context.offsets))
            lengths.append(len(pieces.ids))
            torn += bool(row.answers) and all(one == NOWHERE for one in found)
            too_long += answer is not None and answer[1] - answer[0] >= self.max_answer
        tokens = [one.ids for one in contexts.values()]
        unknown = sum(ids.count(tokenizer.unk_id) for ids in tokens)
        tokenizer.warn(TokenStats(len(data), sum(map(len, tokens)), unknown), max_length)
        counts = {
            f"of {len(data):,} questions are split into windows, {len(examples):,} in all": sum(
                len(one.windows) > 1 for one in back
            ),
            f"of {len(data):,} questions are longer than max_question {self.max_question} tokens (the longest has "
            f"{max(lengths, default=0)}) and were truncated": sum(one > self.max_question for one in lengths),
            "answers are whole in no window, and can be neither learned nor found": torn,
            f"answers have more than max_answer {self.max_answer} tokens, and cannot be found": too_long,
            "answers were not at their start in the file: the nearest place was taken": data.repaired,
        }
        return Encoded(examples, notes=tuple(f"{count:,} {text}" for text, count in counts.items() if count), back=back)

    def check_room(self, max_length: int, room: int) -> None:
        """Raise ValueError where the longest question leaves no tokens for a window, or less than one stride."""
        if room <= (self.stride or 0):
            least = max_length - room + (self.stride or 0) + 1
            raise ValueError(
                f"max_length is {max_length}; max_question {self.max_question} leaves windows of {room} tokens: raise "
                f"max_length to {least} or more, or lower max_question or stride ({self.stride or 'half a window'})"
            )

    def decode(
        self, logits: Sequence[Logits], encoded: Encoded, data: Questions, labels: Sequence[str]
    ) -> list[Answer]:
        """The best answer to each question over its windows, "" where none scores well enough."""
        nullable = data.unanswerable if self.unanswerable is None else self.unanswerable
        remaining = iter(logits)
        answers = []
        for question, passage in zip(data.rows, encoded.back, strict=True):
            scores = [next(remaining).astype(np.float64) for _ in passage.windows]  # (2, tokens) each
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
        """The answer from spans, the best first, and the score of no answer, None where that is not allowed."""
        spans: dict[str, Span] = {}
        for span in found:
            spans.setdefault(context[span.start : span.end], span)  # of equal texts the best
        best = list(spans.items())[: self.n_best]
        if null is not None:
            best = sorted([*best, ("", Span(null, 0, 0))], key=lambda item: -item[1].score)
        shares = softmax(np.array([span.score for _, span in best])).tolist()
        n_best = tuple(Answer(text, p, span.start, span.end) for (text, span), p in zip(best, shares, strict=True))
        difference = null - found[0].score if null is not None and found else None
        none = not found or (difference is not None and difference > self.null_threshold)
        chosen = next(one for one in n_best if (one.text == "") == none)
        return replace(chosen, n_best=n_best, null_difference=difference)

    def measure(self, answers: Sequence[Answer], data: Questions, labels: Sequence[str]) -> Measure:
        """Exact match and F1, 0 to 1, with the standard error of the F1; for SQuAD 2.0 also with and without answer.

        Raises ValueError where the right answers are not known.
        """
        if not data.known:
            raise ValueError("these questions have no answers to compare with; evaluation needs them")
        pairs = zip(answers, data.rows, strict=True)
        points = np.array([score_answer(answer.text, question, data.unanswerable) for answer, question in pairs])
        has = np.array([bool(question.answers) for question in data.rows])
        groups = {"all": np.ones_like(has)}
        if data.unanswerable:
            groups |= {"has_answer": has, "no_answer": ~has}
        found = {name: group_figures(points[group]) for name, group in groups.items() if group.any()}
        rows = [
            [name.replace("_", " "), f"{one['questions']:,}", *(f"{one[key]:.3f}" for key in ("exact_match", "f1"))]
            for name, one in found.items()
        ]
        figures: dict[str, Any] = found.pop("all")
        text = table([["", "questions", "exact match", "F1"], *rows])
        text += f"\n\nstandard error of the F1 {figures['standard_error']:.3f}"
        if none := not any(answer.text for answer in answers):
            text += "\nno question was answered"
        return Measure({**figures, **found, "degenerate": none}, self.main, text)

    def format_predictions(self, answers: Sequence[Answer], data: Questions) -> list[str]:
        """Answer, probability and question."""
        return [
            one_line(answer.text, f"{answer.probability:.4f}", question.question)
            for answer, question in zip(answers, data.rows, strict=True)
        ]


def group_figures(points: NDArray[np.float64]) -> dict[str, Any]:
    """The means of exact match and F1, (N, 2), and the standard error of the second."""
    exact_match, f1 = points.mean(axis=0).tolist()
    error = float(points[:, 1].std() / math.sqrt(len(points)))
    return {"exact_match": exact_match, "f1": f1, "standard_error": error, "questions": len(points)}


# ---------------------------------------------------------------------------------------------------------------
# Windows


def spans(tokens: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """Start and end of windows of up to `room` tokens, `stride` apart, until one reaches the end; at least one."""
    for start in range(0, max(tokens - room, 0) + stride, stride):
        yield start, min(start + room, tokens)


def best_context(windows: Sequence[Window]) -> list[NDArray[np.bool_]]:
    """For each token of each window, whether it has the most context in this window: Google's max context.

    That is the shorter of both sides plus a hundredth of the window's length; ties go to the first window.
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
    """The first and the last token of the passage with a character of the answer; None without such a token."""
    first = bisect_right(offsets, answer.start, key=lambda offset: offset[1])
    last = bisect_left(offsets, answer.start + len(answer.text), key=lambda offset: offset[0]) - 1
    return (first, last) if first <= last else None


def positions(answer: tuple[int, int] | None, window: Window) -> dict[str, int]:
    """The positions in the row of the answer's first and last token; 0, [CLS], unless all of it is in the window."""
    if answer is None or answer[0] < window.start or answer[1] >= window.end:
        return NOWHERE
    first, last = (window.first + token - window.start for token in answer)
    return {"start_positions": first, "end_positions": last}
