"""Attention in a packed batch: every implementation gives the same context for every token."""

import platform
from collections.abc import Sequence
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minibert.kernels import attention
from minibert.kernels.attention import BatchedAttention, choose_attention, grouped_attention, softmax
from minibert.kernels.matmul import Workspace
from minibert.kernels.packing import PackedTexts, pack

CPU = torch.device("cpu")
H, W = 3, 8
BOUND = 5e-6


def inputs(lengths: Sequence[int], dtype: torch.dtype = torch.float32, first_only: bool = False) -> tuple[Tensor, ...]:
    """Query, key and value of texts of these lengths; with first_only the query of first tokens and extra rows."""
    packed = packed_of(lengths)
    random = torch.Generator().manual_seed(sum(lengths))
    query, key, value = torch.randn(len(packed.ids), 3, H, W, generator=random).to(dtype).unbind(dim=1)
    return packed.first_tokens(query) if first_only else query, key, value


def packed_of(lengths: Sequence[int], first_only: bool = False) -> PackedTexts:
    """Texts of these lengths; with first_only as the last layer sees them."""
    packed = pack([[0] * S for S in sorted(lengths, reverse=True)], CPU, first_only=first_only)
    return packed.last() if first_only else packed


def apart(lengths: Sequence[int], first_only: bool = False) -> float:
    """The largest relative difference of the batched products from the fused kernel."""
    packed, parts = packed_of(lengths, first_only), inputs(lengths, first_only=first_only)
    exact, got = grouped_attention(*parts, packed), BatchedAttention(Workspace())(*parts, packed)
    assert got.shape == exact.shape and got.dtype == exact.dtype
    return float((got - exact).abs().max() / exact.abs().max())


@settings(max_examples=60)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.booleans())
@torch.inference_mode()
def test_batched_products_give_what_the_fused_kernel_gives(lengths, first_only):
    assert apart(lengths, first_only) < BOUND


@torch.inference_mode()
def test_many_texts_are_computed_some_at_a_time(monkeypatch):
    lengths = [24] * 50 + [7] * 3
    packed, parts, attend = packed_of(lengths), inputs(lengths), BatchedAttention(Workspace())
    whole = attend(*parts, packed).clone()
    monkeypatch.setattr(attention, "MAX_SCORES", 24 * 24 * H * 4)
    watched = Mock(side_effect=attend.attend_texts)
    monkeypatch.setattr(attend, "attend_texts", watched)
    assert torch.equal(attend(*parts, packed), whole)
    assert [len(call.args[0]) for call in watched.mock_calls] == [4] * 12 + [2, 3]


@torch.inference_mode()
def test_long_texts_go_to_the_fused_kernel_which_stores_no_scores():
    for S, fused in ((attention.MAX_TOKENS, False), (attention.MAX_TOKENS + 1, True)):
        workspace = Workspace()
        BatchedAttention(workspace)(*inputs([S]), packed_of([S]))
        assert (("scores", torch.float32) not in workspace.buffers) == fused
        assert apart([S]) < BOUND


@torch.inference_mode()
def test_in_bfloat16_it_is_computed_in_float32_and_rounded_once():
    packed, parts = packed_of([24, 9, 9]), inputs([24, 9, 9], torch.bfloat16)
    exact = grouped_attention(*(part.float() for part in parts), packed)
    for attend in (grouped_attention, BatchedAttention(Workspace())):
        assert torch.equal(attend(*parts, packed), attend(*(part.float() for part in parts), packed).bfloat16())
        assert float((attend(*parts, packed).float() - exact).abs().max()) < 2**-8 * float(exact.abs().max())


@torch.inference_mode()
def test_a_call_does_not_change_the_query_nor_the_result_of_the_next():
    packed, (query, key, value) = packed_of([5, 5]), inputs([5, 5])
    attend, before = BatchedAttention(Workspace()), query.clone()
    first = attend(query, key, value, packed).clone()
    assert torch.equal(attend(query, key, value, packed), first)
    assert torch.equal(query, before)


@pytest.mark.parametrize("width", [1, 2, 15, 16, 17, 24, 64])
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_softmax_is_that_of_torch_for_rows_of_any_width_and_large_numbers(width, size):
    scores = size * torch.randn(7, 5, width, generator=torch.Generator().manual_seed(width))
    exact = torch.softmax(scores.double(), dim=-1).float()
    assert torch.allclose(softmax(scores.clone(), out=torch.empty_like(scores)), exact, rtol=1e-5, atol=1e-7)
    scores[0, 1, 0] = torch.nan  # reaches the result
    weights = softmax(scores, out=torch.empty_like(scores))
    assert bool(weights[0, 0].isfinite().all()) and bool(weights[0, 1].isnan().all())


def test_an_x86_cpu_takes_batched_products_and_others_the_fused_kernel(monkeypatch):
    for machine, batched in (("x86_64", True), ("AMD64", True), ("arm64", False), ("aarch64", False)):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        for dtype in (torch.float32, torch.bfloat16):
            chosen = choose_attention(dtype, CPU, 64, Workspace())
            assert isinstance(chosen, BatchedAttention) if batched else chosen is grouped_attention


@torch.inference_mode()
def test_the_comparison_finds_a_wrong_scale_and_a_wrong_head(monkeypatch):
    heads = BatchedAttention.heads
    for wrong, change in (("k", lambda x: x.roll(1, dims=2)), ("q", lambda x: x * 1.1)):
        with monkeypatch.context() as changed:
            changed.setattr(
                BatchedAttention,
                "heads",
                lambda self, name, x, wrong=wrong, change=change: heads(self, name, change(x) if name == wrong else x),
            )
            assert apart([24, 9, 9]) > 1000 * BOUND
