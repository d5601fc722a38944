"""What is saved, transformers loads bit-equal, and so do we; nothing is ever half written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import UPSTREAM, differences, hard_batch, write_checkpoint
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import minibert
from minibert import files
from minibert.checkpoints import fill as weights
from minibert.checkpoints.load import unwrapped

TYPES = ("bert", "distilbert")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {model_type: tmp_path_factory.mktemp(model_type) for model_type in TYPES}
    for model_type, folder in folders.items():
        write_checkpoint(folder, model_type)
    return folders


def upstream(folder: Path, model_type: str, **how: Any) -> Any:
    """transformers' model of the folder, loaded with nothing missing and nothing unexpected."""
    model, info = UPSTREAM[model_type][1].from_pretrained(
        folder, attn_implementation="eager", output_loading_info=True, **how
    )
    assert not any(info.values()), info
    return model.eval()


@pytest.mark.parametrize("model_type", TYPES)
def test_transformers_loads_what_we_save_bit_equal(model_type: str, originals: dict[str, Path], tmp_path: Path) -> None:
    encoder = minibert.load(originals[model_type])
    minibert.save(encoder, tmp_path / "saved")
    theirs = upstream(tmp_path / "saved", model_type)
    expected = upstream(originals[model_type], model_type).state_dict()
    assert theirs.state_dict().keys() == expected.keys()
    assert all(torch.equal(x, expected[name]) for name, x in theirs.state_dict().items())
    assert differences(encoder, theirs, hard_batch(encoder.config)) == {}


@pytest.mark.parametrize("model_type", TYPES)
def test_we_load_back_what_we_save_bit_equal(model_type: str, originals: dict[str, Path], tmp_path: Path) -> None:
    encoder = minibert.load(originals[model_type])
    minibert.save(encoder, tmp_path / "saved")
    again, report = minibert.load(tmp_path / "saved", report=True)
    assert (report.ignored, report.missing) == ({}, [])
    assert all(torch.equal(x, encoder.state_dict()[name]) for name, x in again.state_dict().items())
    batch = hard_batch(encoder.config)
    assert torch.equal(again(**batch).last_hidden_state, encoder(**batch).last_hidden_state)


def test_the_real_minilm_makes_the_round_trip_bit_equal(minilm: Path, tmp_path: Path) -> None:
    encoder = minibert.load(minilm)
    minibert.save(encoder, tmp_path)
    saved, original = load_file(tmp_path / "model.safetensors"), load_file(minilm / "model.safetensors")
    original.pop("embeddings.position_ids", None)
    assert saved.keys() == original.keys()
    assert all(torch.equal(x, original[name]) for name, x in saved.items())
    assert differences(encoder, upstream(tmp_path, "bert"), hard_batch(encoder.config, longest=16)) == {}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_transformers_loads_the_dtype_that_was_saved(
    dtype: torch.dtype, originals: dict[str, Path], tmp_path: Path
) -> None:
    """transformers follows the dtype of config.json; the one that the original named would change the weights."""
    minibert.save(minibert.load(originals["bert"], dtype=dtype), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    assert upstream(tmp_path, "bert").dtype == dtype


def test_float32_saved_from_a_float16_checkpoint_stays_float32_in_transformers(
    originals: dict[str, Path], tmp_path: Path
) -> None:
    values = json.loads((originals["bert"] / "config.json").read_text())
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.json").write_text(json.dumps(values | {"torch_dtype": "float16", "dtype": "float16"}))
    (tmp_path / "half" / "model.safetensors").write_bytes((originals["bert"] / "model.safetensors").read_bytes())
    encoder = minibert.load(tmp_path / "half")
    minibert.save(encoder, tmp_path / "saved")
    theirs = upstream(tmp_path / "saved", "bert")
    assert theirs.dtype == torch.float32
    assert differences(encoder, theirs, hard_batch(encoder.config)) == {}


@pytest.mark.parametrize("model_type", TYPES)
def test_unknown_keys_of_config_json_are_kept(model_type: str, originals: dict[str, Path], tmp_path: Path) -> None:
    values = json.loads((originals[model_type] / "config.json").read_text())
    kept = {"sinusoidal_pos_embds": True, "my own": {"key": [1, None, "é"]}, "use_cache": False}
    (tmp_path / "config.json").write_text(json.dumps(values | kept))
    (tmp_path / "model.safetensors").write_bytes((originals[model_type] / "model.safetensors").read_bytes())
    minibert.save(minibert.load(tmp_path), tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert (values | kept).items() <= saved.items()


def test_the_saved_file_says_that_it_is_for_pytorch(originals: dict[str, Path], tmp_path: Path) -> None:
    minibert.save(minibert.load(originals["bert"]), tmp_path)
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
@pytest.mark.parametrize("model_type", TYPES)
def test_a_wrapped_model_is_saved_under_the_official_names(
    model_type: str, wrapper: str, originals: dict[str, Path], tmp_path: Path
) -> None:
    encoder = minibert.load(originals[model_type])
    minibert.save(WRAPPERS[wrapper](encoder), tmp_path)
    saved, original = (load_file(folder / "model.safetensors") for folder in (tmp_path, originals[model_type]))
    assert saved.keys() == original.keys()
    assert all(torch.equal(x, original[name]) for name, x in saved.items())


def test_a_bare_model_is_its_own_inside(originals: dict[str, Path]) -> None:
    encoder = minibert.load(originals["bert"])
    assert unwrapped(encoder) is encoder


def test_a_write_that_fails_leaves_the_old_files_and_no_others(
    originals: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = minibert.load(originals["bert"])
    minibert.save(encoder, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full_disk(tensors: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half of the file")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights, "save_file", full_disk)
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
            files.write_whole(path, "new and longer")
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]
    assert path.read_text() == "old"


def test_saving_over_the_folder_that_was_loaded_is_safe(originals: dict[str, Path], tmp_path: Path) -> None:
    minibert.save(minibert.load(originals["bert"]), tmp_path)
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


def test_report_returns_the_account_beside_the_model(originals: dict[str, Path]) -> None:
    encoder, report = minibert.load(originals["bert"], report=True)
    assert len(report.loaded) == len(encoder.state_dict())
