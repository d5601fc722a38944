"""Multiple choice: questions are read, each choice is scored as a pair, the best one is the prediction."""

import io
import json
import math
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest

from minibert.prediction.collate import collate
from minibert.tasks.base import Encoded
from minibert.tasks.choice import Choice, ChoiceQuestion

TASK = Choice()
SKY = {"question": "the film", "choices": ["good", "bad", "the play"], "label": 2}
SEA = {"question": "a meal", "choices": ["dull", "fine", "lovely"], "label": "fine", "context": "the book very good"}


def lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


# -- reading


def test_questions_are_read_from_lines_and_standard_input(file, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines(SKY, SEA).encode())))
    for path in (file("x.jsonl", lines(SKY, SEA)), "-"):
        first, second = TASK.read(path)
        assert first == ChoiceQuestion("the film", ("good", "bad", "the play"), 2)
        assert (second.label, second.context) == (1, "the book very good")
    assert Choice(format="jsonl").read(file("x.data", lines(SKY)))[0].label == 2
    with pytest.raises(ValueError, match=r"x\.tsv, line 1\b.*question or sent1"):
        TASK.read(file("x.tsv", "a\tb\n"))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (7, "question"),
        (SKY | {"question": None}, "NoneType"),
        ({"choices": ["a", "b"], "label": 0}, "'question'"),
        ({"question": "a", "label": 0}, "'choices'"),
        (SKY | {"choices": "good"}, "'good'"),
        (SKY | {"choices": ["good"], "label": 0}, "2 choices"),
        (SKY | {"choices": ["good", 3, "x"]}, "int found"),
        (SKY | {"choices": ["good", " "], "label": 0}, "2 choices"),
        (SKY | {"choices": ["good", "x", "\ud800"]}, "surrogate"),
        (SKY | {"context": 7}, "int found"),
        (SKY | {"label": 3}, r"label 3\b"),
        (SKY | {"label": True}, "label True"),
        (SKY | {"label": 1.0}, r"label 1\.0"),
        (SKY | {"label": "2"}, "label '2'"),
        (SKY | {"choices": ["x", "x", "y"], "label": "x"}, "label 'x'"),
    ],
)
def test_an_invalid_question_is_refused_with_its_line(file, record, message):
    with pytest.raises(ValueError, match=message) as error:
        TASK.read(file("x.jsonl", lines(SKY, record)))
    assert "line 2" in str(error.value)


SWAG = {"sent1": "They play.", "sent2": "A drum", "ending0": "is loud.", "ending1": "eats.", "label": 0}


def test_rows_of_swag_are_read_as_in_transformers(file):
    rows = [SWAG | {"": 0}, SWAG | {"": 1, "label": 1, "sent2": ""}]
    first, second = TASK.read(file("a.csv", pd.DataFrame(rows).to_csv(index=False)))
    assert first == ChoiceQuestion("They play.", ("A drum is loud.", "A drum eats."), 0)
    assert second == ChoiceQuestion("They play.", ("is loud.", "eats."), 1)
    assert TASK.read(file("a.jsonl", lines(SWAG))) == [first]
    unlabelled = {name: value for name, value in SWAG.items() if name != "label"}
    assert TASK.from_texts([json.dumps(unlabelled)])[0].choices == first.choices
    for wrong, message in (
        (unlabelled, "no 'label'"),
        (SWAG | {"label": 2}, "the label 2"),
        ({"ending0": ""}, "no 'sent1'"),
    ):
        with pytest.raises(ValueError, match=rf"line 1\b.*{message}"):
            TASK.read(file("b.jsonl", lines(wrong)))


def test_a_file_without_questions_is_refused(file):
    with pytest.raises(ValueError, match=r"x\.jsonl"):
        TASK.read(file("x.jsonl", ""))


QUESTION = ChoiceQuestion("a", ("b", "c"))


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda _: TASK.labels_of([]), r"\b0 of 0 "),
        (lambda _: TASK.labels_of([ChoiceQuestion("a", ("b", "c"), 0), QUESTION]), r"\b1 of 2 "),
        (lambda _: TASK.measure([], [QUESTION], []), r"\b0 of 1 "),
        (lambda _: TASK.from_texts([json.dumps(SKY), "the film"]), r"row 1\b"),
        (
            lambda words: TASK.encode([QUESTION, ChoiceQuestion("a", ("b",) * 3)], words, [], 20),
            r"\[2, 3\]",
        ),
    ],
)
def test_what_is_no_question_is_refused(use, message, tokenizer):
    with pytest.raises(ValueError, match=message):
        use(tokenizer)


def test_the_labels_of_questions_to_be_answered_are_ignored():
    first, second = TASK.from_texts([json.dumps(SKY), json.dumps(SEA | {"label": 77})])
    assert first.label is second.label is None


# -- encoding


def test_each_choice_is_a_pair_with_the_index_of_the_right_one(tokenizer):
    data = [ChoiceQuestion("the film", ("good", "very bad"), 1, "a book"), ChoiceQuestion("meal", ("dull", "fine"), 0)]
    encoded = TASK.encode(data, tokenizer, [], 20)
    theirs = tokenizer(["a book the film"] * 2 + ["meal"] * 2, ["good", "very bad", "dull", "fine"])
    for row, one in enumerate(encoded.examples):
        kept = theirs.attention_mask[row].bool()
        assert one.ids == theirs.input_ids[row][kept].tolist()
        assert one.segments == theirs.token_type_ids[row][kept].tolist()
    batch = collate(encoded.examples, [0, 1], tokenizer.pad_id, encoded.choices)
    assert batch.labels["labels"].tolist() == [1, 0]
    assert (encoded.choices, encoded.notes) == (2, ())


def test_a_pair_that_is_too_long_keeps_the_question_beside_the_choice(tokenizer):
    data = [ChoiceQuestion("the film", ("good", "bad " * 9), context="very dull " * 5)]
    encoded = TASK.encode(data, tokenizer, [], 11)
    assert [tokenizer.decode(one.ids) for one in encoded.examples] == [
        "[CLS] dull very dull very dull the film [SEP] good [SEP]",
        "[CLS] very dull the film [SEP] bad bad bad bad [SEP]",
    ]
    assert [one.segments for one in encoded.examples] == [[0] * 9 + [1] * 2, [0] * 6 + [1] * 5]
    assert "1 of 1 question is longer than 11 tokens (the longest has 24)" in str(encoded.truncation)


# -- predictions


def decode(*logits: float, data: list[ChoiceQuestion]) -> list[Any]:
    scores = [np.array([one], dtype=np.float32) for one in logits]
    return TASK.decode(scores, Encoded([], choices=len(logits) // len(data)), data, [])


def test_the_prediction_is_the_choice_with_the_largest_logit(tokenizer):
    data = [ChoiceQuestion("a", ("b", "c")), ChoiceQuestion("d", ("e", "f"))]
    first, second = decode(math.log(3), 0, -1000, 1000, data=data)
    assert (first["number"], first["choice"], first["probability"]) == (0, "b", pytest.approx(0.75))
    assert first["probabilities"] == pytest.approx((0.75, 0.25))
    assert second == {"number": 1, "choice": "f", "probability": 1.0, "probabilities": (0.0, 1.0)}
    assert TASK.format_predictions([first, second], data) == ["0\t0.7500\tb\ta", "1\t1.0000\tf\td"]
    assert TASK.decode([], TASK.encode([], tokenizer, [], 20), [], []) == []
    with pytest.raises(ValueError, match=r"row 1 .*NaN"):
        decode(0, 0, math.nan, 0, data=data)


def test_accuracy_is_reported_beside_chance():
    data = [ChoiceQuestion("a", ("b", "c", "d", "e"), label) for label in (0, 1, 2, 3)]
    found = [{"number": number} for number in (0, 1, 2, 0)]
    measure = TASK.measure(found, data, [])
    error = math.sqrt(0.75 * 0.25 / 4)
    expected = {"accuracy": 0.75, "standard_error": error, "rows": 4, "choices": 4, "chance": 0.25}
    assert measure.figures == pytest.approx(expected)
    assert "0.750 ± 0.217 (standard error), 4 rows; chance 0.250" in measure.text
