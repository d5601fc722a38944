"""Batches that no encoder can take are refused with the value, the place and the limit; odd ones that it can, work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import small_config
from torch import Tensor

from minibert.config import Config
from minibert.families.distilbert import DISTILBERT as FAMILY
from minibert.heads import HEAD_CLASSES
from minibert.inputs import as_inputs, check_inputs, checking, unchecked
from minibert.model import ATTENTION, Encoder
from minibert.parity.checkpoints import make_batch, randomise
from minibert.parity.stages import Batch, forward

BERT, DISTILBERT = small_config(), small_config(FAMILY)
V, P = BERT.vocab_size, BERT.max_position_embeddings
IDS = torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0]])
KEEP = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
pytestmark = pytest.mark.usefixtures("one_thread")


def random_encoder(config: Config = BERT, attention: str = "eager", dtype: torch.dtype = torch.float32) -> Encoder:
    encoder = Encoder(config, attention)
    randomise(encoder, 0)
    return encoder.to(dtype).eval()


def encode(ids: Any = IDS, config: Config = BERT, **given: Any) -> Tensor:
    with torch.no_grad():
        x: Tensor = random_encoder(config)(ids, **given).last_hidden_state
    return x


def refused(kind: type[Exception], *words: str, ids: Any = IDS, config: Config = BERT, **given: Any) -> None:
    with pytest.raises(kind) as error:
        encode(ids, config, **given)
    missing = [word for word in words if word not in str(error.value)]
    assert not missing, f"{error.value} does not say {missing}"


# token ids


def test_more_tokens_than_positions_are_refused_with_both_numbers() -> None:
    refused(ValueError, f"{P + 1} tokens", f"{P} positions", "truncate", ids=torch.ones(2, P + 1, dtype=torch.long))


def test_as_many_tokens_as_positions_are_taken() -> None:
    assert encode(torch.ones(1, P, dtype=torch.long)).shape == (1, P, BERT.hidden_size)


def test_an_id_that_is_the_size_of_the_vocabulary_is_refused_with_its_place() -> None:
    refused(ValueError, f"input_ids[1, 1] is {V}", f"vocab_size {V}: 0 to {V - 1}", ids=torch.tensor([[5, 6], [7, V]]))


def test_a_negative_id_is_refused_with_its_place() -> None:
    refused(ValueError, "input_ids[0, 1] is -1", ids=torch.tensor([[5, -1]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bool, torch.complex64])
def test_ids_that_are_not_whole_numbers_are_refused(dtype: torch.dtype) -> None:
    refused(TypeError, "input_ids", str(dtype), "torch.int64", ids=IDS.to(dtype))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8])
def test_ids_of_any_whole_type_give_the_same_as_int64(dtype: torch.dtype) -> None:
    assert torch.equal(encode(IDS.to(dtype)), encode(IDS))


@pytest.mark.parametrize("shape", [(4,), (1, 2, 3), ()])
def test_ids_without_two_axes_are_refused(shape: tuple[int, ...]) -> None:
    refused(ValueError, str(shape), "(batch, tokens)", ids=torch.ones(shape, dtype=torch.long))


def test_ids_that_are_no_tensor_are_refused_by_their_type() -> None:
    refused(TypeError, "input_ids must be a tensor", "list", ids=[[5, 6]])


def test_rows_without_a_token_are_refused() -> None:
    refused(ValueError, "0 tokens", ids=torch.ones(2, 0, dtype=torch.long))


@pytest.mark.parametrize("attention", ATTENTION)
def test_a_batch_without_rows_gives_empty_outputs_of_the_right_shapes(attention: str) -> None:
    out = random_encoder(attention=attention)(
        torch.ones(0, 5, dtype=torch.long), output_hidden_states=True, output_attentions=True
    )
    assert out.last_hidden_state.shape == (0, 5, BERT.hidden_size)
    assert out.pooler_output.shape == (0, BERT.hidden_size)
    assert [x.shape for x in out.attentions] == [(0, BERT.num_attention_heads, 5, 5)] * BERT.num_hidden_layers


# the mask


def test_a_mask_of_another_length_is_refused_with_both_shapes() -> None:
    refused(ValueError, "attention_mask", "(2, 3)", "(2, 4)", attention_mask=KEEP[:, :3])


def test_a_mask_that_is_no_tensor_is_refused_by_its_type() -> None:
    refused(TypeError, "attention_mask must be a tensor", "list", attention_mask=[[1, 1, 1, 0], [1, 1, 0, 0]])


@pytest.mark.parametrize("value", [2, -1, 0.5, float("-inf"), float("nan"), torch.finfo(torch.float32).min])
def test_a_mask_with_another_value_than_0_and_1_is_refused_with_it(value: float) -> None:
    mask = KEEP.double().masked_fill(KEEP == 0, value)
    refused(ValueError, "attention_mask holds", "additive", attention_mask=mask)


MASK_DTYPES = (torch.bool, torch.int64, torch.int32, torch.uint8, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("weights", [torch.float32, torch.float16, torch.bfloat16])
def test_masks_of_any_dtype_give_bit_equal_results(weights: torch.dtype, attention: str) -> None:
    encoder = random_encoder(attention=attention, dtype=weights)
    with torch.no_grad():
        first, *others = (encoder(IDS, attention_mask=KEEP.to(dtype)).last_hidden_state for dtype in MASK_DTYPES)
    assert torch.isfinite(first).all()
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_fully_masked_row_is_finite_with_finite_gradients_and_leaves_the_others_unchanged(
    dtype: torch.dtype, attention: str
) -> None:
    batch = make_batch(BERT, P)
    encoder = random_encoder(attention=attention, dtype=dtype)
    before = forward(encoder, batch).last_hidden_state
    masked = batch.attention_mask.clone()
    masked[1] = 0
    out = forward(encoder, Batch(batch.input_ids, masked, batch.token_type_ids))
    others = [0, *range(2, len(masked))]
    assert torch.equal(out.last_hidden_state[others], before[others])
    assert torch.isfinite(out.last_hidden_state).all()
    (out.last_hidden_state.float().sum() + out.pooler_output.float().sum()).backward()
    assert all(torch.isfinite(p.grad).all() for p in encoder.parameters() if p.grad is not None)
    assert encoder.embeddings.token.weight.grad is not None


def test_padding_without_a_mask_is_recognised_by_its_id() -> None:
    assert torch.equal(encode(IDS), encode(IDS, attention_mask=KEEP))
    assert not torch.equal(encode(IDS), encode(IDS, attention_mask=torch.ones_like(KEEP)))


def test_padding_is_recognised_by_the_id_that_the_config_names() -> None:
    _, keep, *_ = as_inputs(small_config(pad_token_id=7), torch.tensor([[5, 0, 7]]), None, None)
    assert keep.tolist() == [[True, True, False]]


def test_the_encoder_computes_with_int64_ids_a_boolean_mask_and_int64_segments() -> None:
    ids, keep, segments, tasks = as_inputs(BERT, IDS.int(), KEEP.float(), KEEP.to(torch.uint8), KEEP)
    assert (ids.dtype, keep.dtype, segments.dtype) == (torch.int64, torch.bool, torch.int64)
    assert torch.equal(ids, IDS) and torch.equal(keep, KEEP.bool()) and torch.equal(segments, KEEP)
    assert not tasks.any()  # which BERT has none of
    assert not as_inputs(DISTILBERT, IDS, None, KEEP)[2].any()


def test_what_stands_under_the_mask_has_no_effect_on_the_tokens() -> None:
    garbage = IDS.where(KEEP.bool(), torch.tensor([[1, 2, 3, 4], [11, 12, 13, 14]]))
    real = KEEP.bool()
    assert torch.equal(encode(garbage, attention_mask=KEEP)[real], encode(IDS, attention_mask=KEEP)[real])


LEFT = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])


def test_a_left_padded_batch_is_refused_with_its_beginnings() -> None:
    refused(ValueError, "padded on the left", "[0, 2]", "right", attention_mask=LEFT)


def test_a_left_padded_batch_without_a_mask_is_refused_too() -> None:
    refused(ValueError, "padded on the left", "[0, 2]", ids=torch.tensor([[0, 0, 5, 6], [5, 6, 7, 8]]))


def test_rows_that_all_begin_masked_at_the_same_place_are_taken() -> None:
    """The check of distilbert-base-uncased that transformers publishes masks the first token of its only row."""
    assert torch.isfinite(encode(attention_mask=torch.tensor([[0, 1, 1, 0], [0, 1, 1, 1]]))).all()


def test_a_fully_masked_row_beside_right_padded_ones_is_no_left_padding() -> None:
    assert torch.isfinite(encode(attention_mask=torch.tensor([[0, 0, 0, 0], [1, 1, 1, 0]]))).all()


# segments


@pytest.mark.parametrize("value", [BERT.type_vocab_size, -1])
def test_a_segment_that_the_model_does_not_have_is_refused_with_its_place(value: int) -> None:
    segments = torch.zeros_like(IDS)
    segments[1, 2] = value
    refused(ValueError, f"token_type_ids[1, 2] is {value}", "type_vocab_size 2", token_type_ids=segments)


def test_segments_of_another_shape_are_refused_with_both() -> None:
    refused(ValueError, "token_type_ids", "(2, 3)", "(2, 4)", token_type_ids=torch.zeros(2, 3, dtype=torch.long))


def test_segments_that_are_no_whole_numbers_or_no_tensor_are_refused() -> None:
    refused(TypeError, "token_type_ids are torch.float32", token_type_ids=torch.zeros(2, 4))
    refused(TypeError, "token_type_ids must be a tensor", token_type_ids=[[0] * 4] * 2)


def test_without_segments_all_are_0() -> None:
    assert torch.equal(encode(), encode(token_type_ids=torch.zeros_like(IDS)))
    assert not torch.equal(encode(), encode(token_type_ids=torch.ones_like(IDS)))


@pytest.mark.parametrize("segments", [torch.zeros_like(IDS), torch.ones_like(IDS), torch.full_like(IDS, 9)])
def test_distilbert_ignores_segments(segments: Tensor) -> None:
    assert torch.equal(encode(config=DISTILBERT, token_type_ids=segments), encode(config=DISTILBERT))


def test_mask_and_segments_cannot_be_swapped_by_position() -> None:
    with pytest.raises(TypeError, match="positional"):
        random_encoder()(IDS, KEEP)


# the switch


def fails_as_torch_fails(call: Callable[[], Any]) -> None:
    with pytest.raises(IndexError, match=r"out of (range|bounds)"):
        call()


def test_unchecked_a_wrong_id_fails_as_torch_fails_and_afterwards_is_refused_again() -> None:
    wrong = torch.tensor([[5, V]])
    with unchecked():
        assert not checking()
        fails_as_torch_fails(lambda: encode(wrong))
    assert checking()
    refused(ValueError, f"input_ids[0, 1] is {V}", ids=wrong)


def test_unchecked_a_right_batch_gives_the_same() -> None:
    batch = make_batch(BERT, P)
    encoder = random_encoder()
    expected = forward(encoder, batch).last_hidden_state
    with unchecked():
        assert torch.equal(forward(encoder, batch).last_hidden_state, expected)


def test_the_switch_is_put_back_after_an_error_and_by_the_outer_of_two() -> None:
    with pytest.raises(ZeroDivisionError), unchecked():
        raise ZeroDivisionError
    assert checking()
    with unchecked():
        with unchecked():
            pass
        assert not checking()
    assert checking()


def test_unchecked_counts_in_every_thread() -> None:
    seen: list[bool] = []
    with unchecked():
        thread = threading.Thread(target=lambda: seen.append(checking()))
        thread.start()
        thread.join()
    assert seen == [False]


def test_a_check_alone_returns_nothing_and_refuses_whatever_the_switch_says() -> None:
    assert check_inputs(BERT, IDS, KEEP, None) is None
    with unchecked(), pytest.raises(ValueError, match="padded on the left"):
        check_inputs(BERT, IDS, LEFT, None)


@pytest.mark.parametrize("head", ["masked-lm", "token-classification", "question-answering"])
def test_a_head_checks_what_it_hands_to_the_encoder(head: str) -> None:
    model = HEAD_CLASSES[head](small_config(num_labels=2)).eval()
    with pytest.raises(ValueError, match=rf"input_ids\[0, 1\] is {V}"):
        model(torch.tensor([[5, V]]))
    with unchecked():
        fails_as_torch_fails(lambda: model(torch.tensor([[5, V]])))
