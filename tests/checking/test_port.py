"""A model: right within rounding, wrong with its cause, located where no cause is known."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import minibert
from minibert.checking.expected import Expected
from minibert.checking.report import Report
from minibert.checkpoints.checkpoint import Checkpoint

NOVELS = "minibert-novels"
Theirs = Callable[..., Any]


def theirs(folder: Path, head: bool = False, **how: Any) -> Any:
    """The model of transformers, which knows nothing of ours."""
    import transformers

    kind = transformers.AutoModelForMaskedLM if head else transformers.AutoModel
    return kind.from_pretrained(folder, attn_implementation="eager", **how).eval()


@pytest.fixture(scope="module")
def novels() -> Path:
    return Checkpoint.open(NOVELS).folder


def test_a_model_of_transformers_is_right(novels):
    model = theirs(novels, head=True)
    report = minibert.check(lambda **x: model(**x, output_hidden_states=True, output_attentions=True), NOVELS)
    assert report.ok and report.causes == () and report.stage is None
    assert report.largest < 1e-4
    assert "hidden_states, attentions, logits" in str(report)


@pytest.mark.parametrize("family", ["distilbert", "electra", "albert", "modernbert"])
def test_relatives_are_right_too_and_a_wrong_one_is_located(family, tmp_path):
    from support.words import write_words_checkpoint

    folder = write_words_checkpoint(tmp_path / family, family)
    model = theirs(folder)

    def call(shift=0.0, **given):
        inputs = (
            given
            if family in ("roberta", "electra", "albert")
            else {k: given[k] for k in ("input_ids", "attention_mask")}
        )
        states = model(**inputs, output_hidden_states=True).hidden_states
        return {"hidden_states": [*states[:1], states[1] + shift, *states[2:]]}

    assert minibert.check(lambda **x: call(**x), folder).ok
    report = minibert.check(lambda **x: call(0.01, **x), folder)
    assert (report.ok, report.stage, report.layer, report.causes) == (False, "layer", 0, ())


def changed(novels: Path, change: Callable[[Any], None], all_states: bool) -> Report:
    model = theirs(novels)
    change(model)
    if all_states:
        return minibert.check(lambda **x: model(**x, output_hidden_states=True), NOVELS)
    return minibert.check(lambda **x: model(**x).last_hidden_state, NOVELS)


def eps(model: Any) -> None:
    for one in model.modules():
        if isinstance(one, torch.nn.LayerNorm):
            one.eps = 1e-5


def no_scale(model: Any) -> None:
    for one in model.encoder.layer:
        one.attention.self.scaling = 1.0


def tanh_gelu(model: Any) -> None:
    for one in model.encoder.layer:
        one.intermediate.intermediate_act_fn = torch.nn.GELU("tanh")


def exchanged(model: Any) -> None:
    for one in model.encoder.layer:
        own = one.attention.self
        own.query, own.key = own.key, own.query


@pytest.mark.parametrize("all_states", [True, False])
@pytest.mark.parametrize(
    ("change", "stage", "cause"),
    [
        (eps, "embeddings", "eps is 1e-5"),
        (no_scale, "layer", "not divided by √W"),
        (tanh_gelu, "layer", "approximated by tanh"),
        (exchanged, "layer", "query and key are exchanged"),
    ],
)
def test_the_mistakes_of_a_model_are_named_from_all_states_or_only_the_last(change, stage, cause, all_states, novels):
    report = changed(novels, change, all_states)
    assert not report.ok
    assert report.stage == (stage if all_states else "encoder")
    assert cause in report.causes[0]


def test_two_mistakes_of_a_model_are_both_named(novels):
    def both(model):
        eps(model)
        no_scale(model)

    report = changed(novels, both, all_states=True)
    assert "eps is 1e-5" in report.causes[0] and any("√W" in cause for cause in report.causes)


def test_an_unknown_mistake_is_located_at_its_layer(novels):
    def one_layer(model):
        with torch.no_grad():
            model.encoder.layer[2].output.dense.weight *= 1.1

    report = changed(novels, one_layer, all_states=True)
    assert (report.ok, report.stage, report.layer, report.causes) == (False, "layer", 2, ())
    assert "no known mistake" in str(report)


def test_a_model_in_a_lower_precision_is_right_within_its_own_bound(novels):
    model = theirs(novels, dtype=torch.bfloat16)
    report = minibert.check(lambda **x: model(**x).last_hidden_state, NOVELS)
    assert report.ok and report.largest > 1e-3
    rounded = theirs(novels)
    assert not minibert.check(lambda **x: rounded(**x).last_hidden_state.bfloat16().float(), NOVELS).ok


def test_dropout_that_is_left_on_is_named(novels):
    model = theirs(novels, hidden_dropout_prob=0.1).train()
    assert minibert.check(lambda **x: model(**x).last_hidden_state, NOVELS).causes == ("dropout is left on",)


def test_what_a_model_raises_or_returns_is_said(novels):
    assert "TypeError" in str(minibert.check(lambda **x: 1 + "a", NOVELS))
    assert "expected (5, " in str(minibert.check(lambda **x: torch.zeros(2, 3), NOVELS))
    with pytest.raises(ValueError, match="last_hidden_state"):
        minibert.check(lambda **x: None, NOVELS)
    with pytest.raises(ValueError, match="input_ids in place"):
        minibert.check(lambda **x: x["input_ids"].add_(1).float(), NOVELS)


def test_a_class_or_a_function_of_a_file_makes_the_model(novels, tmp_path, run):
    (tmp_path / "beside.py").write_text("NAME = 1\n")
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "import transformers\n"
        "from beside import NAME\n"
        "@dataclass\n"
        "class Sizes:\n"
        "    width: int = 3\n"
        "class Mine:\n"
        "    def __init__(self, folder):\n"
        "        self.model = transformers.BertModel.from_pretrained(folder).eval()\n"
        "    def __call__(self, input_ids, attention_mask, token_type_ids):\n"
        "        return self.model(input_ids, attention_mask, token_type_ids)\n"
        "def make(folder):\n"
        "    return Mine(folder)\n"
    )
    for name in ("Mine", "make"):
        out = run("check", f"{tmp_path / 'mine.py'}:{name}", "--model", NOVELS, "--json")
        assert json.loads(out.splitlines()[-1])["ok"]
    assert "Mine, make" in run("check", f"{tmp_path / 'mine.py'}:Other", "--model", NOVELS, status=2)


def test_numbers_at_padding_do_not_count(novels):
    expected = Expected(Checkpoint.open(novels))
    states = expected.right["last_hidden_state"].clone()
    states[expected.inputs["attention_mask"] == 0] = float("nan")
    assert minibert.check(lambda **x: states, NOVELS).ok


def test_the_weights_of_another_model_are_suspected(novels, pair, tmp_path):
    random = torch.Generator().manual_seed(0)
    shape = Expected(Checkpoint.open(novels)).right["hidden_states"].shape
    states = torch.randn(shape, generator=random)
    assert "nor do the weights of this checkpoint" in str(minibert.check(lambda **x: {"hidden_states": states}, NOVELS))


def one_segment(model: Any) -> None:
    table = model.embeddings.token_type_embeddings.weight.data
    table.copy_(table[:1].expand_as(table).clone())


class Quick(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(1.702 * x)


class OfHalf(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x.half().float())


def quick_gelu(model: Any) -> None:
    for one in model.encoder.layer:
        one.intermediate.intermediate_act_fn = Quick()


def no_output_bias(model: Any) -> None:
    for one in model.encoder.layer:
        one.attention.output.dense.bias.data.zero_()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (one_segment, "all tokens are in segment 0"),
        (quick_gelu, "sigmoid"),
        (no_output_bias, "the bias of attention.output is left out"),
        (exchanged, "query and key are exchanged"),
    ],
)
def test_mistakes_that_exceed_the_rounding_of_half_precision_are_named_from_the_last_states(
    change, cause, dtype, novels
):
    model = theirs(novels, dtype=dtype)
    assert minibert.check(lambda **x: model(**x).last_hidden_state, NOVELS).ok  # the control
    change(model)
    report = minibert.check(lambda **x: model(**x).last_hidden_state, NOVELS)
    assert not report.ok
    assert cause in report.causes[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_right_model_of_half_precision_is_right_with_all_its_outputs(dtype, novels):
    model = theirs(novels, head=True, dtype=dtype)
    report = minibert.check(lambda **x: model(**x, output_hidden_states=True, output_attentions=True), NOVELS)
    assert report.ok


def no_decoder_bias(model: Any) -> None:
    model.cls.predictions.bias.data.zero_()
    model.cls.predictions.decoder.bias.data.zero_()


def no_transform_norm(model: Any) -> None:
    model.cls.predictions.transform.LayerNorm = torch.nn.Identity()


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (no_decoder_bias, "the bias of the decoder is left out"),
        (no_transform_norm, "the LayerNorm of the transform is left out"),
    ],
)
def test_a_mistake_of_the_head_is_named(change, cause, novels):
    model = theirs(novels, head=True)
    change(model)
    report = minibert.check(lambda **x: model(**x, output_hidden_states=True), NOVELS)
    assert (report.stage, report.causes) == ("logits", (cause,))


def int8_weights(model: Any) -> None:
    for one in model.encoder.modules():
        if isinstance(one, torch.nn.Linear):
            scale = one.weight.data.abs().amax(dim=1, keepdim=True) / 127
            one.weight.data = (one.weight.data / scale).round() * scale


def gelu_of_half(model: Any) -> None:
    for one in model.encoder.layer:
        one.intermediate.intermediate_act_fn = OfHalf()


def megatron(model: Any) -> None:
    for one in model.encoder.layer:
        own = one.attention.self
        for kind in ("weight", "bias"):
            fused = torch.cat([getattr(part, kind).data for part in (own.query, own.key, own.value)])
            parts = fused.reshape(own.num_attention_heads, 3, -1, *fused.shape[1:]).movedim(1, 0)
            for part, value in zip((own.query, own.key, own.value), parts, strict=True):
                getattr(part, kind).data.copy_(value.reshape(getattr(part, kind).shape))


def scaled_weight(model: Any) -> None:
    for one in model.encoder.layer:
        own = one.attention.self
        own.query.weight.data *= own.scaling
        own.scaling = 1.0


def no_query_bias(model: Any) -> None:
    for one in model.encoder.layer:
        one.attention.self.query.bias.data.zero_()


def second_layer_twice(model: Any) -> None:
    layer = model.encoder.layer[1]
    forward = layer.forward

    def twice(x, *more, **how):
        return forward(forward(x, *more, **how), *more, **how)

    layer.forward = twice


@pytest.mark.parametrize("all_states", [True, False])
@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (int8_weights, "rounded to int8, with a scale per row"),
        (megatron, "in Megatron's order: heads, 3, W"),
        (scaled_weight, "multiplied into the weight of query, but not into its bias"),
        (no_query_bias, "the bias of query is left out"),
        (second_layer_twice, "layer 1 is used twice"),
    ],
)
def test_what_porters_get_wrong_with_weights_is_named(change, cause, all_states, novels):
    report = changed(novels, change, all_states)
    assert not report.ok
    assert len(report.causes) == 1
    assert cause in report.causes[0]


def test_a_gelu_of_half_floats_whose_rounding_grows_is_the_only_cause(novels):
    report = changed(novels, gelu_of_half, all_states=True)
    assert report.causes == ("GELU is of x rounded to float16, as a table of half floats has it",)
    report = changed(novels, gelu_of_half, all_states=False)
    assert not report.ok and "--precision float16" in str(report)


def test_a_decoder_that_is_not_tied_is_suspected_where_all_before_it_is_right(novels):
    model = theirs(novels, head=True)
    decoder = model.cls.predictions.decoder
    decoder.weight = torch.nn.Parameter(torch.randn(decoder.weight.shape) * 0.02)
    report = minibert.check(lambda **x: model(**x, output_hidden_states=True), NOVELS)
    assert (report.ok, report.stage) == (False, "logits")
    assert "tied" in str(report)
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.bias[0] += 1
    assert "tied" not in str(minibert.check(lambda **x: model(**x, output_hidden_states=True), NOVELS))


def wrong_softmax(finite: bool) -> Callable[..., Any]:
    """The attention of a port whose softmax is over the queries; with -inf, rows of padding are NaN."""

    def attend(module, query, key, value, mask, **how):
        scores = query @ key.transpose(-1, -2) * module.scaling
        scores = scores + mask.clamp(min=-1e9) if finite else scores.masked_fill(mask < 0, float("-inf"))
        probabilities = torch.softmax(scores, dim=-2)
        return (probabilities @ value).transpose(1, 2), probabilities

    return attend


@pytest.mark.parametrize("finite", [True, False])
def test_softmax_over_the_queries_is_one_cause_at_its_layer(finite, novels, monkeypatch):
    from transformers.models.bert import modeling_bert

    monkeypatch.setattr(modeling_bert, "eager_attention_forward", wrong_softmax(finite))
    model = theirs(novels)
    report = minibert.check(lambda **x: model(**x, output_hidden_states=True), NOVELS)
    assert (report.stage, report.layer) == ("layer", 0)
    assert len(report.causes) == 1
    assert "softmax is over the queries" in report.causes[0]
    assert "1 times as large" not in str(report)


def test_mask_and_segments_that_are_exchanged_are_named_as_that(novels):
    model = theirs(novels)
    report = minibert.check(
        lambda input_ids, attention_mask, token_type_ids: (
            model(input_ids, attention_mask=token_type_ids, token_type_ids=attention_mask).last_hidden_state
        ),
        NOVELS,
    )
    assert "attention mask and segments are exchanged" in " ".join(report.causes)
    assert "segment 1" not in str(report)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({}, []),
        ({"layer_norm_eps": 1e-6}, []),  # which rounds to the same numbers
        ({"layer_norm_eps": 1e-5}, ["eps is 1e-5, torch's default", "eps is 1e-5 in the embeddings alone"]),
        ({"hidden_act": "gelu_new"}, ["GELU is approximated by tanh"]),
    ],
    ids=str,
)
def test_a_mistake_that_rounding_hides_is_named_with_all_that_rounding_cannot_tell_from_it(change, named, novels):
    """The first port is right: the control."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(novels, **change)
    model = theirs(novels, config=config, dtype=torch.float16)
    report = minibert.check(lambda **x: model(**x).last_hidden_state, NOVELS)
    assert report.ok == (not named)
    assert len(" ".join(report.causes).split(", or ")) == max(1, len(named))
    assert all(cause in " ".join(report.causes) for cause in named)
