"""What is saved, transformers loads bit-equal, and so do we; nothing is ever half written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Pair, assert_equal, edited, every_family, unequal
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import minibert
from minibert import files
from minibert.checkpoints import tensor_files
from minibert.checkpoints.load import unwrapped
from minibert.families.base import Family
from minibert.families.bert import BERT
from minibert.model import Encoder
from minibert.parity.checkpoints import open_upstream, task, upstream_class

Written = Callable[..., tuple[Path, Any]]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def encoder(written: Written) -> Encoder:
    """A random BERT, in every test another copy."""
    return minibert.load(written(BERT)[0])


def opened(folder: Path, family: Family = BERT) -> Any:
    """transformers' model of the folder, as it reads it: the dtype too. Nothing may be missing or unexpected."""
    how = {"attn_implementation": "eager", "output_loading_info": True}
    model, info = upstream_class(family, None).from_pretrained(folder, **how)
    assert not any(info.values()), info
    return model.eval()


@every_family
def test_transformers_loads_what_we_save_bit_equal(family: Family, written: Written, tmp_path: Path) -> None:
    folder, original = written(family)
    encoder = minibert.load(folder)
    minibert.save(encoder, tmp_path)
    theirs = opened(tmp_path, family)
    assert_equal(dict(theirs.state_dict()), dict(original.state_dict()))
    assert unequal(Pair(encoder, theirs, task(None, encoder.config, 11)).compare()) == []


@every_family
def test_we_load_back_what_we_save_bit_equal(family: Family, written: Written, tmp_path: Path) -> None:
    encoder = minibert.load(written(family)[0])
    minibert.save(encoder, tmp_path)
    again, report = minibert.load(tmp_path, report=True)
    assert (report.ignored, report.missing) == ({}, [])
    assert again.config.to_dict().items() >= encoder.config.to_dict().items()
    assert_equal(dict(again.state_dict()), dict(encoder.state_dict()))


def test_the_real_minilm_makes_the_round_trip_bit_equal(minilm: Path, tmp_path: Path) -> None:
    encoder = minibert.load(minilm)
    minibert.save(encoder, tmp_path)
    saved, original = load_file(tmp_path / "model.safetensors"), load_file(minilm / "model.safetensors")
    original.pop("embeddings.position_ids", None)
    assert_equal(saved, original)
    theirs, complete = open_upstream(tmp_path, BERT, None, pooler=True)
    assert complete
    assert unequal(Pair(encoder, theirs, task(None, encoder.config, 16)).compare()) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_transformers_loads_the_dtype_that_was_saved(dtype: torch.dtype, encoder: Encoder, tmp_path: Path) -> None:
    """transformers follows the dtype of config.json; the one that the original named would change the weights."""
    minibert.save(encoder.to(dtype), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    assert opened(tmp_path).dtype == dtype


def test_float32_saved_from_a_float16_checkpoint_stays_float32_in_transformers(
    written: Written, tmp_path: Path
) -> None:
    half = {"torch_dtype": "float16", "dtype": "float16"}
    encoder = minibert.load(edited(written(BERT)[0], tmp_path / "half", lambda tensors: None, **half))
    minibert.save(encoder, tmp_path / "saved")
    theirs = opened(tmp_path / "saved")
    assert theirs.dtype == torch.float32
    assert unequal(Pair(encoder, theirs, task(None, encoder.config, 11)).compare()) == []


@every_family
def test_unknown_keys_of_config_json_are_kept(family: Family, written: Written, tmp_path: Path) -> None:
    kept = {"sinusoidal_pos_embds": True, "my own": {"key": [1, None, "é"]}, "use_cache": False}
    folder = edited(written(family)[0], tmp_path / "edited", lambda tensors: None, **kept)
    minibert.save(minibert.load(folder), tmp_path / "saved")
    before, after = (json.loads((path / "config.json").read_text()) for path in (folder, tmp_path / "saved"))
    assert (before | kept).items() <= after.items()


def test_the_saved_file_says_that_it_is_for_pytorch(encoder: Encoder, tmp_path: Path) -> None:
    minibert.save(encoder, tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def compiled(model: nn.Module) -> nn.Module:
    """The wrapper of torch.compile; nothing is compiled before the first call."""
    return torch.compile(model, backend="eager")


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "compiled": compiled,
    "data parallel": nn.DataParallel,
    "compiled data parallel": lambda model: compiled(nn.DataParallel(model)),
    "data parallel compiled": lambda model: nn.DataParallel(compiled(model)),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@every_family
def test_a_wrapped_model_is_saved_under_the_official_names(
    family: Family, wrapper: str, written: Written, tmp_path: Path
) -> None:
    folder, _ = written(family)
    minibert.save(WRAPPERS[wrapper](minibert.load(folder)), tmp_path)
    assert_equal(load_file(tmp_path / "model.safetensors"), load_file(folder / "model.safetensors"))


def test_a_bare_model_is_its_own_inside(encoder: Encoder) -> None:
    assert unwrapped(encoder) is encoder


def test_a_write_that_fails_leaves_the_old_files_and_no_others(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minibert.save(encoder, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full_disk(tensors: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half of the file")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensor_files, "save_file", full_disk)
    nn.init.zeros_(encoder.embeddings.token.weight)
    with pytest.raises(OSError, match="No space left"):
        minibert.save(encoder, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_config_that_fails_to_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    path.write_text("old")

    def full_disk(self: Path, text: str, **how: Any) -> int:
        self.write_bytes(text[:3].encode())
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full_disk)
        with pytest.raises(OSError, match="No space left"):
            files.write_text_atomically(path, "new and longer")
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]
    assert path.read_text() == "old"


def test_saving_over_the_folder_that_was_loaded_is_safe(encoder: Encoder, tmp_path: Path) -> None:
    minibert.save(encoder, tmp_path)
    encoder = minibert.load(tmp_path)
    nn.init.constant_(encoder.embeddings.token.weight, 0.5)
    minibert.save(encoder, tmp_path)
    assert (minibert.load(tmp_path).embeddings.token.weight == 0.5).all()


def test_a_device_that_is_not_there_is_refused_before_anything_is_looked_for() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(ValueError, match="device 'cuda' was asked for, and torch sees no CUDA device"):
        minibert.load("no such checkpoint", device="cuda")


def test_an_unknown_device_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="device 'nonsense' is not known; choose from cpu, cuda, mps"):
        minibert.load("no such checkpoint", device="nonsense")


def test_report_returns_the_account_beside_the_model(written: Written) -> None:
    encoder, report = minibert.load(written(BERT)[0], report=True)
    assert len(report.loaded) == len(encoder.state_dict())
