"""The packed step: the loss and every gradient of the readable one, on every task head, on real and random batches.

Each mistake that taking out the padding invites is made on purpose: the comparison must catch it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import HEADS, every_head, small_config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from training import CLOSE, REAL, WIDTH, Found, batch_of, lengths_of, real_examples

import minibert
from minibert.families.base import Family
from minibert.families.bert import BERT
from minibert.families.distilbert import DISTILBERT
from minibert.heads import HEAD_CLASSES, Head, QuestionAnswering
from minibert.losses import IGNORED
from minibert.model import Embeddings, eager_attention
from minibert.parity.checkpoints import randomise
from minibert.train import packed
from minibert.train.batches import Batch, Batches
from minibert.train.loop import packed_loss, readable_loss

EXACT = 1e-12  # in float64, where only what is computed differently would show
CAUGHT = 1e-2  # what a mistake must be apart at least: far beyond any rounding
Written = Callable[..., tuple[Path, Any]]
pytestmark = pytest.mark.usefixtures("one_thread", "small_groups")
every_kind = pytest.mark.parametrize(
    "kind", ["single_label_classification", "multi_label_classification", "regression"], ids=str
)


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows make several groups, and few tokens are filled up."""
    monkeypatch.setattr(packed, "TOGETHER", 2)
    monkeypatch.setattr(packed, "FILLED_FROM", 3)
    monkeypatch.setattr(packed, "FINE", 2)


def test_numbers_of_rows_are_few_and_never_much_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the sizes of real batches
    sizes = {T: len(packed.filled(torch.zeros(T, 1))) for T in range(1, 5000)}
    assert all(T <= size <= max(T, 1.07 * T + 1) for T, size in sizes.items())
    assert len({size for T, size in sizes.items() if 1000 <= T < 2000}) <= 17
    assert all(sizes[T] == T for T in range(1, 256))


@pytest.fixture
def model(written: Written) -> Callable[..., Head]:
    """A random model by family and task head, in eval mode."""

    def model(family: Family, head: str, **changes: Any) -> Head:
        return minibert.load(written(family, head, **changes)[0], head=head)

    return model


def apart(model: Head, batch: Batch) -> float:
    """The largest difference of the packed loss or gradient from the readable one, as a share."""
    return max(Found.of(packed_loss, model, batch).apart(Found.of(readable_loss, model, batch)).values())


# ---------------------------------------------------------------------------------------------------------------
# Equal with dropout off


@pytest.mark.parametrize("corpus", REAL)
def test_loss_and_gradients_of_real_batches_are_those_of_the_readable_step(corpus: str, minilm: Path) -> None:
    head, labels, rows = REAL[corpus]
    made = real_examples(corpus, minilm, rows)
    torch.manual_seed(0)
    model = minibert.load(minilm, head=head, new_head=True, num_labels=labels)
    batch = Batches(made, rows, seed=0, pad_id=0).of_rows(range(rows))
    assert batch.tokens < batch.input_ids.numel()  # there is padding to be taken out
    found = Found.of(packed_loss, model, batch)
    assert len(found.gradients) == sum(1 for _ in model.parameters())
    assert max(found.apart(Found.of(readable_loss, model, batch)).values()) < CLOSE


lengths = st.lists(st.integers(1, WIDTH), min_size=1, max_size=7)


@every_head
def test_loss_and_gradients_of_any_lengths_are_those_of_the_readable_step(
    family: Family, head: str, model: Callable[..., Head]
) -> None:
    """In float64 they agree to the last digits: nothing is left out that reaches the loss; in float32 within 1e-5."""
    made = model(family, head)

    @settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(lengths, st.integers(0, 2**16))
    def check(lengths: list[int], seed: int) -> None:
        batch = batch_of(head, [*lengths, WIDTH], seed, family=family)
        assert apart(made, batch) < CLOSE
        made.double()
        try:
            assert apart(made, batch) < EXACT
        finally:
            made.float()

    check()


@every_kind
@pytest.mark.parametrize("family", [BERT, DISTILBERT], ids=["bert", "distilbert"])
def test_all_losses_of_texts_are_those_of_the_readable_step(
    kind: str, family: Family, model: Callable[..., Head]
) -> None:
    made = model(family, "sequence-classification", problem_type=kind, num_labels=1 if kind == "regression" else 3)
    assert apart(made, batch_of("sequence-classification", lengths_of(6), kind=kind)) < CLOSE


@pytest.mark.parametrize(("family", "head"), HEADS[:1] + HEADS[3:6], ids=lambda value: getattr(value, "name", value))
@pytest.mark.parametrize("lengths", [[5, 5, 5], [2], [WIDTH], [2, 2]], ids=str)
def test_batches_without_padding_and_of_one_text_are_exact_too(
    lengths: list[int], family: Family, head: str, model: Callable[..., Head]
) -> None:
    assert apart(model(family, head).double(), batch_of(head, lengths, family=family)) < EXACT


@pytest.mark.parametrize(
    ("family", "head"),
    [case for case in HEADS if case[0] in (BERT, DISTILBERT)],
    ids=lambda value: getattr(value, "name", value),
)
def test_what_the_relatives_changed_is_packed_too(family: Family, head: str) -> None:
    """Positions that begin later, tables of another width, layers that share their weights."""
    changes = {"first_position": 2, "max_position_embeddings": WIDTH + 2, "embedding_size": 16, "num_hidden_layers": 3}
    config = replace(
        small_config(family),
        **changes,
        shared_layers=(0, 1, 0),
        id2label=dict(enumerate("ab" if head == "question-answering" else "abc")),
    )
    made = HEAD_CLASSES[head](config).eval()
    randomise(made, seed=1)
    assert len(made.encoder.layers) == 2
    assert apart(made.double(), batch_of(head, [3, 7, WIDTH, 5], family=family)) < EXACT


def test_what_stands_under_the_mask_does_not_matter(model: Callable[..., Head]) -> None:
    made, batch = model(BERT, "token-classification"), batch_of("token-classification", [3, WIDTH, 5])
    before = packed_loss(made, batch)
    batch.input_ids[batch.attention_mask == 0] = 77
    assert torch.equal(packed_loss(made, batch), before)


def test_only_the_tokens_that_are_read_pass_the_last_layer(
    model: Callable[..., Head], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "FILLED_FROM", 10**9)  # rows of zeros are no tokens
    seen: list[int] = []
    batch = batch_of("sequence-classification", [3, WIDTH, 5])
    made = model(BERT, "sequence-classification")
    for layer in made.encoder.layers:
        layer.feed_forward.register_forward_hook(lambda module, given, output: seen.append(len(given[0])))
    packed_loss(made, batch)
    assert seen == [batch.tokens, 3]
    seen.clear()
    batch = batch_of("token-classification", [3, WIDTH, 5])
    made = model(BERT, "token-classification")
    for layer in made.encoder.layers:
        layer.feed_forward.register_forward_hook(lambda module, given, output: seen.append(len(given[0])))
    packed_loss(made, batch)
    assert seen == [batch.tokens, int((batch.labels["labels"] != IGNORED).sum())]


# ---------------------------------------------------------------------------------------------------------------
# Mistakes on purpose


def masks_become(patch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor | None]) -> None:
    """The masks of all groups are other ones."""
    original = packed.Tokens.of

    def of(batch: Batch, every_place: bool) -> Any:
        tokens = original(batch, every_place)
        return replace(tokens, masks=[None if mask is None else change(mask.clone()) for mask in tokens.masks])

    patch.setattr(packed.Tokens, "of", of)


def no_mask(patch: pytest.MonkeyPatch) -> None:
    """Padding is attended to."""
    masks_become(patch, lambda mask: None)


def shifted_mask(patch: pytest.MonkeyPatch) -> None:
    """The mask of each row is one token too long."""
    masks_become(patch, lambda mask: mask | mask.roll(1, dims=-1))


def last_token_dropped(patch: pytest.MonkeyPatch) -> None:
    """No one attends to the last token of any row that is shorter than another."""
    masks_become(patch, lambda mask: mask & mask.roll(-1, dims=-1))


def a_group_too_narrow(patch: pytest.MonkeyPatch) -> None:
    """The last rows of a group stand where those of another do."""
    original = packed.Groups.parts

    def parts(groups: Any, row: Tensor, column: Tensor, width: int | None = None) -> Any:
        return original(replace(groups, slot=groups.slot * 0 + groups.slot.min()), row, column, width)

    patch.setattr(packed.Groups, "parts", parts)


def positions_run_on(patch: pytest.MonkeyPatch) -> None:
    """The tokens are counted through the batch, as far as there are positions."""
    counted: Any = lambda self, ids: (torch.arange(ids.numel()) % (WIDTH - 1)).view_as(ids)  # noqa: E731  # a method
    patch.setattr(Embeddings, "positions", counted)


def segments_forgotten(patch: pytest.MonkeyPatch) -> None:
    """All tokens are of the first text."""
    original = packed.embed
    patch.setattr(
        packed, "embed", lambda embeddings, tokens: original(embeddings, replace(tokens, segments=tokens.segments * 0))
    )


def without_residual(which: str) -> Callable[[pytest.MonkeyPatch], None]:
    """A layer's sum without what it is added to."""

    def layer_step(layer: Any, x: Tensor, tokens: Any, wanted: Any) -> Tensor:
        attended = packed.attend(layer.attention, x, tokens, wanted)
        x = x if wanted is None else packed.filled(x.index_select(0, wanted.index))
        x = layer.attention_norm(layer.attention_dropout(attended) + (0 if which == "attention" else x))
        return layer.feed_forward_norm(layer.feed_forward(x) + (0 if which == "feed_forward" else x))

    def change(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(packed, "layer_step", layer_step)

    change.__name__ = f"residual_of_{which}_forgotten"
    return change


def another_token_is_read(patch: pytest.MonkeyPatch) -> None:
    """The last layer asks for the token after the one that is wanted."""

    def wanted_tokens(tokens: Any, labels: Tensor | None, first: bool) -> Any:
        wanted = original(tokens, labels, first)
        return replace(wanted, index=(wanted.index + 1).clamp(max=len(tokens.ids) - 1))

    original = packed.wanted_tokens
    patch.setattr(packed, "wanted_tokens", wanted_tokens)


def rows_see_each_other(patch: pytest.MonkeyPatch) -> None:
    """In the last layer the keys of a row stand where those of another row of its group do."""
    original = packed.attend

    def turned(part: Any) -> Any:
        width, last = part.places.width, part.places.rows - 1
        index = (last - part.places.index // width) * width + part.places.index % width
        return replace(part, places=replace(part.places, index=index))

    def attend(attention: Any, x: Tensor, tokens: Any, wanted: Any) -> Tensor:
        if wanted is not None:
            tokens = replace(tokens, parts=[turned(part) for part in tokens.parts])
        return original(attention, x, tokens, wanted)

    patch.setattr(packed, "attend", attend)


def tokens_out_of_order(patch: pytest.MonkeyPatch) -> None:
    """What was computed group by group stays in the order of the groups."""
    patch.setattr(packed, "in_order", lambda contexts, parts: torch.cat(contexts))


MISTAKES = [
    no_mask,
    shifted_mask,
    last_token_dropped,
    a_group_too_narrow,
    tokens_out_of_order,
    positions_run_on,
    segments_forgotten,
    without_residual("attention"),
    without_residual("feed_forward"),
]
LAST_LAYER = [another_token_is_read, rows_see_each_other]
WHOLE = ("question-answering", "replaced-token-detection")  # which read every token of the last layer
CASES = [
    (mistake, family, head)
    for family, head in HEADS
    for mistake in MISTAKES + (LAST_LAYER if head not in WHOLE else [])
    if not (mistake is segments_forgotten and not family.has_segments)
    if not (mistake in (a_group_too_narrow, tokens_out_of_order) and head == "question-answering")  # one group
]


@pytest.mark.parametrize(
    ("mistake", "family", "head"), CASES, ids=[f"{m.__name__}-{family.name}-{head}" for m, family, head in CASES]
)
def test_a_mistake_in_packing_is_caught(
    mistake: Any, family: Family, head: str, model: Callable[..., Head], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, batch = model(family, head), batch_of(head, [3, 7, WIDTH, 5], family=family)
    right = Found.of(readable_loss, made, batch)
    assert max(Found.of(packed_loss, made, batch).apart(right).values()) < CLOSE
    mistake(monkeypatch)
    assert max(Found.of(packed_loss, made, batch).apart(right).values()) > CAUGHT


@every_head
def test_labels_shifted_by_one_are_caught(family: Family, head: str, model: Callable[..., Head]) -> None:
    made, batch = model(family, head), batch_of(head, [3, 7, WIDTH, 5], seed=2, family=family)
    shifted = {name: labels.roll(1, dims=-1) for name, labels in batch.labels.items()}
    if head == "replaced-token-detection":  # of which padding must not have one
        shifted = {name: 1 - labels for name, labels in batch.labels.items()}
    wrong = Found.of(packed_loss, made, replace(batch, labels=shifted))
    assert max(wrong.apart(Found.of(readable_loss, made, batch)).values()) > CAUGHT


def test_a_gradient_that_is_missing_is_caught(model: Callable[..., Head]) -> None:
    made, batch = model(BERT, "masked-lm"), batch_of("masked-lm", [3, WIDTH])
    right = Found.of(readable_loss, made, batch)
    lost = Found(right.loss, {name: x for name, x in right.gradients.items() if name != "decoder.bias"})
    assert lost.apart(right)["decoder.bias"] == float("inf")
    assert right.apart(lost)["decoder.bias"] == float("inf")


# ---------------------------------------------------------------------------------------------------------------
# Dropout


def dropouts(model: Head) -> dict[str, nn.Dropout]:
    """Every dropout by its name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Dropout)}


def every_second(module: nn.Module, given: tuple[Tensor], output: Tensor) -> Tensor:
    """In the place of a dropout: features in turn are zero and doubled, whichever row a token stands in."""
    return given[0] * (torch.arange(given[0].shape[-1]) % 2) * 2


@every_head
def test_dropout_is_applied_where_the_model_has_it(family: Family, head: str, model: Callable[..., Head]) -> None:
    """One place at a time with a dropout that is not random, the others off: both steps change alike."""
    made, batch = model(family, head).train(), batch_of(head, [3, 7, WIDTH, 5], family=family)
    places = dropouts(made)
    assert len(places) >= 1 + 3 * len(made.encoder.layers)
    for module in places.values():
        module.p = 0.0
    without = Found.of(packed_loss, made, batch)
    for name, module in places.items():
        of_attention = name.endswith("attention.dropout")  # which no module computes: there, all is dropped
        module.p = float(of_attention)
        hook = module.register_forward_hook(every_second if not of_attention else lambda *given: None)
        found = Found.of(packed_loss, made, batch)
        assert max(found.apart(Found.of(readable_loss, made, batch)).values()) < CLOSE, name
        assert max(found.apart(without).values()) > CAUGHT, name
        hook.remove()
        module.p = 0.0


@every_head
def test_each_dropout_sees_each_token_once_and_no_padding(
    family: Family, head: str, model: Callable[..., Head], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "FILLED_FROM", 10**9)  # rows of zeros are no tokens
    made, batch = model(family, head).train(), batch_of(head, [3, 7, WIDTH, 5], family=family)
    seen: dict[str, list[int]] = {}
    for name, module in dropouts(made).items():
        module.register_forward_hook(
            lambda module, given, output, name=name: seen.setdefault(name, []).append(given[0].shape[:-1].numel())
        )
    packed_loss(made, batch)
    assert set(seen) == {name for name in dropouts(made) if not name.endswith("attention.dropout")}
    tokens = batch.input_ids.numel() if isinstance(made, QuestionAnswering) else batch.tokens  # padding is scored there
    for name, counts in seen.items():
        twice = name == "dropout" and getattr(made, "dropout_before", False)
        uses = len(made.config.shared_layers) // len(made.encoder.layers) if "layers" in name else 1 + twice
        assert len(counts) == uses, name
        assert max(counts) <= tokens
        if "layers.1" not in name and name.startswith("encoder"):
            assert counts[0] == tokens, name


def many(batch: Batch, copies: int) -> Batch:
    """The same texts again and again: each draws dropout of its own."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    tensors = {name: getattr(batch, name).repeat(copies, 1) for name in names}
    labels = {name: value.repeat(copies, *[1] * (value.dim() - 1)) for name, value in batch.labels.items()}
    return replace(batch, **tensors, labels=labels, rows=batch.rows * copies)


def standard_errors(one: Tensor, other: Tensor) -> float:
    """How many standard errors the means of two samples, (draws, ...), are apart at most."""
    error = (one.var(dim=0) / len(one) + other.var(dim=0) / len(other)).sqrt()
    return float(((one.mean(dim=0) - other.mean(dim=0)).abs() / error).max())


@pytest.mark.parametrize(
    ("family", "head"), [(BERT, "sequence-classification"), (BERT, "masked-lm"), (DISTILBERT, "token-classification")]
)
def test_with_dropout_on_the_losses_are_equal_in_distribution(
    family: Family, head: str, model: Callable[..., Head]
) -> None:
    made, batch = model(family, head).train(), many(batch_of(head, [3, 7, WIDTH, 5], family=family), 20)
    for module in dropouts(made).values():
        module.p = 0.4
    torch.manual_seed(1)
    with torch.no_grad():
        found, right = (
            torch.stack([loss_of(made, batch) for _ in range(50)]) for loss_of in (packed_loss, readable_loss)
        )
        made.eval()
        without = readable_loss(made, batch)
    assert standard_errors(found, right) < 4
    assert (found - without).abs().min() > 0


@pytest.mark.parametrize("wanted", [False, True], ids=["all tokens", "wanted tokens"])
def test_dropout_of_attention_has_the_mean_and_the_spread_of_the_readable_one(
    wanted: bool, model: Callable[..., Head]
) -> None:
    """It is the one dropout that no module computes. Half as much of it would show in the spread."""
    attention = model(BERT, "sequence-classification").train().encoder.layers[0].attention
    batch = many(batch_of("sequence-classification", [6, 4]), 3000)
    tokens = packed.Tokens.of(batch, every_place=False)
    x = torch.randn(10, 24, generator=torch.Generator().manual_seed(0)).repeat(3000, 1)  # (T,D), alike in each copy
    keep = batch.attention_mask.bool()[:, None, None, :]
    asked = packed.wanted_tokens(tokens, None, first=True) if wanted else None

    def moments(p: float, eager: bool) -> Tensor:
        attention.dropout.p = p
        with torch.no_grad():
            if eager:
                states = tokens.places.gather(attention(tokens.places.spread(x), keep, eager_attention)[0])
                states = states if asked is None else states[asked.index]
            else:
                states = packed.attend(attention, x, tokens, asked)[: len(x if asked is None else asked.index)]
        states = states.view(3000, -1)
        return torch.cat([states, (states - states.mean(dim=0)) ** 2], dim=1)

    torch.manual_seed(0)
    right = moments(0.4, eager=True)
    assert standard_errors(moments(0.4, eager=False), right) < 5  # of hundreds of numbers the one that is farthest
    assert standard_errors(moments(0.2, eager=False), right) > 10
    attention.eval()
    assert standard_errors(moments(0.4, eager=False), right) > 10
