"""Later: norm first, rotary positions, a window in two of three layers, a gate, no biases; fused tensors in files."""

from dataclasses import dataclass

from torch import nn

from minibert.config import Config, fixed
from minibert.families.base import Architecture, Family, bert
from minibert.families.modernbert import (
    ModernBertAttention,
    ModernBertFeedForward,
    PreNormEncoder,
    PreNormLayer,
    TokenEmbeddings,
)


@dataclass(frozen=True)
class LaterConfig(Config):
    model_type: str = "later"
    type_vocab_size: int = fixed(default=0)


class LaterLayer(PreNormLayer):
    def __init__(self, config: Config, number: int = 0) -> None:
        super().__init__(config, number)
        if number == 0:
            self.attention_norm = nn.Identity()  # type: ignore[assignment]  # the embeddings end with a norm


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
        layer=LaterLayer,
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
