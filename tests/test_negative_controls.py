"""Mistakes made on purpose: the comparison that the parity tests rely on must find each of them.

A freshly initialised reference hides half of these (its LayerNorms are 1 and 0, its biases 0), which is why every
reference here has all parameters random.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import differences, hard_batch, write_checkpoint
from safetensors.torch import load_file, save_file
from torch import nn

import minibert
from minibert.checkpoints import fill as weights
from minibert.model import Encoder

TYPES = ("bert", "distilbert")
ROUNDING = 1e-5  # what a comparison by tolerance would let pass


def tanh_gelu(encoder: Encoder) -> None:
    layer: Any
    for layer in encoder.layers:
        layer.feed_forward.activation = partial(F.gelu, approximate="tanh")


def swapped_norms(encoder: Encoder) -> None:
    layer = encoder.layers[0]
    layer.attention_norm, layer.feed_forward_norm = layer.feed_forward_norm, layer.attention_norm


def dropped_biases(encoder: Encoder) -> None:
    for module in encoder.modules():
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


def swapped_query_and_key(encoder: Encoder) -> None:
    attention: Any = encoder.layers[0].attention
    attention.query, attention.key = attention.key, attention.query


def unscaled_scores(encoder: Encoder) -> None:
    encoder.attend = lambda q, k, v, keep, dropout: minibert.model.eager_attention(q * 8**0.5, k, v, keep, dropout)


def positions_off_by_one(encoder: Encoder) -> None:
    table = encoder.embeddings.position.weight
    encoder.embeddings.position.weight = nn.Parameter(table.roll(-1, dims=0))


def large_epsilon(encoder: Encoder) -> None:
    for module in encoder.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5


def ignored(name: str) -> Callable[[Encoder], None]:
    """The encoder does as if it had not been given the mask or the segments."""

    def mistake(encoder: Encoder) -> None:
        right = encoder.forward

        def wrong(input_ids: Any, **given: Any) -> Any:
            everything = torch.ones_like(input_ids) if name == "attention_mask" else torch.zeros_like(input_ids)
            return right(input_ids, **given | {name: everything})

        encoder.forward = wrong  # type: ignore[method-assign]

    return mistake


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    found = {}
    for model_type in TYPES:
        folder = tmp_path_factory.mktemp(model_type)
        found[model_type] = folder, write_checkpoint(folder, model_type)
    return found


@pytest.fixture
def both(checkpoints: dict[str, tuple[Path, Any]]) -> Callable[..., tuple[Encoder, Any]]:
    """Loads the same checkpoint into our encoder, which the test may damage, and into transformers' model."""

    def load(model_type: str, dtype: torch.dtype = torch.float32) -> tuple[Encoder, Any]:
        folder, theirs = checkpoints[model_type]
        return minibert.load(folder, dtype=dtype), theirs.to(dtype)

    return load


@pytest.mark.parametrize("model_type", TYPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_a_mistake_the_comparison_finds_nothing(model_type: str, dtype: torch.dtype, both: Any) -> None:
    ours, theirs = both(model_type, dtype)
    assert differences(ours, theirs, hard_batch(ours.config)) == {}


@pytest.mark.parametrize("model_type", TYPES)
@pytest.mark.parametrize(
    "mistake",
    [
        tanh_gelu,
        swapped_norms,
        dropped_biases,
        swapped_query_and_key,
        unscaled_scores,
        positions_off_by_one,
        pytest.param(ignored("attention_mask"), id="ignored_mask"),
    ],
)
def test_a_mistake_is_found_bit_for_bit_and_by_tolerance(
    mistake: Callable[[Encoder], None], model_type: str, both: Any
) -> None:
    ours, theirs = both(model_type)
    mistake(ours)
    batch = hard_batch(ours.config)
    assert "last hidden state" in differences(ours, theirs, batch)
    assert "last hidden state" in differences(ours, theirs, batch, within=ROUNDING)


def test_ignored_segments_are_found(both: Any) -> None:
    ours, theirs = both("bert")
    ignored("token_type_ids")(ours)
    assert "hidden state 0" in differences(ours, theirs, hard_batch(ours.config), within=ROUNDING)


@pytest.mark.parametrize("model_type", TYPES)
def test_an_epsilon_of_1e_5_for_1e_12_is_found_in_float64(model_type: str, both: Any) -> None:
    ours, theirs = both(model_type, torch.float64)
    large_epsilon(ours)
    assert "last hidden state" in differences(ours, theirs, hard_batch(ours.config), within=1e-9)


def test_a_wrong_pooler_is_found(both: Any) -> None:
    ours, theirs = both("bert")
    assert ours.pooler is not None
    nn.init.zeros_(ours.pooler.dense.bias)
    assert differences(ours, theirs, hard_batch(ours.config)).keys() == {"pooler"}


def test_a_dropped_key_bias_hides_from_the_outputs(both: Any) -> None:
    """Softmax cancels what is added to all scores of a query; no comparison by tolerance can see this mistake."""
    ours, theirs = both("bert")
    for layer in ours.layers:
        nn.init.zeros_(layer.attention.key.bias)
    assert differences(ours, theirs, hard_batch(ours.config), within=ROUNDING) == {}


@pytest.mark.parametrize("model_type", TYPES)
def test_a_dropped_key_bias_is_found_by_the_account_of_names(model_type: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, model_type)
    key_bias = weights.name_in_file(model_type, "layers.0.attention.key.bias")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[key_bias]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"lacks 1 tensors, layers\.0\.attention\.key\.bias"):
        minibert.load(tmp_path)


@pytest.mark.parametrize("model_type", TYPES)
def test_two_rows_of_the_table_of_names_exchanged_are_found(
    model_type: str, both: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [list(row) for row in weights.ENCODER]
    rows[4][1:], rows[5][1:] = rows[5][1:], rows[4][1:]
    monkeypatch.setattr(weights, "ENCODER", tuple(tuple(row) for row in rows))
    ours, theirs = both(model_type)
    assert "last hidden state" in differences(ours, theirs, hard_batch(ours.config), within=ROUNDING)


def test_a_reference_that_is_fresh_hides_swapped_norms_and_dropped_biases(tmp_path: Path) -> None:
    """The reason why write_checkpoint randomises: made with a fresh model, these comparisons prove nothing."""
    theirs = write_checkpoint(tmp_path, "bert")
    for name, parameter in theirs.named_parameters():
        if parameter.dim() == 1:
            nn.init.constant_(parameter, float(name.endswith("LayerNorm.weight")))
    theirs.save_pretrained(tmp_path)
    for mistake in (swapped_norms, dropped_biases):
        ours = minibert.load(tmp_path)
        mistake(ours)
        assert differences(ours, theirs, hard_batch(ours.config)) == {}


def test_batches_have_what_the_comparison_needs() -> None:
    """Rows of different length, from 1 to full, padding, and every segment."""
    batch = hard_batch(minibert.Config(max_position_embeddings=20, type_vocab_size=3))
    assert batch["attention_mask"].sum(dim=1).tolist() == [1, 2, 10, 20]
    assert set(batch["token_type_ids"].flatten().tolist()) == {0, 1, 2}
    assert (batch["input_ids"] == 0).equal(batch["attention_mask"] == 0)
