"""Batches that no encoder can take are refused with the value, the place and the limit; unusual ones work."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any

import pytest
import torch
from support.models import small_config
from torch import Tensor

from minibert.config import Config
from minibert.families.distilbert import DISTILBERT as FAMILY
from minibert.families.electra import ELECTRA
from minibert.heads import HEAD_CLASSES
from minibert.hooks import forward
from minibert.inputs import as_inputs, checking, unchecked
from minibert.model import ATTENTION, Encoder
from minibert.parity.checkpoints import make_batch, randomise
from minibert.utils.inference import inference

BERT, DISTILBERT = small_config(), small_config(FAMILY)
V, P = BERT.vocab_size, BERT.max_position_embeddings
IDS = torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0]])
KEEP = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
LEFT = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
SEGMENTS = torch.zeros_like(IDS)


def random_encoder(config: Config = BERT, attention: str = "eager", dtype: torch.dtype = torch.float32) -> Encoder:
    encoder = Encoder(config, attention)
    randomise(encoder, 0)
    return encoder.to(dtype).eval()


def encode(ids: Any = IDS, config: Config = BERT, **given: Any) -> Tensor:
    with torch.no_grad():
        x = random_encoder(config)(ids, **given).last_hidden_state
    return x


def at(row: int, column: int, value: int) -> Tensor:
    """Segments of 0 with one other value."""
    return SEGMENTS.index_put((torch.tensor(row), torch.tensor(column)), torch.tensor(value))


NOT_INTEGERS = (torch.float32, torch.float16, torch.bool, torch.complex64)
NOT_MASKS = (2, -1, 0.5, float("-inf"), float("nan"), torch.finfo(torch.float32).min)
SHAPES: tuple[tuple[int, ...], ...] = ((4,), (1, 2, 3), (), (2, 0))
WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({"ids": torch.ones(2, P + 1).long()}, [f"(2, {P + 1})", f"{P} positions", "truncate"]),
    ({"ids": torch.tensor([[5, 6], [7, V]])}, [f"input_ids[1, 1] is {V}", f"vocab_size {V}: 0 to {V - 1}"]),
    ({"ids": torch.tensor([[5, -1]])}, ["input_ids[0, 1] is -1"]),
    *(({"ids": IDS.to(dtype)}, ["input_ids", str(dtype), "torch.int64"]) for dtype in NOT_INTEGERS),
    *(({"ids": torch.ones(shape).long()}, [str(shape), "(batch, tokens)"]) for shape in SHAPES),
    ({"attention_mask": KEEP[:, :3]}, ["attention_mask", "(2, 3)", "(2, 4)"]),
    *(
        ({"attention_mask": KEEP.double().masked_fill(KEEP == 0, value)}, ["attention_mask[0, 3] is", "additive"])
        for value in NOT_MASKS
    ),
    ({"attention_mask": LEFT}, ["padded on the left", "[0, 2]", "right"]),
    ({"ids": torch.tensor([[0, 0, 5, 6], [5, 6, 7, 8]])}, ["padded on the left", "[0, 2]"]),
    ({"token_type_ids": at(1, 2, 2)}, ["token_type_ids[1, 2] is 2", "type_vocab_size 2"]),
    ({"token_type_ids": at(1, 2, -1)}, ["token_type_ids[1, 2] is -1"]),
    ({"token_type_ids": SEGMENTS[:, :3]}, ["token_type_ids", "(2, 3)", "(2, 4)"]),
    ({"token_type_ids": SEGMENTS.float()}, ["token_type_ids are torch.float32"]),
]


@pytest.mark.parametrize(("given", "words"), WRONG)
def test_a_batch_that_cannot_be_is_refused_with_its_value_place_and_limit(given, words):
    with pytest.raises((ValueError, TypeError)) as error:
        encode(**given)
    assert not [word for word in words if word not in str(error.value)], error.value


NO_TENSORS: list[tuple[Any, str]] = [
    (IDS.numpy(), "torch.tensor(input_ids)"),
    (IDS.tolist(), "torch.tensor(input_ids)"),
    ({"input_ids": IDS, "attention_mask": KEEP}, "model(**batch)"),
    ("a text", "model(**batch)"),
    (["a text"], "model(**batch)"),
    (None, "None"),
]


def refusal(head: str | None, *ids: Any, **given: Any) -> str:
    config = small_config(ELECTRA if head == "replaced-token-detection" else BERT.family, num_labels=2)
    model = HEAD_CLASSES[head](config) if head else Encoder(config)
    with pytest.raises(TypeError) as error:
        model(*ids, **given)
    return str(error.value)


@pytest.mark.parametrize("head", [None, *HEAD_CLASSES])
def test_what_is_no_tensor_is_refused_with_what_is_meant(head):
    for given, meant in NO_TENSORS:
        found = refusal(head, given)
        assert found.startswith("input_ids is ") and meant in found
    ids = IDS[:, None] if head == "multiple-choice" else IDS
    assert "attention_mask is [[" in refusal(head, ids, attention_mask=ids.tolist())
    if head not in (None, "pretraining", "question-answering"):
        assert "labels is [0, 1]; it must be a tensor: torch.tensor(labels)" in refusal(head, ids, labels=[0, 1])


@pytest.mark.parametrize("attention", ATTENTION)
def test_a_batch_without_rows_gives_empty_outputs_of_the_right_shapes(attention):
    out = random_encoder(attention=attention)(
        torch.ones(0, 5, dtype=torch.long), output_hidden_states=True, output_attentions=True
    )
    assert out.last_hidden_state.shape == (0, 5, BERT.hidden_size)
    assert out.pooler_output.shape == (0, BERT.hidden_size)
    assert [x.shape for x in out.attentions] == [(0, BERT.num_attention_heads, 5, 5)] * BERT.num_hidden_layers


MASK_DTYPES = (torch.bool, torch.int64, torch.int32, torch.uint8, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("weights", [torch.float32, torch.float16, torch.bfloat16])
def test_masks_of_any_dtype_give_bit_equal_results(weights, attention):
    encoder = random_encoder(attention=attention, dtype=weights)
    with torch.no_grad():
        first, *others = (encoder(IDS, attention_mask=KEEP.to(dtype)).last_hidden_state for dtype in MASK_DTYPES)
    assert torch.isfinite(first).all()
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_fully_masked_row_is_finite_with_finite_gradients_and_leaves_the_others_unchanged(dtype, attention):
    batch, encoder = make_batch(BERT, P), random_encoder(attention=attention, dtype=dtype)
    before = forward(encoder, batch).last_hidden_state
    others = torch.arange(len(before)) != 1
    out = forward(encoder, replace(batch, attention_mask=batch.attention_mask * others[:, None]))
    assert torch.equal(out.last_hidden_state[others], before[others])
    assert torch.isfinite(out.last_hidden_state).all()
    (out.last_hidden_state.float().sum() + out.pooler_output.float().sum()).backward()
    gradients = [parameter.grad for parameter in encoder.parameters() if parameter.grad is not None]
    assert encoder.embeddings.token.weight.grad is not None
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


ONES = torch.ones_like(IDS)
FULL = torch.ones(2, P, dtype=torch.long)  # as many tokens as the model has positions
SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"attention_mask": KEEP}),
    ({}, {"token_type_ids": SEGMENTS}),
    *(({"ids": FULL}, {"ids": FULL.to(dtype)}) for dtype in (torch.int32, torch.int16, torch.int8, torch.uint8)),
    *(({"config": DISTILBERT}, {"config": DISTILBERT, "token_type_ids": number * ONES}) for number in (1, 9)),
]


@pytest.mark.parametrize(("given", "equal"), SAME)
def test_these_inputs_mean_the_same(given, equal):
    assert torch.equal(encode(**given), encode(**equal))


@pytest.mark.parametrize("other", [{"attention_mask": ONES}, {"token_type_ids": ONES}])
def test_these_inputs_make_a_difference(other):
    assert not torch.equal(encode(), encode(**other))


def test_the_mask_is_that_of_the_padding_id_of_the_config():
    padding_is_7 = as_inputs(small_config(pad_token_id=7), torch.tensor([[5, 0, 7]]), None, {})
    assert padding_is_7[1].tolist() == [[True, True, False]]


def test_ids_under_the_mask_have_no_effect_on_the_tokens():
    real = KEEP.bool()
    garbage = IDS.where(real, torch.tensor([[1, 2, 3, 4], [11, 12, 13, 14]]))
    assert torch.equal(encode(garbage, attention_mask=KEEP)[real], encode(IDS, attention_mask=KEEP)[real])


@pytest.mark.parametrize("mask", [[[0, 1, 1, 0], [0, 1, 1, 1]], [[0, 0, 0, 0], [1, 1, 1, 0]]])
def test_rows_that_all_begin_at_one_place_or_are_fully_masked_are_no_left_padding(mask):
    """The check of distilbert-base-uncased that transformers publishes masks the first token of its only row."""
    assert torch.isfinite(encode(attention_mask=torch.tensor(mask))).all()


def test_mask_and_segments_cannot_be_swapped_by_position():
    with pytest.raises(TypeError, match="positional"):
        random_encoder()(IDS, KEEP)


@pytest.mark.parametrize("head", [None, "masked-lm", "token-classification", "question-answering"])
def test_unchecked_a_wrong_id_fails_as_torch_fails_and_afterwards_is_refused_again(head):
    wrong, right = torch.tensor([[5, V]]), torch.tensor([[5, 6]])
    model = HEAD_CLASSES[head](small_config(num_labels=2)).eval() if head else random_encoder()
    expected = model(right)[0]
    with unchecked(), pytest.raises(IndexError, match=r"out of (range|bounds)"):
        assert torch.equal(model(right)[0], expected)
        model(wrong)
    with pytest.raises(ValueError, match=rf"input_ids\[0, 1\] is {V}"):
        model(wrong)


def test_the_switch_is_reset_by_the_outer_of_two_and_is_that_of_one_thread():
    with unchecked():
        with unchecked():
            pass
        with ThreadPoolExecutor() as pool:
            assert [checking(), pool.submit(checking).result()] == [False, True]
    assert checking()
    with pytest.raises(ValueError, match="padded on the left"):
        encode(attention_mask=LEFT)


def overlapping(first: Callable[[], Any], second: Callable[[], Any], look: Callable[[], Any]) -> Any:
    """Enter `first`, in another thread `second`, leave `first`, and return what `look` returns in that thread."""
    entered, ended = Event(), Event()

    def other():
        with second():
            entered.set()
            assert ended.wait(60)
            return look()

    with ThreadPoolExecutor() as pool:
        with first():
            found = pool.submit(other)
            assert entered.wait(60)
        ended.set()
        return found.result()


@pytest.mark.parametrize("second", ["encoder", "whole"])
@pytest.mark.parametrize("first", ["encoder", "whole"])
def test_a_model_in_train_mode_predicts_without_dropout_while_another_thread_ends(first, second):
    head = HEAD_CLASSES["sequence-classification"](small_config())
    head.encoder.pooler.eval()
    modes = [module.training for module in head.modules()]
    assert set(modes) == {True, False}
    used = {"encoder": head.encoder, "whole": head}
    blocks = [partial(inference, used[name]) for name in (first, second)]
    assert not overlapping(*blocks, lambda: [module for module in used[second].modules() if module.training])
    assert [module.training for module in head.modules()] == modes
