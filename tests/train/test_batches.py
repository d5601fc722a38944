"""Batches: every row once an epoch, padded on the right, in an order that seed and epoch decide, from anywhere on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training import CHOICES, batch_of, batches_of, examples

from minibert.losses import IGNORED
from minibert.tasks.base import Example
from minibert.train.batches import Batch, Batches, collate, order

counts = st.integers(1, 40)
seeds = st.integers(0, 2**31)
lengths = st.lists(st.integers(1, 11), min_size=1, max_size=12)


def rows_of(batches: Sequence[Batch]) -> list[int]:
    return [row for batch in batches for row in batch.rows]


def plain(count: int) -> list[Example]:
    return [Example([row], [0], {"labels": row}) for row in range(count)]


@given(counts, st.integers(1, 9), seeds)
def test_batches_per_epoch_has_each_row_once(count: int, batch_size: int, seed: int) -> None:
    batches = Batches(plain(count), batch_size, seed, pad_id=0)
    found = list(batches.epoch_batches(0))
    assert len(found) == batches.batches_per_epoch
    assert sorted(rows_of(found)) == list(range(count))
    assert all(len(batch.rows) == batch_size for batch in found[:-1])


@given(counts, st.integers(1, 9), seeds, st.integers(0, 3), st.data())
def test_an_epoch_that_begins_at_any_batch_is_the_rest_of_the_same_order(
    count: int, batch_size: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    batches = Batches(plain(count), batch_size, seed, pad_id=0)
    first = data.draw(st.integers(0, batches.batches_per_epoch))
    whole = [batch.rows for batch in batches.epoch_batches(epoch)]
    assert [batch.rows for batch in batches.epoch_batches(epoch, first)] == whole[first:]


def test_each_epoch_and_each_seed_has_an_order_of_its_own() -> None:
    found = [tuple(order(50, seed, epoch)) for seed in range(4) for epoch in range(4)]
    assert len(set(found)) == len(found)


def test_the_order_does_not_depend_on_what_drew_random_numbers_before_and_draws_none() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = order(50, 7, 2)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert order(50, 7, 2) == first


def test_the_first_place_goes_to_every_row_alike() -> None:
    """A permutation that is no fair one, such as one that shifts the rows, would show here."""
    seen = torch.bincount(torch.tensor([order(8, seed, 0)[0] for seed in range(1600)]), minlength=8)
    assert seen.min() > 140 and seen.max() < 260  # 200 each; four standard errors are 53


@given(lengths)
def test_padding_is_on_the_right_and_masked(lengths: list[int]) -> None:
    made = examples("token-classification", lengths)
    batch = collate(made, range(len(made)), pad_id=7)
    assert batch.input_ids.shape == (len(lengths), max(lengths))
    assert batch.tokens == sum(lengths)
    for row, (example, length) in enumerate(zip(made, lengths, strict=True)):
        assert batch.input_ids[row].tolist() == [*example.ids, *[7] * (max(lengths) - length)]
        assert batch.attention_mask[row].tolist() == [1] * length + [0] * (max(lengths) - length)
        assert batch.token_type_ids[row].tolist() == [*example.segments, *[0] * (max(lengths) - length)]
        assert batch.labels["labels"][row].tolist() == [*example.labels["labels"], *[IGNORED] * (max(lengths) - length)]


@pytest.mark.parametrize(
    ("values", "dtype", "shape"),
    [
        ([1, 0], torch.int64, (2,)),
        ([0.5, 1.0], torch.float32, (2,)),
        ([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]], torch.float32, (2, 3)),
        ([[1, 2], [3, IGNORED]], torch.int64, (2, 2)),
    ],
)
def test_labels_are_classes_numbers_several_of_a_text_or_those_of_tokens(
    values: list[object], dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    made = [Example([1, 2], [0, 0], {"labels": value}) for value in values]
    labels = collate(made, (0, 1), pad_id=0).labels["labels"]
    assert labels.dtype == dtype and tuple(labels.shape) == shape


def test_the_choices_of_a_question_stay_together_with_the_label_of_the_first() -> None:
    batches = batches_of("multiple-choice", 7, 3)
    assert batches.rows == 7
    for batch in batches.epoch_batches(1):
        assert len(batch.input_ids) == CHOICES * len(batch.rows)
        for place, row in enumerate(batch.rows):
            assert batch.labels["labels"][place] == batches.examples[row * CHOICES].labels["labels"]
            for choice in range(CHOICES):
                length = int(batch.attention_mask[place * CHOICES + choice].sum())
                ids = batch.input_ids[place * CHOICES + choice, :length].tolist()
                assert ids == batches.examples[row * CHOICES + choice].ids


def test_a_change_is_made_to_each_example_with_its_epoch_and_row() -> None:
    def change(example: Example, epoch: int, row: int) -> Example:
        return replace(example, ids=[100 * epoch + row])

    batches = Batches(plain(10), 4, 0, pad_id=0, augment=change)
    for epoch in range(2):
        for batch in batches.epoch_batches(epoch):
            assert batch.input_ids[:, 0].tolist() == [100 * epoch + row for row in batch.rows]


def test_a_batch_moves_to_another_device_whole() -> None:
    batch = batch_of("question-answering", [3, 5])
    moved = batch.to(torch.device("meta"))
    tensors = [moved.input_ids, moved.attention_mask, moved.token_type_ids, *moved.labels.values()]
    assert len(tensors) == 5 and all(tensor.is_meta for tensor in tensors)
    assert moved.rows == batch.rows
