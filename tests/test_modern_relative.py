"""A relative of later years, defined by one Family here: norm first, rotary positions, a window, a gate, no biases.

It runs on every path with nothing else changed, and equals a forward pass that is written as a loop over tokens.
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from support.engine import EXACT
from support.training import Found, batch_of
from support.words import write_tsv, write_words_checkpoint
from torch import Tensor, nn

import minibert
from minibert.config import Config, fixed
from minibert.families import FAMILIES
from minibert.families.base import Architecture, Family, bert
from minibert.families.modernbert import (
    ModernBertAttention,
    ModernBertFeedForward,
    PreNormEncoder,
    PreNormLayer,
    TokenEmbeddings,
)
from minibert.heads import HEAD_CLASSES
from minibert.hooks import Inputs, Place, record
from minibert.kernels.parts import with_parts
from minibert.parity.checkpoints import randomise
from minibert.quick import QUICK
from minibert.train import finetune
from minibert.train.loop import packed_loss, readable_loss
from minibert.vectors.engine import Engine
from minibert.vectors.readable import readable_vectors


@dataclass(frozen=True)
class LaterConfig(Config):
    model_type: str = "later"
    type_vocab_size: int = fixed(default=0)


def norm_without_bias(config: Config, width: int) -> nn.Module:
    return nn.LayerNorm(width, config.layer_norm_eps, bias=False)


def later(config: LaterConfig) -> Architecture:
    steps = range(config.num_hidden_layers)
    return bert(
        config,
        encoder=PreNormEncoder,
        embeddings=TokenEmbeddings,
        attention=ModernBertAttention,
        feed_forward=ModernBertFeedForward,
        layer=PreNormLayer,
        norm=norm_without_bias,
        tables={},
        norm_first=True,
        attention_bias=False,
        feed_forward_bias=False,
        head_bias=False,
        windows=tuple(6 if step % 3 else None for step in steps),
        rotary_thetas=tuple(100.0 if step % 3 else 1e4 for step in steps),
        text_head="gelu",
    )


LATER = Family(
    name="later",
    title="Later",
    upstream="Later",
    prefix="model.",
    modules={
        "embeddings.token": "embeddings.tok_embeddings",
        "embeddings.norm": "embeddings.norm",
        "layers.{}.attention_norm": "layers.{}.attn_norm",
        "layers.{}.attention.query": "layers.{}.attn.Wqkv",
        "layers.{}.attention.key": "layers.{}.attn.Wqkv",
        "layers.{}.attention.value": "layers.{}.attn.Wqkv",
        "layers.{}.attention.output": "layers.{}.attn.Wo",
        "layers.{}.feed_forward_norm": "layers.{}.mlp_norm",
        "layers.{}.feed_forward.expand": "layers.{}.mlp.Wi",
        "layers.{}.feed_forward.gate": "layers.{}.mlp.Wi",
        "layers.{}.feed_forward.contract": "layers.{}.mlp.Wo",
        "final_norm": "final_norm",
    },
    fused=("layers.{}.attn.Wqkv", "layers.{}.mlp.Wi"),
    heads={
        "masked-lm": {"transform": "head.dense", "transform_norm": "head.norm", "decoder": "decoder"},
        "sequence-classification": {"pre_classifier": "head.dense", "classifier": "classifier"},
    },
    second_names={"decoder.weight": "embeddings.tok_embeddings.weight"},
    decoder_bias=("decoder.bias", "decoder.bias"),
    config=LaterConfig,
    architecture=later,
)
RAW: dict[str, Any] = {
    "model_type": "later",
    "vocab_size": 101,
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "layer_norm_eps": 1e-5,
    "num_labels": 3,
}
ROWS = [[5, 9, 13, 8], [7], [*range(3, 40)], [3, 4, 60, 2, 31, 17, 9], [11, 12, 13, 14], [*range(40, 80)]]


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "later", LATER)


@pytest.fixture
def encoder(known: None) -> minibert.Encoder:
    made = minibert.Encoder(minibert.Config.from_dict(RAW)).eval()
    randomise(made, 3)
    return made


def by_loops(encoder: Any, ids: list[int]) -> Tensor:
    """The states of one text, (S,D), token by token and head by head."""
    H, W = 3, 8

    def turned(x: Tensor, position: int, theta: float) -> Tensor:
        angles = [position * theta ** (-2 * i / W) for i in range(W // 2)]
        first, second = x[: W // 2], x[W // 2 :]
        one = [a * math.cos(angle) - b * math.sin(angle) for a, b, angle in zip(first, second, angles, strict=True)]
        other = [b * math.cos(angle) + a * math.sin(angle) for a, b, angle in zip(first, second, angles, strict=True)]
        return torch.stack(one + other)

    def norm(x: Tensor, module: Any) -> Tensor:
        return (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt() * module.weight

    x = [norm(encoder.embeddings.token.weight[one], encoder.embeddings.norm) for one in ids]
    for step, layer in enumerate(encoder.layers):
        reach, theta = (3, 100.0) if step % 3 else (len(ids), 1e4)
        h = [norm(one, layer.attention_norm) if step else one for one in x]
        three = (layer.attention.query, layer.attention.key, layer.attention.value)
        projected = [[linear.weight @ one for one in h] for linear in three]
        change = []
        for i in range(len(ids)):
            heads = []
            for head in range(H):
                part = slice(head * W, head * W + W)
                near = [j for j in range(len(ids)) if abs(i - j) <= reach]
                q, keys, values = ([one[part] for one in all_of] for all_of in projected)
                scores = torch.stack([turned(q[i], i, theta) @ turned(keys[j], j, theta) for j in near]) / W**0.5
                heads.append(scores.softmax(0) @ torch.stack([values[j] for j in near]))
            change.append(layer.attention.output.weight @ torch.cat(heads))
        x = [one + more for one, more in zip(x, change, strict=True)]
        ffn = layer.feed_forward
        for i, one in enumerate(x):
            y = norm(one, layer.feed_forward_norm)
            x[i] = one + ffn.contract.weight @ (F.gelu(ffn.expand.weight @ y) * (ffn.gate.weight @ y))
    return torch.stack([norm(one, encoder.final_norm) for one in x])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@torch.no_grad()
def test_the_readable_path_computes_what_loops_over_tokens_compute(encoder: minibert.Encoder, attention: str) -> None:
    chosen = minibert.Encoder(encoder.config, attention).eval()
    chosen.load_state_dict(encoder.state_dict())
    ids = torch.tensor([row + [0] * (40 - len(row)) for row in ROWS])
    out = chosen(ids, output_hidden_states=True)
    for row, found in zip(ROWS, out.last_hidden_state, strict=True):
        torch.testing.assert_close(found[: len(row)], by_loops(encoder, row), rtol=1e-4, atol=1e-4)
    assert out.hidden_states is not None and torch.equal(out.hidden_states[-1], out.last_hidden_state)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
@pytest.mark.parametrize(
    ("precision", "bound"), [("float32", 1e-5), ("bfloat16", 0.3), pytest.param("int8", 0.3, marks=EXACT)]
)
def test_fast_vectors_are_those_of_the_readable_path(
    encoder: minibert.Encoder,
    pooling: str,
    precision: str,
    bound: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    recipe = minibert.Recipe(pooling, layers=(0, 2, -1))
    found = Engine(encoder, precision, samples=ROWS).vectors(ROWS, recipe)
    assert np.abs(found - readable_vectors(encoder, ROWS, recipe)).max() < bound


@pytest.mark.parametrize("head", sorted(LATER.heads))
@pytest.mark.parametrize("fast_parts", [False, True])
def test_the_packed_training_step_is_the_readable_one(head: str, fast_parts: bool) -> None:
    model = HEAD_CLASSES[head](minibert.Config.from_dict(RAW)).eval()
    randomise(model, 4)
    batch = batch_of(head, [3, 40, 12, 5])
    found = Found.of(packed_loss, with_parts(model, QUICK) if fast_parts else model, batch)
    assert max(found.apart(Found.of(readable_loss, model, batch)).values()) < 1e-5


@pytest.mark.parametrize("head", [None, *LATER.heads])
def test_a_file_holds_fused_tensors_and_loads_back(head: str | None, tmp_path: Path) -> None:
    model = (HEAD_CLASSES[head] if head else minibert.Encoder)(minibert.Config.from_dict(RAW)).eval()
    randomise(model, 5)
    minibert.save(model, tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    prefix = "model." if head else ""
    below: Any = model.encoder if head else model
    attention, ffn = below.layers[1].attention, below.layers[1].feed_forward
    expected = torch.cat([attention.query.weight, attention.key.weight, attention.value.weight])
    assert torch.equal(stored[f"{prefix}layers.1.attn.Wqkv.weight"], expected)
    assert torch.equal(stored[f"{prefix}layers.1.mlp.Wi.weight"], torch.cat([ffn.expand.weight, ffn.gate.weight]))
    again = minibert.load(tmp_path, head=head)
    assert all(torch.equal(x, again.state_dict()[name]) for name, x in model.state_dict().items())
    _, report = minibert.load(tmp_path, report=True)
    assert report.loaded[f"{prefix}layers.1.mlp.Wi.weight"].count("layers.1.feed_forward") == 2
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 39}))
    with pytest.raises(ValueError, match=r"mlp\.Wi\.weight.*80, 24.*78, 24"):
        minibert.load(tmp_path)


def test_it_is_fine_tuned_and_predicts(tmp_path: Path) -> None:
    write_words_checkpoint(tmp_path / "words")
    minibert.save(minibert.Encoder(minibert.Config.from_dict(RAW)), tmp_path / "words")
    write_tsv(tmp_path / "train.tsv")
    finetune("classify", tmp_path / "train.tsv", model=tmp_path / "words", out=tmp_path / "out", epochs=2)
    assert {"label", "probability"} <= minibert.predict(tmp_path / "out", ["one text"])[0].keys()


def test_every_stage_is_recorded(encoder: minibert.Encoder) -> None:
    ids = torch.tensor([ROWS[2]])
    stages = record(encoder, Inputs(ids, torch.ones_like(ids), torch.zeros_like(ids)))
    assert {Place("gate", 3), Place("probs", 3), Place("final norm")} <= stages.keys()
    assert Place("position embeddings") not in stages


def test_what_does_not_fit_is_named(encoder: minibert.Encoder) -> None:
    with pytest.raises(ValueError, match=r"later: layers\.\{\}\.attention\.query is layers\.\{\}\.attn\.Wqkv.* 3 "):
        replace(LATER, fused=("layers.{}.mlp.Wi",))
    with pytest.raises(ValueError, match="3 wide"):
        replace(encoder.config, hidden_size=9)
    assert len(replace(encoder.config, num_hidden_layers=2).architecture.windows) == 2
