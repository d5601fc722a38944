"""The packed step: the loss and every gradient of the readable one, on every task head, on random batches.

Each mistake that packing invites is made on purpose: the comparison must catch it. Logits of many examples are those of
the readable model too, and the states of a frozen encoder give the same training.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import HEADS, every_head
from support.training import CHOICES, CLOSE, WIDTH, Found, batch_of, examples, lengths_of
from support.words import labelled
from torch import Tensor, nn
from torch.nn import functional as F

import minibert
from minibert.families.bert import BERT
from minibert.families.distilbert import DISTILBERT
from minibert.families.roberta import RobertaEmbeddings
from minibert.heads import Head, MaskedLM, MultipleChoice, QuestionAnswering, Reads
from minibert.inputs import IGNORED
from minibert.kernels import packing
from minibert.model import Embeddings
from minibert.prediction import packed
from minibert.prediction.collate import ExampleBatch
from minibert.prediction.logits import States, can_be_kept, predict_logits, states_of
from minibert.tasks.base import Encoded, Example
from minibert.train import finetune, finetuning
from minibert.train.loop import packed_loss, readable_loss, set_train_mode

EXACT = 1e-12  # in float64, where rounding is far smaller than any mistake
CAUGHT = 1e-2  # the smallest difference that a mistake must cause: far beyond any rounding
pytestmark = pytest.mark.usefixtures("small_groups")


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows make several groups, and few tokens are padded to a bucket."""
    monkeypatch.setattr(packed, "GROUP_ROWS", 2)
    monkeypatch.setattr(packing, "PADDED_FROM", 3)
    monkeypatch.setattr(packing, "SIGNIFICANT_DIGITS", 2)


@pytest.fixture
def model(written: Callable[..., tuple[Path, Any]]) -> Callable[..., Head]:
    """A random model by family and task head, in eval mode."""
    return lambda family, head, **changes: minibert.load(written(family, head, **changes)[0], head=head)


def apart(model: Head, batch: ExampleBatch) -> float:
    """The largest relative difference of the packed loss and gradients from the readable ones."""
    return max(Found.of(packed_loss, model, batch).apart(Found.of(readable_loss, model, batch)).values())


def test_numbers_of_rows_are_few_and_never_much_larger(monkeypatch):
    monkeypatch.undo()  # the sizes of real batches
    sizes = {T: len(packing.padded(torch.zeros(T))) for T in range(1, 5000)}
    assert all(T <= size <= max(T, 1.07 * T + 1) for T, size in sizes.items())
    assert len({size for T, size in sizes.items() if 1000 <= T < 2000}) <= 17
    assert all(sizes[T] == T for T in range(1, 256))


# ---------------------------------------------------------------------------------------------------------------
# Equal with dropout off


@every_head
def test_loss_and_gradients_of_any_lengths_are_those_of_the_readable_step(family, head, model):
    """In float64 they agree to the last digits: nothing is left out that reaches the loss."""
    made = model(family, head).double()
    for seed, lengths in enumerate(([5, 5, 5], [2], [WIDTH], [1, 2, 1, WIDTH, 3, 9, 9], [10, 1, 4, 6])):
        assert apart(made, batch_of(head, lengths, seed, family=family)) < EXACT, lengths


@pytest.mark.parametrize("kind", ["single_label_classification", "multi_label_classification", "regression"])
@pytest.mark.parametrize("family", [BERT, DISTILBERT], ids=["bert", "distilbert"])
def test_all_losses_of_texts_are_those_of_the_readable_step(kind, family, model):
    made = model(family, "sequence-classification", problem_type=kind, num_labels=1 if kind == "regression" else 3)
    assert apart(made, batch_of("sequence-classification", lengths_of(6), kind=kind)) < CLOSE


@pytest.mark.parametrize("head", ["sequence-classification", "token-classification"])
def test_only_the_tokens_that_are_read_pass_the_last_layer(head, model, monkeypatch):
    monkeypatch.setattr(packing, "PADDED_FROM", 10**9)
    seen = []
    batch, made = batch_of(head, [3, WIDTH, 5]), model(BERT, head)
    for layer in made.encoder.layers:
        layer.feed_forward.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    packed_loss(made, batch)
    labelled = int((batch.labels["labels"] != IGNORED).sum())
    assert seen == [batch.tokens, 3 if head == "sequence-classification" else labelled]


# ---------------------------------------------------------------------------------------------------------------
# Mistakes on purpose


def attend_differently(patch: pytest.MonkeyPatch, change: Callable[[packing.Group], packing.Group]) -> None:
    """Keys and values are read through changed groups."""
    original = packed.packed_attention

    def attend(query, key, value, batch, dropout):
        asking = batch.read_groups if batch.is_last else batch.groups
        changed = replace(batch, groups=[change(group) for group in batch.groups], read_groups=asking, is_last=True)
        return original(query, key, value, changed, dropout)

    patch.setattr(packed, "packed_attention", attend)


def masks_become(change: Callable[[Tensor], Tensor | None]) -> Callable[[pytest.MonkeyPatch], None]:
    """The masks of all groups are changed."""
    return lambda patch: attend_differently(
        patch, lambda one: one if one.mask is None else replace(one, mask=change(one.mask.clone()))
    )


def rows_see_each_other(patch: pytest.MonkeyPatch) -> None:
    """The keys and values of a row are those of another row of its group."""

    def turned(group):
        cells = torch.arange(group.tokens) if group.cells is None else group.cells
        mask = None if group.mask is None else group.mask.flip(0)
        row, column = group.rows - 1 - cells // group.width, cells % group.width
        cells = row * group.width + column
        tokens_at = torch.zeros(group.rows * group.width, dtype=torch.int64).index_copy(
            0, cells, torch.arange(len(cells))
        )
        return replace(group, cells=cells, tokens_at=tokens_at, mask=mask)

    attend_differently(patch, turned)


def positions_run_on(patch: pytest.MonkeyPatch) -> None:
    """The tokens are counted through the batch, as far as there are positions."""
    for kind in (Embeddings, RobertaEmbeddings):
        patch.setattr(kind, "positions", lambda self, ids: (torch.arange(ids.numel()) % (WIDTH - 1)).view_as(ids))


def segments_forgotten(patch: pytest.MonkeyPatch) -> None:
    """All tokens are of the first text."""
    original = packed.last_states
    patch.setattr(packed, "last_states", lambda model, one: original(model, replace(one, segments=one.segments * 0)))


def another_token_is_read(patch: pytest.MonkeyPatch) -> None:
    """The last layer computes the token after the one that is read."""
    original = packed.encode_packed

    def encode(encoder, batch):
        if batch.read is None:
            return original(encoder, batch)
        return original(encoder, replace(batch, read=(batch.read + 1).clamp(max=len(batch.ids) - 1)))

    patch.setattr(packed, "encode_packed", encode)


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
def test_a_mistake_in_packing_and_labels_of_another_batch_are_caught(family, head, model, monkeypatch):
    made, batch = model(family, head), batch_of(head, [3, 7, WIDTH, 5], family=family)
    right = Found.of(readable_loss, made, batch)
    assert max(Found.of(packed_loss, made, batch).apart(right).values()) < CLOSE
    assert right.gradients.keys() == dict(made.named_parameters()).keys()  # DistributedDataParallel waits for each
    other = replace(batch, labels=batch_of(head, [3, 7, WIDTH, 5], 4, family=family).labels)
    assert max(Found.of(packed_loss, made, other).apart(right).values()) > CAUGHT
    for name, mistake in MISTAKES.items():
        if head not in HARMLESS.get(name, ()) and (family.has_segments or name != "segments forgotten"):
            with monkeypatch.context() as patch:
                mistake(patch)
                assert max(Found.of(packed_loss, made, batch).apart(right).values()) > CAUGHT, name


# ---------------------------------------------------------------------------------------------------------------
# Dropout


@pytest.mark.parametrize(
    ("family", "head"),
    [case for case in HEADS if case[0] is BERT or case[1] == "sequence-classification"],
    ids=lambda value: getattr(value, "name", value),
)
def test_dropout_is_applied_where_the_model_has_it_and_to_no_padding(family, head, model, monkeypatch):
    """One place at a time with a dropout that is not random, the others off: both steps change alike."""
    monkeypatch.setattr(packing, "PADDED_FROM", 10**9)
    made, batch = model(family, head).train(), batch_of(head, [3, 7, WIDTH, 5], family=family)
    places = {name: module for name, module in made.named_modules() if isinstance(module, nn.Dropout)}
    assert len(places) >= 1 + 3 * len(made.encoder.layers)
    tokens, rows = batch.input_ids.numel() if Reads.ALL in made.reads else batch.tokens, list[int]()

    def drop_every_second(module, x):
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


# ---------------------------------------------------------------------------------------------------------------
# Logits of many examples


def readable_logits(model: Head, example: Example) -> Tensor:
    """By the model as it is, without padding."""
    ids, segments = torch.tensor([example.ids]), torch.tensor([example.segments])
    if isinstance(model, MultipleChoice):
        ids, segments = ids[None], segments[None]
    with torch.inference_mode():
        out = model(ids, token_type_ids=segments, attention_mask=torch.ones_like(ids))
    if isinstance(model, QuestionAnswering):
        return torch.cat([out.start_logits, out.end_logits])
    chosen = torch.tensor(example.labels["labels"]) != IGNORED if isinstance(model, MaskedLM) else slice(None)
    return out.logits[0][chosen]  # of a masked LM those of the tokens with a label


@pytest.mark.parametrize(
    ("family", "head"),
    [case for case in HEADS if case[1] != "pretraining"],  # whose two kinds of logits no task uses
    ids=lambda value: getattr(value, "name", value),
)
def test_the_logits_of_each_example_are_the_readable_models(family, head, model):
    made = model(family, head).train()
    rows = examples(head, lengths_of(15), family=family)
    found = predict_logits(
        made, Encoded(rows, CHOICES if head == "multiple-choice" else 0), batch_tokens=40
    )  # several batches
    assert made.training
    made.eval()
    for ours, example in zip(found, rows, strict=True):
        assert ours.dtype == "float32"
        torch.testing.assert_close(torch.from_numpy(ours), readable_logits(made, example), rtol=CLOSE, atol=CLOSE)


def test_logits_in_bfloat16_are_near_and_come_as_float32(model):
    head = "sequence-classification"
    made, rows = model(BERT, head), Encoded(examples(head, lengths_of(9)))
    for one, other in zip(predict_logits(made, rows, "bfloat16"), predict_logits(made, rows), strict=True):
        assert one.dtype == "float32"
        assert 0 < abs(one - other).max() < 0.1
    assert predict_logits(made, Encoded([])) == []


# ---------------------------------------------------------------------------------------------------------------
# A frozen encoder

LENGTHS = [7, 1, 11, 3, 11, 2]
KEPT = [(BERT, "sequence-classification"), (DISTILBERT, "sequence-classification"), (BERT, "multiple-choice")]
KEPT += [(BERT, "token-classification"), (DISTILBERT, "token-classification")]


def encoded(head: str) -> Encoded:
    return Encoded(examples(head, LENGTHS), choices=CHOICES if head == "multiple-choice" else 0)


@pytest.mark.parametrize(("family", "head"), KEPT, ids=lambda value: getattr(value, "name", value))
def test_loss_gradients_and_logits_are_those_of_the_encoder_run_each_time(family, head, model):
    made, batch = finetuning.freeze(model(family, head), "encoder"), batch_of(head, LENGTHS)
    states = States.of(made, encoded(head))
    for kept, computed in zip(states.logits(made), predict_logits(made, encoded(head)), strict=True):
        assert kept.shape == computed.shape
        assert abs(kept - computed).max() <= CLOSE
    found = []
    for output_of in (states.output, packed.packed_output):
        set_train_mode(made)
        if head == "token-classification":  # whose dropout draws for padding too: the same in distribution
            made.eval()
        torch.manual_seed(5)  # one dropout before the task head
        found.append(Found.of(lambda model, batch, output_of=output_of: output_of(model, batch).loss, made, batch))
    assert found[0].gradients
    assert max(found[0].apart(found[1]).values()) <= CLOSE
    other = replace(batch, rows=batch.rows[1:] + batch.rows[:1])  # the control
    with torch.no_grad():
        assert abs(states.output(made.eval(), other).loss - packed.packed_output(made, batch).loss) > 100 * CLOSE


def test_only_constant_states_that_fit_into_memory_are_kept(model, monkeypatch):
    for head in ("question-answering", "masked-lm", "pretraining"):
        assert not can_be_kept(finetuning.freeze(model(BERT, head), "encoder"), encoded(head)), head
    made = finetuning.freeze(model(BERT, "token-classification"), "encoder")
    assert can_be_kept(made, encoded("token-classification"))
    monkeypatch.setattr("minibert.prediction.logits.MAX_BYTES", sum(LENGTHS) * made.config.hidden_size * 4 - 1)
    assert not can_be_kept(made, encoded("token-classification"))


@pytest.mark.filterwarnings("ignore:all .* texts were predicted")  # the model has hardly begun
@pytest.mark.parametrize(("what", "times"), [("encoder", 1), ("2", 3)])
def test_a_frozen_encoder_reads_each_text_once(what, times, checkpoint, monkeypatch):
    """And one of which the pooler is trained in each of three epochs."""
    read = []

    def counting(right):
        return lambda model, batch: (read.append(len(batch.rows)), right(model, batch))[1]

    monkeypatch.setattr(finetuning, "packed_output", counting(finetuning.packed_output))
    monkeypatch.setattr("minibert.prediction.logits.states_of", counting(states_of))
    finetune("classify", *labelled(20), model=checkpoint, freeze=what, epochs=3, batch_size=8)
    assert sum(read) == 20 * times
