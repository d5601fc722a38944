"""Attention in a packed batch: whichever way computes it, the same context for every token."""

from __future__ import annotations

import platform
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minibert.kernels import attention
from minibert.kernels.attention import BatchedAttention, choose_attention, grouped_attention, softmax
from minibert.kernels.memory import Scratch
from minibert.kernels.packing import Packed, pack

CPU = torch.device("cpu")
H, W = 3, 8
BOUND = 5e-6


def batch(lengths: Sequence[int], dtype: torch.dtype = torch.float32, first_only: bool = False) -> tuple[Tensor, ...]:
    """Query, key and value of texts of these lengths; with first_only the query of first tokens, filled up."""
    packed = packed_of(lengths)
    random = torch.Generator().manual_seed(sum(lengths))
    x = torch.randn(len(packed.ids), 3, H, W, generator=random).to(dtype)
    query, key, value = x.unbind(dim=1)
    return packed.first_tokens(query) if first_only else query, key, value


def packed_of(lengths: Sequence[int]) -> Packed:
    return pack([[0] * S for S in sorted(lengths, reverse=True)], CPU)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.booleans())
@torch.inference_mode()
def test_batched_products_give_what_the_fused_kernel_gives(lengths: list[int], first_only: bool) -> None:
    packed, parts = packed_of(lengths), batch(lengths, first_only=first_only)
    exact = grouped_attention(*parts, packed)
    got = BatchedAttention(Scratch())(*parts, packed)
    assert got.shape == exact.shape and got.dtype == exact.dtype
    assert float((got - exact).abs().max()) < BOUND * float(exact.abs().max())


@torch.inference_mode()
def test_many_texts_are_computed_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [24] * 50 + [7] * 3
    packed, parts = packed_of(lengths), batch(lengths)
    whole = BatchedAttention(Scratch())(*parts, packed).clone()
    monkeypatch.setattr(attention, "SCORES", 24 * 24 * H * 4)
    some, seen = BatchedAttention(Scratch()), []
    texts = some.texts
    monkeypatch.setattr(some, "texts", lambda q, k, v, result: (seen.append(len(q)), texts(q, k, v, result)))
    assert torch.equal(some(*parts, packed), whole)
    assert seen == [4] * 12 + [2, 3]


@torch.inference_mode()
def test_long_texts_are_left_to_the_fused_kernel_which_holds_no_scores() -> None:
    for S, fused in ((attention.LONGEST, False), (attention.LONGEST + 1, True)):
        scratch = Scratch()
        packed, parts = packed_of([S]), batch([S])
        got, exact = BatchedAttention(scratch)(*parts, packed), grouped_attention(*parts, packed)
        assert float((got - exact).abs().max()) < BOUND * float(exact.abs().max())
        assert (("scores", torch.float32) not in scratch.kept) == fused


@torch.inference_mode()
def test_in_bfloat16_it_is_computed_in_float32_and_rounded_once() -> None:
    packed, parts = packed_of([24, 9, 9]), batch([24, 9, 9], torch.bfloat16)
    exact = grouped_attention(*(part.float() for part in parts), packed)
    for attend in (grouped_attention, BatchedAttention(Scratch())):
        assert torch.equal(attend(*parts, packed), attend(*(part.float() for part in parts), packed).bfloat16())
        assert float((attend(*parts, packed).float() - exact).abs().max()) < 2**-8 * float(exact.abs().max())


@torch.inference_mode()
def test_the_result_does_not_change_the_query_and_is_found_again_by_a_later_call() -> None:
    packed, (query, key, value) = packed_of([5, 5]), batch([5, 5])
    attend, before = BatchedAttention(Scratch()), query.clone()
    first = attend(query, key, value, packed).clone()
    assert torch.equal(attend(query, key, value, packed), first)
    assert torch.equal(query, before)


@pytest.mark.parametrize("width", [1, 2, 15, 16, 17, 24, 64])
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_softmax_is_that_of_torch_for_rows_of_any_width_and_large_numbers(width: int, size: float) -> None:
    scores = size * torch.randn(7, 5, width, generator=torch.Generator().manual_seed(width))
    exact = torch.softmax(scores.double(), dim=-1).float()
    assert torch.allclose(softmax(scores.clone(), out=torch.empty_like(scores)), exact, rtol=1e-5, atol=1e-7)


def test_a_score_that_is_not_finite_reaches_the_result() -> None:
    for width in (8, 24):
        scores = torch.zeros(1, 2, width)
        scores[0, 1, 3] = torch.nan
        weights = softmax(scores, out=torch.empty_like(scores))
        assert bool(weights[0, 0].isfinite().all()) and bool(weights[0, 1].isnan().all())


def test_an_x86_cpu_takes_batched_products_and_others_the_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    for machine, batched in (("x86_64", True), ("AMD64", True), ("arm64", False), ("aarch64", False)):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        for dtype in (torch.float32, torch.bfloat16):
            chosen = choose_attention(dtype, CPU, Scratch())
            assert isinstance(chosen, BatchedAttention) == batched
            assert batched or chosen is grouped_attention


@torch.inference_mode()
def test_the_comparison_finds_a_scale_that_is_forgotten_and_a_head_that_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed, parts = packed_of([24, 9, 9]), batch([24, 9, 9])
    exact = grouped_attention(*parts, packed)

    def away() -> float:
        return float((BatchedAttention(Scratch())(*parts, packed) - exact).abs().max() / exact.abs().max())

    assert away() < BOUND
    heads = BatchedAttention.heads
    with monkeypatch.context() as changed:
        changed.setattr(
            BatchedAttention,
            "heads",
            lambda self, name, x: heads(self, name, x.roll(1, dims=2)) if name == "k" else heads(self, name, x),
        )
        assert away() > 1000 * BOUND
    with monkeypatch.context() as changed:
        changed.setattr(
            BatchedAttention, "heads", lambda self, name, x: heads(self, name, x * 1.1 if name == "q" else x)
        )
        assert away() > 1000 * BOUND
