"""Every key that transformers 5.23 has for a relative is implemented, refused, or without effect, for a given reason.

A version of transformers that adds a key fails here.
"""

import dataclasses
import importlib
import inspect
import re
from contextlib import nullcontext
from typing import Any

import pytest
from support.models import assert_equal, edit_json, open_upstream, small_config, unequal, write_checkpoint
from transformers import AutoModel, AutoModelForSequenceClassification

import minibert
from minibert.config import ABSENT, Config
from minibert.families import FAMILIES
from minibert.families.base import Family
from minibert.families.electra import ELECTRA
from minibert.families.modernbert import MODERNBERT
from minibert.heads import HEAD_CLASSES
from minibert.hooks import forward
from minibert.inputs import IGNORED
from minibert.parity.checkpoints import make_batch

FIELDS = {field.name for field in dataclasses.fields(Config)}
NOT_READ = "the models do not read it"
SHAPE_OF_OUTPUT = "what is returned, not how it is computed: an argument of forward here"
NAMES_OF_THIS_RUN = "how transformers is to compute, not what"
NO_EFFECT = {
    "transformers_version": "names the version that wrote the file",
    "architectures": "names the task head, which load finds by the tensors",
    "_name_or_path": "names where the model came from",
    "output_hidden_states": SHAPE_OF_OUTPUT,
    "output_attentions": SHAPE_OF_OUTPUT,
    "return_dict": SHAPE_OF_OUTPUT,
    "dtype": "load(dtype=) says in which dtype to compute, float32 by default, whatever the file was written in",
    "is_encoder_decoder": "only the cache of a decoder reads it",
    "use_cache": "only a decoder has a cache",
    "bos_token_id": NOT_READ,
    "eos_token_id": NOT_READ,
    "sinusoidal_pos_embds": "initial values of a table that is trained and saved",
    "label2id": "the inverse of id2label",
    # Properties of every configuration.
    "name_or_path": "names where the model came from",
    "torch_dtype": "as dtype",
    "use_return_dict": SHAPE_OF_OUTPUT,
    "_attn_implementation": NAMES_OF_THIS_RUN,
    "_experts_implementation": NAMES_OF_THIS_RUN,
    "is_heterogeneous": "whether there is a per_layer_config, which is refused",
    "per_layer_attributes": "as is_heterogeneous",
    "allow_global_per_layer_attribute_access": "as is_heterogeneous",
    "serialize_explicit_per_layer_config": "as is_heterogeneous",
}
# Read when a file is: rope_scaling only by families whose functions read it, num_labels by config.py. Where
# BERT's code has embedding_size, it only leaves out a check of the number of heads.
READ = {"num_labels", "rope_scaling", "embedding_size"}
# Of ModernBERT: read by its functions in families/modernbert.py, or without effect.
MODERN = {
    "sliding_window": "half of local_attention",
    "head_dim": "any value but the width of a head fails upstream",
    "rope_parameters": "global_rope_theta, local_rope_theta",
    "cls_token_id": NOT_READ,
    "sep_token_id": NOT_READ,
    "deterministic_flash_attn": "of a kernel of transformers",
}
OLDER = {"global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"}  # keys that files of 2024 have
EVERY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def upstream(family: Family) -> Any:
    return getattr(importlib.import_module("transformers"), family.upstream + "Config")()


def attributes(config: Any) -> set[str]:
    """Every name that a configuration of upstream has: fields, properties, names for other fields."""
    properties = {name for name, _ in inspect.getmembers(type(config), lambda one: isinstance(one, property))}
    fields = {field.name for field in dataclasses.fields(config)}
    return fields | properties | config.to_dict().keys() | config.attribute_map.keys()


def in_code(config: Any) -> set[str]:
    """Every name that the code of its models reads of it."""
    code = inspect.getsource(importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_")))
    return set(re.findall(r"config(?:\.|, \")([a-z_]+)\b(?!\()", code))


@EVERY
def test_each_key_of_transformers_is_implemented_or_refused_or_has_no_effect(family):
    implemented = {family.keys.get(one.name, one.name) for one in dataclasses.fields(family.config) if one.init} - {
        "extra"
    }
    checked = {key for settings in family.settings.values() for key in settings}
    known = (
        implemented | checked | ABSENT.keys() | NO_EFFECT.keys() | (MODERN.keys() if family is MODERNBERT else set())
    )
    config = upstream(family)
    keys = attributes(config) | in_code(config)
    assert keys <= known | READ | {*family.aliases}, keys - known
    assert implemented <= keys | OLDER, implemented - keys
    assert config.attribute_map == {name: family.keys[name] for name in family.aliases}
    by_all = {"quantization_config", "per_layer_config", "pruned_heads"}  # heads were pruned by any, once
    by_older = {"position_embedding_type"} if family.has_segments else set()
    assert set(family.ignored) == ABSENT.keys() - by_all - by_older - in_code(config)
    assert not implemented & (ABSENT.keys() | checked | NO_EFFECT.keys())


# Keys that older versions or other tools wrote, or that any model of transformers has, which the table above lacks.
REFUSED: dict[str, Any] = {
    "position_embedding_type": "relative_key_query",
    "is_decoder": True,
    "add_cross_attention": True,
    "pruned_heads": {"0": [1]},
    "chunk_size_feed_forward": 2,
    "per_layer_config": {"0": {"intermediate_size": 7}},
    "quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True},
}


@EVERY
@pytest.mark.parametrize("key", ABSENT)
def test_a_key_that_would_change_the_results_is_refused_by_name(family, key):
    value = REFUSED[key]
    with nullcontext() if key in family.ignored else pytest.raises(ValueError, match=rf"{key} .*only {ABSENT[key]!r}"):
        assert small_config(family, **{key: value}).extra[key] == value
    assert small_config(family, **{key: ABSENT[key]}).extra[key] == ABSENT[key]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("summary_type", "mean"),
        ("summary_use_proj", False),
        ("summary_activation", "tanh"),
        ("summary_proj_to_labels", True),
        ("summary_first_dropout", 0.1),
    ],
)
def test_a_summary_of_electra_that_is_not_implemented_is_refused_where_it_is_read(key, value):
    config = small_config(ELECTRA, **{key: value})
    with pytest.raises(ValueError, match=rf"{key} .*{value!r}"):
        HEAD_CLASSES["multiple-choice"](config)
    HEAD_CLASSES["sequence-classification"](config)


LEFTOVERS = {"is_decoder": True, "add_cross_attention": True, "hidden_dropout_prob": 0.5, "choice_dropout": 0.5}
SAME_FILE: list[tuple[str, dict[str, Any]]] = [  # None: the file does not have the key
    ("modernbert", {"sliding_window": 1}),
    ("modernbert", {"local_attention": 8, "sliding_window": 0}),
    ("modernbert", {"layer_norm_eps": 0.5, "hidden_act": "relu", "embedding_dropout": None, **LEFTOVERS}),
    ("modernbert", {"layer_norm_eps": 0.5, "norm_eps": None, "hidden_act": "relu", "hidden_activation": None}),
    ("modernbert", {"position_embedding_type": "rope", "chunk_size_feed_forward": 3, "rope_theta": 3.0}),
    ("distilbert", {"hidden_act": "relu", "activation": None}),
    ("distilbert", {"hidden_act": "relu", "activation": "gelu", "intermediate_size": 5, **LEFTOVERS}),
    (
        "distilbert",
        {"dim": 8, "hidden_size": 24, "n_heads": 2, "num_attention_heads": 3, "n_layers": 1, "num_hidden_layers": 2},
    ),
    ("distilbert", {"position_embedding_type": "relative_key", "type_vocab_size": 2}),
    ("albert", {"classifier_dropout": 0.5, **LEFTOVERS}),
    ("electra", {"choice_dropout": 0.5}),
    ("bert", {"embedding_size": 5, "dim": 7, "activation": "relu", "sparse_prediction": True, "sliding_window": 1}),
]


@pytest.mark.parametrize(("family", "changes"), SAME_FILE)
def test_a_file_gives_the_states_that_it_gives_upstream(family, changes, tmp_path):
    write_checkpoint(tmp_path, family)
    removed = [key for key, value in changes.items() if value is None]
    edit_json(tmp_path / "config.json", *removed, **{key: changes[key] for key in changes if key not in removed})
    theirs = open_upstream(AutoModel, tmp_path)
    batch = make_batch(theirs.config, 11)
    ours = minibert.load(tmp_path)
    assert_equal(forward(ours, batch).last_hidden_state, forward(theirs, batch).last_hidden_state)
    minibert.save(ours, tmp_path / "copy")
    again = open_upstream(AutoModel, tmp_path / "copy")
    assert_equal(forward(again, batch).last_hidden_state, forward(theirs, batch).last_hidden_state)


def test_num_labels_counts_before_names_of_another_number(tmp_path):
    write_checkpoint(tmp_path, head="sequence-classification", num_labels=3)
    edit_json(tmp_path / "config.json", num_labels=3, id2label={"0": "a", "1": "b"})
    theirs = open_upstream(AutoModelForSequenceClassification, tmp_path)
    assert minibert.load(tmp_path, head="sequence-classification").config.id2label == theirs.config.id2label


def test_a_sparse_prediction_has_the_logits_the_loss_and_the_gradients_of_upstream(pair):
    both = pair(MODERNBERT, "masked-lm", sparse_prediction=True)
    batch, labels = both.task.batch, both.task.labels["labels"]
    assert len(forward(both.ours, batch, {"labels": labels}).logits) == (labels != IGNORED).sum()
    assert forward(both.ours, batch).logits.shape[:2] == labels.shape
    assert unequal(both.climb().rows) == []
