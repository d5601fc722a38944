"""Embedding on the emulated device: the vectors of the CPU, one wait a batch, few launches."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.emulated_device import EmulatedDevice, emulated_device
from support.engine import MIXED, RELATIVES, difference, random_encoder, random_rows, round_products

from minibert import TextFeatures, embed
from minibert.kernels import matmul
from minibert.utils import device as device_module
from minibert.vectors.engine import Engine
from minibert.vectors.recipe import Recipe
from minibert.vectors.stream import embed_stream

TEXTS = ["a very good film", "the awful meal", "", "book", "good " * 30]
ROWS = random_rows(MIXED)


@pytest.fixture
def gpu() -> Iterator[EmulatedDevice]:
    with emulated_device() as gpu:
        yield gpu


@pytest.fixture
def bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device multiplies bfloat16."""
    monkeypatch.setattr(device_module, "has_bfloat16", lambda device: True)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "pooler"])
def test_vectors_are_those_of_the_cpu_with_one_wait_a_batch(pooling, gpu):
    recipe, encoder = Recipe(pooling, -1, batch_tokens=80), random_encoder()
    engine = Engine(encoder, device="gpu")
    gpu.reset()
    found = engine.vectors(ROWS, recipe, second=[1] * len(ROWS))
    assert [wait.split(" at ")[0] for wait in gpu.waits] == ["event"] * 3
    assert difference(found, Engine(encoder).vectors(ROWS, recipe, second=[1] * len(ROWS))) < 1e-5


@pytest.mark.parametrize("changes", RELATIVES, ids=str)
def test_relatives_have_the_vectors_of_the_cpu(changes, gpu):
    encoder, recipe = random_encoder(**changes), Recipe("cls", layers=(0, -1))
    assert difference(Engine(encoder, device="gpu").vectors(ROWS, recipe), Engine(encoder).vectors(ROWS, recipe)) < 1e-5


def test_without_a_way_to_wait_copies_are_no_late_ones(gpu, monkeypatch):
    """As on MPS, see copies_ahead."""
    monkeypatch.setattr(device_module, "copies_ahead", lambda device: device.type not in ("cpu", "gpu"))
    assert (
        difference(Engine(random_encoder(), device="gpu").vectors(ROWS), Engine(random_encoder()).vectors(ROWS)) < 1e-5
    )
    assert not gpu.late


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_forward_of_six_layers_is_at_most_75_launches(pooling, precision, gpu):
    engine = Engine(random_encoder(num_hidden_layers=6), precision, "gpu")
    gpu.reset()
    engine.vectors(ROWS, Recipe(pooling))
    assert sum(gpu.launches.values()) <= 75


@pytest.mark.usefixtures("bfloat16", "gpu")
def test_one_kernel_takes_all_lengths_where_the_heads_allow_it():
    for precision, product in (("float32", "F.linear"), ("bfloat16", "F.linear with GELU")):
        found = Engine(random_encoder(), precision, "gpu").kernels
        assert found == f"{precision} on gpu; products: {product}; attention: one kernel for all lengths"
    narrow = random_encoder(hidden_size=26, num_attention_heads=2)
    engine = Engine(narrow, "auto", "gpu")
    assert engine.kernels.endswith("attention: one padded kernel")
    cosine = F.cosine_similarity(*map(torch.from_numpy, (engine.vectors(ROWS), Engine(narrow).vectors(ROWS))))
    assert float(cosine.min()) > 0.999


@pytest.mark.usefixtures("bfloat16", "gpu")
@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-5), ("bfloat16", 0.1)])
def test_the_token_at_its_place_is_that_of_the_cpu(precision, bound):
    encoder, places = random_encoder(), [length // 2 for length in MIXED]
    found = Engine(encoder, precision, "gpu").vectors(ROWS, places=places)
    assert difference(found, Engine(encoder).vectors(ROWS, places=places)) < bound
    assert difference(found, Engine(encoder).vectors(ROWS)) > 2 * bound


def test_attention_never_takes_the_kernels_of_cudnn(gpu, monkeypatch):
    allowed = []
    fused = F.scaled_dot_product_attention
    watched = lambda *given, **how: (allowed.append(torch.backends.cuda.cudnn_sdp_enabled()), fused(*given, **how))[1]  # noqa: E731
    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    Engine(random_encoder(), device="gpu").vectors(ROWS)
    assert allowed and not any(allowed) and torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.usefixtures("gpu")
def test_float32_that_is_rounded_further_says_so(monkeypatch):
    encoder = random_encoder()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Engine(encoder, device="gpu").precision == "float32"
    round_products(monkeypatch)
    with pytest.warns(UserWarning, match="float32 products on gpu"):
        engine = Engine(encoder, device="gpu")
    assert engine.precision == "reduced float32" and engine.kernels.startswith("reduced float32 on gpu")


@pytest.mark.usefixtures("gpu")
@pytest.mark.slow
def test_parity_refuses_float32_that_is_rounded_further(folder, run, monkeypatch):
    assert "within the measured bounds" in run("parity", folder, "--device", "gpu")
    round_products(monkeypatch)
    error = run("parity", folder, "--device", "gpu", status=2)
    assert "float32 products on gpu" in error and "('highest')" in error
    monkeypatch.setattr(matmul, "is_right", lambda *given: False)
    assert "float32 products on cpu" in run("parity", folder, status=2)


def test_every_public_way_to_vectors_runs_on_the_device(folder, gpu, tmp_path):
    ways = {
        "texts": partial(embed, TEXTS, folder),
        "pairs": partial(embed, TEXTS, folder, pairs=TEXTS[::-1], pooling="mean"),
        "windows": partial(embed, TEXTS, folder, long="windows"),
        "features": lambda device: TextFeatures(model=str(folder), device=device).fit_transform(TEXTS),
        "file": lambda device: np.load(embed_stream(TEXTS, tmp_path / f"{device}.npy", folder, device=device).out),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of texts that are cut
        for name, way in ways.items():
            np.testing.assert_allclose(way(device="gpu"), way(device="cpu"), atol=1e-5, err_msg=name)


def test_a_stream_that_runs_out_of_memory_says_what_is_kept(folder, tmp_path, monkeypatch):
    texts, vectors = [*["good"] * 8, "good " * 15], Engine.vectors

    def run_out(self, ids, *given, **how):
        if max(map(len, ids)) > 10:
            raise torch.OutOfMemoryError("no more")
        return vectors(self, ids, *given, **how)

    how = {"model": folder, "part_rows": 4, "device": "cpu"}
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "vectors", run_out)
        with pytest.raises(RuntimeError, match=r"row 8\b.* 8 rows"):
            embed_stream(texts, tmp_path / "x.npy", **how)
    assert embed_stream(texts, tmp_path / "x.npy", **how).resumed_rows == 8


@pytest.mark.usefixtures("gpu")
def test_int8_falls_back_with_a_warning():
    with pytest.warns(UserWarning, match="int8"):
        engine = Engine(random_encoder(), "int8", "gpu")
    assert engine.precision == "float32"


@pytest.mark.parametrize(("device", "tokens"), [("cpu", 4096), ("mps", 16384), ("cuda", 65536), ("gpu", 65536)])
def test_a_batch_has_as_many_tokens_as_suit_the_device(device, tokens):
    assert device_module.batch_tokens_on(torch.device(device)) == tokens
