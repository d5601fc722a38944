"""`minibert convert`: folders whose weights are a pickle become safetensors, and no pickle runs anything."""

import json
import pickle
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from support.models import HEADS, Pair, Written, assert_equal, edit_json, unequal
from support.words import as_before_2021, state_vectors

import minibert
from minibert.checkpoints.convert import convert
from minibert.checkpoints.sentence_files import Stated, read_stated
from minibert.families.bert import BERT
from minibert.parity.checkpoints import open_upstream, task
from minibert.storage.tensor_files import PICKLES

Change = Callable[[dict[str, Any]], Any]
QUERY = "bert.encoder.layer.{}.attention.self.query.weight"
POOLER = "bert.pooler.dense.weight"


def old_names(state: dict[str, Any]) -> dict[str, Any]:
    """As the first PyTorch checkpoints were written: LayerNorm's gamma and beta, and the positions beside them."""
    return {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): values
        for name, values in state.items()
    } | {"bert.embeddings.position_ids": torch.arange(11).expand((1, -1)).contiguous()}


def write_old(folder: Path, model: Any, change: Change = dict, legacy: bool = False, model_type: bool = True) -> Path:
    """A folder as it was before safetensors: config.json, vocab.txt and the model's state as a pickle."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(model.config.to_dict()))
    edit_json(folder / "config.json", *["model_type"] * (not model_type))
    for name, text in (("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n"), ("README.md", "not needed")):
        (folder / name).write_text(text)
    torch.save(change(dict(model.state_dict())), folder / PICKLES[0], _use_new_zipfile_serialization=not legacy)
    return folder


@pytest.fixture
def pretraining(written: Written) -> Any:
    """transformers' BERT with both heads of its pretraining."""
    return written(BERT, "pretraining")[1]


def refused(folder: Path, out: Path, *words: str, **how: Any) -> None:
    """The conversion fails in one line with these words, and leaves nothing behind."""
    before = sorted(out.parent.iterdir())
    with pytest.raises((ValueError, OSError)) as caught:
        convert(folder, out, **how)
    message = str(caught.value)
    assert not [word for word in words if word not in message] and "\n" not in message, message
    assert sorted(out.parent.iterdir()) == before


# -- what comes out


@pytest.mark.parametrize(
    ("family", "head"),
    [(f, h) for f, h in HEADS if h in ("masked-lm", "pretraining")],
    ids=lambda value: getattr(value, "name", value),
)
def test_after_the_conversion_everything_equals_transformers(family, head, written, tmp_path):
    """BERT as it was first written, before torch.save wrote archives; the others in today's form."""
    model, first = written(family, head)[1], family is BERT
    convert(write_old(tmp_path / "old", model, old_names if first else dict, legacy=first), tmp_path / "new")
    ours = minibert.load(tmp_path / "new", head=head)
    asked = task(head, model.config, ours.config.max_tokens)
    assert unequal(Pair(ours, model, asked, head).compare()) == []
    theirs, whole = open_upstream(tmp_path / "new", family, head, pooler=True)
    assert whole and unequal(Pair(ours, theirs, asked, head).compare()) == []


TIED = {"cls.predictions.decoder.weight": "tied: the same as bert.embeddings.word_embeddings.weight"}


@pytest.mark.parametrize(
    ("change", "left_out"),
    [
        (lambda state: state | {QUERY.format(1): state[QUERY.format(0)]}, {}),  # two parameters share their memory
        (lambda state: state | {POOLER: state[POOLER].T.contiguous().T}, {}),  # a view that is not contiguous
        (
            lambda state: state | {"epoch": 3, "arguments": {"lr": 1e-5}},
            {"epoch": "not a tensor but of type int", "arguments": "not a tensor but of type dict"},
        ),
    ],
)
def test_every_tensor_is_written_with_its_values_and_anything_else_is_left_out(change, left_out, pretraining, tmp_path):
    folder = write_old(tmp_path / "old", pretraining, change)
    done = convert(folder, tmp_path / "new")
    assert done["left_out"] == left_out | TIED
    found = load_file(tmp_path / "new" / "model.safetensors")
    state = torch.load(folder / PICKLES[0], weights_only=True)
    assert_equal(found, {name: values for name, values in state.items() if name not in done["left_out"]})


def test_the_new_folder_has_config_tokenizer_and_the_weights_of_all_shards(pretraining, tmp_path):
    folder = write_old(tmp_path / "old", pretraining)
    state = torch.load(folder / PICKLES[0], weights_only=True)
    (folder / PICKLES[0]).unlink()
    where = {name: f"pytorch_model-{1 + number % 2:05}-of-00002.bin" for number, name in enumerate(state)}
    for shard in set(where.values()):
        torch.save({name: values for name, values in state.items() if where[name] == shard}, folder / shard)
    edit_json(folder / PICKLES[1], weight_map=where)
    done = convert(folder, tmp_path / "new")
    assert done["read"] == sorted(set(where.values()))
    assert done["written"] == ["config.json", "model.safetensors", "vocab.txt"]
    assert {path.name for path in (tmp_path / "new").iterdir()} == {*done["written"], "minibert.json"}
    assert (tmp_path / "new" / "vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()
    found = load_file(tmp_path / "new" / "model.safetensors")
    assert_equal(found, {name: values for name, values in state.items() if name not in done["left_out"]})


# -- a config.json without a model_type


def test_load_and_convert_take_the_model_type_that_config_json_lacks(written, tmp_path):
    original, model = written(BERT)
    folder, old = shutil.copytree(original, tmp_path / "a"), write_old(tmp_path / "old", model, model_type=False)
    edit_json(folder / "config.json", "model_type")
    with pytest.raises(ValueError, match=r"config\.json.*model_type.*model_type="):
        minibert.load(folder)
    assert minibert.load(folder, model_type="bert").config.model_type == "bert"
    assert convert(folder, tmp_path / "new", model_type="bert")["read"] == ["model.safetensors"]
    assert minibert.load(tmp_path / "new").config == minibert.load(original).config
    with pytest.raises(ValueError, match=r"'bert'.*'distilbert'"):
        minibert.load(original, model_type="distilbert")
    refused(old, tmp_path / "other", "model_type 'xlnet' is not supported", "bert", model_type="xlnet")


# -- pickles that would run code


@dataclass
class Trap:
    """An attack in a pickle: opening it calls a function."""

    call: tuple[Any, tuple[Any, ...]]

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize("runs", ["getattr", "eval"])
@pytest.mark.parametrize("how", ["archive", "legacy", "plain", "instead of the tensors"])
def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(how, runs, pretraining, tmp_path):
    mark = tmp_path / "mark"
    # A pickle finds a method of a class by getattr.
    trap = Trap((Path.touch, (mark,)) if runs == "getattr" else (eval, (f"open({str(mark)!r}, 'w').close()",)))
    folder = write_old(tmp_path / "old", pretraining, lambda state: state | {"x": trap}, how == "legacy")
    if how == "plain":
        (folder / PICKLES[0]).write_bytes(pickle.dumps({"x": trap}, 2))
    if how == "instead of the tensors":
        torch.save(trap, folder / PICKLES[0])
    refused(folder, tmp_path / "new", f"would run {runs} when opened")
    assert not mark.exists()
    pickle.loads(pickle.dumps({"x": trap}))  # so that the test can fail
    assert mark.exists()


# -- files that are damaged or something else


@pytest.mark.parametrize("legacy", [True, False], ids=["legacy", "archive"])
@pytest.mark.parametrize("kept", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b[:20], lambda b: b"<html>404"])
def test_a_damaged_file_is_refused(kept, legacy, pretraining, tmp_path):
    folder = write_old(tmp_path / "old", pretraining, legacy=legacy)
    path = folder / PICKLES[0]
    path.write_bytes(kept(path.read_bytes()))
    refused(folder, tmp_path / "new", str(path), "damaged", "download it again")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([1.0], "holds a list, not tensors by name"),
        ({}, "holds no tensors by name; it holds: []"),
        (
            {"state_dict": {"a": torch.ones(1)}, "epoch": 3},
            "holds no tensors by name; it holds: ['state_dict', 'epoch']",
        ),
        ({5: torch.ones(1)}, "5 is not the name of a tensor"),
        ({"a": torch.ones(2, dtype=torch.complex64)}, "tensor a is complex64"),
        ({"a": torch.ones(2, 2).to_sparse()}, "tensor a is float32, sparse_coo, cpu, (2, 2); supported: dense"),
        ({"a": torch.ones(2, device="meta")}, "tensor a is float32, strided, meta"),
        (transformers.BertConfig(), "would run transformers.models.bert"),  # as would a module
        ({"a": torch.ones(1).expand(10**7, 10**7)}, "(10000000, 10000000); supported: dense and fully stored"),
    ],
    ids=["list", "empty", "wrapped", "number", "complex", "sparse", "meta", "object", "huge"],
)
def test_a_pickle_without_dense_weights_by_name_is_refused(content, words, pretraining, tmp_path):
    folder = write_old(tmp_path / "old", pretraining, lambda state: content)
    refused(folder, tmp_path / "new", words)


def torchscript(path: Path) -> None:
    with warnings.catch_warnings(action="ignore"):
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(path))


def index(shard: str) -> Callable[[Path], Any]:
    where = json.dumps({"weight_map": {"a": shard}})
    return lambda path: path.rename(path.with_name(PICKLES[1])).write_text(where)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (torchscript, "TorchScript"),
        (
            lambda path: path.rename(path.with_name("tf_model.h5")),
            "it holds: README.md, config.json, tf_model.h5, vocab.txt; transformers 4 converts",
        ),
        (Path.unlink, "has none of pytorch_model.bin"),
        (index("no.bin"), "'no.bin', which is missing"),
        (index("../x.bin"), "'../x.bin', which is missing"),
    ],
)
def test_weights_of_another_kind_are_refused(write, words, pretraining, tmp_path):
    folder = write_old(tmp_path / "old", pretraining)
    write(folder / PICKLES[0])
    refused(folder, tmp_path / "new", words)


def test_nothing_is_converted_twice_or_half_written(written, pretraining, tmp_path, monkeypatch):
    refused(written(BERT)[0], tmp_path / "new", "nothing to convert")
    folder = write_old(tmp_path / "old", pretraining)
    refused(folder, tmp_path / "old", "is the same as, inside or around")

    def full(path, tensors):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("minibert.checkpoints.convert.write_tensors", full)
    refused(folder, tmp_path / "new", "No space left")


def test_load_names_the_command_and_the_command_does_it(pretraining, tmp_path, run):
    folder = write_old(tmp_path / "an old one", pretraining, model_type=False)
    with pytest.raises(FileNotFoundError, match=r"minibert convert '.*/an old one' --out FOLDER2"):
        minibert.load(folder, model_type="bert")
    argv = ["convert", folder, "--out", tmp_path / "new"]
    assert "--model-type bert" in run(*argv, status=2)
    figures = json.loads(run(*argv, "--model-type", "bert", "--json").splitlines()[-1])
    assert (figures["model_type"], figures["read"]) == ("bert", ["pytorch_model.bin"])
    minibert.load(tmp_path / "new", head="pretraining")


def test_files_that_state_how_vectors_are_made_are_kept(pretraining, tmp_path):
    folder = state_vectors(write_old(tmp_path / "old", pretraining), "cls", normalize=False, max_length=9)
    done = convert(folder, tmp_path / "new")
    assert {"modules.json", "1_Pooling/config.json", "sentence_bert_config.json"} <= set(done["written"])
    assert read_stated(tmp_path / "new") == read_stated(folder) == Stated("cls", False, 9)


def test_an_old_folder_of_sentence_transformers_is_converted_with_how_its_vectors_are_made(pretraining, tmp_path):
    folder = as_before_2021(state_vectors(write_old(tmp_path / "old", pretraining), "cls", False, max_length=9))
    with pytest.raises(FileNotFoundError, match=r"0_BERT.*pytorch_model\.bin.*minibert convert .*0_BERT --out"):
        minibert.load(folder)
    for number, name in enumerate((folder, folder / "0_BERT")):
        new = convert(name, tmp_path / f"new {number}")["out"]
        assert read_stated(new) == read_stated(folder / "0_BERT") == Stated("cls", False, 9)
        assert json.loads((new / "modules.json").read_text())[0]["path"] == ""
        assert minibert.load(new, head="pretraining").checkpoint.folder == new


def test_a_folder_that_is_a_link_to_elsewhere_is_not_copied(pretraining, tmp_path):
    folder = write_old(tmp_path / "old", pretraining)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "config.json").write_text('{"password": 1}')
    (folder / "1_Pooling").symlink_to(tmp_path / "secret")
    refused(folder, tmp_path / "new", "names '1_Pooling', which leads out of")
