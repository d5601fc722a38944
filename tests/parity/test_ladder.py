"""The parity ladder: models are equal bit for bit, and what the ladder compares, counts and explains."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.models import TESTED, Pair, unequal
from torch import nn

import minibert
from minibert import model
from minibert.activations import ACTIVATION
from minibert.checkpoints.checkpoint import Checkpoint
from minibert.families import FAMILIES
from minibert.families.bert import BERT
from minibert.families.distilbert import DISTILBERT
from minibert.families.electra import ELECTRA
from minibert.families.modernbert import BIASES, GLOBAL, LOCAL, MODERNBERT
from minibert.hooks import STAGES, Place, record
from minibert.parity import ladder
from minibert.parity.checkpoints import TINY, make, make_batch, mistake_upstream, open_upstream, task, tiny
from minibert.parity.compare import RUNGS, compare_tensor, compare_tensors, first_divergent
from minibert.storage import hub

# Equal


# By default one checkpoint of each family and the rare structures; `minibert parity` compares all.
DEFAULT = (
    *("head width 8, three segments, intermediate 37", "sinusoidal positions, one head", "three tasks", "one segment"),
    *("[PAD] is 5, gelu_new, two segments", "2 groups of 2 layers, 5 steps", "tables as wide as the layers"),
)
SIZED = [
    pytest.param(size, id=size.name, marks=() if size.name.endswith(DEFAULT) else pytest.mark.slow) for size in TINY
]


@pytest.mark.parametrize("size", SIZED)
def test_a_tiny_checkpoint_is_bit_identical_on_every_rung(size):
    result = ladder.climb_random(size)
    assert first_divergent(result.rows) is None
    assert unequal(result.rows) == []
    assert {r.rung for r in result.rows} == set(RUNGS)
    assert {r.head for r in result.rows} == {"encoder", *size.family.heads}


@pytest.mark.parametrize("family", [DISTILBERT, MODERNBERT], ids=["distilbert", "modernbert"])
def test_two_tokens_of_a_width_that_is_no_multiple_of_4_are_bit_identical_in_every_head(family):
    size = tiny("6 wide", family, hidden_size=6, num_hidden_layers=1, max_position_embeddings=2)
    result = ladder.climb_random(size)
    assert unequal(result.rows) == []
    assert {r.head for r in result.rows} == {"encoder", *family.heads}


def test_the_real_encoder_is_bit_identical_at_every_stage_and_at_512_tokens(minilm):
    theirs, complete = open_upstream(minilm, BERT, None, pooler=True)
    result = ladder.Result("MiniLM", "a test")
    ladder.climb(result, minibert.load(minilm), theirs, task(None, theirs.config, 24), None, train=False)
    assert complete
    assert len(result.rows) == 6 + 6 * 15 + 2 + 7
    assert unequal(result.rows) == []


SIZES = st.fixed_dictionaries(
    {
        "num_attention_heads": st.integers(1, 4),
        "num_hidden_layers": st.integers(1, 3),
        "intermediate_size": st.integers(1, 70),
        "vocab_size": st.integers(4, 120),
        "max_position_embeddings": st.integers(2, 40),
        "pad_token_id": st.sampled_from([0, 3]),
        "hidden_act": st.sampled_from(sorted(ACTIVATION)),
        "hidden_dropout_prob": st.sampled_from([0.0, 0.1, 0.5]),
        "attention_probs_dropout_prob": st.sampled_from([0.0, 0.2]),
        "num_labels": st.integers(1, 4),
    }
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data(), sizes=SIZES, width=st.integers(1, 9), family=st.sampled_from(list(FAMILIES.values())))
def test_any_configuration_and_any_batch_are_bit_identical(data, sizes, width, family, tmp_path):
    head = data.draw(st.sampled_from([None, *family.heads]))
    if "embeddings.task" in family.modules:
        sizes["use_task_id"] = data.draw(st.booleans())
    if family.has_segments:
        sizes |= {"type_vocab_size": data.draw(st.integers(1, 4)), "layer_norm_eps": data.draw(st.floats(1e-12, 1e-3))}
    else:
        sizes["sinusoidal_pos_embds"] = data.draw(st.booleans())
    if family is MODERNBERT:
        width += width % 2
        sizes |= {name: data.draw(st.booleans()) for name in (*BIASES, "decoder_bias")}
        sizes |= {"local_attention": data.draw(st.integers(0, 50)), "layer_norm_eps": data.draw(st.floats(1e-12, 1e-3))}
        sizes["classifier_pooling"] = data.draw(st.sampled_from(["cls", "mean"]))
        types = st.lists(st.sampled_from([GLOBAL, LOCAL]), min_size=3, max_size=3)
        sizes["layer_types"] = data.draw(types)[: sizes["num_hidden_layers"]]
        del sizes["sinusoidal_pos_embds"]
    size = tiny("drawn", family, hidden_size=width * sizes["num_attention_heads"], **sizes)
    theirs = make(size, head, tmp_path)
    drawn = task(head, theirs.config, data.draw(st.integers(1, size.tokens)), seed=data.draw(st.integers(0, 99)))
    assert unequal(Pair(minibert.load(tmp_path, head=head), theirs, drawn, head).climb().rows) == []


@pytest.mark.parametrize("family", [BERT, ELECTRA], ids=["bert", "electra"])
def test_a_checkpoint_is_compared_with_the_head_that_it_holds(family, written):
    folder, _ = written(family, "masked-lm")
    result = ladder.climb_checkpoint(Checkpoint.open(folder))
    assert result.rows and unequal(result.rows) == []
    held = [open_upstream(folder, family, head, pooler=False)[1] for head in ("masked-lm", "token-classification")]
    assert held == [True, False]


# What is compared


def test_the_batch_has_rows_of_length_1_and_full_and_all_segments_and_no_row_of_padding_alone():
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


def test_every_stage_is_read_on_both_sides(pair):
    stages = set()
    for family, head in [(kind, head) for kind in TESTED for head in (None, *kind.heads)]:
        both = pair(family, head)
        ours, theirs = (set(record(model, both.task.batch)) for model in (both.ours, both.theirs))
        assert ours == theirs, (family.name, head)
        stages |= {place.stage for place in ours}
    assert stages == {stage for stage, _, _ in STAGES}


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_scores_probs_and_context_are_those_that_were_computed(side, pair):
    both = pair()
    tensors = record(getattr(both, side), both.task.batch)
    for layer in range(2):
        scores, probs, context = (tensors[Place(stage, layer)] for stage in ("scores", "probs", "context"))
        assert torch.equal(scores.softmax(dim=-1), probs)
        value = tensors[Place("value", layer)].unflatten(-1, (3, 8)).transpose(1, 2)
        assert torch.equal(probs @ value, context)
        assert (scores == torch.finfo(torch.float32).min).any()


NEAR = torch.ones(1).nextafter(torch.tensor([2.0]))
DOUBLE = torch.ones(1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("ours", "theirs", "equal", "ulp", "largest"),
    [
        (NEAR, torch.ones(1), False, 1, 2**-23),
        (torch.tensor([-1e-45]), torch.tensor([1e-45]), False, 2, 2.8e-45),  # across zero
        (torch.tensor([-0.0]), torch.tensor([0.0]), False, 0, 0.0),
        (DOUBLE + 1e-12, DOUBLE, False, 0, 1e-12),
        (DOUBLE + 1e-12, DOUBLE.float(), True, 0, 0.0),
    ],
)
def test_a_difference_is_exact_and_counted_in_units_in_the_last_place(ours, theirs, equal, ulp, largest):
    found = compare_tensor("tensors", Place("x"), ours, theirs)
    assert (found.equal, found.ulp, found.index) == (equal, ulp, None if equal else (0,))
    assert found.largest == pytest.approx(largest, rel=1e-3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_never_passes_within_a_bound(value):
    assert not compare_tensor("tensors", Place("x"), torch.tensor([1.0, value]), torch.tensor([1.0, 2.0]), bound=0.5).ok


def test_a_tensor_that_one_side_lacks_or_that_has_another_shape_differs():
    x, y = {Place("x"): torch.ones(2)}, {Place("y"): torch.ones(2)}
    assert [r.ok for r in compare_tensors("tensors", x, y)] == [False, False]
    assert not compare_tensor("tensors", Place("x"), torch.ones(2), torch.ones(3)).ok


@pytest.mark.parametrize(("change", "decided_alike"), [(1e-3, True), (-2.0, False)])
def test_the_last_rung_says_whether_a_difference_changes_a_decision(change, decided_alike, pair):
    both = pair(head="question-answering")
    with torch.no_grad():
        both.ours.qa_outputs.bias += change
        both.ours.qa_outputs.weight *= 1 + change
    rows = {r.place: r for r in both.compare()}
    assert not rows["logits: end_logits"].ok
    assert rows["decisions: span"].ok is decided_alike


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: [nn.init.zeros_(x.bias) for x in m.modules() if isinstance(x, nn.Linear)], "weights not loaded"),
        (lambda m: setattr(m.embeddings.LayerNorm, "eps", 1e-3), "eps: upstream's LayerNorms have 0.001"),
        (
            lambda m: [x.register_parameter("bias", None) for x in m.modules() if isinstance(x, nn.Linear)],
            "missing bias: upstream's linear layers have none",
        ),
    ],
    ids=["zero biases", "eps", "no biases"],
)
def test_the_cause_is_named_when_upstream_is_the_one_that_differs(change, words, pair):
    both = pair()
    change(both.theirs)
    result = both.climb()
    assert result.first is not None
    assert words in result.cause


def test_a_bias_of_zeros_is_not_mistaken_for_an_upstream_tensor_that_is_all_zeros(pair):
    both = pair()
    for encoder in (both.ours, both.theirs):
        nn.init.zeros_(encoder.pooler.dense.bias)
    nn.init.zeros_(both.ours.layers[1].feed_forward.expand.bias)
    assert both.climb().cause.startswith("missing bias: minibert's layers.1.feed_forward.expand")


# Within bounds


@pytest.mark.parametrize(
    ("dtype", "attention"),
    [(torch.float32, "sdpa"), (torch.float64, "eager"), (torch.bfloat16, "eager"), (torch.float16, "sdpa")],
)
def test_another_dtype_or_attention_stays_within_its_bound(dtype, attention, tmp_path):
    make(TINY[0], None, tmp_path)
    result = ladder.climb_path(Checkpoint.open(tmp_path), "cpu", dtype, attention)
    assert [r.place for r in result.rows if not r.ok] == []
    assert not all(r.equal for r in result.rows)


def test_a_mistake_leaves_the_bound_of_the_fused_attention(tmp_path, monkeypatch):
    make(TINY[0], None, tmp_path)

    def ignores_the_mask(query, key, value, keep, dropout):
        return F.scaled_dot_product_attention(query, key, value), None

    monkeypatch.setitem(model.ATTENTION, "sdpa", ignores_the_mask)
    result = ladder.climb_path(Checkpoint.open(tmp_path), "cpu", torch.float32, "sdpa")
    assert result.first is not None
    assert result.first.place == "layer 0 context"


def test_a_task_head_that_an_older_transformers_builds_wrongly_is_seen(tmp_path):
    """Its pooler is missing, or the bias of its decoder is there twice."""
    theirs = make(TINY[0], "multiple-choice", tmp_path / "choice")
    assert mistake_upstream(theirs, "multiple-choice", tmp_path / "choice") == ""
    theirs.bert.pooler = None
    assert mistake_upstream(theirs, "multiple-choice", tmp_path / "choice") == "without the pooler that it reads"
    theirs = make(TINY[0], "masked-lm", tmp_path / "mlm")
    assert mistake_upstream(theirs, "masked-lm", tmp_path / "mlm") == ""
    theirs.cls.predictions.decoder.bias = torch.nn.Parameter(theirs.cls.predictions.bias.detach().clone())
    assert mistake_upstream(theirs, "masked-lm", tmp_path / "mlm") == "with two biases in place of one"


ROW = [0, 345, 232, 328, 740, 140, 1695, 69, 6078, 1588, 2]  # the first token is masked
PAIR = [101, 1045, 2001, 24907, 999, 102, 1045, 10749, 2300, 1024, 1040, 102]  # "I was thirsty!", "I drank water :D"
WITHOUT_PADDING = {
    "FacebookAI/roberta-base": [0, 31414, 232, 328, 740, 1140, 12695, 69, 46078, 1588, 2],
    "FacebookAI/xlm-roberta-base": [0, 581, 10269, 83, 99942, 136, 60742, 23, 70, 80583, 18276, 2],
    "almanach/camembert-base": [5, 121, 11, 660, 16, 730, 25543, 110, 83, 6],  # "J'aime le camembert !"
}
LAST_HIDDEN_STATE = {
    "distilbert-base-uncased": [[-0.1639, 0.3299, 0.1648], [-0.1746, 0.3289, 0.1710], [-0.1884, 0.3357, 0.1810]],
    "bert-base-uncased": [[0.4249, 0.1008, 0.7531], [0.3771, 0.1188, 0.7467], [0.4152, 0.1098, 0.7108]],
    "albert/albert-base-v2": [[-0.6513, 1.5035, -0.2766], [-0.6515, 1.5046, -0.2780], [-0.6512, 1.5049, -0.2784]],
    "google/electra-small-discriminator": [
        [0.4471, 0.6821, -0.3265],
        [0.4627, 0.5255, -0.3668],
        [0.4532, 0.3313, -0.4344],
    ],
    "FacebookAI/roberta-base": [[-0.0231, 0.0782, 0.0074], [-0.1854, 0.0540, -0.0175], [0.0548, 0.0799, 0.1687]],
    "almanach/camembert-base": [[-0.0254, 0.0235, 0.1027], [0.0606, -0.1811, -0.0418], [-0.1561, -0.1127, 0.2687]],
    "FacebookAI/xlm-roberta-base": [  # the last number of each token
        *(-0.0101, 0.1218, -0.0803, 0.0801, 0.1327, 0.0776, -0.1215, 0.2383, 0.3338, 0.3106, 0.0300, 0.0252)
    ],
}
ROBERTA_LOGITS = [[33.8802, -4.3103, 22.7761], [4.6539, -2.8098, 13.6253], [1.8228, -3.6898, 8.8600]]
CLS_OF_PAIR = [-0.23, 0.37, -0.34, -0.35, -0.91, 0.01, 0.67, 0.64, 0.1, -0.32]
POOLER_OF_PAIR = [-0.9803, -0.7672, -0.9958, 0.9636, 0.9004, -0.5488, 0.9910, 0.6867, -0.9878, -1.0000]


@pytest.mark.parametrize("name", LAST_HIDDEN_STATE)
@torch.no_grad()
def test_an_official_checkpoint_gives_its_published_values(name):
    if hub.locate_locally(name) is None:
        pytest.skip(f"{name} is not on this machine; `minibert download {name}` fetches it")
    encoder = minibert.load(name)
    ids = torch.tensor([WITHOUT_PADDING.get(name, ROW)])
    mask = torch.ones_like(ids) if name in WITHOUT_PADDING else (torch.arange(len(ROW)) > 0).long()[None]
    state = encoder(ids, attention_mask=mask).last_hidden_state[0]
    first = slice(3) if name in WITHOUT_PADDING else slice(1, 4)
    shown = state[:, -1] if name == "FacebookAI/xlm-roberta-base" else state[first, first]
    published = [(shown, LAST_HIDDEN_STATE[name], 1e-3 if shown.dim() == 1 else 1e-4)]
    if name == "bert-base-uncased":
        pair = encoder(torch.tensor([PAIR]), token_type_ids=torch.tensor([[0] * 6 + [1] * 6]))
        published.append((pair.last_hidden_state[0, 0, :10], CLS_OF_PAIR, 6e-3))
        published.append((pair.pooler_output[0, :10], POOLER_OF_PAIR, 1e-4))
    if name == "FacebookAI/roberta-base":
        logits = minibert.load(name, head="masked-lm")(ids).logits[0, :3, :3]
        published.append((logits, ROBERTA_LOGITS, 1e-4))
    for ours, expected, within in published:
        torch.testing.assert_close(ours, torch.tensor(expected), rtol=0, atol=within)
