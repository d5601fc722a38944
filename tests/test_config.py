"""config.json, read and written for both model types, and refused by name where it asks for the impossible."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from helpers import every_family
from hypothesis import given
from hypothesis import strategies as st

from minibert.config import ACTIVATIONS, Config
from minibert.families.base import BEHAVIOUR, MOST_LABELS, Family
from minibert.families.distilbert import DISTILBERT
from minibert.model import ACTIVATION

FIELDS = {field.name: field for field in dataclasses.fields(Config)}
SIZES = [name for name, field in FIELDS.items() if field.metadata.get("kind") is int and name not in BEHAVIOUR]
SHARES = [name for name, field in FIELDS.items() if field.metadata and field.metadata["kind"] is not int]
BERT_SHARES = [name for name in SHARES if name not in BEHAVIOUR]


def upstream(family: Family, **values: Any) -> Any:
    """transformers' configuration of a relative."""
    return getattr(importlib.import_module("transformers"), family.upstream + "Config")(**values)


def read(family: Family, **values: Any) -> Config:
    return Config.from_dict({"model_type": family.name} | values)


def bert(**values: Any) -> Config:
    return Config.from_dict({"model_type": "bert"} | values)


def test_the_accepted_activations_are_those_that_the_model_computes() -> None:
    assert set(ACTIVATIONS) == set(ACTIVATION)


@every_family
def test_the_defaults_are_those_of_transformers(family: Family) -> None:
    ours, theirs = read(family).to_dict(), upstream(family).to_dict()
    assert {name: theirs[name] for name in ours} == ours


def test_the_defaults_without_a_file_are_bert_base() -> None:
    assert Config() == Config.from_dict({"model_type": "bert"})


def test_distilbert_has_no_segments_and_a_fixed_epsilon_whatever_its_file_says() -> None:
    config = read(DISTILBERT, type_vocab_size=2, layer_norm_eps=1e-5)
    assert (config.type_vocab_size, config.layer_norm_eps) == (0, 1e-12)


@pytest.mark.parametrize(("ours", "theirs"), DISTILBERT.keys.items())
def test_distilbert_takes_a_field_under_its_own_name_and_under_berts(ours: str, theirs: str) -> None:
    value: Any = {"hidden_act": "relu"}.get(ours, 0.25 if "drop" in ours else 24)
    assert getattr(read(DISTILBERT, **{theirs: value}), ours) == value
    assert getattr(read(DISTILBERT, **{ours: value}), ours) == value
    assert read(DISTILBERT, **{theirs: value}).to_dict()[theirs] == value


def test_behaviour_is_the_relatives_and_not_the_files() -> None:
    """No config.json speaks of these fields: a key that happens to be called so is kept and changes nothing."""
    config = bert(first_position=3, shared_layers=[0, 0], text_head="relu")
    assert (config.first_position, config.shared_layers, config.text_head) == (0, tuple(range(12)), "pooler")
    assert {"first_position", "shared_layers", "text_head"} <= config.extra.keys()
    assert config.max_tokens == 512


@every_family
def test_what_is_written_is_read_back_equal(family: Family) -> None:
    config = Config.from_dict(
        {
            "model_type": family.name,
            "id2label": {"0": "no", "1": "yes", "2": "perhaps"},
            "initializer_range": 0.5,
            "sinusoidal_pos_embds": True,
            "my own key": {"kept": [1, 2]},
            "problem_type": "regression",
        }
    )
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert config.extra["my own key"] == {"kept": [1, 2]}
    assert config.to_dict()["my own key"] == {"kept": [1, 2]}


@every_family
def test_transformers_reads_what_is_written(family: Family) -> None:
    config = read(family, hidden_size=24, num_attention_heads=3, num_labels=4)
    theirs = upstream(family, **config.to_dict())
    assert (theirs.hidden_size, theirs.num_attention_heads, theirs.num_labels) == (24, 3, 4)
    assert Config.from_dict(theirs.to_dict()).to_dict().items() >= config.to_dict().items()


def test_labels_are_counted_by_id2label_else_num_labels_else_two() -> None:
    assert bert(id2label={"0": "a", "1": "b", "2": "c"}).num_labels == 3
    assert bert(num_labels=5).id2label[4] == "LABEL_4"
    assert bert().num_labels == 2


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            {"model_type": "xlnet"},
            ["model_type 'xlnet'", "supported: bert, distilbert, roberta, xlm-roberta"],
        ),
        ({"hidden_act": "swish"}, ["hidden_act 'swish'", *ACTIVATIONS]),
        ({"hidden_size": 24, "num_attention_heads": 5}, ["hidden_size 24", "num_attention_heads 5"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers is 0", "at least 1"]),
        ({"vocab_size": -1}, ["vocab_size is -1"]),
        ({"intermediate_size": "many"}, ["intermediate_size is 'many'"]),
        ({"max_position_embeddings": 1.5}, ["max_position_embeddings is 1.5"]),
        ({"type_vocab_size": -1}, ["type_vocab_size is -1", "at least 0"]),
        ({"vocab_size": 10, "pad_token_id": 10}, ["pad_token_id 10", "vocabulary of 10"]),
        ({"position_embedding_type": "relative_key"}, ["position_embedding_type 'relative_key' is not implemented"]),
        ({"is_decoder": True}, ["is_decoder True is not implemented"]),
        ({"add_cross_attention": True}, ["add_cross_attention True"]),
        ({"pruned_heads": {"0": [1]}}, ["pruned_heads {'0': [1]}"]),
    ],
)
def test_a_config_that_cannot_be_is_refused_by_name(wrong: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        bert(**wrong)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [True, 2**24 + 1, 2**62, -(2**62), 1e39, "12", [2], {}])
def test_a_size_that_no_model_has_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name} is .*whole number of at least [01] and at most \d+"):
        bert(**{name: value})


def test_the_largest_sizes_are_told_in_the_error() -> None:
    with pytest.raises(ValueError, match=f"num_hidden_layers is 4097; .* at most {2**12}$"):
        bert(num_hidden_layers=2**12 + 1)
    with pytest.raises(ValueError, match=f"vocab_size is 16777217; .* at most {2**24}$"):
        bert(vocab_size=2**24 + 1)
    assert bert(vocab_size=2**24, num_hidden_layers=2**12).num_hidden_layers == 2**12


@pytest.mark.parametrize("name", BERT_SHARES)
@pytest.mark.parametrize("value", [float("nan"), -1e-12, 1.5, 1e39, float("inf"), True, "0.1", [0.1]])
def test_an_epsilon_a_dropout_or_a_range_outside_0_to_1_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name} is .*a number of at least 0 and at most 1$"):
        bert(**{name: value})


def test_none_is_the_default_of_one_field_and_refused_in_the_others() -> None:
    assert bert().classifier_dropout is None
    for name in ("hidden_dropout_prob", "hidden_size"):
        with pytest.raises(ValueError, match=f"{name} is None"):
            Config(**{name: None})


@pytest.mark.parametrize("name", BERT_SHARES)
def test_0_and_1_are_taken_and_whole_numbers_too(name: str) -> None:
    assert getattr(bert(**{name: 0}), name) == 0
    assert getattr(bert(**{name: 1.0}), name) == 1


@pytest.mark.parametrize("value", [float("nan"), -0.1, 1.5])
@pytest.mark.parametrize("key", ["dropout", "attention_dropout", "qa_dropout"])
def test_a_dropout_of_distilbert_is_held_to_the_same_bounds(key: str, value: float) -> None:
    with pytest.raises(ValueError, match="a number of at least 0 and at most 1"):
        read(DISTILBERT, **{key: value})


@pytest.mark.parametrize("count", [-1, 2**20 + 1, 10_000_000_000, 1.5, "3", True])
def test_a_number_of_labels_that_cannot_be_is_refused(count: Any) -> None:
    with pytest.raises(ValueError, match=f"num_labels is {count!r}; it must be a whole number from 0 to {MOST_LABELS}"):
        bert(num_labels=count)


@pytest.mark.parametrize(
    "labels", [2, "positive", ["no", "yes"], {"one": "yes"}, {"0": 7}, {"0": None}, {"-1": "no"}, {"1.5": "no"}]
)
def test_labels_that_are_none_are_refused(labels: Any) -> None:
    with pytest.raises(ValueError, match=r"id2label is .*; it must give numbers, from 0 on, the names of labels"):
        bert(id2label=labels)


def test_positions_must_reach_past_the_first() -> None:
    with pytest.raises(ValueError, match="max_position_embeddings is 2; positions begin at 2"):
        Config(max_position_embeddings=2, first_position=2)
    assert Config(max_position_embeddings=514, first_position=2).max_tokens == 512


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@every_family
@given(st.dictionaries(st.sampled_from([*FIELDS, *DISTILBERT.keys.values(), "num_labels", "x"]), ANYTHING, max_size=3))
def test_any_value_under_any_key_is_read_or_refused_in_one_sentence(family: Family, values: dict[str, Any]) -> None:
    try:
        config = Config.from_dict(values | {"model_type": family.name})
    except ValueError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert Config.from_dict(config.to_dict()) == config


def test_a_config_without_model_type_is_refused() -> None:
    with pytest.raises(ValueError, match="model_type None is not supported; supported: bert, distilbert"):
        Config.from_dict({"hidden_size": 768})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"model_type": "bert",\n "hidden_size": }', "line 2"),
        (b"", "line 1"),
        (b"[1, 2]", "holds a list"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_a_config_file_that_is_not_a_json_object_is_refused_with_its_path(
    tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=words) as error:
        Config.from_file(tmp_path / "config.json")
    assert str(tmp_path) in str(error.value)


def test_a_config_file_with_a_byte_order_mark_and_windows_lines_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b'\xef\xbb\xbf{"model_type": "bert",\r\n"hidden_size": 24}')
    assert Config.from_file(tmp_path / "config.json").hidden_size == 24
