"""Official files load under every name, prefix and dtype they have; what we save, transformers loads bit-equal."""

import copy
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from support.models import Pair, Written, assert_equal, edited, every_family, every_head, unequal
from support.words import write_words_checkpoint
from torch import Tensor, nn
from transformers import AutoModel

import minibert
from minibert.checkpoints import checkpoint
from minibert.checkpoints.load import LoadReport, UnknownTensors, names_in_file
from minibert.families.base import Family
from minibert.families.bert import BERT
from minibert.families.distilbert import DISTILBERT
from minibert.hooks import base
from minibert.parity.checkpoints import open_upstream, task
from minibert.storage import tensor_files
from minibert.utils.files import read_json

Change = Callable[[dict[str, Tensor]], Any]
D = 24  # hidden size of parity's tiny checkpoints


@pytest.fixture
def bert(written: Written) -> Path:
    """A random BERT, as transformers writes it; tests read it and damage copies."""
    return written(BERT)[0]


@pytest.fixture
def original(family: Family, written: Written) -> Path:
    return written(family)[0]


def without(*prefixes: str) -> Change:
    return lambda tensors: {name: x for name, x in tensors.items() if not name.startswith(prefixes)}


def load(folder: Path, **how: Any) -> tuple[minibert.Encoder, LoadReport]:
    return minibert.load(folder, report=True, **how)


def assert_same_weights(folder: Path, original: Path) -> LoadReport:
    """`folder` loads bit-equal to `original`, without a warning (warnings are errors)."""
    encoder, report = load(folder)
    assert_equal(dict(encoder.state_dict()), dict(minibert.load(original).state_dict()))
    return report


# names


@every_family
@pytest.mark.parametrize("prefix", ["{}.", "module.", "_orig_mod.module.{}.", "module._orig_mod.", "{}.{}."])
def test_any_prefix_and_nesting_loads_the_same_tensors(prefix, family, original, tmp_path):
    name = family.prefix.removesuffix(".")
    before = prefix.format(name, name)
    folder = edited(original, tmp_path, lambda tensors: {before + name: x for name, x in tensors.items()})
    report = assert_same_weights(folder, original)
    assert all(name.startswith(before) for name in report.loaded)
    assert report.ignored == {}


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_gamma_and_beta_of_old_files_are_the_weight_and_bias_of_layer_norm(prefix, bert, tmp_path):
    def old(name):
        return prefix + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    folder = edited(bert, tmp_path, lambda tensors: {old(name): x for name, x in tensors.items()})
    report = assert_same_weights(folder, bert)
    assert report.loaded[prefix + "embeddings.LayerNorm.gamma"] == "embeddings.norm.weight"


@pytest.mark.parametrize("name", ["gamma", "encoder.layer.0.gamma", "encoder.gamma_scale.weight", "MyLayerNorm.gamma"])
def test_another_tensor_called_gamma_is_not_renamed_and_reported_unknown(name, bert, tmp_path):
    with pytest.warns(UnknownTensors, match=name):
        _, report = load(edited(bert, tmp_path, lambda tensors: tensors | {name: torch.ones(3)}))
    assert report.ignored == {name: "unknown to minibert"}


@pytest.mark.parametrize(
    ("twice", "other"),
    [("embeddings.LayerNorm.gamma", "embeddings.LayerNorm.weight"), ("bert.pooler.dense.bias", "pooler.dense.bias")],
)
def test_one_tensor_under_two_names_is_ambiguous(twice, other, bert, tmp_path):
    with pytest.raises(ValueError, match=rf"({twice}.*{other}|{other}.*{twice}).*ambiguous"):
        load(edited(bert, tmp_path, lambda tensors: tensors | {twice: torch.ones(D)}))


# every tensor is reported


@every_family
def test_every_tensor_of_the_file_is_in_the_report(family, original, tmp_path):
    encoder, report = load(original)
    assert report.loaded.keys() == load_file(original / "model.safetensors").keys()
    loaded = ", ".join(report.loaded.values()).split(", ")
    assert sorted(loaded) == sorted(encoder.state_dict())
    assert (report.ignored, report.missing, report.wrong_shape, report.dtypes) == ({}, [], {}, ("F32",))
    folder = edited(original, tmp_path, lambda tensors: tensors | {"embeddings.position_ids": torch.arange(20)[None]})
    report = assert_same_weights(folder, original)
    assert "tensors loaded (F32, I64)" in str(report)
    assert "ignored: embeddings.position_ids (positions are counted, not stored)" in str(report)


@every_head
def test_the_encoder_of_a_file_with_a_head_loads_without_a_warning(family, head, written):
    folder, theirs = written(family, head)
    (encoder, report), expected = load(folder), base(theirs).state_dict()
    state = encoder.state_dict()
    for name, parts in names_in_file(encoder).items():
        assert torch.equal(torch.cat([state[part] for part in parts]), expected[name])
    assert (encoder.pooler is not None) == any(name.startswith("pooler") for name in expected)
    assert set(report.ignored.values()) == {"belongs to a head that was not requested"}


def test_any_missing_encoder_tensor_is_an_error(bert, monkeypatch):
    stored = tensor_files.list_tensors(bert)
    for name in stored:
        others = {one: tensor for one, tensor in stored.items() if one != name}
        monkeypatch.setattr(checkpoint, "list_tensors", lambda folder, others=others: others)
        with pytest.raises(ValueError, match=r"1 tensor.* BERT"):
            load(bert)


def test_unknown_tensors_are_listed_and_warned_of_once(bert, written, tmp_path):
    extra = {"adapter.down.weight": torch.ones(2, 2), "encoder.layer.7.output.dense.bias": torch.ones(D)}
    with pytest.warns(UnknownTensors, match=r"\b2\b.*adapter\.down\.weight") as caught:
        _, report = load(edited(bert, tmp_path / "bert", lambda tensors: tensors | extra))
    assert len(caught) == 1
    assert report.ignored == dict.fromkeys(extra, "unknown to minibert")
    pooler = {"pooler.dense.weight": torch.ones(D, D)}
    with pytest.warns(UnknownTensors, match=r"pooler\.dense\.weight"):
        encoder, _ = load(edited(written(DISTILBERT)[0], tmp_path / "distilbert", lambda tensors: tensors | pooler))
    assert encoder.pooler is None


def test_a_file_without_a_pooler_gives_an_encoder_without_one(bert, tmp_path):
    encoder, _ = load(edited(bert, tmp_path / "none", without("pooler.")))
    assert encoder.pooler is None
    assert encoder(torch.ones(2, 5, dtype=torch.long)).pooler_output is None
    with pytest.raises(ValueError, match=r"1 tensor.*BERT.*pooler\.dense\.bias"):
        load(edited(bert, tmp_path / "half", without("pooler.dense.bias")))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"vocab_size": 99}, r"word_embeddings.weight.*\(101, 24\).*\(99, 24\).*config.json"),
        ({"num_hidden_layers": 3}, r"16 tensors.*BERT.*layers\.2\.attention"),
        ({"model_type": "distilbert"}, r"tensors.*DistilBERT.*layers"),
    ],
)
def test_a_config_of_another_checkpoint_is_refused(config, message, bert, tmp_path):
    with pytest.raises(ValueError, match=message):
        load(edited(bert, tmp_path, dict, **config))


# numbers


STORED = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64", torch.float32: "F32"}


@pytest.mark.parametrize("stored", STORED)
def test_a_file_of_any_float_loads_as_float32_unless_another_dtype_is_requested(stored, bert, tmp_path):
    encoder, report = load(edited(bert, tmp_path, lambda tensors: {n: x.to(stored) for n, x in tensors.items()}))
    expected = minibert.load(bert).state_dict()
    assert report.dtypes == (STORED[stored],)
    assert {x.dtype for x in encoder.state_dict().values()} == {torch.float32}
    assert all(torch.equal(x, expected[n].to(stored).float()) for n, x in encoder.state_dict().items())
    encoder, report = load(bert, dtype=stored)
    assert {x.dtype for x in encoder.parameters()} == {stored}
    assert report.dtypes == ("F32",)


@pytest.mark.parametrize(
    ("value", "stored", "requested"),
    [
        (float("nan"), torch.float32, torch.float32),
        (float("inf"), torch.float32, torch.float32),
        (torch.finfo(torch.float64).max, torch.float64, torch.float32),
        (torch.finfo(torch.float32).max, torch.float32, torch.float16),
    ],
)
def test_a_tensor_with_nan_infinity_or_numbers_too_large_for_the_dtype_is_named(
    value, stored, requested, bert, tmp_path
):
    def spoil(tensors):
        tensors = {name: x.to(stored) for name, x in tensors.items()}
        tensors["encoder.layer.1.output.dense.weight"][3, 5] = value
        return tensors

    with pytest.raises(ValueError, match=rf"encoder\.layer\.1\.output\.dense\.weight.*NaN.*{requested}"):
        load(edited(bert, tmp_path, spoil), dtype=requested)


def test_the_model_keeps_its_weights_when_the_file_is_overwritten(bert, tmp_path):
    path = edited(bert, tmp_path, dict) / "model.safetensors"
    encoder, _ = load(tmp_path)
    before = {name: x.clone() for name, x in encoder.state_dict().items()}
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert_equal(dict(encoder.state_dict()), before)


@every_family
def test_a_checkpoint_in_shards_equals_the_single_file(family, written, tmp_path):
    original, theirs = written(family)
    theirs.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert_same_weights(tmp_path, original)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"device": "cuda:99"}, r"'cuda:99'.*1 cpu, [0-9]+ cuda"),
        ({"device": "nonsense"}, r"'nonsense'.*1 cpu"),
        ({"dtype": "float16"}, r"dtype is 'float16'.*torch.dtype"),
        ({"num_labels": 2}, "task head"),
    ],
)
def test_a_wrong_argument_is_refused_before_the_checkpoint_is_looked_for(how, message):
    with pytest.raises((ValueError, TypeError), match=message):
        minibert.load("no such checkpoint", **how)


# what is saved


@every_family
def test_what_we_save_loads_bit_equal_in_transformers_and_here(family, written, tmp_path):
    kept = {"sinusoidal_pos_embds": True, "my own": {"key": [1, None, "é"]}, "use_cache": False}
    folder = edited(written(family)[0], tmp_path / "edited", dict, **kept)
    encoder, saved = minibert.load(folder), tmp_path / "saved"
    minibert.save(encoder, saved)
    theirs, complete = open_upstream(saved, family, None, pooler=True)
    assert_equal(dict(theirs.state_dict()), dict(written(family)[1].state_dict()))
    assert complete and unequal(Pair(encoder, theirs, task(None, encoder.config, 11)).compare()) == []
    again, report = load(saved)
    assert (report.ignored, report.missing) == ({}, [])
    assert_equal(dict(again.state_dict()), dict(encoder.state_dict()))
    before, after = (read_json(path / "config.json") for path in (folder, saved))
    if "layer_types" in before:  # their period in its place
        assert before.pop("layer_types")[: after["global_attn_every_n_layers"]] == [
            "full_attention",
            "sliding_attention",
        ]
    assert all(after[name] == value for name, value in (before | kept).items())
    with safe_open(saved / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_the_real_minilm_loads_quietly_and_draws_no_random_numbers(minilm):
    state = torch.get_rng_state()
    _, report = load(minilm)  # warnings are errors
    assert torch.equal(torch.get_rng_state(), state)
    assert set(report.ignored) <= {"embeddings.position_ids"} and len(report.loaded) == 103


@pytest.mark.parametrize("dtype", STORED)
def test_transformers_loads_the_dtype_that_was_saved(dtype, bert, tmp_path):
    """transformers follows the dtype of config.json; the one of the original would change the weights."""
    encoder = minibert.load(edited(bert, tmp_path / "half", dict, torch_dtype="float16", dtype="float16"))
    minibert.save(encoder.to(dtype), tmp_path / "saved")
    assert read_json(tmp_path / "saved" / "config.json")["dtype"] == str(dtype).removeprefix("torch.")
    theirs, expected = AutoModel.from_pretrained(tmp_path / "saved"), load_file(bert / "model.safetensors")
    assert theirs.dtype == dtype
    assert_equal(dict(theirs.state_dict()), {name: x.to(dtype) for name, x in expected.items()})


def test_a_wrapped_model_is_saved_under_the_official_names(bert, tmp_path):
    compiled = partial(torch.compile, backend="eager")
    for wrap in (compiled, nn.DataParallel, lambda model: compiled(nn.DataParallel(model))):
        minibert.save(wrap(minibert.load(bert)), tmp_path)
        assert_equal(load_file(tmp_path / "model.safetensors"), load_file(bert / "model.safetensors"))


# the tokenizer goes with the model where it is known


def test_save_keeps_the_tokenizer_where_it_is_known_and_says_so_where_it_is_not(tmp_path, caplog):
    folder = write_words_checkpoint(tmp_path / "words", head="masked-lm")
    known, tokenizer = tmp_path / "known", minibert.load_tokenizer(folder, max_length=7)
    for model in (minibert.load(folder), minibert.load(folder, head="masked-lm"), copy.deepcopy(minibert.load(folder))):
        minibert.save(model, known)
        assert minibert.embed(["good"], known).shape == (1, 24)
        shutil.rmtree(known)
    minibert.save(model, tmp_path / "given", tokenizer)
    tokenizer.save(tmp_path / "there")
    minibert.save(model, tmp_path / "there")  # that tokenizer stays
    assert {minibert.load_tokenizer(tmp_path / name).max_length for name in ("given", "there")} == {7}
    minibert.save(minibert.load(folder), folder)  # where it comes from
    assert caplog.messages == []
    shutil.rmtree(folder)
    minibert.save(model, tmp_path / "gone")
    minibert.save(minibert.Encoder(model.config), tmp_path / "new")
    assert [line.partition(",")[0].removeprefix("minibert: notice: ") for line in caplog.messages] == [
        f"{tmp_path / name} has no tokenizer" for name in ("gone", "new")
    ]
