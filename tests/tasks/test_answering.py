"""Answers are cut from the passage itself, by windows that lose nothing, and measured."""

import itertools
import json
import math
import warnings
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import HARD_TEXTS, minilm_folder
from transformers import AutoTokenizer

from minibert.tasks.answering import (
    Answering,
    Gold,
    Passage,
    Question,
    Questions,
    answer_tokens,
)
from minibert.tasks.base import Encoded
from minibert.text.tokenizer import UnknownTokensWarning, load_tokenizer

FOLDER = minilm_folder()
TOKENIZER = load_tokenizer(FOLDER)
REFERENCE = AutoTokenizer.from_pretrained(FOLDER)
PASSAGE = "In 1854, the Café Müller opened in Wien. Its owner, Ann Lee, was born in Rome and died there in 1901."
TEXT = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), st.sampled_from(HARD_TEXTS))


def gold(text: str, context: str = PASSAGE) -> Gold:
    return Gold(text, context.index(text))


def asked(*answers: str, question: str = "Where was she born?", context: str = PASSAGE) -> Question:
    return Question(question, context, tuple(gold(answer, context) for answer in answers))


def encode(task: Answering, data: Questions, max_length: int = 384) -> Encoded:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownTokensWarning)
        return task.encode(data, TOKENIZER, [], max_length)


def certain(encoded: Encoded) -> list[Any]:
    """Logits that are sure of the labels; less so of [CLS], which stands for another window."""
    found = []
    for one in encoded.examples:
        logits = np.zeros((2, len(one.ids)), dtype=np.float32)
        for row, place in enumerate(one.labels.values()):
            logits[row, place] = 9 if place else 1
        found.append(logits)
    return found


def drawn(encoded: Encoded, seed: int = 0) -> list[Any]:
    generator = np.random.default_rng(seed)
    return [generator.normal(size=(2, len(one.ids))).astype(np.float32) for one in encoded.examples]


ONE = Questions([asked("Rome")])


# -- settings


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda: encode(Answering(max_question=64), ONE, 67),
            r"max_length is 67.*max_question 64.*stride None.* 68",
        ),
        (lambda: encode(Answering(max_question=64, stride=61), ONE, 128), r"max_question 64.*stride 61.* 129"),
        (lambda: encode(Answering(stride=128), ONE, 128), r"max_length is 128.*stride 128.* 133"),
        (lambda: encode(Answering(), ONE, 4), r"max_length is 4\b.* 5\b"),
        (lambda: Answering().labels_of(Questions([])), r"\b0 questions"),
        (lambda: Answering().labels_of(Questions([asked()], known=False)), r"\b1 questions"),
        (lambda: Answering().labels_of(Questions([asked()] * 2, unanswerable=True)), r"\b2 questions"),
        (lambda: Answering().from_texts(["why?"]), "second texts"),
        (lambda: answered(Answering(), Answering().from_texts(["why?"], [PASSAGE]), "x"), "answers"),
    ],
)
def test_settings_and_questions_that_do_not_fit_are_refused(use, message):
    with pytest.raises(ValueError, match=message):
        use()


@pytest.mark.parametrize("max_length", [6, 7, 12, 20, 40, 67, 68, 130, 131, 200])
@pytest.mark.parametrize("stride", [None, 1])
def test_a_model_of_few_positions_reads_shorter_questions_and_windows(max_length, stride):
    data = Questions([asked("Rome", question="where " * 70)])
    encoded = encode(Answering(stride=stride), data, max_length)
    room = max_length - 3
    most = 64 if room - (stride or 0) > 64 else max(1, (room - (stride or 0)) // 2)
    assert [one.segments.index(1) - 2 for one in encoded.examples] == [most] * len(encoded.examples)
    assert encoded.truncation and f"longer than {most} tokens" in str(encoded.truncation)
    (passage,) = encoded.back
    assert sorted({token for window in passage.windows for token in window}) == list(range(len(passage.offsets)))


def test_questions_that_are_left_out_are_counted():
    data = Questions([asked("Rome")], left_out=2)
    assert encode(Answering(), data).notes == ("2 questions are left out: none of their answers is in the passage",)


# -- windows


@settings(max_examples=60, deadline=None)
@given(question=TEXT, context=TEXT)
def test_a_row_is_that_of_transformers(question, context):
    encoded = encode(Answering(max_question=200), Questions([Question(question, context)], known=False), 512)
    theirs = REFERENCE(question, context)
    if context and len(encoded.examples) == 1 and not encoded.notes:
        assert encoded.examples[0].ids == theirs["input_ids"]
        assert encoded.examples[0].segments == theirs["token_type_ids"]
        assert encoded.examples[0].labels == {}


@pytest.mark.parametrize("stride", [1, 7, 20])
def test_windows_are_those_of_transformers_whose_stride_is_the_overlap(stride):
    context, question = PASSAGE * 3, "Where was she born?"
    encoded = encode(Answering(max_question=8, stride=stride), Questions([Question(question, context)]), 40)
    room = 40 - len(REFERENCE(question)["input_ids"]) - 1
    how = {"truncation": "only_second", "stride": room - stride, "return_overflowing_tokens": True}
    theirs = REFERENCE(question, context, max_length=40, **how)
    assert [one.ids for one in encoded.examples] == theirs["input_ids"]
    assert [one.segments for one in encoded.examples] == theirs["token_type_ids"]
    assert encoded.notes[0] == f"1 of 1 questions are split into windows, {len(encoded.examples)} in all"


def test_a_question_that_fits_is_whole_where_long_texts_lose_their_beginnings(monkeypatch):
    data, task = Questions([asked(question="Where was she born?")], known=False), Answering(max_question=8)
    whole = encode(task, data, 40).examples  # its 5 tokens are more than half of 8
    monkeypatch.setattr(TOKENIZER, "truncates_left", True)
    assert [one.ids for one in encode(task, data, 40).examples] == [one.ids for one in whole]


def test_a_question_that_is_too_long_is_cut_and_counted():
    question = "where " * 70
    encoded = encode(Answering(), Questions([asked("Rome", question=question), asked("Rome")]))
    assert encoded.examples[0].segments.index(1) == 66
    assert "1 of 2 questions is longer than 64 tokens (the longest has 70)" in str(encoded.truncation)


# -- labels


@settings(max_examples=60, deadline=None)
@given(words=st.lists(TEXT, min_size=1, max_size=12), data=st.data(), max_length=st.sampled_from([24, 40, 512]))
def test_an_answer_is_labelled_in_every_window_that_has_it_and_what_is_labelled_is_answered(words, data, max_length):
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, len(words) - 1))
    context, answer = " ".join(words), " ".join(words[first : last + 1])
    start = len(" ".join([*words[:first], ""]))
    hypothesis.assume(answer.strip())
    task = Answering(max_question=8, max_answer=512)
    questions = Questions([Question("where?", context, (Gold(answer, start),))])
    encoded = encode(task, questions, max_length)
    (passage,) = encoded.back
    wanted = [n for n, (a, z) in enumerate(passage.offsets) if a < start + len(answer) and z > start]
    expected = []  # (0, 0), which is [CLS], where a window has not all of the answer
    for window in passage.windows:
        here = [passage.first + n - window.start for n in wanted if n in window]
        expected.append((here[0], here[-1]) if wanted and len(here) == len(wanted) else (0, 0))
    assert [tuple(example.labels.values()) for example in encoded.examples] == expected
    if any(place > (0, 0) for place in expected):
        (found,) = task.decode(certain(encoded), encoded, questions, [])
        assert (found["start"], found["end"]) == (passage.offsets[wanted[0]][0], passage.offsets[wanted[-1]][1])


@pytest.mark.parametrize(
    ("task", "max_length", "limit"), [(Answering(max_question=8), 24, 30), (Answering(max_answer=5), 384, 5)]
)
def test_an_answer_that_fits_no_window_or_is_too_long_is_counted(task, max_length, limit):
    note = f"1 answers are in no window or over max_answer, {limit} tokens: they cannot be found"
    assert encode(task, Questions([asked(PASSAGE[4:80])]), max_length).notes[-1] == note


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [(Gold("el", 1), (0, 0)), (Gold("o w", 4), (0, 1)), (Gold("d.", 10), (1, 2)), (Gold(" ", 5), None)],
)
def test_an_answer_in_the_middle_of_a_token_is_that_token(answer, tokens):
    assert answer_tokens(answer, [(0, 5), (6, 11), (11, 12)]) == tokens


# -- decoding


def slowly(encoded: Encoded, logits: list[Any], context: str, max_answer: int) -> list[tuple[float, str]]:
    """Every span of a question with its score, the best first, by loops."""
    (passage,) = encoded.back
    found = []
    for number, window in enumerate(passage.windows):
        for i, j in itertools.product(window, repeat=2):
            if i <= j < i + max_answer:
                start, end = (passage.first + token - window.start for token in (i, j))
                text = context[passage.offsets[i][0] : passage.offsets[j][1]]
                found.append((float(logits[number][0, start]) + float(logits[number][1, end]), text))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("max_length", [24, 40, 384])
@pytest.mark.parametrize("max_answer", [1, 4, 30])
@pytest.mark.parametrize("seed", range(3))
def test_the_n_best_are_the_best_of_all_spans(max_length, max_answer, seed):
    task = Answering(max_question=8, max_answer=max_answer, n_best=6)
    data = Questions([asked("Rome")])
    encoded = encode(task, data, max_length)
    logits = drawn(encoded, seed)
    (found,) = task.decode(logits, encoded, data, [])
    expected = list(dict.fromkeys(text for _, text in slowly(encoded, logits, PASSAGE, max_answer)))[:6]
    spans = sorted(task.best_spans(logits, encoded.back[0]), key=lambda span: (-span[0], *span[1:]))
    n_best = task.candidates(PASSAGE, spans, None)
    assert [one["answer"] for one in n_best] == expected
    assert math.isclose(sum(one["score"] for one in n_best), 1.0)
    assert found["answer"] == expected[0]


def test_an_answer_has_no_white_space_at_its_ends_where_tokens_have_it():
    context = "born  in  Normandy"
    encoded = Encoded([], back=[Passage([range(5)], 1, [(0, 4), (4, 8), (8, 9), (8, 18), (18, 18)])])
    task, data = Answering(), Questions([asked(context=context)], known=False)
    for first, last, expected in ((3, 3, ("Normandy", 10, 18)), (1, 2, ("in", 6, 8)), (2, 2, ("born  in", 0, 8))):
        logits = np.full((2, 6), -9.0)
        logits[0, 1 + first] = logits[1, 1 + last] = 9.0
        logits[:, 1] += 15.0  # the next best
        (found,) = task.decode([logits], encoded, data, [])
        assert (found["answer"], found["start"], found["end"]) == expected


@settings(max_examples=80, deadline=None)
@given(
    question=TEXT,
    context=TEXT,
    seed=st.integers(0, 99),
    max_answer=st.integers(1, 9),
    unanswerable=st.booleans(),
)
def test_an_answer_never_leaves_the_passage(question, context, seed, max_answer, unanswerable):
    task = Answering(max_question=10, max_answer=max_answer, unanswerable=unanswerable)
    data = task.from_texts([question], [context])
    encoded = encode(task, data, 20)
    (answer,) = task.decode(drawn(encoded, seed), encoded, data, [])
    tokens = encoded.back[0].offsets
    assert answer["answer"] == context[answer["start"] : answer["end"]]
    assert (
        sum(answer["start"] <= a and z <= answer["end"] for a, z in tokens) <= max_answer + 9
    )  # some share a character
    assert answer["answer"] or unanswerable or not tokens


@pytest.mark.parametrize(
    ("null", "task", "unanswerable", "expected"),
    [
        (17.5, Answering(), True, "Rome"),
        (18.5, Answering(), True, ""),
        (18.5, Answering(null_threshold=1.0), True, "Rome"),
        (17.5, Answering(null_threshold=-1.0), True, ""),
        (90.0, Answering(), False, "Rome"),
        (90.0, Answering(unanswerable=False), True, "Rome"),
        (90.0, Answering(unanswerable=True), False, ""),
    ],
)
def test_there_is_no_answer_where_that_scores_better_by_more_than_the_threshold(null, task, unanswerable, expected):
    data = Questions([asked("Rome")], unanswerable=unanswerable)
    encoded = encode(task, data)
    logits = certain(encoded)  # of the best span 18
    logits[0][:, 0] = null / 2
    (answer,) = task.decode(logits, encoded, data, [])
    assert answer["answer"] == expected == PASSAGE[answer["start"] : answer["end"]]


def test_no_answer_scores_what_it_scores_in_the_window_that_is_least_sure_of_it():
    task, data = Answering(max_question=8, stride=8), Questions([asked("Rome")], unanswerable=True)
    encoded = encode(task, data, 24)
    logits = certain(encoded)
    for number, window in enumerate(logits):
        window[:, 0] = 50 if number else 4
    assert task.decode(logits, encoded, data, [])[0]["answer"] == "Rome"  # 18, against 8 of the first window


def test_a_line_is_answer_probability_and_question():
    data = Answering().from_texts(["Where\twas\nshe?"], ["a \n b"])
    answer = {"answer": "a \n b", "score": 0.5}
    assert Answering().format_predictions([answer], data) == ["a   b\t0.5000\tWhere was she?"]


# -- measures


def answered(task: Answering, data: Questions, *texts: str) -> Any:
    """A measure of answers that have these texts."""
    return task.measure([{"answer": text} for text in texts], data, [])


def test_a_measure_is_the_mean_over_questions_of_version_2_with_and_without_answer_too():
    measure = answered(Answering(), Questions([asked("Rome"), asked("Café Müller", "1854")]), "in Rome", "Café")
    expected = {"exact_match": 0.0, "f1": 2 / 3, "standard_error": 0.0, "questions": 2, "degenerate": False}
    assert measure.figures == pytest.approx(expected)
    data = Questions([asked("Rome"), asked("1854"), asked()], unanswerable=True)
    figures = answered(Answering(), data, "Rome", "", "").figures
    assert figures["exact_match"] == figures["f1"] == pytest.approx(2 / 3)
    assert (figures["has_answer"]["f1"], figures["has_answer"]["questions"]) == (0.5, 2)
    assert (figures["no_answer"]["exact_match"], figures["degenerate"]) == (1.0, False)
    assert json.loads(json.dumps(figures)) == figures
    assert answered(Answering(), data, "", "", "").figures["degenerate"]
