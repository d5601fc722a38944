"""Official files as they really are: every name, prefix and dtype; what is missing, unknown or ambiguous is told."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_equal, edited, every_family, every_head, small_config
from safetensors.torch import load_file
from torch import Tensor

import minibert
from minibert.checkpoints.load import LoadReport, UnknownTensors, bare_name, full_name, name_in_file
from minibert.families import FAMILIES
from minibert.families.base import Family
from minibert.families.bert import BERT
from minibert.families.distilbert import DISTILBERT
from minibert.heads import HEAD_CLASSES
from minibert.model import Encoder
from minibert.parity.stages import base

Written = Callable[..., tuple[Path, Any]]
Rename = Callable[[str], str]
D, V = 24, 101  # hidden size and vocabulary of parity's tiny checkpoints
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def bert(written: Written) -> Path:
    """A random BERT, as transformers writes it; tests read it and damage copies."""
    return written(BERT)[0]


@pytest.fixture
def original(family: Family, written: Written) -> Path:
    """The same of the family that a test is about."""
    return written(family)[0]


def without(*prefixes: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {name: x for name, x in tensors.items() if not name.startswith(prefixes)}


def renamed(how: Rename) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {how(name): x for name, x in tensors.items()}


def adding(more: dict[str, Tensor]) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: tensors | more


def load(folder: Path, **how: Any) -> tuple[Encoder, LoadReport]:
    return minibert.load(folder, report=True, **how)


def assert_same_weights(folder: Path, original: Path) -> LoadReport:
    """`folder` loads bit-equal to `original`, without a warning (warnings are errors)."""
    encoder, report = load(folder)
    assert_equal(dict(encoder.state_dict()), dict(minibert.load(original).state_dict()))
    return report


# the table of names


@every_family
def test_the_table_is_a_bijection_between_our_names_and_upstreams(family: Family, written: Written) -> None:
    ours, theirs = Encoder(small_config(family)).state_dict(), written(family)[1].state_dict()
    names = {name_in_file(family, name): name for name in ours}
    assert len(names) == len(ours)
    assert names.keys() == theirs.keys()
    assert all(ours[name].shape == theirs[official].shape for official, name in names.items())


@every_head
def test_every_tensor_of_a_task_head_has_its_name_in_the_file(family: Family, head: str, written: Written) -> None:
    """But the bias of the decoder, which is looked for under another one while it is tied."""
    folder, _ = written(family, head)
    tied, untied = family.decoder_bias
    names = {untied if name == tied else name for name in load_file(folder / "model.safetensors")}
    state = minibert.load(folder, head=head).state_dict()
    assert {full_name(family, name, head) for name in state} == names


@every_family
def test_no_name_stands_twice_in_a_table(family: Family) -> None:
    for table in (family.modules, *({**family.modules, **head} for head in family.heads.values())):
        assert len(set(table.values())) == len(table)


@every_family
def test_official_names_are_left_as_they_are(family: Family, written: Written) -> None:
    names = load_file(written(family)[0] / "model.safetensors").keys()
    assert {bare_name(name) for name in names} == set(names)


def test_distilbert_has_no_name_for_the_pooler() -> None:
    with pytest.raises(LookupError, match=r"distilbert has no pooler\.dense"):
        name_in_file(DISTILBERT, "pooler.dense.weight")
    with pytest.raises(LookupError, match="distilbert has no pooler"):
        DISTILBERT.official("pooler")


def test_the_bare_name_has_no_wrapper_no_prefix_and_no_gamma() -> None:
    assert bare_name("module._orig_mod.bert.embeddings.LayerNorm.gamma") == "embeddings.LayerNorm.weight"
    assert full_name(BERT, "encoder.layers.3.attention_norm.bias", "masked-lm") == (
        "bert.encoder.layer.3.attention.output.LayerNorm.bias"
    )


def test_a_relative_without_data_is_an_error_and_not_a_distilbert(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAMILIES, "roberta", Family("roberta", "RoBERTa", "Roberta", "roberta.", modules={}, heads={}))
    folder = edited(bert, tmp_path, lambda tensors: None, model_type="roberta")
    with pytest.raises(LookupError, match="roberta has no"):
        minibert.load(folder)
    with pytest.raises(ValueError, match="roberta has no head 'masked-lm'"):
        HEAD_CLASSES["masked-lm"](minibert.Config(model_type="roberta"))


# names as files have them


@every_family
@pytest.mark.parametrize(
    "prefix", ["{}.", "module.", "_orig_mod.", "module.{}.", "_orig_mod.module.{}.", "module._orig_mod.", "{}.{}."]
)
def test_any_prefix_and_nesting_loads_the_same_tensors(
    prefix: str, family: Family, original: Path, tmp_path: Path
) -> None:
    before = prefix.format(family.name, family.name)
    report = assert_same_weights(edited(original, tmp_path, renamed(lambda name: before + name)), original)
    assert all(name.startswith(before) for name in report.loaded)
    assert report.ignored == {}


def old_norm(name: str) -> str:
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_gamma_and_beta_of_old_files_are_the_weight_and_bias_of_layer_norm(
    prefix: str, bert: Path, tmp_path: Path
) -> None:
    folder = edited(bert, tmp_path, renamed(lambda name: prefix + old_norm(name)))
    report = assert_same_weights(folder, bert)
    assert report.loaded[prefix + "embeddings.LayerNorm.gamma"] == "embeddings.norm.weight"


@pytest.mark.parametrize("name", ["gamma", "encoder.layer.0.gamma", "encoder.gamma_scale.weight", "MyLayerNorm.gamma"])
def test_another_tensor_called_gamma_is_not_renamed_and_reported_unknown(name: str, bert: Path, tmp_path: Path) -> None:
    assert bare_name(name) == name
    folder = edited(bert, tmp_path, adding({name: torch.ones(3)}))
    with pytest.warns(UnknownTensors, match=name):
        _, report = load(folder)
    assert report.ignored == {name: "unknown to minibert"}


def test_gamma_and_weight_of_one_layer_norm_are_ambiguous(bert: Path, tmp_path: Path) -> None:
    folder = edited(bert, tmp_path, adding({"embeddings.LayerNorm.gamma": torch.ones(D)}))
    with pytest.raises(ValueError, match="ambiguous") as error:
        load(folder)
    assert "embeddings.LayerNorm.gamma" in str(error.value)
    assert "embeddings.LayerNorm.weight" in str(error.value)


def test_the_same_tensor_with_and_without_prefix_is_ambiguous(bert: Path, tmp_path: Path) -> None:
    twice = {"bert.pooler.dense.bias": torch.ones(D)}
    folder = edited(bert, tmp_path, adding(twice))
    with pytest.raises(ValueError, match=r"both .*pooler\.dense\.bias and .*pooler\.dense\.bias: .* ambiguous"):
        load(folder)


@every_family
def test_position_ids_in_the_file_are_ignored_with_the_reason(family: Family, original: Path, tmp_path: Path) -> None:
    extra = {"embeddings.position_ids": torch.arange(20)[None]}
    report = assert_same_weights(edited(original, tmp_path, adding(extra)), original)
    assert report.ignored == {"embeddings.position_ids": "positions are counted, not stored"}


@pytest.mark.parametrize("flag", [True, False])
def test_the_position_embeddings_of_the_file_win_over_the_sinusoidal_flag(
    flag: bool, written: Written, tmp_path: Path
) -> None:
    original, _ = written(DISTILBERT)
    assert_same_weights(edited(original, tmp_path, lambda tensors: None, sinusoidal_pos_embds=flag), original)


@every_head
def test_the_encoder_of_a_file_with_a_head_loads_without_a_warning(family: Family, head: str, written: Written) -> None:
    folder, theirs = written(family, head)
    encoder, report = load(folder)
    expected = base(theirs).state_dict()
    for name, x in encoder.state_dict().items():
        assert torch.equal(x, expected[name_in_file(family, name)])
    assert (encoder.pooler is not None) == any(name.startswith("pooler") for name in expected)
    assert set(report.ignored.values()) == {"belongs to a head that was not requested"}


def test_a_masked_lm_file_with_both_names_of_the_decoder_bias_loads(bert: Path, tmp_path: Path) -> None:
    heads = {
        "cls.predictions.bias": torch.ones(V),
        "cls.predictions.decoder.bias": torch.ones(V),
        "cls.predictions.decoder.weight": torch.ones(V, D),
    }
    folder = edited(bert, tmp_path, adding(heads))
    assert assert_same_weights(folder, bert).ignored.keys() == heads.keys()


# the account


@every_family
def test_every_tensor_of_the_file_is_in_the_account(family: Family, original: Path) -> None:
    encoder, report = load(original)
    assert report.loaded.keys() == load_file(original / "model.safetensors").keys()
    assert set(report.loaded.values()) == encoder.state_dict().keys()
    assert (report.ignored, report.missing, report.wrong_shape) == ({}, [], {})
    assert report.dtypes == ("F32",)


def test_the_report_reads_as_text(bert: Path, tmp_path: Path) -> None:
    folder = edited(bert, tmp_path, adding({"embeddings.position_ids": torch.arange(20)}))
    text = str(load(folder)[1])
    assert "tensors loaded (F32, I64)" in text
    assert "ignored: embeddings.position_ids (positions are counted, not stored)" in text


@every_family
def test_any_missing_encoder_tensor_is_an_error(family: Family, original: Path, tmp_path: Path) -> None:
    for name in load_file(original / "model.safetensors"):
        folder = edited(original, tmp_path, without(name))
        with pytest.raises(ValueError, match="lacks 1 tensors"):
            load(folder)


def test_unknown_tensors_are_listed_and_warned_of_once(bert: Path, tmp_path: Path) -> None:
    extra = {"adapter.down.weight": torch.ones(2, 2), "encoder.layer.7.output.dense.bias": torch.ones(D)}
    folder = edited(bert, tmp_path, adding(extra))
    with pytest.warns(UnknownTensors, match=r"2 tensors are unknown.*adapter\.down\.weight") as caught:
        _, report = load(folder)
    assert len(caught) == 1
    assert report.ignored == dict.fromkeys(extra, "unknown to minibert")


def test_a_pooler_in_a_distilbert_file_is_unknown(written: Written, tmp_path: Path) -> None:
    extra = {"pooler.dense.weight": torch.ones(D, D)}
    folder = edited(written(DISTILBERT)[0], tmp_path, adding(extra))
    with pytest.warns(UnknownTensors, match=r"pooler\.dense\.weight"):
        encoder, _ = load(folder)
    assert encoder.pooler is None


def test_half_a_pooler_is_an_error(bert: Path, tmp_path: Path) -> None:
    folder = edited(bert, tmp_path, without("pooler.dense.bias"))
    with pytest.raises(ValueError, match=r"lacks 1 tensors, pooler\.dense\.bias"):
        load(folder)


def test_a_file_without_a_pooler_gives_an_encoder_without_one(bert: Path, tmp_path: Path) -> None:
    folder = edited(bert, tmp_path, without("pooler."))
    encoder, _ = load(folder)
    assert encoder.pooler is None
    assert encoder(torch.ones(2, 5, dtype=torch.long)).pooler_output is None


def test_another_number_of_vocabulary_rows_is_told_with_both_shapes(bert: Path, tmp_path: Path) -> None:
    folder = edited(bert, tmp_path, lambda tensors: None, vocab_size=99)
    with pytest.raises(ValueError) as error:
        load(folder)
    assert "word_embeddings.weight, (101, 24) in the file, (99, 24) by config.json" in str(error.value)


@pytest.mark.parametrize("layers", [3, 2**12])
def test_more_layers_than_the_file_holds_are_refused_before_they_are_built(
    layers: int, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Encoder, "__init__", None)
    folder = edited(bert, tmp_path, lambda tensors: None, num_hidden_layers=layers)
    with pytest.raises(ValueError, match=rf"config\.json says {layers} layers, and the file holds the weights of 2"):
        load(folder)


@pytest.mark.parametrize(("file", "config"), [("bert", "distilbert"), ("distilbert", "bert")])
def test_the_tensors_of_one_type_with_the_config_of_the_other_are_told_by_both_names(
    file: str, config: str, written: Written, tmp_path: Path
) -> None:
    shutil.copy(written(FAMILIES[config])[0] / "config.json", tmp_path)
    shutil.copy(written(FAMILIES[file])[0] / "model.safetensors", tmp_path)
    with pytest.raises(ValueError, match=rf"config\.json says {config}, but the tensors are those of a {file}"):
        load(tmp_path)


# numbers


@pytest.mark.parametrize(
    ("stored", "name"),
    [(torch.float16, "F16"), (torch.bfloat16, "BF16"), (torch.float64, "F64"), (torch.float32, "F32")],
)
def test_a_file_of_any_float_loads_as_float32_and_the_report_names_it(
    stored: torch.dtype, name: str, bert: Path, tmp_path: Path
) -> None:
    folder = edited(bert, tmp_path, lambda tensors: {n: x.to(stored) for n, x in tensors.items()})
    encoder, report = load(folder)
    expected = minibert.load(bert).state_dict()
    assert report.dtypes == (name,)
    assert {x.dtype for x in encoder.state_dict().values()} == {torch.float32}
    assert all(torch.equal(x, expected[n].to(stored).float()) for n, x in encoder.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_dtype_asked_for_is_given(dtype: torch.dtype, bert: Path) -> None:
    encoder, report = load(bert, dtype=dtype)
    assert {x.dtype for x in encoder.parameters()} == {dtype}
    assert report.dtypes == ("F32",)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_tensor_with_nan_or_infinity_is_named(value: float, bert: Path, tmp_path: Path) -> None:
    def spoil(tensors: dict[str, Tensor]) -> None:
        tensors["encoder.layer.1.output.dense.weight"][3, 5] = value

    with pytest.raises(ValueError, match=r"encoder\.layer\.1\.output\.dense\.weight.*NaN"):
        load(edited(bert, tmp_path, spoil))


@pytest.mark.parametrize(("stored", "asked"), [(torch.float64, torch.float32), (torch.float32, torch.float16)])
def test_numbers_too_large_for_the_dtype_asked_for_are_an_error(
    stored: torch.dtype, asked: torch.dtype, bert: Path, tmp_path: Path
) -> None:
    def spoil(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        tensors = {name: x.to(stored) for name, x in tensors.items()}
        tensors["pooler.dense.bias"][0] = torch.finfo(stored).max
        return tensors

    with pytest.raises(ValueError, match=f"too large for {asked}"):
        load(edited(bert, tmp_path, spoil), dtype=asked)


def test_the_model_keeps_its_weights_when_the_file_is_overwritten(bert: Path, tmp_path: Path) -> None:
    folder = edited(bert, tmp_path, lambda tensors: None)
    encoder, _ = load(folder)
    before = {name: x.clone() for name, x in encoder.state_dict().items()}
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert all(torch.equal(x, before[name]) for name, x in encoder.state_dict().items())


# shards


@every_family
def test_a_checkpoint_in_shards_equals_the_single_file(family: Family, written: Written, tmp_path: Path) -> None:
    original, theirs = written(family)
    theirs.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert_same_weights(tmp_path, original)


def test_loading_an_encoder_warns_of_nothing_and_leaves_the_random_state_alone(minilm: Path) -> None:
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, report = load(minilm)
    assert torch.equal(torch.get_rng_state(), state)
    assert set(report.ignored) <= {"embeddings.position_ids"}
    assert len(report.loaded) == 103
