"""What each relative changed, beside transformers: positions, groups, tasks, objectives, files, the engine, limits.

That every tensor of them is equal bit for bit is the ladder's matter (test_ladder.py), and what a port gets wrong is
found there on purpose (test_negative_controls.py); here is what a random batch does not reach.
"""

import dataclasses

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.models import edited, small_config, unequal
from torch import Tensor

import minibert
from minibert.checkpoints.checkpoint import Checkpoint
from minibert.checkpoints.inspection import checkpoint_text, inspect
from minibert.families import FAMILIES
from minibert.heads import HEAD_CLASSES
from minibert.hooks import Inputs, forward
from minibert.parity.checkpoints import make_batch, randomise
from minibert.parity.compare import compare_full_length
from minibert.vectors.engine import Engine
from minibert.vectors.readable import readable_vectors

ALBERT, CAMEMBERT, ELECTRA, ERNIE, ROBERTA, XLM_ROBERTA = (
    FAMILIES[name] for name in ("albert", "camembert", "electra", "ernie", "roberta", "xlm-roberta")
)
RELATIVES = [family for family in FAMILIES.values() if family.name not in ("bert", "distilbert")]
each_relative = pytest.mark.parametrize("family", RELATIVES, ids=[family.name for family in RELATIVES])


def ids(*rows: list[int]) -> Tensor:
    return torch.tensor(rows)


# ---------------------------------------------------------------------------------------------------------------
# RoBERTa


def test_padding_inside_a_row_and_no_mask_are_computed_as_upstream(pair):
    both = pair(ROBERTA, "token-classification")
    rows = ids([0, 7, 1, 8, 9, 2], [0, 7, 2, 1, 1, 1])
    for mask in (torch.ones_like(rows), (rows != 1).long()):
        batch = Inputs(rows, mask, torch.zeros_like(rows))
        assert unequal(compare_full_length(both.ours, both.theirs, batch)) == []
    assert torch.equal(both.ours(rows).logits, both.ours(rows, attention_mask=(rows != 1).long()).logits)


def test_the_rows_of_padding_begin_at_zero_and_learn_nothing(pair):
    both = pair(ROBERTA, "masked-lm")
    assert both.ours.encoder.embeddings.position.weight[1].any()
    forward(both.ours, both.task.batch, both.task.labels).loss.backward()
    gradients = both.ours.encoder.embeddings.position.weight.grad
    assert not gradients[:2].any()
    assert gradients[2:-1].any(dim=1).all()  # the last is not reached: one token of the full row is [PAD]
    assert unequal(both.train()) == []
    fresh = minibert.Encoder(small_config(ROBERTA)).embeddings
    assert [row for row, vector in enumerate(fresh.position.weight) if not vector.any()] == [1]


def test_514_positions_are_512_tokens_and_the_error_says_512():
    encoder = minibert.Encoder(small_config(ROBERTA, max_position_embeddings=512, hidden_size=6))
    assert encoder.embeddings.position.num_embeddings == 514
    assert encoder(torch.full((1, 512), 7)).last_hidden_state.shape == (1, 512, 6)
    with pytest.raises(ValueError, match=r"\(1, 513\).* 512\b"):
        encoder(torch.full((1, 513), 7))
    with pytest.raises(ValueError, match=r"row 0 .*513.* 512\b"):
        Engine(encoder).vectors([[7] * 513])


@pytest.mark.parametrize("family", [XLM_ROBERTA, CAMEMBERT], ids=lambda family: family.name)
def test_xlm_r_and_camembert_are_roberta_under_other_names(family):
    own = {"name": family.name, "title": family.title, "upstream": family.upstream, "config": family.config}
    assert dataclasses.replace(ROBERTA, **own) == family


# ---------------------------------------------------------------------------------------------------------------
# ALBERT


def test_step_i_uses_group_i_over_steps_of_a_group_and_all_of_its_layers_which_the_engine_packs_once():
    config = small_config(ALBERT, num_hidden_layers=5, num_hidden_groups=2, inner_group_num=2)
    assert config.architecture.order == (0, 1, 0, 1, 0, 1, 2, 3, 2, 3)
    assert small_config(ALBERT, num_hidden_layers=7, num_hidden_groups=3).architecture.order == (0, 0, 0, 1, 1, 2, 2)
    encoder = minibert.Encoder(config, pooler=False)
    assert len(encoder.layers) == 4
    engine = Engine(encoder)
    assert len(engine.encoder.layers) == 4


def test_a_group_is_stored_once_and_hidden_states_begin_after_the_map(written, tmp_path):
    folder, theirs = written(ALBERT, num_hidden_layers=3, inner_group_num=2, num_hidden_groups=1)
    encoder = minibert.load(folder)
    minibert.save(encoder, tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert saved.keys() == load_file(folder / "model.safetensors").keys()
    assert sum("attention.query.weight" in name for name in saved) == 2
    batch = make_batch(encoder.config, 11)
    ours, expected = (forward(m, batch, {"output_hidden_states": True}).hidden_states for m in (encoder, theirs))
    assert len(ours) == 7 and ours[0].shape[-1] == 24
    assert all(torch.equal(x, y) for x, y in zip(ours, expected, strict=True))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        # Fewer layers than the file has: a warning of tensors that were not loaded, which is an error here.
        ({"num_hidden_groups": 2, "inner_group_num": 1}, r"\b32\b"),
        ({"num_hidden_groups": 1, "inner_group_num": 1}, r"\b48\b"),
        ({"inner_group_num": 3}, r"32 tensors.*ALBERT.*layers\.2\.attention\.query"),
        (
            {"embedding_size": 12},
            r"word_embeddings.weight.*\(101, 13\).*\(101, 12\).*config.json",
        ),
        ({"num_hidden_groups": 9}, r"num_hidden_groups.* 9\b.* 4$"),
        ({"num_hidden_groups": 0}, r"num_hidden_groups is 0.* 1\b"),
        ({"inner_group_num": "2"}, "inner_group_num is '2'"),
    ],
    ids=str,
)
def test_a_config_that_contradicts_its_tensors_is_named(wrong, words, written, tmp_path):
    folder, _ = written(ALBERT, num_hidden_layers=4, num_hidden_groups=2, inner_group_num=2)
    with pytest.raises((ValueError, UserWarning), match=words):
        minibert.load(edited(folder, tmp_path, lambda tensors: None, **wrong))


def test_the_order_of_sentences_has_upstreams_fields_and_two_labels(pair, written):
    both = pair(ALBERT, "pretraining")
    out = forward(both.ours, both.task.batch, both.task.labels)
    assert out.keys() == ["loss", "prediction_logits", "sop_logits"] and out.sop_logits.shape == (6, 2)
    zeros = torch.zeros(6, dtype=torch.long)
    for labels, words in (
        ({"next_sentence_label": zeros}, "both labels and sentence_order_label"),
        ({"sentence_order_label": zeros}, "both labels and sentence_order_label"),
        (both.task.labels | {"sentence_order_label": zeros + 2}, r"sentence_order_label\[0\] is 2"),
    ):
        with pytest.raises(ValueError, match=words):
            forward(both.ours, both.task.batch, labels)
    fresh = minibert.load(written(ALBERT, "token-classification")[0], head="pretraining", new_head=True)
    assert fresh.sentence_order.out_features == 2


# ---------------------------------------------------------------------------------------------------------------
# ERNIE


def test_task_type_ids_are_read_as_upstream_and_are_0_by_default(pair):
    both = pair(ERNIE, "token-classification")
    batch = both.task.batch
    tasks = torch.randint(0, 3, batch.input_ids.shape, generator=torch.Generator().manual_seed(3))
    ours, theirs = (forward(m, batch, {"task_type_ids": tasks}).logits for m in (both.ours, both.theirs))
    assert torch.equal(ours, theirs)
    default, zeros = (forward(both.ours, batch, more).logits for more in ({}, {"task_type_ids": tasks * 0}))
    assert torch.equal(default, zeros) and not torch.equal(default, ours)
    choices = pair(ERNIE, "multiple-choice")
    ours, theirs = (
        forward(m, choices.task.batch, {"task_type_ids": given}).logits
        for m, given in ((choices.ours, tasks.view_as(choices.task.batch.input_ids)), (choices.theirs, tasks))
    )  # upstream wants the tasks of choices, and these alone, one text after the other
    assert torch.equal(ours, theirs)


def test_a_task_that_is_not_there_is_refused_and_a_model_without_tasks_ignores_them():
    encoder, rows = minibert.Encoder(small_config(ERNIE)).eval(), ids([5, 6])
    for tasks, words in (
        ([0, 3], r"task_type_ids\[0, 1\] is 3; the checkpoint has task_type_vocab_size 3"),
        ([0, 0, 0], "task_type_ids has shape"),
    ):
        with pytest.raises(ValueError, match=words):
            encoder(rows, task_type_ids=ids(tasks))
    without = minibert.Encoder(small_config(ERNIE, use_task_id=False)).eval()
    out = without(rows, task_type_ids=ids([9, 9])).last_hidden_state
    assert torch.equal(out, without(rows).last_hidden_state)


# ---------------------------------------------------------------------------------------------------------------
# ELECTRA


def test_detection_counts_the_tokens_that_are_attended_to(pair):
    both = pair(ELECTRA, "replaced-token-detection")
    batch, labels = both.task.batch, both.task.labels["labels"]
    loss = forward(both.ours, batch, both.task.labels).loss
    elsewhere = torch.where(batch.attention_mask == 1, labels, 1)
    assert torch.equal(loss, forward(both.ours, batch, {"labels": elsewhere}).loss)
    rows = batch.input_ids.clamp(min=1)  # without padding and without a mask all tokens count, as upstream
    ours, theirs = (m(rows, labels=labels.clamp(min=0)).loss for m in (both.ours, both.theirs))
    assert torch.equal(ours, theirs)


# ---------------------------------------------------------------------------------------------------------------
# All of them


@each_relative
def test_the_engine_equals_the_readable_path_with_padding_inside_a_row_and_with_pairs(family):
    encoder = minibert.Encoder(small_config(family, num_hidden_layers=3)).eval()
    randomise(encoder, 4)
    pad = encoder.config.pad_token_id
    rows = [[5, 6, pad, 8], [9], [3, pad, pad, 4, 7, 6, 5, 4, 3, 2, 9], [3, 4, 5, 6], [pad], [8, 9, pad, pad]]
    engine, states = Engine(encoder), tuple(range(len(encoder.config.architecture.order) + 1))
    recipes = [minibert.Recipe("cls"), minibert.Recipe("mean", layers=states), minibert.Recipe("cls", batch_tokens=12)]
    for recipe in recipes:
        for pairs in (None, [2, 1, 5, 3, 1, 2]):
            expected = readable_vectors(encoder, rows, recipe, second=pairs)
            assert np.abs(engine.vectors(rows, recipe, second=pairs) - expected).max() <= 1e-5
    if family is ROBERTA:  # an engine that counts padding would be caught
        engine.padding_id = -1
        assert np.abs(engine.vectors(rows) - readable_vectors(encoder, rows)).max() > 1e-3


def test_a_pair_needs_no_segments_where_special_tokens_tell_it():
    encoder = minibert.Encoder(small_config(ROBERTA, type_vocab_size=1)).eval()
    assert np.array_equal(Engine(encoder).vectors([[5, 6, 7]], second=[1]), Engine(encoder).vectors([[5, 6, 7]]))
    with pytest.raises(ValueError, match="pair"):
        Engine(minibert.Encoder(small_config(ERNIE, type_vocab_size=1))).vectors([[5, 6, 7]], second=[1])


@each_relative
def test_a_head_that_a_relative_lacks_is_refused_with_the_reason(family):
    for head in HEAD_CLASSES.keys() - family.heads.keys():
        with pytest.raises(ValueError, match=rf"{family.name} .*'{head}'"):
            HEAD_CLASSES[head](small_config(family, num_labels=2))


def test_a_head_within_anothers_name_is_not_taken_for_it(written):
    """The classifier of texts is classifier.dense and classifier.out_proj, that of tokens classifier alone."""
    folder, _ = written(ROBERTA, "sequence-classification")
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.has_head("sequence-classification") and not checkpoint.has_head("token-classification")
    for family, head in ((ALBERT, "pretraining"), (ELECTRA, "masked-lm")):
        assert Checkpoint.open(written(family, head)[0]).has_head("masked-lm")


@each_relative
def test_inspect_says_what_a_relative_has_otherwise(family, written):
    words = {
        "albert": "1 distinct layers for 2 steps",
        "electra": "tables 13 wide",
        "ernie": "3 tasks",
        "modernbert": "rotary positions; 1 of the layers see a window of 4",
    }.get(family.name, "positions from 2, of real tokens only")
    text = checkpoint_text(inspect(str(written(family)[0])))
    assert words in text and "11 positions" in text
