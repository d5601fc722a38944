"""Every column of texts is accepted; what is no text is refused with its row."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
import torch
from datasets import Dataset
from support.models import minilm_folder

from minibert.tables.texts import as_texts, as_texts_or_pairs
from minibert.text.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer(minilm_folder())
CLS, SEP, PAD = 101, 102, 0

CONTAINERS = {
    "list": lambda: ["b", "a"],
    "tuple": lambda: ("b", "a"),
    "str array": lambda: np.array(["b", "a"]),
    "object array": lambda: np.array(["b", "a"], dtype=object),
    "StringDType array": lambda: np.array(["b", "a"], dtype=np.dtypes.StringDType()),
    "Series with gaps": lambda: pd.Series(["b", "a"], index=[9, 5]),
    "generator": lambda: (text for text in "ba"),
    "dict view": lambda: {"b": 1, "a": 2}.keys(),
    "Arrow chunks": lambda: pa.chunked_array([["b"], ["a"]]),
    "polars": lambda: polars.Series(["b", "a"]),
    "Dataset": lambda: Dataset.from_dict({"text": ["b", "a"]})["text"],
    "frame of one column": lambda: pd.DataFrame({"x": ["b", "a"]}),
}


@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)
def test_every_column_of_texts_gives_the_same_rows(container):
    assert as_texts(container()) == ["b", "a"]
    assert TOKENIZER.ids(container()) == [[CLS, 1038, SEP], [CLS, 1037, SEP]]
    assert TOKENIZER(container()).input_ids.tolist() == [[CLS, 1038, SEP], [CLS, 1037, SEP]]


@pytest.mark.parametrize(
    ("value", "name"),
    [(None, "None"), (float("nan"), "NaN"), (np.float32("nan"), "NaN"), (pd.NA, "NA"), (pd.NaT, "NaT")],
)
def test_a_missing_text_is_an_error_that_names_the_row_or_an_empty_text(value, name):
    texts = ["hello"] * 7 + [value]
    message = f"row 7 is {name}, not a text; use missing='empty' to treat it as an empty text"
    for call in (as_texts, TOKENIZER, TOKENIZER.ids):
        with pytest.raises(TypeError, match=message):
            call(texts)
    assert as_texts(texts, missing="empty")[7] == ""
    assert TOKENIZER.ids(texts, missing="empty")[7] == [CLS, SEP]
    assert TOKENIZER(texts, missing="empty").input_ids[7].tolist() == [CLS, SEP, PAD]


def test_missing_texts_of_a_series_are_found():
    with pytest.raises(TypeError, match=r"row 1 .*NaN"):
        as_texts(pd.Series(["a", None], index=[4, 2], dtype="str"))
    assert as_texts(pd.Series(["a", None], index=[4, 2], dtype="string"), missing="empty") == ["a", ""]


@pytest.mark.parametrize("value", [7, 2.5, b"hello", {"text": "hello"}, ["a", "b"], ("a", "b")], ids=repr)
@pytest.mark.parametrize("missing", ["error", "empty"])
def test_a_row_that_is_no_text_is_refused_with_its_type_and_row(value, missing):
    with pytest.raises(TypeError, match=rf"row 1 .*{type(value).__name__}"):
        as_texts(["hello", value], missing=missing)


TABLE = r"one column is expected; pass pairs as two columns: tokenizer\(first, second\)"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        *((texts, f"texts is of type {type(texts).__name__}") for texts in (7, b"hello", {"a": "b"}, {"a"}, None)),
        (np.array("a"), TABLE),
        (np.array([["a", "b"]]), TABLE),
        (Path("model"), "the texts come first, then the model"),
        *((vectors, "numbers.* a @ b.T") for vectors in (np.zeros((2, 3)), np.float32([1, 2]), torch.zeros(2, 3))),
        *((vectors, "row 0 .* a @ b.T") for vectors in ([[0.5, 1.5]], [np.zeros(2)])),
        pytest.param(polars.LazyFrame({"text": ["a"]}), r"LazyFrame .* collect\(\)", id="LazyFrame"),
        ({"train": polars.DataFrame({"text": ["a"]}), "test": polars.DataFrame()}, r"data\['train'\]"),
    ],
    ids=repr,
)
def test_anything_but_a_column_of_texts_is_refused(texts, message):
    for call in (as_texts, TOKENIZER.ids):
        with pytest.raises(TypeError, match=message):
            call(texts)


def test_a_str_is_one_text_wherever_texts_are_taken():
    assert as_texts("hello") == ["hello"] and as_texts_or_pairs("hello") == ["hello"]
    assert TOKENIZER.ids("hello") == TOKENIZER.ids(["hello"])


@pytest.mark.parametrize("call", [as_texts, TOKENIZER, TOKENIZER.ids])
def test_a_lone_surrogate_is_refused(call):
    with pytest.raises(ValueError, match=r"row 1 .*U\+D800.* 2\b"):
        call(["hello", "ab\ud800c"])


FRAME = pd.DataFrame({"text": ["a", "b"], "passage": ["c", "d"], "z": ["e", "f"]}, index=[7, 3])
TABLES: dict[str, Callable[[pd.DataFrame], object]] = {
    "frame": lambda frame: frame,
    "array": lambda frame: frame.to_numpy(),
    "records": lambda frame: frame.to_records(index=False),
    "polars": polars.from_pandas,
    "Arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "Dataset": lambda frame: Dataset.from_pandas(frame, preserve_index=False),
}


@pytest.mark.parametrize("of", TABLES.values(), ids=TABLES)
def test_a_table_of_one_or_two_columns_is_texts_or_pairs(of):
    assert as_texts_or_pairs(of(FRAME[["text"]])) == ["a", "b"]
    assert as_texts_or_pairs(of(FRAME[["text", "passage"]])) == [("a", "c"), ("b", "d")]
    with pytest.raises(TypeError, match=r"\b3 columns"):
        as_texts_or_pairs(of(FRAME))


@pytest.mark.parametrize("name", ["lang", "stars", "Label"])
def test_a_second_column_that_is_not_called_like_second_texts_is_refused(name):
    frame = FRAME[["text", "z"]].rename(columns={"z": name})
    for of in (TABLES[kind] for kind in TABLES if kind != "array"):
        with pytest.raises(TypeError, match=f"'text' and '{name}'"):
            as_texts_or_pairs(of(frame))
