"""The functions of a fast training step: float32 products or none, dropout as torch's in distribution."""

from collections.abc import Iterator
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from support.training import batches_of
from torch import Tensor, nn

import minibert
from minibert.families.bert import BERT
from minibert.kernels import matmul, training
from minibert.kernels.matmul import MAX_ERROR
from minibert.kernels.parts import with_parts
from minibert.kernels.training import (
    attention,
    draw,
    dropout,
    fused_attention,
    linear,
    onednn_is_float32,
    threshold,
)
from minibert.quick import QUICK
from minibert.train.loop import new_optimizer, one_step, packed_loss
from minibert.train.run import resolve_precision
from minibert.train.settings import TrainSettings
from minibert.utils.device import cpu_features

P = 0.1
ONES = torch.ones(400, 1000)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """The result of the check of this machine is forgotten before and after."""
    onednn_is_float32.cache_clear()
    yield
    onednn_is_float32.cache_clear()


# ---------------------------------------------------------------------------------------------------------------
# Linear layers


def test_products_are_those_of_float32_forward_and_backward_and_restore_the_setting():
    before = torch.backends.mkldnn.matmul.fp32_precision
    # A CPU with AMX computes in bfloat16 what this allows, so there it is not used (onednn_is_float32).
    bound = MAX_ERROR[torch.bfloat16 if "amx_bf16" in cpu_features() else torch.float32]
    given = [torch.randn(size, requires_grad=True) for size in ((2, 65, 96), (200, 96), (200,))]
    twins, dy = [one.detach().double().requires_grad_() for one in given], torch.randn(2, 65, 200)
    y, exact = linear(*given), F.linear(*twins)
    gradients, right = torch.autograd.grad(y, given, dy), torch.autograd.grad(exact, twins, dy.double())
    for one, other in zip((y, *gradients), (exact, *right), strict=True):
        assert matmul.relative_error(one.detach(), other.detach()) < bound
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def test_frozen_weights_have_no_gradient_and_no_rows_are_no_error():
    x, weight, bias = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    assert not linear(x, weight, bias).requires_grad
    linear(x.requires_grad_(), weight, bias).sum().backward()
    assert torch.allclose(x.grad, weight.sum(dim=0).expand(3, 4))
    y = linear(torch.randn(0, 4), weight.requires_grad_(), bias)
    y.sum().backward()
    assert y.shape == (0, 5) and not weight.grad.any()


@pytest.mark.parametrize("which", ["forward", "to the input", "to the weight"])
def test_a_machine_that_computes_in_bfloat16_does_not_use_them(which, monkeypatch):
    def rounded(x):
        return x.bfloat16().float()

    def coarse(x, weight):
        if which == "forward":
            return rounded(x @ weight.T)
        (x if which == "to the input" else weight).register_hook(rounded)  # of its gradient
        return x @ weight.T

    monkeypatch.setattr(training, "linear", coarse)
    assert not onednn_is_float32()


@pytest.mark.parametrize("error", [AttributeError, RuntimeError, None])
def test_another_processor_or_a_torch_without_the_setting_does_not_use_them(error, monkeypatch):
    asked = Mock(side_effect=error)
    monkeypatch.setattr(matmul.platform, "machine", lambda: "x86_64" if error else "arm64")
    monkeypatch.setattr(training, "onednn_allowed", asked)
    assert not onednn_is_float32()
    assert asked.called == (error is not None)


@pytest.mark.parametrize("step", ["packed", "readable"])
def test_the_packed_step_uses_them_in_linear_layers_alone_and_the_readable_one_does_not(step, written, monkeypatch):
    watched = Mock(side_effect=nullcontext)
    monkeypatch.setattr(training, "onednn_is_float32", lambda: True)
    monkeypatch.setattr(training, "onednn_allowed", watched)
    model = minibert.load(written(BERT, "sequence-classification")[0], head="sequence-classification")
    settings = resolve_precision(TrainSettings(step=step, precision="float32"))
    batch = next(batches_of("sequence-classification", 4, 4).epoch_batches(0))
    computed = model if settings.exact else with_parts(model, QUICK)
    one_step(computed, [batch], new_optimizer(model, settings), packed_loss, settings, 1)
    layers = model.config.num_hidden_layers
    forward = 4 * layers + 1 + 2  # one for query, key, value, but two in the last layer; the pooler, the classifier
    assert watched.call_count == (2 * forward if step == "packed" else 0)


def test_a_refused_machine_and_autocast_compute_by_torch(monkeypatch):
    x, layer = torch.randn(5, 8), with_parts(nn.Linear(8, 3), QUICK)
    for allowed in (True, False):
        monkeypatch.setattr(training, "onednn_is_float32", lambda allowed=allowed: allowed)
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        assert ("AddmmBackward" in str(layer(x).grad_fn)) != allowed


def test_attention_without_dropout_is_computed_in_float32_where_autocast_would_take_bfloat16():
    query, key, value = torch.randn(3, 2, 4, 7, 8).bfloat16()
    exact = F.scaled_dot_product_attention(query.float(), key.float(), value.float())
    with torch.autocast("cpu", torch.bfloat16):
        coarse = F.scaled_dot_product_attention(query, key, value)
        context = fused_attention(query, key, value, None, 0.0)
    assert torch.equal(context, exact)
    assert not torch.equal(coarse.float(), exact)


# ---------------------------------------------------------------------------------------------------------------
# Dropout


def test_each_number_is_dropped_with_probability_p_and_the_mean_is_kept():
    torch.manual_seed(0)
    for p in (P, 0.5, 0.013):
        y = dropout(ONES, p)
        dropped = y == 0
        error = (p * (1 - p) / ONES.numel()) ** 0.5  # standard error of the fraction
        assert abs(float(dropped.float().mean()) - p) < 4 * error
        assert torch.allclose(y[~dropped], torch.tensor(1 / (1 - p)), rtol=1e-4)
    assert threshold(P) == 6554


def test_rows_columns_and_the_four_numbers_of_a_draw_are_dropped_independently():
    torch.manual_seed(1)
    dropped = ~draw(torch.Size([4000, 400]), P)
    for fraction in (dropped.float().mean(0), dropped.float().mean(1)):
        error = (P * (1 - P) / (dropped.numel() / len(fraction))) ** 0.5
        assert float((fraction - P).abs().max()) < 5 * error
    lanes = dropped.view(-1, 4).float()
    together = (lanes.T @ lanes) / len(lanes)  # how often two of a draw are dropped together
    error = (P**2 / len(lanes)) ** 0.5
    assert float((together - torch.diag(together.diag()) - P**2 * (1 - torch.eye(4))).abs().max()) < 5 * error
    assert float((together.diag() - P).abs().max()) < 5 * (P / len(lanes)) ** 0.5  # the fourth has all of its 16 bits


def test_the_backward_pass_drops_the_same_numbers_and_the_seed_determines_them():
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(200, 100, dtype=dtype, requires_grad=True)
        y = dropout(x, P)
        y.backward(torch.ones_like(y))
        assert x.grad is not None and torch.equal(x.grad, y) and y.dtype == dtype
    torch.manual_seed(3)
    first, second = dropout(ONES, P), dropout(ONES, P)
    torch.manual_seed(3)
    assert torch.equal(dropout(ONES, P), first)
    assert not torch.equal(first, second)


def test_quick_modules_drop_in_this_way_and_only_where_it_is_possible_and_in_training(monkeypatch):
    watched = Mock(side_effect=draw)
    monkeypatch.setattr(training, "draw", watched)
    nn.Dropout(P)(ONES)
    for p in (0.0, 1.0, 1e-9):
        with_parts(nn.Dropout(p), QUICK)(ONES)
    module = with_parts(nn.Dropout(P), QUICK)
    module(torch.ones(10))
    assert not watched.called
    module(ONES)
    assert torch.equal(module.eval()(ONES), ONES)
    assert watched.call_count == 1


def attention_inputs() -> tuple[list[Tensor], Tensor]:
    """Query, key, value and a mask."""
    random = torch.Generator().manual_seed(0)
    mask = (torch.arange(30) < torch.tensor([30, 12, 5, 30, 1, 29, 8, 17])[:, None])[:, None, None]
    return [torch.randn(8, 4, 30, 16, generator=random).requires_grad_() for _ in range(3)], mask


def test_attention_without_what_is_dropped_is_that_of_torch(monkeypatch):
    monkeypatch.setattr(training, "dropout", lambda x, p: x)
    inputs, mask = attention_inputs()
    exact, got = F.scaled_dot_product_attention(*inputs, attn_mask=mask), attention(*inputs, mask, P)
    gradients = zip(torch.autograd.grad(got.sum(), inputs), torch.autograd.grad(exact.sum(), inputs), strict=True)
    assert torch.allclose(got, exact, atol=1e-5)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in gradients)
    assert not torch.allclose(attention(*inputs, None, P), exact, atol=1e-2)  # without the mask


def test_attention_drops_its_weights_and_keeps_their_mean():
    (query, key, value), mask = attention_inputs()

    def attended(p):
        return fused_attention(query, key, value, mask, p).detach()

    exact = F.scaled_dot_product_attention(query, key, value, attn_mask=mask).detach()
    torch.manual_seed(0)
    assert torch.equal(attended(0.0), exact)
    dropped = torch.stack([attended(P) for _ in range(60)])
    mean, spread = dropped.mean(0), dropped.std(0)
    assert float(spread.mean()) > 0.01  # something is dropped
    error = (spread / 60**0.5).clamp(min=1e-3)
    far = [float((((mean * scale - exact) / error).abs() > 4).float().mean()) for scale in (1.0, 1 - P)]
    assert far[0] < 0.01 < 0.05 < far[1]  # the latter: without the division by 1 - p
