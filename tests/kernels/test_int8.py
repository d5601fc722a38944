"""The arithmetic of int8: quantization within half a step, products within its rounding, smoothing and zero points.

That the products are exact integers is what is_exact finds on each machine, see vectors/test_int8.py.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine import EXACT
from torch import nn

from minibert.kernels.int8 import (
    HIGHEST,
    SMOOTHING,
    Int8Linear,
    Quantization,
    quantizations,
    smoothing,
)
from minibert.kernels.matmul import linear_of


@settings(max_examples=50)
@given(
    st.integers(1, 9),
    st.integers(1, 40),
    st.floats(1e-3, 1e3),
    st.integers(8, 228),
    st.booleans(),
    st.integers(0, 2**31),
)
@torch.inference_mode()
def test_every_number_is_rounded_to_within_half_a_step(tokens, channels, size, zero_point, smooth, seed):
    random = torch.Generator().manual_seed(seed)
    x = size * torch.randn(tokens, channels, generator=random)
    c = 0.5 + torch.rand(channels, generator=random) if smooth else None
    source = linear_of(torch.randn(3, channels, generator=random), torch.zeros(3))
    values, scale = Int8Linear([source], Quantization(c, zero_point)).prepare(x)
    used = values.float() - zero_point
    away = (scale * used - (x if c is None else x / c)).abs()
    assert bool((away <= scale * 0.501).all())
    ends = torch.maximum(used.amax(1) / (HIGHEST - zero_point), used.amin(1) / -zero_point)
    assert bool((ends > 0.99).all())  # the largest or the smallest number of a row is at its end


@EXACT
@pytest.mark.parametrize(("zero_point", "bound"), [(128, 0.1), (188, 0.2), (18, 0.6)])  # on both sides of 0: wasteful
@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_product_with_or_without_bias_and_with_activation_is_within_its_rounding(zero_point, bound, smooth, dtype):
    random = torch.Generator().manual_seed(0)
    x = torch.randn(67, 256, generator=random).to(dtype)
    layer = linear_of(torch.randn(320, 256, generator=random) / 16, torch.randn(320, generator=random))
    quantization = Quantization(0.5 + torch.rand(256, generator=random) if smooth else None, zero_point)
    exact = layer(x.float())
    for activation in (None, "gelu", "relu"):
        product = Int8Linear([layer], quantization, activation)
        right = exact if activation is None else getattr(nn.functional, activation)(exact)
        assert float((product(x) - right).abs().max()) < bound
    product = Int8Linear([linear_of(layer.weight, None)], quantization)
    assert float((product(x) - (exact - layer.bias)).abs().max()) < bound


@EXACT
@torch.inference_mode()
def test_rows_of_zeros_give_the_bias_and_a_row_that_is_not_finite_stays_so():
    product = Int8Linear([linear_of(torch.eye(8), torch.arange(8.0))], Quantization())
    x = torch.zeros(4, 8)
    x[1, 3], x[2, 3] = float("nan"), float("inf")
    y = product(x)
    assert torch.equal(y[0], torch.arange(8.0)) and torch.equal(y[3], torch.arange(8.0))
    assert not bool(y[1].isfinite().any()) and not bool(y[2].isfinite().any())


def test_smoothing_gives_x_and_w_channels_of_similar_range():
    c = smoothing(torch.tensor([100.0, 1.0]), torch.tensor([1.0, 1.0]))
    assert torch.allclose(c[0] / c[1], torch.tensor(100.0**SMOOTHING))
    assert torch.allclose(c.mean(), torch.tensor(1.0))
    assert bool(smoothing(torch.zeros(3), torch.zeros(3)).isfinite().all())


@torch.inference_mode()
def test_a_zero_point_is_tried_that_suits_the_results_of_gelu():
    x = nn.functional.gelu(4 * torch.randn(50, 64, generator=torch.Generator().manual_seed(0)))
    plain, smooth, moved = quantizations(torch.randn(8, 64), x, folded=False)
    assert plain == Quantization() and smooth.smoothing is not None
    assert 0 < moved.zero_point < 28
