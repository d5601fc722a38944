"""The forward pass: shapes, outputs, other ways to the same numbers. `minibert parity` compares it with upstream."""

import copy
import pickle
import re
from typing import Any

import pytest
import torch
from support.models import assert_equal, every_family, small_config, unequal
from torch import nn

import minibert
from minibert import model
from minibert.families import FAMILIES
from minibert.families.bert import BERT
from minibert.heads import HEAD_CLASSES
from minibert.hooks import Inputs, Place, forward, record
from minibert.inputs import checking
from minibert.parity.checkpoints import LabelledBatch, make_batch, task
from minibert.parity.compare import compare_full_length

ENCODER = minibert.Encoder(small_config()).eval()
WANTED = {"output_hidden_states": True, "output_attentions": True}


# other ways to the same numbers


@pytest.mark.parametrize("name", ["minilm", *FAMILIES])
def test_sdpa_is_within_1e_5_of_the_eager_path(name, minilm, written):
    folder, tokens = (minilm, 128) if name == "minilm" else (written(FAMILIES[name])[0], 11)
    eager, fused = minibert.load(folder), minibert.load(folder, attention="sdpa")
    rows = compare_full_length(fused, eager, make_batch(eager.config, tokens, rows=4))
    assert len(rows) == eager.config.num_hidden_layers + 1
    assert all(row.largest <= 1e-5 for row in rows)
    assert not all(row.equal for row in rows)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_model_is_copied_and_pickled_whole(attention):
    encoder = minibert.Encoder(small_config(hidden_act="gelu_pytorch_tanh"), attention).eval()
    batch = make_batch(encoder.config, 11)
    expected = forward(encoder, batch).last_hidden_state
    for twin in (encoder, copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        assert torch.equal(forward(twin, batch).last_hidden_state, expected)


# compiled: no check is in the graph


def compiled(model: nn.Module) -> tuple[Any, list[str]]:
    """The model as one graph (anything that needs the value of a tensor would break it), and what that calls."""
    calls = []

    def backend(graph, _):
        calls.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    torch.compiler.reset()
    return torch.compile(model, fullgraph=True, backend=backend), calls


def assert_compiles_equal(model: Any, head: str | None) -> None:
    inputs = task(head, model.config, 11)
    whole, calls = compiled(model)
    ours, expected = (forward(m, inputs.batch, inputs.labels) for m in (whole, model))
    assert ours.keys() == expected.keys()
    assert_equal(ours[:], expected[:])
    assert {"softmax", "any", "isfinite", "nonzero", "item"} & set(calls) == {"softmax"}


@every_family
def test_the_encoder_compiles_to_one_graph_without_a_check_and_computes_the_same(family):
    assert_compiles_equal(minibert.Encoder(small_config(family, num_hidden_layers=1)).eval(), None)


@pytest.mark.parametrize("head", BERT.heads)
def test_every_head_and_its_loss_compile_to_one_graph_without_a_check(head):
    labels = 2 if head == "question-answering" else 3
    assert_compiles_equal(HEAD_CLASSES[head](small_config(num_hidden_layers=1, num_labels=labels)).eval(), head)


def test_with_the_checks_on_there_would_be_no_one_graph(monkeypatch):
    """So that the tests above can fail."""
    monkeypatch.setattr(minibert.inputs, "checking", lambda: True)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        forward(compiled(ENCODER)[0], make_batch(ENCODER.config, 11))
    assert checking()


# shapes: those of the comments and docstrings of model.py, with B=2, S=5


LETTERS = {"B": 2, "S": 5, "D": 24, "H": 3, "W": 8, "F": 37}
CHAIN = re.compile(r"\(([BSDHWFL1]+(?:,[BSDHWFL1]+)*)\)")
IDS = torch.ones(2, 5, dtype=torch.long)


def shape(letters: str) -> tuple[int, ...]:
    """(B,S,D) in numbers."""
    return tuple(LETTERS.get(letter) or int(letter) for letter in letters.split(","))


def test_every_module_has_the_shapes_of_its_docstring():
    encoder, seen = copy.deepcopy(ENCODER), set()

    def check(module, inputs, output):
        chain = [letters for letters in CHAIN.findall(type(module).forward.__doc__ or "") if letters != "B,H,S,S"]
        first = output[0] if isinstance(output, tuple) else output
        assert (inputs[0].shape, first.shape) == (shape(chain[0]), shape(chain[-1])), module
        seen.add(type(module).__name__)

    for module in encoder.modules():
        if type(module).__module__ == model.__name__ and module is not encoder:
            module.register_forward_hook(check)
    encoder(IDS)
    assert seen == {"Embeddings", "Layer", "SelfAttention", "FeedForward", "Residual", "Pooler"}


# what is returned


@every_family
def test_hidden_states_and_attentions_are_those_of_the_layers(family, pair):
    encoder, batch = pair(family).ours, pair(family).task.batch
    out, stages = forward(encoder, batch, WANTED), record(encoder, batch)
    first, second = stages[Place("layer", 0)], stages.get(Place("final norm"), stages[Place("layer", 1)])
    assert_equal(out.hidden_states, (stages[Place("embeddings")], first, second))
    assert_equal(out.attentions, (stages[Place("probs", 0)], stages[Place("probs", 1)]))
    assert_equal([out.last_hidden_state, out.pooler_output], [second, stages.get(Place("pooler"))])
    assert family.has_pooler is (out.pooler_output is not None)
    real = batch.attention_mask == 1
    for attention in out.attentions:  # a real token attends to no padding
        assert attention.permute(0, 2, 3, 1)[real[:, :, None] & ~real[:, None]].abs().max() == 0


def test_sdpa_computes_requested_attentions_written_out(written):
    eager, fused = (minibert.load(written()[0], attention=name) for name in ("eager", "sdpa"))
    ours, expected = (forward(encoder, make_batch(eager.config, 11), WANTED) for encoder in (fused, eager))
    assert_equal(ours[:], expected[:])
    assert (torch.stack(ours.attentions).sum(dim=-1) - 1).abs().max() <= 1e-6


def test_the_encoder_knows_its_device_and_its_state_is_parameters_only():
    assert list(ENCODER.buffers()) == []
    assert set(ENCODER.state_dict()) == {name for name, _ in ENCODER.named_parameters()}
    encoder = minibert.Encoder(small_config())
    assert encoder.device == torch.device("cpu")
    assert encoder.to("meta").device == torch.device("meta")
    with pytest.raises(ValueError, match=r"'flash'.*eager, sdpa"):
        minibert.Encoder(small_config(), "flash")


# Heads of width 1, one token, one head, one layer, a feed-forward of 1; each with one row and with three.
ODD: list[dict[str, int]] = [
    {"hidden_size": 7, "num_attention_heads": 7, "max_position_embeddings": 8},
    {"hidden_size": 3, "num_attention_heads": 3, "max_position_embeddings": 9, "intermediate_size": 2},
    {"hidden_size": 5, "num_attention_heads": 5, "max_position_embeddings": 17, "vocab_size": 103},
    {"hidden_size": 7, "num_attention_heads": 1, "max_position_embeddings": 5, "intermediate_size": 1},
    {"hidden_size": 1, "num_attention_heads": 1, "max_position_embeddings": 3, "vocab_size": 7},
    {"hidden_size": 21, "num_attention_heads": 7, "max_position_embeddings": 1, "num_hidden_layers": 1},
    {"hidden_size": 65, "num_attention_heads": 5, "max_position_embeddings": 33, "vocab_size": 128},
]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("sizes", ODD, ids=str)
def test_odd_sizes_are_computed_and_trained_bit_for_bit_as_upstream(sizes, rows, pair):
    both = pair(BERT, "masked-lm", **sizes)
    batch = Inputs(*(x[:rows].clone() for x in vars(both.task.batch).values()))
    both.task = LabelledBatch(batch, {"labels": both.task.labels["labels"][:rows].clone()})
    assert not unequal(both.compare() + both.train())
