"""Answers are cut from the passage itself, by windows that lose nothing, and scored by the official rules."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import HARD_TEXTS, minilm_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from minibert.tasks.answering import Answering, Window, answer_tokens, best_context, best_pairs, spans
from minibert.tasks.base import Encoded
from minibert.tasks.squad import Gold, Question, Questions, read_squad, score_answer
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
    """Random logits."""
    generator = np.random.default_rng(seed)
    return [generator.normal(size=(2, len(one.ids))).astype(np.float32) for one in encoded.examples]


# ---------------------------------------------------------------------------------------------------------------
# Files


def squad(*questions: dict[str, Any], version: str = "1.1", context: str = PASSAGE) -> dict[str, Any]:
    paragraphs = [{"context": context, "qas": [{"id": f"q{n}", "question": "?"} | q for n, q in enumerate(questions)]}]
    return {"version": version, "data": [{"title": "t", "paragraphs": paragraphs}]}


def written(folder: Path, content: object) -> Path:
    path = folder / "squad.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


ROME = {"question": "Where?", "answers": [gold("Rome")._asdict() | {"answer_start": PASSAGE.index("Rome")}]}
NONE = {"question": "Why?", "answers": [], "is_impossible": True}


def test_questions_are_read_with_their_passages_and_answers(tmp_path: Path) -> None:
    path = written(tmp_path, squad(ROME, ROME))
    data = Answering().read(path)
    assert (len(data), data.known, data.unanswerable) == (2, True, False)
    assert (data.rows[0].question, data.rows[0].context) == ("Where?", PASSAGE)
    assert data.rows[0].answers == (gold("Rome"),)
    packed = tmp_path / "squad.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert [row.answers for row in read_squad(packed).rows] == [row.answers for row in data.rows]


@pytest.mark.parametrize(
    "content",
    [
        squad(ROME, version="v2.0"),
        squad(ROME, NONE),
        squad(ROME, {"question": "Why?", "is_impossible": True}),
        squad(ROME | {"is_impossible": False}),
    ],
)
def test_version_2_is_known_by_its_name_or_by_what_may_be_impossible(tmp_path: Path, content: Any) -> None:
    data = read_squad(written(tmp_path, content))
    assert data.unanswerable
    assert data.rows[0].answers == (gold("Rome"),)
    assert all(row.answers == () for row in data.rows[1:])


WHERE = r"squad\.json, data\[0\]\.paragraphs\[0\]\.qas\[0\]"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], r"squad\.json is not as in SQuAD: 'list'"),
        ({"version": "1.1"}, r"squad\.json is not as in SQuAD: no 'data'"),
        ({"data": ["x"]}, r"squad\.json is not as in SQuAD: string indices"),
        ({"data": []}, r"squad\.json holds no questions"),
        (squad(ROME, context=3), rf"{WHERE} is not as in SQuAD: .* expected str"),
        (squad({"question": None}), rf"{WHERE} is not as in SQuAD: no 'answers'"),
        (squad({"question": 1, "answers": ROME["answers"]}), rf"{WHERE} is not .*: expected str"),
        (squad({"answers": []}), rf"{WHERE} is not .*: there is no answer; in SQuAD 2.0 such a question is marked"),
        (squad({"answers": [{"text": "Rome"}]}), rf"{WHERE} is not as in SQuAD: no 'answer_start'"),
        (squad({"answers": [{"text": "Rome", "answer_start": "3"}]}), rf"{WHERE} is not as in SQuAD: '>='"),
        (squad({"answers": [{"text": " ", "answer_start": 2}]}), rf'{WHERE} is not .*: the answer " " is not at'),
    ],
)
def test_a_file_that_is_not_squad_is_refused_by_place(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_squad(written(tmp_path, content))


def test_a_file_that_is_no_json_is_refused_by_line(tmp_path: Path) -> None:
    (tmp_path / "squad.json").write_text('{"data":\n[}')
    with pytest.raises(ValueError, match=r"squad\.json is not as in SQuAD: .* line 2"):
        read_squad(tmp_path / "squad.json")


@pytest.mark.parametrize("start", [0, 76, 1000, -4])
def test_an_answer_that_is_not_where_it_says_is_refused_with_both_strings(tmp_path: Path, start: int) -> None:
    content = squad({"answers": [{"text": "Rome", "answer_start": start}]})
    there = PASSAGE[start : start + 4] if start >= 0 else ""
    with pytest.raises(
        ValueError, match=f"the answer 'Rome' is not at character {start}, where the passage has '{there}'"
    ):
        read_squad(written(tmp_path, content))


@pytest.mark.parametrize(("text", "start"), [("Rome", 0), (" Rome ", 60), ("Rome\n", 71), ("Rome", -4)])
def test_an_answer_is_repaired_where_that_is_asked_for(tmp_path: Path, text: str, start: int) -> None:
    path = written(tmp_path, squad({"answers": [{"text": text, "answer_start": start}]}))
    data = Answering(repair=True).read(path)
    assert data.rows[0].answers == (gold("Rome"),)
    assert encode(Answering(), data).notes == (
        "1 answers were not at their start in the file: the nearest place was taken",
    )


def test_the_nearest_of_several_places_is_taken(tmp_path: Path) -> None:
    context = "Rome or Rome or Rome"
    path = written(tmp_path, squad({"answers": [{"text": "Rome", "answer_start": 10}]}, context=context))
    assert read_squad(path, repair=True).rows[0].answers == (Gold("Rome", 8),)


# ---------------------------------------------------------------------------------------------------------------
# Settings


@pytest.mark.parametrize("name", ["max_question", "stride", "max_answer", "n_best"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_a_setting_out_of_range_is_refused(name: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{name} is {value}; it must be (at least 1|an int)"):
        Answering(**{name: value})


def test_questions_that_leave_no_room_for_the_passage_are_refused_with_numbers() -> None:
    with pytest.raises(ValueError, match=r"max_length is 67; max_question 64 .* raise max_length to 68 or more"):
        encode(Answering(), Questions([asked("Rome")]), max_length=67)
    assert encode(Answering(), Questions([asked("Rome")]), max_length=68).examples


@pytest.mark.parametrize("stride", [61, 128])
def test_a_stride_that_skips_or_does_not_overlap_is_refused_with_numbers(stride: int) -> None:
    with pytest.raises(ValueError, match=rf"max_length is 128; .* windows of 61 tokens: .* or stride \({stride}\)"):
        encode(Answering(stride=stride), Questions([asked("Rome")]), max_length=128)
    assert encode(Answering(stride=60), Questions([asked("Rome")]), max_length=128).examples


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Questions([]), "none of the [01] questions has an answer"),
        (Questions([asked()], known=False), "none of the [01] questions has an answer"),
        (Questions([asked(), asked()], unanswerable=True), "none of the 2 questions has an answer"),
    ],
)
def test_questions_from_which_nothing_can_be_learned_are_refused(data: Questions, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Answering().labels_of(data)


# ---------------------------------------------------------------------------------------------------------------
# Windows


@given(tokens=st.integers(0, 300), room=st.integers(1, 80), stride=st.integers(1, 80))
def test_windows_hold_every_token_and_no_window_is_needless(tokens: int, room: int, stride: int) -> None:
    stride = min(stride, room)
    found = list(spans(tokens, room, stride))
    assert {token for start, end in found for token in range(start, end)} == set(range(tokens))
    assert all(0 <= end - start <= room for start, end in found)
    assert [start for start, _ in found] == list(range(0, len(found) * stride, stride))
    assert all(end < tokens for _, end in found[:-1])
    assert found[-1][1] == tokens


@settings(max_examples=60, deadline=None)
@given(question=TEXT, context=TEXT)
def test_a_row_is_that_of_transformers(question: str, context: str) -> None:
    encoded = encode(Answering(max_question=200), Questions([Question(question, context)], known=False), 512)
    theirs = REFERENCE(question, context)
    if context and len(encoded.examples) == 1 and not encoded.notes:
        assert encoded.examples[0].ids == theirs["input_ids"]
        assert encoded.examples[0].segments == theirs["token_type_ids"]
        assert encoded.examples[0].labels == {}


@pytest.mark.parametrize("stride", [1, 7, 20])
def test_windows_are_those_of_transformers_whose_stride_is_the_overlap(stride: int) -> None:
    context, question = PASSAGE * 3, "Where was she born?"
    encoded = encode(Answering(max_question=8, stride=stride), Questions([Question(question, context)]), 40)
    room = 40 - len(REFERENCE(question)["input_ids"]) - 1
    theirs = REFERENCE(
        question,
        context,
        max_length=40,
        truncation="only_second",
        stride=room - stride,
        return_overflowing_tokens=True,
    )
    assert [one.ids for one in encoded.examples] == theirs["input_ids"]
    assert [one.segments for one in encoded.examples] == theirs["token_type_ids"]
    assert encoded.notes[0] == f"1 of 1 questions are split into windows, {len(encoded.examples)} in all"


def test_a_question_that_is_too_long_is_cut_and_that_is_said() -> None:
    question = "where " * 70
    encoded = encode(Answering(), Questions([asked("Rome", question=question), asked("Rome")]))
    assert encoded.examples[0].segments.index(1) == 66
    assert encoded.notes == (
        "1 of 2 questions are longer than max_question 64 tokens (the longest has 70) and were truncated",
    )


@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6), step=st.integers(1, 8))
def test_best_context_is_googles(sizes: list[int], step: int) -> None:
    windows = [Window(number * step, number * step + size, 0) for number, size in enumerate(sizes)]
    windows[-1] = windows[-1]._replace(end=max(window.end for window in windows))
    here = best_context(windows)
    for token in range(windows[-1].end):
        scores = {
            number: min(token - start, end - 1 - token) + 0.01 * (end - start)
            for number, (start, end, _) in enumerate(windows)
            if start <= token < end
        }
        found = [number for number in scores if here[number][token - windows[number].start]]
        assert found == ([max(scores, key=lambda number: (scores[number], -number))] if scores else [])


# ---------------------------------------------------------------------------------------------------------------
# Labels


@pytest.mark.parametrize("answer", ["Rome", "Café Müller", "1854", "Ann Lee", "1901", "In"])
@pytest.mark.parametrize("max_length", [24, 40, 384])
def test_what_is_labelled_is_what_is_answered(answer: str, max_length: int) -> None:
    task = Answering(max_question=8)
    data = Questions([asked(answer)])
    encoded = encode(task, data, max_length)
    (found,) = task.decode(certain(encoded), encoded, data, [])
    assert found.text == answer == PASSAGE[found.start : found.end]


@settings(max_examples=60, deadline=None)
@given(words=st.lists(TEXT, min_size=1, max_size=12), data=st.data(), max_length=st.sampled_from([40, 512]))
def test_the_tokens_of_an_answer_are_labelled_in_every_window_that_has_them(
    words: list[str], data: Any, max_length: int
) -> None:
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, len(words) - 1))
    context, answer = " ".join(words), " ".join(words[first : last + 1])
    start = len(" ".join([*words[:first], ""]))
    if not answer.strip():
        return
    task = Answering(max_question=8, max_answer=512)
    questions = Questions([Question("where?", context, (Gold(answer, start),))])
    encoded = encode(task, questions, max_length)
    (passage,) = encoded.back
    wanted = [n for n, (a, z) in enumerate(passage.offsets) if a < start + len(answer) and z > start]
    for window, example in zip(passage.windows, encoded.examples, strict=True):
        here = [window.first + n - window.start for n in wanted if window.start <= n < window.end]
        whole = wanted and len(here) == len(wanted)
        assert tuple(example.labels.values()) == ((here[0], here[-1]) if whole else (0, 0))
    if wanted and len(passage.windows) == 1:
        (found,) = task.decode(certain(encoded), encoded, questions, [])
        assert (found.start, found.end) == (passage.offsets[wanted[0]][0], passage.offsets[wanted[-1]][1])


def test_a_window_without_the_answer_points_at_cls() -> None:
    encoded = encode(Answering(max_question=8, stride=8), Questions([asked("Rome")]), 24)
    labels = [(one.labels["start_positions"], one.labels["end_positions"]) for one in encoded.examples]
    assert (0, 0) in labels
    tokens = {tuple(one.ids[a : z + 1]) for one, (a, z) in zip(encoded.examples, labels, strict=True) if a}
    assert tokens == {tuple(REFERENCE("rome", add_special_tokens=False)["input_ids"])}


def test_an_answer_that_fits_no_window_or_is_longer_than_any_is_counted() -> None:
    answer = PASSAGE[4:80]
    encoded = encode(Answering(max_question=8, max_answer=5), Questions([asked(answer)]), 24)
    assert encoded.notes[1:] == (
        "1 answers are whole in no window, and can be neither learned nor found",
        "1 answers have more than max_answer 5 tokens, and cannot be found",
    )


def test_an_answer_in_the_middle_of_a_token_is_that_token() -> None:
    offsets = [(0, 5), (6, 11), (11, 12)]
    assert answer_tokens(Gold("el", 1), offsets) == (0, 0)
    assert answer_tokens(Gold("o w", 4), offsets) == (0, 1)
    assert answer_tokens(Gold("d.", 10), offsets) == (1, 2)
    assert answer_tokens(Gold(" ", 5), offsets) is None


# ---------------------------------------------------------------------------------------------------------------
# Decoding


def slowly(encoded: Encoded, logits: list[Any], context: str, max_answer: int) -> list[tuple[float, str]]:
    """Every span of a question with its score, the best first, by loops."""
    (passage,) = encoded.back
    here = best_context(passage.windows)
    found = []
    for number, window in enumerate(passage.windows):
        for i, j in itertools.product(range(window.start, window.end), repeat=2):
            if i <= j < i + max_answer and here[number][i - window.start]:
                start, end = (window.first + token - window.start for token in (i, j))
                text = context[passage.offsets[i][0] : passage.offsets[j][1]]
                found.append((float(logits[number][0, start]) + float(logits[number][1, end]), text))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("max_length", [24, 40, 384])
@pytest.mark.parametrize("max_answer", [1, 4, 30])
@pytest.mark.parametrize("seed", range(3))
def test_the_n_best_are_the_best_of_all_spans(max_length: int, max_answer: int, seed: int) -> None:
    task = Answering(max_question=8, max_answer=max_answer, n_best=6)
    data = Questions([asked("Rome")])
    encoded = encode(task, data, max_length)
    logits = drawn(encoded, seed)
    (found,) = task.decode(logits, encoded, data, [])
    expected = list(dict.fromkeys(text for _, text in slowly(encoded, logits, PASSAGE, max_answer)))[:6]
    assert [one.text for one in found.n_best] == expected
    assert found.text == expected[0]
    assert found.null_difference is None


@settings(max_examples=150, deadline=None)
@given(
    question=TEXT,
    context=TEXT,
    seed=st.integers(0, 99),
    max_answer=st.integers(1, 9),
    unanswerable=st.booleans(),
)
def test_an_answer_never_leaves_the_passage(
    question: str, context: str, seed: int, max_answer: int, unanswerable: bool
) -> None:
    task = Answering(max_question=10, max_answer=max_answer, unanswerable=unanswerable)
    data = task.from_texts([question], [context])
    encoded = encode(task, data, 20)
    (answer,) = task.decode(drawn(encoded, seed), encoded, data, [])
    tokens = encoded.back[0].offsets
    for one in (answer, *answer.n_best):
        assert one.text == context[one.start : one.end]
        assert (
            sum(one.start <= a and z <= one.end for a, z in tokens) <= max_answer + 9
        )  # several may share a character
        assert one.text or unanswerable or not tokens
    assert math.isclose(sum(one.probability for one in answer.n_best), 1.0)
    assert [one.probability for one in answer.n_best] == sorted((x.probability for x in answer.n_best), reverse=True)
    assert len({one.text for one in answer.n_best}) == len(answer.n_best)


@pytest.mark.parametrize(("n", "most", "count"), [(0, 30, 20), (1, 1, 1), (5, 3, 4), (7, 30, 100), (40, 30, 20)])
def test_the_best_pairs_are_those_of_two_loops(n: int, most: int, count: int) -> None:
    start, end = np.random.default_rng(n).normal(size=(2, n))
    every = sorted(((start[i] + end[j], i, j) for i in range(n) for j in range(i, min(n, i + most))), reverse=True)
    assert sorted(best_pairs(start, end, most, count), reverse=True) == every[:count]


def null_and_best(null: float, task: Answering, unanswerable: bool = True) -> Any:
    """The answer where the best span scores 18 and no answer scores `null` in the one window."""
    data = Questions([asked("Rome")], unanswerable=unanswerable)
    encoded = encode(task, data)
    logits = certain(encoded)
    logits[0][:, 0] = null / 2
    return task.decode(logits, encoded, data, [])[0]


def test_there_is_no_answer_where_that_scores_better_by_more_than_the_threshold() -> None:
    assert null_and_best(17.5, Answering()).text == "Rome"
    assert null_and_best(90.0, Answering(), unanswerable=False).text == "Rome"
    assert null_and_best(90.0, Answering(unanswerable=False)).text == "Rome"
    assert null_and_best(90.0, Answering(unanswerable=True), unanswerable=False).text == ""
    assert null_and_best(18.5, Answering()).text == ""
    assert null_and_best(18.5, Answering(null_threshold=1.0)).text == "Rome"
    assert null_and_best(17.5, Answering(null_threshold=-1.0)).text == ""
    answer = null_and_best(18.5, Answering())
    assert answer.null_difference == pytest.approx(0.5)
    assert (answer.start, answer.end) == (0, 0)
    assert [one.text for one in answer.n_best[:2]] == ["", "Rome"]
    assert answer.probability == answer.n_best[0].probability


def test_no_answer_scores_what_it_scores_in_the_window_that_is_least_sure_of_it() -> None:
    task, data = Answering(max_question=8, stride=8), Questions([asked("Rome")], unanswerable=True)
    encoded = encode(task, data, 24)
    logits = certain(encoded)
    for number, window in enumerate(logits):
        window[:, 0] = 50 if number else 4
    (answer,) = task.decode(logits, encoded, data, [])
    assert answer.text == "Rome"
    assert answer.null_difference == pytest.approx(8 - 18)


def test_a_passage_of_nothing_has_the_empty_answer() -> None:
    task = Answering()
    data = task.from_texts(["why?", "where?"], ["", "\u200b"])
    encoded = encode(task, data)
    answers = task.decode(drawn(encoded), encoded, data, [])
    assert [(one.text, one.probability) for one in answers] == [("", 1.0), ("", 1.0)]


def test_questions_and_passages_come_in_pairs() -> None:
    with pytest.raises(ValueError, match="give the passages as second texts"):
        Answering().from_texts(["why?"])
    with pytest.raises(ValueError, match="there are 1 texts and 2 pairs"):
        Answering().from_texts(["why?"], ["a", "b"])


def test_a_line_is_answer_probability_and_question() -> None:
    task = Answering()
    data = task.from_texts(["Where\twas\nshe?"], ["a \n b"])
    encoded = encode(task, data)
    logits = np.zeros((2, len(encoded.examples[0].ids)), dtype=np.float32)
    first = encoded.examples[0].segments.index(1)
    logits[0, first], logits[1, first + 1] = 50, 50
    (answer,) = answers = task.decode([logits], encoded, data, [])
    assert answer.text == "a \n b"
    assert task.format_predictions(answers, data) == ["a   b\t1.0000\tWhere was she?"]


# ---------------------------------------------------------------------------------------------------------------
# The official score


def official_words(text: str) -> list[str]:
    """Lower case; ASCII punctuation out; runs of letters that are an article become a space; split."""
    kept = text.lower().translate(dict.fromkeys(b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"))
    runs = ["".join(run) for _, run in itertools.groupby(kept, key=lambda c: c.isalnum() or c == "_")]
    return "".join(" " if run in {"a", "an", "the"} else run for run in runs).split()


def official(answer: str, golds: list[str], unanswerable: bool) -> tuple[float, float]:
    """Exact match and F1 as the scripts of SQuAD 1.1 and 2.0 count them."""
    if unanswerable:
        golds = [text for text in golds if official_words(text)] or [""]
    best = [0.0, 0.0]
    for text in golds:
        said, right = official_words(answer), official_words(text)
        left, common = list(right), 0
        for word in said:
            if word in left:
                left.remove(word)
                common += 1
        f1 = 0.0
        if common:
            precision, recall = common / len(said), common / len(right)
            f1 = 2 * precision * recall / (precision + recall)
        elif unanswerable and (not said or not right):
            f1 = float(said == right)
        best = [max(best[0], float(" ".join(said) == " ".join(right))), max(best[1], f1)]
    return best[0], best[1]


PIECES = [
    "the",
    "a",
    "an",
    "The",
    "AN",
    "cat",
    "Cat",
    "cats",
    "U.S.",
    "don't",
    "-",
    "—",
    "«",
    "1,000",
    "_",
    "ß",
    "İ",
    "é",
]
PHRASE = st.one_of(
    st.lists(st.sampled_from([*PIECES, " ", " ", "\u3000"]), max_size=8).map("".join),
    st.lists(st.sampled_from(PIECES), max_size=5).map(" ".join),
    TEXT,
)


@settings(max_examples=400, deadline=None)
@given(answer=PHRASE, golds=st.lists(PHRASE, min_size=1, max_size=3), unanswerable=st.booleans())
def test_scores_are_the_official_ones(answer: str, golds: list[str], unanswerable: bool) -> None:
    golds = [text for text in golds if text.strip()] or ["cat"]
    starts = [sum(len(text) for text in golds[:number]) for number in range(len(golds))]
    question = Question("?", "".join(golds), tuple(map(Gold, golds, starts)))
    assert score_answer(answer, question, unanswerable) == pytest.approx(official(answer, golds, unanswerable))


@pytest.mark.parametrize(
    ("said", "right", "unanswerable", "expected"),
    [
        ("The cat!", "cat", False, (1.0, 1.0)),
        ("cat", "the black cat", False, (0.0, 2 / 3)),
        ("", "the", False, (1.0, 0.0)),  # as the script of 1.1 has it
        ("", "the", True, (1.0, 1.0)),
        ("cat", "the", True, (0.0, 0.0)),
        ("the", "cat", True, (0.0, 0.0)),
    ],
)
def test_a_score_by_hand(said: str, right: str, unanswerable: bool, expected: tuple[float, float]) -> None:
    assert score_answer(said, Question("?", right, (Gold(right, 0),)), unanswerable) == pytest.approx(expected)


def answered(task: Answering, data: Questions, *texts: str) -> Any:
    """A measure of answers that have these texts."""
    encoded = encode(task, data)
    blank = task.decode(drawn(encoded), encoded, data, [])
    return task.measure([type(one)(text, 1.0, 0, 0) for one, text in zip(blank, texts, strict=True)], data, [])


def test_a_measure_is_the_mean_over_questions_with_its_error() -> None:
    measure = answered(Answering(), Questions([asked("Rome"), asked("Café Müller", "1854")]), "in Rome", "Café")
    assert measure.figures["exact_match"] == 0.0
    assert measure.score == measure.figures["f1"] == pytest.approx(2 / 3)
    assert measure.figures["standard_error"] == pytest.approx(0.0)
    assert "has_answer" not in measure.figures
    assert json.loads(json.dumps(measure.figures)) == measure.figures


def test_version_2_is_measured_with_and_without_answer() -> None:
    data = Questions([asked("Rome"), asked("1854"), asked()], unanswerable=True)
    measure = answered(Answering(), data, "Rome", "", "")
    assert measure.figures["exact_match"] == measure.figures["f1"] == pytest.approx(2 / 3)
    assert measure.figures["has_answer"]["f1"] == 0.5
    assert measure.figures["has_answer"]["questions"] == 2
    assert measure.figures["no_answer"]["exact_match"] == 1.0
    assert "no answer" in measure.text


def test_a_model_that_never_answers_is_said_to_be_degenerate() -> None:
    measure = answered(Answering(), Questions([asked("Rome"), asked()], unanswerable=True), "", "")
    assert measure.figures["degenerate"]
    assert "no question was answered" in measure.text


def test_a_measure_without_the_truth_is_refused() -> None:
    with pytest.raises(ValueError, match="these questions have no answers"):
        answered(Answering(), Answering().from_texts(["why?"], [PASSAGE]), "x")
