"""A relative is data: one is invented here in a dozen lines, and everything in minibert works with it.

Its tensors have other names, its positions begin at 3, all layers share their weights, and it has neither segments nor
pooler. Its upstream is written out beside it with modules of its own, as a library would have it.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from support.words import write_words_checkpoint
from torch import Tensor, nn

import minibert
from minibert.checkpoints.load import full_name
from minibert.config import Config, fixed
from minibert.families import FAMILIES
from minibert.families.base import Architecture, Family, bert
from minibert.families.distilbert import WithoutSegments
from minibert.heads import HEAD_CLASSES
from minibert.hooks import Place
from minibert.parity.checkpoints import make_batch, randomise
from minibert.parity.compare import compare, first_divergent
from minibert.vectors.engine import Engine
from minibert.vectors.readable import readable_vectors


@dataclass(frozen=True)
class InventedConfig(Config):
    model_type: str = "invented"
    type_vocab_size: int = fixed(default=0)


class FromThree(WithoutSegments):
    def positions(self, input_ids: Tensor) -> Tensor:
        return super().positions(input_ids) + 3


def invented(config: InventedConfig, **mistake: Any) -> Architecture:
    own = {"embeddings": FromThree, "first_position": 3, "order": (0,) * config.num_hidden_layers} | mistake
    return bert(config, tables={}, text_head="relu", **own)


LAYER = {"query": "q", "key": "k", "value": "v", "output": "o"}
INVENTED = Family(
    name="invented",
    title="Invented",
    upstream="Invented",
    prefix="backbone.",
    modules={
        "embeddings.token": "embeddings.wte",
        "embeddings.position": "embeddings.wpe",
        "embeddings.norm": "embeddings.ln",
    }
    | {f"layers.{{}}.attention.{ours}": f"blocks.{{}}.attn.{theirs}" for ours, theirs in LAYER.items()}
    | {"layers.{}.attention_norm": "blocks.{}.ln1", "layers.{}.feed_forward.expand": "blocks.{}.up"}
    | {"layers.{}.feed_forward.contract": "blocks.{}.down", "layers.{}.feed_forward_norm": "blocks.{}.ln2"},
    heads={"sequence-classification": {"pre_classifier": "score.dense", "classifier": "score.out"}},
    lacks={"masked-lm": "it never saw a mask"},
    keys={"hidden_size": "n_embd", "num_hidden_layers": "n_layer"},
    config=InventedConfig,
    architecture=invented,
)
RAW: dict[str, Any] = {
    "model_type": "invented",
    "vocab_size": 61,
    "n_embd": 24,
    "n_layer": 3,
    "num_attention_heads": 3,
    "intermediate_size": 37,
    "max_position_embeddings": 20,
    "num_labels": 3,
    "layer_norm_eps": 1e-5,
}


# ---------------------------------------------------------------------------------------------------------------
# Its upstream, as its inventors would have written it


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe, self.ln = nn.Embedding(61, 24, padding_idx=0), nn.Embedding(20, 24), nn.LayerNorm(24, 1e-5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(3, 3 + ids.shape[1]))
        return F.dropout(self.ln(x), 0.1, self.training)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(24, 24) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (linear(x).view(*x.shape[:2], 3, 8).transpose(1, 2) for linear in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(2, 3)) * (1 / math.sqrt(8))
        scores = scores.masked_fill(mask[:, None, None] == 0, torch.finfo(scores.dtype).min)
        weights = F.dropout(torch.softmax(scores, dim=-1), 0.1, self.training)
        return self.o(torch.matmul(weights, v).transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.ln1, self.ln2 = Attention(), nn.LayerNorm(24, 1e-5), nn.LayerNorm(24, 1e-5)
        self.up, self.down = nn.Linear(24, 37), nn.Linear(37, 24)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.ln1(F.dropout(self.attn(x, mask), 0.1, self.training) + x)
        return self.ln2(F.dropout(self.down(F.gelu(self.up(x))), 0.1, self.training) + x)


class InventedModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config: Any = SimpleNamespace(model_type="invented", num_hidden_layers=3, vocab_size=61, pad_token_id=0)
        self.embeddings, block = Embeddings(), Block()
        self.blocks = nn.ModuleList([block, block, block])

    def forward(self, input_ids: Tensor, attention_mask: Tensor, output_hidden_states: bool = False) -> Any:
        states = [self.embeddings(input_ids)]
        for block in self.blocks:
            states.append(block(states[-1], attention_mask))
        return SimpleNamespace(last_hidden_state=states[-1], hidden_states=states)


# ---------------------------------------------------------------------------------------------------------------
# minibert with it


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "invented", INVENTED)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with a vocabulary of its own."""
    write_words_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    vocab_size = len((tmp_path / "vocab.txt").read_text("utf-8").splitlines())
    model = HEAD_CLASSES["sequence-classification"](minibert.Config.from_dict(RAW | {"vocab_size": vocab_size}))
    randomise(model, 0)
    minibert.save(model, tmp_path)
    return tmp_path


def test_config_json_becomes_behaviour_and_is_written_back_unchanged() -> None:
    config = minibert.Config.from_dict(RAW)
    assert (config.hidden_size, config.num_hidden_layers, config.architecture.order) == (24, 3, (0, 0, 0))
    assert (config.architecture.first_position, config.max_tokens) == (3, 17)
    written = config.to_dict()
    assert written.items() >= {key: value for key, value in RAW.items() if key != "num_labels"}.items()
    assert not {"type_vocab_size", "hidden_size"} & set(written)
    assert minibert.Config.from_dict(written) == config


def test_it_is_saved_under_its_own_names_each_shared_weight_once_and_loaded_back(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    assert {"backbone.embeddings.wte.weight", "backbone.blocks.0.attn.q.weight", "score.out.bias"} <= set(tensors)
    assert not [name for name in tensors if "blocks.1" in name]
    model, report = minibert.load(folder, head="sequence-classification", report=True)
    assert len(report.loaded) == len(tensors) == len(model.state_dict())
    encoder, report = minibert.load(folder, report=True)
    assert sorted(report.ignored) == ["score.dense.bias", "score.dense.weight", "score.out.bias", "score.out.weight"]
    assert len(encoder.layers) == 1


@pytest.mark.parametrize(
    ("mistake", "stage"),
    [
        ({}, None),
        ({"embeddings": WithoutSegments}, Place("position embeddings")),
        ({"order": (0, 0, 1)}, Place("query", 2)),
    ],
)
def test_parity_finds_it_equal_to_its_upstream_bit_for_bit_and_a_mistake_in_its_data(
    mistake: dict[str, Any], stage: Place | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = InventedModel().eval()
    randomise(theirs, 5)
    monkeypatch.setitem(FAMILIES, "invented", replace(INVENTED, architecture=partial(invented, **mistake)))
    ours = minibert.Encoder(minibert.Config.from_dict(RAW)).eval()
    state = theirs.state_dict()
    copied = {name: state[full_name(INVENTED, name)] for name in ours.state_dict() if "layers.1" not in name}
    ours.load_state_dict(ours.state_dict() | copied)
    rows = compare(ours, theirs, make_batch(theirs.config, 16))
    first = first_divergent(rows)
    assert (first and Place(first.stage, first.layer)) == stage
    assert {row.layer for row in rows if row.stage == "scores"} == {0, 1, 2}


def test_everything_else_takes_it(folder: Path) -> None:
    encoder = minibert.Encoder(minibert.Config.from_dict(RAW)).eval()
    randomise(encoder, 1)
    rows = [[5, 6, 7, 8], [9], list(range(1, 18)), [3, 4, 5, 6]]
    engine = Engine(encoder)
    assert len(engine.encoder.layers) == 1
    for recipe in (minibert.Recipe("cls"), minibert.Recipe(pooling="mean", layers=(0, 1, 2, 3))):
        assert np.abs(engine.vectors(rows, recipe) - readable_vectors(encoder, rows, recipe)).max() <= 1e-5
    with pytest.raises(ValueError, match=r"\b18\b.* 17\b"):
        engine.vectors([list(range(18))])
    assert minibert.embed(["a good film", "bad"], model=folder).shape == (2, 24)
    traced = minibert.trace(minibert.load(folder), minibert.load_tokenizer(folder), "a good film")
    assert [layer["probs"].shape[0] for layer in traced.layers] == [3, 3, 3]
    assert "Invented" in traced.to_html()
