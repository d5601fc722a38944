"""The parity ladder: equal where it should be, and each mistake made on purpose found at the stage where it is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mistakes import (
    bias_added_twice,
    bias_not_loaded,
    choices_mixed,
    classes_swapped,
    cut_off,
    dropout_after_the_sum,
    dropout_on_embeddings_left_out,
    dropout_on_scores,
    dropout_on_values,
    embedding_norm_left_out,
    heads_interleaved,
    heads_joined_interleaved,
    layers_swapped,
    mask_ignored,
    mask_inverted,
    norms_swapped,
    pooler_on_the_last_token,
    pooler_without_tanh,
    positions_off_by_one,
    query_and_key_swapped,
    residual_dropped,
    segments_ignored,
    softmax_over_queries,
    start_and_end_swapped,
    untied,
    wrong_activation,
    wrong_activation_everywhere,
    wrong_eps,
    wrong_scale,
)
from torch import Tensor, nn

import minibert
from minibert import heads, model
from minibert.checkpoints import fill as weights
from minibert.checkpoints import hub
from minibert.lab import stages
from minibert.lab.parity import ladder
from minibert.lab.parity.causes import explain
from minibert.lab.parity.checkpoints import (
    TINY,
    Size,
    Task,
    heads_of,
    make,
    make_batch,
    task,
    tiny,
)
from minibert.lab.parity.compare import (
    DROPOUT,
    RUNGS,
    Row,
    compare,
    compare_full_length,
    compare_tensors,
    compare_training,
    first_divergent,
    row,
)
from minibert.lab.stages import Place, record

TYPES = ("bert", "distilbert")
Model = Any
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def pair(tmp_path: Path) -> Callable[..., tuple[Model, Model, Task]]:
    """Makes one random checkpoint, opened by both sides, and a task for it."""

    def make_pair(head: str | None, model_type: str = "bert", **changes: Any) -> tuple[Model, Model, Task]:
        size = tiny("pair", model_type, **changes)
        theirs = make(size, head, tmp_path)
        return minibert.load(tmp_path, head=head), theirs, task(head, theirs.config, size.tokens)

    return make_pair


def climb(ours: Model, theirs: Model, asked: Task) -> list[Row]:
    """All rungs for one head."""
    rows = compare(ours, theirs, asked.batch, asked.labels or None)
    return rows + (compare_training(ours, theirs, asked.batch, asked.labels) if asked.labels else [])


# Equal


@pytest.mark.parametrize("size", TINY, ids=lambda size: size.name)
def test_a_tiny_checkpoint_is_bit_identical_on_every_rung(size: Size) -> None:
    result = ladder.climb_random(size)
    assert first_divergent(result.rows) is None
    assert all(r.equal for r in result.rows)
    assert {r.rung for r in result.rows} == set(RUNGS)
    assert {r.head for r in result.rows} == {"encoder", *heads_of(size.model_type)}


def test_the_real_encoder_is_bit_identical_at_every_stage(minilm: Path) -> None:
    theirs, complete = ladder.checkpoints.open_upstream(minilm, "bert", None, pooler=True)
    rows = compare(minibert.load(minilm), theirs, make_batch(theirs.config, 24))
    assert complete
    assert len(rows) == 6 + 6 * 15 + 2
    assert all(r.equal for r in rows)


SIZES = st.fixed_dictionaries(
    {
        "num_attention_heads": st.integers(1, 4),
        "num_hidden_layers": st.integers(1, 3),
        "intermediate_size": st.integers(1, 70),
        "vocab_size": st.integers(3, 120),
        "max_position_embeddings": st.integers(2, 40),
        "hidden_act": st.sampled_from(sorted(model.ACTIVATION)),
        "hidden_dropout_prob": st.sampled_from([0.0, 0.1, 0.5]),
        "attention_probs_dropout_prob": st.sampled_from([0.0, 0.2]),
        "num_labels": st.integers(1, 4),
    }
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), sizes=SIZES, width=st.integers(1, 9), model_type=st.sampled_from(TYPES))
def test_any_configuration_and_any_batch_are_bit_identical(
    data: st.DataObject, sizes: dict[str, Any], width: int, model_type: str, tmp_path: Path
) -> None:
    head = data.draw(st.sampled_from([None, *heads_of(model_type)]))
    if model_type == "bert":
        sizes |= {"type_vocab_size": data.draw(st.integers(1, 4)), "layer_norm_eps": data.draw(st.floats(1e-12, 1e-3))}
    size = tiny("drawn", model_type, hidden_size=width * sizes["num_attention_heads"], **sizes)
    theirs = make(size, head, tmp_path)
    asked = task(head, theirs.config, data.draw(st.integers(1, size.tokens)), seed=data.draw(st.integers(0, 99)))
    rows = climb(minibert.load(tmp_path, head=head), theirs, asked)
    assert [r.place for r in rows if not r.equal] == []


@pytest.mark.parametrize("model_type", TYPES)
@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification", "regression"])
def test_every_kind_of_label_of_a_text_gives_the_same_loss(problem: str, model_type: str, pair: Any) -> None:
    ours, theirs, asked = pair("sequence-classification", model_type, problem_type=problem)
    assert first_divergent(climb(ours, theirs, asked)) is None


@pytest.mark.parametrize("model_type", TYPES)
def test_a_checkpoint_is_compared_with_the_head_that_it_holds(model_type: str, tmp_path: Path) -> None:
    make(tiny("with a head", model_type), "masked-lm", tmp_path)
    result = ladder.climb_checkpoint(hub.locate(tmp_path))
    assert result.rows and all(r.equal for r in result.rows)
    held = ladder.checkpoints.open_upstream(tmp_path, model_type, "masked-lm", pooler=False)[1]
    other = ladder.checkpoints.open_upstream(tmp_path, model_type, "token-classification", pooler=False)[1]
    assert (held, other) == (True, False)


# What is compared


def test_the_batch_has_rows_of_length_1_and_full_and_all_segments_and_no_row_of_padding_alone() -> None:
    config = minibert.Config(type_vocab_size=3)
    for seed in range(20):
        batch = make_batch(config, 12, seed=seed)
        lengths = batch.attention_mask.sum(dim=1)
        assert lengths.min() == 1
        assert lengths.max() == 12
        assert batch.token_type_ids[batch.attention_mask == 1].unique().tolist() == [0, 1, 2]
        padding = batch.attention_mask == 0
        assert (batch.input_ids[padding] == 0).any()
        assert (batch.input_ids[padding] != 0).any()


@pytest.mark.parametrize("model_type", TYPES)
def test_every_row_of_the_table_is_read_on_both_sides(model_type: str, pair: Any) -> None:
    seen = []
    for side in range(2):
        found = set()
        for head in (None, *heads_of(model_type)):
            both = pair(head, model_type)
            found |= {place.stage for place in record(both[side], both[2].batch)}
        seen.append(found)
    column = stages.COLUMN[model_type]
    assert seen[0] == seen[1] == {stage[0] for stage in stages.STAGES if stage[column]}


def test_the_table_of_stages_agrees_with_the_table_of_weights() -> None:
    known = {row[0]: row[1:] for row in weights.ENCODER + weights.HEADS}
    named = [(row[1], row[2:4]) for row in stages.STAGES if row[1] in known]
    assert len(named) > 20
    assert all(known[ours] == theirs for ours, theirs in named)


@pytest.mark.parametrize("side", [0, 1])
def test_scores_probs_and_context_are_those_that_were_computed(side: int, pair: Any) -> None:
    both = pair(None)
    tensors = record(both[side], both[2].batch)
    for layer in range(2):
        scores, probs, context = (tensors[Place(stage, layer)] for stage in ("scores", "probs", "context"))
        assert torch.equal(scores.softmax(dim=-1), probs)
        value = tensors[Place("value", layer)].unflatten(-1, (3, 8)).transpose(1, 2)
        assert torch.equal(probs @ value, context)
        assert (scores == torch.finfo(torch.float32).min).any()


def test_a_difference_is_counted_in_units_in_the_last_place() -> None:
    one = torch.tensor([1.0, -1.0, 0.0])
    near = torch.tensor([1.0, -1.0, 0.0]).nextafter(torch.tensor([2.0, -2.0, -1.0]))
    found = row("tensors", Place("x"), near, one)
    assert (found.ulp, found.equal, found.index) == (1, False, (0,))
    assert found.largest == pytest.approx(2**-23)
    twin = row("tensors", Place("x"), torch.tensor([-1e-45]), torch.tensor([1e-45]))
    assert twin.ulp == 2  # across zero


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_never_passes_within_a_bound(value: float) -> None:
    found = row("tensors", Place("x"), torch.tensor([1.0, value]), torch.tensor([1.0, 2.0]), bound=0.5)
    assert not found.ok


def test_a_zero_of_the_other_sign_is_not_bit_identical() -> None:
    found = row("tensors", Place("x"), torch.tensor([-0.0]), torch.tensor([0.0]))
    assert (found.equal, found.ulp, found.ok) == (False, 0, True)


def test_a_tensor_that_one_side_lacks_or_that_has_another_shape_differs() -> None:
    x, y = {Place("x"): torch.ones(2)}, {Place("y"): torch.ones(2)}
    assert [r.ok for r in compare_tensors("tensors", x, y)] == [False, False]
    assert not row("tensors", Place("x"), torch.ones(2), torch.ones(3)).ok


# Mistakes made on purpose


# head, mistake, the first tensor that must be named, words that the cause must have
MISTAKES = [
    ("masked-lm", query_and_key_swapped, "layer 0 query", "swapped weights"),
    ("masked-lm", layers_swapped, "layer 0 query", "swapped weights"),
    ("masked-lm", norms_swapped, "layer 1 attention norm", "swapped norms"),
    ("masked-lm", positions_off_by_one, "position embeddings", "positions: upstream's are one lower"),
    ("masked-lm", bias_not_loaded, "layer 1 expand", "missing bias"),
    ("masked-lm", segments_ignored, "segment embeddings", "segments: minibert ignores them"),
    ("masked-lm", wrong_activation, "layer 1 activation", "activation: upstream computes gelu;"),
    ("masked-lm", wrong_activation_everywhere, "layer 0 activation", "activation: upstream computes gelu;"),
    ("masked-lm", wrong_eps, "embedding norm", "eps: upstream's LayerNorms have 1e-12"),
    ("masked-lm", mask_inverted, "layer 0 scores", "mask: minibert reads it inverted"),
    ("masked-lm", mask_ignored, "layer 0 scores", "mask: minibert ignores it"),
    ("masked-lm", wrong_scale, "layer 0 scores", "no known cause"),
    ("masked-lm", heads_interleaved, "layer 0 scores", "no known cause"),
    ("masked-lm", heads_joined_interleaved, "layer 0 attention output", "no known cause"),
    ("masked-lm", softmax_over_queries, "layer 0 probs", "no known cause"),
    ("masked-lm", residual_dropped, "layer 1 attention sum", "no known cause"),
    ("masked-lm", embedding_norm_left_out, "embedding norm", ""),
    ("next-sentence", pooler_on_the_last_token, "pooler dense", "no known cause"),
    ("next-sentence", pooler_without_tanh, "pooler", "no known cause"),
    ("masked-lm", bias_added_twice, "decoder", "no known cause"),
    ("next-sentence", classes_swapped, "next sentence", "weights not loaded"),
    ("question-answering", start_and_end_swapped, "span scores", "weights not loaded"),
    ("multiple-choice", choices_mixed, "logits: logits", "after its last layer"),
    ("masked-lm", untied, "gradients: encoder.embeddings.token.weight", "shares"),
    ("masked-lm", cut_off, "gradients: encoder.embeddings.token.weight", "cut off"),
    ("masked-lm", dropout_on_scores, f"{DROPOUT}: layer 0 scores", "dropout"),
    ("masked-lm", dropout_on_values, f"{DROPOUT}: layer 0 probs", "dropout"),
    ("masked-lm", dropout_on_embeddings_left_out, f"{DROPOUT}: embeddings", "dropout"),
    ("masked-lm", dropout_after_the_sum, f"{DROPOUT}: layer 0 attention norm", "dropout"),
]


@pytest.mark.parametrize(("head", "mistake", "place", "cause"), MISTAKES, ids=[m[1].__name__ for m in MISTAKES])
def test_a_mistake_is_found_at_its_stage_and_named(
    head: str, mistake: Callable[[Model], None], place: str, cause: str, pair: Any
) -> None:
    ours, theirs, asked = pair(head)
    mistake(ours)
    result = ladder.Result("mistaken", "a test")
    ladder.climb(result, ours, theirs, asked, head, train=True)
    assert result.first is not None
    assert result.first.place == place
    assert result.first.ours != result.first.theirs
    assert cause in result.cause


def test_dropout_after_attention_in_distilbert_is_found(pair: Any) -> None:
    ours, theirs, asked = pair("masked-lm", "distilbert")
    ours.encoder.layers[0].attention_dropout.p = 0.1
    assert first_divergent(climb(ours, theirs, asked)).place == f"{DROPOUT}: layer 0 attention sum"


def test_a_wrong_ignore_index_is_found_in_the_loss(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def counts_the_ignored(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), labels.clamp(min=0).flatten(), ignore_index=-1)

    monkeypatch.setattr(heads, "token_cross_entropy", counts_the_ignored)
    for head in ("masked-lm", "token-classification"):
        assert first_divergent(climb(*pair(head))).place == "losses: loss"


def test_a_loss_that_is_a_sum_instead_of_a_mean_is_found(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "cross_entropy", lambda x, y, *_: F.cross_entropy(x, y, reduction="sum"))
    assert first_divergent(climb(*pair("next-sentence"))).place == "losses: loss"


def test_a_mistake_at_the_last_position_is_found_by_a_row_of_full_length(pair: Any) -> None:
    ours, theirs, _ = pair(None)
    with torch.no_grad():
        ours.embeddings.position.weight[-1] += 1
    short = make_batch(ours.config, 5)
    assert first_divergent(compare(ours, theirs, short)) is None
    assert first_divergent(compare_full_length(ours, theirs, make_batch(ours.config, 11))) is not None


@pytest.mark.parametrize(("change", "decided_alike"), [(1e-3, True), (-2.0, False)])
def test_the_last_rung_says_whether_a_difference_changes_a_decision(
    change: float, decided_alike: bool, pair: Any
) -> None:
    ours, theirs, asked = pair("question-answering")
    with torch.no_grad():
        ours.qa_outputs.bias += change
        ours.qa_outputs.weight *= 1 + change
    rows = {r.place: r for r in compare(ours, theirs, asked.batch, asked.labels)}
    assert not rows["logits: end_logits"].ok
    assert rows["decisions: span"].ok is decided_alike


def drop_biases(theirs: Model) -> None:
    for module in theirs.modules():
        if isinstance(module, nn.Linear):
            module.register_parameter("bias", None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: [nn.init.zeros_(x.bias) for x in m.modules() if isinstance(x, nn.Linear)], "weights not loaded"),
        (lambda m: setattr(m.embeddings.LayerNorm, "eps", 1e-3), "eps: upstream's LayerNorms have 0.001"),
        (drop_biases, "missing bias: upstream's linear layers have none"),
    ],
    ids=["zero biases", "eps", "no biases"],
)
def test_the_cause_is_named_when_upstream_is_the_one_that_differs(change: Any, words: str, pair: Any) -> None:
    ours, theirs, asked = pair(None)
    change(theirs)
    first = first_divergent(compare(ours, theirs, asked.batch))
    assert first is not None
    assert words in explain(ours, theirs, asked.batch, first)


def test_a_bias_of_zeros_is_not_mistaken_for_an_upstream_tensor_that_is_all_zeros(pair: Any) -> None:
    ours, theirs, asked = pair(None)
    for encoder in (ours, theirs):
        nn.init.zeros_(encoder.pooler.dense.bias)
    nn.init.zeros_(ours.layers[1].feed_forward.expand.bias)
    first = first_divergent(compare(ours, theirs, asked.batch))
    assert explain(ours, theirs, asked.batch, first).startswith("missing bias: minibert's layers.1.feed_forward.expand")


def test_explaining_leaves_the_model_as_it_was(pair: Any) -> None:
    ours, theirs, asked = pair("masked-lm")
    wrong_scale(ours)
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    settings = [(m.eps if isinstance(m, nn.LayerNorm) else getattr(m, "activation", None)) for m in ours.modules()]
    first = first_divergent(compare(ours, theirs, asked.batch))
    explain(ours, theirs, asked.batch, first)
    assert all(torch.equal(before[name], value) for name, value in ours.state_dict().items())
    after = [(m.eps if isinstance(m, nn.LayerNorm) else getattr(m, "activation", None)) for m in ours.modules()]
    assert settings == after


# Within bounds


@pytest.mark.parametrize(
    ("dtype", "attention"),
    [(torch.float32, "sdpa"), (torch.float64, "eager"), (torch.bfloat16, "eager"), (torch.float16, "sdpa")],
)
def test_another_dtype_or_attention_stays_within_its_bound(dtype: torch.dtype, attention: str, tmp_path: Path) -> None:
    make(TINY[0], None, tmp_path)
    result = ladder.climb_path(hub.locate(tmp_path), "cpu", dtype, attention)
    assert [r.place for r in result.rows if not r.ok] == []
    assert not all(r.equal for r in result.rows)


def test_a_mistake_leaves_the_bound_of_the_fused_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(TINY[0], None, tmp_path)

    def ignores_the_mask(query: Tensor, key: Tensor, value: Tensor, keep: Tensor, dropout: nn.Dropout) -> Any:
        return F.scaled_dot_product_attention(query, key, value), None

    monkeypatch.setitem(model.ATTENTION, "sdpa", ignores_the_mask)
    result = ladder.climb_path(hub.locate(tmp_path), "cpu", torch.float32, "sdpa")
    assert result.first is not None
    assert result.first.place == "layer 0 context"
