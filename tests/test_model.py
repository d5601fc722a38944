"""Our forward pass beside itself: shapes, what is returned, and other ways to the same numbers.

That it is transformers' eager path bit for bit is the ladder's matter (test_parity.py).
"""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Pair, every_family, small_config
from torch import Tensor, nn

import minibert
from minibert.families import FAMILIES
from minibert.families.base import Family
from minibert.families.bert import BERT
from minibert.heads import HEAD_CLASSES
from minibert.inputs import checking
from minibert.model import Encoder
from minibert.parity.checkpoints import make_batch, task
from minibert.parity.compare import compare_full_length
from minibert.parity.stages import Place, forward, record

MakePair = Callable[..., Pair]
ENCODER = Encoder(small_config()).eval()
WANTED = {"output_hidden_states": True, "output_attentions": True}
pytestmark = pytest.mark.usefixtures("one_thread")


# other ways to the same numbers


@pytest.mark.parametrize("name", ["minilm", *FAMILIES])
def test_sdpa_is_within_1e_5_of_the_eager_path(name: str, minilm: Path, written: Any) -> None:
    folder, tokens = (minilm, 128) if name == "minilm" else (written(FAMILIES[name])[0], 11)
    eager, fused = minibert.load(folder), minibert.load(folder, attention="sdpa")
    rows = compare_full_length(fused, eager, make_batch(eager.config, tokens, rows=4))
    assert len(rows) == eager.config.num_hidden_layers + 1
    assert all(row.largest <= 1e-5 for row in rows)
    assert not all(row.equal for row in rows)


def test_a_sentence_alone_and_in_a_batch_is_the_same_within_1e_5(minilm: Path) -> None:
    encoder = minibert.load(minilm)
    batch = make_batch(encoder.config, 64, rows=4)
    given = {"attention_mask": batch.attention_mask, "token_type_ids": batch.token_type_ids}
    with torch.no_grad():
        together = encoder(batch.input_ids, **given)
        for row, length in enumerate(batch.attention_mask.sum(dim=1).tolist()):
            one = slice(row, row + 1), slice(length)
            alone = encoder(batch.input_ids[one], **{name: x[one] for name, x in given.items()})
            assert (alone.last_hidden_state[0] - together.last_hidden_state[row, :length]).abs().max() <= 1e-5
            assert (alone.pooler_output[0] - together.pooler_output[row]).abs().max() <= 1e-5


def test_two_calls_are_bit_equal_because_a_loaded_model_is_in_eval_mode(pair: MakePair) -> None:
    both = pair()
    assert not both.ours.training
    first, second = (forward(both.ours, both.asked.batch).last_hidden_state for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_model_is_copied_and_pickled_whole(attention: str) -> None:
    encoder = Encoder(small_config(hidden_act="gelu_pytorch_tanh"), attention).eval()
    batch = make_batch(encoder.config, 11)
    expected = forward(encoder, batch).last_hidden_state
    for twin in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        assert torch.equal(forward(twin, batch).last_hidden_state, expected)


# compiled: no check is in the graph


def compiled(model: nn.Module) -> tuple[Any, list[str]]:
    """The model as one graph (anything that needs the value of a tensor would break it), and what that calls."""
    calls: list[str] = []

    def backend(graph: Any, _: Any) -> Any:
        calls.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    torch.compiler.reset()
    return torch.compile(model, fullgraph=True, backend=backend), calls


def assert_compiles_equal(model: Any, head: str | None) -> None:
    asked = task(head, model.config, 11)
    whole, calls = compiled(model)
    ours, expected = (forward(m, asked.batch, asked.labels) for m in (whole, model))
    names = expected.keys()
    assert ours.keys() == names
    assert all(torch.equal(ours[name], expected[name]) for name in names)
    assert "softmax" in calls
    assert not {"any", "isfinite", "nonzero", "item"} & set(calls)


@every_family
def test_the_encoder_compiles_to_one_graph_without_a_check_and_computes_the_same(family: Family) -> None:
    assert_compiles_equal(Encoder(small_config(family, num_hidden_layers=1)).eval(), None)


@pytest.mark.parametrize("head", BERT.heads)
def test_every_head_and_its_loss_compile_to_one_graph_without_a_check(head: str) -> None:
    labels = 2 if head == "question-answering" else 3
    assert_compiles_equal(HEAD_CLASSES[head](small_config(num_hidden_layers=1, num_labels=labels)).eval(), head)


def test_with_the_checks_on_there_would_be_no_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the tests above can fail."""
    monkeypatch.setattr(minibert.inputs, "checking", lambda: True)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        forward(compiled(ENCODER)[0], make_batch(ENCODER.config, 11))
    assert checking()


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


def test_the_output_has_the_promised_shapes() -> None:
    out = ENCODER(torch.ones(2, 5, dtype=torch.long), output_hidden_states=True, output_attentions=True)
    assert out.last_hidden_state.shape == shape("B,S,D")
    assert out.pooler_output.shape == shape("B,D")
    assert [x.shape for x in out.hidden_states] == [shape("B,S,D")] * 3
    assert [x.shape for x in out.attentions] == [shape("B,H,S,S")] * 2


# what is asked for


def test_hidden_states_and_attentions_are_returned_only_when_asked_for() -> None:
    out = ENCODER(torch.ones(2, 5, dtype=torch.long))
    assert out.hidden_states is None
    assert out.attentions is None


@every_family
def test_what_is_asked_for_is_what_the_layers_computed(family: Family, pair: MakePair) -> None:
    encoder, batch = pair(family).ours, pair(family).asked.batch
    out, stages = forward(encoder, batch, WANTED), record(encoder, batch)
    states = [stages[Place("embeddings")], *(stages[Place("layer", i)] for i in range(2))]
    assert all(torch.equal(x, y) for x, y in zip(out.hidden_states, states, strict=True))
    probs = [stages[Place("probs", i)] for i in range(2)]
    assert all(torch.equal(x, y) for x, y in zip(out.attentions, probs, strict=True))
    assert torch.equal(out.last_hidden_state, states[-1])
    assert family.has_pooler is (out.pooler_output is not None)
    assert not family.has_pooler or torch.equal(out.pooler_output, stages[Place("pooler")])


def test_asked_for_attentions_sdpa_computes_them_written_out(written: Any) -> None:
    folder, _ = written()
    eager, fused = minibert.load(folder), minibert.load(folder, attention="sdpa")
    batch = make_batch(eager.config, 11)
    ours, expected = forward(fused, batch, WANTED), forward(eager, batch, WANTED)
    for field in ("hidden_states", "attentions"):
        assert all(torch.equal(x, y) for x, y in zip(ours[field], expected[field], strict=True))
    assert (torch.stack(ours.attentions).sum(dim=-1) - 1).abs().max() <= 1e-6


def test_padding_gets_no_attention(pair: MakePair) -> None:
    both = pair()
    for probs in forward(both.ours, both.asked.batch, WANTED).attentions:
        assert probs.permute(0, 3, 1, 2)[both.asked.batch.attention_mask == 0].abs().max() == 0


def test_fields_are_read_by_name_and_by_place_as_those_of_transformers(pair: MakePair) -> None:
    both = pair(head="sequence-classification")
    ours, theirs = (forward(m, both.asked.batch, both.asked.labels | WANTED) for m in (both.ours, both.theirs))
    assert list(ours.keys()) == list(theirs.keys()) == ["loss", "logits", "hidden_states", "attentions"]
    assert torch.equal(ours["logits"], theirs["logits"])
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[:2][1], theirs[1])
    without = forward(both.ours, both.asked.batch)
    assert without.keys() == ["logits"]
    assert without[0] is without.logits is without["logits"]
    assert without["loss"] is None


def test_a_field_or_a_place_that_is_not_there_is_an_error() -> None:
    out = ENCODER(torch.ones(2, 5, dtype=torch.long))
    assert out.keys() == ["last_hidden_state", "pooler_output"]
    assert out[1] is out.pooler_output
    with pytest.raises(KeyError, match="'logits' is no field of EncoderOutput; it has last_hidden_state, pooler_out"):
        out["logits"]
    with pytest.raises(IndexError):
        out[2]


def test_the_encoder_knows_the_device_of_its_weights() -> None:
    encoder = Encoder(small_config())
    assert encoder.device == torch.device("cpu")
    assert encoder.to("meta").device == torch.device("meta")


def test_an_unknown_attention_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="attention 'flash' is not known; choose from eager, sdpa"):
        Encoder(small_config(), "flash")


def test_the_state_dict_holds_parameters_only() -> None:
    assert list(ENCODER.buffers()) == []
    assert set(ENCODER.state_dict()) == {name for name, _ in ENCODER.named_parameters()}


def test_the_published_ids_of_a_pair_are_those_of_the_same_vocabulary(minilm: Path) -> None:
    batch = minibert.load_tokenizer(minilm)(["I was thirsty!"], ["I drank water :D"])
    assert batch.input_ids.tolist() == [[101, 1045, 2001, 24907, 999, 102, 1045, 10749, 2300, 1024, 1040, 102]]
    assert batch.token_type_ids.tolist() == [[0] * 6 + [1] * 6]
