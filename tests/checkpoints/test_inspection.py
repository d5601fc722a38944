"""What `minibert inspect` reports of a pooler: trained or not, by three numbers."""

import pytest
import torch
from support.words import state_vectors, write_words_checkpoint
from torch import nn

import minibert
from minibert.checkpoints.inspection import Figures, checkpoint_text, inspect, trained
from minibert.storage.tensor_files import list_tensors

D = 96


def test_a_fresh_layer_looks_untrained_until_one_bias_one_direction_or_one_weight_moved():
    for seed, std in enumerate(torch.linspace(0.2, 0.02, 19)):
        torch.manual_seed(seed)
        weight, bias = torch.randn(D, D) * std, torch.zeros(D)
        found = trained(weight, bias)
        assert not found["looks_trained"]
        assert found["kurtosis"] == pytest.approx(3, abs=0.3)
        assert found["largest_singular_value_over_edge"] == pytest.approx(1, abs=0.1)
    for layer in (nn.Linear(D, D), nn.Linear(8, 24)):  # as torch initialises it
        assert not trained(layer.weight, torch.zeros(layer.out_features))["looks_trained"]
    zeros = {"looks_trained": False, "biases": D, "biases_not_zero": 0, "kurtosis": 0.0}
    assert trained(torch.zeros(D, D), torch.zeros(D)) == zeros | {"largest_singular_value_over_edge": 0.0}
    one = torch.eye(D)[3]
    direction = torch.full((D, D), 1 / D)
    for moved, biases in (
        (weight, 1e-8 * one),
        (weight + 0.6 * direction, bias),
        (weight + torch.outer(one, one), bias),
    ):
        assert trained(moved, biases)["looks_trained"]


@pytest.fixture(scope="module")
def figures() -> Figures:
    """Those of all-MiniLM-L6-v2."""
    return inspect("all-MiniLM-L6-v2")


def test_the_pooler_of_minilm_looks_untrained_and_every_layer_below_it_trained(minilm, figures):
    pooler = figures["pooler"]
    assert (pooler["looks_trained"], pooler["biases"], pooler["biases_not_zero"]) == (False, 384, 0)
    assert pooler["kurtosis"] == pytest.approx(2.983, abs=1e-3)
    assert pooler["largest_singular_value_over_edge"] == pytest.approx(0.986, abs=1e-3)
    linears = [module for module in minibert.load(minilm).layers.modules() if isinstance(module, nn.Linear)]
    assert len(linears) == 36 and all(trained(one.weight, one.bias)["looks_trained"] for one in linears[::7])


def test_every_tensor_is_printed_with_its_shape_and_both_names(minilm, run):
    out = run("inspect", "all-MiniLM-L6-v2", "--tensors")
    lines = [line.split() for line in out.partition("in the file ")[2].splitlines()[1:]]
    tensors = list_tensors(minilm)
    assert [line[0] for line in lines] == list(tensors)
    by_name = {line[0]: line[1:] for line in lines}
    word = "embeddings.word_embeddings.weight"
    assert by_name[word] == ["F32", "30522", "x", "384", "embeddings.token.weight"]
    assert len(lines) == 103 + ("embeddings.position_ids" in tensors)
    run("inspect", "--tensors", status=2)


def test_it_prints_what_the_files_state_of_vectors_and_why_they_cannot_be_followed(tmp_path, figures):
    assert "\nvectors        pooling mean, normalized, at most 256 tokens" in checkpoint_text(figures)
    folder = write_words_checkpoint(tmp_path / "words")
    assert "\nvectors" not in checkpoint_text(inspect(str(folder)))
    (state_vectors(folder) / "modules.json").write_text("[]")
    assert "cannot follow" in checkpoint_text(inspect(str(folder)))
