"""`minibert convert`: folders whose weights are a pickle become safetensors, and no pickle runs anything."""

from __future__ import annotations

import json
import pickle
import shutil
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Pair, every_family, every_head, unequal
from safetensors.torch import load_file
from torch import Tensor

import minibert
from minibert.checkpoints.convert import Converted, convert
from minibert.checkpoints.tensor_files import PICKLES
from minibert.cli import main as cli
from minibert.config import Config
from minibert.families.base import Family
from minibert.families.bert import BERT
from minibert.parity.checkpoints import open_upstream, task

Written = Callable[..., tuple[Path, Any]]
Change = Callable[[dict[str, Any]], dict[str, Any]]
pytestmark = pytest.mark.usefixtures("one_thread")
LEGACY = [True, False]


def old_names(state: dict[str, Any]) -> dict[str, Any]:
    """As the first PyTorch checkpoints were written: LayerNorm's gamma and beta, and the positions beside them."""

    def old(name: str) -> str:
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    return {old(name): values for name, values in state.items()} | {
        "bert.embeddings.position_ids": torch.arange(11).expand((1, -1))
    }


def as_it_is(state: dict[str, Any]) -> dict[str, Any]:
    return state


def write_old(
    folder: Path, model: Any, change: Change = as_it_is, legacy: bool = False, model_type: bool = True
) -> Path:
    """A folder as it was before safetensors: config.json, vocab.txt and the model's state as a pickle."""
    folder.mkdir()
    config = model.config.to_dict()
    if not model_type:
        del config["model_type"]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n")
    (folder / "README.md").write_text("what nobody needs")
    torch.save(change(dict(model.state_dict())), folder / PICKLES[0], _use_new_zipfile_serialization=not legacy)
    return folder


@pytest.fixture
def pretraining(written: Written) -> Any:
    """transformers' BERT with both heads of its pretraining."""
    return written(BERT, "pretraining")[1]


def refused(folder: Path, out: Path, *words: str, error: type[Exception] = ValueError, **how: Any) -> None:
    """The conversion fails in one line with these words, and leaves nothing behind."""
    before = sorted(out.parent.iterdir())
    with pytest.raises(error) as caught:
        convert(folder, out, **how)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(out.parent.iterdir()) == before


# -- what comes out


@every_head
def test_after_the_conversion_everything_equals_transformers(
    family: Family, head: str, written: Written, tmp_path: Path
) -> None:
    """BERT as it was first written, before torch.save wrote archives; the others in today's form."""
    model, first = written(family, head)[1], family is BERT
    convert(write_old(tmp_path / "old", model, old_names if first else as_it_is, legacy=first), tmp_path / "new")
    ours = minibert.load(tmp_path / "new", head=head)
    asked = task(head, model.config, ours.config.max_tokens)
    assert unequal(Pair(ours, model, asked, head).compare()) == []
    theirs, whole = open_upstream(tmp_path / "new", family, head, pooler=True)
    assert whole
    assert unequal(Pair(ours, theirs, asked, head).compare()) == []


def test_all_of_an_old_bert_is_there_pooler_and_both_heads(pretraining: Any, tmp_path: Path) -> None:
    done = convert(write_old(tmp_path / "old", pretraining, old_names, legacy=True), tmp_path / "new")
    assert minibert.load(tmp_path / "new").pooler is not None
    for head in ("masked-lm", "next-sentence", "pretraining"):
        minibert.load(tmp_path / "new", head=head)
    names = load_file(tmp_path / "new" / "model.safetensors").keys()
    assert "bert.embeddings.LayerNorm.gamma" in names
    assert len(names) == done.tensors


@every_family
def test_tied_tensors_are_written_once_under_the_name_that_transformers_looks_for(
    family: Family, written: Written, tmp_path: Path
) -> None:
    model = written(family, "masked-lm")[1]
    done = convert(write_old(tmp_path / "old", model), tmp_path / "new")
    assert all(why.startswith("tied: the same as") for why in done.left_out.values())
    expected = load_file(written(family, "masked-lm")[0] / "model.safetensors")
    found = load_file(tmp_path / "new" / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_two_parameters_of_one_memory_that_nothing_ties_are_both_written(pretraining: Any, tmp_path: Path) -> None:
    def share(state: dict[str, Any]) -> dict[str, Any]:
        query = "bert.encoder.layer.{}.attention.self.query.weight"
        return state | {query.format(1): state[query.format(0)]}

    convert(write_old(tmp_path / "old", pretraining, share), tmp_path / "new")
    layers: Any = minibert.load(tmp_path / "new").layers
    assert torch.equal(layers[0].attention.query.weight, layers[1].attention.query.weight)


def test_a_tensor_that_is_a_view_of_another_is_written_as_it_reads(pretraining: Any, tmp_path: Path) -> None:
    name = "bert.pooler.dense.weight"

    def transpose(state: dict[str, Any]) -> dict[str, Any]:
        return state | {name: state[name].T.contiguous().T}

    convert(write_old(tmp_path / "old", pretraining, transpose), tmp_path / "new")
    found = load_file(tmp_path / "new" / "model.safetensors")[name]
    assert torch.equal(found, pretraining.state_dict()[name])


def test_what_is_no_tensor_is_left_out_and_named(pretraining: Any, tmp_path: Path) -> None:
    def more(state: dict[str, Any]) -> dict[str, Any]:
        return state | {"epoch": 3, "arguments": {"lr": 1e-5}}

    done = convert(write_old(tmp_path / "old", pretraining, more), tmp_path / "new")
    said = {name: why for name, why in done.left_out.items() if "tied" not in why}
    assert said == {"epoch": "no tensor but of type int", "arguments": "no tensor but of type dict"}


def test_shards_become_one_file(pretraining: Any, tmp_path: Path) -> None:
    folder = write_old(tmp_path / "old", pretraining)
    state = torch.load(folder / PICKLES[0], weights_only=True)
    (folder / PICKLES[0]).unlink()
    where = {name: f"pytorch_model-{1 + number % 2:05}-of-00002.bin" for number, name in enumerate(state)}
    for shard in set(where.values()):
        torch.save({name: values for name, values in state.items() if where[name] == shard}, folder / shard)
    (folder / PICKLES[1]).write_text(json.dumps({"weight_map": where}))
    done = convert(folder, tmp_path / "new")
    assert done.read == sorted(set(where.values()))
    found = minibert.load(tmp_path / "new", head="pretraining").state_dict()
    (tmp_path / "whole").mkdir()
    convert(write_old(tmp_path / "whole" / "old", pretraining), tmp_path / "whole" / "new")
    expected = minibert.load(tmp_path / "whole" / "new", head="pretraining").state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_the_new_folder_has_config_tokenizer_and_weights_and_nothing_else(pretraining: Any, tmp_path: Path) -> None:
    folder = write_old(tmp_path / "old", pretraining)
    done = convert(folder, tmp_path / "new")
    names = ["config.json", "model.safetensors", "vocab.txt"]
    assert done.written == names
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted([*names, "minibert.json"])
    assert (tmp_path / "new" / "vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()
    assert json.loads((tmp_path / "new" / "config.json").read_text()) == json.loads(
        (folder / "config.json").read_text()
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]


def test_a_name_in_the_cache_is_converted_too(
    pretraining: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshots = tmp_path / "hub" / "models--allenai--scibert" / "snapshots"
    snapshots.mkdir(parents=True)
    write_old(snapshots / "abc", pretraining)
    assert convert("allenai/scibert", tmp_path / "new").folder == snapshots / "abc"


# -- a config.json that does not say what it is


def test_without_model_type_the_error_says_how_to_say_it(pretraining: Any, tmp_path: Path) -> None:
    folder = write_old(tmp_path / "old", pretraining, model_type=False)
    refused(folder, tmp_path / "new", "has no model_type", "--model-type bert", 'load(..., model_type="bert")')
    done = convert(folder, tmp_path / "new", model_type="bert")
    assert done.model_type == "bert"
    assert json.loads((tmp_path / "new" / "config.json").read_text())["model_type"] == "bert"
    minibert.load(tmp_path / "new")


def test_load_takes_the_model_type_that_config_json_lacks(written: Written, tmp_path: Path) -> None:
    folder = shutil.copytree(written(BERT)[0], tmp_path / "checkpoint")
    values = json.loads((folder / "config.json").read_text())
    del values["model_type"]
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"config\.json has no model_type; say which it is: load\(\.\.\., model_type="):
        minibert.load(folder)
    assert minibert.load(folder, model_type="bert").config.model_type == "bert"
    done = convert(folder, tmp_path / "new", model_type="bert")
    assert done.read == ["model.safetensors"]
    assert minibert.load(tmp_path / "new").config == minibert.load(written(BERT)[0]).config


def test_a_model_type_that_is_none_or_contradicts_config_json_is_refused(written: Written, tmp_path: Path) -> None:
    folder, model = written(BERT)
    with pytest.raises(ValueError, match=r"says that it is of model_type 'bert', not 'distilbert'"):
        minibert.load(folder, model_type="distilbert")
    old = write_old(tmp_path / "old", model, model_type=False)
    refused(old, tmp_path / "new", "model_type 'xlnet' is not supported", "bert", model_type="xlnet")
    assert Config.from_file(folder / "config.json", "bert") == Config.from_file(folder / "config.json")


# -- pickles that would run code


class CreatesAFile:
    """What an attacker puts into a pickle: opening it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.path,)  # which a pickle finds by getattr


class Evaluates(CreatesAFile):
    """The same by a function that every Python has."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return eval, (f"open({str(self.path)!r}, 'w').close()",)


@pytest.mark.parametrize("trap", [CreatesAFile, Evaluates])
@pytest.mark.parametrize("how", ["archive", "legacy", "plain", "instead of the tensors"])
def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(
    how: str, trap: type[CreatesAFile], pretraining: Any, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    folder = write_old(tmp_path / "old", pretraining, lambda state: state | {"x": trap(mark)}, how == "legacy")
    if how == "plain":
        (folder / PICKLES[0]).write_bytes(pickle.dumps({"x": trap(mark)}, 2))
    if how == "instead of the tensors":
        torch.save(trap(mark), folder / PICKLES[0])
    refused(folder, tmp_path / "new", f"would run {'eval' if trap is Evaluates else 'getattr'} when opened")
    assert not mark.exists()


def test_the_same_pickle_opened_by_python_does_run(tmp_path: Path) -> None:
    for number, trap in enumerate((CreatesAFile, Evaluates)):
        pickle.loads(pickle.dumps({"x": trap(tmp_path / str(number))}))
        assert (tmp_path / str(number)).exists()


def test_a_whole_module_is_a_pickle_that_runs_code(pretraining: Any, tmp_path: Path) -> None:
    folder = write_old(tmp_path / "old", pretraining)
    torch.save(pretraining, folder / PICKLES[0])
    refused(folder, tmp_path / "new", "would run transformers.models.bert", "refused")


# -- what is damaged, and what is something else


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize("legacy", LEGACY, ids=["legacy", "archive"])
@pytest.mark.parametrize(
    "damage",
    [cut, lambda content: b"", lambda content: content[:20], lambda content: b"<html>404</html>"],
    ids=["half", "empty", "a beginning", "a web page"],
)
def test_a_damaged_file_is_refused(
    damage: Callable[[bytes], bytes], legacy: bool, pretraining: Any, tmp_path: Path
) -> None:
    folder = write_old(tmp_path / "old", pretraining, legacy=legacy)
    path = folder / PICKLES[0]
    path.write_bytes(damage(path.read_bytes()))
    refused(folder, tmp_path / "new", str(path), "damaged", "download it again")


def test_a_compressed_archive_is_refused_before_it_is_unpacked(pretraining: Any, tmp_path: Path) -> None:
    folder = write_old(tmp_path / "old", pretraining)
    with zipfile.ZipFile(folder / PICKLES[0], "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"0" * 1_000_000)
    refused(folder, tmp_path / "new", "'archive/data.pkl' is compressed", "refused")


def test_a_number_that_claims_to_be_a_huge_matrix_is_refused(pretraining: Any, tmp_path: Path) -> None:
    def claim(state: dict[str, Any]) -> dict[str, Any]:
        return state | {"huge": torch.ones(1).expand(10**7, 10**7)}

    folder = write_old(tmp_path / "old", pretraining, claim)
    refused(folder, tmp_path / "new", "claims tensors of 400,0", "refused")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([1.0], "holds a list, not tensors by name"),
        ({}, "holds no tensors by name; it holds: nothing"),
        ({"state_dict": {"a": torch.ones(1)}, "epoch": 3}, "holds no tensors by name; it holds: state_dict, epoch"),
        ({5: torch.ones(1)}, "5 is no name of a tensor"),
        ({"a": torch.ones(2, dtype=torch.complex64)}, "tensor a is complex64; supported: dense float64"),
        ({"a": torch.ones(2, 2).to_sparse()}, "tensor a is float32 (torch.sparse_coo, cpu)"),
        ({"a": torch.ones(2, device="meta")}, "tensor a is float32 (torch.strided, meta)"),
    ],
    ids=["list", "empty", "wrapped", "number", "complex", "sparse", "meta"],
)
def test_what_holds_no_weights_is_refused(content: Any, words: str, pretraining: Any, tmp_path: Path) -> None:
    folder = write_old(tmp_path / "old", pretraining, lambda state: content)
    refused(folder, tmp_path / "new", words)


def test_a_torchscript_archive_is_refused(pretraining: Any, tmp_path: Path) -> None:
    folder = write_old(tmp_path / "old", pretraining)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(folder / PICKLES[0]))
    refused(folder, tmp_path / "new", "is TorchScript")


@pytest.mark.parametrize("name", ["tf_model.h5", "bert_model.ckpt.index", "flax_model.msgpack"])
def test_a_checkpoint_of_another_framework_is_named(name: str, pretraining: Any, tmp_path: Path) -> None:
    folder = write_old(tmp_path / "old", pretraining)
    (folder / PICKLES[0]).rename(folder / name)
    framework = "Flax" if "flax" in name else "TensorFlow"
    refused(folder, tmp_path / "new", name, f"a checkpoint of {framework}, which is not read here", "transformers 4")
    (folder / "config.json").unlink()  # Google's own archives call it bert_config.json
    refused(folder, tmp_path / "new", f"a checkpoint of {framework}")


def test_a_folder_without_weights_lists_what_it_holds(pretraining: Any, tmp_path: Path) -> None:
    folder = write_old(tmp_path / "old", pretraining)
    (folder / PICKLES[0]).unlink()
    refused(folder, tmp_path / "new", "has no weights", "README.md, config.json", error=FileNotFoundError)


def test_a_shard_that_is_missing_or_outside_is_refused(pretraining: Any, tmp_path: Path) -> None:
    folder = write_old(tmp_path / "old", pretraining)
    (folder / PICKLES[0]).unlink()
    for shard, words, error in (("no.bin", "missing", FileNotFoundError), ("../x.bin", "outside", ValueError)):
        (folder / PICKLES[1]).write_text(json.dumps({"weight_map": {"a": shard}}))
        refused(folder, tmp_path / "new", words, error=error)


def test_safetensors_with_a_model_type_need_no_conversion(written: Written, tmp_path: Path) -> None:
    refused(written(BERT)[0], tmp_path / "new", "nothing to convert")


def test_nothing_is_overwritten_and_no_folder_above_is_made(pretraining: Any, tmp_path: Path) -> None:
    folder = write_old(tmp_path / "old", pretraining)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "thesis.txt").write_text("my life")
    with pytest.raises(ValueError, match=r"is there already and holds thesis\.txt"):
        convert(folder, tmp_path / "new")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        convert(folder, tmp_path / "no" / "new")


def test_a_write_that_fails_leaves_nothing(pretraining: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, tensors: dict[str, Tensor]) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    folder = write_old(tmp_path / "old", pretraining)
    monkeypatch.setattr("minibert.checkpoints.convert.write_tensors", full)
    refused(folder, tmp_path / "new", "No space left", error=OSError)


# -- the command


def test_load_names_the_command_and_the_command_does_it(
    pretraining: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_old(tmp_path / "an old one", pretraining, model_type=False)
    with pytest.raises(FileNotFoundError, match=r"minibert convert '.*/an old one' --out FOLDER2"):
        minibert.load(folder, model_type="bert")
    argv = ["convert", str(folder), "--out", str(tmp_path / "new")]
    assert cli.main(argv) == 2
    assert "--model-type bert" in capsys.readouterr().err
    assert cli.main([*argv, "--model-type", "bert", "--json"]) == 0
    out = capsys.readouterr().out
    assert "read           " in out
    assert "left out       cls.predictions.decoder.weight: tied" in out
    figures = Converted(**json.loads(out.splitlines()[-1]))
    assert (figures.model_type, figures.read) == ("bert", ["pytorch_model.bin"])
    minibert.load(tmp_path / "new", head="pretraining")
    assert cli.main([*argv, "--model-type", "bert"]) == 2
    assert "is there already" in capsys.readouterr().err
