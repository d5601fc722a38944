"""The token table's gradient: what autograd would give, in memory that is kept and never shared with who holds it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from minibert.kernels import table
from minibert.kernels.table import look_up

V, D = 40, 6
IDS = torch.tensor([3, 7, 3, 0, 12, 7, 7])


@pytest.fixture
def embedding() -> nn.Embedding:
    return nn.Embedding(V, D, padding_idx=0)


def learn(embedding: nn.Embedding, ids: Tensor, plain: bool = False) -> Tensor:
    """A backward pass whose gradient differs in every place; the gradient."""
    x = embedding(ids) if plain else look_up(ids, embedding.weight, embedding.padding_idx)
    (x * torch.arange(x.numel()).view_as(x)).sum().backward()
    assert embedding.weight.grad is not None
    return embedding.weight.grad


def test_vectors_and_gradient_are_those_of_autograd_padding_left_out(embedding: nn.Embedding) -> None:
    twin = copy.deepcopy(embedding)
    assert torch.equal(look_up(IDS, embedding.weight, 0), twin(IDS))
    assert look_up(IDS.view(1, -1), embedding.weight).shape == (1, len(IDS), D)
    assert torch.equal(learn(embedding, IDS), learn(twin, IDS, plain=True))
    assert not embedding.weight.grad[0].any()  # type: ignore[index]  # [PAD]
    assert learn(nn.Embedding(V, D), IDS)[0].any()  # a table without padding learns from id 0


def test_gradients_of_several_passes_are_added_up(embedding: nn.Embedding) -> None:
    twin = copy.deepcopy(embedding)
    for ids in (IDS, IDS.flip(0), IDS[:3]):
        learn(embedding, ids), learn(twin, ids, plain=True)
    assert torch.allclose(embedding.weight.grad, twin.weight.grad)  # type: ignore[arg-type]


def test_the_next_step_begins_from_zeros_in_the_same_memory(embedding: nn.Embedding) -> None:
    place = learn(embedding, IDS).data_ptr()
    embedding.weight.grad *= 3  # type: ignore[operator]  # such as clipping
    embedding.zero_grad(set_to_none=True)
    twin = copy.deepcopy(embedding)
    again = learn(embedding, IDS[:2])
    assert again.data_ptr() == place
    assert torch.equal(again, learn(twin, IDS[:2], plain=True))


def test_a_gradient_that_somebody_holds_is_not_overwritten(embedding: nn.Embedding) -> None:
    held = learn(embedding, IDS)
    before = held.clone()
    embedding.zero_grad(set_to_none=True)
    learn(embedding, IDS[:1])
    assert torch.equal(held, before)
    assert embedding.weight.grad is not held


def test_a_table_that_is_read_in_other_ways_too_has_the_sum_of_all_gradients(embedding: nn.Embedding) -> None:
    twin, x = copy.deepcopy(embedding), torch.randn(3, D)
    for _ in range(3):  # such as the decoder of a masked LM, which is the same table
        for one, found in ((embedding, look_up(IDS, embedding.weight, 0)), (twin, twin(IDS))):
            one.zero_grad(set_to_none=True)
            ((x @ one.weight.T).square().sum() + found.square().sum()).backward()
        assert torch.allclose(embedding.weight.grad, twin.weight.grad, rtol=1e-6)  # type: ignore[arg-type]


def test_a_table_of_another_dtype_has_a_gradient_of_its_own(embedding: nn.Embedding) -> None:
    learn(embedding, IDS)
    embedding.zero_grad(set_to_none=True)
    assert learn(embedding.double(), IDS).dtype == torch.float64


def test_it_is_done_for_large_tables_that_are_trained_by_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LARGE", V * D)
    weight = nn.Embedding(V, D).weight
    assert table.worth_it(weight)
    assert not table.worth_it(nn.Embedding(V - 1, D).weight)
    assert not table.worth_it(weight * 1)  # no leaf: its gradient is not kept
    assert not table.worth_it(weight.detach())
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert not table.worth_it(weight)


def test_what_is_kept_goes_with_its_table() -> None:
    before = len(table.KEPT)
    embedding = nn.Embedding(V, D)
    learn(embedding, IDS)
    assert len(table.KEPT) == before + 1
    del embedding
    assert len(table.KEPT) == before
