"""Ports by transformers, of BERT and of relatives: right within rounding, wrong with their cause, or located."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.models import write_checkpoint
from support.tokenizers import byte_pairs
from support.words import write_words_checkpoint
from torch import nn

import minibert
from minibert.checking.expected import Expected
from minibert.checking.report import Report
from minibert.checkpoints.checkpoint import Checkpoint

RELATIVES = ("bert", "distilbert", "roberta", "electra", "albert", "modernbert")
SIZES: dict[str, dict[str, Any]] = {
    "roberta": {"layer_norm_eps": 1e-5, "pad_token_id": 1, "max_position_embeddings": 40},
    "modernbert": {"local_attention": 4, "num_hidden_layers": 4, "max_position_embeddings": 40},
    "gelu_new": {"hidden_act": "gelu_new"},
    "wide": {"embedding_size": 24},
}
Change = Callable[[Any], Any]
HALVES = (torch.float16, torch.bfloat16)
halves = pytest.mark.parametrize("dtype", HALVES)
from_last_or_all = pytest.mark.parametrize("layers", [False, True], ids=["last", "all"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a relative, of one with other sizes, or the real one."""
    made = {"novels": Checkpoint.open("minibert-novels").folder}

    def folder(name):
        if name not in made:
            made[name] = path = tmp_path_factory.mktemp(name)
            family = {"gelu_new": "bert", "wide": "electra"}.get(name, name)
            if family == "roberta":
                vocabulary, merges = byte_pairs()
                tokenizer = transformers.RobertaTokenizer(vocab=vocabulary, merges=merges)
                write_checkpoint(path, family, vocab_size=len(tokenizer), **SIZES[name])
                tokenizer.save_pretrained(path)
            else:
                write_words_checkpoint(path, family, **SIZES.get(name, {}))
        return made[name]

    return folder


@pytest.fixture(scope="module")
def novels(folders: Callable[[str], Path]) -> Path:
    return folders("novels")


def checked(
    folder: Path, change: Change, layers: bool = False, head: bool = False, dtype: Any = torch.float32, **config: Any
) -> Report:
    """The report on the model of transformers, changed; layers: it gives all states, not only the last."""
    kind = transformers.AutoModelForMaskedLM if head else transformers.AutoModel
    config = transformers.AutoConfig.from_pretrained(folder, **config)
    model = kind.from_pretrained(folder, config=config, attn_implementation="eager", dtype=dtype).eval()
    change(model)
    read = inspect.signature(model.forward).parameters

    def call(**given):
        given = {name: x for name, x in given.items() if name in read}
        result = model(**given, output_hidden_states=layers, output_attentions=layers and head)
        return result if layers or head else result.last_hidden_state

    return minibert.check(lambda **given: call(**given), folder)


# ---------------------------------------------------------------------------------------------------------------
# Mistakes


def nothing(model: Any) -> None:
    """The control: a right port."""


def each(pattern: str, change: Change) -> Change:
    """Change each module of such a name."""

    def make(model):
        modules = [module for name, module in model.named_modules() if re.search(pattern, name)]
        assert modules
        for module in modules:
            change(module)

    return make


def put(name: str, value: Any) -> Change:
    return lambda module: setattr(module, name, value)


def no_bias(path: str) -> Change:
    return each(f"{path}$", lambda module: module.bias.data.zero_())


def rounded_weights(dtype: torch.dtype) -> Change:
    return lambda model: [put("data", x.data.to(dtype).float())(x) for x in model.parameters()]


def moved(by: int) -> Change:
    return each("position_embeddings$", lambda table: table.weight.data.copy_(table.weight.data.roll(by, 0)))


def exchange(module: Any) -> None:
    module.query, module.key = module.key, module.query


def int8(module: Any) -> None:
    scale = module.weight.data.abs().amax(dim=1, keepdim=True) / 127
    module.weight.data = (module.weight.data / scale).round() * scale


def megatron(module: Any) -> None:
    parts = module.query, module.key, module.value
    for kind in ("weight", "bias"):
        fused = torch.cat([getattr(part, kind).data for part in parts])
        cut = fused.reshape(module.num_attention_heads, 3, -1, *fused.shape[1:]).movedim(1, 0)
        for part, value in zip(parts, cut, strict=True):
            getattr(part, kind).data.copy_(value.reshape(getattr(part, kind).shape))


def scaled_weight(module: Any) -> None:
    module.query.weight.data *= module.scaling
    module.scaling = 1.0


def twice(layer: Any) -> None:
    forward = layer.forward
    layer.forward = lambda x, *more, **how: forward(forward(x, *more, **how), *more, **how)


def as_if_pad_were_0(embeddings: Any) -> None:
    embed = embeddings.forward

    def forward(input_ids, **more):
        positions = (input_ids != 0).long().cumsum(1) * (input_ids != 0)
        return embed(input_ids=input_ids, **(more | {"position_ids": positions}))

    embeddings.forward = forward


def neighbours(attention: Any) -> None:
    weight = attention.Wqkv.weight.data.unflatten(0, (3, -1, attention.head_dim // 2, 2))  # of query, key and value
    weight[:2] = weight[:2].movedim(3, 2).reshape(weight[:2].shape)


def one_theta(model: Any) -> None:
    model.rotary_emb.sliding_attention_inv_freq = model.rotary_emb.full_attention_inv_freq


class OfHalf(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x.half().float())


ATTENTION = r"attention\.self$"
NO_SCALE, EXCHANGED = each(ATTENTION, put("scaling", 1.0)), each(ATTENTION, exchange)
GELU_OF_HALF = each("intermediate$", put("intermediate_act_fn", OfHalf()))
ONE_SEGMENT = each("token_type_embeddings$", lambda table: table.weight.data[1].copy_(table.weight.data[0]))


@from_last_or_all
@pytest.mark.parametrize("name", [*RELATIVES, "gelu_new", "wide"])
def test_a_right_port_is_right(name, layers, folders):
    report = checked(folders(name), nothing, layers)
    assert report.ok and not report.causes


@from_last_or_all
@pytest.mark.parametrize(
    ("name", "change", "config", "cause"),
    [
        ("novels", nothing, {"layer_norm_eps": 1e-5}, "eps is 1e-5"),
        ("bert", nothing, {"hidden_act": "gelu_new"}, "approximated by tanh"),
        ("novels", NO_SCALE, {}, "not divided by √W"),
        ("bert", EXCHANGED, {}, "query and key are exchanged"),
        ("bert", each(r"encoder.*(query|key|value|dense)$", int8), {}, "rounded to int8, with a scale per row"),
        ("bert", each(ATTENTION, megatron), {}, "in Megatron's order: heads, 3, W"),
        ("bert", each(ATTENTION, scaled_weight), {}, "multiplied into the weight of query, but not into its bias"),
        ("bert", no_bias("query"), {}, "the bias of query is left out"),
        ("bert", each(r"layer\.1$", twice), {}, "layer 1 is used twice"),
        ("bert", rounded_weights(torch.float16), {}, "the weights are rounded to float16"),
        ("bert", each(r"embeddings\.LayerNorm", put("eps", 1e-5)), {}, "eps is 1e-5 in the embeddings alone"),
        ("bert", each(r"encoder.*LayerNorm", put("eps", 1e-5)), {}, "eps is 1e-5 in the layers alone"),
        ("bert", each(r"layer\.1\.output$", put("LayerNorm", nn.Identity())), {}, "LayerNorm of the last layer"),
        ("distilbert", nothing, {"activation": "gelu_new"}, "GELU is approximated by tanh"),
        ("distilbert", nothing, {"n_heads": 6}, "there are twice as many heads"),
        ("distilbert", rounded_weights(torch.bfloat16), {}, "the weights are rounded to bfloat16"),
        ("roberta", nothing, {"layer_norm_eps": 1e-12}, "eps is 1e-12, not 1e-05"),
        ("roberta", moved(2), {}, "positions begin at 0, not at 2"),
        ("roberta", moved(1), {}, "positions begin at 1, not at 2"),
        ("roberta", moved(-1), {}, "positions begin at 3, not at 2"),
        ("roberta", each("^embeddings$", as_if_pad_were_0), {}, "as if [PAD] were id 0"),
        ("wide", nothing, {"layer_norm_eps": 1e-5}, "eps is 1e-5, torch's default, not 1e-12"),
        ("electra", nothing, {"layer_norm_eps": 1e-5}, "eps is 1e-5, not 1e-12"),
        ("electra", no_bias("embeddings_project"), {}, "the projection"),
        ("gelu_new", nothing, {"hidden_act": "gelu"}, "the activation is gelu, not gelu_new"),
        ("gelu_new", moved(-1), {}, "positions begin at 1, not at 0"),
        ("albert", nothing, {"hidden_act": "gelu"}, "the activation is gelu, not gelu_new"),
        ("albert", nothing, {"layer_norm_eps": 1e-5}, "eps is 1e-5, not 1e-12"),
        ("albert", no_bias("embedding_hidden_mapping_in"), {}, "the projection"),
        ("albert", no_bias("ffn_output"), {}, "the bias of contract"),
        ("albert", nothing, {"num_attention_heads": 6}, "twice as many heads"),
        ("modernbert", nothing, {"norm_eps": 1e-3}, ""),  # not known
        ("modernbert", nothing, {"local_attention": 1000}, "local layers attend to all tokens"),
        ("modernbert", nothing, {"local_attention": 8}, "the window is on each side"),
        (
            "modernbert",
            each("Wi$", lambda linear: linear.weight.data.copy_(linear.weight.data.roll(len(linear.weight) // 2, 0))),
            {},
            "activation and gate are exchanged",
        ),
        ("modernbert", put("final_norm", nn.Identity()), {}, "the final norm is left out"),
        ("modernbert", each("attn$", neighbours), {}, "neighbours are turned together"),
        ("modernbert", one_theta, {}, "the angles of the first"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_mistake_is_named_with_the_values_of_the_checkpoint(name, change, config, cause, layers, folders):
    report = checked(folders(name), change, layers, **config)
    assert not report.ok
    assert layers or report.stage == "encoder"
    assert len(report.causes) == bool(cause)
    assert cause in "".join(report.causes)


def test_two_mistakes_of_a_model_are_both_named_and_located_at_the_first(novels):
    report = checked(novels, NO_SCALE, layers=True, layer_norm_eps=1e-5)
    assert report.stage == "embeddings"
    assert "eps is 1e-5" in report.causes[0] and any("√W" in cause for cause in report.causes)


@pytest.mark.parametrize("name", ["novels", "distilbert", "electra", "albert", "modernbert"])
def test_an_unknown_mistake_is_located_at_its_layer(name, folders):
    states = Expected(Checkpoint.open(folders(name))).right["hidden_states"].clone()
    states[1] += 0.01
    report = minibert.check(lambda **x: {"hidden_states": states}, folders(name))
    assert (report.ok, report.stage, report.layer, report.causes) == (False, "layer", 0, ())
    assert "no known mistake" in str(report)


# ---------------------------------------------------------------------------------------------------------------
# Less precision


@pytest.mark.parametrize("dtype", [torch.float32, *(pytest.param(half, marks=pytest.mark.slow) for half in HALVES)])
def test_a_right_model_is_right_with_all_its_outputs_in_its_own_precision(dtype, novels):
    report = checked(novels, nothing, layers=True, head=True, dtype=dtype)
    assert report.ok and report.causes == () and report.stage is None
    assert (report.largest < 1e-4) == (dtype == torch.float32)
    assert "hidden_states, attentions, logits" in str(report)


def test_numbers_that_were_rounded_are_wrong_in_float32(novels):
    states = Expected(Checkpoint.open(novels)).right["last_hidden_state"]
    assert not minibert.check(lambda **x: states.bfloat16().float(), novels).ok


@pytest.mark.slow
@halves
@pytest.mark.parametrize(
    ("change", "config", "cause"),
    [
        (nothing, {}, ""),  # the control
        (ONE_SEGMENT, {}, "all tokens are in segment 0"),
        (nothing, {"hidden_act": "quick_gelu"}, "sigmoid"),
        (no_bias("attention.output.dense"), {}, "the bias of attention.output is left out"),
        (EXCHANGED, {}, "query and key are exchanged"),
    ],
)
def test_mistakes_that_exceed_the_rounding_of_half_precision_are_named_from_the_last_states(
    change, config, cause, dtype, novels
):
    report = checked(novels, change, dtype=dtype, **config)
    assert report.ok == (not cause)
    assert cause in "".join(report.causes[:1])


@pytest.mark.parametrize(
    ("config", "named"),  # the mistake, and what rounding may hide beside it: how halves are rounded is the processor's
    [
        ({"layer_norm_eps": 1e-6}, []),  # which rounds to the same numbers
        ({"layer_norm_eps": 1e-5}, ["eps is 1e-5, torch's default", "eps is 1e-5 in the embeddings alone"]),
        ({"hidden_act": "gelu_new"}, ["GELU is approximated by tanh"]),
    ],
    ids=str,
)
@pytest.mark.slow
def test_a_mistake_that_rounding_hides_is_named_with_what_rounding_cannot_tell_from_it(config, named, novels):
    report = checked(novels, nothing, dtype=torch.float16, **config)
    causes = [cause for text in report.causes for cause in text.split(", or ")]
    assert report.ok == (not named)
    assert all(any(name in cause for name in named) for cause in causes)
    assert [name for name in named[:1] if not any(name in cause for cause in causes)] == []


def test_a_gelu_of_half_floats_whose_rounding_grows_is_the_only_cause(novels):
    report = checked(novels, GELU_OF_HALF, layers=True)
    assert report.causes == ("GELU is of x rounded to float16, as a table of half floats has it",)
    report = checked(novels, GELU_OF_HALF)
    assert not report.ok and "--precision float16" in str(report)


# ---------------------------------------------------------------------------------------------------------------
# What only some outputs or inputs show


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (each(r"(predictions|decoder)$", lambda module: module.bias.data.zero_()), "the bias of the decoder"),
        (each("transform$", put("LayerNorm", nn.Identity())), "the LayerNorm of the transform"),
    ],
)
@pytest.mark.slow
def test_a_mistake_of_the_head_is_named(change, cause, novels):
    report = checked(novels, change, layers=True, head=True)
    assert (report.stage, report.causes) == ("logits", (f"{cause} is left out",))


@pytest.mark.slow
def test_a_decoder_that_is_not_tied_is_suspected_where_all_before_it_is_right(novels):
    def drawn(module):
        module.weight = nn.Parameter(torch.randn(module.weight.shape) * 0.02)

    report = checked(novels, each("decoder$", drawn), layers=True, head=True)
    assert (report.ok, report.stage) == (False, "logits")
    assert "tied" in str(report)
    with_another = each(r"decoder$|layer\.0\.output\.dense$", drawn)
    assert "tied" not in str(checked(novels, with_another, layers=True, head=True))


@pytest.mark.parametrize("finite", [True, False])
def test_softmax_over_the_queries_is_one_cause_at_its_layer(finite, novels, monkeypatch):
    """With -inf, rows of padding are NaN."""

    def attend(module, query, key, value, mask, **how):
        scores = query @ key.transpose(-1, -2) * module.scaling
        scores = scores + mask.clamp(min=-1e9) if finite else scores.masked_fill(mask < 0, float("-inf"))
        probabilities = torch.softmax(scores, dim=-2)
        return (probabilities @ value).transpose(1, 2), probabilities

    monkeypatch.setattr("transformers.models.bert.modeling_bert.eager_attention_forward", attend)
    report = checked(novels, nothing, layers=True)
    assert (report.stage, report.layer) == ("layer", 0)
    assert len(report.causes) == 1
    assert "softmax is over the queries" in report.causes[0]
    assert "1 times as large" not in str(report)


def test_mask_and_segments_that_are_exchanged_are_named_as_that(novels):
    def exchange_inputs(model):
        forward = model.forward

        def exchanged(input_ids, attention_mask, token_type_ids, **how):
            return forward(input_ids, attention_mask=token_type_ids, token_type_ids=attention_mask, **how)

        model.forward = exchanged

    report = checked(novels, exchange_inputs)
    assert "attention mask and segments are exchanged" in " ".join(report.causes)
    assert "segment 1" not in str(report)


def test_dropout_that_is_left_on_is_named(novels):
    report = checked(novels, lambda model: model.train(), hidden_dropout_prob=0.1)
    assert report.causes == ("dropout is left on",)


def test_numbers_at_padding_do_not_count(novels):
    expected = Expected(Checkpoint.open(novels))
    states = expected.right["last_hidden_state"].clone()
    states[expected.inputs["attention_mask"] == 0] = float("nan")
    assert minibert.check(lambda **x: states, novels).ok


def test_the_weights_of_another_model_are_suspected(novels):
    shape = Expected(Checkpoint.open(novels)).right["hidden_states"].shape
    states = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert "nor do the weights of this checkpoint" in str(minibert.check(lambda **x: {"hidden_states": states}, novels))


def test_what_a_model_raises_or_returns_is_said(novels):
    assert "TypeError" in str(minibert.check(lambda **x: 1 + "a", novels))
    assert "expected (5, " in str(minibert.check(lambda **x: torch.zeros(2, 3), novels))
    with pytest.raises(ValueError, match="last_hidden_state"):
        minibert.check(lambda **x: None, novels)
    with pytest.raises(ValueError, match="input_ids in place"):
        minibert.check(lambda **x: x["input_ids"].add_(1).float(), novels)
