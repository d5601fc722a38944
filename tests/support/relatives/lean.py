"""Lean: RMSNorm before each step, SwiGLU, rotary positions, no biases, no norm after the embeddings."""

from dataclasses import dataclass

from torch import nn

from minibert.config import ACTIVATIONS, Config, fixed, fraction
from minibert.families.base import Architecture, Family, bert
from minibert.families.modernbert import (
    GatedFeedForward,
    PreNormEncoder,
    PreNormLayer,
    RotaryAttention,
    TokenEmbeddings,
)
from minibert.utils.settings import setting


@dataclass(frozen=True)
class LeanConfig(Config):
    model_type: str = "lean"
    type_vocab_size: int = fixed(default=0)
    hidden_act: str = setting("silu", "", choices=ACTIVATIONS)
    layer_norm_eps: float = fraction(1e-5)
    hidden_dropout_prob: float = fraction(0.0)
    rope_theta: float = setting(250_000.0, "", above=0)


class LeanEmbeddings(TokenEmbeddings):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.norm = nn.Identity()


def rms_norm(config: Config, width: int) -> nn.Module:
    return nn.RMSNorm(width, config.layer_norm_eps)


def lean(config: LeanConfig) -> Architecture:
    return bert(
        config,
        encoder=PreNormEncoder,
        embeddings=LeanEmbeddings,
        attention=RotaryAttention,
        feed_forward=GatedFeedForward,
        layer=PreNormLayer,
        norm=rms_norm,
        tables={},
        norm_first=True,
        attention_bias=False,
        feed_forward_bias=False,
        head_bias=False,
        decoder_bias=False,
        rotary_thetas=(config.rope_theta,) * config.num_hidden_layers,
        text_head="tanh",
    )


LEAN = Family(
    name="lean",
    title="Lean",
    upstream="Lean",
    prefix="model.",
    modules={
        "embeddings.token": "embed_tokens",
        "layers.{}.attention_norm": "layers.{}.input_layernorm",
        "layers.{}.attention.query": "layers.{}.self_attn.q_proj",
        "layers.{}.attention.key": "layers.{}.self_attn.k_proj",
        "layers.{}.attention.value": "layers.{}.self_attn.v_proj",
        "layers.{}.attention.output": "layers.{}.self_attn.o_proj",
        "layers.{}.feed_forward_norm": "layers.{}.post_attention_layernorm",
        "layers.{}.feed_forward.expand": "layers.{}.mlp.gate_proj",
        "layers.{}.feed_forward.gate": "layers.{}.mlp.up_proj",
        "layers.{}.feed_forward.contract": "layers.{}.mlp.down_proj",
        "final_norm": "norm",
    },
    heads={
        "masked-lm": {"transform": "head.dense", "transform_norm": "head.norm", "decoder": "lm_head"},
        "sequence-classification": {"pre_classifier": "dense", "classifier": "classifier"},
    },
    keys={"layer_norm_eps": "rms_norm_eps", "attention_probs_dropout_prob": "attention_dropout"},
    outputs={"embeddings": "embed_tokens"},
    config=LeanConfig,
    architecture=lean,
)
