"""Every key that transformers 5.23 has for a relative is implemented, refused, or without effect, for a given reason.

A version of transformers that adds a key fails here.
"""

import dataclasses
import importlib
from typing import Any

import pytest
from support.models import small_config

import minibert
from minibert.config import ABSENT, Config
from minibert.families import FAMILIES
from minibert.families.base import Family
from minibert.families.electra import ELECTRA
from minibert.families.modernbert import MODERNBERT
from minibert.heads import HEAD_CLASSES

FIELDS = {field.name for field in dataclasses.fields(Config)}
NOT_READ = "the models do not read it"
SHAPE_OF_OUTPUT = "what is returned, not how it is computed: an argument of forward here"
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
}
# Of ModernBERT: read by its functions in families/modernbert.py, or without effect.
MODERN = {
    "layer_types": "windows, rotary_thetas",
    "local_attention": "windows",
    "rope_parameters": "rotary_thetas",
    "classifier_activation": "text_head, token_head, prediction_act",
    "cls_token_id": NOT_READ,
    "sep_token_id": NOT_READ,
    "deterministic_flash_attn": "of a kernel of transformers",
    "sparse_prediction": "leaves out logits of tokens without a label; here all are returned, and the loss is equal",
}
EVERY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def upstream(family: Family) -> Any:
    return getattr(importlib.import_module("transformers"), family.upstream + "Config")()


@EVERY
def test_each_key_of_transformers_is_implemented_or_refused_or_has_no_effect(family: Family) -> None:
    implemented = {family.keys.get(name, name) for name in FIELDS - family.decides.keys()} - {"extra"}
    checked = {key for settings in family.settings.values() for key in settings}
    known = (
        implemented | checked | ABSENT.keys() | NO_EFFECT.keys() | (MODERN.keys() if family is MODERNBERT else set())
    )
    config = upstream(family)
    keys = config.to_dict().keys() | {field.name for field in dataclasses.fields(config)}
    assert keys <= known, keys - known
    assert implemented <= keys, implemented - keys
    assert not implemented & (ABSENT.keys() | checked | NO_EFFECT.keys())


# Keys that older versions or other tools wrote, or that any model of transformers has, which the table above lacks.
REFUSED: list[tuple[str, Any]] = [
    ("position_embedding_type", "relative_key_query"),
    ("is_decoder", True),
    ("add_cross_attention", True),
    ("pruned_heads", {"0": [1]}),
    ("chunk_size_feed_forward", 2),
    ("per_layer_config", {"0": {"intermediate_size": 7}}),
    ("quantization_config", {"quant_method": "bitsandbytes", "load_in_8bit": True}),
]


def test_every_refused_key_is_tried_below() -> None:
    assert {key for key, _ in REFUSED} == ABSENT.keys()


@EVERY
@pytest.mark.parametrize(("key", "value"), REFUSED)
def test_a_key_that_would_change_the_results_is_refused_by_name(family: Family, key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{key} .*only {ABSENT[key]!r}"):
        small_config(family, **{key: value})
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
def test_a_summary_of_electra_that_is_not_implemented_is_refused_where_it_is_read(key: str, value: Any) -> None:
    config = small_config(ELECTRA, **{key: value})
    with pytest.raises(ValueError, match=rf"{key} .*{value!r}"):
        HEAD_CLASSES["multiple-choice"](config)
    minibert.Encoder(config)


@EVERY
def test_what_has_no_effect_is_kept_and_written_back(family: Family) -> None:
    kept = {
        "use_cache": False,
        "gradient_checkpointing": True,
        "gap_size": 0,
        "down_scale_factor": 1,
        "dtype": "float16",
    }
    assert small_config(family, **kept).to_dict().items() >= kept.items()
