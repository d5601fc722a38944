"""Labels that cannot be are refused with the value, its place and the limit before a loss is computed."""

from typing import Any

import pytest
import torch
from torch import Tensor

from minibert.config import Config
from minibert.families import FAMILIES
from minibert.heads import HEAD_CLASSES, Head
from minibert.inputs import unchecked

B, S, C, V = 3, 8, 2, 61
TEXTS, TOKENS = torch.zeros(B).long(), torch.zeros(B, S).long()
LABELS = {"sequence-classification": 3, "token-classification": 5}


def make(head: str, **changes: Any) -> Head:
    """An untrained tiny BERT, or the first relative that has it, with this head."""
    sizes = dict(vocab_size=V, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    family = next(family.name for family in FAMILIES.values() if head in family.heads)
    labels = {i: str(i) for i in range(LABELS.get(head, 2))}
    return HEAD_CLASSES[head](Config(family, **sizes | {"id2label": labels} | changes)).eval()


def ids(*shape: int) -> Tensor:
    return torch.randint(1, V, shape or (B, S), generator=torch.Generator().manual_seed(0))


def put(shape: tuple[int, ...], place: tuple[int, ...], value: float, dtype: torch.dtype = torch.long) -> Tensor:
    """Zeros with one value in one place."""
    labels = torch.zeros(shape, dtype=dtype)
    labels[place] = value
    return labels


@pytest.mark.parametrize(
    ("head", "labels", "match"),
    [
        ("masked-lm", put((B, S), (1, 3), V), r"labels\[1, 3\] is 61\b.* 0 to 60\b.*-100"),
        ("masked-lm", put((B, S), (2, 0), -1), r"labels\[2, 0\] is -1"),
        ("masked-lm", torch.zeros(B, S), r"torch.float32.*integers"),
        ("masked-lm", torch.zeros(S, B).long(), r"\(8, 3\).*integers.*\(3, 8\)"),
        ("next-sentence", torch.tensor([0, 2, 1]), r"labels\[1\] is 2\b.* 0 to 1$"),
        ("next-sentence", torch.tensor([0, 1, -100]), r"labels\[2\] is -100"),
        ("sequence-classification", torch.tensor([0, 5, 1]), r"labels\[1\] is 5\b.* 0 to 2"),
        ("sequence-classification", torch.tensor([0, -100, 1]), r"labels\[1\] is -100"),
        ("sequence-classification", torch.tensor([0.0, 1.0, 2.0]), r"float32 .*multi_label.*\(3, 3\).*integers"),
        ("sequence-classification", torch.zeros(B, 3).long(), r"single_label.* \(3,\), not .* \(3, 3\)"),
        ("sequence-classification", put((B, 3), (1, 2), 2.0, torch.float), r"labels\[1, 2\] is 2\.0.* 0 to 1"),
        ("sequence-classification", put((B, 3), (0, 1), float("nan"), torch.float), r"labels\[0, 1\] is nan"),
        ("token-classification", put((B, S), (0, 7), 5), r"labels\[0, 7\] is 5\b.* 0 to 4\b.*-100"),
        ("token-classification", torch.zeros(B, S), "float32"),
        ("multiple-choice", torch.tensor([0, 1, 2]), r"labels\[2\] is 2\b.* 0 to 1$"),
        ("replaced-token-detection", put((B, S), (0, 1), 2), r"labels\[0, 1\] is 2\b.* 0"),
        ("replaced-token-detection", put((B, S), (0, 1), -100), r"labels\[0, 1\] is -100"),
        ("replaced-token-detection", torch.zeros(1, 3).long(), r"\(1, 3\)"),
        ("replaced-token-detection", torch.zeros(B, S), "integers"),
    ],
)
def test_labels_that_cannot_be_are_refused_with_value_place_and_limit(head, labels, match):
    with pytest.raises(ValueError, match=match):
        make(head)(ids(B, C, S) if head == "multiple-choice" else ids(), labels=labels)


@pytest.mark.parametrize(
    ("head", "labels"),
    [
        ("masked-lm", put((B, S), (1, 3), V)),
        ("next-sentence", torch.tensor([0, 2, 1])),
        ("sequence-classification", torch.tensor([0, 5, 1])),
        ("token-classification", put((B, S), (0, 7), 5)),
        ("multiple-choice", torch.tensor([0, 1, 2])),
    ],
)
def test_unchecked_a_label_out_of_range_fails_as_torch_fails(head, labels):
    with unchecked(), pytest.raises(IndexError, match="out of bounds"):
        make(head)(ids(B, C, S) if head == "multiple-choice" else ids(), labels=labels)


@pytest.mark.parametrize("head", ["masked-lm", "token-classification"])
def test_tokens_labelled_minus_100_do_not_count(head):
    labels = torch.full((B, S), -100)
    labels[1, 2] = 4
    out = make(head)(ids(), labels=labels)
    assert torch.equal(out.loss, -out.logits[1, 2].log_softmax(-1)[4])


@pytest.mark.parametrize(
    ("head", "given", "match"),
    [
        ("question-answering", {"end_positions": TEXTS}, r"start_positions.*end"),
        (
            "question-answering",
            {"start_positions": TEXTS.float(), "end_positions": TEXTS},
            r"start_positions .*torch.float32",
        ),
        (
            "question-answering",
            {"start_positions": TEXTS, "end_positions": torch.zeros(B, 2).long()},
            r"end_positions .*\(3, 2\).* \(3,\)",
        ),
        ("pretraining", {"labels": TOKENS}, r"labels.*next_sentence_label"),
        ("pretraining", {"next_sentence_label": TEXTS}, r"labels.*next_sentence_label"),
        ("pretraining", {"labels": TOKENS, "next_sentence_label": TEXTS + 2}, r"next_sentence_label\[0\] is 2"),
        ("multiple-choice", {"input_ids": TOKENS}, r"\(3, 8\).*\(batch, choices, tokens\)"),
        ("multiple-choice", {"attention_mask": torch.ones(C, B, S)}, r"\(2, 3, 8\)"),
    ],
)
def test_labels_and_inputs_that_do_not_belong_together_are_refused(head, given, match):
    rows = ids(B, C, S) if head == "multiple-choice" else ids()
    with pytest.raises(ValueError, match=match):
        make(head)(**{"input_ids": rows} | given)


def test_a_position_past_the_last_token_does_not_count_and_a_negative_one_is_0():
    model = make("question-answering")
    past = model(ids(), start_positions=torch.tensor([2, S, 99]), end_positions=torch.tensor([3, -7, 4]))
    start, end = past.start_logits.log_softmax(-1), past.end_logits.log_softmax(-1)
    expected = (-start[0, 2] - (end[0, 3] + end[1, 0] + end[2, 4]) / 3) / 2
    torch.testing.assert_close(past.loss, expected)
