"""Ports of relatives by transformers, with a mistake: its cause is named with the values of the relative."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import write_checkpoint
from support.tokenizers import byte_pairs
from support.words import write_words_checkpoint

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


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made = {}

    def folder(name):
        if name not in made:
            made[name] = path = tmp_path_factory.mktemp(name)
            family = {"gelu_new": "bert", "wide": "electra"}.get(name, name)
            if family == "roberta":
                import transformers

                vocabulary, merges = byte_pairs()
                tokenizer = transformers.RobertaTokenizer(vocab=vocabulary, merges=merges)
                write_checkpoint(path, family, vocab_size=len(tokenizer), **SIZES[name])
                tokenizer.save_pretrained(path)
            else:
                write_words_checkpoint(path, family, **SIZES.get(name, {}))
        return made[name]

    return folder


def checked(
    folder: Path, change: Callable[[Any], None], dtype: torch.dtype = torch.float32, layers: bool = False, **config: Any
) -> Report:
    """The report on the model of transformers; layers: it gives all states, not only the last."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder, **config)
    model = transformers.AutoModel.from_pretrained(folder, config=config, attn_implementation="eager", dtype=dtype)
    model.eval()
    change(model)
    segments = hasattr(getattr(model, "embeddings", None), "token_type_embeddings")
    names = ("input_ids", "attention_mask", "token_type_ids")[: 2 + segments]

    def call(**given):
        result = model(**{name: given[name] for name in names}, output_hidden_states=layers)
        return result if layers else result.last_hidden_state

    return minibert.check(lambda **given: call(**given), folder)


def nothing(model: Any) -> None:
    """The control: a right port."""


def no_bias(path: str) -> Callable[[Any], None]:
    def change(model):
        modules = [module for name, module in model.named_modules() if name.endswith(path)]
        assert modules
        for module in modules:
            module.bias.data.zero_()

    return change


def rounded_weights(dtype: torch.dtype) -> Callable[[Any], None]:
    def change(model):
        for one in model.parameters():
            one.data = one.data.to(dtype).float()

    return change


def eps_in(part: str) -> Callable[[Any], None]:
    def change(model):
        for module in getattr(model, part).modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.eps = 1e-5

    return change


def no_last_norm(model: Any) -> None:
    model.encoder.layer[-1].output.LayerNorm = torch.nn.Identity()


def positions_later(by: int) -> Callable[[Any], None]:
    def change(model):
        table = model.embeddings.position_embeddings.weight.data
        table.copy_(table.roll(-by, 0))

    return change


def as_if_pad_were_0(model: Any) -> None:
    embed = model.embeddings.forward

    def forward(input_ids, **more):
        positions = (input_ids != 0).long().cumsum(1) * (input_ids != 0)
        return embed(input_ids=input_ids, **(more | {"position_ids": positions}))

    model.embeddings.forward = forward


def exchanged_halves(model: Any) -> None:
    for layer in model.layers:
        weight = layer.mlp.Wi.weight.data
        weight.copy_(weight.roll(len(weight) // 2, 0))


def no_final_norm(model: Any) -> None:
    model.final_norm = torch.nn.Identity()


def neighbours(model: Any) -> None:
    for layer in model.layers:
        width = layer.attn.head_dim
        weight = layer.attn.Wqkv.weight.data.unflatten(0, (3, -1, width // 2, 2))  # of query, key and value
        weight[:2] = weight[:2].movedim(3, 2).reshape(weight[:2].shape)


def one_theta(model: Any) -> None:
    rotary = model.rotary_emb
    rotary.sliding_attention_inv_freq = rotary.full_attention_inv_freq


@pytest.mark.parametrize("layers", [False, True], ids=["last", "all"])
@pytest.mark.parametrize("name", [*RELATIVES, "gelu_new", "wide"])
def test_a_right_port_is_right(name, layers, folders):
    report = checked(folders(name), nothing, layers=layers)
    assert report.ok and not report.causes


@pytest.mark.parametrize("layers", [False, True], ids=["last", "all"])
@pytest.mark.parametrize(
    ("name", "change", "config", "cause"),
    [
        ("bert", rounded_weights(torch.float16), {}, "the weights are rounded to float16"),
        ("bert", eps_in("embeddings"), {}, "eps is 1e-5 in the embeddings alone"),
        ("bert", eps_in("encoder"), {}, "eps is 1e-5 in the layers alone"),
        ("bert", no_last_norm, {}, "the LayerNorm of the last layer is left out"),
        ("distilbert", nothing, {"activation": "gelu_new"}, "GELU is approximated by tanh"),
        ("distilbert", nothing, {"n_heads": 6}, "there are twice as many heads"),
        ("distilbert", rounded_weights(torch.bfloat16), {}, "the weights are rounded to bfloat16"),
        ("roberta", nothing, {"layer_norm_eps": 1e-12}, "eps is 1e-12, not 1e-05"),
        ("roberta", positions_later(-2), {}, "positions begin at 0, not at 2"),
        ("roberta", positions_later(-1), {}, "positions begin at 1, not at 2"),
        ("roberta", positions_later(1), {}, "positions begin at 3, not at 2"),
        ("roberta", as_if_pad_were_0, {}, "as if [PAD] were id 0"),
        ("wide", nothing, {"layer_norm_eps": 1e-5}, "eps is 1e-5, torch's default, not 1e-12"),
        ("electra", nothing, {"layer_norm_eps": 1e-5}, "eps is 1e-5, not 1e-12"),
        ("electra", no_bias("embeddings_project"), {}, "the projection"),
        ("gelu_new", nothing, {"hidden_act": "gelu"}, "the activation is gelu, not gelu_new"),
        ("gelu_new", positions_later(1), {}, "positions begin at 1, not at 0"),
        ("albert", nothing, {"hidden_act": "gelu"}, "the activation is gelu, not gelu_new"),
        ("albert", nothing, {"layer_norm_eps": 1e-5}, "eps is 1e-5, not 1e-12"),
        ("albert", no_bias("embedding_hidden_mapping_in"), {}, "the projection"),
        ("albert", no_bias("ffn_output"), {}, "the bias of contract"),
        ("albert", nothing, {"num_attention_heads": 6}, "twice as many heads"),
        ("modernbert", nothing, {"norm_eps": 1e-3}, ""),  # not known
        ("modernbert", nothing, {"local_attention": 1000}, "local layers attend to all tokens"),
        ("modernbert", nothing, {"local_attention": 8}, "the window is on each side"),
        ("modernbert", exchanged_halves, {}, "activation and gate are exchanged"),
        ("modernbert", no_final_norm, {}, "the final norm is left out"),
        ("modernbert", neighbours, {}, "neighbours are turned together"),
        ("modernbert", one_theta, {}, "the angles of the first"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_mistake_is_named_with_the_values_of_the_checkpoint(name, change, config, cause, layers, folders):
    report = checked(folders(name), change, layers=layers, **config)
    assert not report.ok
    assert len(report.causes) == bool(cause)
    assert cause in "".join(report.causes)


@pytest.mark.parametrize(("window", "positions", "longest"), [(40, 80, 48), (40, 45, 45), (4, 80, 26)])
def test_a_text_is_longer_than_the_windows_of_the_layers(window, positions, longest, tmp_path):
    folder = write_words_checkpoint(tmp_path, "modernbert", local_attention=window, max_position_embeddings=positions)
    mask = Expected(Checkpoint.open(folder)).inputs["attention_mask"]
    assert mask.sum(dim=1).max() == longest
