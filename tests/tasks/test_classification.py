"""Texts and pairs with one label, several or a number: read, checked, encoded, answered and measured."""

import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import f1_score
from sklearn.utils.class_weight import compute_class_weight

from minibert.losses import text_loss
from minibert.prediction.collate import collate
from minibert.tasks import task_class
from minibert.tasks.base import Encoded
from minibert.tasks.classification import Classification, Texts
from minibert.tasks.labels import class_weights

ONE, SEVERAL, NUMBER = Classification(), Classification(separator="|"), Classification(regression=True)
PAIR = Classification(text="q1", pair="q2", label="same")


def row(text: str, label: Any) -> str:
    return json.dumps({"text": text, "label": label})


def float32(*rows: Sequence[float]) -> list[Any]:
    return [np.array(row, dtype=np.float32) for row in rows]


def decode(task: Classification, logits: list[Any], labels: Sequence[str]) -> list[Any]:
    texts = Texts(["good film"] * len(logits))
    return task.decode(logits, Encoded([]), texts, labels)


# -- reading


READ = ["good film", "dull film"]


@pytest.mark.parametrize(
    ("task", "name", "content", "labels", "pairs"),
    [
        (ONE, "x.tsv", "sentence\tlabel\ngood film\tpos\n\ndull film\t neg\n", ["pos", "neg"], None),
        (ONE, "x.tsv", "\ufeffLabel\tid\tText\r\n1\t7\tgood film\r\n0\t8\tdull film\r\n", ["1", "0"], None),
        (PAIR, "x.csv", "id,q1,q2,same\n1,good film,fine,1\n2,dull film,dull,0\n", ["1", "0"], ["fine", "dull"]),
        (Classification(2, 3, 4), "x.csv", "1,good film,fine,1\n2,dull film,dull,0\n", ["1", "0"], ["fine", "dull"]),
        (SEVERAL, "x.tsv", "text\tlabel\ngood film\tplot | cast|cast\ndull film\t\n", [("cast", "plot"), ()], None),
        (NUMBER, "x.tsv", "good film\t4.5\ndull film\t-1e-1\n", [4.5, -0.1], None),
        (NUMBER, "x.jsonl", f"{row('good film', 4.5)}\n{row('dull film', '-0.1')}\n", [4.5, -0.1], None),
    ],
)
def test_texts_and_labels_are_read(file, task, name, content, labels, pairs):
    data = task.read(file(name, content))
    assert (data.texts, data.labels, data.pairs) == (READ, labels, pairs)
    assert data.rows == (READ if pairs is None else list(zip(READ, pairs, strict=True)))


def test_a_first_row_that_looks_like_a_header_is_refused_unless_columns_are_named(file):
    path = file("x.csv", "my review,sentiment\na,1\nb,0\nc,1\n")
    with pytest.raises(ValueError, match=r"'sentiment'.*text='my review' label="):
        ONE.read(path)
    assert Classification("my review", label="sentiment").read(path).labels == ["1", "0", "1"]
    with pytest.warns(UserWarning, match=r"'sentiment'.*text='my review' label="):
        assert Classification(1, label=2).read(path).labels == ["sentiment", "1", "0", "1"]
    assert ONE.read(file("x.csv", "a,0\nb,rare\nc,0\n")).labels == ["0", "rare", "0"]


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        ("review,sentiment\nfilm,pos\n", None),
        ("review,mark\na good film,1\n", None),
        ("text,label\nfilm,pos\n", ["pos"]),
        ("a good film,pos\na dull one,neg\n", ["pos", "neg"]),
        ("film,1\nmess,0\n", ["1", "0"]),
        ("film,pos\n", ["pos"]),
    ],
)
def test_a_header_above_a_single_row_is_known_or_refused_with_the_way_out(file, content, labels):
    path = file("x.csv", content)
    if labels is not None:
        assert ONE.read(path).labels == labels
        return
    text, label = content.splitlines()[0].split(",")
    with pytest.raises(ValueError, match=f"text='{text}' label='{label}'; else: text=1 label=2"):
        ONE.read(path)
    assert len(Classification(text, label=label).read(path)) == 1
    assert len(Classification(1, label=2).read(path)) == 2


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        (["1.0", "0.0", "1.0"], ["1", "0", "1"]),
        (["10.0", "9", "10.0"], ["10", "9", "10"]),
        (["1.0", "0.5", "1.0"], ["1.0", "0.5", "1.0"]),
        (["1.0", "x", "1.0"], ["1.0", "x", "1.0"]),
        (["007", "7", "7"], ["007", "7", "7"]),
    ],
)
def test_a_whole_number_with_a_point_is_the_integer_as_in_other_files(file, cells, labels):
    rows = "".join(f"a text,{cell}\n" for cell in cells)
    assert ONE.read(file("x.csv", f"text,label\n{rows}")).labels == labels
    if labels == ["1", "0", "1"]:
        assert ONE.read(file("x.jsonl", "\n".join(row("a", float(cell)) for cell in cells))).labels == labels


@pytest.mark.parametrize(
    ("task", "cells", "warned"),
    [
        (ONE, ["Avis", "bon", "bon", "nul"], 1),
        (ONE, ["5", "1", "1", "2"], 0),
        (ONE, ["Avis", "bon", "nul"], 0),
        (SEVERAL, ["Avis", "bon|cher", "bon"], 1),
        (SEVERAL, ["bon|nul", "bon|cher", "bon|cher"], 0),
    ],
)
def test_a_class_of_only_the_first_row_is_a_warning_where_columns_have_numbers(file, task, cells, warned):
    path = file("x.csv", "".join(f"{row};a text;{cell}\n" for row, cell in enumerate(cells)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = replace(task, text=2, label=3, delimiter=";").read(path)
    assert (len(data), len(caught)) == (len(cells), warned)
    assert all("label 'Avis'" in str(one.message) for one in caught)


@pytest.mark.parametrize(
    ("task", "name", "content", "message"),
    [
        (ONE, "x.tsv", "a\t1\nb\n", r"line 2\b.* 1 .* 2\b"),
        (
            ONE,
            "x.tsv",
            "sentence\tlabel\na\t1\n\nb\t \n",
            r"line 4\b.*''.*missing='drop'",
        ),
        (ONE, "x.jsonl", '{"text": "a", "label": null}\n', r"line 1\b.*None"),
        (ONE, "x.jsonl", '{"text": "a", "label": 0.5}\n', r"line 1\b.*0\.5"),
        (ONE, "x.tsv", "", r"x\.tsv"),
        (ONE, "x.tsv", "Ann\tB-person\nis\tO\n\nme\tO\n", r"x\.tsv .*'B-person'.* tag"),
        (SEVERAL, "x.tsv", "a\tcast||plot\n", r"line 1\b.*''"),
        (SEVERAL, "x.tsv", "review\ttopics\na\tx|y\nb\tx|y\n", "'topics'"),
        (NUMBER, "x.tsv", "a\t1\nb\tlots\n", r"line 2\b.*'lots'"),
        (
            NUMBER,
            "x.tsv",
            "review\tmark\na\t1\n",
            r"line 1\b.*'mark'.*header",
        ),
        (NUMBER, "x.tsv", "a\t1\nb\tnan\n", r"line 2\b.*'nan'"),
        (
            NUMBER,
            "x.tsv",
            "a\t1\nb\t1e39\n",
            r"line 2\b.*'1e39'.* 3\.4e",
        ),
        (NUMBER, "x.jsonl", '{"text": "a", "label": Infinity}\n', r"line 1\b.* inf\b"),
        (
            NUMBER,
            "x.jsonl",
            '{"text": "a", "label": null}\n',
            r"line 1\b.*None.*missing='drop'",
        ),
    ],
)
def test_what_is_no_label_is_refused_with_its_line(file, task, name, content, message):
    with pytest.raises(ValueError, match=message):
        task.read(file(name, content))


def test_an_empty_cell_is_no_missing_label_where_a_text_may_have_none(file):
    path = file("x.csv", "text,label\na,x|y\nb,\nc,x\n")
    assert replace(SEVERAL, missing="drop").read(path).labels == [("x", "y"), (), ("x",)]


# -- from Python


@pytest.mark.parametrize(
    ("texts", "labels", "pairs"),
    [
        (["a", None, "c", "d"], ["x", "y", None, "x"], None),
        (["a", "b", "c", "d"], ["x", "y", "y", "x"], ["e", pd.NA, float("nan"), "f"]),
        (pd.Series(["a", "b", "c", "d"], index=[3, 1, 4, 1]), np.array([1, np.nan, np.nan, 1]), None),
    ],
)
def test_rows_of_columns_without_a_text_or_a_label_are_left_out_and_counted(texts, labels, pairs):
    task = Classification(missing="drop")
    with pytest.warns(UserWarning, match=r"\b2 of 4 rows"):
        data = task.from_labels(texts, labels, pairs)
    assert (data.texts, len(data.known_labels)) == (["a", "d"], 2)
    assert data.pairs == (pairs and ["e", "f"])


def test_rows_of_a_matrix_stay_with_their_texts_where_some_are_left_out():
    with pytest.warns(UserWarning, match=r"\b1 of 3 rows"):
        data = replace(SEVERAL, missing="drop").from_labels(["a", None, "c"], np.array([[1, 0], [1, 1], [0, 1]]))
    assert (data.texts, data.labels) == (["a", "c"], [("0",), ("1",)])


def test_no_text_to_predict_is_left_out():
    with pytest.raises(TypeError, match=r"row 1 .*None"):
        Classification(missing="drop").from_texts(["a", None])


@pytest.mark.parametrize(
    ("task", "labels", "error", "message"),
    [
        (ONE, ["a", None], ValueError, r"row 1 .*None"),
        (ONE, ["a", " "], ValueError, r"row 1 .*' '"),
        (ONE, ["a"], ValueError, r"\b2 texts.* 1 label\b"),
        (ONE, "ab", TypeError, r"\bstr\b"),
        (ONE, None, TypeError, "NoneType"),
        (NUMBER, np.eye(2), TypeError, "ndarray"),
        (NUMBER, [1.0, None], ValueError, r"row 1 .*None"),
        (NUMBER, [1.0, 10**400], ValueError, r"row 1 .* 80 digits"),
        (
            SEVERAL,
            np.array([[1, 0], [0, 2]]),
            ValueError,
            r"row 1 .*\[0, 2\]",
        ),
        (SEVERAL, [["a"], [None]], ValueError, r"row 1 .*None"),
    ],
)
def test_what_is_no_label_is_refused_with_its_place(task, labels, error, message):
    with pytest.raises(error, match=message):
        task.from_labels(["good", "bad"], labels)


# -- what cannot be learned


@pytest.mark.parametrize(
    ("task", "labels", "message"),
    [
        (ONE, ["a", "a", "a"], r"\b3 rows.* 1 class\b.*'a'.* 3\b"),
        (ONE, ["a", "b", "c"], r"\b3 classes.* 1 row\b.* 2 classes.*2 rows"),
        (ONE, ["0.5", "1", "2.75"], r"`minibert finetune classify --regression` learns numbers"),
        (ONE, ["a"], r"\b1 row cannot.* 1 class,.* 1 row;"),
        (ONE, [], r"\b0 rows.* 0 classes"),
        (SEVERAL, [["a"], ["a"]], r"\b2 rows.*'a'"),
        (SEVERAL, [[], []], r"\b2 rows.*none"),
        (SEVERAL, ["a;b", "b;c", "c"], r"'\|'"),
        (SEVERAL, [], r"\b0 rows"),
        (NUMBER, [2, 2], r"\b2 rows.*regression"),
        (NUMBER, [], r"\b0 rows"),
    ],
)
def test_data_that_cannot_be_learned_is_refused(task, labels, message):
    data = task.from_labels(["good"] * len(labels), labels)
    with pytest.raises(ValueError, match=message):
        task.labels_of(data)


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda: ONE.labels_of(ONE.from_texts(["good film"])), ValueError, "no labels"),
        (lambda: ONE.measure([], ONE.from_texts(["good film"]), ["a", "b"]), ValueError, "no labels"),
        (lambda: ONE.from_texts(["good", "bad"], "fine"), TypeError, "two lists"),
        (lambda: Classification(separator="|", regression=True), ValueError, "separator"),
        (lambda: Classification(separator=""), ValueError, "empty"),
        (lambda: task_class("sing"), ValueError, r"'sing'.*classify, tag, answer, choose"),
        (lambda: decode(ONE, float32([0, 1], [math.nan, 0]), ["a", "b"]), ValueError, r"row 1 .*NaN"),
    ],
)
def test_what_cannot_be_used_is_refused(use, error, message):
    with pytest.raises(error, match=message):
        use()


# -- encoding


def test_rows_are_those_of_the_tokenizer(tokenizer):
    data = ONE.from_texts(["good film", "", "a very dull play"], ["fine", "the book", ""])
    theirs = tokenizer(data.texts, data.pairs)
    for row, one in enumerate(ONE.encode(data, tokenizer, ["neg", "pos"], 20).examples):
        kept = theirs.attention_mask[row].bool()
        assert one.ids == theirs.input_ids[row][kept].tolist()
        assert one.segments == theirs.token_type_ids[row][kept].tolist()
        assert one.labels == {}


@pytest.mark.parametrize(
    ("task", "labels", "dtype", "expected"),
    [
        (ONE, ["neg", "pos", "neg"], torch.int64, [0, 1, 0]),
        (SEVERAL, [["neg"], [], ["pos", "neg"]], torch.float32, [[1, 0], [0, 0], [1, 1]]),
        (NUMBER, [1, 0.5, -2], torch.float32, [1, 0.5, -2]),
    ],
)
def test_the_loss_takes_the_labels_as_they_are_collated(tokenizer, task, labels, dtype, expected):
    data = task.from_labels(["good film", "bad", "the play"], labels)
    names = task.labels_of(data)
    encoded = task.encode(data, tokenizer, names, 20)
    given_ = collate(encoded.examples, [0, 1, 2], tokenizer.pad_id).labels["labels"]
    assert (given_.dtype, given_.tolist()) == (dtype, expected)
    assert text_loss(torch.zeros(3, len(names)), given_, task.problem_type).isfinite()


@pytest.mark.parametrize("task", [ONE, SEVERAL])
def test_an_unknown_label_is_refused_with_its_row(file, tokenizer, task):
    data = task.read(file("dev.tsv", "text\tlabel\ngood\tpos\nbad\tmeh\n"))
    with pytest.raises(ValueError, match=r"dev\.tsv, line 3, .*'meh'.*'neg', 'pos'"):
        task.encode(data, tokenizer, ["neg", "pos"], 20)


def test_what_was_cut_is_noted_and_of_a_pair_the_longer_text_is_cut_first(tokenizer):
    encoded = ONE.encode(ONE.from_texts(["good film " * 10, "bad"], ["the play", "the play"]), tokenizer, [], 10)
    assert "1 of 2 texts is longer than 10 tokens (the longest has 25)" in str(encoded.truncation)
    assert encoded.examples[0].segments == [0] * 7 + [1] * 3
    assert tokenizer.decode(encoded.examples[0].ids) == "[CLS] good film good film good [SEP] the play [SEP]"
    assert ONE.encode(ONE.from_texts(["bad"]), tokenizer, [], 20).truncation is None


# -- answers


def test_the_answer_is_the_label_of_the_largest_logit():
    first, second = decode(ONE, float32([0, math.log(3)], [1000, -1000]), ["neg", "pos"])
    assert (first["label"], first["probability"]) == ("pos", pytest.approx(0.75))
    assert first["probabilities"] == pytest.approx({"neg": 0.25, "pos": 0.75})
    assert second == {"label": "neg", "probability": 1.0, "probabilities": {"neg": 1.0, "pos": 0.0}}


def test_several_answers_are_the_labels_above_one_half():
    first, second = decode(SEVERAL, float32([math.log(3), 0, 1000], [-1000, -1, -2]), ["a", "b", "c"])
    assert (first["labels"], first["probability"]) == (("a", "c"), (pytest.approx(0.75), 1.0))
    assert first["probabilities"] == pytest.approx({"a": 0.75, "b": 0.5, "c": 1.0})
    assert (second["labels"], second["probability"], second["probabilities"]["a"]) == ((), (), 0.0)


def test_answers_are_printed_one_on_a_line_with_the_text_last():
    texts = ONE.from_texts(["good\tfilm\r\n", "bad"], ["the\nplay", ""])
    one = decode(ONE, float32([0, 9], [0, 0]), ["neg", "pos"])
    assert ONE.format_predictions(one, texts) == ["pos\t0.9999\tgood film \tthe play", "neg\t0.5000\tbad\t"]
    several = [{"labels": ("a", "b"), "probability": (0.75, 0.6)}, {"labels": (), "probability": ()}]
    assert SEVERAL.format_predictions(several, SEVERAL.from_texts(["x", "y"])) == ["a|b\t0.7500|0.6000\tx", "\t\ty"]
    assert NUMBER.format_predictions(numbers(2.5, -1e-3), NUMBER.from_texts(["x", "y"])) == ["2.5\tx", "-0.001\ty"]


# -- measuring


def answers(*labels: str) -> list[Any]:
    return [{"label": label} for label in labels]


def numbers(*values: float) -> list[Any]:
    return [{"value": value} for value in values]


def test_two_classes_have_matthews_and_the_f1_of_the_second():
    data = ONE.from_labels(["x"] * 4, ["neg", "pos", "pos", "pos"])
    measure = ONE.measure(answers("neg", "pos", "pos", "neg"), data, ["neg", "pos"])
    expected = {"accuracy": 0.75, "standard_error": math.sqrt(0.75 * 0.25 / 4), "f1": 0.8, "macro_f1": 11 / 15} | {
        "matthews": 1 / math.sqrt(3)
    }
    assert {name: measure.figures[name] for name in expected} == pytest.approx(expected)
    assert (measure.score, measure.figures["positive"], measure.figures["confusion"]) == (0.75, "pos", [[1, 0], [1, 2]])
    assert measure.figures["classes"]["pos"] == {"precision": 1.0, "recall": 2 / 3, "f1": 0.8, "rows": 3}
    json.dumps(measure.figures)
    for shown in ("0.750 ± 0.217", "majority class 'pos' 0.750", "Matthews' correlation 0.577", "true \\ predicted"):
        assert shown in measure.text


def test_a_score_that_one_answer_for_all_would_have_is_degenerate():
    data = ONE.from_labels(["x"] * 3, ["neg", "pos", "pos"])
    with pytest.warns(UserWarning, match=r"\b3 texts.*'pos'"):
        figures = ONE.measure(answers("pos", "pos", "pos"), data, ["neg", "pos"]).figures
    assert (figures["majority"], figures["degenerate"]) == (2 / 3, True)
    assert not ONE.measure(answers("neg", "pos", "pos"), data, ["neg", "pos"]).figures["degenerate"]


def test_several_labels_are_measured_by_f1_and_exact_matches():
    data = SEVERAL.from_labels(["x"] * 3, ["a|b", "", "a"])
    found = [{"labels": labels} for labels in (("a", "b"), ("b",), ("a",))]
    measure = SEVERAL.measure(found, data, ["a", "b"])
    expected = {"f1": 6 / 7, "macro_f1": (1 + 2 / 3) / 2, "exact_match": 2 / 3, "degenerate": False}
    assert {name: measure.figures[name] for name in expected} == pytest.approx(expected)
    assert measure.score == measure.figures["f1"]
    assert "0.857 over all labels" in measure.text


def test_a_regression_is_measured_by_correlations_and_error():
    data = NUMBER.from_labels(["x"] * 3, np.array([1, 2, 6], np.float32))
    measure = NUMBER.measure(numbers(2.0, 4.0, 12.0), data, ["LABEL_0"])
    expected = {"pearson": 1.0, "spearman": 1.0, "rmse": math.sqrt(41 / 3), "rmse_of_mean": math.sqrt(14 / 3)}
    assert {name: measure.figures[name] for name in expected} == pytest.approx(expected)
    assert measure.score == measure.figures["pearson"]
    figures = NUMBER.measure(numbers(3.0, 3.0, 3.0), data, ["LABEL_0"]).figures
    assert (figures["pearson"], figures["spearman"], figures["degenerate"]) == (0.0, 0.0, True)


# -- class weights


def test_balanced_weights_are_those_of_scikit_learn():
    rows = ["a"] * 7 + ["b"] * 2 + ["c"]
    theirs = compute_class_weight("balanced", classes=np.array(["a", "b", "c"]), y=rows)
    assert class_weights(rows, ["a", "b", "c"]) == pytest.approx(theirs.tolist())
    assert class_weights(["0", "1"], ["0", "1"], {1: 3}) == [1.0, 3.0]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("even", r"class_weight is 'even'.*'balanced'"),
        ({"c": 1}, "'a', 'b'"),
        ({"a": -1}, "at least 0"),
        ({"a": math.nan}, "at least 0"),
        ({"a": 10**400}, "at least 0"),
        ({"a": "heavy"}, "at least 0"),
        ({"a": 0, "b": 0}, "above 0"),
    ],
)
def test_weights_that_make_no_sense_are_refused(how, message):
    with pytest.raises(ValueError, match=message):
        class_weights(["a", "b"], ["a", "b"], how)


@pytest.mark.parametrize("predicted", ["abcab", "aabbb", "cccba"])
def test_the_macro_f1_is_that_of_scikit_learn(predicted):
    """A class that neither the data nor the predictions have does not count."""
    true = "aabbb"
    data = ONE.from_labels(["x"] * 5, list(true))
    measure = ONE.measure(answers(*predicted), data, ["a", "b", "c", "d"])
    expected = f1_score(list(true), list(predicted), average="macro")
    assert measure.figures["macro_f1"] == expected
    assert f"{expected:.3f}" in next(line for line in measure.text.splitlines() if line.startswith("macro F1"))
