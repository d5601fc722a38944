"""config.json is read and written for every relative, and refused by name where it requests the impossible."""

import dataclasses
import functools
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
from minibert.families.bert import BERT
from minibert.families.distilbert import DISTILBERT
from minibert.model import ACTIVATION

FIELDS = {field.name: field for field in dataclasses.fields(Config)}
LIMITED = {
    name: f.metadata["limits"]["maximum"] for name, f in FIELDS.items() if "maximum" in f.metadata.get("limits", {})
}
SIZES = [name for name, maximum in LIMITED.items() if maximum > 1 and name not in BEHAVIOUR]
FRACTIONS = [name for name, maximum in LIMITED.items() if maximum == 1 and name not in BEHAVIOUR]


def upstream(family: Family, **values: Any) -> Any:
    return getattr(importlib.import_module("transformers"), family.upstream + "Config")(**values)


def read(family: Family, **values: Any) -> Config:
    return Config.from_dict({"model_type": family.name} | values)


bert = functools.partial(read, BERT)


@every_family
def test_the_defaults_are_those_of_transformers(family: Family) -> None:
    ours, theirs = read(family).to_dict(), upstream(family).to_dict()
    assert {name: theirs[name] for name in ours} == ours
    assert Config() == bert()
    assert set(ACTIVATIONS) == set(ACTIVATION)


@pytest.mark.parametrize(("ours", "theirs"), DISTILBERT.keys.items())
def test_distilbert_takes_a_field_under_its_own_name_and_under_berts(ours: str, theirs: str) -> None:
    value: Any = {"hidden_act": "relu"}.get(ours, 0.25 if "drop" in ours else 24)
    assert getattr(read(DISTILBERT, **{theirs: value}), ours) == value
    assert getattr(read(DISTILBERT, **{ours: value}), ours) == value
    assert read(DISTILBERT, **{theirs: value}).to_dict()[theirs] == value


def test_behaviour_is_the_relatives_and_not_the_files() -> None:
    """No config.json has the first three fields: a key that happens to have such a name is kept and changes nothing."""
    config = bert(first_position=3, shared_layers=[0, 0], text_head="relu")
    assert (config.first_position, config.shared_layers, config.text_head) == (0, tuple(range(12)), "pooler")
    assert {"first_position", "shared_layers", "text_head"} <= config.extra.keys()
    config = read(DISTILBERT, type_vocab_size=2, layer_norm_eps=1e-5)
    assert (config.type_vocab_size, config.layer_norm_eps) == (0, 1e-12)


@every_family
def test_a_config_survives_writing_and_reading_here_and_in_transformers(family: Family) -> None:
    kept = {"initializer_range": 0.5, "my own key": {"kept": [1, 2]}, "problem_type": "regression"}
    config = read(family, id2label={"0": "no", "1": "yes", "2": "perhaps"}, **kept)
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert config.to_dict().items() >= kept.items()
    config = read(family, hidden_size=24, num_attention_heads=3, num_labels=4)
    theirs = upstream(family, **config.to_dict())
    assert (theirs.hidden_size, theirs.num_attention_heads, theirs.num_labels) == (24, 3, 4)
    assert Config.from_dict(theirs.to_dict()).to_dict().items() >= config.to_dict().items()


def test_labels_are_counted_by_id2label_else_num_labels_else_two() -> None:
    assert bert(id2label={"0": "a", "1": "b", "2": "c"}).num_labels == 3
    assert bert(num_labels=5).id2label[4] == "LABEL_4"
    assert bert().num_labels == 2


LARGEST = "at least [01] and at most (16777216|4096)$"
BAD_LABELS: list[Any] = [2, "positive", ["no", "yes"], {"one": "yes"}, {"0": 7}, {"0": None}, {"-1": "no"}]
WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"model_type": "xlnet"},
        "model_type 'xlnet' is not supported; supported: bert, ernie, distilbert, roberta, xlm-roberta, ",
    ),
    ({"model_type": None}, "model_type None is not supported"),
    ({"hidden_act": "swish"}, f"hidden_act is 'swish'; choose from {', '.join(ACTIVATIONS)}"),
    ({"hidden_size": 24, "num_attention_heads": 5}, "hidden_size 24 .* num_attention_heads 5"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be at least 1"),
    ({"num_hidden_layers": 2**12 + 1}, "num_hidden_layers is 4097; it must be at least 1 and at most 4096$"),
    ({"type_vocab_size": -1}, "type_vocab_size is -1; it must be at least 0"),
    ({"vocab_size": 10, "pad_token_id": 10}, "pad_token_id, below vocab_size, is 10; .* at most 9"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key' is not implemented"),
    ({"is_decoder": True}, "is_decoder True is not implemented"),
    ({"problem_type": "ranking"}, "problem_type is 'ranking'; choose from regression"),
    ({"pruned_heads": {"0": [1]}}, r"pruned_heads {'0': \[1\]}"),
    *(({"num_labels": count}, f"num_labels is {count}; .* at most {MOST_LABELS}") for count in (-1, 2**20 + 1)),
    *(({"num_labels": count}, f"num_labels is {count!r}; it must be an int") for count in (1.5, "3", True)),
    *(
        ({"id2label": labels}, "id2label is .*; it must map label numbers, from 0 on, to names")
        for labels in BAD_LABELS
    ),
    *(({name: size}, f"^{name} is .*{LARGEST}") for name in SIZES for size in (2**24 + 1, 2**62, -(2**62), 10**400)),
    *(({name: size}, f"^{name} is .*must be an int$") for name in SIZES for size in (True, 1e39, "12", [2], {})),
    *(({name: x}, f"^{name} is .*at most 1$") for name in FRACTIONS for x in (float("nan"), -1e-12, 1.5, float("inf"))),
    *(({name: value}, f"^{name} is .*a number$") for name in FRACTIONS for value in (True, "0.1", [0.1])),
    *(({"model_type": "distilbert", "qa_dropout": x}, "at least 0 and at most 1$") for x in (float("nan"), -0.1, 1.5)),
]


MADE: list[tuple[dict[str, Any], str]] = [  # in Python: in a file, None is no value and a position is another key
    ({"hidden_dropout_prob": None}, "hidden_dropout_prob is None"),
    ({"hidden_size": None}, "hidden_size is None"),
    ({"max_position_embeddings": 2, "first_position": 2}, "first_position, below max_position_embeddings, is 2"),
]


@pytest.mark.parametrize(
    ("make", "values", "message"), [*((bert, *one) for one in WRONG), *((Config, *one) for one in MADE)]
)
def test_a_config_that_cannot_be_is_refused_by_name(make: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make(**values)


def test_the_limits_themselves_are_taken() -> None:
    assert bert(vocab_size=2**24, num_hidden_layers=2**12).num_hidden_layers == 2**12
    assert all(getattr(bert(**{name: value}), name) == value for name in FRACTIONS for value in (0, 1.0))
    assert bert().classifier_dropout is None
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
    except (ValueError, TypeError) as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert Config.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1, 2]", "holds a list"),
        (b"{}", "config.json has no model_type; name it"),
        (b'{"model_type": "bert", "hidden_size": "24"}', "hidden_size is '24'; it must be an int"),
    ],
)
def test_a_config_file_that_cannot_be_is_refused_with_its_path(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        Config.from_file(tmp_path / "config.json")
    assert str(tmp_path) in str(error.value)
