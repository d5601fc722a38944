"""config.json, read and written for both model types, and refused by name where it asks for the impossible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from minibert.config import ACTIVATIONS, DISTILBERT_NAMES, Config
from minibert.model import ACTIVATION

UPSTREAM = {"bert": transformers.BertConfig, "distilbert": transformers.DistilBertConfig}


@pytest.fixture(params=["bert", "distilbert"])
def model_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_accepted_activations_are_those_that_the_model_computes() -> None:
    assert set(ACTIVATIONS) == set(ACTIVATION)


def test_the_defaults_are_those_of_transformers(model_type: str) -> None:
    ours, theirs = Config.from_dict({"model_type": model_type}).to_dict(), UPSTREAM[model_type]().to_dict()
    assert {name: theirs[name] for name in ours} == ours


def test_the_defaults_without_a_file_are_bert_base() -> None:
    assert Config() == Config.from_dict({"model_type": "bert"})


def test_distilbert_has_no_segments_and_a_fixed_epsilon_whatever_its_file_says() -> None:
    config = Config.from_dict({"model_type": "distilbert", "type_vocab_size": 2, "layer_norm_eps": 1e-5})
    assert (config.type_vocab_size, config.layer_norm_eps) == (0, 1e-12)


@pytest.mark.parametrize(("ours", "theirs"), DISTILBERT_NAMES.items())
def test_distilbert_takes_a_field_under_its_own_name_and_under_berts(ours: str, theirs: str) -> None:
    value: Any = {"hidden_act": "relu"}.get(ours, 0.25 if "drop" in ours else 24)
    assert getattr(Config.from_dict({"model_type": "distilbert", theirs: value}), ours) == value
    assert getattr(Config.from_dict({"model_type": "distilbert", ours: value}), ours) == value
    assert Config.from_dict({"model_type": "distilbert", theirs: value}).to_dict()[theirs] == value


def test_what_is_written_is_read_back_equal(model_type: str) -> None:
    config = Config.from_dict(
        {
            "model_type": model_type,
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


def test_transformers_reads_what_is_written(model_type: str) -> None:
    config = Config.from_dict({"model_type": model_type, "hidden_size": 24, "num_attention_heads": 3, "num_labels": 4})
    theirs = UPSTREAM[model_type](**config.to_dict())
    assert (theirs.hidden_size, theirs.num_attention_heads, theirs.num_labels) == (24, 3, 4)
    assert Config.from_dict(theirs.to_dict()).to_dict().items() >= config.to_dict().items()


def test_labels_are_counted_by_id2label_else_num_labels_else_two() -> None:
    assert Config.from_dict({"model_type": "bert", "id2label": {"0": "a", "1": "b", "2": "c"}}).num_labels == 3
    assert Config.from_dict({"model_type": "bert", "num_labels": 5}).id2label[4] == "LABEL_4"
    assert Config.from_dict({"model_type": "bert"}).num_labels == 2


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"model_type": "roberta"}, ["model_type 'roberta'", "supported: bert, distilbert"]),
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
        Config.from_dict({"model_type": "bert"} | wrong)
    assert all(word in str(error.value) for word in words)


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
