"""Questions with several choices: read, checked, written out as pairs, answered and measured."""

from __future__ import annotations

import gzip
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from words import write_words_checkpoint

from minibert.checkpoints.load import load
from minibert.tasks.base import Encoded
from minibert.tasks.choice import Choice, Chosen, Question
from minibert.text.tokenizer import Tokenizer, load_tokenizer
from minibert.train.batches import collate
from minibert.train.outputs import outputs

TASK = Choice()
SKY = {"question": "the film", "choices": ["good", "bad", "the play"], "label": 2}
SEA = {"question": "a meal", "choices": ["dull", "fine", "lovely"], "label": "fine", "context": "the book very good"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("words"), head="multiple-choice")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


def lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path


# -- reading


def test_questions_are_read_with_labels_by_number_or_by_text(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", lines(SKY, SEA))
    first, second = TASK.read(path)
    assert first == Question("the film", ("good", "bad", "the play"), 2, place=f"{path}, line 1,")
    assert (second.label, second.context, second.first) == (1, "the book very good", "the book very good a meal")


def test_an_array_a_compressed_file_and_standard_input_are_read_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = write(tmp_path / "x.json", json.dumps([SKY, SEA]))
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(lines(SKY, SEA).encode()))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines(SKY, SEA).encode())))
    for path in (array, tmp_path / "x.jsonl.gz", "-"):
        assert [one.label for one in TASK.read(path)] == [2, 1]
    assert Choice(format="jsonl").read(write(tmp_path / "x.data", lines(SKY)))[0].label == 2


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("text", "line 2, is a string, not an object of names and values such as"),
        (SKY | {"question": None}, "line 2, has null as 'question', not a text"),
        ({"choices": ["a", "b"], "label": 0}, "line 2, has no 'question'"),
        ({"question": "a", "label": 0}, "line 2, has no choices; a list of texts is wanted"),
        (SKY | {"choices": "good"}, "line 2, has a string as 'choices'; a list of texts is wanted"),
        (SKY | {"choices": ["good"]}, "line 2, has 1 choices; at least 2 are needed"),
        (SKY | {"choices": ["good", 3, "x"]}, r"line 2, has a number as 'choices\[1\]', not a text"),
        (SKY | {"choices": ["good", "x", " "]}, r"line 2, has no text as 'choices\[2\]'"),
        (SKY | {"choices": ["good", "x", "\ud800"]}, r"line 2, 'choices\[2\]' has a lone surrogate"),
        (SKY | {"context": 7}, "line 2, has a number as 'context', not a text"),
        (SKY | {"label": None}, "line 2, has no label; it is the number of the right choice, from 0, or its text"),
        (SKY | {"label": 3}, "line 2, has the label 3, and choices 0 to 2"),
        (SKY | {"label": -1}, "line 2, has the label -1, and choices 0 to 2"),
        (SKY | {"label": True}, "line 2, has true or false as 'label'"),
        (SKY | {"label": 1.0}, "line 2, has a number as 'label', not the number of the right choice"),
        (SKY | {"label": "2"}, "line 2, has the label '2', which is none of the choices"),
        (SKY | {"choices": ["x", "x", "y"], "label": "x"}, "line 2, has the label 'x', which is 2 of the choices"),
        (SKY | {"choices": ["x", "y"], "label": 0}, "line 2, has 2 choices, and .*line 1, has 3; all questions need"),
    ],
)
def test_what_is_no_question_is_refused_with_its_line(tmp_path: Path, record: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TASK.read(write(tmp_path / "x.jsonl", lines(SKY, record)))


def test_files_without_questions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no questions; one is wanted on each line"):
        TASK.read(write(tmp_path / "x.jsonl", "\n"))
    with pytest.raises(ValueError, match="line 1, is not JSON"):
        TASK.read(write(tmp_path / "x.jsonl", "{"))
    with pytest.raises(ValueError, match=r"x\.tsv is read as \.tsv; questions are a \.jsonl"):
        TASK.read(write(tmp_path / "x.tsv", "a\tb\n"))
    with pytest.raises(FileNotFoundError, match="is not there; a file of questions is wanted"):
        TASK.read(tmp_path / "none.jsonl")


def test_questions_to_be_answered_come_as_lines_of_json_and_their_labels_are_not_looked_at() -> None:
    first, second = TASK.from_texts([json.dumps(SKY), json.dumps(SEA | {"label": 77})])
    assert first.label is second.label is None
    with pytest.raises(ValueError, match=r"row 1 is not JSON: .*; a question is such as"):
        TASK.from_texts([json.dumps(SKY), "the film"])
    with pytest.raises(ValueError, match="row 0 has no choices"):
        TASK.from_texts(['{"question": "a"}'])
    with pytest.raises(ValueError, match="a question holds its choices; leave the second texts out"):
        TASK.from_texts(["a"], ["b"])


def test_questions_made_by_hand_are_checked_too(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="has the label 2, and choices 0 to 1"):
        Question("a", ("b", "c"), 2)
    with pytest.raises(ValueError, match="has 3 choices, and a question has 2"):
        TASK.encode([Question("a", ("b", "c")), Question("a", ("b", "c", "d"))], tokenizer, [], 20)


def test_nothing_is_learned_from_no_questions_or_from_one_without_its_right_choice() -> None:
    assert TASK.labels_of([Question("a", ("b", "c"), 0)] * 2) == []
    with pytest.raises(ValueError, match="there are no questions"):
        TASK.labels_of([])
    with pytest.raises(ValueError, match="row 7 has no label"):
        TASK.labels_of([Question("a", ("b", "c"), 0), Question("a", ("b", "c"), place="row 7")])


# -- encoding


def test_each_choice_is_a_pair_of_its_own_with_the_number_of_the_right_one(tokenizer: Tokenizer) -> None:
    data = [Question("the film", ("good", "very bad"), 1, "a book"), Question("meal", ("dull", "fine"), 0)]
    encoded = TASK.encode(data, tokenizer, [], 20)
    theirs = tokenizer(["a book the film"] * 2 + ["meal"] * 2, ["good", "very bad", "dull", "fine"])
    for row, one in enumerate(encoded.examples):
        kept = theirs.attention_mask[row].bool()
        assert one.ids == theirs.input_ids[row][kept].tolist()
        assert one.segments == theirs.token_type_ids[row][kept].tolist()
    assert [one.labels for one in encoded.examples] == [{"labels": 1}] * 2 + [{"labels": 0}] * 2
    assert (encoded.choices, encoded.notes) == (2, ())


def test_of_what_is_too_long_the_question_stays_beside_the_choice(tokenizer: Tokenizer) -> None:
    data = [Question("the film", ("good", "bad " * 9), context="very dull " * 5)]
    encoded = TASK.encode(data, tokenizer, [], 11)
    assert [tokenizer.decode(one.ids) for one in encoded.examples] == [
        "[CLS] dull very dull very dull the film [SEP] good [SEP]",
        "[CLS] very dull the film [SEP] bad bad bad bad [SEP]",
    ]
    assert [one.segments for one in encoded.examples] == [[0] * 9 + [1] * 2, [0] * 6 + [1] * 5]
    (note,) = encoded.notes
    assert note.startswith("2 of 2 choices with their questions are longer than 11 tokens: the beginnings of contexts")


def test_the_loss_takes_a_question_as_it_is_collated(folder: Path, tokenizer: Tokenizer) -> None:
    model = load(folder, head="multiple-choice")
    encoded = TASK.encode([Question("the film", ("good", "bad"), 1), Question("a", ("b", "c"), 0)], tokenizer, [], 20)
    batch = collate(encoded.examples, [0, 1], tokenizer.pad_id, encoded.choices)
    assert batch.labels["labels"].tolist() == [1, 0]
    shape = (2, 2, -1)
    out = model(
        batch.input_ids.view(shape),
        attention_mask=batch.attention_mask.view(shape),
        token_type_ids=batch.token_type_ids.view(shape),
        labels=batch.labels["labels"],
    )
    assert out.loss.isfinite()
    found = TASK.decode(outputs(model, encoded), encoded, [Question("a", ("b", "c"))] * 2, [])
    theirs = out.logits.detach().softmax(dim=-1)
    torch.testing.assert_close(torch.tensor([one.probabilities for one in found]), theirs, atol=1e-6, rtol=0)


# -- answers


def decode(*logits: float, data: list[Question]) -> list[Chosen]:
    scores: list[Any] = [np.array([one], dtype=np.float32) for one in logits]
    return TASK.decode(scores, Encoded([], choices=len(logits) // len(data)), data, [])


def test_the_answer_is_the_choice_with_the_largest_logit() -> None:
    data = [Question("a", ("b", "c")), Question("d", ("e", "f"))]
    first, second = decode(math.log(3), 0, -1000, 1000, data=data)
    assert (first.number, first.choice, first.probability) == (0, "b", pytest.approx(0.75))
    assert first.probabilities == pytest.approx((0.75, 0.25))
    assert second == Chosen(1, "f", 1.0, (0.0, 1.0))
    assert TASK.format_predictions([first, second], data) == ["0\t0.7500\tb\ta", "1\t1.0000\tf\td"]


def test_no_questions_have_no_answers(tokenizer: Tokenizer) -> None:
    assert TASK.decode([], TASK.encode([], tokenizer, [], 20), [], []) == []


def test_logits_that_are_not_finite_are_refused_with_their_question() -> None:
    with pytest.raises(ValueError, match="row 1 has the logits"):
        decode(0, 0, math.nan, 0, data=[Question("a", ("b", "c"), place=f"row {row}") for row in range(2)])


def test_accuracy_stands_beside_the_rate_of_guessing() -> None:
    data = [Question("a", ("b", "c", "d", "e"), label) for label in (0, 1, 2, 3)]
    found = [Chosen(number, "", 1.0, ()) for number in (0, 1, 2, 0)]
    measure = TASK.measure(found, data, [])
    assert measure.score == 0.75
    assert measure.figures["standard_error"] == pytest.approx(math.sqrt(0.75 * 0.25 / 4))
    assert (measure.figures["chance"], measure.figures["choices"], measure.figures["rows"]) == (0.25, 4, 4)
    assert "0.750 ± 0.217 (standard error), 4 questions; chance is 0.250" in measure.text
    with pytest.raises(ValueError, match="has no label"):
        TASK.measure(found, [Question("a", ("b", "c"))], [])
