"""config.json is read and written for every relative, and refused by name where it requests the impossible."""

import copy
import dataclasses
import functools
import importlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models import WRONG_NUMBERS, every_family, small_config

from minibert.activations import ACTIVATION
from minibert.checkpoints.load import names_in_file
from minibert.config import ACTIVATIONS, MOST_LABELS, Config
from minibert.families import FAMILIES
from minibert.families.albert import ALBERT
from minibert.families.base import Family
from minibert.families.base import bert as architecture
from minibert.families.bert import BERT, ERNIE
from minibert.families.distilbert import DISTILBERT
from minibert.families.roberta import ROBERTA
from minibert.model import Encoder

FIELDS = {field.name: field for field in dataclasses.fields(Config)}
LIMITED = {
    name: f.metadata["limits"]["maximum"] for name, f in FIELDS.items() if "maximum" in f.metadata.get("limits", {})
}
SIZES = [name for name, maximum in LIMITED.items() if maximum > 1]
FRACTIONS = [name for name, maximum in LIMITED.items() if maximum == 1]


def upstream(family: Family, **values: Any) -> Any:
    return getattr(importlib.import_module("transformers"), family.upstream + "Config")(**values)


def read(family: Family, **values: Any) -> Config:
    return Config.from_dict({"model_type": family.name} | values)


bert = functools.partial(read, BERT)


@every_family
def test_the_defaults_are_those_of_transformers(family):
    ours, theirs = read(family).to_dict(), upstream(family).to_dict()
    older = {"global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"}  # keys that files of 2024 have
    assert ours.items() >= {name: theirs[name] for name in ours.keys() - older}.items()
    assert Config() == bert()
    assert set(ACTIVATIONS) == set(ACTIVATION)


@pytest.mark.parametrize(("ours", "theirs"), DISTILBERT.keys.items())
def test_distilbert_takes_a_field_under_its_own_name_and_under_berts(ours, theirs):
    value = {"hidden_act": "relu"}.get(ours, 0.25 if "drop" in ours else 24)
    assert getattr(read(DISTILBERT, **{theirs: value}), ours) == value
    assert getattr(read(DISTILBERT, **{ours: value}), ours) == value
    assert read(DISTILBERT, **{theirs: value}).to_dict()[theirs] == value


def test_a_key_that_no_config_of_the_relative_has_is_kept_and_changes_nothing():
    config = bert(first_position=3, order=[0, 0], text_head="relu")
    own = config.architecture
    assert (own.first_position, own.order, own.text_head) == (0, tuple(range(12)), "pooler")
    assert {"first_position", "order", "text_head"} <= config.extra.keys()
    config = read(DISTILBERT, type_vocab_size=2, layer_norm_eps=1e-5)
    assert (config.type_vocab_size, config.layer_norm_eps) == (0, 1e-12)


@every_family
def test_a_config_survives_writing_and_reading_here_and_in_transformers(family):
    kept = {"initializer_range": 0.5, "my own key": {"kept": [1, 2]}, "problem_type": "regression", "dtype": "float16"}
    kept |= {"use_cache": False, "gradient_checkpointing": True, "gap_size": 0, "down_scale_factor": 1}
    config = read(family, id2label={"0": "no", "1": "yes", "2": "perhaps"}, **kept)
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert config.to_dict().items() >= kept.items()
    config = read(family, hidden_size=24, num_attention_heads=3, num_labels=4)
    theirs = upstream(family, **config.to_dict())
    assert (theirs.hidden_size, theirs.num_attention_heads, theirs.num_labels) == (24, 3, 4)
    assert Config.from_dict(theirs.to_dict()).to_dict().items() >= config.to_dict().items()


def test_labels_are_counted_by_id2label_else_num_labels_else_two():
    assert bert(id2label={"0": "a", "1": "b", "2": "c"}).num_labels == 3
    assert bert(num_labels=5).id2label[4] == "LABEL_4"
    assert bert().num_labels == 2


def test_labels_without_a_text_as_name_are_kept_as_transformers_keeps_them():
    names = {0: None, 1: 7, 2: ["a"], 3: "b"}
    config = bert(id2label={str(number): name for number, name in names.items()})
    theirs = pytest.importorskip("transformers").BertConfig(**config.to_dict())
    assert config.id2label == theirs.id2label == names and config.num_labels == theirs.num_labels == 4
    assert config.to_dict()["label2id"] == {"b": 3}


LARGEST = "at least [01] and at most (16777216|4096)$"
NAMED = ("model_type", "position_embedding_type", "hidden_act", "problem_type", "is_decoder")
BAD_LABELS: list[Any] = [2, "positive", ["no", "yes"], {"one": "yes"}, {"-1": "no"}]
WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"model_type": "xlnet"},
        "model_type 'xlnet' is not supported; supported: bert, ernie, distilbert, roberta, xlm-roberta, ",
    ),
    ({"model_type": None}, "model_type None is not supported"),
    ({"hidden_act": "xielu"}, f"hidden_act is 'xielu'; choose from {', '.join(ACTIVATIONS)}"),
    ({"hidden_size": 24, "num_attention_heads": 5}, "hidden_size 24 .* num_attention_heads 5"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be at least 1"),
    ({"num_hidden_layers": 2**12 + 1}, "num_hidden_layers is 4097; it must be at least 1 and at most 4096$"),
    ({"type_vocab_size": -1}, "type_vocab_size is -1; it must be at least 1"),
    ({"vocab_size": 10, "pad_token_id": 10}, "pad_token_id, below vocab_size, is 10; .* at most 9"),
    ({"problem_type": "ranking"}, "problem_type is 'ranking'; choose from regression"),
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
    *(
        ({"model_type": "ernie", "use_task_id": True, "task_type_vocab_size": x}, r"task_type_vocab_size is .{1,60};")
        for x in WRONG_NUMBERS
    ),
    # An error shows only the beginning of a long value.
    *(({key: "x" * 100_000}, rf"^.{{,200}}{key}.{{,80}}\(100,000 characters\).{{,330}}$") for key in NAMED),
    *(({"model_type": "distilbert", "qa_dropout": x}, "at least 0 and at most 1$") for x in (float("nan"), -0.1, 1.5)),
]


MADE: list[tuple[dict[str, Any], str]] = [  # in Python: in a file, None is no value and a position is another key
    ({"hidden_dropout_prob": None}, "hidden_dropout_prob is None"),
    ({"hidden_size": None}, "hidden_size is None"),
    ({"model_type": "distilbert", "type_vocab_size": 2}, "type_vocab_size is 2; DistilBERT cannot change it from 0"),
    ({"embedding_size": 5}, "no setting embedding_size"),
    ({"max_position_embeddings": 2, "model_type": "roberta", "pad_token_id": 1}, "max_position_embeddings, is 2"),
]


@pytest.mark.parametrize(
    ("make", "values", "message"), [*((bert, *one) for one in WRONG), *((Config, *one) for one in MADE)]
)
def test_a_config_that_cannot_be_is_refused_by_name(make, values, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make(**values)


def test_the_limits_themselves_are_taken():
    assert bert(vocab_size=2**24, num_hidden_layers=2**12).num_hidden_layers == 2**12
    assert all(getattr(bert(**{name: value}), name) == value for name in FRACTIONS for value in (0, 1.0))
    assert bert().classifier_dropout is None
    assert Config(model_type="roberta", max_position_embeddings=514, pad_token_id=1).max_tokens == 512


# Another value of each field that is neither a number nor a switch, and of the padding, whose number may be 0.
CHANGES: dict[str, Any] = {
    "hidden_act": "relu",
    "pad_token_id": 4,
    "classifier_activation": "tanh",
    "classifier_pooling": "mean",
    "classifier_dropout": 0.55,
    "layer_types": ("sliding_attention",) * 2,
    "id2label": {0: "a", 1: "b", 2: "c", 3: "d"},
    "problem_type": "regression",
    "extra": {"my own key": 1},
}


def another(value: float) -> float:
    """A number or a switch that differs from this one; a probability if this is one."""
    if isinstance(value, bool):
        return not value
    return 2 * value or 1 if isinstance(value, int) else value / 2 + 0.11


@every_family
def test_replace_of_any_field_gives_the_config_that_its_file_gives(family):
    config = small_config(family)
    own = {one.name: one.init for one in dataclasses.fields(family.config) if one.name != "model_type"}
    for name, may_change in own.items():
        value = CHANGES[name] if name in CHANGES else another(getattr(config, name))
        value = value if name != "extra" else config.extra | value
        assert value != getattr(config, name)
        if not may_change:
            with pytest.raises(ValueError, match=f"field {name} "):
                dataclasses.replace(config, **{name: value})
            continue
        changed = dataclasses.replace(config, **{name: value})
        raw = config.to_dict()
        if name in ("global_rope_theta", "local_rope_theta"):
            raw.pop("rope_parameters")
        raw |= {family.keys.get(name, name): value} if name != "extra" else value
        assert changed == Config.from_dict(json.loads(json.dumps(raw))), name
        assert Config.from_dict(json.loads(json.dumps(changed.to_dict()))) == changed, name


def test_replaced_groups_and_tasks_change_what_follows_from_them():
    config = dataclasses.replace(small_config(ALBERT), num_hidden_layers=5, num_hidden_groups=2, inner_group_num=2)
    assert config.architecture.order == (0, 1, 0, 1, 0, 1, 2, 3, 2, 3)
    assert dataclasses.replace(config, num_hidden_layers=2).architecture.order == (0, 1, 2, 3)
    with pytest.raises(ValueError, match=r"num_hidden_groups.* 2\b.* 1$"):
        dataclasses.replace(config, num_hidden_layers=1)
    assert "task_type_ids" not in dataclasses.replace(small_config(ERNIE), use_task_id=False).architecture.tables
    assert dataclasses.replace(small_config(ROBERTA), pad_token_id=5).architecture.first_position == 6


def test_the_class_of_a_config_is_that_of_its_relative_with_its_defaults():
    config = Config(model_type="albert", hidden_size=48, num_attention_heads=3)
    assert type(config) is ALBERT.config and (config.embedding_size, config.vocab_size) == (128, 30000)
    assert type(Config()) is Config and copy.deepcopy(config) == config
    with pytest.raises(ValueError, match="model_type is 'bert', in a AlbertConfig"):
        dataclasses.replace(config, model_type="bert")


KEYS = {one.name for family in FAMILIES.values() for one in dataclasses.fields(family.config)}
KEYS |= {*DISTILBERT.keys.values(), "num_labels", "rope_parameters", "rope_scaling", "sliding_window", "x"}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@every_family
@given(st.dictionaries(st.sampled_from(sorted(KEYS)), ANYTHING, max_size=3))
def test_any_value_under_any_key_is_read_or_refused_in_one_sentence(family, values):
    try:
        config = Config.from_dict(values | {"model_type": family.name})
    except (ValueError, TypeError) as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert Config.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1, 2]", "list"),
        (b"{}", r"config\.json.*model_type"),
        (b'{"model_type": "bert", "hidden_size": "24"}', r"hidden_size is '24'.*\bint\b"),
    ],
)
def test_a_config_file_that_cannot_be_is_refused_with_its_path(content, message, tmp_path):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        Config.from_file(tmp_path / "config.json")
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("contradiction", "message"),
    [
        ({"windows": (4,)}, "windows has 1 values and the model \\d+ layers"),
        ({"rotary_thetas": (1e4,) * 3}, "rotary_thetas has 3 values and the model \\d+ layers"),
        ({"order": (0, 0), "windows": (4, 4)}, "windows has 2 values and the model 1 layers"),
        ({"text_head": "swoosh"}, "text_head is 'swoosh'; choose from gelu"),
        ({"tables": {"colour_ids": "type_vocab_size"}}, "'colour_ids'"),
        ({"tables": {"task_type_ids": "colours"}}, "'colours'"),
    ],
)
def test_an_architecture_that_contradicts_itself_or_its_config_is_refused(contradiction, message, monkeypatch):
    def wrong(config):
        return architecture(config, **contradiction)

    monkeypatch.setitem(FAMILIES, "bert", dataclasses.replace(BERT, architecture=wrong))
    with pytest.raises(ValueError, match=message):
        small_config(BERT)


@every_family
def test_a_replaced_config_makes_the_model_that_transformers_makes(family):
    """One after the other, so that nothing that was derived before may stay."""
    config = small_config(family)
    for change in ({"num_hidden_layers": 3}, {"hidden_size": 48}, {"num_attention_heads": 4}, {"pad_token_id": 2}):
        config = dataclasses.replace(config, **change)
    theirs = getattr(importlib.import_module("transformers"), family.upstream + "Model")(
        upstream(family, **config.to_dict())
    )
    ours = Encoder(config)
    sizes, state = {}, ours.state_dict()
    for name, parts in names_in_file(ours).items():
        sizes[name] = (sum(len(state[part]) for part in parts), *state[parts[0]].shape[1:])
    assert sizes == {name: x.shape for name, x in theirs.state_dict().items()}
