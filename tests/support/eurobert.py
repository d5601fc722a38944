"""EuroBERT (Boizard et al. 2025), a relative that minibert does not have, in one file as a user would write it.

RMSNorm before each step, SwiGLU, rotary positions, no biases and no norm after the embeddings, as in Llama. Upstream:
transformers 5.23 EuroBertModel and its heads; minibert's text head is theirs with classifier_pooling "bos".
"""

from dataclasses import dataclass

from torch import nn

from minibert.config import ACTIVATIONS, Config, fixed, fraction, size
from minibert.families.base import Architecture, Family, bert
from minibert.families.bert import CLASSIFIER
from minibert.families.modernbert import (
    GatedFeedForward,
    PreNormEncoder,
    PreNormLayer,
    RotaryAttention,
    TokenEmbeddings,
)
from minibert.utils.settings import setting


@dataclass(frozen=True)
class EuroBertConfig(Config):
    model_type: str = "eurobert"
    type_vocab_size: int = fixed(default=0)
    hidden_act: str = setting("silu", "", choices=ACTIVATIONS)
    layer_norm_eps: float = fraction(1e-5)
    hidden_dropout_prob: float = fraction(0.0)
    pad_token_id: int = size(128001, minimum=0)
    rope_theta: float = setting(10_000.0, "", above=0)


class EuroBertEmbeddings(TokenEmbeddings):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.norm = nn.Identity()


def rms_norm(config: Config, width: int) -> nn.Module:
    return nn.RMSNorm(width, config.layer_norm_eps)


def eurobert(config: EuroBertConfig) -> Architecture:
    return bert(
        config,
        encoder=PreNormEncoder,
        embeddings=EuroBertEmbeddings,
        attention=RotaryAttention,
        feed_forward=GatedFeedForward,
        layer=PreNormLayer,
        norm=rms_norm,
        tables={},
        norm_first=True,
        attention_bias=False,
        feed_forward_bias=False,
        rotary_thetas=(config.rope_theta,) * config.num_hidden_layers,
        text_head="gelu",
    )


EUROBERT = Family(
    name="eurobert",
    title="EuroBERT",
    upstream="EuroBert",
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
        "sequence-classification": {"pre_classifier": "dense", "classifier": "classifier"},
        "token-classification": CLASSIFIER,
    },
    lacks={"masked-lm": "its head is one linear layer, and minibert's have two"},
    keys={"layer_norm_eps": "rms_norm_eps", "attention_probs_dropout_prob": "attention_dropout"},
    outputs={"embeddings": "embed_tokens"},
    config=EuroBertConfig,
    architecture=eurobert,
)
