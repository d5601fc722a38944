"""Products of a training step by oneDNN: in float32 or not at all, and never in a step that is exact to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from training import batches_of

import minibert
from minibert.families.bert import BERT
from minibert.kernels import products, quick, table
from minibert.kernels.products import permitted
from minibert.kernels.quick import Quick
from minibert.train.loop import new_optimizer, one_step, packed_loss
from minibert.train.run import resolve_precision
from minibert.train.settings import TrainSettings

pytestmark = pytest.mark.usefixtures("one_thread", "found_anew")


@pytest.fixture
def found_anew() -> Iterator[None]:
    """What was found out about the machine is forgotten before and after."""
    permitted.cache_clear()
    yield
    permitted.cache_clear()


def setting() -> str:
    return str(torch.backends.mkldnn.matmul.fp32_precision)  # type: ignore[attr-defined]


def test_products_under_it_are_those_of_float32_forward_and_back() -> None:
    x, weight, bias = (torch.randn(size, requires_grad=True) for size in ((2, 65, 96), (200, 96), (200,)))
    dy, before = torch.randn(2, 65, 200), setting()
    y = products.linear(x, weight, bias)
    found = (y, *torch.autograd.grad(y, (x, weight, bias), dy))
    twins = [one.detach().double().requires_grad_() for one in (x, weight, bias)]
    exact = F.linear(*twins)
    right = (exact, *torch.autograd.grad(exact, twins, dy.double()))
    for one, other in zip(found, right, strict=True):
        assert products.relative_error(one.detach(), other.detach()) < 1e-5
    assert setting() == before


def test_what_is_frozen_has_no_gradient() -> None:
    x, weight, bias = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    assert not products.linear(x, weight, bias).requires_grad
    y = products.linear(x.requires_grad_(), weight, bias)
    y.sum().backward()
    assert torch.allclose(x.grad, weight.sum(dim=0).expand(3, 4))  # type: ignore[arg-type]


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().float()


@pytest.mark.parametrize("which", ["forward", "to the input", "to the weight"])
def test_a_machine_that_really_computes_in_bfloat16_is_not_permitted(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Coarse(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(x, weight)
            y = x @ weight.T
            return rounded(y) if which == "forward" else y

        @staticmethod
        def backward(ctx: Any, *dy: Tensor) -> tuple[Tensor, Tensor]:
            x, weight = ctx.saved_tensors
            dx, dw = dy[0] @ weight, dy[0].T @ x
            return rounded(dx) if which == "to the input" else dx, rounded(dw) if which == "to the weight" else dw

    monkeypatch.setattr(products, "linear", Coarse.apply)
    assert not permitted()


@pytest.mark.parametrize("error", [AttributeError, RuntimeError])
def test_a_torch_without_it_is_not_permitted_and_computes_as_ever(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def missing() -> Iterator[None]:
        raise error("no such setting")
        yield

    monkeypatch.setattr(products, "permission", missing)
    assert not permitted()


def test_another_processor_is_not_permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products.platform, "machine", lambda: "arm64")
    assert not permitted()


@pytest.mark.parametrize("exact", [True, False])
def test_a_step_has_them_in_linear_layers_alone_unless_it_is_exact(
    exact: bool, written: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick, "permitted", lambda: True)
    seen = []

    @contextmanager
    def watched() -> Iterator[None]:
        seen.append(True)
        yield

    monkeypatch.setattr(products, "permission", watched)
    model = minibert.load(written(BERT, "sequence-classification")[0], head="sequence-classification")
    settings = TrainSettings(exact=exact)
    batch = next(batches_of("sequence-classification", 4, 4).epoch_batches(0))
    one_step(model, [batch], new_optimizer(model, settings), packed_loss, settings, 1)
    layers = model.config.num_hidden_layers
    forward = 4 * layers + 1 + 2  # one for query, key, value, but two in the last layer; the pooler, the classifier
    assert len(seen) == (0 if exact else 2 * forward)


@pytest.mark.parametrize("step", ["packed", "readable"])
def test_the_readable_step_is_exact_and_the_packed_one_need_not_be(step: str) -> None:
    assert resolve_precision(TrainSettings(step=step)).exact == (step == "readable")


def test_without_permission_and_under_autocast_layers_are_computed_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    x, layer = torch.randn(5, 8), torch.nn.Linear(8, 3)
    for allowed in (True, False):
        monkeypatch.setattr(quick, "permitted", lambda allowed=allowed: allowed)
        with Quick():
            made = layer(x)
            with torch.autocast("cpu", torch.bfloat16):
                lower = layer(x)
        assert ("AddmmBackward" in str(made.grad_fn)) != allowed
        assert lower.dtype == torch.bfloat16


def test_a_part_without_rows_passes_through() -> None:
    layer = torch.nn.Linear(8, 3)
    y = products.linear(torch.randn(0, 8), layer.weight, layer.bias)
    y.sum().backward()
    assert y.shape == (0, 3)
    assert not layer.weight.grad.any()  # type: ignore[union-attr]


def test_a_large_table_keeps_its_gradients_memory_and_a_small_one_is_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, small = torch.tensor([1, 2]), torch.nn.Embedding(7, 4)
    with Quick():
        assert "EmbeddingBackward" in str(small(ids).grad_fn)
        monkeypatch.setattr(table, "LARGE", 1)
        assert "EmbeddingBackward" not in str(small(ids).grad_fn)
        assert torch.equal(small(ids), small.weight[ids])
