"""The packed step: the loss and every gradient of the readable one, on every task head, on real and random batches.

Each mistake that packing invites is made on purpose: the comparison must catch it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import HEADS, every_head
from torch import Tensor, nn
from torch.nn import functional as F
from training import CLOSE, WIDTH, Found, batch_of, lengths_of

import minibert
from minibert.families.base import Family
from minibert.families.bert import BERT
from minibert.families.distilbert import DISTILBERT
from minibert.heads import Head
from minibert.losses import IGNORED
from minibert.model import Embeddings
from minibert.train import packed
from minibert.train.batches import Batch
from minibert.train.loop import packed_loss, readable_loss
from minibert.train.packed import Group, PackedBatch

EXACT = 1e-12  # in float64, where rounding is far smaller than any mistake
CAUGHT = 1e-2  # the smallest difference that a mistake must cause: far beyond any rounding
pytestmark = pytest.mark.usefixtures("one_thread", "small_groups")


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows make several groups, and few tokens are padded to a bucket."""
    monkeypatch.setattr(packed, "GROUP_ROWS", 2)
    monkeypatch.setattr(packed, "PADDED_FROM", 3)
    monkeypatch.setattr(packed, "SIGNIFICANT_DIGITS", 2)


@pytest.fixture
def model(written: Callable[..., tuple[Path, Any]]) -> Callable[..., Head]:
    """A random model by family and task head, in eval mode."""
    return lambda family, head, **changes: minibert.load(written(family, head, **changes)[0], head=head)


def apart(model: Head, batch: Batch) -> float:
    """The largest relative difference of the packed loss and gradients from the readable ones."""
    return max(Found.of(packed_loss, model, batch).apart(Found.of(readable_loss, model, batch)).values())


def test_numbers_of_rows_are_few_and_never_much_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the sizes of real batches
    sizes = {T: len(packed.pad_to_bucket(torch.zeros(T, 1))) for T in range(1, 5000)}
    assert all(T <= size <= max(T, 1.07 * T + 1) for T, size in sizes.items())
    assert len({size for T, size in sizes.items() if 1000 <= T < 2000}) <= 17
    assert all(sizes[T] == T for T in range(1, 256))


# ---------------------------------------------------------------------------------------------------------------
# Equal with dropout off


@pytest.mark.slow
def test_loss_and_gradients_of_a_real_checkpoint_are_those_of_the_readable_step(minilm: Path) -> None:
    torch.manual_seed(0)
    model = minibert.load(minilm, head="sequence-classification", new_head=True, num_labels=3)
    batch = batch_of("sequence-classification", [7, 40, 128, 3, 61, 12, 12])
    found = Found.of(packed_loss, model, batch)
    assert len(found.gradients) == sum(1 for _ in model.parameters())
    assert max(found.apart(Found.of(readable_loss, model, batch)).values()) < CLOSE


@every_head
def test_loss_and_gradients_of_any_lengths_are_those_of_the_readable_step(
    family: Family, head: str, model: Callable[..., Head]
) -> None:
    """In float64 they agree to the last digits: nothing is left out that reaches the loss."""
    made = model(family, head).double()
    for seed, lengths in enumerate(([5, 5, 5], [2], [WIDTH], [1, 2, 1, WIDTH, 3, 9, 9], [10, 1, 4, 6])):
        assert apart(made, batch_of(head, lengths, seed, family=family)) < EXACT, lengths


@pytest.mark.parametrize("kind", ["single_label_classification", "multi_label_classification", "regression"])
@pytest.mark.parametrize("family", [BERT, DISTILBERT], ids=["bert", "distilbert"])
def test_all_losses_of_texts_are_those_of_the_readable_step(
    kind: str, family: Family, model: Callable[..., Head]
) -> None:
    made = model(family, "sequence-classification", problem_type=kind, num_labels=1 if kind == "regression" else 3)
    assert apart(made, batch_of("sequence-classification", lengths_of(6), kind=kind)) < CLOSE


@pytest.mark.parametrize("head", ["sequence-classification", "token-classification"])
def test_only_the_tokens_that_are_read_pass_the_last_layer(
    head: str, model: Callable[..., Head], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "PADDED_FROM", 10**9)
    seen: list[int] = []
    batch, made = batch_of(head, [3, WIDTH, 5]), model(BERT, head)
    for layer in made.encoder.layers:
        layer.feed_forward.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    packed_loss(made, batch)
    labelled = int((batch.labels["labels"] != IGNORED).sum())
    assert seen == [batch.tokens, 3 if head == "sequence-classification" else labelled]


# ---------------------------------------------------------------------------------------------------------------
# Mistakes on purpose


def attend_differently(patch: pytest.MonkeyPatch, change: Callable[[Group], Group], queries_too: bool = False) -> None:
    """Keys and values are read through changed groups."""
    original = packed.attend

    def attend(attention: Any, x: Tensor, groups: Sequence[Group], queries: Any) -> Tensor:
        if queries is None and queries_too:
            queries = torch.arange(sum(group.tokens for group in groups)), groups
        return original(attention, x, [change(group) for group in groups], queries)

    patch.setattr(packed, "attend", attend)


def masks_become(change: Callable[[Tensor], Tensor | None]) -> Callable[[pytest.MonkeyPatch], None]:
    """The masks of all groups are changed."""
    return lambda patch: attend_differently(
        patch, lambda one: one if one.mask is None else replace(one, mask=change(one.mask.clone()))
    )


def rows_see_each_other(patch: pytest.MonkeyPatch) -> None:
    """The keys and values of a row are those of another row of its group."""

    def turned(group: Group) -> Group:
        cells = torch.arange(group.tokens) if group.cells is None else group.cells
        mask = None if group.mask is None else group.mask.flip(0)
        row, column = group.rows - 1 - cells // group.width, cells % group.width
        return replace(group, cells=row * group.width + column, mask=mask)

    attend_differently(patch, turned, queries_too=True)


def positions_run_on(patch: pytest.MonkeyPatch) -> None:
    """The tokens are counted through the batch, as far as there are positions."""
    patch.setattr(Embeddings, "positions", lambda self, ids: (torch.arange(ids.numel()) % (WIDTH - 1)).view_as(ids))


def segments_forgotten(patch: pytest.MonkeyPatch) -> None:
    """All tokens are of the first text."""
    original = packed.embed
    patch.setattr(packed, "embed", lambda model, one: original(model, replace(one, segments=one.segments * 0)))


def another_token_is_read(patch: pytest.MonkeyPatch) -> None:
    """The last layer computes the token after the one that is read."""
    original = packed.encode

    def encode(encoder: Any, batch: PackedBatch) -> Tensor:
        if batch.queries is None:
            return original(encoder, batch)
        tokens, groups = batch.queries
        return original(encoder, replace(batch, queries=((tokens + 1).clamp(max=len(batch.ids) - 1), groups)))

    patch.setattr(packed, "encode", encode)


def states_out_of_order(patch: pytest.MonkeyPatch) -> None:
    """The states stay in the order of the groups."""
    argsort = Tensor.argsort
    patch.setattr(Tensor, "argsort", lambda x, **how: argsort(x, **how) if how else torch.arange(len(x)))


MISTAKES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "padding is attended to": masks_become(lambda mask: None),
    "masks one token too long": masks_become(lambda mask: mask | mask.roll(1, dims=-1)),
    "last token of shorter rows masked": masks_become(lambda mask: mask & mask.roll(-1, dims=-1)),
    "positions run on": positions_run_on,
    "segments forgotten": segments_forgotten,
    "rows see each other": rows_see_each_other,
    "another token is read": another_token_is_read,
    "states out of order": states_out_of_order,
}
HARMLESS = {  # by mistake: for which task heads it changes nothing
    "another token is read": ("question-answering", "replaced-token-detection"),  # all tokens: there are no queries
    "states out of order": ("question-answering", "next-sentence"),  # one group; labels that are alike in either order
}


@every_head
def test_a_mistake_in_packing_and_labels_of_another_batch_are_caught(
    family: Family, head: str, model: Callable[..., Head], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, batch = model(family, head), batch_of(head, [3, 7, WIDTH, 5], family=family)
    right = Found.of(readable_loss, made, batch)
    assert max(Found.of(packed_loss, made, batch).apart(right).values()) < CLOSE
    other = replace(batch, labels=batch_of(head, [3, 7, WIDTH, 5], 4, family=family).labels)
    assert max(Found.of(packed_loss, made, other).apart(right).values()) > CAUGHT
    for name, mistake in MISTAKES.items():
        if head not in HARMLESS.get(name, ()) and (family.has_segments or name != "segments forgotten"):
            with monkeypatch.context() as patch:
                mistake(patch)
                assert max(Found.of(packed_loss, made, batch).apart(right).values()) > CAUGHT, name


def test_a_gradient_that_is_missing_is_caught(model: Callable[..., Head]) -> None:
    right = Found.of(readable_loss, model(BERT, "masked-lm"), batch_of("masked-lm", [3, WIDTH]))
    lost = Found(right.loss, {name: x for name, x in right.gradients.items() if name != "decoder.bias"})
    assert lost.apart(right)["decoder.bias"] == right.apart(lost)["decoder.bias"] == float("inf")


# ---------------------------------------------------------------------------------------------------------------
# Dropout


@pytest.mark.parametrize(
    ("family", "head"),
    [case for case in HEADS if case[0] is BERT or case[1] == "sequence-classification"],
    ids=lambda value: getattr(value, "name", value),
)
def test_dropout_is_applied_where_the_model_has_it_and_to_no_padding(
    family: Family, head: str, model: Callable[..., Head], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One place at a time with a dropout that is not random, the others off: both steps change alike."""
    monkeypatch.setattr(packed, "PADDED_FROM", 10**9)
    made, batch = model(family, head).train(), batch_of(head, [3, 7, WIDTH, 5], family=family)
    places = {name: module for name, module in made.named_modules() if isinstance(module, nn.Dropout)}
    assert len(places) >= 1 + 3 * len(made.encoder.layers)
    tokens, rows = batch.input_ids.numel() if "all" in made.reads else batch.tokens, list[int]()

    def drop_every_second(module: nn.Dropout, x: Tensor) -> Tensor:
        rows.append(x.shape[:-1].numel())
        return x * (torch.arange(x.shape[-1]) % 2) * 2 if module.p == 0.5 else F.dropout(x, module.p)

    monkeypatch.setattr(nn.Dropout, "forward", drop_every_second)
    for module in places.values():
        module.p = 0.0
    without = Found.of(packed_loss, made, batch)
    for name, module in places.items():
        module.p = 1.0 if name.endswith("attention.dropout") else 0.5  # the former no module computes: all is dropped
        rows.clear()
        found = Found.of(packed_loss, made, batch)
        assert max(rows, default=0) <= tokens, name
        assert max(found.apart(Found.of(readable_loss, made, batch)).values()) < CLOSE, name
        assert max(found.apart(without).values()) > CAUGHT, name
        module.p = 0.0
