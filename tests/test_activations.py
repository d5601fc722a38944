"""Every activation of transformers that is a plain function has its bits here, and so have its gradients."""

import pickle

import pytest
import torch
from torch import Tensor

from minibert.activations import ACTIVATION
from minibert.config import ACTIVATIONS

activations = pytest.importorskip("transformers.activations")
VALUES = torch.cat([torch.linspace(-12, 12, 4801), torch.tensor([0.0, -0.0, 1e-30, -1e-30, 100.0, -100.0, 1e4, -1e4])])


def values_and_gradients(function: object, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    x = VALUES.to(dtype, copy=True).requires_grad_()
    y = function(x)
    return y.detach(), torch.autograd.grad(y.sum(), x)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_and_its_gradient_have_upstreams_bits(name, dtype):
    ours = values_and_gradients(ACTIVATION[name], dtype)
    theirs = values_and_gradients(activations.ACT2FN[name], dtype)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_only_the_activations_with_weights_of_their_own_are_missing():
    assert set(activations.ACT2FN) - set(ACTIVATIONS) == {"prelu", "xielu"}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_can_be_pickled_so_that_a_model_can(name):
    assert pickle.loads(pickle.dumps(ACTIVATION[name]))(VALUES).shape == VALUES.shape
