"""A model made without a checkpoint begins as BERT does and, under one seed, as transformers' own."""

import copy
import importlib
from typing import Any

import pytest
import torch
from support.models import HEADS, assert_begins_as_bert, small_config

from minibert.config import Config
from minibert.families import FAMILIES
from minibert.families.base import initialise
from minibert.families.modernbert import MODERNBERT
from minibert.heads import HEAD_CLASSES
from minibert.model import Encoder
from minibert.parity.checkpoints import quiet, upstream_class
from minibert.parity.compare import parameter_pairs

SEED = 5
# Upstream draws the decoder's layers in another order than they are computed.
OTHER_ORDER = ("masked-lm", "pretraining")
# So it does the two smaller tables of RoBERTa, and CamemBERT's and XLM-R's heads, which it draws before the encoder.
EXCHANGED = {"embeddings.position.weight", "embeddings.segment.weight"}
# Of ModernBERT upstream draws every matrix twice, and keeps the second.
CASES = [
    *((family, head) for family, head in HEADS if head not in OTHER_ORDER and family is not MODERNBERT),
    *((family, None) for family in FAMILIES.values() if family is not MODERNBERT),
]


def ours(config: Config, head: str | None) -> Any:
    torch.manual_seed(SEED)
    return HEAD_CLASSES[head](config) if head else Encoder(config)


def theirs(config: Config, head: str | None) -> Any:
    kind = getattr(importlib.import_module("transformers"), config.family.upstream + "Config")
    with quiet():
        torch.manual_seed(SEED)
        return upstream_class(config.family, head)(kind(**config.to_dict()))


@pytest.mark.parametrize(("family", "head"), CASES, ids=[f"{family.name}-{head}" for family, head in CASES])
def test_the_same_seed_gives_the_same_weights_as_in_transformers(family, head):
    config = small_config(family, num_labels=2)
    pairs = parameter_pairs(ours(config, head), theirs(config, head))
    different = {name.removeprefix("encoder.") for name, x, y in pairs if y is None or not torch.equal(x, y)}
    assert different == (set() if config.architecture.padding_has_position else EXCHANGED)


@pytest.mark.parametrize("head", MODERNBERT.heads)
def test_modernbert_begins_with_the_deviations_of_transformers_and_no_number_beyond_the_cutoff(head):
    config = small_config(MODERNBERT, num_labels=60, vocab_size=900, hidden_size=48, intermediate_size=64)
    model, other = ours(config, head), theirs(config, head)
    cutoff = config.initializer_cutoff_factor
    for name, x, y in ((name, x.detach(), y.detach()) for name, x, y in parameter_pairs(model, other) if y is not None):
        if x.dim() == 2 and min(x.shape) > 2:
            assert x.std() == pytest.approx(float(y.std()), rel=0.08), name
            assert x.abs().max() < 1.2 * cutoff * x.std(), name  # a cut normal deviates less than the normal
        else:
            assert torch.equal(x, y) or min(x.shape) <= 2, name
    assert other.model.layers[0].attn.Wqkv.weight.std() > 1.5 * other.model.layers[0].attn.Wo.weight.std()


@pytest.mark.parametrize(("family", "head"), [case for case in HEADS if case[0] is not MODERNBERT])
def test_every_head_begins_as_bert_does(family, head):
    config = small_config(family, num_labels=2, vocab_size=900)
    model, tables = ours(config, head), ["token"] if config.architecture.padding_has_position else ["token", "position"]
    assert_begins_as_bert(dict(model.state_dict()), dict.fromkeys(tables, config.pad_token_id))
    assert not model.head_is_trained
    assert {head for _, head in HEADS} == set(HEAD_CLASSES)


def test_range_and_padding_row_are_those_of_the_config_and_a_part_can_be_initialised_again():
    model = ours(small_config(initializer_range=0.5, pad_token_id=3), None)
    assert 0.45 < model.embeddings.position.weight.std() < 0.55
    assert [row for row, vector in enumerate(model.embeddings.token.weight) if not vector.any()] == [3]
    state = copy.deepcopy(model.state_dict())
    initialise(model.pooler, small_config())
    assert {name for name, x in model.state_dict().items() if not torch.equal(x, state[name])} == {
        "pooler.dense.weight"
    }
    assert 0.015 < model.pooler.dense.weight.std() < 0.025
