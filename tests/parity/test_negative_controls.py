"""Mistakes made on purpose: the parity harness must find each of them, at the stage where it is made, and name it.

A freshly initialised reference hides half of these (its LayerNorms are 1 and 0, its biases 0), which is why every
reference here has all parameters random.
"""

from typing import Any

import pytest
import torch
from support.mistakes import MISTAKES
from support.models import TESTED, edited, every_bert, every_family, of_bert, unequal
from torch import nn

import minibert
from minibert.checking.relatives import set_eps
from minibert.checkpoints.load import full_name
from minibert.families import FAMILIES
from minibert.families.bert import BERT
from minibert.hooks import IN, OUT, places, record
from minibert.parity.checkpoints import make_batch
from minibert.parity.compare import (
    DROPOUT,
    GRADIENTS,
    LOGITS,
    TENSORS,
    Bounds,
    compare,
    compare_full_length,
    compare_tensors,
    first_divergent,
)

ROUNDING = 1e-5  # what a comparison by tolerance would let pass
CASES = [(mistake, family) for mistake in MISTAKES for family in mistake.families]


@pytest.mark.parametrize(("mistake", "family"), CASES, ids=[f"{mistake.name}-{family}" for mistake, family in CASES])
def test_a_mistake_is_found_at_its_stage_and_named(mistake, family, pair):
    both = pair(FAMILIES[family], mistake.head)
    mistake.make(both.ours)
    result = both.climb(train=mistake.place.startswith(DROPOUT))
    assert result.first is not None
    assert result.first.place == mistake.place
    assert result.first.ours != result.first.theirs
    assert mistake.cause in result.cause
    assert max(row.largest for row in result.rows) > ROUNDING


def add_one(module: nn.Module, what: str) -> Any:
    """Change the input or the output of a module; the hook that does it is returned."""
    if what == IN:
        return module.register_forward_pre_hook(lambda _, given: (given[0] + 1, *given[1:]))
    return module.register_forward_hook(
        lambda _, given, out: (out[0] + 1, *out[1:]) if isinstance(out, tuple) else out + 1
    )


@every_family
@pytest.mark.parametrize("head", ["masked-lm", "sequence-classification"])
def test_a_change_at_any_stage_is_found_at_this_stage(head, family, pair):
    both = pair(family, head)
    batch = both.task.batch
    expected = record(both.theirs, batch)
    places_of = {}
    for place, module, what in places(both.ours):
        if what in (IN, OUT):
            places_of.setdefault((module, str(what)), place)  # a shared layer is changed at its first step
    assert len(places_of) >= 20
    for (module, what), place in places_of.items():
        hook = add_one(module, what)
        first = first_divergent(compare_tensors(TENSORS, record(both.ours, batch), expected))
        hook.remove()
        assert first is not None and (first.stage, first.layer) == place


# In float64 upstream's ModernBERT rounds queries and keys to float32 to rotate them.
DTYPES = [(family, torch.float32) for family in TESTED] + [(family, torch.float64) for family in of_bert]


@pytest.mark.parametrize(("family", "dtype"), DTYPES)
def test_without_a_mistake_nothing_is_found(family, dtype, pair):
    both = pair(family, "masked-lm")
    both.ours, both.theirs = both.ours.to(dtype), both.theirs.to(dtype)
    rows = both.compare()
    assert {row.rung for row in rows} >= {TENSORS, LOGITS, GRADIENTS}
    assert unequal(rows) == []


@every_bert
def test_an_epsilon_of_1e_5_for_1e_12_hides_from_a_tolerance_of_1e_3_and_is_found_in_float64(family, pair):
    both = pair(family, "masked-lm")
    set_eps(both.ours, 1e-5)
    assert first_divergent(both.compare(Bounds(1e-3, 1e-2))) is None
    both.ours, both.theirs = both.ours.double(), both.theirs.double()
    found = [row.place for row in both.compare(Bounds(1e-9, 1e-9)) if not row.ok]
    assert {"embedding norm", "layer 1 layer", "logits: logits"} <= set(found)


@every_bert
def test_a_dropped_key_bias_hides_from_the_outputs_and_is_found_by_the_account_of_names(
    family, pair, written, tmp_path
):
    """Softmax cancels what is added to all scores of a query: only the keys themselves and the names can tell."""
    both = pair(family, "masked-lm")
    nn.init.zeros_(both.ours.encoder.layers[0].attention.key.bias)
    rows = both.compare()
    assert first_divergent(rows).place == "layer 0 key"
    outputs = [row for row in rows if row.stage in ("layer", "probs", "logits")]
    assert len(outputs) == 2 * 2 + 1 + 1
    assert all(row.largest <= ROUNDING for row in outputs)
    lost = full_name(family, "encoder.layers.0.attention.key.bias")
    with pytest.raises(ValueError, match=r"1 tensor.* layers\.0\.attention\.key\.bias"):
        minibert.load(edited(written(family, "masked-lm")[0], tmp_path, lambda tensors: tensors.pop(lost)))


@every_bert
def test_two_rows_of_the_table_of_names_exchanged_are_found(family, pair, monkeypatch):
    """Although the harness looks for upstream's tensors by the same table."""
    one, other = "layers.{}.attention.query", "layers.{}.attention.key"
    for name, module in ((one, family.modules[other]), (other, family.modules[one])):
        monkeypatch.setitem(family.modules, name, module)
    assert first_divergent(pair(family).compare()).place == "layer 0 scores"


def test_a_reference_that_is_fresh_hides_swapped_norms_and_dropped_biases(written, tmp_path):
    """The reason why every reference is drawn anew: made with a fresh model, these comparisons prove nothing."""
    _, drawn = written(BERT, "masked-lm")
    fresh = type(drawn)(drawn.config).eval()
    fresh.save_pretrained(tmp_path)
    by_name = {mistake.name: mistake for mistake in MISTAKES}
    for name in ("norms swapped", "zero biases"):
        ours = minibert.load(tmp_path, head="masked-lm")
        by_name[name].make(ours)
        assert unequal(compare(ours, fresh, make_batch(ours.config, 11))) == []


def test_a_mistake_at_the_last_position_is_found_by_a_row_of_full_length(pair):
    both = pair()
    with torch.no_grad():
        both.ours.embeddings.position.weight[-1] += 1
    short = make_batch(both.ours.config, 5)
    assert first_divergent(compare(both.ours, both.theirs, short)) is None
    full = make_batch(both.ours.config, both.ours.config.max_tokens)
    assert first_divergent(compare_full_length(both.ours, both.theirs, full)) is not None


@every_family
def test_a_dropout_that_is_left_out_anywhere_is_found(family, pair):
    """Every dropout of the encoder and of the task head, one at a time."""
    case = {"family": family, "head": "token-classification", "num_hidden_layers": 1}
    modules = pair(**case).ours.named_modules()
    names = [name for name, module in modules if isinstance(module, nn.Dropout) and module.p > 0]
    assert len(names) >= 4
    for name in names:
        both = pair(**case)
        both.ours.get_submodule(name).p = 0.0
        assert first_divergent(both.train()) is not None, name
