"""Dropout that draws 16 bits for a number: in distribution that of torch, the same numbers on the way back."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minibert.kernels import dropout as room
from minibert.kernels.dropout import attention, draw, dropout, drops, threshold
from minibert.kernels.quick import Quick

P = 0.1
ONES = torch.ones(400, 1000)


def test_each_number_is_dropped_with_probability_p_and_the_others_keep_the_mean() -> None:
    torch.manual_seed(0)
    for p in (P, 0.5, 0.013):
        y = dropout(ONES, p)
        dropped = y == 0
        error = (p * (1 - p) / ONES.numel()) ** 0.5  # standard error of the share
        assert abs(float(dropped.float().mean()) - p) < 4 * error
        assert torch.allclose(y[~dropped], torch.tensor(1 / (1 - p)), rtol=1e-4)
    assert threshold(P) == 6554


def test_rows_columns_and_the_four_numbers_of_a_draw_are_dropped_alike_and_independently() -> None:
    torch.manual_seed(1)
    dropped = ~draw(torch.Size([4000, 400]), P)
    for share in (dropped.float().mean(0), dropped.float().mean(1)):
        error = (P * (1 - P) / (dropped.numel() / len(share))) ** 0.5
        assert float((share - P).abs().max()) < 5 * error
    lanes = dropped.view(-1, 4).float()
    together = (lanes.T @ lanes) / len(lanes)  # how often two of a draw are dropped together
    error = (P**2 / len(lanes)) ** 0.5
    assert float((together - torch.diag(together.diag()) - P**2 * (1 - torch.eye(4))).abs().max()) < 5 * error
    assert float((together.diag() - P).abs().max()) < 5 * (P / len(lanes)) ** 0.5  # the fourth has all of its 16 bits


def test_the_way_back_drops_the_same_numbers() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(200, 100, dtype=dtype, requires_grad=True)
        y = dropout(x, P)
        y.backward(torch.ones_like(y))
        assert x.grad is not None and torch.equal(x.grad, y) and y.dtype == dtype


def test_a_seed_decides_what_is_dropped() -> None:
    torch.manual_seed(3)
    first, second = dropout(ONES, P), dropout(ONES, P)
    torch.manual_seed(3)
    assert torch.equal(dropout(ONES, P), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("x", "p"),
    [
        (ONES, 0.0),
        (ONES, 1.0),
        (ONES, 1e-9),
        (torch.ones(10), P),
        (ONES.to(torch.int64), P),
        (torch.ones(100, 100, device="meta"), P),
    ],
    ids=["p 0", "p 1", "p next to 0", "few numbers", "whole numbers", "another device"],
)
def test_what_is_not_worth_it_or_not_possible_is_left_to_torch(x: Tensor, p: float) -> None:
    assert not drops(x, p)
    assert drops(ONES, P)


def test_inside_quick_modules_drop_in_this_way_and_only_while_they_train(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, ...]] = []
    monkeypatch.setattr(room, "draw", lambda shape, p: (drawn.append(tuple(shape)), draw(shape, p))[1])
    module = nn.Dropout(P)
    module(ONES)
    assert drawn == []
    with Quick():
        module(ONES)
        module.eval()
        assert module(ONES) is ONES or torch.equal(module(ONES), ONES)
    assert drawn == [(400, 1000)]


def attended(p: float, seed: int, quick: bool) -> tuple[Tensor, ...]:
    """Context and gradients of attention with a mask."""
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(8, 4, 30, 16, generator=random).requires_grad_() for _ in range(3))
    mask = (torch.arange(30) < torch.tensor([30, 12, 5, 30, 1, 29, 8, 17])[:, None])[:, None, None]
    torch.manual_seed(seed)
    if quick:
        with Quick():
            context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
    else:
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
    return context.detach(), *torch.autograd.grad(context, (q, k, v), torch.ones_like(context))


def test_attention_with_dropout_is_that_of_torch_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "dropout", lambda x, p: x)
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(8, 4, 30, 16, generator=random).requires_grad_() for _ in range(3))
    mask = (torch.arange(30) < torch.tensor([30, 12, 5, 30, 1, 29, 8, 17])[:, None])[:, None, None]
    exact = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    got = attention(q, k, v, mask, P)
    for a, b in zip(
        torch.autograd.grad(got.sum(), (q, k, v)), torch.autograd.grad(exact.sum(), (q, k, v)), strict=True
    ):
        assert torch.allclose(a, b, atol=1e-5)
    assert torch.allclose(got, exact, atol=1e-5)
    assert not torch.allclose(attention(q, k, v, None, P), exact, atol=1e-2)  # without the mask


def test_inside_quick_attention_drops_its_weights_and_keeps_their_mean() -> None:
    exact = attended(0.0, 0, quick=True)
    assert all(torch.equal(a, b) for a, b in zip(exact, attended(0.0, 0, quick=False), strict=True))
    dropped = [attended(P, seed, quick=True)[0] for seed in range(60)]
    mean, spread = torch.stack(dropped).mean(0), torch.stack(dropped).std(0)
    assert float(spread.mean()) > 0.01  # something is dropped
    error = (spread / 60**0.5).clamp(min=1e-3)
    far = [float((((mean * scale - exact[0]) / error).abs() > 4).float().mean()) for scale in (1.0, 1 - P)]
    assert far[0] < 0.01 < 0.05 < far[1]  # the latter: what is kept, not divided by 1 - p
