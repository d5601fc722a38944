"""Invented: positions begin at 3, all layers share their weights, and there are neither segments nor a pooler."""

from dataclasses import dataclass

from torch import Tensor

from minibert.config import Config, fixed
from minibert.families.base import Architecture, Family, bert
from minibert.families.distilbert import WithoutSegments


@dataclass(frozen=True)
class InventedConfig(Config):
    model_type: str = "invented"
    type_vocab_size: int = fixed(default=0)


class FromThree(WithoutSegments):
    def positions(self, input_ids: Tensor) -> Tensor:
        return super().positions(input_ids) + 3


def invented(config: InventedConfig) -> Architecture:
    order = (0,) * config.num_hidden_layers
    return bert(config, embeddings=FromThree, first_position=3, order=order, tables={}, text_head="relu")


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
