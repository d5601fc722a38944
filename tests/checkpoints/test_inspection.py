"""What `minibert inspect` reports of a pooler: trained or not, by three numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import minibert
from minibert import Config, Encoder
from minibert.checkpoints.inspection import checkpoint_text, inspect, trained

D = 96


def linear(seed: int = 0, std: float = 0.02) -> tuple[Tensor, Tensor]:
    """A layer as BERT initialises it."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(D, D, generator=generator) * std, torch.zeros(D)


def test_a_fresh_layer_looks_untrained() -> None:
    for seed in range(20):
        found = trained(*linear(seed, std=0.01 + 0.01 * seed))
        assert not found["looks_trained"]
        assert found["kurtosis"] == pytest.approx(3, abs=0.3)
        assert found["largest_singular_value_over_edge"] == pytest.approx(1, abs=0.1)
    for layer in (nn.Linear(D, D), nn.Linear(8, 24)):  # as torch initialises it
        assert not trained(layer.weight, torch.zeros(layer.out_features))["looks_trained"]
    zeros = {"looks_trained": False, "biases": D, "biases_not_zero": 0, "kurtosis": 0.0}
    assert trained(torch.zeros(D, D), torch.zeros(D)) == zeros | {"largest_singular_value_over_edge": 0.0}


def test_one_moved_bias_one_direction_or_one_large_weight_is_enough_to_look_trained() -> None:
    weight, bias = linear()
    moved = bias.clone()
    moved[3] = 1e-8
    assert trained(weight, moved)["looks_trained"]
    along = torch.ones(D, 1) / D**0.5
    assert trained(weight + 0.6 * along @ along.T, bias)["looks_trained"]
    weight[5, 5] = 1.0
    assert trained(weight, bias)["looks_trained"]


def test_the_pooler_of_minilm_looks_untrained_and_every_layer_below_it_trained(minilm: Path) -> None:
    pooler = inspect("all-MiniLM-L6-v2")["pooler"]
    assert (pooler["looks_trained"], pooler["biases"], pooler["biases_not_zero"]) == (False, 384, 0)
    assert pooler["kurtosis"] == pytest.approx(2.983, abs=1e-3)
    assert pooler["largest_singular_value_over_edge"] == pytest.approx(0.986, abs=1e-3)
    linears = [module for module in minibert.load(minilm).layers.modules() if isinstance(module, nn.Linear)]
    assert len(linears) == 36 and all(trained(one.weight, one.bias)["looks_trained"] for one in linears)


@pytest.mark.parametrize("pooler", [True, False])
def test_the_text_reports_the_pooler_where_there_is_one(pooler: bool, tmp_path: Path) -> None:
    small = Config(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    minibert.save(Encoder(small, pooler=pooler), tmp_path)
    found = inspect(str(tmp_path))
    assert ("\npooler         looks untrained" in checkpoint_text(found)) == pooler == (found["pooler"] is not None)
