"""Question answering: the span of a passage that answers a question (Devlin et al. 2018, sections 4.2 and 4.3).

    [CLS] question [SEP] window of the passage [SEP]  ->  start and end scores of each token  ->  the best span

A long passage is split into overlapping windows; the best span of all windows wins. The answer is cut from the passage
itself and keeps its case, accents and spaces. Data is in the format of SQuAD, or has a question in each row
(questions.py).
"""

import re
import string
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.special import softmax

from minibert.tables.texts import as_columns
from minibert.tables.writing import one_line
from minibert.tasks.base import Doubles, Encoded, Example, Logits, Measure, Prediction, Row, Task
from minibert.tasks.metrics import f1
from minibert.tasks.questions import Gold, Question, Questions, question_rows, read_questions
from minibert.tasks.settings import AnsweringSettings, ClassificationSettings
from minibert.text.tokenized import in_windows
from minibert.text.tokenizer import Tokenizer, TokenStats, TruncationWarning
from minibert.utils.printing import Figures, progress_bar, table
from minibert.utils.wording import named

NOWHERE = {"start_positions": 0, "end_positions": 0}  # [CLS]: the label if the answer is not in the window


# ---------------------------------------------------------------------------------------------------------------
# The task


class Passage(NamedTuple):
    """What `decode` needs of a question's passage."""

    windows: Sequence[range]  # the tokens of the passage in each window
    first: int  # position of a window's first token in its row
    offsets: Sequence[tuple[int, int]]  # characters of each token of the whole passage


# The sum of start and end score, and characters start .. end - 1 of the passage; from 0 to 0 is no answer.
Span = tuple[float, int, int]


@dataclass(frozen=True)
class Answering(AnsweringSettings, Task):
    """An answer to each question, cut from its passage.

    max_question: a longer question is truncated; None: 64, or half of the room beside `stride` if 64 do not fit.
    stride: tokens from the start of a window to the start of the next, as in Google's script (transformers' doc_stride
    is the overlap); None: 128, or half a window if that is less. null_threshold: the margin by which "no answer"
    must beat the best answer. unanswerable: whether "no answer" is allowed; None: if the data is SQuAD 2.0. repair: an
    answer that is not at its start in a file becomes the stripped one at the nearest place where it occurs; a question
    whose answers occur nowhere is left out. format, delimiter, encoding: of a file.
    """

    name = "answer"
    head = "question-answering"
    pairs = True
    row_length = 384
    main = "f1"

    def read(self, path: Any) -> Questions:
        """Return the questions of a file, see questions.read_questions."""
        return read_questions(path, self)

    def rows(self, path: str, how: ClassificationSettings) -> Iterator[Row] | None:
        """Return the questions of a file, answered or not, with their passages, unless columns are named."""
        return question_rows(path, how) if how.text is None and how.pair is None else None

    def from_texts(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Questions:
        """Return questions, `texts`, to be answered from passages, `pairs`."""
        questions, contexts = as_columns(texts, pairs)
        if contexts is None:
            raise ValueError("a question is answered from a passage; give the passages as second texts (pairs)")
        return Questions([Question(*row) for row in zip(questions, contexts, strict=True)], known=False)

    def labels_of(self, data: Questions) -> list[str]:
        """Return []: answers have no names. Raises ValueError without answers to learn from."""
        if not data.known or not any(question.answers for question in data.rows):
            raise ValueError(f"none of the {len(data)} questions has an answer; training needs some")
        return []

    def resolve(self, data: Questions) -> Self:
        """Return the task: a model trained on unanswerable questions, as in SQuAD 2.0, may always predict no answer."""
        return self if self.unanswerable is not None else replace(self, unanswerable=data.unanswerable)

    def encode(self, data: Questions, tokenizer: Tokenizer, labels: Sequence[str], max_length: int) -> Encoded:
        """Return a row for each window. Raises ValueError if max_question or stride leave too little of max_length."""
        max_length = tokenizer.resolve_max_length(max_length, pairs=True)
        template = tokenizer.template
        special = template.specials(pairs=True)
        spare = max_length - special - (self.stride or 0)  # for the question and the rest of a window
        max_question = self.max_question or (64 if spare > 64 else max(1, spare // 2))
        least = max_question + (self.stride or 0) + special + 1
        if max_length < least:
            needs = f" {max_question} and stride {self.stride} need {least}: raise the first, or lower these"
            raise ValueError(named("max_length") + f" is {max_length}; " + named("max_question") + needs)
        texts = list(dict.fromkeys(question.context for question in data.rows))  # each once, with all its questions
        contexts = dict(zip(texts, tokenizer.encode_each(texts), strict=True))
        examples: list[Example] = []
        back: list[Passage] = []
        split = truncated = longest = lost = 0
        questions = tokenizer.encode_each([question.question for question in data.rows])
        bar = progress_bar(questions, "encoding", len(data), unit="text")
        for row, pieces in zip(data.rows, bar, strict=True):
            context = contexts[row.context]
            question = tokenizer.truncate(pieces.ids, max_question)
            first = template.second(len(question))
            room = max_length - len(question) - special
            windows = in_windows(range(len(context.ids)), room, self.stride or max(1, min(128, room // 2)))
            answer = answer_tokens(row.answers[0], context.offsets) if row.answers else None
            found = [positions(answer, window, first) for window in windows]
            for window, known in zip(windows, found, strict=True):
                segments = template.segments(len(question), len(window))
                ids = template.row(question, context.ids[window.start : window.stop])
                examples.append(Example(ids, segments, known if data.known else {}))
            back.append(Passage(windows, first, context.offsets))
            split += len(windows) > 1
            truncated += len(pieces) > max_question
            longest = max(longest, len(pieces))
            too_long = answer is not None and answer[1] - answer[0] >= self.max_answer
            lost += bool(row.answers) and (too_long or all(one == NOWHERE for one in found))
        tokens = [id for one in contexts.values() for id in one.ids]
        tokenizer.warn(TokenStats(len(data), len(tokens), tokens.count(tokenizer.unk_id)), max_length)
        notes = self.notes_on(data, split, len(examples), lost)
        warning = TruncationWarning(
            truncated, len(data), max_question, longest, what="question", left=tokenizer.truncates_left
        )
        return Encoded(examples, notes=notes, truncation=warning if truncated else None, back=back)

    def notes_on(self, data: Questions, split: int, windows: int, lost: int) -> tuple[str, ...]:
        """Return notes on questions that were split, and on answers that are lost, repaired or left out."""
        counts = [
            (split, f"of {len(data):,} questions are split into windows, {windows:,} in all"),
            (lost, f"answers are in no window or over max_answer, {self.max_answer} tokens: they cannot be found"),
            (data.repaired, "answers were not at their start in the file: the nearest place was taken"),
            (data.left_out, "questions are left out: none of their answers is in the passage"),
        ]
        return tuple(f"{count:,} {text}" for count, text in counts if count)

    def decode(
        self, logits: Sequence[Logits], encoded: Encoded, data: Questions, labels: Sequence[str]
    ) -> list[Prediction]:
        """Return the best answer to each question over its windows, passage[start:end]; "" if none is good enough."""
        nullable = data.unanswerable if self.unanswerable is None else self.unanswerable
        remaining = iter(logits)
        answers = []
        for question, passage in zip(data.rows, encoded.back, strict=True):
            scores = [next(remaining).astype(np.float64) for _ in passage.windows]  # (2, tokens) each
            spans = (stripped(span, question.context) for span in self.best_spans(scores, passage))
            best_spans = sorted((span for span in spans if span[1] < span[2]), key=lambda span: (-span[0], *span[1:]))
            null = min(float(start[0] + end[0]) for start, end in scores) if nullable or not best_spans else None
            best = self.candidates(question.context, best_spans, null)
            none = not best_spans or (null is not None and null - best_spans[0][0] > self.null_threshold)
            answers.append(next(answer for answer in best if (answer["answer"] == "") == none))
        return answers

    def best_spans(self, scores: Sequence[Doubles], passage: Passage) -> Iterator[Span]:
        """Yield the best spans of each window, of up to max_answer tokens of the passage."""
        for window, (start, end) in zip(passage.windows, scores, strict=True):
            tokens = slice(passage.first, passage.first + len(window))
            for score, i, j in best_pairs(start[tokens], end[tokens], self.max_answer, self.n_best):
                yield score, passage.offsets[window[i]][0], passage.offsets[window[j]][1]

    def candidates(self, context: str, best_spans: Sequence[Span], null: float | None) -> list[Prediction]:
        """Return the n best answers of spans, the best first, and "", whose score is `null`, if that is allowed."""
        spans: dict[str, Span] = {}
        for span in best_spans:
            spans.setdefault(context[span[1] : span[2]], span)  # of equal texts the best
        best = list(spans.items())[: self.n_best]
        if null is not None:
            best = sorted([*best, ("", (null, 0, 0))], key=lambda item: -item[1][0])
        probabilities = softmax(np.array([score for _, (score, _, _) in best])).tolist()
        return [
            {"answer": text, "start": start, "end": end, "score": p}
            for (text, (_, start, end)), p in zip(best, probabilities, strict=True)
        ]

    def measure(self, answers: Sequence[Prediction], data: Questions, labels: Sequence[str]) -> Measure:
        """Return exact match and F1, 0 to 1, and the F1's standard error; for SQuAD 2.0 also with and without answer.

        Raises ValueError if the right answers are not known.
        """
        if not data.known:
            raise ValueError("these questions have no answers to compare with; evaluation needs them")
        pairs = zip(answers, data.rows, strict=True)
        # (N, 2)
        points = np.array([score_answer(one["answer"], question, data.unanswerable) for one, question in pairs])
        has = np.array([bool(question.answers) for question in data.rows])
        groups = {"all": has | True} | ({"has_answer": has, "no_answer": ~has} if data.unanswerable else {})
        by_group = {name: group_figures(points[group]) for name, group in groups.items() if group.any()}
        rows = [
            [name.replace("_", " "), f"{one['questions']:,}", *(f"{one[key]:.3f}" for key in ("exact_match", "f1"))]
            for name, one in by_group.items()
        ]
        error = f"\n\nstandard error of the F1 {by_group['all']['standard_error']:.3f}"
        figures = {**by_group.pop("all"), **by_group, "degenerate": not any(one["answer"] for one in answers)}
        return Measure(figures, self.main, table([["", "questions", "exact match", "F1"], *rows]) + error)

    def format_predictions(self, answers: Sequence[Prediction], data: Questions) -> list[str]:
        """Return answer, probability among the n best, and question."""
        return [
            one_line(answer["answer"], f"{answer['score']:.4f}", question.question)
            for answer, question in zip(answers, data.rows, strict=True)
        ]


def group_figures(points: Doubles) -> Figures:
    """Return the means of exact match and F1, (N, 2), and the standard error of the second."""
    exact_match, f1 = points.mean(axis=0).tolist()
    error = float(points[:, 1].std() / len(points) ** 0.5)
    return {"exact_match": exact_match, "f1": f1, "standard_error": error, "questions": len(points)}


# ---------------------------------------------------------------------------------------------------------------
# Windows


def best_pairs(start: Doubles, end: Doubles, most: int, count: int) -> list[tuple[float, int, int]]:
    """Return the `count` best start[i] + end[j], i <= j < i + most, with i and j, in no order; (n) and (n)."""
    n = len(start)
    most = min(most, n)
    if not n:
        return []
    ends = np.lib.stride_tricks.sliding_window_view(np.pad(end, (0, most - 1), constant_values=-np.inf), most)
    sums = (start[:, None] + ends).ravel()  # (n) and (n,most) -> (n·most), at i · most + j - i
    best = np.argpartition(-sums, count - 1)[:count] if count < len(sums) else np.arange(len(sums))
    return [(float(sums[x]), int(x // most), int(x // most + x % most)) for x in best if sums[x] > -np.inf]


def stripped(span: Span, context: str) -> Span:
    """Return the span without white space at its ends, which may belong to a token; empty if all of it is white."""
    score, start, end = span
    text = context[start:end]
    return score, end - len(text.lstrip()), start + len(text.rstrip())


def answer_tokens(answer: Gold, offsets: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the first and the last token of the passage with a character of the answer; None without such a token."""
    first = bisect_right(offsets, answer.start, key=lambda offset: offset[1])
    last = bisect_left(offsets, answer.start + len(answer.text), key=lambda offset: offset[0]) - 1
    return (first, last) if first <= last else None


def positions(answer: tuple[int, int] | None, window: range, first: int) -> dict[str, int]:
    """Return the positions of the answer's first and last token in the row; 0, [CLS], unless it is all there."""
    if answer is None or answer[0] not in window or answer[1] not in window:
        return NOWHERE
    start, end = (first + token - window.start for token in answer)
    return {"start_positions": start, "end_positions": end}


# ---------------------------------------------------------------------------------------------------------------
# The official score


def normalized_words(text: str) -> list[str]:
    """Return the words that count: lower case, without ASCII punctuation and the articles a, an, the."""
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def score_answer(answer: str, question: Question, unanswerable: bool) -> tuple[float, float]:
    """Return exact match and F1 of an answer, 0 to 1: the best over the right ones.

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
