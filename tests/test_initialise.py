"""A model made without a checkpoint begins as BERT does and, under one seed, as transformers' own."""

import copy
import importlib
from typing import Any

import pytest
import torch
from support.models import HEADS, assert_begins_as_bert, every_head, small_config

from minibert.config import Config
from minibert.families import FAMILIES
from minibert.families.base import Family
from minibert.heads import HEAD_CLASSES
from minibert.model import Encoder, initialise
from minibert.parity.checkpoints import quiet, upstream_class
from minibert.parity.compare import parameter_pairs

SEED = 5
# Upstream draws the decoder's layers in another order than they are computed.
OTHER_ORDER = ("masked-lm", "pretraining")
# So it does the two smaller tables of RoBERTa, and CamemBERT's and XLM-R's heads, which it draws before the encoder.
EXCHANGED = {"embeddings.position.weight", "embeddings.segment.weight"}
CASES = [
    *((family, head) for family, head in HEADS if head not in OTHER_ORDER),
    *((family, None) for family in FAMILIES.values()),
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
def test_the_same_seed_gives_the_same_weights_as_in_transformers(family: Family, head: str | None) -> None:
    config = small_config(family, num_labels=2)
    pairs = parameter_pairs(ours(config, head), theirs(config, head))
    different = {name.removeprefix("encoder.") for name, x, y in pairs if y is None or not torch.equal(x, y)}
    assert different == (set() if config.padding_has_position else EXCHANGED)


@every_head
def test_every_head_begins_as_bert_does(family: Family, head: str) -> None:
    config = small_config(family, num_labels=2, vocab_size=900)
    model, tables = ours(config, head), ["token"] if config.padding_has_position else ["token", "position"]
    assert_begins_as_bert(dict(model.state_dict()), dict.fromkeys(tables, config.pad_token_id))
    assert not model.head_is_trained
    assert {head for _, head in HEADS} == set(HEAD_CLASSES)


def test_range_and_padding_row_are_those_of_the_config_and_a_part_can_be_initialised_again() -> None:
    model = ours(small_config(initializer_range=0.5, pad_token_id=3), None)
    assert 0.45 < model.embeddings.position.weight.std() < 0.55
    assert [row for row, vector in enumerate(model.embeddings.token.weight) if not vector.any()] == [3]
    state = copy.deepcopy(model.state_dict())
    initialise(model.pooler, small_config())
    assert {name for name, x in model.state_dict().items() if not torch.equal(x, state[name])} == {
        "pooler.dense.weight"
    }
    assert 0.015 < model.pooler.dense.weight.std() < 0.025
