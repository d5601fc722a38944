"""Our forward pass is transformers' eager path, tensor for tensor and bit for bit, in eval and in train mode."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers import SIZES, differences, hard_batch, named_outputs, unequal, write_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import minibert
from minibert.checkpoints import hub
from minibert.checkpoints.fill import load_encoder, name_in_file
from minibert.config import ACTIVATIONS
from minibert.model import Encoder

MODEL_TYPES = ("bert", "distilbert")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """One small random checkpoint of each model type: its folder and transformers' model."""
    found = {}
    for model_type in MODEL_TYPES:
        folder = tmp_path_factory.mktemp(model_type)
        found[model_type] = folder, write_checkpoint(folder, model_type)
    return found


@pytest.fixture(scope="module")
def upstream_minilm(minilm: Path) -> Any:
    model: Any = transformers.BertModel.from_pretrained(minilm, attn_implementation="eager")
    return model.eval()


# parity


def test_minilm_equals_transformers_bit_for_bit_from_one_token_to_512(minilm: Path, upstream_minilm: Any) -> None:
    ours = minibert.load(minilm)
    assert differences(ours, upstream_minilm, hard_batch(ours.config)) == {}


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    heads = draw(st.integers(1, 4))
    sizes = {
        "model_type": draw(st.sampled_from(MODEL_TYPES)),
        "num_attention_heads": heads,
        "hidden_size": heads * draw(st.sampled_from([1, 5, 8, 16])),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "intermediate_size": draw(st.sampled_from([37, 64])),
        "max_position_embeddings": draw(st.integers(1, 40)),
        "hidden_act": draw(st.sampled_from(ACTIVATIONS)),
        "pad_token_id": draw(st.sampled_from([0, 3])),
    }
    if sizes["model_type"] == "bert":
        sizes |= {"type_vocab_size": draw(st.integers(1, 3)), "layer_norm_eps": draw(st.sampled_from([1e-12, 1e-5]))}
    else:
        sizes["sinusoidal_pos_embds"] = draw(st.booleans())
    return sizes


@settings(max_examples=40, deadline=None)
@given(configurations(), st.integers(0, 2**16))
def test_random_checkpoints_of_any_configuration_equal_transformers(sizes: dict[str, Any], seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        theirs = write_checkpoint(Path(folder), seed=seed, **sizes)
        ours, _ = load_encoder(Path(folder))
    assert differences(ours, theirs, hard_batch(ours.config, seed=seed)) == {}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_activation_equals_transformers_bit_for_bit(model_type: str, activation: str, tmp_path: Path) -> None:
    theirs = write_checkpoint(tmp_path, model_type, hidden_act=activation)
    ours, _ = load_encoder(tmp_path)
    assert differences(ours, theirs, hard_batch(ours.config)) == {}


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_float64_equals_transformers_bit_for_bit(model_type: str, checkpoints: dict[str, Any]) -> None:
    folder, _ = checkpoints[model_type]
    theirs = type(checkpoints[model_type][1]).from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    ours = minibert.load(folder, dtype=torch.float64)
    assert differences(ours, theirs.eval(), hard_batch(ours.config)) == {}


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_sdpa_is_within_1e_5_of_the_eager_path(model_type: str, checkpoints: dict[str, Any]) -> None:
    folder, _ = checkpoints[model_type]
    eager, fused = minibert.load(folder), minibert.load(folder, attention="sdpa")
    assert_close_with_both_attentions(eager, fused)


def test_sdpa_of_minilm_is_within_1e_5_of_the_eager_path(minilm: Path) -> None:
    assert_close_with_both_attentions(minibert.load(minilm), minibert.load(minilm, attention="sdpa"))


def assert_close_with_both_attentions(eager: Encoder, fused: Encoder) -> None:
    batch = hard_batch(eager.config, longest=128)
    with torch.no_grad():
        a, b = (encoder(**batch, output_hidden_states=True) for encoder in (eager, fused))
    for x, y in zip((*a.hidden_states, a.last_hidden_state), (*b.hidden_states, b.last_hidden_state), strict=True):
        assert (x - y).abs().max() <= 1e-5


def test_a_sentence_alone_and_in_a_batch_is_the_same_within_1e_5(minilm: Path) -> None:
    encoder = minibert.load(minilm)
    batch = hard_batch(encoder.config, longest=128)
    with torch.no_grad():
        together = encoder(**batch)
        for row, length in enumerate(batch["attention_mask"].sum(dim=1).tolist()):
            alone = encoder(**{name: x[row : row + 1, :length] for name, x in batch.items()})
            assert (alone.last_hidden_state[0] - together.last_hidden_state[row, :length]).abs().max() <= 1e-5
            assert (alone.pooler_output[0] - together.pooler_output[row]).abs().max() <= 1e-5


def test_two_calls_are_bit_equal_because_a_loaded_model_is_in_eval_mode(checkpoints: dict[str, Any]) -> None:
    encoder = minibert.load(checkpoints["bert"][0])
    batch = hard_batch(encoder.config)
    assert not encoder.training
    assert torch.equal(encoder(**batch).last_hidden_state, encoder(**batch).last_hidden_state)


def train_step(model: Any, batch: dict[str, Tensor], **wanted: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs and gradients of one pass in train mode, dropout from a fixed seed."""
    model.train()
    torch.manual_seed(11)
    out = model(**batch, **wanted)
    probe = torch.linspace(-1, 1, out.last_hidden_state.numel()).view_as(out.last_hidden_state)
    loss = (out.last_hidden_state * probe).sum()
    if getattr(out, "pooler_output", None) is not None:
        loss = loss + out.pooler_output.square().sum()
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: x.detach() for name, x in named_outputs(out).items()}, gradients


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_training_gives_bit_equal_outputs_and_gradients_with_dropout(model_type: str, tmp_path: Path) -> None:
    theirs = write_checkpoint(tmp_path, model_type)
    ours, _ = load_encoder(tmp_path)
    assert training_differences(ours, theirs) == {}


def training_differences(ours: Encoder, theirs: Any) -> dict[str, float]:
    wanted = {"output_hidden_states": True, "output_attentions": True}
    batch = hard_batch(ours.config)
    outputs, gradients = train_step(ours, batch, **wanted)
    if ours.config.model_type == "distilbert":
        del batch["token_type_ids"]
    upstream_outputs, upstream_gradients = train_step(theirs, batch, **wanted)
    renamed = {name_in_file(ours.config.model_type, name): x for name, x in gradients.items()}
    assert len(renamed) == len(list(ours.parameters()))
    return unequal(outputs, upstream_outputs) | unequal(renamed, upstream_gradients)


def test_the_training_comparison_finds_a_dropout_that_upstream_does_not_have(tmp_path: Path) -> None:
    theirs = write_checkpoint(tmp_path, "distilbert")
    ours, _ = load_encoder(tmp_path)
    for layer in ours.layers:
        layer.attention_dropout = nn.Dropout(0.1)
    assert training_differences(ours, theirs)


# shapes: what the comments of model.py state, with B=2, S=5


LETTERS = {"B": 2, "S": 5, "D": 24, "H": 3, "W": 8, "F": 37}
CHAIN = re.compile(r"\([BSDHWFL1]+(?:,[BSDHWFL1]+)*\)")


def shape(letters: str) -> tuple[int, ...]:
    """(B,S,D) in numbers."""
    return tuple(LETTERS.get(letter) or int(letter) for letter in letters.split(","))


def stated(module: str) -> tuple[str, str]:
    """First and last shape that the docstring of a module's forward states."""
    doc = {name: type(m).forward.__doc__ or "" for name, m in ENCODER.named_modules()}[module]
    found = CHAIN.findall(doc)
    return found[0].strip("()"), found[-1].strip("()")


ENCODER = Encoder(minibert.Config(**SIZES)).eval()


def seen_shapes() -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """The shape of the first tensor that goes into each module and of the first that comes out, for B=2 and S=5."""
    seen: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def hook(name: str) -> Any:
        def remember(module: nn.Module, inputs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, Tensor):
                seen[name] = tuple(inputs[0].shape), tuple(first.shape)

        return remember

    handles = [module.register_forward_hook(hook(name)) for name, module in ENCODER.named_modules()]
    ENCODER(torch.ones(2, 5, dtype=torch.long))
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize(
    ("module", "before", "after"),
    [
        ("embeddings", "B,S", "B,S,D"),
        ("embeddings.token", "B,S", "B,S,D"),
        ("embeddings.segment", "B,S", "B,S,D"),
        ("embeddings.position", "S", "S,D"),
        ("embeddings.norm", "B,S,D", "B,S,D"),
        ("layers.0", "B,S,D", "B,S,D"),
        ("layers.0.attention", "B,S,D", "B,S,D"),
        ("layers.0.attention.query", "B,S,D", "B,S,D"),
        ("layers.0.attention.dropout", "B,H,S,S", "B,H,S,S"),
        ("layers.0.attention.output", "B,S,D", "B,S,D"),
        ("layers.0.feed_forward.expand", "B,S,D", "B,S,F"),
        ("layers.0.feed_forward.contract", "B,S,F", "B,S,D"),
        ("layers.0.feed_forward", "B,S,D", "B,S,D"),
        ("layers.1.feed_forward_norm", "B,S,D", "B,S,D"),
        ("pooler", "B,S,D", "B,D"),
    ],
)
def test_every_module_takes_and_gives_the_stated_shape(module: str, before: str, after: str) -> None:
    assert seen_shapes()[module] == (shape(before), shape(after))


@pytest.mark.parametrize("module", ["embeddings", "layers.0", "layers.0.attention", "layers.0.feed_forward", "pooler"])
def test_the_shapes_in_a_docstring_are_the_shapes_that_pass(module: str) -> None:
    before, after = stated(module)
    after = before if after == "B,H,S,S" else after  # the second tensor that a layer returns
    assert seen_shapes()[module] == (shape(before), shape(after))


def test_heads_are_split_to_the_stated_shape() -> None:
    attention: Any = ENCODER.layers[0].attention
    assert attention.split_heads(torch.zeros(shape("B,S,D"))).shape == shape("B,H,S,W")


def test_the_output_has_the_promised_shapes(checkpoints: dict[str, Any]) -> None:
    out = ENCODER(torch.ones(2, 5, dtype=torch.long), output_hidden_states=True, output_attentions=True)
    assert out.last_hidden_state.shape == shape("B,S,D")
    assert out.pooler_output.shape == shape("B,D")
    assert [x.shape for x in out.hidden_states] == [shape("B,S,D")] * (SIZES["num_hidden_layers"] + 1)
    assert [x.shape for x in out.attentions] == [shape("B,H,S,S")] * SIZES["num_hidden_layers"]


# what is asked for


def test_hidden_states_and_attentions_are_returned_only_when_asked_for() -> None:
    out = ENCODER(torch.ones(2, 5, dtype=torch.long))
    assert out.hidden_states is None
    assert out.attentions is None


def test_asked_for_attentions_sdpa_computes_them_written_out(checkpoints: dict[str, Any]) -> None:
    folder, _ = checkpoints["bert"]
    eager, fused = minibert.load(folder), minibert.load(folder, attention="sdpa")
    batch = hard_batch(eager.config)
    wanted = {"output_hidden_states": True, "output_attentions": True}
    with torch.no_grad():
        ours, expected = fused(**batch, **wanted), eager(**batch, **wanted)
    assert unequal(named_outputs(ours), named_outputs(expected)) == {}
    sums = torch.stack(ours.attentions).sum(dim=-1)
    assert (sums - 1).abs().max() <= 1e-6


def test_padding_gets_no_attention(checkpoints: dict[str, Any]) -> None:
    encoder = minibert.load(checkpoints["bert"][0])
    batch = hard_batch(encoder.config)
    for probs in encoder(**batch, output_attentions=True).attentions:
        assert probs.permute(0, 3, 1, 2)[batch["attention_mask"] == 0].abs().max() == 0


def test_an_unknown_attention_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="attention 'flash' is not known; choose from eager, sdpa"):
        Encoder(minibert.Config(**SIZES), "flash")


def test_the_state_dict_holds_parameters_only() -> None:
    assert list(ENCODER.buffers()) == []
    assert set(ENCODER.state_dict()) == {name for name, _ in ENCODER.named_parameters()}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_model_is_copied_and_pickled_whole(attention: str) -> None:
    import copy
    import pickle

    encoder = Encoder(minibert.Config(**SIZES, hidden_act="gelu_pytorch_tanh"), attention).eval()
    batch = hard_batch(encoder.config)
    expected = encoder(**batch).last_hidden_state
    for twin in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        assert torch.equal(twin(**batch).last_hidden_state, expected)


# the values that are published for official checkpoints (transformers' integration tests and model cards)


def official(name: str) -> Encoder:
    if hub.locate_locally(name) is None:
        pytest.skip(f"{name} is not on this machine: minibert download {name}")
    encoder: Encoder = minibert.load(name)
    return encoder


@pytest.fixture
def published_ids() -> Iterator[dict[str, Tensor]]:
    ids = torch.tensor([[0, 345, 232, 328, 740, 140, 1695, 69, 6078, 1588, 2]])
    yield {"input_ids": ids, "attention_mask": (torch.arange(11) > 0).long()[None]}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (
            "distilbert-base-uncased",
            [[-0.1639, 0.3299, 0.1648], [-0.1746, 0.3289, 0.1710], [-0.1884, 0.3357, 0.1810]],
        ),
        ("bert-base-uncased", [[0.4249, 0.1008, 0.7531], [0.3771, 0.1188, 0.7467], [0.4152, 0.1098, 0.7108]]),
    ],
)
def test_published_hidden_states(name: str, values: list[list[float]], published_ids: dict[str, Tensor]) -> None:
    with torch.no_grad():
        x = official(name)(**published_ids).last_hidden_state
    assert (x[0, 1:4, 1:4] - torch.tensor(values)).abs().max() <= 1e-4


def test_published_vectors_of_a_pair_by_bert_base_uncased() -> None:
    encoder = official("bert-base-uncased")
    batch = minibert.load_tokenizer("bert-base-uncased")(["I was thirsty!"], ["I drank water :D"])
    assert batch.input_ids.tolist() == [[101, 1045, 2001, 24907, 999, 102, 1045, 10749, 2300, 1024, 1040, 102]]
    assert batch.token_type_ids.tolist() == [[0] * 6 + [1] * 6]
    with torch.no_grad():
        out = encoder(batch.input_ids, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids)
    cls = torch.tensor([-0.23, 0.37, -0.34, -0.35, -0.91, 0.01, 0.67, 0.64, 0.1, -0.32])
    pooled = torch.tensor([-0.9803, -0.7672, -0.9958, 0.9636, 0.9004, -0.5488, 0.9910, 0.6867, -0.9878, -1.0000])
    assert (out.last_hidden_state[0, 0, :10] - cls).abs().max() <= 0.005 + 1e-4
    assert (out.pooler_output[0, :10] - pooled).abs().max() <= 1e-4
