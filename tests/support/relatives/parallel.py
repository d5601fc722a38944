"""Parallel: x = x + Attention(LayerNorm(x)) + FFN(LayerNorm(x)) with one norm, learned positions and biases."""

from dataclasses import dataclass

from torch import Tensor, nn

from minibert.config import Config, fixed
from minibert.families.base import Architecture, Family, bert
from minibert.families.distilbert import WithoutSegments
from minibert.families.modernbert import PreNormEncoder
from minibert.layout import Attend, Layout
from minibert.model import Layer


@dataclass(frozen=True)
class ParallelConfig(Config):
    model_type: str = "parallel"
    type_vocab_size: int = fixed(default=0)


class ParallelEmbeddings(WithoutSegments):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.norm = nn.Identity()


class ParallelLayer(Layer):
    """x = x + Attention(LayerNorm(x)) + FFN(LayerNorm(x)) (GPT-J, PaLM)."""

    def __init__(self, config: Config, number: int = 0) -> None:
        super().__init__(config, number)
        del self.feed_forward_norm

    def forward(self, x: Tensor, layout: Layout, attend: Attend) -> tuple[Tensor, Tensor | None]:
        normed = self.attention_norm(x)
        wanted = layout.wanted(normed)
        attended, probs = self.attention(normed, layout, attend, wanted)
        x = self.attention_residual(attended, layout.wanted(x))
        return self.feed_forward_residual(self.feed_forward(wanted), x), probs


def parallel(config: ParallelConfig) -> Architecture:
    return bert(
        config,
        encoder=PreNormEncoder,
        embeddings=ParallelEmbeddings,
        layer=ParallelLayer,
        tables={},
        norm_first=True,
        text_head="relu",
    )


PARALLEL = Family(
    name="parallel",
    title="Parallel",
    upstream="Parallel",
    prefix="transformer.",
    modules={
        "embeddings.token": "wte",
        "embeddings.position": "wpe",
        "layers.{}.attention_norm": "h.{}.ln_1",
        "layers.{}.attention.query": "h.{}.attn.q_proj",
        "layers.{}.attention.key": "h.{}.attn.k_proj",
        "layers.{}.attention.value": "h.{}.attn.v_proj",
        "layers.{}.attention.output": "h.{}.attn.out_proj",
        "layers.{}.feed_forward.expand": "h.{}.mlp.fc_in",
        "layers.{}.feed_forward.contract": "h.{}.mlp.fc_out",
        "final_norm": "ln_f",
    },
    heads={
        "masked-lm": {"transform": "head.dense", "transform_norm": "head.norm", "decoder": "lm_head"},
        "sequence-classification": {"pre_classifier": "dense", "classifier": "score"},
    },
    # One key for both dropouts, as in many of its time.
    keys={"hidden_size": "n_embd", "hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "dropout"},
    outputs={"embeddings": "drop"},
    config=ParallelConfig,
    architecture=parallel,
)
