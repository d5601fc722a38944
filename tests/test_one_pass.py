"""The order of computation is in model.py alone: a change there is a change of every path."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.training import Found, batch_of
from torch import Tensor

import minibert
from minibert.heads import SequenceClassification
from minibert.kernels.parts import with_parts
from minibert.model import Layer
from minibert.parity.checkpoints import randomise
from minibert.quick import QUICK
from minibert.train.loop import packed_loss, readable_loss
from minibert.vectors import calibration
from minibert.vectors.engine import Engine
from minibert.vectors.readable import readable_vectors

CONFIG = minibert.Config(
    vocab_size=103,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=64,
)
ROWS = [[5, 9, 13, 8], [7], [3, 4, 60, 2, 31, 17, 9], [11, 12, 13, 14]]
MEAN = minibert.Recipe("mean")


def pre_norm(layer: Any, x: Tensor, layout: Any, attend: Any) -> tuple[Tensor, Tensor | None]:
    """x = x + Attention(LayerNorm(x)); x = x + FFN(LayerNorm(x)): as in most models after BERT."""
    y = layer.attention_norm(x)
    attended, probs = layer.attention(y, layout, attend, layout.wanted(y))
    x = layer.attention_residual(attended, layout.wanted(x))
    return layer.feed_forward_residual(layer.feed_forward(layer.feed_forward_norm(x)), x), probs


@pytest.fixture(params=["post-norm, as it is", "pre-norm"])
def encoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> minibert.Encoder:
    """An encoder whose layers compute in this order."""
    made = minibert.Encoder(CONFIG).eval()
    randomise(made, 1)
    if request.param == "pre-norm":
        before = readable_vectors(made, ROWS, MEAN)
        monkeypatch.setattr(Layer, "forward", pre_norm)
        assert np.abs(readable_vectors(made, ROWS, MEAN) - before).max() > 0.1  # it is another model
    return made


@pytest.mark.parametrize("pooling", ["cls", "mean", "pooler"])
def test_fast_inference_computes_in_the_order_of_the_layer(encoder: minibert.Encoder, pooling: str) -> None:
    recipe = minibert.Recipe(pooling)
    assert np.abs(Engine(encoder).vectors(ROWS, recipe) - readable_vectors(encoder, ROWS, recipe)).max() < 1e-5


@pytest.mark.parametrize("fast_parts", [False, True])
def test_the_packed_training_step_computes_in_the_order_of_the_layer(
    encoder: minibert.Encoder, fast_parts: bool
) -> None:
    model = SequenceClassification(replace(CONFIG, id2label={0: "a", 1: "b", 2: "c"})).eval()
    model.encoder.load_state_dict(encoder.state_dict())
    batch = batch_of("sequence-classification", [3, 7, 12, 5])
    expected = Found.of(readable_loss, model, batch)
    found = Found.of(packed_loss, with_parts(model, QUICK) if fast_parts else model, batch)
    assert max(found.apart(expected).values()) < 1e-5


def test_calibration_computes_in_the_order_of_the_layer(encoder: minibert.Encoder) -> None:
    engine = Engine(encoder)
    rows = sorted(ROWS, key=len, reverse=True)
    packed = engine.pack(rows)
    with torch.inference_mode():
        *_, (states, _) = encoder.through_layers(engine.embed(packed), packed, engine.attend)
        try:
            _, exact = calibration.calibrate(encoder, engine.embed(packed), packed)
        except (AttributeError, RuntimeError):
            pytest.skip("this build of torch has no int8 products")
    assert float((exact - states).abs().max()) < 1e-5
    expected = readable_vectors(encoder, rows, MEAN)
    means = torch.cat([group.mean(dim=1) for group in packed.by_group(exact)])
    assert np.abs(means.numpy() - expected).max() < 1e-5
