"""A model, or numbers of any program: right within rounding, wrong with its cause, located where no cause is known."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.models import Pair

import minibert
from minibert.checking.port import Expected
from minibert.checking.report import Report
from minibert.checkpoints.checkpoint import Checkpoint
from minibert.reference import read_safetensors

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


def test_a_model_of_transformers_is_right(novels: Path) -> None:
    model = theirs(novels, head=True)
    report = minibert.check(lambda **x: model(**x, output_hidden_states=True, output_attentions=True), NOVELS)
    assert report.ok and report.causes == () and report.stage is None
    assert report.largest < 1e-4
    assert "hidden_states, attentions, logits" in str(report)


@pytest.mark.parametrize("family", ["distilbert", "electra", "albert", "modernbert"])
def test_relatives_are_right_too_and_a_wrong_one_is_located(family: str, tmp_path: Path) -> None:
    from support.words import write_words_checkpoint

    folder = write_words_checkpoint(tmp_path / family, family)
    model = theirs(folder)

    def call(shift: float = 0.0, **given: Any) -> Any:
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
def test_the_mistakes_of_a_model_are_named_from_all_states_or_only_the_last(
    change: Callable[[Any], None], stage: str, cause: str, all_states: bool, novels: Path
) -> None:
    report = changed(novels, change, all_states)
    assert not report.ok
    assert report.stage == (stage if all_states else "encoder")
    assert cause in report.causes[0]


def test_two_mistakes_of_a_model_are_both_named(novels: Path) -> None:
    def both(model: Any) -> None:
        eps(model)
        no_scale(model)

    report = changed(novels, both, all_states=True)
    assert "eps is 1e-5" in report.causes[0] and any("√W" in cause for cause in report.causes)


def test_an_unknown_mistake_is_located_at_its_layer(novels: Path) -> None:
    def one_layer(model: Any) -> None:
        with torch.no_grad():
            model.encoder.layer[2].output.dense.weight *= 1.1

    report = changed(novels, one_layer, all_states=True)
    assert (report.ok, report.stage, report.layer, report.causes) == (False, "layer", 2, ())
    assert "no known mistake" in str(report)


def test_a_model_in_a_lower_precision_is_right_within_its_own_bound(novels: Path) -> None:
    model = theirs(novels, dtype=torch.bfloat16)
    report = minibert.check(lambda **x: model(**x).last_hidden_state, NOVELS)
    assert report.ok and report.largest > 1e-3
    rounded = theirs(novels)
    assert not minibert.check(lambda **x: rounded(**x).last_hidden_state.bfloat16().float(), NOVELS).ok


def test_dropout_that_is_left_on_is_named(novels: Path) -> None:
    model = theirs(novels, hidden_dropout_prob=0.1).train()
    assert minibert.check(lambda **x: model(**x).last_hidden_state, NOVELS).causes == ("dropout is left on",)


def test_what_a_model_raises_or_returns_is_said(novels: Path) -> None:
    assert "TypeError" in str(minibert.check(lambda **x: 1 + "a", NOVELS))
    assert "expected (5, " in str(minibert.check(lambda **x: torch.zeros(2, 3), NOVELS))
    with pytest.raises(ValueError, match="last_hidden_state"):
        minibert.check(lambda **x: None, NOVELS)
    with pytest.raises(ValueError, match="input_ids in place"):
        minibert.check(lambda **x: x["input_ids"].add_(1).float(), NOVELS)


def test_a_class_or_a_function_of_a_file_makes_the_model(novels: Path, tmp_path: Path, run: Any) -> None:
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


# ---------------------------------------------------------------------------------------------------------------
# Numbers in a file


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from minibert.cli.main import main

    path = tmp_path_factory.mktemp("exported") / "inputs.npz"
    assert main(["check", "--export", str(path), "--model", NOVELS]) == 0
    return path


def test_the_exported_outputs_are_right_and_as_described(exported: Path, tmp_path: Path) -> None:
    with np.load(exported) as file:
        arrays = dict(file)
    B, S = arrays["input_ids"].shape
    assert all(arrays[name].dtype == np.int64 for name in ("input_ids", "attention_mask", "token_type_ids"))
    assert arrays["expected.hidden_states"].shape == (5, B, S, 256)
    assert arrays["expected.attentions"].shape == (4, B, 4, S, S)
    assert arrays["expected.logits"].dtype == np.float32
    named = {name.removeprefix("expected."): x for name, x in arrays.items() if name.startswith("expected.")}
    np.savez(tmp_path / "outputs.npz", **named)
    assert minibert.check(tmp_path / "outputs.npz", NOVELS).ok


def numpy_bert(arrays: Any, weights: Any, eps: float = 1e-12) -> Any:
    """The embeddings and the first layer, by numpy alone."""
    w = {name.removeprefix("bert."): x for name, x in weights.items()}

    def norm(x: Any, name: str) -> Any:
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w[name + ".weight"] + w[name + ".bias"]

    def linear(x: Any, name: str) -> Any:
        return x @ w[name + ".weight"].T + w[name + ".bias"]

    def heads(x: Any) -> Any:
        return x.reshape(*x.shape[:2], 4, -1).transpose(0, 2, 1, 3)

    ids, mask, segments = (arrays[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
    states = [norm(x + w["embeddings.token_type_embeddings.weight"][segments], "embeddings.LayerNorm")]
    x, layer = states[0], "encoder.layer.0."
    q, k, v = (heads(linear(x, f"{layer}attention.self.{name}")) for name in ("query", "key", "value"))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1]) + (mask[:, None, None] - 1) * 1e9
    p = np.exp(scores - scores.max(-1, keepdims=True))
    context = (p / p.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
    x = norm(x + linear(context, layer + "attention.output.dense"), layer + "attention.output.LayerNorm")
    y = linear(x, layer + "intermediate.dense")
    y = 0.5 * y * (1 + np.vectorize(__import__("math").erf)(y / np.sqrt(2)))
    return [*states, norm(x + linear(y, layer + "output.dense"), layer + "output.LayerNorm")]


def test_numbers_of_numpy_are_right_as_far_as_they_go_and_their_mistake_is_named(
    exported: Path, novels: Path, tmp_path: Path
) -> None:
    weights = {name: x.numpy() for name, x in read_safetensors(str(novels / "model.safetensors")).items()}
    arrays = dict(np.load(exported))
    for eps, cause in ((1e-12, ""), (1e-5, "eps is 1e-5")):
        states = numpy_bert(arrays, weights, eps)
        np.savez(tmp_path / "outputs.npz", **{f"hidden_states.{n}": x.astype(np.float32) for n, x in enumerate(states)})
        report = minibert.check(tmp_path / "outputs.npz", NOVELS)
        assert report.ok == (not cause)
        assert cause in "".join(report.causes[:1])


def test_numbers_at_padding_do_not_count(novels: Path) -> None:
    expected = Expected(Checkpoint.open(novels))
    states = expected.right["last_hidden_state"].clone()
    states[expected.inputs["attention_mask"] == 0] = float("nan")
    assert minibert.check(lambda **x: states, NOVELS).ok


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"states": np.zeros(3)}, "'states'.*hidden_states"),
        ({"hidden_states.x": np.zeros(3)}, "hidden_states.x"),
        ({"hidden_states.1": np.zeros((5, 11, 256), np.float32)}, r"layers \[1\].*from 0"),
        ({"input_ids": np.zeros((5, 11), np.int64)}, "other input_ids"),
        ({}, "no output"),
        ({"logits": np.zeros((5, 11, 8192), np.int64)}, "int64"),
    ],
)
def test_files_with_unknown_names_other_inputs_or_no_numbers_are_refused(
    arrays: Any, said: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "outputs.npz", **arrays)
    with pytest.raises(ValueError, match=said):
        minibert.check(tmp_path / "outputs.npz", NOVELS)


def test_a_small_file_of_a_large_array_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "outputs.npz", logits=np.zeros(10_000_000, np.float32))
    monkeypatch.setattr(np.lib.format, "read_array", None)
    with pytest.raises(ValueError, match=r"logits of shape \(10000000,\)"):
        minibert.check(tmp_path / "outputs.npz", NOVELS)


@pytest.mark.parametrize("shape", ["(10000000000000,)", "(-5,)", "(3,", "(99999999999999999999999,)"])
def test_an_array_with_a_damaged_header_is_refused(shape: str, tmp_path: Path) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    with zipfile.ZipFile(tmp_path / "outputs.npz", "w") as file:
        file.writestr("logits.npy", b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(100))
    with pytest.raises(ValueError, match=r"outputs\.npz (is not an \.npz|has logits of shape)"):
        minibert.check(tmp_path / "outputs.npz", NOVELS)


def test_a_file_that_is_no_npz_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outputs.npz").write_text("numbers")
    with pytest.raises(ValueError, match=r"outputs\.npz"):
        minibert.check(tmp_path / "outputs.npz", NOVELS)
    with pytest.raises(FileNotFoundError, match="--export"):
        minibert.check(tmp_path / "none.npz", NOVELS)


def test_the_weights_of_another_model_are_suspected(novels: Path, pair: Callable[..., Pair], tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(0)
    shape = Expected(Checkpoint.open(novels)).right["hidden_states"].shape
    states = torch.randn(shape, generator=random)
    assert "nor do the weights of this checkpoint" in str(minibert.check(lambda **x: {"hidden_states": states}, NOVELS))


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
def test_a_mistake_that_rounding_hides_is_named_with_all_that_rounding_cannot_tell_from_it(
    change: dict[str, Any], named: list[str], novels: Path
) -> None:
    """The first port is right: the control."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(novels, **change)
    model = theirs(novels, config=config, dtype=torch.float16)
    report = minibert.check(lambda **x: model(**x).last_hidden_state, NOVELS)
    assert report.ok == (not named)
    assert len(" ".join(report.causes).split(", or ")) == max(1, len(named))
    assert all(cause in " ".join(report.causes) for cause in named)
